"""A device's state as one line of text: its holder and since when, why it is not free, and which command helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from outfitter.api.ledger_page.page import DOMAIN, Booking, OutOfServiceRecord
from outfitter.cli import time_format
from outfitter.ledger.device_list import STATES, ListedDevice

NONE = "-"  # in a table for an unknown value
COUNTED = ("free", *(state for state in STATES if state not in ("free", "withheld")))  # the order of the summary


def print_lines(lines: Iterable[str]) -> None:
    """Prints all lines in one write; characters that could control the terminal become "?"."""
    click.echo("\n".join(line if line.isprintable() else "".join(
        letter if letter.isprintable() else "?" for letter in line) for line in lines))


def state_text(device: ListedDevice, now: datetime) -> str:
    """A device's state: holder, since when, reason, and the command that helps."""
    parts = ["; ".join(holder_text(booking, now) for booking in device.bookings)] if device.bookings else []
    if device.leftover:
        parts = [", ".join([device.leftover, *parts])]
    if device.reason and not device.published:
        parts.append(f"not offered: it {device.reason}")
    elif device.bookings and not device.published and not device.leftover and not device.is_of_plugin:
        parts.append("not published")
    parts += [_record_text(device, record_type, record, now) for record_type, record in device.records]
    if device.state == "blocked":
        others = device.blocked_by
        parts.append("not free while " + "; ".join(f"{other.id.device} is {holder_text(booking, now)}" for other in others[:1]
                                                  for booking in other.bookings[:1])
                    + (f" (and {len(others) - 1} more)" if len(others) > 1 else ""))
    parts = parts or ["free"]
    if device.same_as:
        parts.append(f"the same hardware as {', '.join(map(str, device.same_as))}")
    parts += [f"tainted {_taint(taint)}" for taint in device.taints]
    return "; ".join(parts)


def holder_text(booking: Booking, now: datetime) -> str:
    """The holder of a device. "booked": allocated, not prepared yet. "released": unprepared and still allocated to its claim,
    until the claim is deallocated or, with a VM's own claim, until the VM starts again."""
    holder, when = str(booking.holder), f"since {time_format.local_time(booking.since, now)}"
    if booking.holder.kind == DOMAIN:
        return f"held by domain {booking.holder.name}, observed {when}"
    share = "".join(f"{name} {amount} " for name, amount in (booking.amount.get("capacity") or {}).items())
    verb = {"booked": "booked for", "prepared": "held by", "released": "kept for"}[booking.state]
    return f"{share}{verb} {holder} {when}"


def _record_text(device: ListedDevice, record_type: str, record: OutOfServiceRecord, now: datetime) -> str:
    by, why = f" by {record.by}" if record.by else "", f": {record.reason}" if record.reason else ""
    if record_type == "unhealthy":
        return f"unhealthy since {time_format.local_time(record.since, now)}{why}"
    if record_type != "unclean":
        return f"{record_type}{by} since {time_format.local_time(record.since, now)}{why}"
    if device.bookings:
        return "must be cleaned after use"
    return f"unclean{why}{by}; outfit device clear {device.short}"


def _taint(taint: Any) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint.get('effect', '')}"


def since(device: ListedDevice) -> str:
    """Since when it is in its state; "" if it is free or the time is not known."""
    if device.bookings:
        return min(booking.since for booking in device.bookings)
    return next((record.since for record_type, record in device.records if record_type == device.state), "")


def counts(devices: Sequence[ListedDevice]) -> str:
    """ "16 devices: 12 free, 3 held (1 unlisted), 1 reserved"."""
    offered = [device for device in devices if device.offered]
    by_state = Counter(device.state for device in offered)
    also = Counter((device.state, other) for device in offered for other in device.states[1:])
    parts = []
    for state in (state for state in COUNTED if by_state[state]):
        more = ", ".join(f"{also[state, other]} {other}" for other in COUNTED if also[state, other])
        parts.append(f"{by_state[state]} {state}" + (f" ({more})" if more else ""))
    number = f"{len(offered)} device{'' if len(offered) == 1 else 's'}"
    return f"{number}: {', '.join(parts)}" if parts else number
