"""How the runner of rendered pods reads what a case says: paths into a pod, and differences between two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.cases import run_render

PATHS = {
    "spec.containers[compute].resources.limits.acme.test/vf": "2",
    "spec.containers[compute].name": "compute",
    "spec.containers[other]": run_render.MISSING,
    "spec.containers[compute].resources.limits[acme.test/vf]": "2",
    "metadata.annotations[a.b/c]": "x",
    "spec.containers[0].name": "compute",
    "spec.containers[1]": run_render.MISSING,
    "spec.empty[compute]": run_render.MISSING,
    "metadata.annotations.a.b/c": "x",
    "spec.nothing.here": run_render.MISSING,
    "spec.empty": [],
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_into_a_pod(path: str) -> None:
    pod = {"metadata": {"annotations": {"a.b/c": "x"}}, "spec": {"empty": [], "containers": [
        {"name": "compute", "resources": {"limits": {"acme.test/vf": "2"}}}]}}
    assert run_render.find(pod, path) == PATHS[path]


CPU = "spec.containers[compute].resources.requests.cpu"
DELTAS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "a bare amount": ("1Gi", {"equals": "1Gi"}),
    "a path with an amount": ({CPU: "1"}, {"path": CPU, "equals": "1"}),
    "all of it": ({"path": CPU, "of": ["a", "b"], "equals": "1"}, {"path": CPU, "of": ["a", "b"], "equals": "1"}),
    "other words": ({"quantity": CPU, "more": "b", "less": "a", "is": 1}, {"path": CPU, "of": ["b", "a"], "equals": 1}),
    "in the order of the case": ({"vmis": ["a", "b"], "resource": "memory", "difference": "1Gi"},
                                 {"path": run_render.MEMORY, "of": ["a", "b"], "equals": "1Gi"}),
    "in a list": ([{"equals": "1Gi"}], {"path": run_render.MEMORY, "of": [], "equals": "1Gi"}),
}


@pytest.mark.parametrize("name", DELTAS)
def test_differences_between_pods_are_read_in_many_words(name: str) -> None:
    said, meant = DELTAS[name]
    assert run_render.deltas(said, ["a", "b"]) == [meant]
