from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from outfitter.scheduling.topology.hints import DeviceRequest, ResourceDevices, compute_hints
from outfitter.scheduling.topology.settings import NumaNodes

TWO = NumaNodes.of([0, 1])
FOUR = {"g0": (0,), "g1": (0,), "g2": (1,), "g3": (1,)}
Hints = dict[tuple[int, ...], bool]  # nodes -> preferred


@dataclass
class Case:
    numa: Mapping[str, tuple[int, ...]]
    count: int
    hints: Hints | None
    free: str | None = None  # None: all
    assigned: str = ""
    reusable: str = ""
    nodes: NumaNodes = TWO


CASES = {
    "no device names a node": Case({"g0": (), "g1": ()}, 1, None),
    "nothing is asked for": Case(FOUR, 0, None),
    "one of four": Case(FOUR, 1, {(0,): True, (1,): True, (0, 1): False}),
    "two of four on an empty host": Case(FOUR, 2, {(0,): True, (1,): True, (0, 1): False}),
    "two are left, one on each node": Case(FOUR, 2, {(0, 1): False}, free="g1 g3"),
    "three never fit on one node": Case(FOUR, 3, {(0, 1): True}),
    "too few are free": Case(FOUR, 2, {}, free="g1"),
    "more than there are": Case(FOUR, 5, {}),
    "devices without a node count for no set": Case({"g0": (0,), "g1": ()}, 2, {}),
    "a device near both nodes counts for either": Case({"g0": (0, 1), "g1": (1,)}, 1, {(0,): True, (1,): True, (0, 1): False}),
    "an unhealthy device counts on the empty host": Case(
        {"g0": (0,), "g1": (0,), "g2": (1,)}, 2, {(0, 1): False}, free="g0 g2"),
    "a node without devices is in no set": Case({"g0": (0,), "g1": (2,)}, 1, {(0,): True, (2,): True, (0, 2): False},
                                                nodes=NumaNodes.of([0, 1, 2])),
    "a node that the host does not know is dropped": Case({"g0": (0,), "g1": (7,)}, 1, {(0,): True}),
    "all nodes are unknown": Case({"g0": (7,)}, 1, {}),
    "a reusable device must be in the set": Case(FOUR, 1, {(0,): True, (0, 1): False}, free="g1 g2 g3", reusable="g0"),
    "reusable devices count": Case(FOUR, 2, {(0,): True, (0, 1): False}, free="g1", reusable="g0"),
    "a reusable device without a node does not matter": Case({"g0": (0,), "x": ()}, 1, {(0,): True}, free="g0", reusable="x"),
    "assigned ids give the hints of just these": Case(FOUR, 2, {(1,): True, (0, 1): False}, free="g0 g1", assigned="g2 g3"),
    "assigned ids on two nodes": Case(FOUR, 2, {(0, 1): False}, free="g1 g3", assigned="g0 g2"),
    "too few are assigned: the rest is found beside them": Case(
        FOUR, 2, {(1,): True, (0, 1): False}, free="g0 g1 g2", assigned="g3"),
    "more are assigned than asked for": Case(FOUR, 1, {}, free="g0 g1", assigned="g2 g3"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_hints_of_one_resource(case: Case) -> None:
    free = case.numa.keys() if case.free is None else case.free.split()
    request = DeviceRequest(ResourceDevices(case.numa, frozenset(free)), case.count,
                            frozenset(case.assigned.split()), frozenset(case.reusable.split()))
    hints = compute_hints(request, case.nodes)
    if case.hints is None:
        assert hints is None
    else:
        assert hints is not None
        assert {nodes(hint.mask): hint.preferred for hint in hints} == case.hints


def nodes(mask: int | None) -> tuple[int, ...]:
    return tuple(node for node in range(8) if (mask or 0) >> node & 1)


def test_ten_thousand_devices_on_eight_nodes_are_counted_by_node() -> None:
    """Each device is looked at a few times, not once for each of the 255 sets of nodes."""
    class Counting(dict[str, tuple[int, ...]]):
        reads = 0

        def get(self, key: str, default: object = None) -> tuple[int, ...]:
            Counting.reads += 1
            return self[key]

    numa = Counting({f"d{number}": (number % 8,) for number in range(10_000)})
    hints = compute_hints(DeviceRequest(ResourceDevices(numa, frozenset(numa)), 1), NumaNodes.of(range(8)))
    assert hints is not None
    assert len(hints) == 255
    assert Counting.reads <= 2 * len(numa)
