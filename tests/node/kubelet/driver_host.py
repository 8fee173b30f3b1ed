"""A host whose claims the kubelet prepares: simulated hardware, its page and slices, the ledger mirror, and our DRA driver on
sockets in a folder. In memory the test allocates, as kube-scheduler does; on a cluster kube-scheduler does. A restart of the
process keeps what is stored."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from outfitter import app
from outfitter.api import kinds
from outfitter.api.ledger_page.page import Booking
from outfitter.controllers.ledger_mirror import LedgerMirror
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager, settle
from outfitter.errors import NotFound
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.device_plugin.plugin_resources import DeviceSelector
from outfitter.node.device_plugin.plugin_sockets import DevicePluginSockets, kubelet_pods
from outfitter.node.device_plugin.pod_allocations import PodAllocations
from outfitter.node.devices import vfio
from outfitter.node.host_audit import HostAudit
from outfitter.node.kubelet.claim_driver import ClaimDriver
from outfitter.node.kubelet.plugin import KubeletPlugin
from outfitter.node.pool_pages import PoolPages
from outfitter.store.base import Store
from outfitter.store.clock import Clock, ManualClock, SystemClock
from outfitter.store.memory import Memory
from tests.ledger.unchecked_pages import UncheckedPages
from tests.node.kubelet.kubelet_client import KubeletClient

DRIVER = "pci.outfitter.dev"
HOST, NAMESPACE = "node-a", "here"
HOSTS = f"""
publisher: {DRIVER}
hosts:
- name: {HOST}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}]
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0,
     vfs: {{count: 2, product: 1889, driver: iavf}}}}
"""
GPU, GPU_ID, GPU_ADDRESS = "example.com/gpu", "10de:20b5", "0000:65:00.0"
WITH_GPU = HOSTS + f"""
  - {{address: {GPU_ADDRESS}, vendor: 10de, product: 20b5, class: 030200, driver: nvidia, numa: 0}}
"""
SPEC = "device_spec: [{vendor_id: '8086', product_id: '1889'}]"
SPEC_WITH_GPU = SPEC.replace("]", ", {vendor_id: '10de', product_id: '20b5'}]")
VF0, VF1 = "pci-0000-3b-00-0-vf0", "pci-0000-3b-00-0-vf1"


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a unix socket."""
    with tempfile.TemporaryDirectory(prefix="ok-", dir="/tmp") as folder:
        yield Path(folder)


class DriverHost:
    def __init__(
        self, folder: Path, client: KubeletClient, *, mirror: bool = True, store: Store | None = None, hosts: str = HOSTS,
        spec: str = SPEC, plugin_folder: Path | None = None,
    ) -> None:
        """`plugin_folder`: where the kubelet serves device plugins; our plugin offers its GPUs there."""
        self.folder, self.client, self._mirror, self._plugin_folder = folder, client, mirror, plugin_folder
        self.manual = ManualClock()
        self.clock: Clock = SystemClock() if store is not None else self.manual
        self.runs = False
        self.store = store or Memory(clock=self.clock, rules=UncheckedPages())
        self.kubelet_folder = folder / "kubelet"
        self.registry = self.kubelet_folder / "plugins_registry"
        self.socket = self.registry / f"{DRIVER}-reg.sock"
        self.endpoint = self.kubelet_folder / "plugins" / DRIVER / "dra.sock"
        [self._hardware] = app.simulated_hosts(hosts_file.parse(hosts, "").hosts, folder / "data",
                                                config.parse(spec))
        self.device_plugin: DevicePluginSockets | None = None

    async def start(self) -> None:
        """A process. What an earlier one had in memory is gone."""
        self.host: AgentHost = self._hardware.fresh()
        self.context = ControllerContext(self.store, clock=self.clock)
        pages = self.context.informer(kinds.LEDGER_PAGE)
        self.preparation = ClaimPreparation(self.store, [self.host], clock=self.clock)
        audit = HostAudit(self.store, [self.host], clock=self.clock, pages=pages, begin=self.preparation.begin,
                          slices=self.context.informer(kinds.RESOURCE_SLICE), events=self.context.events)
        bookings = ClaimBookings(self.store, self.preparation, PoolPages(self.store), clock=self.clock)
        self.driver = ClaimDriver(self.store, self.host, bookings, self.preparation, clock=self.clock,
                                  events=self.context.events)
        controllers: list[Controller] = [audit, *([LedgerMirror(self.context)] if self._mirror else [])]
        self.runner = ControllerManager(self.context, controllers)
        if self._plugin_folder is not None:
            self.device_plugin = self._device_plugin(self._plugin_folder, audit)
            await self.device_plugin.select()
        await self.preparation.start()
        await audit.start()
        await self.runner.start()
        self.plugin = KubeletPlugin(self.driver, self.kubelet_folder, clock=self.clock, page=lambda: pages.get(HOST))
        await self.plugin.start()
        if self.device_plugin is not None:
            await self.device_plugin.start()
        self.runs = True

    def _device_plugin(self, folder: Path, audit: HostAudit) -> DevicePluginSockets:
        pages, pods = self.context.informer(kinds.LEDGER_PAGE), self.context.informer(kinds.POD)
        allocations = PodAllocations(
            self.store, self.host, self.preparation, clock=self.clock, page=lambda: pages.get(HOST),
            pod=lambda namespace, name: pods.get(f"{namespace}/{name}"), listed=lambda: kubelet_pods(self.kubelet_folder))

        async def selectors() -> tuple[DeviceSelector, ...]:
            return (DeviceSelector(GPU, pci_id=GPU_ID),)

        return DevicePluginSockets(allocations, folder, clock=self.clock, selectors=selectors,
                                   changed=lambda: audit.queue.add(HOST))

    async def stop(self) -> None:
        self.runs = False
        if self.device_plugin is not None:
            await self.device_plugin.stop()
        await self.plugin.stop()
        await self.runner.stop()

    async def kill(self) -> None:
        """As by SIGKILL: the sockets stay, and nobody listens."""
        kept = [(path, path.with_suffix(".kept")) for path in list(self.kubelet_folder.rglob("*.sock"))]
        for path, other in kept:
            path.rename(other)
        await self.stop()
        for path, other in kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            other.rename(path)

    async def settle(self) -> None:
        if not self.runs:
            return
        assert isinstance(self.store, Memory)
        caches = self.store.watch_cache
        await settle(lambda kind: caches(kind).revision, self.context, [self.runner])

    async def registered(self) -> Any:
        return await self.client.register(self.socket)

    # -- what others write

    async def allocate(self, name: str, *devices: str, pod: str = "", settled: bool = True, **result: Any) -> dict[str, str]:
        """A claim with these devices, reserved for a pod; as the kubelet names it."""
        alternative = result.get("request", "").partition("/")[2]
        requests = [{"name": f"it-{number}", "firstAvailable": [{"name": alternative, "deviceClassName": "any"}]} if alternative
                    else {"name": f"it-{number}", "exactly": {"deviceClassName": "any"}} for number in range(len(devices))]
        try:
            claim = await self.store.get(kinds.RESOURCE_CLAIM, name, NAMESPACE)
        except NotFound:
            claim = await self.store.create(kinds.RESOURCE_CLAIM, {
                "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"devices": {"requests": requests}}})
        results = [{"request": f"it-{number}", "driver": DRIVER, "pool": HOST, "device": device, **result}
                   for number, device in enumerate(devices)]
        user = {"resource": "pods", "name": pod or f"pod-{name}", "uid": f"uid-of-{pod or name}"}
        await self.store.patch(kinds.RESOURCE_CLAIM, name, {"status": {
            "allocation": {"devices": {"results": results}}, "reservedFor": [user]}}, NAMESPACE, subresource="status")
        if settled:
            await self.settle()
        return {"namespace": NAMESPACE, "name": name, "uid": claim["metadata"]["uid"]}

    async def deallocate(self, name: str) -> None:
        await self.store.patch(kinds.RESOURCE_CLAIM, name, {"status": {"allocation": None, "reservedFor": None}}, NAMESPACE,
                               subresource="status")
        await self.settle()

    async def delete(self, name: str) -> None:
        await self.store.patch(kinds.RESOURCE_CLAIM, name, {"metadata": {"finalizers": None}}, NAMESPACE)
        await self.store.delete(kinds.RESOURCE_CLAIM, name, NAMESPACE)
        await self.settle()

    # -- what there is

    async def bookings(self) -> dict[tuple[str, str], Booking]:
        """By claim and device."""
        page = await book.read(self.store, HOST)
        return {(booking.holder.name, booking.device.device): booking for booking in page.bookings}

    async def states(self) -> dict[str, str]:
        return {claim: booking.state for (claim, _), booking in (await self.bookings()).items()}

    async def taints(self) -> dict[str, list[str]]:
        if isinstance(self.store, Memory):
            await self.settle()
        slices = (await self.store.list(kinds.RESOURCE_SLICE)).items
        return {device["name"]: [taint["key"] for taint in device["taints"]] for part in slices
                for device in part["spec"].get("devices") or () if device.get("taints")}

    async def events(self, kind: str) -> list[str]:
        return [event["message"] for event in (await self.store.list(kinds.EVENT)).items
                if event["involvedObject"]["kind"] == kind]

    def drivers(self) -> list[str | None]:
        """Of the VFs."""
        assert self.host.env is not None
        return [vfio.driver(self.host.env.root, f"0000:3b:01.{number}") for number in range(2)]

    def cdi_files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "data" / "hosts" / HOST / "cdi").glob("*.json"))


@contextlib.asynccontextmanager
async def running(client: KubeletClient, **options: Any) -> AsyncIterator[DriverHost]:
    with short_folder() as folder:
        node = DriverHost(folder, client, **options)
        node.registry.mkdir(parents=True)
        await node.store.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
        await node.start()
        try:
            yield node
        finally:
            await node.stop()
