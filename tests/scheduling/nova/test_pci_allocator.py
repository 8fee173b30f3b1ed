"""The choice of host, cells and devices: tables of what is given to whom, and what must hold whatever the hosts look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api.rejection import Rejection
from outfitter.inventory.pci import FunctionKind
from outfitter.scheduling.nova import numa_topology, pci_allocator
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
from outfitter.scheduling.nova.host_state import HostState, PciAllocation, PciDevice, PciRejection
from outfitter.scheduling.nova.numa_topology import NumaCell, Seat
from tests.rejected import Code, no
from tests.scheduling.flavor_requests import CLASS, IDS, ask, device, host, row

GPU: Mapping[str, str] = {"name": "gpu", **IDS}
HELD = no(Code.HELD)


def several(oak: HostState, wish: FlavorRequest, count: int) -> list[PciAllocation]:
    """What VMs get one after the other, until one is rejected."""
    out: list[PciAllocation] = []
    while len(out) < count and isinstance(choice := pci_allocator.choose(oak, wish), PciAllocation):
        out.append(choice)
        oak = oak.taking(choice)
    return out


def got(verdict: PciAllocation | PciRejection) -> list[str]:
    assert isinstance(verdict, PciAllocation), verdict
    return [given.device.address for given in verdict.given]


def rejected(verdict: PciAllocation | PciRejection) -> Rejection:
    assert isinstance(verdict, PciRejection), verdict
    return verdict.rejection


# -- which devices are what an alias asks for

FITS: dict[str, tuple[Mapping[str, str], PciDevice, Mapping[str, object] | None]] = {  # alias, device -> None or why not
    "the ids": (GPU, device(1), None),
    "another product": ({**GPU, "resource_class": CLASS, "product_id": "2236"}, device(1), {
        "field": "ids", "has": "10de:2235", "wanted": "10de:2236"}),
    "another class": ({"name": "gpu", "resource_class": "pgpu"}, device(1), {
        "field": "resource_class", "has": (CLASS,), "wanted": "PGPU"}),
    "a physical function": (GPU, device(1, kind=FunctionKind.PF), {
        "field": "device_type", "has": "type-PF", "wanted": None}),
    "a physical function by its type": ({**GPU, "device_type": "type-PF"}, device(1, kind=FunctionKind.PF), None),
    "a virtual function": (GPU, device(1, kind=FunctionKind.VF), None),
    "a virtual function of a vendor's driver": (
        {**GPU, "device_type": "type-VF"}, device(1, kind=FunctionKind.VENDOR_VF), None),
    "a virtual function as a device": ({**GPU, "device_type": "type-PCI"}, device(1, kind=FunctionKind.VF), {
        "field": "device_type", "has": "type-VF", "wanted": "type-PCI"}),
    "vdpa": (GPU, device(1, kind=FunctionKind.VDPA), {"field": "ports", "has": "a vdpa device"}),
    "managed remotely": (GPU, device(1, kind=FunctionKind.VF, remote_managed=True), {
        "field": "ports", "has": "managed remotely"}),
    "migratable wanted and said": ({**GPU, "live_migratable": "yes"}, device(1, live_migratable=True), None),
    "migratable wanted and not said": ({**GPU, "live_migratable": "yes"}, device(1), {
        "field": "live_migratable", "has": None, "wanted": True}),
    "not migratable wanted and not said": ({**GPU, "live_migratable": "no"}, device(1), {
        "field": "live_migratable", "has": None, "wanted": False}),
    "not migratable wanted and said": ({**GPU, "live_migratable": "no"}, device(1, live_migratable=False), None),
    "migratable does not matter": (GPU, device(1, live_migratable=True), None),
    "on no provider": (GPU, device(1, provider=""), {"field": "provider"}),
    "a trait": ({**GPU, "traits": "pink"}, device(1), {"field": "traits", "lacks": ("lacks trait CUSTOM_PINK",)}),
}


@pytest.mark.parametrize("name", FITS)
def test_what_an_alias_asks_for(name: str) -> None:
    wish, one, mismatch = FITS[name]
    oak, asked = host("oak", one), ask("gpu:1", wish)
    verdict, why = pci_allocator.choose(oak, asked), pci_allocator.why_not(oak, asked.requests[0], one)
    assert pci_allocator.matches(oak, asked.requests[0], one) is (mismatch is None)
    if mismatch is None:
        assert why is None
        assert got(verdict) == [one.address]
    else:
        assert why is not None
        assert why == no(Code.ALIAS_MISMATCH, one.id, alias="gpu", failed=why["failed"], **mismatch)
        assert why["failed"] >= 1
        assert rejected(verdict) == no(Code.NO_MATCH, devices=1, alias="gpu")


def test_each_spec_of_an_alias_has_its_cause() -> None:
    both, one = ask("gpu:1", GPU, {**GPU, "product_id": "2236"}, placement=False), device(1, product="a80a")
    why = pci_allocator.why_not(host("oak", one), both.requests[0], one)
    assert why is not None
    assert (why.code, [cause["wanted"] for cause in why.causes]) == (Code.ALIAS_MISMATCH, ["10de:2235", "10de:2236"])


def test_without_placement_any_of_the_ids_will_do() -> None:
    both = ask("gpu:2", GPU, {**GPU, "product_id": "2236"}, placement=False)
    assert got(pci_allocator.choose(host("oak", device(1, provider=""), device(2, provider="", product="2236")), both)) == [
        "0000:01:00.0", "0000:02:00.0"]


# -- how many, and from where


def vfs(bus: int, count: int) -> list[PciDevice]:
    return [device(bus, function, kind=FunctionKind.VF) for function in range(count)]


def test_what_is_reserved_is_not_given_whichever_device_that_is() -> None:
    some = vfs(1, 4)
    some[3] = replace(some[3], blocked=HELD)
    oak = host("oak", *some, rows={"oak_01": row("oak_01", some, reserved=1, used=1)})
    assert len(got(pci_allocator.choose(oak, ask("gpu:2")))) == 2
    assert rejected(pci_allocator.choose(oak, ask("gpu:3"))) == no(
        Code.TOO_FEW_TOGETHER, wanted=3, aliases=("gpu:3",), isolate=False, rooms={"oak_01": 2})


def test_isolate_takes_each_from_another_provider() -> None:
    oak = host("oak", *vfs(1, 3), *vfs(2, 3))
    assert got(pci_allocator.choose(oak, ask("gpu:2"))) == ["0000:01:00.0", "0000:01:00.1"]
    assert got(pci_allocator.choose(oak, ask("gpu:1,gpu:1", group_policy="isolate"))) == ["0000:01:00.0", "0000:02:00.0"]
    assert rejected(pci_allocator.choose(oak, ask("gpu:3", group_policy="isolate"))) == no(
        Code.TOO_FEW_TOGETHER, wanted=3, aliases=("gpu:3",), isolate=True, rooms={"oak_01": 1, "oak_02": 1})


def test_isolate_leaves_the_last_ones_on_different_cards() -> None:
    oak, wish = host("oak", *vfs(1, 1), *vfs(2, 1), *vfs(3, 1), *vfs(4, 3)), ask("gpu:2", group_policy="isolate")
    assert len(several(oak, wish, 3)) == 3


def test_the_choosy_alias_gets_what_only_it_can_use() -> None:
    fast = {**GPU, "name": "fast", "traits": "fast"}
    first, second = device(1), device(2)
    oak = host("oak", first, second, rows={"oak_01": row("oak_01", [first], traits=["CUSTOM_FAST"]),
                                           "oak_02": row("oak_02", [second])})
    assert got(pci_allocator.choose(oak, ask("gpu:1,fast:1", GPU, fast))) == ["0000:02:00.0", "0000:01:00.0"]


def card(bus: int, count: int) -> list[PciDevice]:
    """A physical function that is offered beside its virtual ones."""
    return [device(bus, 0, kind=FunctionKind.PF, product="37c8", provider="", takes={"card": {"functions": str(count)}}),
            *(device(bus, number + 1, kind=FunctionKind.VF, product="37c9", provider="", takes={"card": {"functions": "1"}})
              for number in range(count))]


PF = {"name": "pf", "vendor_id": "10de", "product_id": "37c8", "device_type": "type-PF"}
VF = {"name": "vf", "vendor_id": "10de", "product_id": "37c9", "device_type": "type-VF"}


def test_a_card_and_its_parts_exclude_each_other() -> None:
    oak = host("oak", *card(1, 2), counters={"card": {"functions": "2"}})
    assert len(got(pci_allocator.choose(oak, ask("vf:2", PF, VF, placement=False)))) == 2
    both = rejected(pci_allocator.choose(oak, ask("pf:1,vf:1", PF, VF, placement=False)))
    assert (both.code, both["wanted"], both["aliases"]) == (Code.TOO_FEW_TOGETHER, 2, ("pf:1", "vf:1"))
    whole = pci_allocator.choose(oak, ask("pf:1", PF, VF, placement=False))
    assert isinstance(whole, PciAllocation)
    rest = oak.taking(whole)
    assert rejected(pci_allocator.choose(rest, ask("vf:1", PF, VF, placement=False))) == no(
        Code.TOO_FEW_FREE, alias="vf", wanted=1, match=2, free=0)
    assert [one.blocked for one in rest.devices] == [
        no(Code.HELD, rest.devices[0].id, same="another claim"),
        *(no(Code.COUNTER_EXHAUSTED, one.id, amount="1", counter="functions", set="card", left="0")
          for one in rest.devices[1:])]


# -- cells

TWO_CELLS = (NumaCell(0, 4, 0), NumaCell(1, 4, 1))


def test_the_guest_goes_to_its_device() -> None:
    verdict = pci_allocator.choose(
        host("oak", device(1, numa=1), cells=TWO_CELLS), ask("gpu:1", vcpus=2, hw__cpu_policy="dedicated")
    )
    assert isinstance(verdict, PciAllocation)
    assert (verdict.cells, dict(verdict.pins)) == ((1,), {1: 2})


def test_a_far_device_with_the_trait_is_better_than_a_near_one_without() -> None:
    near, far = device(1, numa=0), device(2, numa=1)
    oak = host("oak", near, far, cells=(NumaCell(0, 4, 0), NumaCell(1, 0, 1)), rows={
        "oak_01": row("oak_01", [near]), "oak_02": row("oak_02", [far], traits=["CUSTOM_FAST"])})
    wish = {**GPU, "traits": "fast", "numa_policy": "preferred"}
    assert got(pci_allocator.choose(oak, ask("gpu:1", wish, hw__cpu_policy="dedicated"))) == [far.address]
    assert rejected(pci_allocator.choose(oak, ask(
        "gpu:1", {**wish, "numa_policy": "required"}, hw__cpu_policy="dedicated"))) == no(
            Code.NUMA_TOO_FAR, cells={0: 4, 1: 0}, policies=("gpu required",))


def test_as_many_near_devices_as_there_are() -> None:
    oak = host("oak", device(1, numa=1), device(2, numa=0), device(3, numa=1), device(4), cells=TWO_CELLS)
    wish = ask("gpu:3", {**GPU, "numa_policy": "preferred"}, hw__cpu_policy="dedicated")
    assert got(pci_allocator.choose(oak, wish)) == ["0000:01:00.0", "0000:03:00.0", "0000:04:00.0"]


def test_nearest_cell_is_preferred_to_the_one_with_most_devices() -> None:
    others = [device(bus, numa=0, product="a80a") for bus in (2, 3)]
    oak = host("oak", device(1, numa=1), *others, cells=TWO_CELLS)
    verdict = pci_allocator.choose(oak, ask("gpu:1", {**GPU, "numa_policy": "preferred"}, hw__cpu_policy="dedicated"))
    assert isinstance(verdict, PciAllocation)
    assert verdict.cells == (1,)


def test_too_few_cpus() -> None:
    assert rejected(pci_allocator.choose(
        host("oak", device(1), cells=TWO_CELLS), ask("gpu:1", vcpus=5, hw__cpu_policy="dedicated"))) == no(
            Code.NUMA_TOO_FEW_CPUS, parts=(5,), pinned=True, wanted=1, cells={0: 4, 1: 4})


def test_many_like_devices_are_no_explosion() -> None:
    """Placement makes 20,160 and 262,144 candidates of these two; both would take minutes if ways were listed."""
    cards = host("a", *(device(bus) for bus in range(1, 9)))
    ports = host("b", *(vf for bus in range(1, 9) for vf in vfs(bus, 6)))
    assert len(got(pci_allocator.choose(cards, ask("gpu:6")))) == 6
    assert len(got(pci_allocator.choose(ports, ask("gpu:6", group_policy="isolate")))) == 6
    assert isinstance(pci_allocator.choose(ports, ask("gpu:9", group_policy="isolate")), PciRejection)
    assert len(got(pci_allocator.choose(ports, ask(",".join(["gpu:1"] * 48))))) == 48


# -- whatever the hosts look like

POLICIES = st.sampled_from(["required", "legacy", "preferred", "socket"])
CELLS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, None])), max_size=3)


@st.composite
def farms(draw: st.DrawFn) -> tuple[HostState, FlavorRequest]:
    """A host with up to four providers of up to three devices, and up to three requests for them."""
    devices: list[PciDevice] = []
    rows = {}
    for bus in range(1, draw(st.integers(1, 4)) + 1):
        mine = [device(bus, number, kind=FunctionKind.VF, numa=draw(st.sampled_from([0, 1, 2, None])),
                       product=draw(st.sampled_from(["2235", "2236"])), blocked=draw(st.sampled_from([None, None, HELD])))
                for number in range(draw(st.integers(1, 3)))]
        traits = draw(st.lists(st.sampled_from(["CUSTOM_A", "CUSTOM_B"]), unique=True))
        rows[f"oak_{bus:02X}"] = row(f"oak_{bus:02X}", mine, traits=traits, reserved=draw(st.integers(0, 1)))
        devices += mine
    cells = [NumaCell(number, cpus, socket) for number, (cpus, socket) in enumerate(draw(CELLS))]
    aliases = [{"name": f"a{number}", "resource_class": "CUSTOM_PCI_10DE_2235", "numa_policy": draw(POLICIES),
                **draw(st.sampled_from([{}, {"traits": "a"}, {"traits": "!b"}, {"traits": "in:a,b"},
                                        {"vendor_id": "10de", "product_id": "2236"}]))} for number in range(3)]
    text = ",".join(f"a{draw(st.integers(0, 2))}:{draw(st.integers(0, 2))}" for _ in range(draw(st.integers(1, 3))))
    extra: dict[str, Any] = draw(st.sampled_from([
        {}, {"hw__cpu_policy": "dedicated"}, {"hw__numa_nodes": "2", "hw__cpu_policy": "dedicated"}]))
    extra = extra | draw(st.sampled_from([{}, {"group_policy": "isolate"}]))
    wish = ask(text, *aliases, vcpus=draw(st.integers(2, 3)), **extra)
    return host("oak", *devices, cells=cells, rows=rows), wish


def possible(oak: HostState, wish: FlavorRequest) -> bool:
    """Whether there is any way, by trying all."""
    if wish.guest.cells is None:
        seats: Sequence[Seat | None] = [None]
    elif not oak.cells:
        seats = [Seat(frozenset())]
    else:
        seats = list(numa_topology.seats(oak.cells, wish.guest, {}, wants_devices=True))
    wanted = [request for request in wish.requests for _ in range(request.count)]
    return any(_fill(oak, wish, wanted, seat, []) for seat in seats)


def _fill(
    oak: HostState, wish: FlavorRequest, wanted: Sequence[AliasRequest], seat: Seat | None, taken: list[PciDevice]
) -> bool:
    if not wanted:
        return True
    for one in oak.devices:
        if one in taken or not allowed(oak, wish, wanted[0], one, seat):
            continue
        used = sum(other.provider == one.provider for other in taken)
        if used >= oak.room(one.provider) or (used and wish.group_policy == "isolate"):
            continue
        if _fill(oak, wish, wanted[1:], seat, [*taken, one]):
            return True
    return False


def allowed(oak: HostState, wish: FlavorRequest, request: AliasRequest, one: PciDevice, seat: Seat | None) -> bool:
    spec, traits = request.specs[0], oak.rows[one.provider].provider.traits
    return (not one.blocked and spec.product in (None, one.product) and spec.traits.required <= traits
            and not spec.traits.forbidden & traits and all(some & traits for some in spec.traits.any_of)
            and (seat is None or seat.tier(request.numa_policy, one.numa) is not None))


@settings(max_examples=120, deadline=None)
@given(farms())
def test_a_choice_is_allowed_and_a_refusal_is_true(farm: tuple[HostState, FlavorRequest]) -> None:
    oak, wish = farm
    verdict = pci_allocator.choose(oak, wish)
    assert isinstance(verdict, PciAllocation) == possible(oak, wish), verdict
    if isinstance(verdict, PciRejection):
        return
    devices = [one.device for one in verdict.given]
    assert len({one.id for one in devices}) == len(devices)
    assert Counter(one.request.request_id for one in verdict.given) == Counter(
        {request.request_id: request.count for request in wish.requests if request.count})
    for provider, count in Counter(one.provider for one in devices).items():
        [inventory] = oak.rows[provider].inventories.values()
        assert count <= inventory.total - inventory.reserved - sum(oak.rows[provider].used.values())
        assert count == 1 or wish.group_policy != "isolate"
    known = {cell.id: cell.socket for cell in oak.cells}
    sockets = frozenset(s for cell in verdict.cells if (s := known[cell]) is not None)
    all_known = {cell: s for cell, s in known.items() if s is not None}
    seat = Seat(frozenset(verdict.cells), sockets, all_known if len(all_known) == len(known) else None)
    for one in verdict.given:
        assert allowed(oak, wish, one.request, one.device, None if wish.guest.cells is None else seat)
    if wish.guest.pinned and oak.cells:
        assert sum(verdict.pins.values()) == wish.guest.vcpus
        assert all(count <= cell.cpus for cell in oak.cells if (count := verdict.pins.get(cell.id, 0)))


@pytest.mark.parametrize(("vcpus", "pins"), [(3, {1: 3}), (4, {0: 2, 1: 2}), (5, {0: 2, 1: 3}), (6, None)])
def test_a_guest_that_may_be_spread_has_as_few_cells_as_possible(vcpus: int, pins: dict[int, int] | None) -> None:
    wish = ask("", vcpus=vcpus, hw__cpu_policy="dedicated")
    oak = host("oak", cells=[NumaCell(0, 2, ids=(0, 1)), NumaCell(1, 3, ids=(4, 5, 6))])
    verdict = pci_allocator.choose(oak, replace(wish, guest=replace(wish.guest, spread=True)))
    if pins is None:
        assert rejected(verdict) == no(Code.NUMA_TOO_FEW_CPUS, parts=(3, 3), pinned=True, wanted=2, cells={0: 2, 1: 3})
        return
    assert isinstance(verdict, PciAllocation)
    assert verdict.pins == pins
    assert {cell: len(cpus) for cell, cpus in verdict.cpus.items()} == pins
    after = oak.taking(verdict)
    assert not {cpu for cpus in verdict.cpus.values() for cpu in cpus} & {cpu for cell in after.cells for cpu in cell.ids}


@settings(max_examples=100, deadline=None)
@given(farms(), st.integers(1, 4))
def test_vms_of_one_request_share_nothing(farm: tuple[HostState, FlavorRequest], count: int) -> None:
    oak, wish = farm
    plan = several(oak, wish, count)
    devices = [one.device.id for choice in plan for one in choice.given]
    assert len(set(devices)) == len(devices)
    cpus: Counter[int] = Counter()
    for choice in plan:
        cpus.update(choice.pins)
    assert all(cpus[cell.id] <= cell.cpus for cell in oak.cells)
    for provider, used in Counter(one.device.provider for choice in plan for one in choice.given).items():
        assert used <= oak.room(provider)
