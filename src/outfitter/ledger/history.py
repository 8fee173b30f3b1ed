"""The history of ended bookings: one small object (PastBooking) for each booking that left a page.

Written together with the page that no longer has the booking; with a Kubernetes API server, which cannot write two objects at
once, before the page. A crash between the two leaves a record of a booking that is still current. Such a record is not shown,
and is updated under the same name when the booking ends. docs/decisions/0007 explains why. Called by `book`, the CLI and the
host audit."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, Page, device_object, device_of, holder_of
from outfitter.api.ledger_page.page_entries import changed_bookings
from outfitter.errors import AlreadyExists, Conflict, Expired, NotFound
from outfitter.store.base import Create, Replace, Store, Write
from outfitter.store.clock import rfc3339

HOST, DEVICE = "outfitter.dev/host", "outfitter.dev/device"  # labels
RELEASED, GONE = "released", "found gone"
MOST = 10_000  # records kept per host, whatever their age
STEP = 500  # records per list request
TRIES = 8
_LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

How = Callable[[Booking], str]  # how a booking ended: "released", "found gone", "moved to ..."


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A current or an ended booking."""

    host: str
    device: DeviceId
    holder: Holder
    request: str
    amount: dict[str, Any]
    booked: str
    prepared: str  # "" when it was never prepared
    ended: str  # "" while it is current
    how: str  # why it ended; "" while it is current
    state: str  # of a current one; "" afterwards


def clock_time(store: Store) -> str:
    """The time of the store's clock; "" for a store without one (Kubernetes)."""
    clock = getattr(store, "clock", None)
    return rfc3339(clock.now()) if clock is not None else ""


def name_of(host: str, booking: Booking) -> str:
    """The name of the record of a booking. Deterministic, so that a retry finds the record of the first attempt."""
    device = booking.device
    identity = (host, device.driver, device.pool, device.device, booking.holder.uid, booking.key.share, booking.since)
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:20]
    readable = re.sub(r"[^a-z0-9]+", "-", device.device.lower()).strip("-")[:63].strip("-")
    return f"{readable or 'host'}-{digest}"


def past_booking(host: str, booking: Booking, *, ended: str, how: str) -> Object:
    """The PastBooking object of an ended booking. Without `ended`, its creationTimestamp is the end."""
    labels = {HOST: _label(host), DEVICE: _label(booking.device.device)}
    spec: Object = {
        "host": host, "device": device_object(booking.device), "holder": booking.holder.to_object(), "request": booking.request,
        "amount": booking.amount, "booked": booking.since, "how": how,
        **({"prepared": booking.prepared} if booking.prepared else {}), **({"ended": ended} if ended else {}),
    }
    return {"apiVersion": kinds.PAST_BOOKING.api_version, "kind": kinds.PAST_BOOKING.kind,
            "metadata": {"name": name_of(host, booking), "labels": {key: value for key, value in labels.items() if value}},
            "spec": spec}


def ended_records(page: Page, new: Object, *, now: str, how: How) -> list[Object]:
    """PastBooking objects of all bookings on `page` that its later version does not have."""
    left, added = changed_bookings(page.object, new)
    kept = {(booking.key, booking.since) for booking in added}
    return [past_booking(page.host, booking, ended=now, how=how(booking)) for booking in left
            if (booking.key, booking.since) not in kept]


async def record_write(store: Store, record: Object) -> Write:
    """The write of a record in a commit: create, or update of an existing one."""
    try:
        existing = await store.get(kinds.PAST_BOOKING, record["metadata"]["name"])
    except NotFound:
        return Create(kinds.PAST_BOOKING, record)
    return Replace(kinds.PAST_BOOKING, _updated(existing, record))


async def write_record(store: Store, record: Object) -> None:
    """Create a record, or update an existing one."""
    for _ in range(TRIES):
        try:
            await store.create(kinds.PAST_BOOKING, record)
        except AlreadyExists:
            try:
                existing = await store.get(kinds.PAST_BOOKING, record["metadata"]["name"])
                if (new := _updated(existing, record)) != existing:
                    await store.replace(kinds.PAST_BOOKING, new)
            except (Conflict, NotFound):  # another writer was faster, or the record expired
                continue
        return
    raise Conflict(f"{kinds.PAST_BOOKING.resource} {record['metadata']['name']!r} was changed {TRIES} times meanwhile: retry")


def _updated(existing: Object, record: Object) -> Object:
    spec = existing.get("spec")
    return {**existing, "spec": {**(spec if isinstance(spec, dict) else {}), **record["spec"]}}


async def entries(store: Store, device: DeviceId, *, host: str = "") -> list[HistoryEntry]:
    """Current and past holders of a device, newest first. Without `host`, the page of the device's pool is read: the pools of
    our own driver are named after their host; for other drivers all pages are searched."""
    current = [(page.host, booking) for page in await _pages(store, host or device.pool, everywhere=not host)
           for booking in page.bookings if booking.device == device]
    current_names = {name_of(*pair) for pair in current}
    out = [_entry(*pair) for pair in current]
    label = _label(device.device)
    async for past in _records(store, f"{DEVICE}={label}" if label else ""):
        if device_of(past["spec"]["device"]) == device and past["metadata"]["name"] not in current_names \
                and host in ("", past["spec"]["host"]):
            out.append(_past(past))
    return sorted(out, key=lambda entry: (entry.booked, not entry.ended, entry.ended), reverse=True)


async def expire(store: Store, now: str, keep: timedelta, *, host: str = "", most: int = MOST) -> int:
    """Delete records that ended longer ago than `keep`, and per host all but the newest `most`; returns how many were deleted.
    With `host`, only its records. Reads and deletes in small steps; several processes may do it at the same time."""
    before = rfc3339(datetime.fromisoformat(now) - keep)
    expired: list[Object] = []
    kept: dict[str, list[tuple[str, Object]]] = {}
    try:
        async for past in _records(store, f"{HOST}={_label(host)}" if host else ""):
            uid = past["metadata"].get("uid")
            stub = {"name": past["metadata"]["name"], "uid": uid if isinstance(uid, str) else None}
            ended = _ended(past)
            if "" < ended < before:  # one without a time is kept until it can be repaired, or there are too many
                expired.append(stub)
            else:
                kept.setdefault(_text(past, "host"), []).append((ended, stub))
    except Expired:  # the list was compacted meanwhile: the next round sees the rest
        pass
    for records in kept.values():
        if len(records) > most:
            records.sort(key=lambda record: (record[0], record[1]["name"]), reverse=True)
            expired += [stub for _, stub in records[most:]]
    deleted = 0
    for stub in expired:
        try:
            await store.delete(kinds.PAST_BOOKING, stub["name"], uid=stub["uid"])
            deleted += 1
        except (NotFound, Conflict):
            pass
        await asyncio.sleep(0)
    return deleted


async def _records(store: Store, labels: str = "") -> AsyncIterator[Object]:
    token = ""
    while True:
        part = await store.list(kinds.PAST_BOOKING, labels=labels, limit=STEP, continue_=token)
        for item in part.items:
            yield item
        token = part.continue_
        if not token:
            return
        await asyncio.sleep(0)


async def _pages(store: Store, host: str, *, everywhere: bool) -> Iterable[Page]:
    try:
        return [Page(await store.get(kinds.LEDGER_PAGE, host))]
    except NotFound:
        return map(Page, (await store.list(kinds.LEDGER_PAGE)).items) if everywhere else []


def _entry(host: str, booking: Booking) -> HistoryEntry:
    return HistoryEntry(
        host,
        booking.device,
        booking.holder,
        booking.request,
        booking.amount,
        booking.since,
        booking.prepared,
        "",
        "",
        booking.state,
    )


def _past(obj: Object) -> HistoryEntry:
    spec = obj["spec"]
    return HistoryEntry(spec["host"], device_of(spec["device"]), holder_of(spec["holder"]), spec.get("request") or "",
                 spec.get("amount") or {}, spec["booked"], spec.get("prepared") or "", _ended(obj), spec.get("how") or "", "")


def _ended(obj: Object) -> str:
    """When a booking ended; the creation of its record, where that does not say or is malformed."""
    return _text(obj, "ended") or str(obj["metadata"].get("creationTimestamp") or "")


def _text(obj: Object, field: str) -> str:
    """A text in the spec of a record; "" where there is none."""
    spec = obj.get("spec")
    text = spec.get(field) if isinstance(spec, dict) else None
    return text if isinstance(text, str) else ""


def _label(value: str) -> str:
    """A valid label value of at most 63 characters. Other values are truncated and record unique by a hash."""
    if not value or (len(value) <= 63 and _LABEL.fullmatch(value)):
        return value
    readable = re.sub(r"[^-A-Za-z0-9_.]+", "-", value)[:46].strip("-_.")
    return f"{readable or 'x'}-{hashlib.sha256(value.encode()).hexdigest()[:16]}"
