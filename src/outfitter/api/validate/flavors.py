"""Flavors: vcpus, memory and disk, and the names of extra specs. Extra specs depend on the configured aliases and are checked
in `scheduling.nova.flavor_claim.checked`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api import quantity
from outfitter.api.validate import names, resources
from outfitter.errors import Cause, Invalid

MAX_VCPUS = 4096


def flavor(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj["spec"]
    for field in ("vcpus", "memory"):
        yield from names.required(spec.get(field), f"spec.{field}")
    if spec.get("vcpus") is not None and not 1 <= spec["vcpus"] <= MAX_VCPUS:
        yield Cause("spec.vcpus", f"Invalid value: {spec['vcpus']}: must be a number from 1 to {MAX_VCPUS}")
    for field, least, example in (("memory", 1, "2Gi"), ("disk", 0, "20Gi")):
        if spec.get(field) in (None, ""):
            continue
        try:
            enough = least <= quantity.to_int(spec[field]) < resources.MOST
        except Invalid:
            enough = False
        if not enough:
            above = " above zero" if least else ""
            yield Cause(f"spec.{field}", f'Invalid value: "{spec[field]}": must be an amount{above}, such as {example}')
    for key in spec.get("extraSpecs") or {}:
        if not key.strip():
            yield Cause("spec.extraSpecs", "Invalid value: an extra spec needs a name, such as pci_passthrough:alias")
