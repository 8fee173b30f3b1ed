"""Users, operators and hosts do what they like, several products run on one store and die between any two writes, and the
invariants hold: after every single write, and when all controllers are idle. Then the same with a mistake in the product, which
must be found."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, TypeVar

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.api.ledger_page.page import Page, pool_page
from outfitter.api.validate import pages
from outfitter.controllers.embedded import claim_deallocation, pod_claims
from outfitter.controllers.embedded.claim_deallocation import ClaimDeallocation
from outfitter.controllers.manager import enqueue_on_change
from outfitter.ledger import book, out_of_service
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.pods.own_pods import OwnPods
from outfitter.scheduling.dra import device_index
from outfitter.store.informer import Informer
from outfitter.store.transaction import Transaction
from outfitter.store.watch_cache import Record
from tests import hypothesis_profiles
from tests.controllers import replicas
from tests.controllers.replicas import DRIVER, HOSTS, MOST, PF, RACK, ReplicaScenario

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
ALIVE = 3  # products at the same time
KINDS = {"machines": kinds.VMI, "pods": kinds.POD}
NAMES = {"machines": ["blue", "green", "red", "grey", "white"], "pods": ["one", "two", "three", "four", "five"]}
SPECS = {"machines": replicas.machine_spec, "pods": replicas.pod_spec}
KIND, HOST, WHICH = st.sampled_from(sorted(NAMES)), st.sampled_from(sorted(HOSTS)), st.integers(0, ALIVE - 1)
CLAIMS = ["claim-a", "claim-b"]
VMS = ["amber", "coral"]
VM, STRATEGY = st.sampled_from(VMS), st.sampled_from(["Always", "Manual", "Halted"])
CLASS, COUNT = st.sampled_from(["vf", "vf", "twin", "pf"]), st.sampled_from([1, 1, 1, 2, 3])
SOURCE = st.sampled_from(["vf-1", "vf-1", "vf-1", "vf-2", "vf-3", "pf-1", "twin-1", "twin-1", "twin-2", *CLAIMS, *CLAIMS])
# Devices that every host reaches, for pods; a VM could not use one of these.
ANY = st.one_of(SOURCE, st.sampled_from(["rack-1", "rack-1", "rack-2", "claim-c"]))
SOME = st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True)
DEVICE = st.sampled_from([f"{PF}-vf0", f"{PF}-vf1", *(f"{PF}-vf{number}" for number in range(MOST)), PF])
MARK = {"reserve": out_of_service.reserve, "quarantine": out_of_service.quarantine}
UNMARK = {"unreserve": out_of_service.unreserve, "restore": out_of_service.restore}
EDIT = st.sampled_from(["remove", "remove", "empty", "booked", "prepared", "released", "hardware", "second", "second prepared",
                        "delete"])
TURNS = st.sampled_from([0, 0, 3, 10, 30, 60, 100, 300])  # that the products get after what happened


class Machine(stateful.RuleBasedStateMachine):
    """What may happen. Nothing moves but while a rule runs, so that every rule falls between any two steps of the products."""

    traces: list[str]  # of each example; a list for each run

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.failed = False

    def do(self, work: Coroutine[Any, Any, object], turns: int = 0) -> None:
        async def both() -> None:
            await work
            await self.scenario.work(turns)

        try:
            self.runner.run(both())
        except BaseException:
            self.failed = True
            raise

    @stateful.initialize(seed=st.integers(0, 2**32 - 1), products=st.integers(1, ALIVE), early=st.booleans(),
                         machines=SOURCE, pods=ANY, told=st.booleans())
    def begin(self, *, seed: int, products: int, early: bool, machines: str, pods: str, told: bool) -> None:
        """Some products, and more that asks for devices than there are."""
        async def begin() -> None:
            self.scenario = ReplicaScenario(seed, told=told)
            await self.scenario.begin()
            for name, kind in zip([*CLAIMS, "claim-c"], ("vf", "pf", "rack"), strict=True):
                await self.scenario.create(kinds.RESOURCE_CLAIM, name, replicas.claim_spec(kind, 1))
            for _ in range(products - 1):
                self.scenario.start()
            for kind, source in (("machines", machines), ("pods", pods)):
                for name in NAMES[kind][:3]:
                    await self.scenario.create(KINDS[kind], name, SPECS[kind](source))
            if not early:
                await self.scenario.rest()

        self.do(begin())

    # -- users

    @stateful.rule(kind=KIND, some=SOME, source=SOURCE, other=ANY, turns=TURNS)
    def make(self, kind: str, some: list[int], source: str, other: str, turns: int) -> None:
        """VMs or pods, as many at once as there are devices or more."""
        source = other if kind == "pods" else source

        async def make() -> None:
            for number in some:
                await self.scenario.create(KINDS[kind], NAMES[kind][number], SPECS[kind](source))

        self.do(make(), turns)

    @stateful.rule(kind=KIND, some=SOME, grace=st.sampled_from([None, 0]), turns=TURNS)
    def end(self, kind: str, some: list[int], grace: int | None, turns: int) -> None:
        """VMs or pods are deleted; without grace the pods of VMs are, behind their back."""
        async def end() -> None:
            for name in [NAMES[kind][number] for number in some]:
                if kind == "pods" or grace is None:
                    await self.scenario.delete(KINDS[kind], name, grace)
                else:
                    for pod in self.scenario.pods_of(name):
                        await self.scenario.delete(kinds.POD, pod, grace)

        self.do(end(), turns)

    @stateful.rule(name=st.sampled_from(CLAIMS), kind=CLASS, count=COUNT, turns=TURNS)
    def claim(self, name: str, kind: str, count: int, turns: int) -> None:
        """A claim is made, or deleted when it is there."""
        there = ("here", name) in self.scenario.books.objects[kinds.RESOURCE_CLAIM]
        self.do(self.scenario.delete(kinds.RESOURCE_CLAIM, name) if there
                else self.scenario.create(kinds.RESOURCE_CLAIM, name, replicas.claim_spec(kind, count)), turns)

    # -- operators and hosts

    @stateful.rule(host=HOST, device=st.one_of(DEVICE, st.sampled_from(["x0", "x1"])), turns=TURNS,
                   how=st.sampled_from([*MARK, *UNMARK, *UNMARK]))
    def mark(self, host: str, device: str, how: str, turns: int) -> None:
        """Of a host, or of the rack."""
        name = DeviceId(DRIVER, host, device) if device not in ("x0", "x1") else DeviceId(RACK, "rack", device)
        page = host if name.driver == DRIVER else pool_page(name.driver, name.pool)
        self.do(MARK[how](self.scenario.backend, page, name, by="admin") if how in MARK
                else UNMARK[how](self.scenario.backend, page, name), turns)

    @stateful.rule(which=WHICH, reads=st.integers(1, 12), host=HOST, device=DEVICE, turns=TURNS)
    def snatch(self, which: int, reads: int, host: str, device: str, turns: int) -> None:
        """A device is reserved right after one of the next things that a product reads, while it makes up its mind."""
        for life in self.scenario.lives[which:which + 1]:
            life.client.trap = (
                reads,
                lambda: out_of_service.reserve(self.scenario.backend, host, DeviceId(DRIVER, host, device), by="admin"),
            )
        self.do(_now(lambda: None), turns)

    @stateful.rule(host=HOST, yes=st.sampled_from([True, False, False]), turns=TURNS)
    def cordon(self, host: str, yes: bool, turns: int) -> None:
        self.do(self.scenario.cordon(host, yes), turns)

    @stateful.rule(host=HOST, told=st.booleans(), turns=TURNS)
    def tell(self, host: str, told: bool, turns: int) -> None:
        """Another driver, which publishes functions of the host too, reports which these are, or does not any more."""
        self.do(self.scenario.tell(host, told), turns)

    @stateful.rule(host=HOST, vfs=st.integers(0, MOST), turns=TURNS)
    def plug(self, host: str, vfs: int, turns: int) -> None:
        self.do(_now(lambda: self.scenario.plug(host, vfs)), turns)

    @stateful.rule(hosts=st.lists(HOST, min_size=1, unique=True), turns=TURNS)
    def serve(self, hosts: list[str], turns: int) -> None:
        """Other hosts from the next start on, which is now."""
        self.do(self.scenario.serve(hosts), turns)

    # -- products

    @stateful.rule(turns=TURNS)
    def start(self, turns: int) -> None:
        if len(self.scenario.lives) < ALIVE:
            self.do(_now(self.scenario.start), turns)

    @stateful.rule(which=WHICH, writes=st.integers(1, 25), when=st.sampled_from(["before", "after"]), turns=TURNS)
    def doom(self, which: int, writes: int, when: Literal["before", "after"], turns: int) -> None:
        """It dies at one of its next writes."""
        for life in self.scenario.lives[which:which + 1]:
            life.client.fatal = (life.client.writes + writes, when)
        self.do(_now(lambda: None), turns)

    @stateful.rule(which=WHICH, turns=TURNS)
    def kill(self, which: int, turns: int) -> None:
        for life in self.scenario.lives[which:which + 1]:
            self.do(self.scenario.kill(life), turns)

    @stateful.rule(which=WHICH, still=st.booleans(), turns=TURNS)
    def hold(self, which: int, still: bool, turns: int) -> None:
        """It stands still, believing what it knew, until it goes on."""
        for life in self.scenario.lives[which:which + 1]:
            self.do(_now(life.client.open.clear if still else life.client.open.set), turns)

    # -- time

    @stateful.rule(seconds=st.sampled_from([0.01, 1.0, 40.0]), turns=TURNS)
    def wait(self, seconds: float, turns: int) -> None:
        self.do(_now(lambda: self.scenario.clock.advance(seconds)), turns)

    @stateful.rule()
    def rest(self) -> None:
        self.do(self.scenario.rest())

    @stateful.rule()
    def relieve(self) -> None:
        self.do(self.scenario.relieve())

    @stateful.invariant()
    def promises_hold(self) -> None:
        if self.scenario.backend.broken:
            self.failed = True
        assert not self.scenario.backend.broken, self._tell()

    def teardown(self) -> None:
        try:
            if not self.failed and hasattr(self, "scenario"):
                self.rest()
                self.relieve()
                self.promises_hold()
                self.do(self.scenario.clear())
                self.promises_hold()
        finally:
            if hasattr(self, "scenario"):
                self.runner.run(self.scenario.end())
                self.traces.append(self.scenario.backend.trace.hexdigest())
            self.runner.close()

    def _tell(self) -> str:
        return "\n".join([*self.scenario.backend.broken[:20], "", self.scenario.picture()])


class Wider(Machine):
    """More may happen: VirtualMachines, what is asked of VMs, finalizers of others, writes that fail or whose answers are
    lost, and informers that have to begin again."""

    # -- users

    @stateful.rule(kind=KIND, some=SOME, source=SOURCE, turns=TURNS)
    def keep(self, kind: str, some: list[int], source: str, turns: int) -> None:
        """VMs or pods that are kept for inspection when they have ended."""
        async def keep() -> None:
            for number in some:
                await self.scenario.create(KINDS[kind], NAMES[kind][number], SPECS[kind](source), kept=True)

        self.do(keep(), turns)

    @stateful.rule(turns=TURNS)
    def let_go(self, turns: int) -> None:
        self.do(self.scenario.let_go(), turns)

    @stateful.rule(name=VM, strategy=STRATEGY, own=st.booleans(), source=SOURCE, turns=TURNS)
    def vm(self, name: str, strategy: str, own: bool, source: str, turns: int) -> None:
        """A VirtualMachine is made, or deleted when it is there."""
        there = ("here", name) in self.scenario.books.objects[kinds.VM]
        spec = replicas.vm_spec(source, strategy, own=own and source not in CLAIMS)
        self.do(self.scenario.delete(kinds.VM, name) if there else self.scenario.create(kinds.VM, name, spec), turns)

    @stateful.rule(name=VM, action=st.sampled_from(vm_actions.ACTIONS), turns=TURNS)
    def ask(self, name: str, action: vm_actions.Action, turns: int) -> None:
        self.do(self.scenario.ask(name, action), turns)

    @stateful.rule(
        name=st.sampled_from([*NAMES["machines"][:3], *VMS]), action=st.sampled_from(vmi_actions.ACTIONS), turns=TURNS
    )
    def press(self, name: str, action: vmi_actions.Action, turns: int) -> None:
        self.do(self.scenario.press(name, action), turns)

    # -- products

    @stateful.rule(which=WHICH, writes=st.integers(1, 25), when=st.sampled_from(["before", "after"]), turns=TURNS)
    def stumble(self, which: int, writes: int, when: Literal["before", "after"], turns: int) -> None:
        """One of its next writes fails, or is done and the answer is lost."""
        for life in self.scenario.lives[which:which + 1]:
            life.client.stumbles = (life.client.writes + writes, when)
        self.do(_now(lambda: None), turns)

    @stateful.rule(which=WHICH, turns=TURNS)
    def cut(self, which: int, turns: int) -> None:
        """All that it follows ends without a word."""
        for life in self.scenario.lives[which:which + 1]:
            for watch in life.client.watches:
                watch.end()
        self.do(_now(lambda: None), turns)

    @stateful.rule(turns=TURNS)
    def forget(self, turns: int) -> None:
        """Whoever is behind must list again."""
        self.do(_now(self.scenario.backend.forget), turns)


class Edited(Wider):
    """Users edit pages by hand, too."""

    @stateful.rule(page=st.sampled_from([*sorted(HOSTS), pool_page(RACK, "rack")]), how=EDIT, which=st.integers(0, 9),
                   turns=TURNS)
    def edit(self, page: str, how: str, which: int, turns: int) -> None:
        self.do(self.scenario.edit(page, how, which), turns)


EDITED = (2, 25, 0, Edited)  # few examples, which find a mistake in the rules of pages


async def _now(work: Callable[[], Any]) -> None:
    work()


def run(count: int, steps: int, seed: int = 0, scenario: type[Machine] = Machine) -> list[str]:
    """The same examples for the same seed, wherever it runs. What was written in each, in short."""
    hypothesis_profiles.same()
    settings = hypothesis.settings(
        max_examples=count, stateful_step_count=steps, deadline=None, database=None, report_multiple_bugs=False,
        print_blob=False, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck))
    traces: list[str] = []
    chosen = type(f"{scenario.__name__}{seed}", (scenario,), {"traces": traces})
    stateful.run_state_machine_as_test(hypothesis.seed(seed)(chosen), settings=settings)
    return traces


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
def test_invariants_hold(seed: int) -> None:
    run(6, 25, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1])
def test_invariants_hold_with_more_steps(seed: int) -> None:
    run(5, 25, seed, Wider)


def test_invariants_hold_while_pages_are_edited_by_hand() -> None:
    run(*EDITED)


@pytest.mark.long(seeds=range(3, 6))
def test_invariants_hold_for_long_while_pages_are_edited_by_hand(seed: int) -> None:
    run(40, 60, seed, Edited)


@pytest.mark.long(seeds=range(108, 116))
def test_invariants_hold_for_long(seed: int) -> None:
    run(50, 60, seed)


@pytest.mark.long(seeds=range(3, 8))
def test_invariants_hold_for_long_with_more_steps(seed: int) -> None:
    run(40, 60, seed, Wider)


@pytest.mark.thorough
def test_seed_determines_the_run() -> None:
    """Sets have another order in each process; no two products write anything in another order, or anything else, for that."""
    story = "from tests.controllers import test_stateful; print(test_stateful.run(1, 25, 1))"
    processes = [subprocess.Popen([sys.executable, "-c", story], text=True, cwd=ROOT, stdout=subprocess.PIPE,
                                  env={**os.environ, "PYTHONHASHSEED": str(number)}) for number in (1, 2)]
    one, two = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert one == two != "[]\n"


# -- so that the tests above can fail


def unruled(patch: pytest.MonkeyPatch) -> None:
    """Whatever is written to a page is kept, and any page can be deleted."""
    patch.setattr(pages, "check", lambda *_, **__: ())
    patch.setattr(pages, "deletable", lambda *_: None)


def careless(patch: pytest.MonkeyPatch) -> None:
    """A page is replaced whatever its revision is by now, and whatever is missing on it then."""
    unruled(patch)
    replace = Transaction.replace

    def whatever(self: Transaction, kind: Kind, obj: Object, subresource: str = "") -> Record:
        if kind == kinds.LEDGER_PAGE:
            present = str(self.require(kind, obj["metadata"]["name"], "").revision)
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": present}}
        return replace(self, kind, obj, subresource)

    patch.setattr(Transaction, "replace", whatever)


def behind(patch: pytest.MonkeyPatch) -> None:
    """Informers of pages know the first that they saw of each, and nothing after that."""
    put = Informer._put

    def first(self: Informer[Object], key: str, obj: Object | None) -> None:
        if self.kind != kinds.LEDGER_PAGE or key not in self.keys():
            put(self, key, obj)

    patch.setattr(Informer, "_put", first)


def unmarked(patch: pytest.MonkeyPatch) -> None:
    """The scheduler does not care what an operator reserved or quarantined, and neither do pages."""
    patch.setattr(device_index, "OUT_OF_SERVICE_STATES", ())
    patch.setattr(Page, "out_of_service", lambda *_: None)


def never(where: type, method: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A step that is not done."""

    async def nothing(*_: object) -> None:
        pass

    return lambda patch: patch.setattr(where, method, nothing)


def unheard(patch: pytest.MonkeyPatch) -> None:
    """The controllers that create claims and deallocate them get no watch updates of pods."""
    def others(informer: Informer[Object], *to: Any) -> None:
        if informer.kind != kinds.POD:
            enqueue_on_change(informer, *to)

    for module in (pod_claims, claim_deallocation):
        patch.setattr(module, "enqueue_on_change", others)


def unchecked(patch: pytest.MonkeyPatch) -> None:
    """A host prepares hardware whoever has it prepared under another name."""
    patch.setattr(book, "hardware_rival", lambda *_: None)


MISTAKES = {
    "a clash of hardware is not checked at prepare": (unchecked, "is used by .* and by|is prepared as .* and as"),
    "what an operator marked is given away": (unmarked, "and was booked for|no page says so"),
    "neither revision nor rules of a page are checked": (
        careless, "is held by|and was booked for|no page says so|pages say|not prepared|outlived its pod"),
    "a claim that has ended is never released": (never(ClaimDeallocation, "_free"), "no user|no longer has a use|pages say"),
    "a host never releases devices": (never(ClaimBookings, "release"), "no user|pages say|no longer has a use"),
    "what a crash left is never looked for": (never(OwnPods, "sweep"), "no user|domains:|not prepared|no longer has a use"),
    "the scheduler does not hear of pages": (  # several of them contradict each other for ever, each by what it saw
        behind, "are free|no user|no longer has a use|pages say|do not come to rest"),
    "a loop is not woken by what it reads": (unheard, "nobody was woken"),
}


SEEDS = {  # with which it is found within a few examples
    "a clash of hardware is not checked at prepare": 3,
    "what an operator marked is given away": 18,
}
FOUND_AT_ONCE = ("a loop is not woken by what it reads",)
FOUND_LATE = ("the scheduler does not hear of pages",)  # after many examples


def _marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    if name in FOUND_LATE:
        return (pytest.mark.long,)
    return () if name in FOUND_AT_ONCE else (pytest.mark.thorough,)


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in MISTAKES])
def test_a_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inject, says = MISTAKES[name]
    inject(monkeypatch)
    with pytest.raises(AssertionError, match=says):
        run(200, 30, seed=SEEDS.get(name, 11))


def test_a_mistake_in_the_rules_of_pages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unruled(monkeypatch)
    with pytest.raises(AssertionError, match=r"is held by|no page says so|pages say|not prepared"):
        run(*EDITED)
