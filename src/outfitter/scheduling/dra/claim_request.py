"""A claim, compiled: for each of its requests the alternatives, best first, and what its devices must have in common.

What cannot be understood is refused here, before anything is searched."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outfitter import cel
from outfitter.api import rejection_text
from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode
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


class SelectorOwner(NamedTuple):
    """Whose a selector is."""

    where: str  # "class gpu", or "claim default/train, request gpu"
    short: str  # "class gpu" or "request gpu"
    number: int  # which of its selectors, from 0
    total: int  # of how many

    @property
    def title(self) -> str:
        return f"{self.where}: selector #{self.number}"


@dataclass(slots=True)
class ClaimDeviceRequest:
    """A request, or one alternative of a request."""

    name: str  # as results bear it: "gpu", or "gpu/large" for an alternative
    parent: str  # the request's own name
    class_: Object
    selectors: tuple[str, ...]  # of the class, then its own
    owners: tuple[SelectorOwner, ...]  # whose each of them is
    everything: bool  # allocationMode All
    count: int  # unless it is for everything
    admin: bool
    tolerations: Sequence[Object]
    capacity: Asked
    derived: Mapping[str, cel.Selector]  # attributes that the request computes itself
    constraints: tuple[int, ...] = ()  # which of the claim's are for it
    only: frozenset[DeviceId] | None = None  # pre-assigned devices: no others

    @property
    def named(self) -> dict[str, str]:
        """The request as a rejection's detail names it: by the resource where the scheduler made the request of one."""
        resource = (self.class_.get("spec") or {}).get("extendedResourceName")
        return {"resource": resource} if resource and _MADE.fullmatch(self.name) else {"request": self.name}


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
            raise _invalid(f"{out.title}, constraint #{index}",
                           "empty or of an unknown type: use matchAttribute or distinctAttribute")
        out.constraints.append(Constraint(attribute, not raw.get("matchAttribute"), frozenset(raw.get("requests") or ())))
    if out.constraints:
        for ask in (ask for request in out.requests for ask in request):
            ask.constraints = tuple(index for index, one in enumerate(out.constraints) if one.applies(ask.parent, ask.name))
    return out


def _alternatives(raw: Object, title: str, classes: Classes, features: Features) -> list[ClaimDeviceRequest]:
    if subs := raw.get("firstAvailable"):
        if not features.prioritized_list:
            raise _disabled(f"{title}, request {raw['name']}", "has subrequests (firstAvailable)", "DRAPrioritizedList",
                            instead="use exactly")
        return [_ask(f"{raw['name']}/{sub['name']}", sub, (title, f"subrequest {sub['name']}"), classes, features)
                for sub in subs]
    return [_ask(raw["name"], raw.get("exactly") or {}, (title, f"request {raw['name']}"), classes, features)]


def _ask(full: str, exactly: Object, names: tuple[str, str], classes: Classes, features: Features) -> ClaimDeviceRequest:
    """`names`: what the claim and the request are called."""
    where, short = ", ".join(names), names[1]
    if exactly.get("capacity") is not None and not features.consumable_capacity:
        raise _disabled(where, "has capacity requests", "DRAConsumableCapacity")
    if exactly.get("derivedAttributes") and not features.derived_attributes:
        raise _disabled(where, "has derived attributes", "DRADerivedAttributes")
    if exactly.get("adminAccess") is not None and not features.admin_access:
        raise _disabled(where, "admin access is requested", "DRAAdminAccess")
    name = exactly.get("deviceClassName")
    if not name:
        raise _invalid(where, "missing device class name (an unknown type of request?)")
    class_ = classes(name)
    if class_ is None:
        raise rejection_text.error(Unsatisfiable, Rejection(
            RejectionCode.CLASS_MISSING, detail={"where": where, "class": name}))
    mode = exactly.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise _invalid(where, f"unsupported count mode {mode}: use ExactCount or All")
    count = exactly.get("count")
    selectors = [*_texts(f"class {name}", f"class {name}", (class_.get("spec") or {}).get("selectors")),
                 *_texts(where, short, exactly.get("selectors"))]
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


def _texts(where: str, short: str, selectors: Sequence[Object] | None) -> list[tuple[SelectorOwner, str]]:
    for index, one in enumerate(selectors or ()):
        if not one.get("cel"):
            raise _invalid(f"{where}, selector #{index}", "CEL expression empty (an unknown type of selector?)")
    return [(SelectorOwner(where, short, index, len(selectors or ())), one["cel"]["expression"])
            for index, one in enumerate(selectors or ())]


def _invalid(where: str, message: str) -> Unsatisfiable:
    return rejection_text.error(Unsatisfiable, Rejection.of(RejectionCode.CLAIM_INVALID, where=where, message=message))


def _disabled(where: str, what: str, feature: str, *, instead: str = "") -> Unsatisfiable:
    detail = {"where": where, "what": what, "feature": feature}
    return rejection_text.error(Unsatisfiable, Rejection(
        RejectionCode.FEATURE_DISABLED, detail={**detail, "instead": instead} if instead else detail))


def _amounts(exactly: Object, where: str) -> Asked:
    requests = (exactly.get("capacity") or {}).get("requests") or {}
    return tuple(
        sorted((name, consumable_capacity.number(text, f"{where}, capacity {name}")) for name, text in requests.items())
    )


def _expression(raw: Object, where: str) -> cel.Selector:
    found = compiled(f"dyn({raw['expression']}\n)")  # a selector must be true or false; this may be any value
    if isinstance(found, SelectorError):
        raise _invalid(f"{where}, derived attribute {raw['name']}", found.why)
    return found
