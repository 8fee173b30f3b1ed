"""The hosts, machines and switches of a placement case, and the product that keeps them.

Each host's part of the product runs on one store, as it does on a host of its own; machines run in a hypervisor that plays.
What a step needs and the product does not have raises `NotDriven`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from outfitter import app
from outfitter.api import kinds, providers
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.page import Booking, Holder, Page
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import AlreadyHeld, NotFound, Unavailable
from outfitter.inventory import config, cpulist, numa_cells, scan
from outfitter.inventory.config import Config
from outfitter.inventory.host_tree import Entry, Link, MemoryTree
from outfitter.launcher import domain
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book, placement_view
from outfitter.node.agent_host import AgentHost
from outfitter.node.host_audit import HostAudit
from outfitter.scheduling.nova import host_state
from outfitter.scheduling.nova.boot import PageChange, Placed
from outfitter.scheduling.nova.host_state import PublishedHost
from outfitter.scheduling.nova.numa_topology import NumaCell
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.cases.case_product import NotDriven

SWITCHES = {"report_in_placement": True, "pci_in_placement": True}
NOW = "2026-01-01T00:00:00Z"
ROOT = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
_UUIDS = uuid.UUID("0b53c2a4-6a0f-4a39-9f5d-0a54f1bb3c55")


@dataclass
class Box:
    """One host of the case: what it has and how it is set up now, and what runs on it."""

    name: str
    pci: Sequence[Mapping[str, Any]]
    spec: Any
    switches: Mapping[str, Any]
    hypervisor: Simulated = field(default_factory=Simulated)
    keeper: HostAudit | None = None
    cells: Sequence[NumaCell] = ()

    def tree(self) -> MemoryTree:
        return tree(self.pci, self.cells)


class Cloud:
    def __init__(self, product: app.Embedded, given: Mapping[str, Any], clock: ManualClock) -> None:
        self.product, self.store, self.clock, self.given = product, product.store, clock, given
        self.switches = {**SWITCHES, **(given.get("config") or {})}
        self.boxes = {host["name"]: Box(host["name"], host.get("pci_devices") or (),
                                        host.get("device_spec", given.get("device_spec", [])),
                                        {**self.switches, **(host.get("config") or {})},
                                        cells=[NumaCell(cell["id"], cell["pcpus"], cell.get("socket"))
                                               for cell in host.get("numa_cells") or ()]) for host in given.get("hosts") or ()}
        self.servers = {server["name"]: server for server in given.get("servers") or ()}
        self.names = {uid_of(name): name for name in self.servers}  # consumer's uid -> server

    # -- the world before the first step

    async def load(self) -> None:
        for provider in self.given.get("extra_providers") or ():
            await self._extra(provider)
        for server in self.servers.values():
            await self._server(server)
        for server in self.servers.values():
            await self._allocations(server)

    async def _extra(self, given: Mapping[str, Any]) -> None:
        inventories = {name: Inventory(**value) if isinstance(value, Mapping) else Inventory(total=value)
                       for name, value in (given.get("inventories") or {}).items()}
        made = Provider(given["name"], uid_of(given["name"]), given["parent"], 1, inventories,
                        frozenset(given.get("traits") or ()))
        try:
            have = await self.store.get(kinds.PROVIDER_TREE, given["parent"])
        except NotFound:
            await self.store.create(kinds.PROVIDER_TREE, providers.with_providers(providers.blank(given["parent"]), [made]))
        else:
            await self.store.replace(kinds.PROVIDER_TREE, providers.with_providers(have, [*providers.read(have), made]))

    async def _server(self, server: Mapping[str, Any]) -> None:
        """A machine that runs already, started by somebody else."""
        await self.run(server["host"], server["name"], server.get("devices") or ())

    async def run(self, host: str, name: str, addresses: Sequence[str]) -> None:
        """A machine runs on a host with these functions."""
        hostdevs = "".join(_hostdev(address) for address in addresses)
        xml = (f"<domain type='qemu'><name>{name}</name><uuid>{uid_of(name)}</uuid>"
               f"<devices>{hostdevs}</devices></domain>")
        await self.boxes[host].hypervisor.start(domain.read(xml))

    async def _allocations(self, server: Mapping[str, Any]) -> None:
        wanted, host = server.get("placement", "exact"), server["host"]
        if wanted == "none":
            return
        await self._book(server, host, [placement_view.host_resources(host)], {"resources": dict(ROOT)})
        if wanted == "root_only":
            return
        if wanted == "exact":
            await self._book(server, host, [self._device(host, address) for address in server.get("devices") or ()])
            return
        for name, amounts in wanted.items():
            if len(amounts) != 1:
                raise NotDriven(f"{server['name']} has {len(amounts)} classes on {name}: a provider has one")
            await self._book(server, *await self._some(server, name, next(iter(amounts.values()))))

    async def _some(self, server: Mapping[str, Any], name: str, count: int) -> tuple[str, list[DeviceId]]:
        """So many devices of a provider: the server's own first, then any that nobody has or will have."""
        host, _, address = name.rpartition("_")
        mine = set(server.get("devices") or ()) if host == server["host"] else set()
        taken = {booking.device for booking in (await book.read(self.store, host)).bookings}
        here = [device["address"] for device in self.boxes[host].pci
                if address.lower() in (device["address"], device.get("parent"))]
        listed = self._listed(host)
        theirs = {each for other in self.servers.values() if other is not server for each in other.get("devices") or ()}
        order = sorted(here, key=lambda each: (each not in mine, each not in listed, each in theirs))
        free = [device for device in (self._device(host, each) for each in order) if device not in taken]
        if len(free) < count:
            raise NotDriven(f"{server['name']} has {count} on {name}, where only {len(free)} are left")
        return host, free[:count]

    def _listed(self, host: str) -> set[str]:
        box = self.boxes[host]
        spec = self.config(box).for_host(host).device_spec
        return set(spec.match(scan.scan(box.tree()).devices)) if spec is not None else set()

    async def _book(self, server: Mapping[str, Any], host: str, devices: Sequence[DeviceId],
                    amount: dict[str, Any] | None = None) -> None:
        holder = Holder("Consumer", "", server["name"], uid_of(server["name"]))
        bookings = [Booking(device, holder, "", "booked", NOW, amount or {"whole": True})
                    for device in devices]
        await book.book(self.store, host, bookings)

    def _device(self, host: str, address: str) -> DeviceId:
        found = scan.scan(self.boxes[host].tree()).devices
        return DeviceId(DRIVER, host, next(device.name for device in found if device.address == address))

    # -- steps

    def config(self, box: Box) -> Config:
        spec = box.spec
        if isinstance(spec, list):  # as JSON, so that what is no text stays none
            spec = [each if isinstance(each, str) else json.dumps(each) for each in spec]
        dedicated = {"cpu_dedicated_set": cpulist.text(range(sum(cell.cpus for cell in box.cells)))} if box.cells else {}
        text = yaml.safe_dump({"device_spec": spec, **{key: box.switches[key] for key in SWITCHES}, **dedicated})
        return config.parse(text)

    def host(self, box: Box) -> AgentHost:
        return AgentHost(box.name, DRIVER, box.tree, box.hypervisor, {"cpu": "64", "memory": "256Gi"}, {}, simulated=True,
                         settings=self.config(box).for_host(box.name))

    async def start(self, name: str) -> None:
        box = self.boxes[name]
        host = self.host(box)
        box.keeper = None
        keeper = HostAudit(self.store, [host], clock=self.clock, pages=self.product.context.informer(kinds.LEDGER_PAGE))
        await keeper.start()
        box.keeper = keeper

    async def restart(self, step: Mapping[str, Any]) -> None:
        box = self.boxes[step["host"]]
        if "device_spec" in step:
            box.spec = step["device_spec"]
        if "pci_devices" in step:
            box.pci = step["pci_devices"]
        box.switches = {**box.switches, **(step.get("config") or {})}
        await self.start(box.name)

    async def audit(self, name: str) -> None:
        keeper = self.boxes[name].keeper
        if keeper is None:
            raise NotDriven(f"{name} is not running")
        await keeper.audit(name)

    async def delete(self, name: str) -> None:
        """Somebody ends a machine and gives its resources back."""
        for box in self.boxes.values():
            await box.hypervisor.stop(uid_of(name))
            await book.release(self.store, box.name, uid_of(name))

    def match(self, step: Mapping[str, Any]) -> dict[str, int | None]:
        """Address -> the entry that takes it, over all hosts; Invalid."""
        matched: dict[str, int | None] = {}
        for box in self.boxes.values():
            changed = Box(box.name, box.pci, step.get("device_spec", box.spec), {**box.switches, **(step.get("config") or {})})
            spec = self.config(changed).for_host(box.name).device_spec
            devices = scan.scan(box.tree()).devices
            taken = spec.match(devices) if spec is not None else {}
            matched |= {device.address: taken[device.address].index if device.address in taken else None for device in devices}
        return matched


@dataclass
class Fault:
    """Something that goes wrong on a host, so many times."""

    kind: str  # "spawn_failure", or "tracker_device_taken"
    host: str  # "first_selected": the one that is tried first from now on
    times: int
    address: str = ""

    def strikes(self, host: str, addresses: Sequence[str] = ()) -> bool:
        if not self.times or self.host not in ("first_selected", host) or (self.address and self.address not in addresses):
            return False
        self.host, self.times = host, self.times - 1
        return True


class House:
    """What a machine's way onto a host needs, with the hosts of the case."""

    def __init__(self, made: Cloud, faults: Sequence[Fault], line: asyncio.Barrier | None = None) -> None:
        self.cloud, self.faults = made, faults
        self.line = line  # of several that boot at the same time: each has looked before any books

    async def look(self) -> list[tuple[PublishedHost, Page]]:
        store, up = self.cloud.store, {name: box for name, box in self.cloud.boxes.items() if box.keeper is not None}
        nodes = [node for node in (await store.list(kinds.NODE)).items if node["metadata"]["name"] in up]
        told = {obj["metadata"]["name"]: [NumaCell(each.id, each.count, each.socket) for each in numa_cells.read(obj)]
                for obj in (await store.list(kinds.HOST_INVENTORY)).items}
        found = host_state.published(
            nodes, await placement_view.trees(store), (await store.list(kinds.RESOURCE_SLICE)).items, told
        )
        seen = [(each, await book.read(store, each.name)) for each in found]
        if self.line is not None:
            line, self.line = self.line, None
            await line.wait()
        return seen

    async def change(self, host: str, change: PageChange) -> None:
        await book.change_page(self.cloud.store, host, change, now=NOW)

    async def prepare(self, placed: Placed) -> None:
        keeper = self.cloud.boxes[placed.host].keeper
        assert keeper is not None
        for fault in self.faults:
            if fault.kind == "tracker_device_taken" and fault.strikes(placed.host, addresses_of(placed)):
                raise AlreadyHeld(f"{placed.host}/{fault.address}", by="somebody that nobody booked for", since=NOW)
        single_use = keeper.hosts[placed.host].single_use
        once = {given.device.id for given in placed.choice.given if given.device.id.device in single_use}
        await book.set_state(self.cloud.store, placed.host, placed.order.uid, "prepared", now=NOW, unclean=once)

    async def start(self, placed: Placed) -> None:
        for fault in self.faults:
            if fault.kind == "spawn_failure" and fault.strikes(placed.host):
                raise Unavailable(f"{placed.host} could not start {placed.order.name}")
        await self.cloud.run(placed.host, placed.order.name, addresses_of(placed))

    async def release(self, host: str, uid: str) -> None:
        await book.release(self.cloud.store, host, uid, now=NOW)


def addresses_of(placed: Placed) -> list[str]:
    return [address for given in placed.choice.given for address in given.device.functions]


@contextlib.asynccontextmanager
async def cloud(given: Mapping[str, Any], settings: Config = config.DEFAULT) -> AsyncIterator[Cloud]:
    clock = ManualClock()
    async with app.embedded(clock=clock, names=IdGenerator(random.Random(1)), config=settings) as product:
        await product.runner.stop()  # nothing happens between the steps
        made = Cloud(product, copy.deepcopy(given), clock)
        await made.load()
        yield made


def uid_of(name: str) -> str:
    return str(uuid.uuid5(_UUIDS, name))


def _hostdev(address: str) -> str:
    domain_, bus, slot, function = address.replace(".", ":").split(":")
    return ("<hostdev mode='subsystem' type='pci'><source>"
            f"<address domain='0x{domain_}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")


def tree(devices: Sequence[Mapping[str, Any]], numa: Sequence[NumaCell] = ()) -> MemoryTree:
    """A host's sysfs with these functions, each in an IOMMU group of its own, and these NUMA cells. Each cell also has a CPU
    that is shared; their numbers follow those of all dedicated ones."""
    entries: dict[str, Entry] = {"/sys/bus/pci/devices": None}
    first, shared = 0, sum(cell.cpus for cell in numa)
    for place, cell in enumerate(numa):
        mine, first = [*range(first, first + cell.cpus), shared + place], first + cell.cpus
        entries[f"{numa_cells.NODES}/node{cell.id}/cpulist"] = cpulist.text(mine) + "\n"
        entries |= {
            f"{numa_cells.CPUS}/cpu{cpu}/topology/physical_package_id": f"{-1 if cell.socket is None else cell.socket}\n"
            for cpu in mine
        }
    paths = {device["address"]: f"/sys/devices/pci{device['address'].rpartition(':')[0]}/{device['address']}"
             for device in devices}
    children: dict[str, int] = {}
    for number, device in enumerate(devices):
        address, kind = device["address"], device["type"]
        base = paths[address]
        files = {"vendor": f"0x{device['vendor_id']}", "device": f"0x{device['product_id']}", "class": "0x020000",
                 "revision": "0x01", "numa_node": str(device.get("numa_node", -1))}
        if "serial" in device:
            files["serial_number"] = device["serial"]
        if kind == "PF":
            own = sum(other.get("parent") == address for other in devices)
            files |= {"sriov_totalvfs": str(max(own, 1)), "sriov_numvfs": str(own)}
        entries |= {f"{base}/{name}": text + "\n" for name, text in files.items()}
        entries[f"/sys/bus/pci/devices/{address}"] = Link(base)
        entries[f"{base}/iommu_group"] = Link(f"/sys/kernel/iommu_groups/{number}")
        entries[f"/sys/kernel/iommu_groups/{number}/devices/{address}"] = Link(base)
        if kind in ("VF", "VDPA"):
            parent: str = device.get("parent") or ""
            entries[f"{base}/physfn"] = Link(paths.get(parent, f"/sys/devices/nowhere/{parent or 'nobody'}"))
            if parent in paths:
                entries[f"{paths[parent]}/virtfn{children.get(parent, 0)}"] = Link(base)
                children[parent] = children.get(parent, 0) + 1
        if kind == "VDPA":
            entries[f"{base}/vdpa0"] = None
    return MemoryTree(entries)


def shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=sorted)
