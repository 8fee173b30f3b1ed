"""Device references of a VMI: the entries of gpus[] and hostDevices[], in any of the three spellings of a claim reference, and
the devices of its flavor. Pure functions over wire objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from outfitter.api.kinds import Object
from outfitter.api.kubevirt.vm import CONTAINER, flavored

List = Literal["gpus", "hostDevices"]
Claims = Callable[[str, str], Object | None]  # namespace, name -> the claim
LISTS: tuple[List, ...] = ("gpus", "hostDevices")
DOMAIN_LISTS: tuple[List, ...] = ("hostDevices", "gpus")  # in the order of the domain XML
EXTENDED = "<extended-resources>"  # instead of an entry's name: the claim that the scheduler makes for extended resources
FLAVOR_CLAIM = "flavor"  # the entry of a launcher pod's resourceClaims for the flavor's devices
CELLS_KIND = "GuestCells"  # kind of the opaque parameters that map guest NUMA cells to host cells


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """One entry of gpus[] or hostDevices[]."""

    list: List
    index: int
    name: str
    device_name: str | None  # requested by resource name (device plugin)
    claim: str | None  # requested by claim: the name in spec.resourceClaims
    request: str | None
    claim_at: str = "claimName"  # the fields of the entry that name claim and request, for messages
    request_at: str = "requestName"
    at_odds: tuple[str, ...] = ()  # fields of the entry that contradict each other
    number: int | None = None  # index among the request's results, for a flavor or resource name; None: all

    @property
    def path(self) -> str:
        if self.number is not None and not self.by_resource:
            return "spec.flavor"
        return f"spec.domain.devices.{self.list}[{self.index}]"

    @property
    def says_claim(self) -> bool:
        """Whether a claim field is present, possibly empty."""
        return self.claim is not None or self.request is not None

    @property
    def by_claim(self) -> bool:
        return self.device_name is None and self.says_claim

    @property
    def by_resource(self) -> bool:
        """Requested by resource name, and allocated by the claim that the scheduler made for the pod's extended resources."""
        return self.claim == EXTENDED


def device_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """All requested devices: those of the spec in order, then those of its flavor, with unique names."""
    return [*written_refs(instance), *flavor_refs(instance)]


def refs_in(instance: Mapping[str, Any], pod: Mapping[str, Any]) -> list[DeviceRef]:
    """All requested devices as a pod gets them: a resource name becomes a reference to the scheduler's claim for extended
    resources, where there is one (else a device plugin allocates). The claim's devices for a resource go to the entries in the
    order of the domain, as the launcher's environment lists them."""
    refs = device_refs(instance)
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    requests = {mapping["resourceName"]: mapping["requestName"] for mapping in reversed(status.get("requestMappings") or ())
                if mapping.get("containerName") == CONTAINER} if status.get("resourceClaimName") else {}
    numbers = dict.fromkeys(requests, 0)
    for place, ref in sorted(enumerate(refs), key=lambda entry: (DOMAIN_LISTS.index(entry[1].list), entry[1].index)):
        if (resource := ref.device_name) in requests:
            refs[place] = replace(ref, device_name=None, claim=EXTENDED, request=requests[resource], number=numbers[resource])
            numbers[resource] += 1
    return refs


def flavor_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """The flavor's devices, as host devices after those of the spec."""
    named = [(entry["name"], number) for entry in flavored(instance).get("devices") or () for number in range(entry["count"])]
    first = sum(ref.list == "hostDevices" for ref in written_refs(instance)) if named else 0
    return [DeviceRef("hostDevices", index, f"{name}-{number}", None, FLAVOR_CLAIM, name, number=number)
            for index, (name, number) in enumerate(named, first)]


def written_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """The devices of the spec in order. A claim reference is claimName + requestName, claimName + deviceRequestName, or
    claim: {name, request}, with the same meaning."""
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
    """The message that a claim's spec lacks a request, so that a device of it is never allocated; "" if it has the request."""
    names = request_names(spec)
    return "" if request in names else f'has no request "{request}"; it has {", ".join(names) or "none"}'


# Fields of an entry that may name the claim and the request, in order of precedence.
CLAIM_FIELDS = ("claimName", "claim.name")
REQUEST_FIELDS = ("requestName", "deviceRequestName", "claim.request")


def _ref(list_: List, index: int, entry: Mapping[str, Any]) -> DeviceRef:
    nested = entry.get("claim")
    if nested is None and "deviceRequestName" not in entry:  # fast path for the usual spelling
        return DeviceRef(list_, index, entry.get("name", ""), entry.get("deviceName") or None, entry.get("claimName"),
                         entry.get("requestName"))
    fields_of_entry = {
        **entry,
        **({f"claim.{key}": value for key, value in nested.items()} if isinstance(nested, Mapping) else {}),
    }
    odd: list[str] = []
    named: list[tuple[str | None, str]] = []
    for fields in (CLAIM_FIELDS, REQUEST_FIELDS):
        values = {field: fields_of_entry[field] for field in fields if fields_of_entry.get(field) is not None}
        odd += values if len(set(values.values())) > 1 else ()
        at = next(iter(values), fields[-1] if isinstance(nested, Mapping) else fields[0])
        named.append((values.get(at, "" if isinstance(nested, Mapping) else None), at))
    (claim, claim_at), (request, request_at) = named
    return DeviceRef(list_, index, entry.get("name", ""), entry.get("deviceName") or None, claim, request, claim_at,
                     request_at, tuple(odd))
