"""`outfit device`: takes single devices out of service and returns them. Each change is one write to the host's LedgerPage."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import NameOID

from outfitter.api import kinds, providers
from outfitter.api.ledger_page.page import OutOfServiceRecord, OutOfServiceState
from outfitter.cli import time_format
from outfitter.cli.client import Client
from outfitter.cli.device import text
from outfitter.cli.device.view import find_devices
from outfitter.errors import AlreadyHeld, CommandFailed, NotFound
from outfitter.ledger import out_of_service
from outfitter.ledger.device_list import ListedDevice
from outfitter.store.clock import rfc3339


async def reserve(client: Client, words: Sequence[str], *, reason: str) -> None:
    await _take_out_of_service(client, "reserved", words, reason)


async def quarantine(client: Client, words: Sequence[str], *, reason: str) -> None:
    await _take_out_of_service(client, "quarantined", words, reason)


async def _take_out_of_service(client: Client, record_type: OutOfServiceState, words: Sequence[str], reason: str) -> None:
    wanted, now, by = await _devices_to_change(client, words, record_type), time_format.now(), await acting_user(client)
    change = {"reserved": out_of_service.reserve, "quarantined": out_of_service.quarantine}[record_type]
    for device in wanted:
        before = _record(device, record_type)
        if before is not None and before.origin != out_of_service.PLACEMENT and reason in ("", before.reason):
            text.print_lines([f"{device.short} was {_recorded_since(record_type, before, now)} already"])
            continue
        await change(client.readable, device.host, device.id, by=by, reason=reason, now=rfc3339(now))
        text.print_lines([_outcome(device, record_type, before, now)])


def _outcome(device: ListedDevice, record_type: OutOfServiceState, before: OutOfServiceRecord | None, now: datetime) -> str:
    if before is not None and before.origin != out_of_service.PLACEMENT:
        return f"{device.short} was {_recorded_since(record_type, before, now)} already; the reason is changed"
    if device.bookings:
        return (f"{device.short} {record_type}; this takes effect when it is free: it is "
                + "; ".join(text.holder_text(booking, now) for booking in device.bookings))
    return f"{device.short} {record_type}"


async def unreserve(client: Client, words: Sequence[str]) -> None:
    wanted = await _devices_to_change(client, words, "unreserved")
    for device in wanted:
        record = _record(device, "reserved")
        if record is not None and record.origin == out_of_service.PLACEMENT and (provider := await _provider(client, device)):
            raise CommandFailed(f"{device.short} is reserved because its provider has reserved devices, and another device "
                                f"would be reserved instead; change the number with: outfit providers reserve {provider} N")
    for device in wanted:
        changed = await out_of_service.unreserve(client.readable, device.host, device.id)
        text.print_lines([f"{device.short} unreserved{_still_out_of_service(device, 'reserved')}" if changed
                       else f"{device.short} is not reserved"])


async def _provider(client: Client, device: ListedDevice) -> str:
    """The provider that counts a device; "" if there is none."""
    try:
        tree = providers.read(await client.readable.get(kinds.PROVIDER_TREE, device.host))
    except NotFound:
        return ""
    return next((provider.name for provider in tree if device.id.device in provider.devices), "")


async def restore(client: Client, words: Sequence[str]) -> None:
    for device in await _devices_to_change(client, words, "restored"):
        changed = await out_of_service.restore(client.readable, device.host, device.id)
        text.print_lines([f"{device.short} restored{_still_out_of_service(device, 'quarantined')}" if changed
                       else f"{device.short} is not quarantined"])


async def clear(client: Client, words: Sequence[str]) -> None:
    wanted = await _devices_to_change(client, words, "cleared")
    for device in wanted:
        for booking in device.bookings:
            raise AlreadyHeld(device.short, by=str(booking.holder), since=booking.since)
    for device in wanted:
        changed = await out_of_service.clear(client.readable, device.host, device.id)
        text.print_lines([f"{device.short} cleared{_still_out_of_service(device, 'unclean')}" if changed
                       else f"{device.short} needs no cleaning"])


def _still_out_of_service(device: ListedDevice, removed: OutOfServiceState) -> str:
    """The other records that keep a device out of service."""
    remaining = [record_type for record_type, _ in device.records if record_type != removed]
    return f"; it is still {' and '.join(remaining)}" if remaining else ""


def _record(device: ListedDevice, record_type: OutOfServiceState) -> OutOfServiceRecord | None:
    return next((record for device_record_type, record in device.records if device_record_type == record_type), None)


def _recorded_since(record_type: OutOfServiceState, record: OutOfServiceRecord, now: datetime) -> str:
    by, why = f" by {record.by}" if record.by else "", f" ({record.reason})" if record.reason else ""
    return f"{record_type}{by} since {time_format.local_time(record.since, now)}{why}"


async def _devices_to_change(client: Client, words: Sequence[str], done: str) -> list[ListedDevice]:
    """The named devices without duplicates, all checked before anything is changed."""
    named = {device.id: device for device in await find_devices(client, words)}
    for device in named.values():
        if not device.offered and not device.records:
            raise CommandFailed(f"{device.short} is not offered and cannot be {done}: it {device.reason}")
    return list(named.values())


async def acting_user(client: Client) -> str:
    """The user that is recorded for a change: as the server authenticates us, as far as the kubeconfig shows it, else the login
    name."""
    access = client.store.access
    if access.impersonate:
        return dict(access.impersonate)["Impersonate-User"]
    credential = await access.credential()
    if credential.username:
        return credential.username
    if credential.cert:  # servers check it before a token
        names = x509.load_pem_x509_certificate(credential.cert).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if names:
            return str(names[-1].value)
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a name, as in a container
        return "unknown"
