"""The claims of a pod: the names behind its `resourceClaims`, and which results of an allocation answer a device reference.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.kubevirt.device_refs import CELLS_KIND, EXTENDED, DeviceRef, request_names
from outfitter.api.rejection import Rejection, RejectionCode


def claim_names(pod: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Name and claim object of each entry of a pod's resourceClaims: the claim is named in the spec, or for a template in the
    pod's status (None until then). The scheduler's claim for extended resources is last."""
    generated = {entry["name"]: entry.get("resourceClaimName")
            for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        yield entry["name"], entry.get("resourceClaimName") or generated.get(entry["name"])
    if made := ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName"):
        yield EXTENDED, made


def claim_keys(pod: Mapping[str, Any]) -> list[str]:
    """The keys ("namespace/name") of the claim objects that a pod uses, as far as they are known."""
    return [f"{pod['metadata']['namespace']}/{name}" for _, name in claim_names(pod) if name]


def entries_by_request(pod: Mapping[str, Any]) -> set[str]:
    """Entries of `resourceClaims` of which a container asks for single requests: of devices that a VM was started with."""
    return {entry["name"] for container in (pod.get("spec") or {}).get("containers") or ()
            for entry in (container.get("resources") or {}).get("claims") or () if entry.get("request")}


def claimed(ref: DeviceRef, claim: Mapping[str, Any] | None) -> bool:
    """Whether a claim determines the device of a reference. The claim for extended resources may have fewer devices than the
    VMI has entries, if the user wrote the number into resources: the surplus entries never get one."""
    allocation = ((claim or {}).get("status") or {}).get("allocation")
    return ref.by_claim and not (ref.by_resource and allocation and not results_for(claim or {}, ref))


def results(claim: Mapping[str, Any], request: str | None) -> list[Mapping[str, Any]]:
    """The allocation results of one request. A chosen alternative is written "request/alternative"."""
    return [result for result in allocation_results(claim) if str(result["request"]).partition("/")[0] == request]


def allocation_results(claim: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """All allocation results of a claim."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return devices.get("results") or ()


def results_for(claim: Mapping[str, Any], ref: DeviceRef) -> list[Mapping[str, Any]]:
    """The allocation results of a device reference."""
    all_results = results(claim, ref.request)
    return all_results if ref.number is None else all_results[ref.number:ref.number + 1]


def missing_request(pod: Mapping[str, Any], entry: str, claim: Mapping[str, Any]) -> Rejection | None:
    """A request that a launcher pod names of its claim and that the claim does not have: its VM can never start with this
    claim. None: the claim has them all."""
    if not vm.launches(pod):
        return None
    names = request_names(claim.get("spec") or {})
    for container in (pod.get("spec") or {}).get("containers") or ():
        for wanted in (container.get("resources") or {}).get("claims") or ():
            request = wanted.get("request")
            if wanted.get("name") == entry and request and request not in names and not results(claim, request):
                return Rejection.of(RejectionCode.REQUEST_MISSING, claim=claim["metadata"]["name"], entry=entry,
                                    request=request, requests=tuple(names))
    return None


def cells_of(claim: Mapping[str, Any]) -> Object:
    """The NUMA placement in a claim's allocation, as `hostCells`, `pinned` (number of dedicated CPUs by cell) and `cpus` of a
    VMI's `status.flavor`. Empty without an allocation or without a NUMA topology."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    for entry in devices.get("config") or ():
        parameters = (entry.get("opaque") or {}).get("parameters") or {}
        if isinstance(parameters, Mapping) and parameters.get("kind") == CELLS_KIND:
            return {key: parameters[key] for key in ("hostCells", "pinned", "cpus") if parameters.get(key)}
    return {}
