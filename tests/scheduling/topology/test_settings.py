from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from outfitter.errors import Invalid
from outfitter.scheduling.topology.settings import NumaNodes, TopologyPolicy, TopologyScope, TopologySettings


def test_a_setting_of_the_kubelet_is_read() -> None:
    numa = NumaNodes.of([1, 0], [[10, 20], [20, 10]])
    settings = TopologySettings.parse("restricted", "pod", {"prefer-closest-numa-nodes": "true"}, numa)
    assert (settings.policy, settings.scope, settings.prefer_closest) == (TopologyPolicy.RESTRICTED, TopologyScope.POD, True)
    assert settings.numa.ids == (0, 1)
    assert settings.numa.average_distance(0b11) == 15


def test_nine_nodes_with_the_option_for_them() -> None:
    options = {"max-allowable-numa-nodes": "9"}
    assert TopologySettings.parse("best-effort", "container", options, NumaNodes.of(range(9))).numa.mask == 0b111111111


def test_policy_none_reads_nothing_else() -> None:
    settings = TopologySettings.parse("none", "", {"nonsense": "1"}, NumaNodes.of(range(40)))
    assert settings.policy is TopologyPolicy.NONE


@dataclass
class Refused:
    text: str
    policy: str = "restricted"
    scope: str = "container"
    options: dict[str, str] = field(default_factory=dict)
    numa: NumaNodes = field(default_factory=lambda: NumaNodes.of([0, 1]))


REFUSED = {
    "an unknown policy": Refused("'strict'", policy="strict"),
    "an unknown scope": Refused("'node'", scope="node"),
    "an unknown option": Refused("'closest'", options={"closest": "true"}),
    "a word that is no boolean": Refused("'yes'", options={"prefer-closest-numa-nodes": "yes"}),
    "distances that are unknown": Refused("distances", options={"prefer-closest-numa-nodes": "1"}),
    "a row without all distances": Refused(
        "distances", options={"prefer-closest-numa-nodes": "1"}, numa=NumaNodes.of([0, 1], [[10, 20], [20]])),
    "a limit below eight": Refused("'7'", options={"max-allowable-numa-nodes": "7"}),
    "a limit that is no number": Refused("'many'", options={"max-allowable-numa-nodes": "many"}),
    "nine nodes": Refused("9 NUMA nodes", numa=NumaNodes.of(range(9))),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_settings_with_which_a_kubelet_does_not_start(case: Refused) -> None:
    with pytest.raises(Invalid, match=case.text):
        TopologySettings.parse(case.policy, case.scope, case.options, case.numa)
