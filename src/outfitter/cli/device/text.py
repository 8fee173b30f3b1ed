"""A device's state as a person must know it: who has it, since when, why nobody gets it, and what to type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from outfitter.api.page import DOMAIN, Booking, OutOfServiceRecord
from outfitter.cli import time_format
from outfitter.cli.device.view import STATES, Known

NONE = "-"  # in a table where nobody says it
COUNTED = ("free", *(state for state in STATES if state not in ("free", "withheld")))  # the order in which they are counted


def say(lines: Iterable[str]) -> None:
    """All at once, for there may be many; what would move the cursor is not shown."""
    click.echo("\n".join(line if line.isprintable() else "".join(
        letter if letter.isprintable() else "?" for letter in line) for line in lines))


def sentence(device: Known, now: datetime) -> str:
    """What a person must know of a device's state: who, since when, why, and what to type."""
    told = ["; ".join(held(booking, now) for booking in device.bookings)] if device.bookings else []
    if device.left:
        told = [", ".join([device.left, *told])]
    if device.reason and not device.published:
        told.append(f"not offered: {device.reason}")
    elif device.bookings and not device.published and not device.left:
        told.append("not published")
    told += [_marked(device, which, mark, now) for which, mark in device.marks]
    if device.state == "blocked":
        others = device.in_the_way
        told.append("not free while " + "; ".join(f"{other.id.device} is {held(booking, now)}" for other in others[:1]
                                                  for booking in other.bookings[:1])
                    + (f" (and {len(others) - 1} more)" if len(others) > 1 else ""))
    told = told or ["free"]
    told += [f"tainted {_taint(taint)}" for taint in device.taints]
    return "; ".join(told)


def held(booking: Booking, now: datetime) -> str:
    """Who has a device. What is only booked was promised, and the host did not hand it over yet. What the host took back stays
    with its claim, be it for a moment or, with a machine's own claim, until the machine is started again."""
    who, when = str(booking.holder), f"since {time_format.when(booking.since, now)}"
    if booking.holder.kind == DOMAIN:
        return f"held by machine {booking.holder.name}, found to have it {when}"
    share = "".join(f"{name} {amount} " for name, amount in (booking.amount.get("capacity") or {}).items())
    verb = {"booked": "booked for", "prepared": "held by", "released": "kept for"}[booking.state]
    return f"{share}{verb} {who} {when}"


def _marked(device: Known, which: str, mark: OutOfServiceRecord, now: datetime) -> str:
    by, why = f" by {mark.by}" if mark.by else "", f": {mark.reason}" if mark.reason else ""
    if which != "unclean":
        return f"{which}{by} since {time_format.when(mark.since, now)}{why}"
    if device.bookings:
        return "to be cleaned afterwards"
    return f"unclean{why}{by}; outfit device clear {device.short}"


def _taint(taint: Any) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint.get('effect', '')}"


def since(device: Known) -> str:
    """Since when it is in its state; "" if it is free or nobody knows."""
    if device.bookings:
        return min(booking.since for booking in device.bookings)
    return next((mark.since for which, mark in device.marks if which == device.state), "")


def counts(devices: Sequence[Known]) -> str:
    """ "16 devices: 12 free, 3 held (1 unlisted), 1 reserved"."""
    offered = [device for device in devices if device.offered]
    found = Counter(device.state for device in offered)
    also = Counter((device.state, other) for device in offered for other in device.states[1:])
    parts = []
    for state in (state for state in COUNTED if found[state]):
        more = ", ".join(f"{also[state, other]} {other}" for other in COUNTED if also[state, other])
        parts.append(f"{found[state]} {state}" + (f" ({more})" if more else ""))
    number = f"{len(offered)} device{'' if len(offered) == 1 else 's'}"
    return f"{number}: {', '.join(parts)}" if parts else number
