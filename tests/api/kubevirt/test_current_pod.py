"""Which of its launcher pods a VMI is in."""

from __future__ import annotations

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def pod(name: str, node: str | None, created: str = EARLY, phase: str = "Running") -> Object:
    return {"metadata": {"name": name, "namespace": "here", "uid": f"uid-{name}", "creationTimestamp": created},
            "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


def vmi(node: str = "", **status: object) -> Object:
    return {"metadata": {"name": "blue"}, "status": {**({"nodeName": node} if node else {}), **status}}


LEFT = pod("left", "a", phase="Succeeded")  # the VM came back to this host
CASES: dict[str, tuple[list[Object], Object, str | None]] = {
    "none": ([], vmi(), None),
    "not started: the newest": ([pod("failed", "a"), pod("again", None, LATE)], vmi(), "again"),
    "the one on its host": ([pod("source", "a"), pod("target", "b", LATE)],
                            vmi("a", activePods={"uid-source": "a", "uid-target": "b"}), "source"),
    "no pod on its host": ([pod("target", "b")], vmi("a"), None),
    "of the same second": ([LEFT, pod("back", "a")], vmi("a", activePods={"uid-back": "a"}), "back"),
    "of an earlier second": ([pod("left", "a", LATE, "Succeeded"), pod("back", "a")],
                             vmi("a", activePods={"uid-back": "a"}), "back"),
    "the status names the source": (
        [LEFT, pod("back", "a")], vmi("a", activePods={"uid-gone": "b"}, migrationState={
            "completed": True, "targetNode": "a", "targetPod": "back"}), "back"),
    "the status names none of them": ([LEFT, pod("other", "a", LATE)], vmi("a", activePods={"uid-gone": "a"}), "other"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1, -1], ids=["in order", "in reverse"])
def test_the_pod_that_a_vmi_is_in(case: str, step: int) -> None:
    pods, instance, name = CASES[case]
    found = vm.current_pod(pods[::step], instance)
    assert (found and found["metadata"]["name"]) == name
