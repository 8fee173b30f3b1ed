"""The ledger mirror works for what changed: how many claims are looked at, and how many requests follow, when a page with many
bookings, a slice or a claim changes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.ledger_mirror import LedgerMirror
from outfitter.controllers.manager import ControllerContext, ControllerManager, settle
from outfitter.ledger import book
from outfitter.store.clock import ManualClock
from outfitter.store.informer import ObjectSelector
from outfitter.store.memory import Memory

CLAIMS = 12
DRIVER = "pci.outfitter.dev"
VMS_ONLY = {kinds.POD: ObjectSelector(labels="kubevirt.io=virt-launcher")}


class CountingStore(Memory):
    atomic = False  # as a cluster's

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.asked: Counter[str] = Counter()
        self.before_next_page: Callable[[], Awaitable[object]] | None = None  # another process is faster

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        self.asked[f"get {kind.plural}"] += 1
        if kind == kinds.LEDGER_PAGE and self.before_next_page is not None:
            action, self.before_next_page = self.before_next_page, None
            await action()
        return await super().get(kind, name, namespace)

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        if kind == kinds.LEDGER_PAGE:
            self.asked[f"create {kind.plural}"] += 1
        return await super().create(kind, obj, dry_run=dry_run)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        self.asked[f"update {kind.plural}"] += 1
        return await super().replace(kind, obj, subresource=subresource, dry_run=dry_run)


def claim(number: int, pod: str = "") -> Object:
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}] if pod else []
    return {"metadata": {"name": f"c{number}", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
            "status": {"reservedFor": users, "allocation": {"devices": {"results": [
                {"request": "r", "driver": DRIVER, "pool": "host", "device": f"d{number}"}]}}}}


class Running:
    def __init__(self, store: CountingStore) -> None:
        self.store = store
        self.context = ControllerContext(store, clock=store.clock, selectors=VMS_ONLY)
        self.mirror = LedgerMirror(self.context)
        self.manager = ControllerManager(self.context, [self.mirror])

    async def rest(self) -> None:
        def revision(kind: Kind) -> int:  # of what is watched: an informer does not hear of a pod that it does not select
            return 0 if kind in VMS_ONLY else self.store.watch_cache(kind).revision

        await settle(revision, self.context, [self.manager])

    async def put_claim(self, obj: Object) -> None:
        made = await self.store.create(kinds.RESOURCE_CLAIM, obj)
        await self.store.patch(kinds.RESOURCE_CLAIM, made["metadata"]["name"], {"status": obj["status"]}, "default",
                               subresource="status")

    def measure(self) -> None:
        self.store.asked.clear()
        self.added = self.mirror.queue.added

    @property
    def looked_at(self) -> int:
        return self.mirror.queue.added - self.added


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Running]:
    """CLAIMS claims, all booked on one page."""
    store = CountingStore()
    devices = [{"name": f"d{number}"} for number in range(2 * CLAIMS)]
    await Memory.create(store, kinds.RESOURCE_SLICE, {"metadata": {"name": "host"}, "spec": {
        "driver": DRIVER, "nodeName": "host", "pool": {"name": "host", "generation": 1, "resourceSliceCount": 1},
        "devices": devices}})
    found = Running(store)
    await found.manager.start()
    try:
        for number in range(CLAIMS):
            await found.put_claim(claim(number))
        await found.rest()
        assert len((await book.read(store, "host")).bookings) == CLAIMS
        found.measure()
        yield found
    finally:
        await found.manager.stop()
        await store.close()


async def test_a_change_of_one_booking_concerns_one_claim() -> None:
    async with running() as found:
        [first, *_] = (await book.read(found.store, "host")).bookings
        await book.set_state(found.store, "host", first.holder.uid, "prepared")
        await found.rest()
        assert found.looked_at == 1
        found.store.asked.subtract({"get ledgerpages": 2, "update ledgerpages": 1})  # of the lines above
        assert +found.store.asked == Counter(), "it is booked, as the cache shows"


async def test_a_booking_that_was_prepared_meanwhile_is_kept() -> None:
    """The cached page has it as booked, the stored one as prepared: the claim was deallocated, and its VM starts."""
    async with running() as found:
        [first, *_] = (await book.read(found.store, "host")).bookings

        async def prepare() -> None:
            await book.set_state(found.store, "host", first.holder.uid, "prepared")

        found.store.before_next_page = prepare
        await found.store.patch(kinds.RESOURCE_CLAIM, first.holder.name, {"status": {"allocation": None}}, "default",
                                subresource="status")
        await found.rest()
        assert found.store.before_next_page is None
        assert [each.state for each in (await book.read(found.store, "host")).of(first.holder.uid)] == ["prepared"]


async def test_claims_and_slices_that_change_cost_no_request_while_all_is_booked() -> None:
    async with running() as found:
        await found.store.patch(kinds.RESOURCE_CLAIM, "c3", {"metadata": {"labels": {"a": "b"}}}, "default")
        await found.rest()
        assert found.looked_at == 0, "nothing that is booked depends on it"
        await found.store.patch(kinds.RESOURCE_CLAIM, "c3", {"status": {"devices": [
            {"driver": DRIVER, "pool": "host", "device": "d3"}]}}, "default", subresource="status")
        await found.rest()
        assert found.looked_at == 1
        await found.store.patch(kinds.RESOURCE_SLICE, "host", {"spec": {"pool": {"generation": 2}}})
        await found.rest()
        assert found.looked_at == 1 + CLAIMS, "those with devices of its pool"
        assert found.store.asked == Counter()


async def test_a_new_claim_costs_one_write_of_the_page() -> None:
    async with running() as found:
        await found.put_claim(claim(CLAIMS))
        await found.rest()
        assert found.store.asked == {"update ledgerpages": 1}


def on_other_host(number: int) -> Object:
    made = claim(number)
    made["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["other"]}]}]}
    made["status"]["allocation"]["devices"]["results"][0]["pool"] = "other"
    return made


async def test_the_first_claim_of_a_host_costs_one_creation_of_its_page() -> None:
    async with running() as found:
        await found.put_claim(on_other_host(CLAIMS))
        await found.rest()
        assert len((await Memory.get(found.store, kinds.LEDGER_PAGE, "other"))["spec"]["bookings"]) == 1
        assert found.store.asked == {"create ledgerpages": 1}


async def test_a_page_that_another_process_created_is_booked_on() -> None:
    """Its watch update has not come."""
    async with running() as found:
        await found.put_claim(on_other_host(CLAIMS))
        await found.rest()
        found.context.informers[kinds.LEDGER_PAGE].get = lambda key: None  # type: ignore[method-assign]
        await found.put_claim(on_other_host(CLAIMS + 1))
        await found.rest()
        assert len((await Memory.get(found.store, kinds.LEDGER_PAGE, "other"))["spec"]["bookings"]) == 2


async def test_a_stale_cache_books_all_the_same() -> None:
    """Another process changed the page, and its watch update has not come."""
    async with running() as found:
        cached = found.context.informers[kinds.LEDGER_PAGE]
        page = await book.read(found.store, "host")
        await found.store.patch(kinds.LEDGER_PAGE, "host", {"metadata": {"labels": {"a": "b"}}})
        cached.get = lambda key: page.object  # type: ignore[method-assign]
        await found.put_claim(claim(CLAIMS))
        await found.rest()
        assert len((await book.read(found.store, "host")).bookings) == CLAIMS + 1


async def test_a_claim_waits_for_a_device_and_is_booked_when_that_is_released() -> None:
    async with running() as found:
        rival = claim(CLAIMS)
        rival["status"]["allocation"]["devices"]["results"][0]["device"] = "d0"
        await found.put_claim(rival)
        await found.rest()
        [first] = [each for each in (await book.read(found.store, "host")).bookings if each.device.device == "d0"]
        await found.store.delete(kinds.RESOURCE_CLAIM, "c0", "default")
        await found.rest()
        [after] = [each for each in (await book.read(found.store, "host")).bookings if each.device.device == "d0"]
        assert (first.holder.name, after.holder.name) == ("c0", f"c{CLAIMS}")


async def test_a_pod_that_is_not_watched_is_read_once() -> None:
    """It is no VM's; the booking names it all the same."""
    async with running() as found:
        await found.store.create(kinds.POD, {"metadata": {"name": "web", "namespace": "default"}, "spec": {
            "nodeName": "host", "containers": [{"name": "c", "image": "i"}]}})
        await found.put_claim(claim(CLAIMS, pod="web"))
        await found.rest()
        assert found.store.asked == {"get pods": 1, "update ledgerpages": 1}
        page = await book.read(found.store, "host")
        assert [each.holder.purpose for each in page.bookings if each.holder.name == f"c{CLAIMS}"] == ["pod/web"]
        await found.store.patch(kinds.RESOURCE_CLAIM, f"c{CLAIMS}", {"metadata": {"labels": {"a": "b"}}}, "default")
        await found.rest()
        assert found.store.asked["get pods"] == 1
