"""A VM and its VMI apart from devices: run strategy, memory, CPUs, topology, owner and phase, and the launcher pod that runs
it. Pure functions over wire objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.quantity import to_int

BEFORE = ("Pending", "Scheduling", "Scheduled")  # phases of a machine that has not started
FINAL = ("Succeeded", "Failed")
LAUNCHER = "virt-launcher"  # label value of the pods in which machines run
LAUNCHER_LABEL = "kubevirt.io"
CONTAINER = "compute"  # of a launcher pod: that in which the machine runs
CREATED_BY = "kubevirt.io/created-by"
DEFAULT_MEMORY = "1Gi"
FINALIZER = "foregroundDeleteVirtualMachine"


def run_strategy(machine: Mapping[str, Any]) -> str:
    """Whether a VirtualMachine is meant to run. One that does not say stays stopped; `running` is the older way to say it."""
    spec = machine.get("spec") or {}
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


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


def shows_nodes(instance: Mapping[str, Any]) -> bool:
    """Whether the guest is to see the NUMA nodes of its host."""
    cpu = ((instance.get("spec") or {}).get("domain") or {}).get("cpu") or {}
    asked = (cpu.get("numa") or {}).get("guestMappingPassthrough") is not None
    return asked or bool(flavor_name(instance) and flavored(instance).get("hostCells"))


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
