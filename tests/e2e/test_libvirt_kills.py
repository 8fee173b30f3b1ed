"""kill -9 of `outfit up`, and of libvirtd in between, at seeded moments while VMs in libvirt are started, stopped,
restarted and recreated. Afterwards libvirt has exactly the domains that the API says run: none twice, no definition left over,
and every VM that ran, and that was not asked to stop, has the same QEMU."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.launcher import connection
from outfitter.store.kube import Kube
from tests.e2e.libvirt_hosts import qemus
from tests.e2e.process import Up
from tests.hardware import daemon
from tests.hardware.daemon import Daemon

pytestmark = [pytest.mark.libvirt, pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")]
PATIENCE = 300.0  # seconds to come to rest: QEMU is slow on a loaded host, and libvirt is asked again after up to 30
ACTS = ("start", "start", "stop", "restart", "anew")
STRATEGIES = ("Always", "Manual", "RerunOnFailure")
POLL = 0.1


@pytest.fixture
def libvirtd() -> Iterator[Daemon]:
    with daemon.own() as made:
        yield made


def manifest(name: str, strategy: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"runStrategy": strategy, "template": {"spec": {
        "terminationGracePeriodSeconds": 0, "domain": {"memory": {"guest": "32Mi"}, "devices": {}}}}}}


async def act(store: Kube, name: str, dice: random.Random) -> bool:
    """What a user does to a VM; whether it was accepted, or may have been."""
    what = dice.choice(ACTS)
    try:
        if what == "anew":
            with contextlib.suppress(errors.NotFound):
                await store.delete(kinds.VM, name, "default")
            with contextlib.suppress(errors.AlreadyExists):
                await store.create(kinds.VM, manifest(name, dice.choice(STRATEGIES)))
            return True
        place = f"/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/{name}/{what}"
        status, _, payload = await store.raw("PUT", place, body=b"{}")
    except errors.Unavailable:
        return True
    assert status in (202, 404, 409), payload
    return status == 202


@dataclass(frozen=True)
class Runs:
    uid: str
    qemu: int


@dataclass
class ObservedState:
    """What the API says and what the host has, read at about one moment."""

    machines: dict[str, Object]
    instances: dict[str, Object]
    pods: list[Object]
    domains: dict[str, tuple[str, bool]]  # name -> UUID, and whether it is active
    definitions: list[str]  # files of libvirtd
    processes: Counter[str]  # QEMUs that live, by the name of their VM

    @property
    def running(self) -> dict[str, str]:
        """Name of the domain -> uid, of the VMs that the API says run."""
        return {f"default_{name}": obj["metadata"]["uid"] for name, obj in self.instances.items()
                if (obj.get("status") or {}).get("phase") == "Running"}

    def unrest(self) -> str:
        """Why this is not yet the end of the scenario; empty when it is."""
        for name, vm in self.machines.items():
            status, instance = vm.get("status") or {}, self.instances.get(name)
            word, how = status.get("printableStatus"), vm_api.run_strategy(vm)
            if vm["metadata"].get("deletionTimestamp") or (instance or {"metadata": {}})["metadata"].get("deletionTimestamp"):
                return f"{name} is being deleted"
            if word not in ("Running", "Stopped") or status.get("stateChangeRequests"):
                return f"{name} is {word}, and has to do {status.get('stateChangeRequests')}"
            if (word == "Running") != (f"default_{name}" in self.running) or (how, word) in (
                    ("Always", "Stopped"), ("Halted", "Running")):
                return f"{name} is to be {how}, says {word}, and its instance is {(instance or {}).get('status')}"
        if strays := self.instances.keys() - self.machines.keys():
            return f"{strays} have no machine"
        unfinished = [name for name, obj in self.instances.items()
                      if (obj.get("status") or {}).get("phase") not in vm_api.FINAL]
        if len(self.pods) != len(unfinished):  # one that failed stays, with run strategy Manual, and has no pod
            return f"{len(self.pods)} pods for {unfinished}"
        if self.domains != {name: (uid, True) for name, uid in self.running.items()}:
            return f"libvirt has {self.domains}, and the API {self.running}"
        if self.definitions != sorted(self.running):
            return f"libvirt defines {self.definitions}, and the API says {sorted(self.running)}"
        if self.processes != Counter(self.running.keys()):
            return f"{self.processes} live, and the API says {sorted(self.running)}"
        return ""


def domains(uri: str) -> dict[str, tuple[str, bool]]:
    library = connection.library()
    conn: Any = library.open(uri)
    found = {}
    try:
        for dom in conn.listAllDomains(0):
            try:
                found[dom.name()] = dom.UUIDString(), bool(dom.isActive())
            except library.libvirtError as error:
                if error.get_error_code() != library.VIR_ERR_NO_DOMAIN:  # it went while we looked
                    raise
    finally:
        conn.close()
    return found


class KillScenario:
    def __init__(self, up: Up, libvirtd: Daemon, seed: int) -> None:
        self.up, self.libvirtd, self.dice = up, libvirtd, random.Random(seed)
        mark = uuid.uuid4().hex[:8]  # no other process on this host has VMs of these names
        self.names = [f"{color}-{mark}" for color in ("blue", "green", "red")]
        self.ran: dict[str, Runs] = {}  # when all was at rest, less those that were acted on since
        self.kills = 0
        self.removed = Counter[str]()  # domains that libvirt could not end

    async def look(self, store: Kube) -> ObservedState:
        machines, instances, pods = [(await store.list(kind)).items for kind in (kinds.VM, kinds.VMI, kinds.POD)]
        processes = qemus(self.names)
        assert all(number == 1 for number in processes.values()), f"a VM runs twice: {processes}"
        return ObservedState(
            {obj["metadata"]["name"]: obj for obj in machines}, {obj["metadata"]["name"]: obj for obj in instances}, pods,
            domains(self.libvirtd.uri), sorted(path.stem for path in (self.libvirtd.folder / "etc" / "qemu").glob("*.xml")),
            processes)

    async def rest(self) -> None:
        """Until all is at rest; then who ran and was let alone runs still."""
        end = time.monotonic() + PATIENCE
        async with self.up.store() as store:
            while why := (state := await self.look(store)).unrest():
                if time.monotonic() > end:
                    raise TimeoutError(f"not at rest within {PATIENCE:g} s: {why}\n{self.up.log()}")
                self.remove_unended(state)
                await asyncio.sleep(POLL)
        now = {name.removeprefix("default_"): Runs(uid, self.libvirtd.qemu(name)) for name, uid in state.running.items()}
        assert {name: now.get(name) for name in self.ran} == self.ran, "who ran runs no more, or again"
        self.ran = now

    def remove_unended(self, state: ObservedState) -> None:
        """libvirt cannot end a domain in whose start it was killed (docs/migration.md): do what the product reports."""
        log = self.up.log()
        for domain in state.domains.keys() - state.processes.keys():
            if log.count(connection.UNENDED.format(name=domain)) > self.removed[domain]:
                self.libvirtd.remove_unended(domain)
                self.removed[domain] = self.up.log().count(connection.UNENDED.format(name=domain))

    async def work(self) -> None:
        """Users do something, and at some moment of what follows from it whoever runs VMs is killed."""
        async with self.up.store() as store:
            for _ in range(self.dice.randint(1, 3)):
                name = self.dice.choice(self.names)
                if await act(store, name, self.dice):
                    self.ran.pop(name, None)
                await asyncio.sleep(self.dice.choice((0, 0, 0.1, 0.4)))
            await asyncio.sleep(self.dice.uniform(0, 0.5))
            with_libvirtd = self.dice.random() < 0.3
            if with_libvirtd:
                self.libvirtd.kill()
                await asyncio.sleep(self.dice.choice((0, 0, 0.3)))
            self.up.kill()
            self.kills += 1
        if with_libvirtd:
            self.libvirtd.start()

    async def tell(self, kills: int) -> None:
        async with self.up.store() as store:
            for name in self.names:
                await store.create(kinds.VM, manifest(name, "Always"))
        await self.rest()
        while self.kills < kills:
            await self.work()
            self.up.start()
            if self.dice.random() < 0.6:  # again, before it came to rest
                await asyncio.sleep(self.dice.uniform(0, 0.8))
                self.up.kill()
                self.kills += 1
                self.up.start()
            await self.rest()
        async with self.up.store() as store:
            for name in self.names:
                await store.delete(kinds.VM, name, "default")
        self.ran = {}
        await self.rest()


async def run_scenario(libvirtd: Daemon, folder: Path, kills: int, seed: int) -> None:
    up = Up(folder / "data", "--hypervisor", libvirtd.uri, simulate=None, patience=PATIENCE)
    with up:
        story = KillScenario(up, libvirtd, seed)
        try:
            await story.tell(kills)
        except BaseException as error:
            error.add_note(f"seed {seed}, after {story.kills} of {kills} kills; its log:\n{up.log()}")
            raise
        assert up.stop() == os.EX_OK


async def test_ten_kills(libvirtd: Daemon, tmp_path: Path) -> None:
    await run_scenario(libvirtd, tmp_path, 10, seed=1)


@pytest.mark.long(seeds=range(2, 3))
async def test_sixty_kills(libvirtd: Daemon, tmp_path: Path, seed: int) -> None:
    await run_scenario(libvirtd, tmp_path, 60, seed)
