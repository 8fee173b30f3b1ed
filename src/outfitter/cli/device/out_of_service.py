"""`outfit device`: take single devices out of service and give them back. Each is one change of the host's page."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import NameOID

from outfitter.api import kinds, providers
from outfitter.api.page import OutOfServiceRecord, OutOfServiceRecords
from outfitter.cli import time_format
from outfitter.cli.client import Client
from outfitter.cli.device import text
from outfitter.cli.device.view import Known, look_for
from outfitter.errors import AlreadyHeld, CommandFailed, NotFound
from outfitter.ledger import out_of_service
from outfitter.store.clock import rfc3339


async def reserve(client: Client, words: Sequence[str], *, reason: str) -> None:
    await _mark(client, "reserved", words, reason)


async def quarantine(client: Client, words: Sequence[str], *, reason: str) -> None:
    await _mark(client, "quarantined", words, reason)


async def _mark(client: Client, which: OutOfServiceRecords, words: Sequence[str], reason: str) -> None:
    wanted, now, by = await _wanted(client, words, which), time_format.now(), await who(client)
    change = {"reserved": out_of_service.reserve, "quarantined": out_of_service.quarantine}[which]
    for device in wanted:
        before = _find(device, which)
        if before is not None and before.origin != out_of_service.PLACEMENT and reason in ("", before.reason):
            text.say([f"{device.short} was {_since(which, before, now)} already"])
            continue
        await change(client.store, device.host, device.id, by=by, reason=reason, now=rfc3339(now))
        text.say([_done(device, which, before, now)])


def _done(device: Known, which: OutOfServiceRecords, before: OutOfServiceRecord | None, now: datetime) -> str:
    if before is not None and before.origin != out_of_service.PLACEMENT:
        return f"{device.short} was {_since(which, before, now)} already; the reason is changed"
    if device.bookings:
        return (f"{device.short} {which}; this takes effect when it is free: it is "
                + "; ".join(text.held(booking, now) for booking in device.bookings))
    return f"{device.short} {which}"


async def unreserve(client: Client, words: Sequence[str]) -> None:
    wanted = await _wanted(client, words, "unreserved")
    for device in wanted:
        mark = _find(device, "reserved")
        if mark is not None and mark.origin == out_of_service.PLACEMENT and (provider := await _provider(client, device)):
            raise CommandFailed(f"{device.short} is reserved because its provider keeps some of its devices out, and another "
                                f"would take its place; outfit providers reserve {provider} N says how many")
    for device in wanted:
        changed = await out_of_service.unreserve(client.store, device.host, device.id)
        text.say([f"{device.short} unreserved{_rest(device, 'reserved')}" if changed
                       else f"{device.short} is not reserved"])


async def _provider(client: Client, device: Known) -> str:
    """The provider on which a device is counted; "" if there is none."""
    try:
        tree = providers.read(await client.store.get(kinds.PROVIDER_TREE, device.host))
    except NotFound:
        return ""
    return next((each.name for each in tree if device.id.device in each.devices), "")


async def restore(client: Client, words: Sequence[str]) -> None:
    for device in await _wanted(client, words, "restored"):
        changed = await out_of_service.restore(client.store, device.host, device.id)
        text.say([f"{device.short} restored{_rest(device, 'quarantined')}" if changed
                       else f"{device.short} is not quarantined"])


async def clear(client: Client, words: Sequence[str]) -> None:
    wanted = await _wanted(client, words, "cleared")
    for device in wanted:
        for booking in device.bookings:
            raise AlreadyHeld(device.short, by=str(booking.holder), since=booking.since)
    for device in wanted:
        changed = await out_of_service.clear(client.store, device.host, device.id)
        text.say([f"{device.short} cleared{_rest(device, 'unclean')}" if changed
                       else f"{device.short} needs no cleaning"])


def _rest(device: Known, gone: OutOfServiceRecords) -> str:
    """What still keeps others from it."""
    left = [which for which, _ in device.marks if which != gone]
    return f"; it is still {' and '.join(left)}" if left else ""


def _find(device: Known, which: OutOfServiceRecords) -> OutOfServiceRecord | None:
    return next((mark for each, mark in device.marks if each == which), None)


def _since(which: OutOfServiceRecords, mark: OutOfServiceRecord, now: datetime) -> str:
    by, why = f" by {mark.by}" if mark.by else "", f" ({mark.reason})" if mark.reason else ""
    return f"{which}{by} since {time_format.when(mark.since, now)}{why}"


async def _wanted(client: Client, words: Sequence[str], done: str) -> list[Known]:
    """What was typed, all of it before anything is changed, each once."""
    found = {device.id: device for device in await look_for(client, words)}
    for device in found.values():
        if not device.offered and not device.marks:
            raise CommandFailed(f"{device.short} is not offered and cannot be {done}: {device.reason}")
    return list(found.values())


async def who(client: Client) -> str:
    """In whose name something is done: the user whom the server knows us as, as far as the kubeconfig tells, else that of
    the system."""
    access = client.store.access
    if access.impersonate:
        return dict(access.impersonate)["Impersonate-User"]
    credential = await access.credential()
    if credential.username:
        return credential.username
    if credential.cert:  # servers look at it before a token
        names = x509.load_pem_x509_certificate(credential.cert).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if names:
            return str(names[-1].value)
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        return "somebody"
