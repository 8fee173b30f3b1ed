"""A machine as far as its devices go: which it asks for, in whichever of the three spellings, and what it got."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from outfitter.api.kinds import Object
from outfitter.api.kubevirt.vm import CONTAINER, flavored

List = Literal["gpus", "hostDevices"]
Claims = Callable[[str, str], Object | None]  # namespace, name -> the claim
LISTS: tuple[List, ...] = ("gpus", "hostDevices")
DOMAIN_LISTS: tuple[List, ...] = ("hostDevices", "gpus")  # in the order of the domain
EXTENDED = "<extended-resources>"  # in the place of an entry's name: the claim for a pod's extended resources
FLAVOR_CLAIM = "flavor"  # the entry of a launcher pod's resourceClaims for the devices of the machine's flavor
CELLS_KIND = "GuestCells"  # of the parameters in an allocation's config that say where a machine lies


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """One entry of gpus[] or hostDevices[]."""

    list: List
    index: int
    name: str
    device_name: str | None  # asked for by resource name, from a device plugin
    claim: str | None  # asked for by claim: the name in spec.resourceClaims
    request: str | None
    claim_at: str = "claimName"  # the fields of the entry that say claim and request, or should
    request_at: str = "requestName"
    at_odds: tuple[str, ...] = ()  # fields of the entry that say the same thing in two spellings, and differently
    number: int | None = None  # of a flavor's device, or one by resource name: which of those that answer; None: all are its

    @property
    def path(self) -> str:
        if self.number is not None and not self.by_resource:
            return "spec.flavor"
        return f"spec.domain.devices.{self.list}[{self.index}]"

    @property
    def says_claim(self) -> bool:
        """A field of a claim is there, be it empty."""
        return self.claim is not None or self.request is not None

    @property
    def by_claim(self) -> bool:
        return self.device_name is None and self.says_claim

    @property
    def by_resource(self) -> bool:
        """Asked for by resource name, and got from the claim that the scheduler made for the pod's resources."""
        return self.claim == EXTENDED


def device_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """Every device asked for: those of the spec in its order, then those of its flavor, each under a name of its own."""
    return [*written_refs(instance), *flavor_refs(instance)]


def refs_in(instance: Mapping[str, Any], pod: Mapping[str, Any]) -> list[DeviceRef]:
    """Every device asked for, as it comes to be in a pod: one by resource name is a reference to the claim that the scheduler
    made for the pod's resources, where it made one (else a device plugin knows). The first of the claim's devices for a
    resource is that of the first entry in the order of the domain, and so on: as a launcher's environment lists them."""
    refs = device_refs(instance)
    told = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    requests = {one["resourceName"]: one["requestName"] for one in reversed(told.get("requestMappings") or ())
                if one.get("containerName") == CONTAINER} if told.get("resourceClaimName") else {}
    numbers = dict.fromkeys(requests, 0)
    for place, ref in sorted(enumerate(refs), key=lambda each: (DOMAIN_LISTS.index(each[1].list), each[1].index)):
        if (resource := ref.device_name) in requests:
            refs[place] = replace(ref, device_name=None, claim=EXTENDED, request=requests[resource], number=numbers[resource])
            numbers[resource] += 1
    return refs


def flavor_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """As host devices that stand behind those of the spec."""
    each = [(entry["name"], number) for entry in flavored(instance).get("devices") or () for number in range(entry["count"])]
    first = sum(ref.list == "hostDevices" for ref in written_refs(instance)) if each else 0
    return [DeviceRef("hostDevices", index, f"{name}-{number}", None, FLAVOR_CLAIM, name, number=number)
            for index, (name, number) in enumerate(each, first)]


def written_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """Every device that the spec itself asks for, in its order. A reference is written as claimName + requestName, as
    claimName + deviceRequestName, or as claim: {name, request}; they mean the same."""
    devices = ((instance.get("spec") or {}).get("domain") or {}).get("devices") or {}
    return [_ref(name, index, entry) for name in LISTS for index, entry in enumerate(devices.get(name) or ())]


class RequestRef(NamedTuple):
    """Where a VM names a request of one of its claims."""

    path: str
    claim: str | None  # the name in spec.resourceClaims
    request: str | None


def request_refs(instance: Mapping[str, Any], root: str = "spec") -> list[RequestRef]:
    """Every request that devices and networks of the spec name; paths begin with `root`."""
    refs = [RequestRef(f"{root}.domain.devices.{ref.list}[{ref.index}].{ref.request_at}", ref.claim, ref.request)
            for ref in written_refs(instance) if ref.by_claim]
    for index, network in enumerate((instance.get("spec") or {}).get("networks") or ()):
        if claim := network.get("resourceClaim"):
            path = f"{root}.networks[{index}].resourceClaim.requestName"
            refs.append(RequestRef(path, claim.get("claimName"), claim.get("requestName")))
    return refs


def request_names(spec: Mapping[str, Any]) -> list[str]:
    """The requests of a claim, by its spec."""
    return [str(request.get("name")) for request in (spec.get("devices") or {}).get("requests") or ()]


def unknown_request(spec: Mapping[str, Any], request: str | None) -> str:
    """That a claim, by its spec, has no such request, so that a device for it never comes; "" if it has."""
    names = request_names(spec)
    return "" if request in names else f'has no request "{request}"; it has {", ".join(names) or "none"}'


# Where an entry may say the claim and the request, in the order in which they are looked for.
CLAIM_FIELDS = ("claimName", "claim.name")
REQUEST_FIELDS = ("requestName", "deviceRequestName", "claim.request")


def _ref(list_: List, index: int, entry: Mapping[str, Any]) -> DeviceRef:
    nested = entry.get("claim")
    if nested is None and "deviceRequestName" not in entry:  # as nearly everybody writes it, and everybody asks all the time
        return DeviceRef(list_, index, entry.get("name", ""), entry.get("deviceName") or None, entry.get("claimName"),
                         entry.get("requestName"))
    said = {**entry, **({f"claim.{key}": value for key, value in nested.items()} if isinstance(nested, Mapping) else {})}
    odd: list[str] = []
    found: list[tuple[str | None, str]] = []
    for fields in (CLAIM_FIELDS, REQUEST_FIELDS):
        values = {field: said[field] for field in fields if said.get(field) is not None}
        odd += values if len(set(values.values())) > 1 else ()
        at = next(iter(values), fields[-1] if isinstance(nested, Mapping) else fields[0])
        found.append((values.get(at, "" if isinstance(nested, Mapping) else None), at))
    (claim, claim_at), (request, request_at) = found
    return DeviceRef(list_, index, entry.get("name", ""), entry.get("deviceName") or None, claim, request, claim_at,
                     request_at, tuple(odd))
