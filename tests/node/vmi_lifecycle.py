"""A scenario that outlives its product: the store, and the folder with the files of its hosts. Whenever the product dies it is
started again on what it left, wired as `outfit up` wires it. When all controllers are idle, all books are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.inventory import config, scan
from outfitter.inventory.simulation import hosts_file
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import vfio
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.store.clock import ManualClock, rfc3339
from tests.controllers import invariants
from tests.controllers.invariants import Books
from tests.controllers.scenario import Scene
from tests.node.kill_points import Deaths, Kill, MortalHome, MortalMachines, MortalPath, WatchedRoot, When, wanted

# Each host has a card of two functions in one group, a disk, and by turns a disk without a driver or a card that the operator
# bound to vfio-pci.
HOSTS = """
publisher: node.example.com
hosts:
- name: node-a
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 7}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 7}
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}
- name: node-b
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 7}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 7}
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:68:00.0, vendor: 10de, product: 20b0, class: 030200}
"""
DEVICES = 6
CLASS, RESOURCE = "pci", "example.com/card"  # all of them, by the name of a class and by that of a resource
CONFIG = config.parse("device_spec: [{vendor_id: 10de}, {vendor_id: 144d}]")
QUIET = (0.01, 1, 2, 8, 31, 61, 301)  # seconds; who has not moved after all of these will not
ENOUGH = 3000  # writes after which those who still move will go on for ever


@dataclass(frozen=True)
class Ran:
    """A VM at the moment of a death."""

    name: str
    devices: tuple[str, ...]
    incarnation: tuple[int, int]


class LifecycleScenario(Scene):
    """Hosts, a store, and a product that is started again whenever it dies."""

    hosts_text, config, device_count = HOSTS, CONFIG, DEVICES
    home: MortalHome
    clock: ManualClock
    folder: Path
    deaths: Deaths
    ignoring_shutdown: set[str]  # instances whose guests do not listen
    while_dead: Callable[[], Awaitable[None]] | None = None  # what users do before it is started again
    ran: dict[str, Ran]  # at the last death: instance -> what ran and was to go on

    @classmethod
    async def begin(cls, folder: Path, *, seed: int = 1, kill: Kill | None = None) -> LifecycleScenario:
        clock, deaths = ManualClock(), Deaths()
        books = Books()
        home = MortalHome(clock, books, seed, deaths)
        lifecycle = cls(app.Embedded(home, [], clock=clock), "here", clock)
        lifecycle.home, lifecycle.deaths, lifecycle.ignoring_shutdown, lifecycle.ran = home, deaths, set(), {}
        lifecycle.folder = type("Paths", (MortalPath,), {"deaths": deaths})(folder)
        with deaths.as_user():
            lifecycle.plug_in()
            home.first = {(host.name, one.address): one.driver for host in home.hosts for one in scan.scan(host.tree()).devices}
            await home.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
            await lifecycle.create(kinds.DEVICE_CLASS, CLASS, {"extendedResourceName": RESOURCE, "selectors": [
                {"cel": {"expression": 'device.driver == "node.example.com"'}}]})
            await lifecycle.create(kinds.RESOURCE_CLAIM_TEMPLATE, "one", {"spec": lifecycle.claim_spec()})
        deaths.plan = kill
        await lifecycle.live(lifecycle.product.start())
        return lifecycle

    def claim_spec(self, *requests: str, **exactly: Any) -> Object:
        return {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": CLASS}}]}}

    # -- users

    def request_spec(self, how: str, grace: int = 0, kind: str = "hostDevices") -> Object:
        """Most of a VM's spec, with one device: by a claim that is made for each of its pods ("template"), by a claim of
        its own ("own"), or by the name of a resource ("resource")."""
        device: Object = {"name": "card", "claimName": "cards", "requestName": "card"}
        if how == "resource":
            device = {"name": "card", "deviceName": RESOURCE}
        domain = {"memory": {"guest": "1Gi"}, "devices": {kind: [device]}}
        claims = {"resourceClaims": [{"name": "cards", "resourceClaimTemplateName": "one"}]} if how == "template" else {}
        own = {"resourceClaimTemplates": [{"name": "cards", "spec": {"spec": self.claim_spec()}}]} if how == "own" else {}
        return {**own, "template": {"spec": {"terminationGracePeriodSeconds": grace, "domain": domain, **claims}}}

    async def ask(self, action: vm_actions.Action, name: str) -> None:
        """As the API server does it for start, stop and restart. Conflict: it is not in a state for it."""
        vm, instance = await self.store.get(kinds.VM, name, "here"), await self.find(kinds.VMI, name)
        for change in vm_actions.requested_changes(action, vm, instance):
            await self.store.patch(change.kind, name, change.patch, "here", subresource=change.subresource)
        self.home.books.asked[vm["metadata"]["uid"]] = action

    async def nudge(self, action: vmi_actions.Action, name: str) -> None:
        """As the API server does it for what is asked of a VM that runs. Conflict: it is not in a state for it."""
        wanted = vmi_actions.with_action_request(
            action, await self.store.get(kinds.VMI, name, "here"), rfc3339(self.clock.now())
        )
        await self.store.patch(kinds.VMI, name, {"status": {vmi_actions.FIELD: wanted}}, "here", subresource="status")

    # -- dying

    def plug_in(self) -> None:
        """As a new process finds its hosts: what the last one kept in memory is gone."""
        hosts = []
        for made in app.simulated_hosts(hosts_file.parse(self.hosts_text).hosts, self.folder, self.config):
            machines = MortalMachines(self.folder / "domains" / made.name, self.home, self.ignoring_shutdown)
            host = replace(made, hypervisor=machines)
            assert host.env is not None
            host.env.root = WatchedRoot(host, host.env.root, self.home)
            hosts.append(host)
        self.home.hosts = hosts
        books = self.home.books
        books.names = {(host.name, address): name for host in hosts for address, name in _names(host).items()}
        books.domains = {host.name: machines.running.values() for host, machines in self.hypervisors()}
        books.served = [host.name for host in hosts]
        self.product = app.Embedded(self.home, hosts, clock=self.clock, config=self.config,
                                    aliases=AliasSet.of(self.config.default))

    def hypervisors(self) -> Iterator[tuple[AgentHost, MortalMachines]]:
        for host in self.home.hosts:
            assert isinstance(host.hypervisor, MortalMachines)
            yield host, host.hypervisor

    async def live(self, work: Awaitable[None]) -> None:
        """Until the work is done or the product dies; then it is started again."""
        doing, dying = asyncio.ensure_future(work), asyncio.ensure_future(self.deaths.dead.wait())
        await asyncio.wait({doing, dying}, return_when=asyncio.FIRST_COMPLETED)
        dead = self.deaths.dead.is_set()
        for task in (doing, dying):
            task.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        [outcome] = await asyncio.gather(doing, return_exceptions=True)
        if dead:
            await self.revive()
        elif isinstance(outcome, BaseException):
            raise outcome

    async def revive(self) -> None:
        await self.product.runner.stop()  # what it still does on its way out reaches nothing
        self.ran = {**self.ran, **dict(self._running())}
        self.deaths.dead = asyncio.Event()
        with self.deaths.as_user():
            if self.while_dead is not None:
                await self.while_dead()
                self.release_from_running()
            self.plug_in()
        self.home.look()
        await self.live(self.product.start())

    def _running(self) -> Iterator[tuple[str, Ran]]:
        for _, machines in self.hypervisors():
            for uid, domain in machines.running.items():
                if wanted(self.home.books, uid) and not self._asked_to_stop(uid):
                    yield uid, Ran(domain.name, domain.devices, machines.incarnation(uid))

    def _asked_to_stop(self, uid: str) -> bool:
        """By the VM of which it is an instance, or by that having gone."""
        instance = next(obj for obj in self.home.books.all(kinds.VMI) if obj["metadata"]["uid"] == uid)
        vm = self.home.books.objects[kinds.VM].get(("here", instance["metadata"]["name"]))
        if vm is None or (vm_api.owner(instance, kinds.VM.kind) or {}).get("uid") != vm["metadata"]["uid"]:
            return True
        requests = (vm.get("status") or {}).get("stateChangeRequests") or ()
        return bool(vm["metadata"].get("deletionTimestamp") or vm_api.run_strategy(vm) == "Halted"
                    or any(request["action"] == "Stop" for request in requests))

    def release_from_running(self) -> None:
        """Who was asked to stop since the death, or ended by itself, need not run any more."""
        self.ran = {uid: ran for uid, ran in self.ran.items() if uid not in self.home.over
                    and wanted(self.home.books, uid) and not self._asked_to_stop(uid)}

    # -- time

    async def settle(self) -> None:
        assert isinstance(self.product, app.Embedded)
        await self.live(self.product.settle())

    async def rest(self) -> None:
        """Until nothing moves any more, however long one waits; then all books must agree."""
        quiet, most = 0, self.home.steps + ENOUGH
        while quiet < len(QUIET):
            before = self.home.steps
            self.clock.advance(QUIET[quiet])
            await self.settle()
            quiet = quiet + 1 if self.home.steps == before else 0
            assert self.home.steps < most, f"{ENOUGH} writes, and no rest\n{await self.picture()}"
        self.home.look()
        await self.agree()
        self.ran = {}

    # -- what must be true at rest

    async def agree(self) -> None:
        found = [*self.home.broken, *invariants.rest(self.home.books), *self.unlike()]
        assert not found, "\n".join([*found, *self.deaths.places[-3:], await self.picture()])

    def unlike(self) -> Iterator[str]:
        yield from self._hosts()
        yield from self._still_run()
        yield from self._waiting_pods()
        yield from self._places()

    def _still_run(self) -> Iterator[str]:
        for uid, before in self.ran.items():
            for _, machines in self.hypervisors():
                if uid in machines.running:
                    now = Ran(machines.running[uid].name, machines.running[uid].devices, machines.incarnation(uid))
                    if now != before:
                        yield f"{before.name} ran as {before} and now as {now}"
                    break
            else:
                yield f"{before.name} ran before the death and does not any more"

    def _hosts(self) -> Iterator[str]:
        """Page, checkpoint, files, drivers and VMs of each host tell the same."""
        for host, machines in self.hypervisors():
            assert host.env is not None
            prepared = sorted((one.holder.uid, one.device.device) for one in self.home.books.bookings
                              if one.state == "prepared" and one.device.pool == host.name)
            taken = host.env.checkpoint.taken
            handed = {before.address for one in taken for before in one.functions}
            used = sorted((self.home.books.names[host.name, address], one.name)
                          for one in machines.running.values() for address in one.devices)
            first = {address: own for (name, address), own in self.home.first.items() if name == host.name}
            drivers = {address: vfio.driver(host.env.root, address) for address in first}
            proper = {address: "vfio-pci" if address in handed else own for address, own in first.items()}
            files = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
            uids = sorted({one.uid for one in taken})
            for what, one, other in (
                ("bookings and the checkpoint", prepared, sorted((one.uid, one.device) for one in taken)),
                ("bookings and machines", sorted({device for _, device in prepared}), sorted({device for device, _ in used})),
                ("drivers and the checkpoint", drivers, proper),
                ("files for runtimes", host.env.cdi.names(), sorted(f"{host.driver}-claim_{uid}.json" for uid in uids)),
                ("files for launchers", sorted({name.partition("/")[0] for name in host.env.metadata.names()}), uids),
                ("machines and their files", sorted(path.name for path in (self.folder / "domains" / host.name).glob("*")),
                 sorted(machines.files())),
                ("half-written files", [name for name in files if name.endswith(".new")], []),
            ):
                if one != other:
                    yield f"{host.name}: {what} differ: {one} and {other}"
            page = next((page for page in self.home.books.pages if page.host == host.name), None)
            if page is not None and page.quarantined:
                yield f"{host.name}: {page.quarantined} are quarantined"

    def _waiting_pods(self) -> Iterator[str]:
        """No VMI waits for a device while one is free."""
        waiting = [pod["metadata"]["name"] for pod in self.home.books.all(kinds.POD) if not pod["spec"].get("nodeName")]
        if waiting and len(self.home.books.bookings) < self.device_count:
            yield f"{waiting} wait, and only {len(self.home.books.bookings)} of {self.device_count} devices are taken"

    def _places(self) -> Iterator[str]:
        """VMs say how they are."""
        for vm in self.home.books.all(kinds.VM):
            name, said = vm["metadata"]["name"], (vm.get("status") or {}).get("printableStatus")
            instance = self.home.books.objects[kinds.VMI].get(("here", name))
            phase = (instance or {}).get("status", {}).get("phase")
            runs = any(one.name == f"here_{name}" for domains in self.home.books.domains.values() for one in domains)
            if (said in ("Running", "Paused"), phase == "Running") != (runs, runs):
                yield f"{name} says {said}, its instance {phase}, and it {'runs' if runs else 'does not run'}"
            still = any(one.paused for domains in self.home.books.domains.values() for one in domains
                        if one.name == f"here_{name}")
            if (said == "Paused") != still:
                yield f"{name} says {said}, and its processors {'stand still' if still else 'do not stand still'}"
            if vm["spec"].get("runStrategy") == "Halted" and instance is not None:
                yield f"{name} is halted, and its instance is {phase}"
            if vm["spec"].get("runStrategy") == "Always" and phase not in ("Running", "Pending", "Scheduling"):
                yield f"{name} is to run always, and its instance is {phase}"

    async def end(self) -> None:
        await self.empty()
        await self.agree()
        assert not list((self.folder / "hosts").rglob("kernel.json")), "a host is not as it was"
        with self.deaths.as_user():
            await self.product.stop()


def _names(host: AgentHost) -> dict[str, str]:
    """Under which name each function is offered: that of the first of those that travel together."""
    first: dict[int | str, str] = {}
    return {device.address: first.setdefault(device.address if device.iommu_group is None else device.iommu_group, device.name)
            for device in sorted(scan.scan(host.tree()).devices, key=lambda device: device.address)}


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def every_point(
    run_lifecycle: Callable[[Path, Kill | None], Awaitable[LifecycleScenario]], folder: Path, when: When, *, first: int,
    stride: int, at_least: int,
) -> None:
    """A life again and again, killed at another point each time; `at_least` so many points there are in it."""
    points = (await run_lifecycle(folder / "0", None)).deaths.points
    assert points >= at_least
    for number in range(first, points + 1, stride):
        try:
            lifecycle = await run_lifecycle(folder / str(number), Kill(number, when))
        except AssertionError as error:
            error.add_note(f"killed {when} point {number} of {points}")
            raise
        assert len(lifecycle.deaths.places) == 1, f"point {number} of {points} was never reached"
