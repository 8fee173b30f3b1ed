from __future__ import annotations

import json
from typing import Any

from outfitter.api.assignment.assigned_devices import ANNOTATION
from outfitter.node.readers.pod_annotation import with_annotation

POD: dict[str, Any] = {"metadata": {"name": "p", "namespace": "blue", "uid": "u1"}, "spec": {"containers": [{"name": "c"}]}}


def test_assigned_devices_are_sent_as_the_annotation() -> None:
    pod = with_annotation(POD, {"c": {"a.io/gpu": ("g0",)}})
    assert json.loads(pod["metadata"]["annotations"][ANNOTATION]) == {"c": [{"resourceName": "a.io/gpu", "deviceIDs": ["g0"]}]}
    assert "annotations" not in POD["metadata"]
    assert with_annotation(POD, {}) is POD
