"""What was held and is held no more: one small object (PastBooking) for each booking that left a page.

It is written together with the page that no longer has the booking, or before it where the store cannot write two objects at
once; then a crash between the two leaves a record of a booking that still stands, which nobody is shown, and which gets its
right end under the same name when the booking really ends. docs/decisions/0007 says why."""

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
from outfitter.api.page import Booking, Holder, Page, device_object, device_of, holder_of
from outfitter.errors import AlreadyExists, Conflict, Expired, NotFound
from outfitter.store.base import Create, Replace, Store, Write
from outfitter.store.clock import rfc3339

HOST, DEVICE = "outfitter.dev/host", "outfitter.dev/device"  # labels
RELEASED, GONE = "released", "found gone"
MOST = 10_000  # records of one host that are kept, whatever their age
STEP = 500  # records that are read at once
TRIES = 8
_LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

How = Callable[[Booking], str]  # how a booking ended: "released", "found gone", "moved to ..."


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A booking that stands or stood."""

    host: str
    device: DeviceId
    holder: Holder
    request: str
    amount: dict[str, Any]
    booked: str
    prepared: str  # "" when the host never handed it over
    ended: str  # "" while it stands
    how: str  # "" while it stands
    state: str  # of one that stands; "" afterwards


def clock_time(store: Store) -> str:
    """The time by the store's own clock; "" where it has none to look at."""
    clock = getattr(store, "clock", None)
    return rfc3339(clock.now()) if clock is not None else ""


def name_of(host: str, booking: Booking) -> str:
    """The same for the same booking, however often it is asked: a retry finds what the first try wrote."""
    device = booking.device
    what = (host, device.driver, device.pool, device.device, booking.holder.uid, booking.key.share, booking.since)
    digest = hashlib.sha256("\0".join(what).encode()).hexdigest()[:20]
    readable = re.sub(r"[^a-z0-9]+", "-", device.device.lower()).strip("-")[:63].strip("-")
    return f"{readable or 'host'}-{digest}"


def past_booking(host: str, booking: Booking, *, ended: str, how: str) -> Object:
    """A booking that is over, as it is kept. Without a time of its end its creationTimestamp is that."""
    labels = {HOST: _label(host), DEVICE: _label(booking.device.device)}
    spec: Object = {
        "host": host, "device": device_object(booking.device), "holder": booking.holder.to_object(), "request": booking.request,
        "amount": booking.amount, "booked": booking.since, "how": how,
        **({"prepared": booking.prepared} if booking.prepared else {}), **({"ended": ended} if ended else {}),
    }
    return {"apiVersion": kinds.PAST_BOOKING.api_version, "kind": kinds.PAST_BOOKING.kind,
            "metadata": {"name": name_of(host, booking), "labels": {key: value for key, value in labels.items() if value}},
            "spec": spec}


def ended_records(page: Page, new: Page, *, now: str, how: How) -> list[Object]:
    """Records of all that stands on a page and not on the one that replaces it."""
    stays = {(booking.key, booking.since) for booking in new.bookings}
    return [past_booking(page.host, booking, ended=now, how=how(booking)) for booking in page.bookings
            if (booking.key, booking.since) not in stays]


async def record_write(store: Store, made: Object) -> Write:
    """A record as a part of a commit; one that is there already gets its new end."""
    try:
        have = await store.get(kinds.PAST_BOOKING, made["metadata"]["name"])
    except NotFound:
        return Create(kinds.PAST_BOOKING, made)
    return Replace(kinds.PAST_BOOKING, _updated(have, made))


async def write_record(store: Store, made: Object) -> None:
    """Write a record: one request, unless it is there already and gets its new end."""
    for _ in range(TRIES):
        try:
            await store.create(kinds.PAST_BOOKING, made)
        except AlreadyExists:
            try:
                have = await store.get(kinds.PAST_BOOKING, made["metadata"]["name"])
                if (new := _updated(have, made)) != have:
                    await store.replace(kinds.PAST_BOOKING, new)
            except (Conflict, NotFound):  # another wrote the same record, or it was old and went
                continue
        return
    raise Conflict(f"{kinds.PAST_BOOKING.resource} {made['metadata']['name']!r} was written by others all the time: retry")


def _updated(have: Object, made: Object) -> Object:
    return {**have, "spec": {**(have.get("spec") or {}), **made["spec"]}}


async def entries(store: Store, device: DeviceId, *, host: str = "") -> list[HistoryEntry]:
    """Who holds and held a device, the newest first. Without a host it is looked for where its pool says, which is the name
    of its host but for the devices of other people's drivers."""
    now = [(page.host, booking) for page in await _pages(store, host or device.pool, everywhere=not host)
           for booking in page.bookings if booking.device == device]
    standing = {name_of(*one) for one in now}
    out = [_entry(*one) for one in now]
    label = _label(device.device)
    async for past in _records(store, f"{DEVICE}={label}" if label else ""):
        if device_of(past["spec"]["device"]) == device and past["metadata"]["name"] not in standing \
                and host in ("", past["spec"]["host"]):
            out.append(_past(past))
    return sorted(out, key=lambda entry: (entry.booked, not entry.ended, entry.ended), reverse=True)


async def expire(store: Store, now: str, keep: timedelta, *, host: str = "", most: int = MOST) -> int:
    """Delete what ended longer ago than `keep`, and of each host what goes beyond the newest `most`; how many went. With a host
    only what is of it. Reads and deletes in small steps, and does not mind others that do the same."""
    before = rfc3339(datetime.fromisoformat(now) - keep)
    doomed: list[Object] = []
    young: dict[str, list[tuple[str, Object]]] = {}
    try:
        async for past in _records(store, f"{HOST}={_label(host)}" if host else ""):
            stub = {"name": past["metadata"]["name"], "uid": past["metadata"]["uid"]}
            ended = _ended(past)
            if ended < before:
                doomed.append(stub)
            else:
                young.setdefault((past.get("spec") or {}).get("host", ""), []).append((ended, stub))
    except Expired:  # more was written meanwhile than the store remembers: the next round sees the rest
        pass
    for ones in young.values():
        if len(ones) > most:
            ones.sort(key=lambda one: (one[0], one[1]["name"]), reverse=True)
            doomed += [stub for _, stub in ones[most:]]
    gone = 0
    for stub in doomed:
        try:
            await store.delete(kinds.PAST_BOOKING, stub["name"], uid=stub["uid"])
            gone += 1
        except (NotFound, Conflict):
            pass
        await asyncio.sleep(0)
    return gone


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
    return (obj.get("spec") or {}).get("ended") or str(obj["metadata"].get("creationTimestamp") or "")


def _label(value: str) -> str:
    """As a label may say it: at most 63 characters. What does not fit is cut and told apart by a hash of the whole."""
    if not value or (len(value) <= 63 and _LABEL.fullmatch(value)):
        return value
    readable = re.sub(r"[^-A-Za-z0-9_.]+", "-", value)[:46].strip("-_.")
    return f"{readable or 'x'}-{hashlib.sha256(value.encode()).hexdigest()[:16]}"
