"""NUMA: which devices are near enough, and on which cells a guest fits."""

from __future__ import annotations

import pytest

from outfitter.scheduling.nova import numa_topology
from outfitter.scheduling.nova.alias import Policy
from outfitter.scheduling.nova.extra_specs import Guest
from outfitter.scheduling.nova.numa_topology import FAR, NEAR, NEXT, NumaCell, Seat

CELLS = [NumaCell(0, 4, 0), NumaCell(1, 4, 0), NumaCell(2, 4, 1)]
ON_0 = Seat(frozenset({0}), frozenset({0}), {0: 0, 1: 0, 2: 1})
TIERS: dict[Policy, list[int | None]] = {  # for a device on cell 0, 1, 2 and on an unknown one
    "required": [NEAR, None, None, None],
    "legacy": [NEAR, None, None, NEXT],
    "preferred": [NEAR, FAR, FAR, NEXT],
    "socket": [NEAR, NEXT, None, None],
}


@pytest.mark.parametrize("policy", TIERS)
def test_how_near_a_device_is(policy: Policy) -> None:
    assert [ON_0.tier(policy, cell) for cell in (0, 1, 2, None)] == TIERS[policy]


def test_without_sockets_only_the_own_cell_is_near() -> None:
    [seat, *_] = numa_topology.seats([NumaCell(0, 4, 0), NumaCell(1, 4, None)], Guest(cells=1), {}, wants_devices=True)
    assert [seat.tier("socket", cell) for cell in (0, 1, None)] == [NEAR, None, None]


@pytest.mark.parametrize(("guest", "parts"), [
    (Guest(vcpus=4, cells=2), [2, 2]), (Guest(vcpus=5, cells=2), [3, 2]), (Guest(vcpus=3), [3])])
def test_shares(guest: Guest, parts: list[int]) -> None:
    assert numa_topology.share(guest) == parts


def order(guest: Guest, free: dict[int, int], *, devices: bool, cells: list[NumaCell] = CELLS) -> list[list[int]]:
    return [sorted(seat.cells) for seat in numa_topology.seats(cells, guest, free, wants_devices=devices)]


def test_with_devices_to_where_most_are_and_without_to_where_fewest_are() -> None:
    assert order(Guest(cells=1), {1: 1, 2: 3}, devices=True) == [[2], [1], [0]]
    assert order(Guest(cells=1), {1: 1, 2: 3}, devices=False) == [[0], [1], [2]]


SMALL = [NumaCell(0, 2), NumaCell(1, 5), NumaCell(2, 3)]


@pytest.mark.parametrize(("guest", "seats"), [
    (Guest(vcpus=3, pinned=True, cells=1), [[1], [2]]),
    (Guest(vcpus=3, cells=1), [[0], [1], [2]]),
    (Guest(vcpus=6, pinned=True, cells=1), []),
    (Guest(vcpus=5, pinned=True, cells=2), [[0, 1], [0, 2], [1, 2]]),
    (Guest(vcpus=7, pinned=True, cells=2), [[1, 2]]),
    (Guest(vcpus=8, cells=4), []),
])
def test_dedicated_cpus_must_be_there(guest: Guest, seats: list[list[int]]) -> None:
    assert order(guest, {}, devices=True, cells=SMALL) == seats


def test_each_part_must_fit_not_only_the_smallest() -> None:
    guest = Guest(vcpus=7, pinned=True, cells=2)
    assert order(guest, {}, devices=True, cells=[NumaCell(0, 3), NumaCell(1, 3)]) == []
    assert order(guest, {}, devices=True, cells=[NumaCell(0, 3), NumaCell(1, 4)]) == [[0, 1]]


def test_the_larger_part_goes_to_the_roomier_cell() -> None:
    guest = Guest(vcpus=5, pinned=True, cells=2)
    assert numa_topology.pins(SMALL, Seat(frozenset({0, 1})), guest) == {1: 3, 0: 2}
    assert numa_topology.pins(SMALL, Seat(frozenset({0, 1})), Guest(vcpus=5, cells=2)) == {}


def test_which_cpus_they_are() -> None:
    cells = [NumaCell(0, 3, ids=(1, 4, 9)), NumaCell(1, 2, ids=(6, 7))]
    assert numa_topology.named(cells, {0: 2, 1: 1}) == {0: (1, 4), 1: (6,)}
    assert numa_topology.named([cells[0].without({4}, 1), cells[1]], {0: 2}) == {0: (1, 9)}
    assert numa_topology.named([NumaCell(0, 3)], {0: 2}) == {}, "a host that does not tell"


@pytest.mark.parametrize(("cell", "left"), [
    (NumaCell(0, 4, ids=(0, 1, 2, 3)).without({1}, 1), 3),
    (NumaCell(0, 4, ids=(0, 1, 2, 3)).without(set(), 3), 1),  # them is in use without numbers
    (NumaCell(0, 4, ids=(0, 1, 2, 3)).without({2, 3}, 0), 2),  # they were of another cell when they were taken
    (NumaCell(0, 4).without({1}, 1), 3),
])
def test_what_is_left_of_a_cell(cell: NumaCell, left: int) -> None:
    assert cell.cpus == left
