"""Parts of a product that can be killed at any point. A point is a write to the store, to a host's attributes or to a file, and
every start, stop and pause of a VM: the process dies just before or just after it, and what would come later never
happens. The invariants are looked at after every write. `vmi_lifecycle.py` builds a scenario of these parts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from outfitter.api import kinds, write_request
from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Domain
from outfitter.api.kubevirt import vm as vm_api
from outfitter.errors import HypervisorError
from outfitter.inventory import pci
from outfitter.launcher.simulated import Simulated
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import vfio
from outfitter.node.sysfs_root import Root
from outfitter.store.clock import ManualClock
from outfitter.store.transaction import Transaction
from tests.controllers import invariants, replicas
from tests.controllers.invariants import Books

T = TypeVar("T")
When = Literal["before", "after"]
# What the product is doing, by the innermost of these functions that it is in.
STEPS = {
    ("outfitter.controllers.scheduler", "reconcile"): "book",
    ("outfitter.node.pods.pod_preparation", "_prepare"): "prepare",
    ("outfitter.node.pods.own_pods", "_start"): "start",
    ("outfitter.node.pods.own_pods", "end"): "stop",
    ("outfitter.node.claim_bookings", "release"): "release",
    ("outfitter.node.pods.own_pods", "sweep"): "sweep",
    ("outfitter.node.nic_hotplug", "sync"): "plug",
    ("outfitter.node.nic_hotplug", "_unplug"): "unplug",
    ("outfitter.node.hotplug.device_hotplug", "sync"): "plug device",
    ("outfitter.node.hotplug.device_hotplug", "_unplug"): "unplug device",
    ("outfitter.controllers.migrations.migration", "reconcile"): "migrate",
    ("outfitter.node.pods.vmi_migrations", "run_target"): "arrive",
    ("outfitter.node.pods.vmi_migrations", "run_source"): "leave",
    ("outfitter.controllers.attachment_pods", "_sync"): "attachment",
    ("outfitter.controllers.embedded.claim_deallocation", "_free"): "free",
    ("outfitter.controllers.vmi", "_relaunch"): "relaunch",
}


class Dead(BaseException):
    """The process is gone: no handler runs."""


def step() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        found = STEPS.get((frame.f_globals["__name__"], frame.f_code.co_name))
        if found is not None:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"


@dataclass
class Kill:
    """At the so-manieth point of a step from now on, or of all."""

    number: int
    when: When
    step: str = ""

    def reached(self, doing: str) -> bool:
        if self.number > 0 and self.step in ("", doing):
            self.number -= 1
            return self.number == 0
        return False


class Deaths:
    """Counts the points at which the product can die, and lets it die at one of them."""

    def __init__(self) -> None:
        self.points = 0
        self.plan: Kill | None = None
        self.then: Kill | None = None  # the plan after the next death
        self.dead = asyncio.Event()
        self.ours = False  # the test writes, not the product
        self.places: list[str] = []  # the step in which each death was, and at what

    @contextlib.contextmanager
    def point(self, what: str) -> Iterator[None]:
        if self.ours:
            yield
            return
        if self.dead.is_set():
            raise Dead
        self.points += 1
        doing = step() if self.plan is not None else ""
        when = self.plan.when if self.plan is not None and self.plan.reached(doing) else None
        if when == "before":
            self._die(doing, f"before {what}")
        try:
            yield
        finally:  # what was refused counts as well
            if when == "after":
                self._die(doing, f"after {what}")

    def _die(self, doing: str, where: str) -> None:
        self.plan, self.then = self.then, None
        self.places.append(f"{doing}: {where}")
        self.dead.set()
        raise Dead

    @contextlib.contextmanager
    def as_user(self) -> Iterator[None]:
        """Nothing in here waits, so there is no other write meanwhile."""
        before, self.ours = self.ours, True
        try:
            yield
        finally:
            self.ours = before


class MortalPath(type(Path())):  # type: ignore[misc]  # which class a path is depends on the system
    """A path whose files are written by a process that may be killed."""

    deaths: Deaths

    def open(self, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax"):
            with self.deaths.point(f"making {self.name}"):
                super().open(mode, *args, **options).close()  # there, and empty
        return super().open(mode, *args, **options)

    def replace(self, target: Any) -> Any:
        with self.deaths.point(f"putting {self.name} in place"):
            return super().replace(target)

    def unlink(self, missing_ok: bool = False) -> None:
        with self.deaths.point(f"removing {self.name}"):
            super().unlink(missing_ok)


class MortalHome(replicas.SharedBackend):
    def __init__(self, clock: ManualClock, books: Books, seed: int, deaths: Deaths) -> None:
        super().__init__(clock, books, seed)
        self.deaths = deaths
        self.hosts: list[AgentHost] = []
        self.first: dict[tuple[str, str], str | None] = {}  # (host, address) -> the driver that it had at first
        self.resets: list[str] = []  # instances whose reset button was pressed, by whichever process
        self.over: set[str] = set()  # instances whose guests ended by themselves
        self.refusing: Counter[str] = Counter()  # host -> starts that its hypervisor still refuses
        self.in_use: defaultdict[str, float] = defaultdict(float)  # host -> until when, monotonic, its functions are in use
        self.refused: list[str] = []  # what either of these kept from happening
        self.owned: dict[str, list[DeviceId]] = {}  # claim of a VM's own -> what it has, for as long as the VM is

    async def write(
        self, work: Callable[[Transaction], T], *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES
    ) -> T:
        with self.deaths.point("a write to the store"):
            return await super().write(work, dry_run=dry_run, by=by)

    def look(self) -> None:
        super().look()
        self.note(self.drivers())
        self.note(self.moved())
        for host in self.hosts:
            if isinstance(host.hypervisor, MortalMachines):
                self.note(host.hypervisor.without_taps())

    def moved(self) -> Iterator[str]:
        """What a VM has by a claim of its own, running or stopped, stays its own."""
        for claim in self.books.all(kinds.RESOURCE_CLAIM):
            owner, uid = vm_api.owner(claim, kinds.VM.kind), claim["metadata"]["uid"]
            vm = self.books.objects[kinds.VM].get(("here", owner["name"])) if owner is not None else None
            if vm is None or vm["metadata"].get("deletionTimestamp") or claim["metadata"].get("deletionTimestamp"):
                continue
            have = invariants.results(claim)
            if have != self.owned.setdefault(uid, have) and self.owned[uid]:
                yield f"{vm['metadata']['name']} had {self.owned[uid]} by a claim of its own, which now has {have}"
            self.owned[uid] = have

    def drivers(self) -> Iterator[str]:
        """What a VM has is with the driver that passes it through, and what is not with its own is prepared."""
        ready = {(booking.device.pool, booking.device.device) for booking in self.books.bookings if booking.state == "prepared"}
        used = {(host, address) for host, domains in self.books.domains.items() for one in domains for address in one.devices}
        roots = {host.name: host.env.root for host in self.hosts if host.env is not None}
        for (host, address), own in self.first.items():
            now = vfio.driver(roots[host], address)
            if (host, address) in used and not pci.is_vfio_driver(now):
                yield f"a machine on {host} has {address}, which is with {now}"
            if now != own and (host, self.books.names[host, address]) not in ready:
                yield f"{address} of {host} is with {now}, not with {own}, and nobody has it prepared"


class MortalMachines(Simulated):
    """The hypervisor of one host. Its client may be killed before and after each call, and at each of its files. It notes
    when a VM is ended without a request to end it."""

    def __init__(self, folder: Path, backend: MortalHome, ignoring_shutdown: set[str]) -> None:
        super().__init__(folder, monotonic=backend.clock.monotonic)
        self._home, self.ignoring_shutdown, self._host = backend, ignoring_shutdown, folder.name
        backend.broken += [f"{self._domains[uid].name} had ended and runs again" for uid in self._domains.keys() & backend.over]

    @property
    def running(self) -> dict[str, Domain]:
        return self._domains

    def incarnation(self, uid: str) -> tuple[int, int]:
        """What a VM does not keep when it is started again, as a process does not keep its number."""
        found = os.stat(self._path(self._domains[uid]))
        return found.st_ino, found.st_mtime_ns

    def files(self) -> Iterator[str]:
        """Of what runs, and of what ended and was not put away."""
        for domain in self._domains.values():
            yield from (self._path(domain).name, *([f"{self._path(domain).name}.paused"] if domain.paused else []))
            yield from (path.name for path in self._taps_of(domain))
        for domain, _ in self._ended.values():
            yield from (self._path(domain).name, f"{self._path(domain).name}.ended")

    async def start(self, domain: Domain) -> None:
        await asyncio.sleep(0)  # a real one takes its time
        before = self.incarnation(domain.uid) if domain.uid in self._domains else None
        with self._home.deaths.point(f"the start of {domain.name}"):
            if self._home.refusing[self._host] and before is None:
                self._home.refusing[self._host] -= 1
                self._home.refused.append(domain.uid)
                raise HypervisorError(f"{self._host} has no memory for {domain.name}")
            await super().start(domain)
        if before not in (None, self.incarnation(domain.uid)):
            self._home.broken.append(f"{domain.name} was started and ran already")
        self._home.over.discard(domain.uid)
        self._home.look()

    def simulate_end(self, uid: str, reason: str, *, failed: bool = True) -> None:
        super().simulate_end(uid, reason, failed=failed)
        self._home.over.add(uid)

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        await asyncio.sleep(0)
        if uid in self._domains and wanted(self._home.books, uid):
            self._home.broken.append(f"{self._domains[uid].name} was stopped and nobody asked for it")
        with self._home.deaths.point(f"the stop of {uid}"):
            return await super().stop(uid, grace)

    async def pause(self, uid: str) -> None:
        with self._home.deaths.point(f"the pause of {uid}"):
            await super().pause(uid)

    async def unpause(self, uid: str) -> None:
        with self._home.deaths.point(f"the end of the pause of {uid}"):
            await super().unpause(uid)

    async def attach_device(self, uid: str, element: str) -> None:
        with self._home.deaths.point(f"the plug of a device into {uid}"):
            await super().attach_device(uid, element)
        self._home.look()

    async def detach_device(self, uid: str, alias: str) -> float | None:
        with self._home.deaths.point(f"the unplug of {alias} from {uid}"):
            return await super().detach_device(uid, alias)

    async def set_link(self, uid: str, alias: str, *, up: bool) -> None:
        with self._home.deaths.point(f"the link of {alias} of {uid}"):
            await super().set_link(uid, alias, up=up)

    async def set_bridge(self, uid: str, alias: str, bridge: str) -> None:
        with self._home.deaths.point(f"the bridge of {alias} of {uid}"):
            await super().set_bridge(uid, alias, bridge)

    def without_taps(self) -> Iterator[str]:
        """NICs on a bridge whose tap is not there."""
        for domain in self._domains.values():
            for path, bridge in self._taps_of(domain).items():
                if not path.exists() or path.read_text() != bridge:
                    yield f"{domain.name} has a NIC on {bridge} without its tap {path.name}"

    async def reset(self, uid: str) -> None:
        with self._home.deaths.point(f"the reset of {uid}"):
            await super().reset(uid)
            self._home.resets.append(uid)


def wanted(books: Books, uid: str) -> bool:
    """Whether an instance runs, as its status reports, and is to go on."""
    for obj in books.all(kinds.VMI):
        if obj["metadata"]["uid"] == uid and obj["status"].get("phase") == "Running":
            pods = [pod for pod in books.all(kinds.POD) if (vm_api.owner(pod, kinds.VMI.kind) or {}).get("uid") == uid
                    and not pod["metadata"].get("deletionTimestamp") and pod["status"]["phase"] == "Running"]
            return bool(pods) and not obj["metadata"].get("deletionTimestamp")
    return False


class WatchedRoot:
    """A host's root. What a VM has is not to be written to."""

    def __init__(self, host: AgentHost, root: Root, backend: MortalHome) -> None:
        self._host, self._root, self._home = host.name, root, backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._root, name)

    def write(self, path: str, text: str) -> None:
        with self._home.deaths.point(f"writing {text.strip()!r} to {path}"):
            for domain in self._home.books.domains[self._host]:
                for address in {other for source in domain.devices for other in self._together(source)}:
                    if address in path or address == text.strip():
                        self._home.broken.append(f"{path} was written while {domain.name} has {address}")
            in_use = self._home.clock.monotonic() < self._home.in_use[self._host]
            if in_use and path.endswith("/driver_override") and text.strip():
                self._home.refused.append(path)
                raise OSError(errno.EBUSY, "Device or resource busy")
            self._root.write(path, text)

    def _together(self, address: str) -> list[str]:
        number = vfio.group(self._root, f"{vfio.DEVICES}/{address}")
        return [address, *self._root.names(f"/sys/kernel/iommu_groups/{number}/devices")]
