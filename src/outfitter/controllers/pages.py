"""Pages in a cluster, where a claim's status is the truth of who was promised what: copied into the host's page as booked as
it happens, taken out again when the promise is gone and the host has let go. The node agent turns booked into prepared."""

from __future__ import annotations

import logging

from outfitter.api import allocation, kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Page
from outfitter.controllers.claims import holders
from outfitter.controllers.loop import Context, enqueue_on_change
from outfitter.controllers.schedule import purpose
from outfitter.errors import AlreadyHeld, OutOfService
from outfitter.ledger import book
from outfitter.store.informer import key_of
from outfitter.store.queue import Queue

log = logging.getLogger(__name__)


class Pages:
    name = "pages"

    def __init__(self, context: Context) -> None:
        self._context, self._store = context, context.store
        self.queue = Queue(context.clock)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._pods = context.informer(kinds.POD)
        self._pages = context.informer(kinds.LEDGER_PAGE)
        self._pages.add_index("claim", holders)
        self._claims.add_index("host", _hosts)
        enqueue_on_change(self._claims, self.queue)
        enqueue_on_change(self._pages, self.queue, holders)
        enqueue_on_change(self._pages, self.queue, self._left_out)

    def _left_out(self, page: Object) -> list[str]:
        """Claims that were promised something on a host and do not stand on its page: another stood in their way."""
        there = set(holders(page))
        return [key for key in map(key_of, self._claims.by("host", page["metadata"]["name"])) if key not in there]

    async def reconcile(self, key: str) -> float | None:
        claim = self._claims.get(key)
        promised = _promised(claim, self._holder(claim), self._context.now()) if claim else {}
        for page in map(Page, self._pages.by("claim", key)):
            await self._drop(page, key, promised.get(page.host, ()))
        for host, bookings in promised.items():
            try:
                await book.book(self._store, host, bookings)
            except (AlreadyHeld, OutOfService) as error:
                assert claim is not None
                await self._context.events.warning(claim, "DeviceNotAvailable", f"{error}: the machine cannot start with it")
                raise
        return None

    async def _drop(self, page: Page, key: str, keep: tuple[Booking, ...]) -> None:
        """Bookings of this claim's name that are no longer promised, unless the host still has them prepared."""
        wanted = {(booking.holder.uid, booking.device) for booking in keep}
        for booking in page.bookings:
            holder = booking.holder
            if f"{holder.namespace}/{holder.name}" == key and booking.state != "prepared" \
                    and (holder.uid, booking.device) not in wanted:
                await book.release(self._store, page.host, holder.uid, device=booking.device)

    def _holder(self, claim: Object | None) -> Holder:
        assert claim is not None
        meta, users = claim["metadata"], (claim.get("status") or {}).get("reservedFor") or ()
        pods = [self._pods.get(f"{meta['namespace']}/{user['name']}") for user in users if user.get("resource") == "pods"]
        words = [purpose(pod) for pod in pods if pod is not None]
        return Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"], ", ".join(words))


def _promised(claim: Object, holder: Holder, now: str) -> dict[str, tuple[Booking, ...]]:
    """What a claim's status promises, by host."""
    given = (claim.get("status") or {}).get("allocation") or {}
    out: dict[str, tuple[Booking, ...]] = {}
    for result in (given.get("devices") or {}).get("results") or ():
        if result.get("adminAccess"):
            continue  # looks at a device, does not hold it
        device = DeviceId(result["driver"], result["pool"], result["device"])
        host = allocation.host_of(given, result)
        out[host] = (*out.get(host, ()), Booking(device, holder, str(result["request"]), "booked", now))
    return out


def _hosts(claim: Object) -> set[str]:
    given = (claim.get("status") or {}).get("allocation") or {}
    return allocation.hosts(given)
