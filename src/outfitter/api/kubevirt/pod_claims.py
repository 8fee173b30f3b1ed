"""The claims of a pod: the names behind its `resourceClaims`, and which results of an allocation answer a device reference.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt.device_refs import CELLS_KIND, EXTENDED, DeviceRef


def claim_names(pod: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """For each entry of a pod's resourceClaims, its name and the name of the claim object: named directly, or told by the
    pod's status for a template (None while it does not). The claim that the scheduler made for extended resources is last."""
    told = {entry["name"]: entry.get("resourceClaimName")
            for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        yield entry["name"], entry.get("resourceClaimName") or told.get(entry["name"])
    if made := ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName"):
        yield EXTENDED, made


def claim_keys(pod: Mapping[str, Any]) -> list[str]:
    """The keys ("namespace/name") of the claim objects that a pod uses, as far as they are known."""
    return [f"{pod['metadata']['namespace']}/{name}" for _, name in claim_names(pod) if name]


def claimed(ref: DeviceRef, claim: Mapping[str, Any] | None) -> bool:
    """Whether a claim is to say which device it is. That for a pod's resources may have got fewer than there are entries,
    because somebody wrote the number himself: then it never will."""
    given = ((claim or {}).get("status") or {}).get("allocation")
    return ref.by_claim and not (ref.by_resource and given and not results_for(claim or {}, ref))


def results(claim: Mapping[str, Any], request: str | None) -> list[Mapping[str, Any]]:
    """What a claim got for one of its requests. An alternative that was chosen is written "request/alternative"."""
    return [result for result in allocation_results(claim) if str(result["request"]).partition("/")[0] == request]


def allocation_results(claim: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Everything that a claim got."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return devices.get("results") or ()


def results_for(claim: Mapping[str, Any], ref: DeviceRef) -> list[Mapping[str, Any]]:
    """What a claim got for a reference."""
    found = results(claim, ref.request)
    return found if ref.number is None else found[ref.number:ref.number + 1]


def cells_of(claim: Mapping[str, Any]) -> Object:
    """On which of the host's NUMA cells the machine of a claim lies, how many CPUs of which are its own, and which; as
    `hostCells`, `pinned` and `cpus` of a machine's `status.flavor`. Empty while it has none, and for one without a topology."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    for entry in devices.get("config") or ():
        said = (entry.get("opaque") or {}).get("parameters") or {}
        if isinstance(said, Mapping) and said.get("kind") == CELLS_KIND:
            return {key: said[key] for key in ("hostCells", "pinned", "cpus") if said.get(key)}
    return {}
