"""What other writers do to the ResourceSlices of a host is repaired at once and reported; others' slices are left alone."""

from __future__ import annotations

import contextlib
import copy
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from outfitter import app
from outfitter.api import admission, kinds
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.errors import AlreadyExists, HypervisorError
from outfitter.launcher.simulated import Simulated
from outfitter.node import slice_repair
from outfitter.node.agent_host import AgentHost
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests import kubernetes
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, hosts_of
from tests.node.audited_hosts import BOUND, NIC, host

DELETED, CHANGED, FOREIGN = "SliceDeleted", "SliceChanged", "SliceForeign"
CODES = (DELETED, CHANGED, FOREIGN)
HIGHEST = 2**63 - 1


@dataclass
class Bench:
    product: app.Embedded
    clock: ManualClock

    @property
    def store(self) -> Memory:
        return self.product.store

    async def slices(self, name: str = "node-0") -> list[Object]:
        """Those that count for a host, without what every write changes."""
        await self.product.settle()
        return [part for part in (await self.store.list(kinds.RESOURCE_SLICE)).items if part["spec"]["pool"]["name"] == name]

    async def content(self, name: str = "node-0") -> list[Object]:
        parts = await self.slices(name)
        assert len({part["spec"]["pool"]["generation"] for part in parts}) == 1
        return [{**part["spec"], "pool": {**part["spec"]["pool"], "generation": 0}} for part in parts]

    async def events(self) -> list[str]:
        await self.product.settle()
        return [event["reason"] for event in (await self.store.list(kinds.EVENT, "default")).items
                if event["involvedObject"]["kind"] == "Node" and event["reason"] in CODES]

    async def change(self, change: Callable[[Object], None], name: str = "node-0") -> None:
        """Write the first slice of a host as another writer would."""
        part = copy.deepcopy((await self.slices(name))[0])
        change(part)
        await self.store.replace(kinds.RESOURCE_SLICE, part)

    async def foreign(self, name: str = "foreign", **spec: Any) -> None:
        mine = (await self.slices())[0]["spec"]
        pool = {"name": "node-0", "generation": 99, "resourceSliceCount": 1}
        await self.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": name}, "spec": {
            "driver": mine["driver"], "nodeName": "node-0", "pool": pool, "devices": [{"name": "fake"}], **spec}})


@contextlib.asynccontextmanager
async def bench(*hosts: AgentHost, store: type[Memory] = Memory) -> AsyncIterator[Bench]:
    clock = ManualClock()
    home = store(clock=clock, names=IdGenerator(random.Random(1)), rules=admission.AdmissionRules({}))
    product = app.Embedded(home, hosts or hosts_of("node", 3, count=2), clock=clock)
    await product.start()
    try:
        yield Bench(product, clock)
    finally:
        await product.stop()


def device(part: Object) -> Object:
    found: Object = part["spec"]["devices"][1]
    return found


async def delete(bench: Bench) -> None:
    await bench.store.delete(kinds.RESOURCE_SLICE, (await bench.slices())[0]["metadata"]["name"])


async def delete_as(bench: Bench, **spec: Any) -> None:
    """Delete it, and create another one under its name."""
    part = (await bench.slices())[0]
    await delete(bench)
    part["metadata"] = {"name": part["metadata"]["name"]}
    await bench.store.create(kinds.RESOURCE_SLICE, {**part, "spec": {**part["spec"], **spec}})


POOL = {"name": "node-0", "generation": 99, "resourceSliceCount": 1}
Damage = Callable[[Bench], Awaitable[None]]
DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "a renamed device": (lambda bench: bench.change(lambda part: device(part).update(name="fake")), {CHANGED}),
    "a device less": (lambda bench: bench.change(lambda part: part["spec"]["devices"].pop()), {CHANGED}),
    "a changed attribute": (
        lambda bench: bench.change(lambda part: device(part)["attributes"].update(vendor={"string": "10de"})), {CHANGED}),
    "a taint": (lambda bench: bench.change(
        lambda part: device(part).update(taints=[{"key": "example.com/x", "effect": "NoSchedule"}])), {CHANGED}),
    "a higher generation": (lambda bench: bench.change(lambda part: part["spec"]["pool"].update(generation=7)), {CHANGED}),
    "the highest generation": (
        lambda bench: bench.change(lambda part: part["spec"]["pool"].update(generation=HIGHEST)), {CHANGED}),
    "more slices than there are": (
        lambda bench: bench.change(lambda part: part["spec"]["pool"].update(resourceSliceCount=2)), {CHANGED}),
    "no owner": (lambda bench: bench.change(lambda part: part["metadata"].pop("ownerReferences")), {CHANGED}),
    "a deleted slice": (delete, {DELETED}),
    "the slice of another driver under its name": (lambda bench: delete_as(bench, driver="other.example.com"), {DELETED}),
    "a slice of another node under its name": (lambda bench: delete_as(bench, nodeName="node-9"), {CHANGED}),
    "a slice of another pool under its name": (lambda bench: delete_as(bench, pool={**POOL, "name": "extra"}), {CHANGED}),
    "a foreign slice of a higher generation": (lambda bench: bench.foreign(), {FOREIGN}),
    "a foreign slice of the highest generation": (lambda bench: bench.foreign(pool={**POOL, "generation": HIGHEST}), {FOREIGN}),
    "a foreign slice of the same generation": (lambda bench: bench.foreign(pool={**POOL, "generation": 1}), {FOREIGN}),
    "a foreign slice for all nodes": (lambda bench: bench.foreign(nodeName=None, allNodes=True), {FOREIGN}),
    "a foreign slice on a node that is not there": (lambda bench: bench.foreign(nodeName="node-9"), {FOREIGN}),
    "a foreign slice in another pool": (lambda bench: bench.foreign(pool={**POOL, "name": "extra"}), {FOREIGN}),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_repaired_at_once_and_reported(damage: str) -> None:
    async with bench() as here:
        before, other = await here.content(), await here.slices("node-1")
        generation = (await here.slices())[0]["spec"]["pool"]["generation"]
        work, codes = DAMAGES[damage]
        await work(here)
        ours = [part["spec"] for part in await here.slices() if part["spec"]["driver"] == here.product.hosts[0].driver]
        assert [{**spec, "pool": {**spec["pool"], "generation": 0}} for spec in ours] == before
        assert ours[0]["pool"]["generation"] > generation
        assert not any(part["spec"]["pool"]["name"] == "extra" for part in (await here.store.list(kinds.RESOURCE_SLICE)).items)
        assert await here.slices("node-1") == other
        assert set(await here.events()) == codes
        assert set(here.product.host_audit.repairs) == {("node-0", code) for code in codes}
        metrics = here.product.metrics.text()[0].decode()
        assert f'outfitter_slice_repairs_total{{code="{min(codes)}",host="node-0"}} 1.0' in metrics
        revision = here.store.revision
        await here.product.host_audit.audit("node-0")
        await here.product.settle()
        assert here.store.revision == revision, "nothing is published again if nothing changed"


async def test_a_slice_on_another_host_of_this_process_is_repaired_for_both() -> None:
    async with bench() as here:
        before = [await here.content(name) for name in ("node-0", "node-1")]
        await here.foreign(nodeName="node-1")
        assert [await here.content(name) for name in ("node-0", "node-1")] == before
        assert not [part for part in await here.slices() if part["metadata"]["name"] == "foreign"]


async def test_slices_of_other_drivers_are_left_alone() -> None:
    async with bench() as here:
        mine = await here.slices()
        await here.foreign("same-pool", driver="other.example.com")
        await here.foreign("other-pool", driver="other.example.com", pool={**POOL, "name": "extra"})
        await here.product.host_audit.audit("node-0")
        assert [part for part in await here.slices() if part["metadata"]["name"] != "same-pool"] == mine
        names = {part["metadata"]["name"] for part in (await here.store.list(kinds.RESOURCE_SLICE)).items}
        assert names >= {"same-pool", "other-pool"}
        assert await here.events() == []


async def test_a_pool_of_several_slices_is_repaired() -> None:
    """Its slices are named by generation, and share counters."""
    async with bench(replace(host(BOUND % 70, "device_spec: [{vendor_id: '8086'}]"), name="node-0")) as here:
        before = await here.content()
        assert len(before) == 3
        await here.change(lambda part: device(part).update(name="fake"))
        assert await here.content() == before
        await delete(here)
        here.clock.advance(1)
        assert await here.content() == before
        await here.change(lambda part: part["spec"]["pool"].update(generation=70))
        here.clock.advance(2)
        assert await here.content() == before


async def test_a_foreign_slice_that_a_finalizer_keeps_is_repaired_once() -> None:
    async with bench() as here:
        await here.foreign()
        await here.product.settle()
        here.clock.advance(1000)
        mine = (await here.slices())[0]["spec"]
        pool = {**mine["pool"], "generation": mine["pool"]["generation"] + 5}
        await here.store.create(kinds.RESOURCE_SLICE, {
            "metadata": {"name": "kept", "finalizers": ["example.com/busy"]},
            "spec": {**mine, "pool": pool, "devices": [{"name": "x"}]}})
        parts = await here.slices()
        kept, ours = sorted(parts, key=lambda part: part["metadata"]["name"] != "kept")
        assert kept["metadata"]["deletionTimestamp"]
        assert ours["spec"]["pool"]["generation"] > kept["spec"]["pool"]["generation"]
        here.clock.advance(1000)
        await here.product.host_audit.audit("node-0")
        assert await here.slices() == parts
        assert here.product.host_audit.repairs["node-0", FOREIGN] == 2


async def test_two_writers_do_not_fight_without_end() -> None:
    async with bench() as here:
        before = await here.content()
        generation = (await here.slices())[0]["spec"]["pool"]["generation"]
        for _ in range(600):  # ten minutes of a writer that rewrites the slice every second
            part = (await here.slices())[0]
            device(part)["name"] = "fake"
            await here.store.replace(kinds.RESOURCE_SLICE, part)
            await here.product.settle()
            here.clock.advance(1)
        repairs = here.product.host_audit.repairs["node-0", CHANGED]
        assert 10 <= repairs <= 20
        assert (await here.slices())[0]["spec"]["pool"]["generation"] <= generation + repairs
        here.clock.advance(60)
        assert await here.content() == before, "the last damage is repaired, too"
        here.clock.advance(600)
        await here.change(lambda part: device(part).update(name="fake"))
        assert await here.content() == before, "and at once again after a while"


async def test_no_vm_is_booked_on_a_device_that_its_host_does_not_have() -> None:
    """Also while a repair has to wait, as another writer goes on."""
    async with bench(*hosts_of("node", 1)) as here:
        scene = Scene(here.product, "default", here.clock)
        await scene.classes()
        await scene.template()
        for _ in range(3):
            await here.change(lambda part: part["spec"]["devices"][0].update(name="fake"))
        assert [part["spec"]["devices"][0]["name"] for part in await here.slices()] == ["fake"]
        await scene.machine("blue")
        await scene.settle()
        assert not await scene.bookings()
        await scene.rejected("blue", RejectionCode.NO_DEVICES)
        here.clock.advance(60)
        await scene.running("blue")
        assert {booking.device.device for booking in await scene.bookings()} == {"pci-0000-3b-00-0-vf0"}


async def test_slices_are_repaired_while_the_hypervisor_is_away() -> None:
    class Away(Simulated):
        away = False

        async def domains(self) -> Any:
            if self.away:
                raise HypervisorError("libvirt is away")
            return await super().domains()

    hypervisor = Away(None)
    async with bench(replace(host(NIC % 2), name="node-0", hypervisor=hypervisor)) as here:
        before = await here.content()
        hypervisor.away = True
        await here.foreign()
        assert await here.content() == before


async def test_what_the_api_server_drops_is_not_published_again_and_again() -> None:
    class Dropping(Memory):
        """An API server without a feature: it drops a field that it does not know."""

        async def create(self, kind: kinds.Kind, obj: Object, *, dry_run: bool = False) -> Object:
            return await super().create(kind, _dropped(kind, obj), dry_run=dry_run)

        async def replace(self, kind: kinds.Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
            return await super().replace(kind, _dropped(kind, obj), subresource=subresource, dry_run=dry_run)

    def _dropped(kind: kinds.Kind, obj: Object) -> Object:
        if kind != kinds.RESOURCE_SLICE:
            return obj
        devices = [{key: value for key, value in device.items() if key != "attributes"} for device in obj["spec"]["devices"]]
        return {**obj, "spec": {**obj["spec"], "devices": devices}}

    async with bench(store=Dropping) as here:
        await here.product.settle()
        revision = here.store.revision
        await here.product.host_audit.audit("node-0")
        await here.product.settle()
        assert here.store.revision == revision
        await delete(here)
        assert (await here.slices())[0]["spec"]["pool"]["generation"] == 2
        assert await here.events() == [DELETED]


async def test_a_deleted_node_is_no_damage() -> None:
    """Its slices go with it, and both are written again."""
    async with bench() as here:
        before = await here.content()
        await here.store.delete(kinds.NODE, "node-0")
        assert await here.content() == before
        node = await here.store.get(kinds.NODE, "node-0")
        assert (await here.slices())[0]["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
        assert await here.events() == []


@pytest.mark.cluster
async def test_on_a_real_api_server(cluster: kubernetes.Cluster) -> None:
    """It rejects changes of what is immutable, and sets fields of its own; a repair is done once."""
    async with scenes.on_cluster(cluster, f"h{uuid.uuid4().hex[:8]}", 2) as scene:
        host = scene.host

        async def parts() -> list[Object]:
            found = (await scene.store.list(kinds.RESOURCE_SLICE, fields=f"spec.driver={host.driver}")).items
            return [part for part in found if slice_repair.is_of(host, part)]

        [before] = await parts()
        spec = before["spec"]

        async def repaired() -> bool:
            found = await parts()
            return [(part["spec"].get("nodeName"), part["spec"]["devices"]) for part in found] == [(host.name, spec["devices"])]

        other = copy.deepcopy(before)
        other["spec"]["devices"][0]["name"] = "fake"
        await scene.store.replace(kinds.RESOURCE_SLICE, other)
        await scene.reach(repaired, "the renamed device has its name again")
        pool = {**spec["pool"], "generation": 99}
        await scene.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": f"{host.name}-foreign"}, "spec": {
            "driver": host.driver, "allNodes": True, "pool": pool, "devices": [{"name": "fake"}]}})
        await scene.reach(repaired, "the foreign slice is gone")
        name = before["metadata"]["name"]
        await scene.store.delete(kinds.RESOURCE_SLICE, name)
        with contextlib.suppress(AlreadyExists):  # the agent was faster
            await scene.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": name}, "spec": {
                **{key: value for key, value in spec.items() if key != "nodeName"}, "allNodes": True, "pool": pool}})
        await scene.reach(repaired, "the slice is that of the host again")
        assert set(scene.product.host_audit.repairs) >= {(host.name, CHANGED), (host.name, FOREIGN)}
        [part] = await parts()
        await scene.product.host_audit.audit(host.name)
        assert await parts() == [part], "nothing is published again if nothing changed"
