"""So that the kill points can fail: with each of these mistakes in the product one of them does, and reports what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.controllers.embedded.claim_deallocation import ClaimDeallocation
from outfitter.controllers.vm_claims import VmClaims
from outfitter.errors import NotReady, StartupRefused
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.devices import vfio
from outfitter.node.devices.checkpoint import Checkpoint, Taken
from outfitter.node.devices.unprepare import unprepare
from outfitter.node.host_env import HostEnv
from outfitter.node.pods.own_pods import OwnPods
from outfitter.node.status_reporter import StatusReporter
from tests.node import test_kill_at_every_point, test_kills
from tests.node.kill_points import Kill, MortalMachines

Patch = pytest.MonkeyPatch
SEEDS = range(12)  # in one of these it is found


def never(where: type, method: str) -> Callable[[Patch], None]:
    """A step that is not done."""

    async def nothing(*_: object) -> None:
        pass

    return lambda patch: patch.setattr(where, method, nothing)


def blind_start(patch: Patch) -> None:
    start = Simulated.start

    async def again(self: Simulated, domain: Domain) -> None:
        self._domains.pop(domain.uid, None)
        await start(self, domain)

    patch.setattr(Simulated, "start", again)


def released_first(patch: Patch) -> None:
    """And without a check whether a VM still has it."""
    end = OwnPods.end

    async def backwards(self: OwnPods, host: AgentHost, pod: Object) -> float | None:
        for _, claim in pod_claims.claim_names(pod):
            await self._bookings.release(host, pod["metadata"]["namespace"], claim or "")
        return await end(self, host, pod)

    def whatever(host_env: HostEnv, uid: str, *, running: Collection[str] = ()) -> dict[str, str]:
        return unprepare(host_env, uid)

    patch.setattr(OwnPods, "end", backwards)
    patch.setattr("outfitter.node.claim_preparation.unprepare", whatever)


def unmarked_touch(patch: Patch) -> None:
    prepare = ClaimBookings.prepare

    async def late(self: ClaimBookings, host: AgentHost, claim: Object, results: Sequence[Mapping[str, str]]) -> set[str]:
        await self._preparation.prepare(host, claim, [one for one in results if one["pool"] == host.name])
        return await prepare(self, host, claim, results)

    patch.setattr(ClaimBookings, "prepare", late)


def unwritten(patch: Patch) -> None:
    def take(self: Checkpoint, taken: Iterable[Taken]) -> None:
        self.taken = (*self.taken, *taken)

    patch.setattr(Checkpoint, "take", take)


def looks_again(patch: Patch) -> None:
    """What is remembered of a device is how the second try found it."""
    take = Checkpoint.take

    def anew(self: Checkpoint, taken: Iterable[Taken]) -> None:
        new = list(taken)
        root = Stations.last.root
        fresh = [replace(one, functions=tuple(vfio.read_binding(root, before.address) for before in one.functions))
                 for one in new]
        self.taken = tuple(one for one in self.taken if one.uid not in {each.uid for each in new})
        take(self, fresh)

    class Stations:
        last: HostEnv

    run = HostEnv.run

    async def noted(self: HostEnv, work: Callable[[], object], places: Collection[str] = ()) -> object:
        Stations.last = self
        return await run(self, work, places)

    patch.setattr(HostEnv, "run", noted)
    patch.setattr(Checkpoint, "take", anew)


def page_first(patch: Patch) -> None:
    async def backwards(self: ClaimPreparation, host: AgentHost, uid: str) -> None:
        await book.set_state(self._store, host.name, uid, "released")
        await self._unprepare(host, uid)
        await self._forget(host, uid)

    patch.setattr(ClaimPreparation, "unprepare", backwards)


def forgets_first(patch: Patch) -> None:
    async def backwards(self: ClaimPreparation, host: AgentHost, uid: str) -> None:
        taken = host.env.checkpoint.of(uid) if host.env is not None else ()
        await self._forget(host, uid)
        assert host.env is not None
        for one in taken:
            for before in one.functions:
                vfio.restore(host.env.root, before)
        for name in [name for one in taken for name in one.files]:
            host.env.metadata.remove(name)
        host.env.cdi.remove(f"{host.driver}-claim_{uid}.json")
        await book.set_state(self._store, host.name, uid, "released")

    patch.setattr(ClaimPreparation, "unprepare", backwards)


def in_place(patch: Patch) -> None:
    def write(self: FolderFiles, name: str, text: str) -> None:
        (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_text(text)

    patch.setattr(FolderFiles, "write", write)


def end_forgotten_first(patch: Patch) -> None:
    def delete(self: Simulated, uid: str) -> None:
        domain = self._domains.pop(uid, None) or self._ended.pop(uid, (None, None))[0]
        if domain is not None:
            self._path(domain).with_suffix(".xml.ended").unlink(missing_ok=True)
            self._path(domain).unlink(missing_ok=True)

    patch.setattr(Simulated, "_delete", delete)


def nothing_adopted(patch: Patch) -> None:
    patch.setattr(Simulated, "_adopt", lambda self, path: None)


def reported_before_it_runs(patch: Patch) -> None:
    start = MortalMachines.start

    async def late(self: MortalMachines, domain: Domain) -> None:
        books = self._home.books
        [instance] = [obj for obj in books.all(kinds.VMI) if obj["metadata"]["uid"] == domain.uid]
        reporter = StatusReporter(self._home, clock=self._home.clock, events=_Silent())  # type: ignore[arg-type]
        await reporter.vmi_running(instance, "node-a", paused=None)
        await start(self, domain)

    patch.setattr(MortalMachines, "start", late)


class _Silent:
    async def normal(self, *_: object) -> None:
        pass


def kept_by_none(patch: Patch) -> None:
    never(ClaimDeallocation, "_kept")(patch)
    never(VmClaims, "_keep")(patch)


MISTAKES: dict[str, Callable[[Patch], None]] = {
    "a domain is started without a check whether it runs": blind_start,
    "domains of an earlier process are not adopted": nothing_adopted,
    "a VMI is reported as Running before it does": reported_before_it_runs,
    "devices are released before their domain is stopped": released_first,
    "a device is touched before its page reports it": unmarked_touch,
    "what is done to a device is not remembered": unwritten,
    "how a device was is looked at again": looks_again,
    "the booking is released before the device is restored": page_first,
    "the checkpoint forgets before the device is back": forgets_first,
    "files are written in place": in_place,
    "a stopped VM does not keep its claim": kept_by_none,
    "what runs without a pod is never looked for": never(OwnPods, "sweep"),
    "leftovers are never unprepared": never(ClaimPreparation, "unprepare_leftovers"),
}


async def stops(folder: Path) -> None:
    for number in range(1, 20):
        await test_kill_at_every_point.run_lifecycle(folder / str(number), Kill(number, "after", "stop"))


@pytest.mark.long
async def test_a_vm_that_runs_again_is_found(monkeypatch: Patch, tmp_path: Path) -> None:
    """The mark of a VM's end goes before the VM."""
    end_forgotten_first(monkeypatch)
    with pytest.raises(AssertionError, match="had ended and runs again"):
        await stops(tmp_path)


async def lives(folder: Path) -> None:
    for seed in SEEDS:
        await test_kills.run_lifecycle(folder / str(seed), seed)


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_is_found(name: str, monkeypatch: Patch, tmp_path: Path) -> None:
    MISTAKES[name](monkeypatch)
    with pytest.raises((AssertionError, NotReady, StartupRefused, TimeoutError, ValueError)) as found:
        await lives(tmp_path)
    print(f"{name}: {str(found.value).splitlines()[0]}")
