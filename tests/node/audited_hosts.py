"""What the tests of the audit share: hosts to keep, a store to keep them in, and stores that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from outfitter import app
from outfitter.api import kinds, providers, write_request
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.inventory import config
from outfitter.inventory.config import HostSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher import domain
from outfitter.ledger import book, placement_view
from outfitter.node.agent_host import AgentHost
from outfitter.node.host_audit import HostAudit
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory

NOW = "2026-01-01T00:00:00Z"
NIC = "{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: %d, product: 1889}}"
BOUND = NIC.replace("driver: ice", "driver: vfio-pci")  # the PF is offered beside its VFs
DISK = "{address: 0000:65:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}"
PF, VF0, VF1, SSD = "pci-0000-3b-00-0", "pci-0000-3b-00-0-vf0", "pci-0000-3b-00-0-vf1", "pci-0000-65-00-0"
ONCE = "device_spec: [{product_id: a80a, one_time_use: 'yes'}]\nreport_in_placement: true"
# -- when it looks


class Pages:
    """Stands for the informer of pages: reports a change when asked to."""

    def on_change(self, handler: Any) -> None:
        self.tell = handler
# -- what is others'


def theirs(name: str) -> DeviceId:
    return DeviceId("gpu.example.com", "a", name)


def settings(text: str) -> HostSettings:
    return config.parse(text).default


def host(pci: str, spec: str = "", **more: Any) -> AgentHost:
    played = hosts_file.parse(f"hosts: [{{name: a, pci: [{pci}]}}]").hosts
    return replace(app.simulated_hosts(played)[0], settings=settings(spec) if spec else HostSettings(), **more)


class Bench:
    """One store, and the audits of hosts on it, each as after a start of its own."""

    def __init__(self, product: app.Embedded, clock: ManualClock) -> None:
        self.product, self.store, self.clock = product, product.store, clock

    def audit(self, *hosts: AgentHost) -> HostAudit:
        return HostAudit(self.store, hosts, clock=self.clock, pages=self.product.context.informer(kinds.LEDGER_PAGE))

    async def start(self, *hosts: AgentHost) -> int:
        return await self.audit(*hosts).start()

    async def devices(self, name: str = "a") -> dict[str, Object]:
        listing = await self.store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}")
        return {device["name"]: device for part in listing.items for device in part["spec"].get("devices") or ()}

    async def taints(self, name: str = "a") -> dict[str, list[str]]:
        return {key: [taint["key"].removeprefix("outfitter.dev/") for taint in device["taints"]]
                for key, device in (await self.devices(name)).items() if "taints" in device}

    async def rows(self, name: str = "a") -> dict[str, placement_view.Row]:
        tree = providers.read(await self.store.get(kinds.PROVIDER_TREE, name))
        return {row.provider.name: row for row in placement_view.rows(tree, await book.read(self.store, name))}

    async def hold(self, on: AgentHost, device: str, kind: str = "Consumer") -> None:
        holder = Holder(kind, "", "s1", "uid-1")
        await book.book(self.store, on.name, [Booking(on.device(device), holder, "", "prepared", NOW)])


async def everything(store: Memory) -> dict[str, Object]:
    return {f"{kind.plural}/{obj['metadata']['name']}": obj for kind in kinds.ALL for obj in (await store.list(kind)).items}


class Tasteless(Memory):
    """An API server without the feature: what it does not know it drops."""

    async def create(self, kind: kinds.Kind, obj: Object, *, dry_run: bool = False) -> Object:
        return await super().create(kind, _without_taints(kind, obj), dry_run=dry_run)

    async def replace(self, kind: kinds.Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        return await super().replace(kind, _without_taints(kind, obj), subresource=subresource, dry_run=dry_run)


def _without_taints(kind: kinds.Kind, obj: Object) -> Object:
    if kind != kinds.RESOURCE_SLICE:
        return obj
    devices = [{key: value for key, value in device.items() if key != "taints"} for device in obj["spec"].get("devices") or ()]
    return {**obj, "spec": {**obj["spec"], "devices": devices}}


def foreign(name: str, *addresses: str) -> Any:
    sources = "".join(f"<hostdev type='pci'><source><address domain='0x{a[:4]}' bus='0x{a[5:7]}' slot='0x{a[8:10]}' "
                      f"function='0x{a[11:]}'/></source></hostdev>" for a in addresses)
    return domain.read(f"<domain><name>{name}</name><uuid>uid-{name}</uuid><devices>{sources}</devices></domain>")


class Fragile(Memory):
    """Fails at a chosen write, before or after it."""

    fatal, after = 0, False

    async def write(self, work: Any, *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES) -> Any:
        self.fatal -= 1
        if self.fatal == 0 and not self.after:
            raise Killed
        answer = await super().write(work, dry_run=dry_run, by=by)
        if self.fatal == 0:
            raise Killed
        return answer


class Killed(Exception):
    pass


async def specs(store: Memory) -> dict[str, Any]:
    out = {}
    for kind in (kinds.LEDGER_PAGE, kinds.PROVIDER_TREE, kinds.HOST_INVENTORY, kinds.RESOURCE_SLICE):
        for obj in (await store.list(kind)).items:
            spec = {key: value for key, value in obj["spec"].items() if key != "pool"}
            out[f"{kind.plural}/{obj['metadata']['name']}"] = spec
    return out


def watched(bench: Bench, *hosts: AgentHost) -> tuple[HostAudit, Pages]:
    pages = Pages()
    return HostAudit(bench.store, hosts, clock=bench.clock, pages=cast(Any, pages)), pages
