"""Field types of every kind, as data: the field names and types that `schema` checks at every write, that `api.known_fields`
knows, and that the OpenAPI documents show. Kinds of Kubernetes have all their fields; other kinds have those that are read or
documented. A field that is not listed may have any type and is kept.

>>> SHAPES["Flavor"]["spec!"]["vcpus"]
<class 'int'>
"""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.validate.shapes import core, dra, kubevirt, outfitter, pod
from outfitter.api.validate.shapes.common import METADATA, NUMBER, QUANTITY, Amount, Shape, Time

SHAPES: Mapping[str, Shape] = {**core.SHAPES, "Pod": pod.SHAPE, **dra.SHAPES, **kubevirt.SHAPES, **outfitter.SHAPES}

__all__ = ["METADATA", "NUMBER", "QUANTITY", "SHAPES", "Amount", "Shape", "Time"]
