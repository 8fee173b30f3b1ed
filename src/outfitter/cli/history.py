"""`outfit history`: the current and past bookings of a device, and how they ended. Reads LedgerPages and PastBookings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from outfitter.api import kinds
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.ledger_page.page import device_of
from outfitter.cli import printers, time_format
from outfitter.cli.client import Client
from outfitter.cli.device.text import NONE, print_lines
from outfitter.cli.device.view import find_devices
from outfitter.errors import BadRequest, NotFound
from outfitter.inventory import config
from outfitter.ledger import history as past
from outfitter.ledger.device_list import abbreviated
from outfitter.ledger.history import HistoryEntry

HEAD = ("HOLDER", "FOR", "REQUEST", "BOOKED", "PREPARED", "ENDED", "LASTED", "HOW")


async def history(client: Client, word: str, *, how: str) -> None:
    device, found = await _find(client, word)
    if how == "json":
        click.echo(json.dumps([as_json(entry) for entry in found], indent=2))
        return
    if not found:
        print_lines([f"{device.short}: no booking is recorded; {_kept()}"])
        return
    print_lines([*table(found, time_format.now()), "", f"{device.short}: {_counts(found)}; {_kept()}"])


async def _find(client: Client, word: str) -> tuple[DeviceId, list[HistoryEntry]]:
    """The named device and its bookings. A device that no longer exists still has its history."""
    try:
        [known] = await find_devices(client, [word])
    except NotFound:
        device = await _gone(client, word)
        found = await past.entries(client.readable, device) if device is not None else []
        if device is None or not found:
            raise
        return device, current_first(found)
    return known.id, current_first(await past.entries(client.readable, known.id))


async def _gone(client: Client, word: str) -> DeviceId | None:
    *place, name = word.split("/")
    if place:
        return DeviceId(place[0] if len(place) > 1 else DRIVER, place[-1], name)
    try:
        listing = await client.readable.list(kinds.PAST_BOOKING, labels=f"{past.DEVICE}={name}")
    except BadRequest:  # not a valid device name
        return None
    devices = {device_of(obj["spec"]["device"]) for obj in listing.items}
    if len(devices) > 1:
        raise BadRequest(f"{word!r} matches {len(devices)} devices; write one of: "
                         + abbreviated([device.short for device in sorted(devices)]))
    return next(iter(devices), None)


def current_first(found: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """Current bookings first; the order is kept otherwise."""
    return sorted(found, key=lambda entry: bool(entry.ended))


def table(found: Sequence[HistoryEntry], now: datetime) -> list[str]:
    rows = [list(HEAD)]
    for entry in found:
        holder = entry.holder
        name = f"{holder.namespace}/{holder.name}" if holder.namespace else holder.name
        share = "".join(f", {key} {amount}" for key, amount in (entry.amount.get("capacity") or {}).items())
        rows.append([
            f"{_KINDS.get(holder.kind, holder.kind)} {name}", holder.purpose, entry.request + share, _when(entry.booked, now),
            _when(entry.prepared, now), _when(entry.ended, now) if entry.ended else "now",
            time_format.elapsed(entry.booked, entry.ended, now), entry.how or entry.state])
    return printers.columns([[cell or NONE for cell in row] for row in rows])


_KINDS = {"ResourceClaim": "claim", "Consumer": "consumer", "Migration": "migration", "Domain": "domain"}


def _when(text: str, now: datetime) -> str:
    return time_format.local_time(text, now) if text else ""


def _counts(found: Sequence[HistoryEntry]) -> str:
    now = sum(not entry.ended for entry in found)
    return f"{len(found)} booking{'' if len(found) == 1 else 's'}" + (f", {now} of them now" if now else "")


def _kept() -> str:
    days = config.DEFAULT.default.history_keep.days
    return (f"ended bookings are kept for history.keep ({days} days by default), at most {past.MOST} "
            "per host")


def as_json(entry: HistoryEntry) -> dict[str, Any]:
    """docs/commands.md lists the keys; every key is always present, null when the value is not known."""
    holder = entry.holder
    return {
        "host": entry.host, "device": entry.device.device, "pool": entry.device.pool, "publishedBy": entry.device.driver,
        "holder": {"kind": holder.kind, "namespace": holder.namespace or None, "name": holder.name, "uid": holder.uid,
                   "purpose": holder.purpose or None},
        "request": entry.request or None, "amount": entry.amount, "booked": entry.booked, "prepared": entry.prepared or None,
        "ended": entry.ended or None, "how": entry.how or None, "state": entry.state or None,
    }
