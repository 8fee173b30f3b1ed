"""Holders, bookings and pages in few words, and stores that do less or fail when asked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page, State
from outfitter.errors import Unavailable
from outfitter.ledger import history
from outfitter.store.base import Event, Listing, PatchType, Propagation, Write
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.ledger.unchecked_pages import UncheckedPages

T = TypeVar("T")
HOST, OTHER = "node-a", "node-b"
DRIVER = "pci.example.com"
SINCE, NOW, LATER = "2026-01-01T12:04:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"


def device(name: str, host: str = HOST) -> DeviceId:
    return DeviceId(DRIVER, host, name)


def claim(name: str) -> Holder:
    return Holder("ResourceClaim", "here", name, f"uid-{name}", f"vmi/{name}")


def consumer(name: str) -> Holder:
    return Holder("Consumer", "", name, f"uid-{name}")


def domain(name: str) -> Holder:
    return Holder("Domain", "", name, f"uid-{name}")


def booking(
    name: str, holder: Holder, state: State = "booked", *, host: str = HOST, since: str = SINCE, **amount: Any
) -> Booking:
    return Booking(device(name, host), holder, "nic", state, since, amount or {"whole": True},
                   since if state == "prepared" else "")


def resources(holder: Holder, **amounts: int) -> Booking:
    return Booking(DeviceId("placement.example.com", HOST, "host"), holder, "", "booked", SINCE, {"resources": amounts})


def record(name: str, origin: str = "", reason: str = "for later") -> OutOfServiceRecord:
    return OutOfServiceRecord(device(name), reason, "admin", SINCE, origin)


def page(
    bookings: Sequence[Booking] = (), marks: Mapping[str, Sequence[OutOfServiceRecord]] | None = None, host: str = HOST
) -> Page:
    made = Page.blank(host)
    made["spec"]["bookings"] = [one.to_object() for one in bookings]
    made["spec"] |= {which: [one.to_object() for one in given] for which, given in (marks or {}).items()}
    return Page(made)


def bookings_by_device(read: Page) -> dict[str, list[str]]:
    """What a page says: device -> "name state" of each that has it."""
    out: dict[str, list[str]] = {}
    for one in read.bookings:
        out.setdefault(one.device.device, []).append(f"{one.holder.kind} {one.holder.name} {one.state}")
    return out


def memory() -> Memory:
    return Memory(clock=ManualClock(), rules=UncheckedPages())


class Wary:
    """A store in which the write of a number fails, before or after it happened. It remembers every booking that ever stood.
    Without `atomic` it writes one object at a time and has no clock, as an API server."""

    def __init__(self, *, atomic: bool) -> None:
        self._inner, self.atomic = memory(), atomic
        self.writes = 0
        self.fail_at: int | None = None
        self.after = False
        self.stood: dict[str, str] = {}  # name of its record -> device and holder, for a message
        if atomic:
            self.clock = self._inner.clock

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return await self._inner.get(kind, name, namespace)

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> Listing:
        return await self._inner.list(kind, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_)

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        return await self._write(lambda: self._inner.create(kind, obj))

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        await self.create(kind, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        return await self._write(lambda: self._inner.replace(kind, obj))

    async def commit(self, writes: Sequence[Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        assert self.atomic, "this store writes one object at a time"
        return await self._write(lambda: self._inner.commit(writes))

    async def patch(
        self, kind: Kind, name: str, patch: Any, namespace: str = "", *, how: PatchType = "merge", subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        raise AssertionError("pages and records are replaced whole")

    async def delete(
        self, kind: Kind, name: str, namespace: str = "", *, uid: str | None = None, revision: str | None = None,
        propagation: Propagation | None = None, grace: int | None = None, dry_run: bool = False,
    ) -> Object:
        raise AssertionError("nothing is deleted where bookings change")

    def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[Event]:
        raise AssertionError("the ledger does not watch")

    async def close(self) -> None:
        await self._inner.close()

    async def _write(self, work: Callable[[], Awaitable[T]]) -> T:
        number, self.writes = self.writes, self.writes + 1
        if number == self.fail_at and not self.after:
            raise Unavailable("killed before the write")
        result = await work()
        for each in map(Page, (await self._inner.list(kinds.LEDGER_PAGE)).items):
            for one in each.bookings:
                self.stood[history.name_of(each.host, one)] = f"{one.device.short} of {one.holder}"
        if number == self.fail_at:
            raise Unavailable("killed after the write")
        return result
