"""Every way of asking becomes a Request: how many, and which devices qualify. Today that is a claim of
resource.k8s.io; aliases and flavors end in the same value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from outfitter import cel
from outfitter.api.kinds import Object
from outfitter.errors import Unsatisfiable

Classes = Callable[[str], Object | None]  # name -> DeviceClass


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    count: int
    class_name: str
    selectors: tuple[cel.Selector, ...]

    def wants(self, device: cel.Device) -> bool:
        """All selectors of class and request hold. cel.EvaluationError when one cannot be told of this device."""
        return all(selector.matches(device) for selector in self.selectors)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> cel.Selector:
    return cel.compile_selector(text, limit=None)  # what was let in is not judged again


def compile_claim(claim: Mapping[str, Any], classes: Classes) -> list[Request]:
    """The requests of a claim. Unsatisfiable, with the reason, when one cannot be understood or its class is not there."""
    devices = claim["spec"].get("devices") or {}
    for feature in ("constraints", "config"):
        if devices.get(feature):
            raise Unsatisfiable(f"spec.devices.{feature} is not supported yet: leave it out")
    return [_request(request, classes) for request in devices.get("requests") or ()]


def _request(request: Mapping[str, Any], classes: Classes) -> Request:
    name, exactly = request["name"], request.get("exactly")
    if exactly is None:
        raise Unsatisfiable(f"request {name}: firstAvailable is not supported yet: use exactly")
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise Unsatisfiable(f"request {name}: allocationMode {exactly['allocationMode']} is not supported yet: use ExactCount")
    for feature in ("adminAccess", "tolerations", "capacity"):
        if exactly.get(feature):
            raise Unsatisfiable(f"request {name}: {feature} is not supported yet: leave it out")
    device_class = classes(exactly["deviceClassName"])
    if device_class is None:
        raise Unsatisfiable(f"request {name}: there is no DeviceClass {exactly['deviceClassName']}")
    selectors = [*((device_class.get("spec") or {}).get("selectors") or ()), *(exactly.get("selectors") or ())]
    return Request(name, exactly.get("count", 1), exactly["deviceClassName"],
                   tuple(_compiled(selector["cel"]["expression"]) for selector in selectors))
