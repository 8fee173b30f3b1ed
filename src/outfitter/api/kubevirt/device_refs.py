"""A machine as far as its devices go: which it asks for, in whichever of the three spellings, and what it got."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from outfitter.api.kinds import Object
from outfitter.api.quantity import to_int

List = Literal["gpus", "hostDevices"]
Claims = Callable[[str, str], Object | None]  # namespace, name -> the claim
LISTS: tuple[List, ...] = ("gpus", "hostDevices")
DOMAIN_LISTS: tuple[List, ...] = ("hostDevices", "gpus")  # in the order of the domain
STATUS_LISTS: Mapping[List, str] = {"gpus": "gpuStatuses", "hostDevices": "hostDeviceStatuses"}
BEFORE = ("Pending", "Scheduling", "Scheduled")  # phases of a machine that has not started
FINAL = ("Succeeded", "Failed")
LAUNCHER = "virt-launcher"  # label value of the pods in which machines run
LAUNCHER_LABEL = "kubevirt.io"
CONTAINER = "compute"  # of a launcher pod: that in which the machine runs
CREATED_BY = "kubevirt.io/created-by"
EXTENDED = "<extended-resources>"  # in the place of an entry's name: the claim for a pod's extended resources
FLAVOR_CLAIM = "flavor"  # the entry of a launcher pod's resourceClaims for the devices of the machine's flavor
CELLS_KIND = "GuestCells"  # of the parameters in an allocation's config that say where a machine lies
DEFAULT_MEMORY = "1Gi"
FINALIZER = "foregroundDeleteVirtualMachine"


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


def run_strategy(machine: Mapping[str, Any]) -> str:
    """Whether a VirtualMachine is meant to run. One that does not say stays stopped; `running` is the older way to say it."""
    spec = machine.get("spec") or {}
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


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


def flavor_name(instance: Mapping[str, Any]) -> str:
    """The flavor that the spec names; "" for none."""
    return str(((instance.get("spec") or {}).get("flavor") or {}).get("name") or "")


def flavored(instance: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the flavor said when the machine was made, as the status keeps it; empty while it is not settled. A machine without
    a flavor has such a record of its CPUs, if they are to be its own."""
    found: Mapping[str, Any] = (instance.get("status") or {}).get("flavor") or {}
    return found if flavor_name(instance) or dedicated(instance) else {}


def dedicated(instance: Mapping[str, Any]) -> bool:
    """Whether the spec asks for CPUs of the host that are the machine's own."""
    cpu = ((instance.get("spec") or {}).get("domain") or {}).get("cpu") or {}
    return bool(cpu.get("dedicatedCpuPlacement"))


def own_cpus(instance: Mapping[str, Any]) -> Mapping[int, Sequence[int]]:
    """CPUs of the host that are the machine's own, by NUMA cell; those of lower cells are the guest's first."""
    said = flavored(instance).get("cpus") or {}
    return {int(cell): said[cell] for cell in sorted(said, key=int)}


def flavor_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """As host devices that stand behind those of the spec."""
    each = [(entry["name"], number) for entry in flavored(instance).get("devices") or () for number in range(entry["count"])]
    first = sum(ref.list == "hostDevices" for ref in written_refs(instance)) if each else 0
    return [DeviceRef("hostDevices", index, f"{name}-{number}", None, FLAVOR_CLAIM, name, number=number)
            for index, (name, number) in enumerate(each, first)]


def _unsettled_flavor(instance: Mapping[str, Any]) -> list[str]:
    """A machine whose flavor is not settled has devices that nobody knows yet."""
    name = flavor_name(instance)
    return [f"those of flavor {name}"] if name and not flavored(instance) else []


def memory(instance: Mapping[str, Any]) -> str:
    """How much memory the machine has: what the spec says, else its flavor."""
    domain = instance["spec"].get("domain") or {}
    said = (domain.get("memory") or {}).get("guest") or _resource(domain, "memory")
    return str(said or flavored(instance).get("memory") or DEFAULT_MEMORY)


def _resource(domain: Mapping[str, Any], name: str) -> Any:
    resources = domain.get("resources") or {}
    return (resources.get("requests") or {}).get(name) or (resources.get("limits") or {}).get(name)


def vcpus(instance: Mapping[str, Any]) -> int:
    """How many CPUs the machine has: what the spec says, else its flavor."""
    return math.prod(topology(instance))


def topology(instance: Mapping[str, Any]) -> tuple[int, int, int]:
    """Sockets, cores, threads. Without any of them as many sockets as CPUs are requested, or as its flavor has."""
    domain = instance["spec"].get("domain") or {}
    cpu = domain.get("cpu") or {}
    sockets, cores, threads = (int(cpu.get(key) or 0) for key in ("sockets", "cores", "threads"))
    if sockets or cores or threads:
        return sockets or 1, cores or 1, threads or 1
    said = _resource(domain, "cpu")
    return to_int(str(said)) if said else int(flavored(instance).get("vcpus") or 1), 1, 1


def written_refs(instance: Mapping[str, Any]) -> list[DeviceRef]:
    """Every device that the spec itself asks for, in its order. A reference is written as claimName + requestName, as
    claimName + deviceRequestName, or as claim: {name, request}; they mean the same."""
    devices = ((instance.get("spec") or {}).get("domain") or {}).get("devices") or {}
    return [_ref(name, index, entry) for name in LISTS for index, entry in enumerate(devices.get(name) or ())]


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


def shows_nodes(instance: Mapping[str, Any]) -> bool:
    """Whether the guest is to see the NUMA nodes of its host."""
    cpu = ((instance.get("spec") or {}).get("domain") or {}).get("cpu") or {}
    asked = (cpu.get("numa") or {}).get("guestMappingPassthrough") is not None
    return asked or bool(flavor_name(instance) and flavored(instance).get("hostCells"))


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


def statuses(instance: Mapping[str, Any], list_: List) -> Sequence[Mapping[str, Any]]:
    """What the status says of the devices of one list."""
    given = (instance.get("status") or {}).get("deviceStatus") or {}
    return given.get(STATUS_LISTS[list_]) or ()


def status_of(instance: Mapping[str, Any], ref: DeviceRef) -> list[Mapping[str, Any]]:
    """What the status says of a device asked for."""
    return [entry for entry in statuses(instance, ref.list) if entry.get("name") == ref.name]


def missing_devices(instance: Mapping[str, Any]) -> list[str]:
    """The devices of which the status does not yet say where they are; empty: the machine may start. Of one that a device
    plugin gives it says nothing."""
    return [*_unsettled_flavor(instance), *(ref.name for ref in device_refs(instance) if not _complete(instance, ref)
                                            and (ref.by_claim or status_of(instance, ref)))]


def _complete(instance: Mapping[str, Any], ref: DeviceRef) -> bool:
    entries = status_of(instance, ref)
    return bool(entries) and all(address_of(entry) for entry in entries)


def unsettled_devices(instance: Mapping[str, Any], pod: Mapping[str, Any], claims: Claims) -> list[str]:
    """The devices of which the status does not say what the claims of this pod say: it is not written yet, or tells of an
    earlier pod, or of devices that nobody asks for. Empty: the machine may start in this pod."""
    names = dict(claim_names(pod))
    out = _unsettled_flavor(instance)
    record = flavored(instance)
    if not record and not out and dedicated(instance) and FLAVOR_CLAIM in names:
        out.append("its CPUs")
    if record.get("claimName"):
        claim = claims(pod["metadata"]["namespace"], record["claimName"])
        if claim is not None and any(record.get(key) != value for key, value in cells_of(claim).items()):
            out.append("its NUMA cells")
    refs = refs_in(instance, pod)
    asked = {(ref.list, ref.name) for ref in refs}
    out += [str(entry.get("name")) for list_ in LISTS for entry in statuses(instance, list_)
            if (list_, entry.get("name")) not in asked]
    for ref in refs:
        claim_name = names.get(ref.claim or "")
        claim = claims(pod["metadata"]["namespace"], claim_name) if ref.by_claim and claim_name else None
        told = [entry.get("deviceResourceClaimStatus") or {} for entry in status_of(instance, ref)]
        true = [{"resourceClaimName": claim_name, "driver": one["driver"], "pool": one["pool"], "name": one["device"]}
                for one in answers(claim or {}, ref)]
        settled = _complete(instance, ref) and _same(told, true) if claimed(ref, claim) else not told
        if not settled:
            out.append(ref.name)
    return out


def claimed(ref: DeviceRef, claim: Mapping[str, Any] | None) -> bool:
    """Whether a claim is to say which device it is. That for a pod's resources may have got fewer than there are entries,
    because somebody wrote the number himself: then it never will."""
    given = ((claim or {}).get("status") or {}).get("allocation")
    return ref.by_claim and not (ref.by_resource and given and not answers(claim or {}, ref))


def _same(told: Sequence[Mapping[str, Any]], true: Sequence[Mapping[str, Any]]) -> bool:
    """Every entry tells of another one of the results. Driver and pool may be missing: not every writer says them."""
    left = list(true)
    for entry in told:
        found = next((one for one in left if all(entry.get(key, one[key] if key in ("driver", "pool") else None) == one[key]
                                                 for key in one)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def results(claim: Mapping[str, Any], request: str | None) -> list[Mapping[str, Any]]:
    """What a claim got for one of its requests. An alternative that was chosen is written "request/alternative"."""
    return [result for result in given(claim) if str(result["request"]).partition("/")[0] == request]


def given(claim: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Everything that a claim got."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return devices.get("results") or ()


def answers(claim: Mapping[str, Any], ref: DeviceRef) -> list[Mapping[str, Any]]:
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


def address_of(entry: Mapping[str, Any]) -> tuple[Literal["pci", "mdev"], str] | None:
    """Where a status entry says its device is. A mediated device may also name its parent's address; it stays mediated."""
    attributes = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
    for key in ("mdevUUID", "mDevUUID"):
        if attributes.get(key):
            return "mdev", attributes[key]
    return ("pci", attributes["pciAddress"]) if attributes.get("pciAddress") else None


def owner(obj: Mapping[str, Any], kind: str) -> Object | None:
    """The controlling owner, if it is of this kind."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("kind") == kind and reference.get("controller"):
            return dict(reference)
    return None


def launches(pod: Mapping[str, Any]) -> str | None:
    """The key of the instance, when the pod is one in which a machine runs."""
    reference = owner(pod, "VirtualMachineInstance")
    if reference is None or (pod["metadata"].get("labels") or {}).get(LAUNCHER_LABEL) != LAUNCHER:
        return None
    return f"{pod['metadata']['namespace']}/{reference['name']}"


def is_its(pod: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a machine that was started is in this pod. Another of the same name may follow one that is gone, made by a
    process that did not know yet how far the machine was: that machine has ended all the same."""
    known = status.get("activePods")
    return not known or pod["metadata"]["uid"] in known


def belongs(obj: Mapping[str, Any], vm: Mapping[str, Any]) -> bool:
    """Whether an instance or a claim is a machine's own; another one may have its name."""
    reference = owner(obj, "VirtualMachine")
    return reference is not None and reference.get("uid") == vm["metadata"]["uid"]


def entered(have: Sequence[Object] | None, phase: str, now: str) -> list[Object]:
    """`phaseTransitionTimestamps` of an instance that comes to a phase: when it did so for the first time."""
    known = any(entry.get("phase") == phase for entry in have or ())
    return [*(have or ()), *([] if known else [{"phase": phase, "phaseTransitionTimestamp": now}])]
