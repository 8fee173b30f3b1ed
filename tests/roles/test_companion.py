"""Companion mode: KubeVirt and Outfitter on one cluster write different fields, so that neither undoes what the other did."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.manager import ControllerContext, ControllerManager, settle
from outfitter.doctor.expected import from_manifests
from outfitter.errors import NotFound
from outfitter.install import manifests
from outfitter.install.names import InstallOptions
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.kubelet.claim_driver import ClaimDriver
from outfitter.node.kubelet.claim_reference import ClaimReference
from outfitter.node.pool_pages import PoolPages
from outfitter.roles import controller, node
from outfitter.roles import hosts as host_setup
from outfitter.roles.controller import cluster_controllers
from outfitter.roles.node import HostAgents
from outfitter.store.base import Create, Delete, Replace, Store, Write
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.roles.audit_writes import leaves

HOST, NAMESPACE, DRIVER = "node-a", "here", "pci.outfitter.dev"
HOSTS = f"""
publisher: {DRIVER}
hosts:
- name: {HOST}
  pci: [{{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 20}}]
"""
DEVICE = "pci-0000-65-00-0"
# What KubeVirt writes, as path prefixes ("": all of the kind). virt-controller: VMs (status, finalizers, spec of hotplug), VMIs
# (labels, spec.networks and interfaces, status, until 1.7 also status.deviceStatus), migrations, launcher pods (created,
# labelled, deleted). virt-handler: status of VMIs (phase, conditions, interfaces, migrationState), labels and annotations of
# its nodes. virt-operator: the KubeVirt object. None of them writes claims or slices: virt-controller may only read them.
KUBEVIRT_WRITES: dict[Kind, tuple[str, ...]] = {
    kinds.VM: ("",), kinds.VMI: ("",), kinds.MIGRATION: ("",), kinds.KUBEVIRT: ("",), kinds.POD: ("",),
    kinds.NODE: ("metadata.labels.kubevirt.io", "metadata.labels.cpu-", "metadata.labels.host-model", "metadata.labels.hyperv",
                 "metadata.labels.scheduling.node.kubevirt.io", "metadata.labels.machine-type.node.kubevirt.io",
                 "metadata.annotations.kubevirt.io"),
}
Field = tuple[Kind, str]


class RecordedStore:
    """A store that records which fields of which kinds are written through it; as on a cluster, one object at a time."""

    atomic = False

    def __init__(self, store: Memory) -> None:
        self._store = store
        self.written: set[Field] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, kind: Kind, obj: Object, **more: Any) -> Object:
        after = await self._store.create(kind, obj, **more)
        self._record(kind, {}, after)
        return after

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        await self.create(kind, obj)

    async def replace(self, kind: Kind, obj: Object, **more: Any) -> Object:
        before = await self._before(kind, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))
        after = await self._store.replace(kind, obj, **more)
        self._record(kind, before, after)
        return after

    async def patch(self, kind: Kind, name: str, patch: Any, namespace: str = "", **more: Any) -> Object:
        before = await self._before(kind, name, namespace)
        after = await self._store.patch(kind, name, patch, namespace, **more)
        self._record(kind, before, after)
        return after

    async def delete(self, kind: Kind, name: str, namespace: str = "", **more: Any) -> Object:
        self.written.add((kind, "metadata.deletionTimestamp"))
        return await self._store.delete(kind, name, namespace, **more)

    async def commit(self, writes: Sequence[Write], **more: Any) -> Any:
        for write in writes:
            if isinstance(write, Create | Replace):
                self._record(write.kind, {}, write.object)
            elif isinstance(write, Delete):
                self.written.add((write.kind, "metadata.deletionTimestamp"))
        return await self._store.commit(writes, **more)

    async def _before(self, kind: Kind, name: str, namespace: str) -> Object:
        try:
            return await self._store.get(kind, name, namespace)
        except NotFound:
            return {}

    def _record(self, kind: Kind, before: Object, after: Object) -> None:
        old, new = dict(leaves(before)), dict(leaves(after))
        self.written |= {(kind, path) for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


class SharedCluster:
    """A cluster on which KubeVirt runs a VM with a device of ours: what both have written, by field."""

    def __init__(self, folder: Path, *, companion: bool) -> None:
        self.clock = ManualClock()
        self.memory = Memory(clock=self.clock)
        self.ours, self.theirs = RecordedStore(self.memory), RecordedStore(self.memory)
        self.context = ControllerContext(cast(Store, self.ours), clock=self.clock)
        settings = config.parse("device_spec: [{vendor_id: 10de}]")
        [host] = host_setup.simulated_hosts(hosts_file.parse(HOSTS, "").hosts, folder, settings)
        self.agents = HostAgents(self.context, [host], vms=not companion)
        controllers = cluster_controllers(self.context, config.DEFAULT, companion=companion)
        self.manager = ControllerManager(self.context, [*controllers, *self.agents.controllers])
        bookings = ClaimBookings(self.context.store, self.agents.preparation, PoolPages(self.context.store), clock=self.clock)
        self.driver = ClaimDriver(self.context.store, self.agents.hosts[0], bookings, self.agents.preparation, clock=self.clock,
                                  events=self.context.events)

    async def settle(self) -> None:
        await settle(lambda kind: self.memory.watch_cache(kind).revision, self.context, [self.manager])

    async def vm_starts(self) -> None:
        """As virt-controller, kube-scheduler and virt-handler do it. The scheduler's writes are no one's here."""
        create, patch = self.theirs.create, self.theirs.patch
        spec = {"domain": {"devices": {"gpus": [{"name": "gpu", "claimName": "gpu", "requestName": "gpu"}]}},
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}
        await create(kinds.VM, {"metadata": {"name": "blue", "namespace": NAMESPACE},
                                "spec": {"runStrategy": "Always", "template": {"spec": spec}}})
        vmi = await create(kinds.VMI, {"metadata": {"name": "blue", "namespace": NAMESPACE}, "spec": spec})
        await patch(kinds.VMI, "blue", {"status": {"phase": "Scheduling"}}, NAMESPACE, subresource="status")
        claim = await self.memory.create(kinds.RESOURCE_CLAIM, {
            "metadata": {"name": "mine", "namespace": NAMESPACE},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}})
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "blue", "controller": True,
                 "uid": vmi["metadata"]["uid"]}
        pod = await create(kinds.POD, {
            "metadata": {"name": "virt-launcher-blue-x", "namespace": NAMESPACE, "ownerReferences": [owner],
                         "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": vmi["metadata"]["uid"]}},
            "spec": {"containers": [{"name": "compute", "image": "x",
                                     "resources": {"claims": [{"name": "gpu", "request": "gpu"}]}}],
                     "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}], "nodeName": HOST}})
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        result = {"request": "gpu", "driver": DRIVER, "pool": HOST, "device": DEVICE}
        await self.memory.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {
            "allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}}, NAMESPACE, subresource="status")
        await self.settle()
        await self.driver.prepare(ClaimReference(NAMESPACE, "mine", claim["metadata"]["uid"]))
        await patch(kinds.VMI, "blue", {"status": {"phase": "Running", "nodeName": HOST}}, NAMESPACE, subresource="status")
        await patch(kinds.NODE, HOST, {"metadata": {"labels": {"kubevirt.io/schedulable": "true"}}})
        await self.settle()

    async def vm_stops(self) -> None:
        claim = await self.memory.get(kinds.RESOURCE_CLAIM, "mine", NAMESPACE)
        await self.driver.unprepare(ClaimReference(NAMESPACE, "mine", claim["metadata"]["uid"]))
        await self.theirs.delete(kinds.POD, "virt-launcher-blue-x", NAMESPACE, grace=0)
        await self.memory.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"allocation": None, "reservedFor": None}}, NAMESPACE,
                                subresource="status")
        await self.theirs.delete(kinds.VMI, "blue", NAMESPACE)
        await self.settle()


@contextlib.asynccontextmanager
async def running(folder: Path, *, companion: bool) -> AsyncIterator[SharedCluster]:
    cluster = SharedCluster(folder, companion=companion)
    await cluster.memory.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
    try:
        await cluster.agents.start()
        await cluster.manager.start()
        yield cluster
    finally:
        await cluster.manager.stop()
        await cluster.agents.stop()


def of_kubevirt(fields: set[Field]) -> set[Field]:
    """Those that KubeVirt writes as well."""
    return {(kind, path) for kind, path in fields if any(path.startswith(prefix) for prefix in KUBEVIRT_WRITES.get(kind, ()))}


async def test_neither_writes_what_the_other_writes(tmp_path: Path) -> None:
    async with running(tmp_path, companion=True) as cluster:
        await cluster.vm_starts()
        page = await book.read(cluster.context.store, HOST)
        assert [(booking.device.device, booking.state, booking.holder.name) for booking in page.bookings] == [
            (DEVICE, "prepared", "mine")]
        await cluster.vm_stops()
        assert (await book.read(cluster.context.store, HOST)).bookings == ()
        ours, theirs = cluster.ours.written, cluster.theirs.written
    assert theirs == of_kubevirt(theirs)  # what it is played to write is what it writes
    assert of_kubevirt(ours) == set()
    assert ours & theirs == set()
    assert {kind for kind, _ in ours} >= {kinds.LEDGER_PAGE, kinds.RESOURCE_SLICE, kinds.HOST_INVENTORY}


async def test_without_companion_mode_both_would_write_vmis(tmp_path: Path) -> None:
    async with running(tmp_path, companion=False) as cluster:
        await cluster.vm_starts()
        assert {kind for kind, _ in of_kubevirt(cluster.ours.written)} >= {kinds.VM, kinds.VMI}


@pytest.mark.parametrize("account", ["outfitter-controller", "outfitter-webhook", "outfitter-node"])
def test_a_companion_may_not_even_write_what_is_kubevirts(account: str) -> None:
    def writes(companion: bool) -> set[str]:
        rights = from_manifests(manifests.objects(InstallOptions(companion=companion))).rights[account]
        theirs = [right for right in rights if right.group == kinds.VMI.group or right.name.endswith("kubevirt.io")
                  or right.resource.split("/")[0] == "pods"]
        return {str(right) for right in theirs if right.verb not in ("get", "list", "watch")}

    assert writes(companion=True) == set()
    assert writes(companion=False)


def test_a_companion_reads_nothing_of_kubevirts_but_its_settings() -> None:
    rights = from_manifests(manifests.objects(InstallOptions(companion=True))).rights
    assert {right.resource for granted in rights.values() for right in granted if right.group == kinds.VMI.group} == {
        kinds.KUBEVIRT.plural}


def test_a_companion_has_the_rights_that_it_asks_for_at_its_start() -> None:
    granted = from_manifests(manifests.objects(InstallOptions(companion=True))).rights
    clock = ManualClock()
    context = ControllerContext(Memory(clock=clock), clock=clock)
    cluster_controllers(context, config.DEFAULT, companion=True)
    agent = ControllerContext(Memory(clock=clock), clock=clock)
    HostAgents(agent, host_setup.simulated_hosts(hosts_file.parse(HOSTS, "").hosts), vms=False)
    assert kinds.VMI not in agent.informers  # KubeVirt's definition selects by other fields
    for account, needed in (("outfitter-controller", controller.rights(context.informers, "ns", controller.COMPANION_WRITES)),
                            ("outfitter-node", node.rights(agent.informers, companion=True))):
        have = {(right.verb, right.group, right.resource) for right in granted[account]}
        assert [str(right) for right in needed if (
            right.verb, right.kind.group, "/".join(filter(None, (right.kind.plural, right.subresource)))) not in have] == []


def test_an_installation_beside_kubevirt_starts_its_roles_as_companions() -> None:
    started = {obj["metadata"]["name"]: obj["spec"]["template"]["spec"]["containers"][0]["args"]
               for obj in manifests.objects(InstallOptions(companion=True)) if obj["kind"] in ("Deployment", "DaemonSet")}
    assert [name for name, args in started.items() if "--companion" in args] == ["outfitter-controller", "outfitter-node"]
