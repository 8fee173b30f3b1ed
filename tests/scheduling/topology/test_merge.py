from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter.scheduling.topology.hints import DeviceRequest, NumaHint, ResourceDevices
from outfitter.scheduling.topology.merge import Affinity, decide_affinity, merge_hints
from outfitter.scheduling.topology.settings import NumaNodes, TopologySettings
from tests.scheduling.topology import kubelet_merge

Numa = Mapping[str, tuple[int, ...]]
FAR = [[10, 40, 20, 30], [40, 10, 30, 20], [20, 30, 10, 40], [30, 20, 40, 10]]


def resource(numa: Numa, count: int, free: str | None = None, assigned: str = "") -> DeviceRequest:
    return DeviceRequest(ResourceDevices(numa, frozenset(numa if free is None else free.split())), count,
                         frozenset(assigned.split()))


@dataclass
class Case:
    requests: list[DeviceRequest]
    # by policy the mask, or None: not admitted
    best_effort: int | None
    restricted: int | None
    single: int | None
    nodes: NumaNodes = field(default_factory=lambda: NumaNodes.of([0, 1]))
    options: dict[str, str] = field(default_factory=dict)


ONE_EACH: Numa = {"g0": (0,), "g1": (1,)}
FOUR: Numa = {"g0": (0,), "g1": (0,), "g2": (1,), "g3": (1,)}
NO_AFFINITY = -1
CASES = {
    "the node that has enough": Case([resource({"g0": (0,), "g1": (1,), "g2": (1,)}, 2)], 0b10, 0b10, 0b10),
    "two devices, one on each node": Case([resource(ONE_EACH, 2)], 0b11, 0b11, None),
    "spread only now": Case([resource(FOUR, 2, free="g1 g3")], 0b11, None, None),
    "two resources meet on one node": Case(
        [resource({"g0": (0,), "g1": (0,), "g2": (1,)}, 1), resource({"e0": (0,), "e1": (1,)}, 1, free="e1")],
        0b10, 0b10, 0b10),
    "two resources without a node in common": Case([resource({"g0": (0,)}, 1), resource({"e0": (1,)}, 1)], 0b11, None, None),
    "a device without a node beside one with": Case([resource({"g0": (0,), "g1": ()}, 2)], 0b11, None, None),
    "a device near two nodes": Case(
        [resource({"g0": (0, 1), "g1": (1,)}, 1), resource({"e0": (0,)}, 1)], 0b01, 0b01, 0b01),
    "no resource": Case([], 0b11, 0b11, NO_AFFINITY),
    "no resource with a node": Case([resource({"g0": ()}, 1)], 0b11, 0b11, NO_AFFINITY),
    "too few are free": Case([resource(FOUR, 1, free="")], 0b11, None, None),
    "chosen ids on two nodes": Case([resource(FOUR, 2, free="g1 g3", assigned="g0 g2")], 0b11, None, None),
    "chosen ids on one node": Case([resource(FOUR, 2, free="g0 g1", assigned="g2 g3")], 0b10, 0b10, 0b10),
    "the wide resource decides among hints that are not preferred": Case(
        [resource({"g0": (0,), "g1": (1,), "g2": (2,)}, 2, free="g1 g2"), resource({"e0": (2,)}, 1)],
        0b100, None, None, NumaNodes.of([0, 1, 2])),
    "of equal size the lower number": Case(
        [resource({f"g{n}": (n,) for n in range(4)}, 2)], 0b0011, 0b0011, None, NumaNodes.of(range(4), FAR)),
    "of equal size the closest": Case(
        [resource({f"g{n}": (n,) for n in range(4)}, 2)], 0b0101, 0b0101, None, NumaNodes.of(range(4), FAR),
        {"prefer-closest-numa-nodes": "true"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_affinity_by_policy(case: Case) -> None:
    requests = {str(number): request for number, request in enumerate(case.requests)}
    for policy, mask in ("best-effort", case.best_effort), ("restricted", case.restricted), ("single-numa-node", case.single):
        affinity = decide_affinity(TopologySettings.parse(policy, "container", case.options, case.nodes), requests)
        assert affinity.admitted == (mask is not None), policy
        if mask is not None:
            assert affinity.mask == (None if mask == NO_AFFINITY else mask), policy
    assert decide_affinity(TopologySettings.parse("none", "container", {}, case.nodes), requests) == Affinity(None, True)


masks = st.integers(1, 15) | st.none()
hint_lists = st.none() | st.lists(st.builds(NumaHint, masks, st.booleans()), max_size=5)


@given(policy=st.sampled_from(["best-effort", "restricted", "single-numa-node"]), closest=st.booleans(),
       hints=st.lists(hint_lists, max_size=4))
def test_merged_hints_are_those_of_all_combinations(
        policy: str, closest: bool, hints: Sequence[Sequence[NumaHint] | None]) -> None:
    options = {"prefer-closest-numa-nodes": str(closest).lower()}
    settings = TopologySettings.parse(policy, "container", options, NumaNodes.of(range(4), FAR))
    affinity = merge_hints(settings, hints)
    assert (affinity.mask, affinity.admitted) == kubelet_merge.merge(settings, hints)


def test_the_cost_does_not_multiply_with_the_resources() -> None:
    """Ten resources on all of eight nodes: 255 hints each, more combinations than could be walked."""
    numa = {f"d{number}": (number % 8,) for number in range(64)}
    requests = {f"a.io/{number}": resource(numa, 8) for number in range(10)}
    settings = TopologySettings.parse("single-numa-node", "container", {}, NumaNodes.of(range(8)))
    assert decide_affinity(settings, requests) == Affinity(1, True)
    assert decide_affinity(TopologySettings.parse("restricted", "pod", {}, NumaNodes.of(range(8))), requests).mask == 1
