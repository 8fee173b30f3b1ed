"""Everything that the format of the device assignment cases does not know is named, with its place and what is known."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cases import assignment_vocabulary

CASE: Mapping[str, Any] = {
    "name": "a-case", "area": "assign", "basis": "document",
    "given": {
        "nodes": {"n1": {"numa": [0, 1], "policy": "none", "distances": [[10, 20], [20, 10]], "options": {"a": "b"}}},
        "plugins": {"gpu": {"resource": "a.io/gpu", "devices": {"g0": [], 1: [0]}, "fails": {"Allocate": False}}},
        "drivers": {"net": {"driver": "net.d.io", "devices": ["d0"], "fails": {"NodePrepareResources": {"k": "no firmware"}}}},
        "claims": {"k": {"results": [{"request": "r", "driver": "net.d.io", "device": "d0"}]}},
        "pods": [{"name": "p", "claims": {"c": "k"}, "containers": [{"name": "c", "limits": {"a.io/gpu": 1}}]}]},
    "when": [{"op": "delete", "pod": "p", "expect": {"calls": {"gpu": {"Allocate": [{"n": 1, "of": ["g0", 1]}]}}}}],
    "expect": {"order": [["Allocate gpu", "gone p"]], "any_of": [{"pods": {"p": {"assigned": {"c": {"a.io/gpu": 1}}}}}],
               "readers": {"list": {"p": {"c": "any"}, "q": "any"}, "get": {"p": None}, "watch": ["INITIAL_SYNC_COMPLETE"]}},
}
WRONG: Mapping[str, tuple[str, Any, str]] = {  # what is changed in it -> the path, the value, and what is said
    "a basis": ("basis", "quirk", "known are: document, kubelet, better"),
    "a key": ("mood", 1, 'unknown key "mood"'),
    "a key of given": ("given.pod", [], 'unknown key "pod" in given'),
    "a policy": ("given.nodes.n1.policy", "strict", 'unknown word "strict" in given.nodes.n1.policy'),
    "two policies": ("given.nodes.n1.policy", ["none"], "unknown word"),
    "a scope": ("given.nodes.n1.scope", "node", "known are: container, pod"),
    "a distance": ("given.nodes.n1.distances", [["near"]], "a number is expected"),
    "too few distances": ("given.nodes.n1.distances", [[10, 20]], "2 rows of 2 numbers are expected"),
    "an option": ("given.nodes.n1.options", {"prefer-closest-numa-nodes": ["true"]}, "a text is expected"),
    "a node": ("given.plugins.gpu.node", "n2", 'unknown node "n2" in given.plugins.gpu; known are: n1'),
    "a way to register": ("given.plugins.gpu.via", "dial", "known are: register, watcher"),
    "devices as a list": ("given.plugins.gpu.devices", ["g0"], "a mapping is expected"),
    "a method that fails": ("given.plugins.gpu.fails", {"ListAndWatch": "no"}, '"ListAndWatch"'),
    "a method that is empty": ("given.plugins.gpu.empty", "Allocate", "a list is expected"),
    "no resource": ("given.plugins.gpu", {"devices": {}}, 'the key "resource" is missing'),
    "a health": ("given.drivers.net.health", {"d0": "Well"}, "known are: Healthy, Unhealthy, Unknown"),
    "a method of drivers": ("given.drivers.net.skips", {"Allocate": ["k"]}, '"Allocate"'),
    "a result": ("given.claims.k.results", [{"driver": "net.d.io", "device": "d0"}], 'the key "request" is missing'),
    "a claim": ("given.pods", [{"name": "p", "claims": {"c": "other"}, "containers": []}], 'unknown claim "other"'),
    "a restart": ("given.pods", [{"name": "p", "containers": [{"name": "c", "restart": "Never"}]}], "known are: Always"),
    "a name that YAML reads otherwise": ("given.pods", [{"name": False, "containers": []}], "a text is expected"),
    "a limit": ("given.pods", [{"name": "p", "containers": [{"name": "c", "limits": {"a.io/gpu": "one"}}]}], "a number is"),
    "an op": ("when", [{"op": "teleport"}], 'unknown op "teleport"'),
    "no op": ("when", [{"pod": "p"}], 'the key "op" is missing'),
    "a key of an op": ("when", [{"op": "delete", "pod": "p", "force": True}], 'unknown key "force" in when[0]'),
    "a key that an op needs": ("when", [{"op": "finish", "pod": "p"}], 'the key "phase" is missing'),
    "a phase that is not written": ("when", [{"op": "finish", "pod": "p", "phase": "Running"}], "known are: Succeeded, Failed"),
    "a checkpoint": ("when", [{"op": "restart_agent", "checkpoint": "burnt"}], "kept, lost, corrupt, torn, stale"),
    "a state of the API server": ("when", [{"op": "api", "agent": "slow"}], "read_only, away, back"),
    "a plugin": ("when", [{"op": "stop_plugin", "plugin": "nic"}], 'unknown plugin "nic" in when[0]; known are: gpu'),
    "a driver": ("when", [{"op": "stop_driver", "driver": "gpu"}], 'unknown driver "gpu" in when[0]; known are: net'),
    "an agent": ("when", [{"op": "stop_agent", "node": "n7"}], 'unknown node "n7"'),
    "a time": ("when", [{"op": "advance", "seconds": "a while"}], "a number is expected"),
    "a phase": ("expect.pods", {"p": {"phase": "Gone"}}, "known are: Pending, Running, Succeeded, Failed"),
    "a set": ("expect.pods", {"p": {"assigned": {"c": {"a.io/gpu": "g0"}}}}, "a set of ids is expected"),
    "a set without of": ("expect.pods", {"p": {"assigned": {"c": {"a.io/gpu": {"n": 1}}}}}, 'the key "of" is missing'),
    "a health of a pod": ("expect.pods", {"p": {"health": {"c": {"a.io/gpu": {"g0": "Sick"}}}}}, 'unknown word "Sick"'),
    "an order": ("expect.order", [["born p"]], 'unknown item "born p"'),
    "an order of an unknown plugin": ("expect.order", [["Allocate nic"]], 'unknown plugin or driver "nic"'),
    "an order of a driver's call to a plugin": ("expect.order", [["NodePrepareResources gpu"]], "known are: net"),
    "calls of an unknown plugin": ("expect.calls", {"nic": {"Allocate": 0}}, 'unknown plugin or driver "nic"'),
    "calls of another kind": ("expect.calls", {"net": {"Allocate": 0}}, 'unknown method "Allocate" in expect.calls.net'),
    "a call": ("expect.calls", {"gpu": {"Allokate": 0}}, 'unknown key "Allokate"'),
    "a preference": ("expect.calls", {"gpu": {"GetPreferredAllocation": [{"amount": 1}]}}, 'unknown key "amount"'),
    "a reader": ("expect.readers", {"shows": []}, 'unknown key "shows"'),
    "the node of a reader": ("expect.readers", {"node": "n9"}, 'unknown node "n9"'),
    "an event": ("expect.readers", {"watch": ["MODIFIED p"]}, 'unknown event "MODIFIED p"'),
    "a CNI plugin": ("expect.readers", {"cni": [{"pod": "p", "devices": {}}]}, 'the key "knows" is missing'),
    "an alternative": ("expect.any_of", [{"mood": 1}], 'unknown key "mood" in expect.any_of[0]'),
    "a node of an alternative": ("expect.any_of", [{"nodes": {"n9": {"capacity": {}}}}], 'unknown node "n9"'),
    "a notification": ("expect.notified", {"nic": {"registered": True}}, 'unknown plugin or driver "nic"'),
}


def test_what_is_known_is_accepted() -> None:
    assert list(assignment_vocabulary.CASE(CASE, "")) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_known_is_named(name: str) -> None:
    path, value, words = WRONG[name]
    case: Any = copy.deepcopy(dict(CASE))
    *above, last = path.split(".")
    place = case
    for key in above:
        place = place[key]
    place[last] = value
    problems = list(assignment_vocabulary.CASE(case, ""))
    assert any(words in problem for problem in problems), problems
