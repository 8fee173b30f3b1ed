"""A VM and its VMI apart from devices: run strategy, memory, CPUs, topology, owner and phase, and the launcher pod that runs
it. Pure functions over wire objects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.quantity import to_int

BEFORE = ("Pending", "Scheduling", "Scheduled")  # phases before the domain starts
FINAL = ("Succeeded", "Failed")
LAUNCHER = "virt-launcher"  # label value of launcher pods
LAUNCHER_LABEL = "kubevirt.io"
CONTAINER = "compute"  # the container of a launcher pod that runs the domain
CREATED_BY = "kubevirt.io/created-by"
DOMAIN = "kubevirt.io/domain"  # annotation of a launcher pod, and of its attachment pods: the name of the VMI
DEFAULT_MEMORY = "1Gi"
FINALIZER = "foregroundDeleteVirtualMachine"
# KubeVirt's VM controller puts it on VMs and VMIs. Ours takes its place: objects that were exported from a cluster have it.
CONTROLLER_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"


def run_strategy(vm: Mapping[str, Any]) -> str:
    """The run strategy of a VM; Halted by default. `running` is the older field for Always and Halted."""
    spec = vm.get("spec") or {}
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def flavor_name(instance: Mapping[str, Any]) -> str:
    """The flavor that the spec names; "" for none."""
    return str(((instance.get("spec") or {}).get("flavor") or {}).get("name") or "")


def flavored(instance: Mapping[str, Any]) -> Mapping[str, Any]:
    """status.flavor: the flavor as it was when the VMI was created; empty until it is recorded. A VMI without a flavor has such
    a record of its CPUs if they are dedicated."""
    record: Mapping[str, Any] = (instance.get("status") or {}).get("flavor") or {}
    return record if flavor_name(instance) or dedicated(instance) else {}


def dedicated(instance: Mapping[str, Any]) -> bool:
    """Whether the spec requests dedicated host CPUs."""
    cpu = ((instance.get("spec") or {}).get("domain") or {}).get("cpu") or {}
    return bool(cpu.get("dedicatedCpuPlacement"))


def own_cpus(instance: Mapping[str, Any]) -> Mapping[int, Sequence[int]]:
    """Dedicated host CPUs by NUMA cell; the guest's first vCPUs are on the lowest cell."""
    cpus = flavored(instance).get("cpus") or {}
    return {int(cell): cpus[cell] for cell in sorted(cpus, key=int)}


def memory(instance: Mapping[str, Any]) -> str:
    """Guest memory: from the spec, else from the flavor."""
    domain = instance["spec"].get("domain") or {}
    specified = (domain.get("memory") or {}).get("guest") or _resource(domain, "memory")
    return str(specified or flavored(instance).get("memory") or DEFAULT_MEMORY)


def _resource(domain: Mapping[str, Any], name: str) -> Any:
    resources = domain.get("resources") or {}
    return (resources.get("requests") or {}).get(name) or (resources.get("limits") or {}).get(name)


def vcpus(instance: Mapping[str, Any]) -> int:
    """Number of vCPUs: from the spec, else from the flavor."""
    return math.prod(topology(instance))


def topology(instance: Mapping[str, Any]) -> tuple[int, int, int]:
    """Sockets, cores, threads. Without any of them, one socket per CPU of the resource request or of the flavor."""
    domain = instance["spec"].get("domain") or {}
    cpu = domain.get("cpu") or {}
    sockets, cores, threads = (int(cpu.get(key) or 0) for key in ("sockets", "cores", "threads"))
    if sockets or cores or threads:
        return sockets or 1, cores or 1, threads or 1
    requested = _resource(domain, "cpu")
    return to_int(str(requested)) if requested else int(flavored(instance).get("vcpus") or 1), 1, 1


def shows_nodes(instance: Mapping[str, Any]) -> bool:
    """Whether the guest sees the NUMA topology of its host."""
    cpu = ((instance.get("spec") or {}).get("domain") or {}).get("cpu") or {}
    requested = (cpu.get("numa") or {}).get("guestMappingPassthrough") is not None
    return requested or bool(flavor_name(instance) and flavored(instance).get("hostCells"))


def owner(obj: Mapping[str, Any], kind: str) -> Object | None:
    """The controlling owner, if it is of this kind."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("kind") == kind and reference.get("controller"):
            return dict(reference)
    return None


def launches(pod: Mapping[str, Any]) -> str | None:
    """The key of the VMI that a launcher pod runs; None for other pods."""
    reference = owner(pod, "VirtualMachineInstance")
    if reference is None or (pod["metadata"].get("labels") or {}).get(LAUNCHER_LABEL) != LAUNCHER:
        return None
    return f"{pod['metadata']['namespace']}/{reference['name']}"


def is_its(pod: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a started VMI runs in this pod. A pod of the same name may have replaced it, created from an outdated cache: the
    VMI has ended nevertheless."""
    known = status.get("activePods")
    return not known or pod["metadata"]["uid"] in known or _arrived_in(pod, status)


def _arrived_in(pod: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the last migration moved the VMI to this pod's host."""
    state = status.get("migrationState") or {}
    host = pod["spec"].get("nodeName")
    return bool(state.get("completed") and not state.get("failed") and host and state.get("targetNode") == host
                and status.get("nodeName") == host and state.get("targetPod") in (None, pod["metadata"]["name"]))


def current_pod(pods: Iterable[Object], vmi: Mapping[str, Any]) -> Object | None:
    """The launcher pod that a VMI is in, of those that it owns: on its host once it has one (another may be a migration
    target), there the one that its status names, else the newest. The pod that a VM left stays on its host as Succeeded, and a
    VM may come back within the second that creation times have, or after the clock was set back."""
    status = vmi.get("status") or {}
    node = status.get("nodeName")
    here = (pod for pod in pods if not node or pod["spec"].get("nodeName") == node)
    return max(here, key=lambda pod: (is_its(pod, status), str(pod["metadata"]["creationTimestamp"])), default=None)


def belongs(obj: Mapping[str, Any], vm: Mapping[str, Any]) -> bool:
    """Whether a VMI or claim is owned by the VM; another object may have its name."""
    reference = owner(obj, "VirtualMachine")
    return reference is not None and reference.get("uid") == vm["metadata"]["uid"]


def entered(have: Sequence[Object] | None, phase: str, now: str) -> list[Object]:
    """`phaseTransitionTimestamps` with the time of the first transition to a phase."""
    known = any(entry.get("phase") == phase for entry in have or ())
    return [*(have or ()), *([] if known else [{"phase": phase, "phaseTransitionTimestamp": now}])]
