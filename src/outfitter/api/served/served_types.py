"""The types of fields that the OpenAPI documents show: those of the stored version (`api.validate.shapes`), and fields that
only older versions have, which are converted before they are checked. Called by `openapi`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api.validate import node_placement, shapes
from outfitter.api.validate.shapes import Shape, dra
from outfitter.api.validate.shapes.common import LABELS

_METADATA: Shape = {"labels": LABELS, "annotations": LABELS}
_CLAIM_SPEC: Shape = {"controller": str, "devices": {"requests": [{"name": str, **dra.EXACTLY}]}}
OLDER: Mapping[str, Shape] = {
    "DeviceClass": {"spec": {"suitableNodes": node_placement.NODE_SELECTOR}},
    "ResourceClaim": {"spec": _CLAIM_SPEC},
    "ResourceClaimTemplate": {"spec": {"spec": _CLAIM_SPEC}},
    "ResourceSlice": {"spec": {"devices": [{"basic": dra.DEVICE}]}},
}


def served_types(kind: str) -> dict[str, Any]:
    """The fields of a kind with their types, as far as known."""
    known = {"apiVersion": str, "kind": str, "metadata": merged(shapes.METADATA, _METADATA)}
    return {**known, **merged(shapes.SHAPES.get(kind, {}), OLDER.get(kind, {}))}


def merged(checked: Any, served: Any = None) -> Any:
    """Two shapes as one, without the "!" of required fields. What admission checks has precedence; a plain object there gets
    the fields that are known here."""
    lists = [shape for shape in (checked, served) if isinstance(shape, list)]
    if lists:
        return [merged(*(shape[0] for shape in lists))]
    if isinstance(checked, Mapping) or isinstance(served, Mapping):
        plain, more = ({key.rstrip("!"): wanted for key, wanted in shape.items()} if isinstance(shape, Mapping) else {}
                       for shape in (checked, served))
        return {name: merged(plain.get(name), more.get(name)) for name in {**plain, **more}}
    return served if checked is None else checked
