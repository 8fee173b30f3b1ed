"""What `why` suggests is tried out on the scheduler's own snapshot: what would not help by a gate, a taint rule, a plug-in, the
clock or another pod's pre-assigned device is not suggested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.scheduling.config import Features
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.plugins import GivenDevice, SchedulerPlugins
from tests.scheduling.builders import CLASSES, DRIVER, SINCE, VF, ask, claim, counted, dev, node, page, part, pod, taking

HELD = page("a", ("a0", "train"))
A = part("a", dev("a0", **VF))
TWO = claim("c", ask("nic", count=2))
CARD = counted("a", 2, taking(dev("vf0", **VF), 1), dev("a0", **VF))  # a VF that shares counters, and one that does not
BURNT: Object = {"metadata": {"name": "burnt"}, "spec": {
    "deviceSelector": {"driver": DRIVER, "pool": "a", "device": "a0"}, "taint": {"key": "burnt", "effect": "NoSchedule"}}}
BRIEF = {"key": "old", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
AGED: Object = {"metadata": {"name": "old"}, "spec": {
    "deviceSelector": {"driver": DRIVER}, "taint": {"key": "old", "effect": "NoExecute", "timeAdded": SINCE}}}


class Picky:
    name = "picky"

    def filter(self, pod: Mapping[str, Any], node: Mapping[str, Any], devices: Sequence[GivenDevice]) -> str | None:
        return f"{devices[0].name} is not for everybody"


def cluster(wanted: Object, slices: Sequence[Object] = (A,), **more: Any) -> ClusterObjects:
    return replace(ClusterObjects([], [], [wanted], list(CLASSES.values()), slices, [HELD.object], [node("a")]), **more)


CASES: dict[str, tuple[ClusterObjects, dict[str, Any]]] = {
    "what a DeviceTaintRule keeps away": (cluster(claim("c")), {"rules": [BURNT]}),
    "what a feature gate switches off": (cluster(TWO, CARD), {"features": Features.of({"DRAPartitionableDevices": False})}),
    "what a plug-in forbids": (cluster(claim("c")), {"plugins": SchedulerPlugins(filters=(Picky(),))}),
    "what is tolerated no longer": (
        cluster(claim("c", ask("nic", tolerations=[BRIEF])), rules=[AGED]), {"now": datetime(2026, 1, 2, tzinfo=UTC)}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_would_not_help_is_not_suggested(name: str) -> None:
    without, more = CASES[name]
    assert releases(without) == ["vmi/train"], "without it the suggestion is right"
    assert releases(replace(without, **more)) == []


def releases(known: ClusterObjects) -> list[str]:
    """The holders whose end is suggested for host a."""
    todo = explain_pod.pod(known, pod("c")).todo
    return [holder for holder in ("vmi/train",) for line in todo if {"a", holder} <= set(line.split())]


def test_no_class_is_suggested_for_a_resource_while_the_gate_is_off() -> None:
    wanted = pod(containers=[{"name": "main", "resources": {"limits": {"example.com/gpu": "1"}}}])
    on = cluster(claim("c"))
    assert any("extendedResourceName" in each for each in explain_pod.pod(on, wanted).todo)
    off = replace(on, features=Features.of({"DRAExtendedResource": False}))
    assert not any("extendedResourceName" in each for each in explain_pod.pod(off, wanted).todo)
