"""`outfit history`: who has and had a device, for what, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from outfitter.api import kinds
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.page import device_of
from outfitter.cli import printers, time_format
from outfitter.cli.client import Client
from outfitter.cli.device.text import NONE, say
from outfitter.cli.device.view import few, look_for
from outfitter.errors import BadRequest, NotFound
from outfitter.inventory import config
from outfitter.ledger import history as past
from outfitter.ledger.history import HistoryEntry

HEAD = ("HOLDER", "FOR", "REQUEST", "BOOKED", "PREPARED", "ENDED", "LASTED", "HOW")


async def history(client: Client, word: str, *, how: str) -> None:
    device, found = await _find(client, word)
    if how == "json":
        click.echo(json.dumps([as_json(entry) for entry in found], indent=2))
        return
    if not found:
        say([f"{device.short}: no booking of it is known; {_kept()}"])
        return
    say([*table(found, time_format.now()), "", f"{device.short}: {_counts(found)}; {_kept()}"])


async def _find(client: Client, word: str) -> tuple[DeviceId, list[HistoryEntry]]:
    """The device that was typed. One that is no longer there still has its history."""
    try:
        [known] = await look_for(client, [word])
    except NotFound:
        device = await _gone(client, word)
        found = await past.entries(client.store, device) if device is not None else []
        if device is None or not found:
            raise
        return device, current_first(found)
    return known.id, current_first(await past.entries(client.store, known.id))


async def _gone(client: Client, word: str) -> DeviceId | None:
    *place, name = word.split("/")
    if place:
        return DeviceId(place[0] if len(place) > 1 else DRIVER, place[-1], name)
    try:
        listing = await client.store.list(kinds.PAST_BOOKING, labels=f"{past.DEVICE}={name}")
    except BadRequest:  # it could not be the name of a device
        return None
    devices = {device_of(obj["spec"]["device"]) for obj in listing.items}
    if len(devices) > 1:
        raise BadRequest(f"{word!r} may be any of {len(devices)} devices; say which: "
                         + few([device.short for device in sorted(devices)]))
    return next(iter(devices), None)


def current_first(found: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """What stands comes first; else the newest."""
    return sorted(found, key=lambda entry: bool(entry.ended))


def table(found: Sequence[HistoryEntry], now: datetime) -> list[str]:
    rows = [list(HEAD)]
    for entry in found:
        who = entry.holder
        name = f"{who.namespace}/{who.name}" if who.namespace else who.name
        share = "".join(f", {key} {amount}" for key, amount in (entry.amount.get("capacity") or {}).items())
        rows.append([
            f"{_KINDS.get(who.kind, who.kind)} {name}", who.purpose, entry.request + share, _when(entry.booked, now),
            _when(entry.prepared, now), _when(entry.ended, now) if entry.ended else "now",
            time_format.lasted(entry.booked, entry.ended, now), entry.how or entry.state])
    return printers.columns([[cell or NONE for cell in row] for row in rows])


_KINDS = {"ResourceClaim": "claim", "Consumer": "consumer", "Migration": "migration", "Domain": "machine"}


def _when(text: str, now: datetime) -> str:
    return time_format.when(text, now) if text else ""


def _counts(found: Sequence[HistoryEntry]) -> str:
    now = sum(not entry.ended for entry in found)
    return f"{len(found)} booking{'' if len(found) == 1 else 's'}" + (f", {now} of them now" if now else "")


def _kept() -> str:
    days = config.DEFAULT.default.history_keep.days
    return (f"what ended is kept for as long as history.keep says ({days} days if it is not written), and at most {past.MOST} "
            "bookings of a host")


def as_json(entry: HistoryEntry) -> dict[str, Any]:
    """docs/commands.md lists the keys; each is always there, null when nobody says it."""
    who = entry.holder
    return {
        "host": entry.host, "device": entry.device.device, "pool": entry.device.pool, "publishedBy": entry.device.driver,
        "holder": {"kind": who.kind, "namespace": who.namespace or None, "name": who.name, "uid": who.uid,
                   "purpose": who.purpose or None},
        "request": entry.request or None, "amount": entry.amount, "booked": entry.booked, "prepared": entry.prepared or None,
        "ended": entry.ended or None, "how": entry.how or None, "state": entry.state or None,
    }
