"""Given allocations count as booked: what claims of a case have is on the pages of the ledger before any controller runs."""

from __future__ import annotations

from typing import Protocol

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.ledger import book
from outfitter.ledger.allocation_bookings import AllocationBookings
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.memory import Memory


class GivenObjects(Protocol):
    """What is stored of a case."""

    @property
    def store(self) -> Memory: ...
    @property
    def clock(self) -> Clock: ...
    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]: ...


async def book_given(engine: GivenObjects) -> None:
    """Given allocations count as booked."""
    slices = engine.all(kinds.RESOURCE_SLICE)
    pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in engine.all(kinds.POD)}
    given = AllocationBookings(lambda pool: [one for one in slices if pool == (
        f"{one['spec']['driver']}/{one['spec']['pool']['name']}")], lambda *_: None)
    for claim in engine.all(kinds.RESOURCE_CLAIM):
        status = claim.get("status") or {}
        if not status.get("allocation"):
            continue
        users = [pods[claim["metadata"]["namespace"], user["name"]] for user in status.get("reservedFor") or ()]
        for page, bookings in given.bookings(claim, users, rfc3339(engine.clock.now())).items():
            await book.book(engine.store, page, bookings, limits=given.limits(bookings))
