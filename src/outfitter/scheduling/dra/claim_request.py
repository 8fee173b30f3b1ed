"""A claim, compiled: for each of its requests the alternatives, best first, and what its devices must have in common.

What cannot be understood is refused here, before anything is searched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter import cel
from outfitter.api.device import DeviceId
from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import consumable_capacity
from outfitter.scheduling.dra.constraints import Constraint
from outfitter.scheduling.dra.selector_cache import SelectorError, compiled
from outfitter.scheduling.dra.slices import Asked

MOST = 32  # devices in one allocation
_MADE = re.compile(r"container-\d+-request-\d+")  # how requests for extended resources are called (`extended.py`)
Object = Mapping[str, Any]
Classes = Callable[[str], Object | None]  # name -> DeviceClass


@dataclass(slots=True)
class ClaimDeviceRequest:
    """A request, or one alternative of a request."""

    name: str  # as results bear it: "gpu", or "gpu/large" for an alternative
    parent: str  # the request's own name
    class_: Object
    selectors: tuple[str, ...]  # of the class, then its own
    owners: tuple[str, ...]  # whose each of them is, for errors
    everything: bool  # allocationMode All
    count: int  # unless it is for everything
    admin: bool
    tolerations: Sequence[Object]
    capacity: Asked
    derived: Mapping[str, cel.Selector]  # attributes that the request computes itself
    constraints: tuple[int, ...] = ()  # which of the claim's are for it
    only: frozenset[DeviceId] | None = None  # the very devices, chosen beforehand

    @property
    def spoken(self) -> str:
        """As people know it: they asked for a resource, where the scheduler made the request of it."""
        resource = (self.class_.get("spec") or {}).get("extendedResourceName")
        return f"resource {resource}" if resource and _MADE.fullmatch(self.name) else f"request {self.name}"


@dataclass(slots=True)
class CompiledClaim:
    """What one claim asks for."""

    claim: Object
    title: str  # "claim default/train"
    requests: list[list[ClaimDeviceRequest]] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)


def compile_claim(claim: Object, classes: Classes, features: Features) -> CompiledClaim:
    """Compile a claim. Unsatisfiable says which request cannot be understood, and why."""
    meta, devices = claim["metadata"], claim["spec"].get("devices") or {}
    out = CompiledClaim(
        claim, f"claim {meta['namespace']}/{meta['name']}" if meta.get("namespace") else f"claim {meta['name']}"
    )
    for raw in devices.get("requests") or ():
        out.requests.append(_alternatives(raw, out.title, classes, features))
    for index, raw in enumerate(devices.get("constraints") or ()):
        attribute = raw.get("matchAttribute") or raw.get("distinctAttribute")
        if not attribute:
            raise Unsatisfiable(f"{out.title}, constraint #{index}: empty or of a type that is not known: "
                                "use matchAttribute or distinctAttribute")
        out.constraints.append(Constraint(attribute, not raw.get("matchAttribute"), frozenset(raw.get("requests") or ())))
    if out.constraints:
        for ask in (ask for request in out.requests for ask in request):
            ask.constraints = tuple(index for index, one in enumerate(out.constraints) if one.applies(ask.parent, ask.name))
    return out


def _alternatives(raw: Object, title: str, classes: Classes, features: Features) -> list[ClaimDeviceRequest]:
    if subs := raw.get("firstAvailable"):
        if not features.prioritized_list:
            raise Unsatisfiable(f"{title}, request {raw['name']}: has subrequests (firstAvailable), but the DRAPrioritizedList "
                                "feature is disabled: use exactly")
        return [_ask(f"{raw['name']}/{sub['name']}", sub, f"{title}, subrequest {sub['name']}", classes, features)
                for sub in subs]
    return [_ask(raw["name"], raw.get("exactly") or {}, f"{title}, request {raw['name']}", classes, features)]


def _ask(full: str, exactly: Object, where: str, classes: Classes, features: Features) -> ClaimDeviceRequest:
    if exactly.get("capacity") is not None and not features.consumable_capacity:
        raise Unsatisfiable(f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled")
    if exactly.get("derivedAttributes") and not features.derived_attributes:
        raise Unsatisfiable(f"{where}: has derived attributes, but the DRADerivedAttributes feature is disabled")
    if exactly.get("adminAccess") is not None and not features.admin_access:
        raise Unsatisfiable(f"{where}: admin access is requested, but the feature is disabled")
    name = exactly.get("deviceClassName")
    if not name:
        raise Unsatisfiable(f"{where}: missing device class name (a type of request that is not known?)")
    class_ = classes(name)
    if class_ is None:
        raise Unsatisfiable(f"{where}: there is no DeviceClass {name}")
    mode = exactly.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise Unsatisfiable(f"{where}: unsupported count mode {mode}: use ExactCount or All")
    count = exactly.get("count")
    selectors = [*_texts(f"class {name}", (class_.get("spec") or {}).get("selectors")),
                 *_texts(where, exactly.get("selectors"))]
    return ClaimDeviceRequest(
        name=full,
        parent=full.partition("/")[0],
        class_=class_,
        selectors=tuple(text for _, text in selectors),
        owners=tuple(owner for owner, _ in selectors),
        everything=mode == "All",
        count=1 if count is None else count,
        admin=bool(exactly.get("adminAccess")),
        tolerations=exactly.get("tolerations") or (),
        capacity=_amounts(exactly, where),
        derived={one["name"]: _expression(one, where) for one in exactly.get("derivedAttributes") or ()},
    )


def _texts(owner: str, selectors: Sequence[Object] | None) -> list[tuple[str, str]]:
    for index, one in enumerate(selectors or ()):
        if not one.get("cel"):
            raise Unsatisfiable(f"{owner}, selector #{index}: CEL expression empty (a type of selector that is not known?)")
    return [(f"{owner}: selector #{index}", one["cel"]["expression"]) for index, one in enumerate(selectors or ())]


def _amounts(exactly: Object, where: str) -> Asked:
    requests = (exactly.get("capacity") or {}).get("requests") or {}
    return tuple(
        sorted((name, consumable_capacity.number(text, f"{where}, capacity {name}")) for name, text in requests.items())
    )


def _expression(raw: Object, where: str) -> cel.Selector:
    found = compiled(f"dyn({raw['expression']}\n)")  # a selector must be true or false; this may be any value
    if isinstance(found, SelectorError):
        raise Unsatisfiable(f"{where}, derived attribute {raw['name']}: {found.why}")
    return found
