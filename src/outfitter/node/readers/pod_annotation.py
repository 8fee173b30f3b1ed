"""A pod with its assigned devices as an annotation, for readers that get no field for them. Pure."""

from __future__ import annotations

from outfitter.api.assignment import assigned_devices
from outfitter.api.assignment.assigned_devices import ANNOTATION, PodDevices
from outfitter.api.kinds import Object


def with_annotation(pod: Object, assigned: PodDevices) -> Object:
    annotations = pod["metadata"].get("annotations") or {}
    if not assigned or ANNOTATION in annotations:
        return pod
    added = assigned_devices.change(pod, assigned, field=False)["metadata"]["annotations"]
    return {**pod, "metadata": {**pod["metadata"], "annotations": {**annotations, **added}}}
