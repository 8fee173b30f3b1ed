"""The hosts, servers and switches of a placement case, and the product that serves them.

The embedded product runs without hosts of its own; each host of the case has a node agent on the same store, as in a cluster. A
server is what a user creates: a Flavor and a VirtualMachine, through the API server. Hosts have a simulated kernel and a
simulated hypervisor, in which a step can inject faults. What a step needs and the product lacks raises `NotDriven`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import io
import json
import random
import re
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import yaml

from outfitter import app
from outfitter.api import conditions, kinds, providers
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.api.providers import Inventory, Provider
from outfitter.cli import providers as cli_providers
from outfitter.cli import why as cli_why
from outfitter.cli.client import Client
from outfitter.controllers.manager import ControllerContext, settle
from outfitter.errors import BadRequest, HypervisorError, Invalid, NotFound
from outfitter.inventory import config, cpulist, numa_cells, scan
from outfitter.inventory.config import Config
from outfitter.inventory.host_tree import Entry, Link, MemoryTree
from outfitter.launcher import domain
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book, placement_view
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import MemoryFiles
from outfitter.node.host_env import HostEnv
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.pod_group import MIN_AVAILABLE, NAME
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.cases.case_product import Api, NotDriven
from tests.ledger.unchecked_pages import unchecked

SWITCHES = {"report_in_placement": True, "pci_in_placement": True}
NOW = "2026-01-01T00:00:00Z"
NAMESPACE = "default"
VFIO = "/sys/bus/pci/drivers/vfio-pci"
# Seconds between two looks at servers that are on their way: a host may fail to prepare devices for a minute, three times.
LOOKS = (1, 1, 1, 11, 1, 31, 31, 1, 1, 11, 31, 31, 1, 1, 11, 31, 31, 1, 1, 1)
ROOT = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
_UUIDS = uuid.UUID("0b53c2a4-6a0f-4a39-9f5d-0a54f1bb3c55")


@dataclass(frozen=True, slots=True)
class Cell:
    """A NUMA cell of a host and its CPUs for guests."""

    id: int
    cpus: int
    socket: int | None = None


@dataclass
class Fault:
    """Something that goes wrong on a host, for so many servers."""

    kind: str  # "spawn_failure", or "tracker_device_taken"
    host: str  # "first_selected": the one that is tried first from now on
    times: int
    address: str = ""
    victims: set[str] = field(default_factory=set)  # for whom it went wrong: it stays so on that host

    def strikes(self, host: str, victim: str, address: str = "") -> bool:
        if self.host not in ("first_selected", host) or (self.address and address and self.address != address):
            return False
        if victim not in self.victims:
            if not self.times:
                return False
            self.host, self.times = host, self.times - 1
            self.victims.add(victim)
        return True


class FaultyHypervisor(Simulated):
    """Refuses to start servers that a fault is about."""

    def __init__(self, host: str, faults: Sequence[Fault]) -> None:
        super().__init__()
        self.host, self.faults = host, faults

    async def start(self, domain: Domain) -> None:
        if not domain.foreign and any(fault.kind == "spawn_failure" and fault.strikes(self.host, domain.uid)
                                      for fault in self.faults):
            raise HypervisorError(f"{self.host} could not start {domain.name.partition('_')[2]}")
        await super().start(domain)


class FaultyRoot(SimulatedRoot):
    """A kernel that does not release a function that a fault is about: a process without a booking has it open."""

    env: HostEnv
    faults: Sequence[Fault] = ()

    def write(self, path: str, text: str) -> None:
        folder, _, attribute = path.rpartition("/")
        address = folder.rpartition("/")[2]
        claim = next((taken.uid for taken in self.env.checkpoint.taken if address in taken.places), "")
        if attribute == "driver_override" and text.strip() and any(
                fault.kind == "tracker_device_taken" and fault.strikes(self.env.host, claim, address)
                for fault in self.faults):
            raise OSError(errno.EBUSY, "Device or resource busy")
        super().write(path, text)


@dataclass
class Box:
    """One host of the case: what it has and how it is set up now, what runs on it, and what its files keep."""

    name: str
    pci: Sequence[Mapping[str, Any]]
    spec: Any
    switches: Mapping[str, Any]
    hypervisor: FaultyHypervisor
    faults: Sequence[Fault]
    cells: Sequence[Cell] = ()
    agent: app.Product | None = None  # None: it does not run
    kernel: MemoryFiles = field(default_factory=MemoryFiles)
    state: MemoryFiles = field(default_factory=MemoryFiles)

    def tree(self) -> MemoryTree:
        return tree(self.pci, self.cells)

    def host(self, settings: Config) -> AgentHost:
        """As a process finds it that starts now."""
        root = FaultyRoot(self.tree, self.kernel, OrderedDict())
        root.env = HostEnv(self.name, DRIVER, root, state=self.state)
        root.faults = self.faults
        return AgentHost(self.name, DRIVER, root.look, self.hypervisor, {"cpu": "4096", "memory": "64Ti"}, {}, simulated=True,
                    settings=settings.for_host(self.name), env=root.env)


class InProcess(Client):
    """The command line's way to the server, without a socket."""

    def __init__(self, store: Memory) -> None:
        super().__init__(None, NAMESPACE)
        self.__dict__["store"] = InProcessStore(store)


class InProcessStore:
    """The store of the product, with what the command line knows of its own access besides."""

    access = SimpleNamespace(impersonate=(("Impersonate-User", "operator"),), namespace=NAMESPACE)

    def __init__(self, store: Memory) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Cloud:
    def __init__(self, product: app.Embedded, given: Mapping[str, Any], clock: ManualClock) -> None:
        self.product, self.store, self.clock, self.given = product, product.store, clock, given
        self.api = Api(product)
        self.faults: list[Fault] = []
        self.switches = {**SWITCHES, **(given.get("config") or {})}
        self.boxes = {host["name"]: Box(host["name"], host.get("pci_devices") or (),
                                        host.get("device_spec", given.get("device_spec", [])),
                                        {**self.switches, **(host.get("config") or {})},
                                        FaultyHypervisor(host["name"], self.faults), self.faults,
                                        [Cell(cell["id"], cell["pcpus"], cell.get("socket"))
                                         for cell in host.get("numa_cells") or ()]) for host in given.get("hosts") or ()}
        self.servers = {server["name"]: server for server in given.get("servers") or ()}
        self.names = {uid_of(name): name for name in self.servers}  # uid of a consumer or of a claim -> server
        self.machines: dict[str, str] = {}  # server that a step created -> its VirtualMachine

    # -- the scenario before the first step

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
        """A VM that runs already, started by another client."""
        await self.run(server["host"], server["name"], server.get("devices") or ())

    async def run(self, host: str, name: str, addresses: Sequence[str]) -> None:
        """A VM runs on a host with these functions."""
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
        """So many devices of a provider: the server's own first, then any that are free and stay free."""
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
        with unchecked(self.store):  # what it had before its agent publishes anything
            await book.book(self.store, host, bookings)

    def _device(self, host: str, address: str) -> DeviceId:
        found = scan.scan(self.boxes[host].tree()).devices
        return DeviceId(DRIVER, host, next(device.name for device in found if device.address == address))

    # -- hosts

    def config(self, box: Box) -> Config:
        return settings({**self.given, "alias": []}, box.spec, box.switches,
                        sum(cell.cpus for cell in box.cells) if box.cells else None)

    async def start(self, name: str) -> None:
        box = self.boxes[name]
        await self.down(box)
        context = ControllerContext(self.store, clock=self.clock, names=self.store.names)
        agent = app.Product(self.store, [box.host(self.config(box))], [], context)
        try:
            await agent.start()
        except BaseException:
            await agent.runner.stop()
            raise
        box.agent = agent
        await self._cordon(name, on=False)
        await self.settle()

    async def down(self, box: Box) -> None:
        """The host's agent stops. Where an operator knows of it nothing new goes there."""
        if box.agent is not None:
            await box.agent.runner.stop()
            box.agent = None
            await self._cordon(box.name, on=True)

    async def _cordon(self, name: str, *, on: bool) -> None:
        await self.api.send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": on or None}})

    async def close(self) -> None:
        for box in self.boxes.values():
            if box.agent is not None:
                await box.agent.runner.stop()

    async def settle(self) -> None:
        """Until all controllers are idle."""
        before: list[int] = []
        running = [self.product, *(box.agent for box in self.boxes.values() if box.agent is not None)]
        while before != (before := [self.store.watch_cache(kind).revision for kind in kinds.ALL]):
            for each in running:
                await settle(lambda kind: self.store.watch_cache(kind).revision, each.context, [each.runner])

    async def restart(self, step: Mapping[str, Any]) -> None:
        box = self.boxes[step["host"]]
        if "device_spec" in step:
            box.spec = step["device_spec"]
        if "pci_devices" in step:
            box.pci, box.kernel = step["pci_devices"], MemoryFiles()
        box.switches = {**box.switches, **(step.get("config") or {})}
        await self.start(box.name)

    async def audit(self, name: str) -> None:
        agent = self.boxes[name].agent
        if agent is None:
            raise NotDriven(f"{name} is not running")
        await agent.host_audit.audit(name)
        await self.settle()

    async def reserve(self, provider: str, resource_class: str, count: int) -> None:
        """An operator types `outfit providers reserve`."""
        with contextlib.redirect_stdout(io.StringIO()):
            await cli_providers.reserve(InProcess(self.store), provider, count, resource_class=resource_class)
        await self.settle()

    async def why(self, server: str) -> list[str]:
        """What `outfit why --long` says of a server that a step created."""
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            await cli_why.why(InProcess(self.store), [f"vm/{self.machines[server]}"], long=True, how="text")
        return shown.getvalue().splitlines()

    # -- servers

    async def boot(self, servers: Sequence[str], flavor: Object, host: str | None, *, together: bool) -> None:
        """A user creates a Flavor and a VirtualMachine for each server; with `together` they are one group. BadRequest: the
        flavor is refused."""
        name = f"of-{_label(servers[0])}"
        answer = await self.api.create({"apiVersion": "outfitter.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": name},
                                        "spec": flavor})
        if not answer.ok:
            raise BadRequest("; ".join(message for _, message in answer.causes))
        group = {NAME: _label(servers[0]), MIN_AVAILABLE: str(len(servers))} if together else {}
        place = {"nodeSelector": {"kubernetes.io/hostname": host}} if host else {}
        for server in servers:
            label = _label(server)
            self.machines[server] = label if label not in self.machines.values() else f"{label}-{len(self.machines)}"
        answers = await asyncio.gather(*(self.api.create({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": self.machines[server], "namespace": NAMESPACE},
            "spec": {"runStrategy": "Once", "template": {"metadata": {"labels": group}, "spec": {
                "flavor": {"name": name}, "domain": {}, **place}}}}) for server in servers))
        if refused := next((answer for answer in answers if not answer.ok), None):
            raise NotDriven(f"a VirtualMachine was refused: {refused.body.get('message')}")
        await self._arrived(servers)
        await self.api.send("DELETE", f"/apis/outfitter.dev/v1alpha1/flavors/{name}")
        await self.settle()

    async def _arrived(self, servers: Sequence[str]) -> None:
        """Until each of them runs, has failed, or has waited for a host for more than a moment."""
        waited = dict.fromkeys(servers, 0)
        for seconds in LOOKS:
            await self.settle()
            moving = False
            for server in servers:
                vmi = await self.instance(server)
                phase = ((vmi or {}).get("status") or {}).get("phase")
                waited[server] = waited[server] + 1 if vmi is not None and await self._waits(vmi) else 0
                moving = moving or not (phase in ("Running", "Failed") or waited[server] > 2)
            if not moving:
                return
            self.clock.advance(seconds)

    async def _waits(self, vmi: Object) -> bool:
        """For a host, and with a reason."""
        return any((conditions.find(vmi, type_) or {}).get("status") == "False" for type_ in ("PodScheduled", "Synchronized"))

    async def instance(self, server: str) -> Object | None:
        """The VMI of a server that a step created."""
        path = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/{self.machines[server]}"
        answer = await self.api.send("GET", path)
        return answer.body if answer.ok else None

    async def delete(self, name: str) -> None:
        """A user deletes a server. One that ran before the first step is not the product's: its owner stops it and releases
        what Placement had for it."""
        if (vm := self.machines.pop(name, None)) is not None:
            await self.api.send("DELETE", f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines/{vm}")
        else:
            for box in self.boxes.values():
                await box.hypervisor.stop(uid_of(name))
                await book.release(self.store, box.name, uid_of(name))
        await self.settle()

    def match(self, step: Mapping[str, Any]) -> dict[str, int | None]:
        """Address -> the entry that takes it, over all hosts; Invalid."""
        matched: dict[str, int | None] = {}
        for box in self.boxes.values():
            switches = {**box.switches, **(step.get("config") or {})}
            changed = settings({**self.given, "alias": []}, step.get("device_spec", box.spec), switches)
            spec = changed.for_host(box.name).device_spec
            devices = scan.scan(box.tree()).devices
            taken = spec.match(devices) if spec is not None else {}
            matched |= {device.address: taken[device.address].index if device.address in taken else None for device in devices}
        return matched


def settings(
    given: Mapping[str, Any], spec: Any = ..., switches: Mapping[str, Any] | None = None, dedicated: int | None = None
) -> Config:
    """A configuration file with a case's aliases and switches and, for a host, its device_spec and its dedicated CPUs, which
    have the first numbers. Invalid."""
    return config.parse(settings_text(given, spec, switches, dedicated))


def settings_text(
    given: Mapping[str, Any], spec: Any = ..., switches: Mapping[str, Any] | None = None, dedicated: int | None = None
) -> str:
    switches = switches or {**SWITCHES, **(given.get("config") or {})}
    alias = given.get("alias") or []
    said = {"alias": _texts(alias if isinstance(alias, list) else [alias]), **{key: switches[key] for key in SWITCHES}}
    if spec is not ...:
        said["device_spec"] = _texts(spec) if isinstance(spec, list) else spec
    if dedicated is not None:
        said["cpu_dedicated_set"] = cpulist.text(range(dedicated))
    return yaml.safe_dump(said)


def _texts(values: Sequence[Any]) -> list[str]:
    """As JSON, so that what is no text stays none."""
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


@contextlib.asynccontextmanager
async def cloud(given: Mapping[str, Any]) -> AsyncIterator[Cloud]:
    clock = ManualClock(datetime.now(UTC))  # the command line has the clock of whoever types
    try:
        aliases = settings(given)
        AliasSet.of(aliases.default)
    except Invalid:
        aliases = config.DEFAULT  # whoever reads them finds the mistake
    async with app.embedded(clock=clock, names=IdGenerator(random.Random(1)), config=aliases) as product:
        made = Cloud(product, copy.deepcopy(given), clock)
        try:
            await made.load()
            await made.settle()
            yield made
        finally:
            await made.close()


def _label(server: str) -> str:
    """A name that objects may have."""
    return re.sub("[^a-z0-9]+", "-", server.lower()).strip("-")[:40] or "server"


def uid_of(name: str) -> str:
    return str(uuid.uuid5(_UUIDS, name))


def _hostdev(address: str) -> str:
    domain_, bus, slot, function = address.replace(".", ":").split(":")
    return ("<hostdev mode='subsystem' type='pci'><source>"
            f"<address domain='0x{domain_}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")


def tree(devices: Sequence[Mapping[str, Any]], numa: Sequence[Cell] = ()) -> MemoryTree:
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
            if own:  # else its VFs would go when it is taken from its driver
                entries |= {VFIO: None, f"{base}/driver": Link(VFIO)}
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
