"""The guest's NUMA nodes: one for each node of the host over which the machine is spread, so that the guest sees what is near
what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt import vm
from outfitter.errors import StartFailed
from outfitter.launcher.device_assignment import ResolvedDevices

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GuestNumaCell:
    """A NUMA node of the guest."""

    id: int
    host: int  # the host's node that it stands for
    cpus: range
    memory: int  # bytes


def cells(instance: Mapping[str, Any], found: Iterable[ResolvedDevices], nodes: Sequence[int], *, cpus: int, memory: int,
          page: int = MIB) -> tuple[GuestNumaCell, ...]:
    """The guest's nodes, if the machine asks for them by cpu.numa.guestMappingPassthrough or its flavor gave it cells of the
    host. Memory is divided evenly and so are CPUs, unless some of a cell are the machine's own; what does not divide goes to
    the first ones. `nodes` are the host's; without them those of the machine's devices."""
    if not vm.shows_nodes(instance):
        return ()
    flavor = vm.flavored(instance)
    nodes = flavor.get("hostCells") or nodes
    pinned = {int(node): count for node, count in (flavor.get("pinned") or {}).items()}
    near = {given.numa for one in found for given in one.devices if given.numa is not None}
    hosts = sorted(set(nodes)) or sorted(near) or [0]
    share = memory // len(hosts) // page * page
    out, cpu = [], 0
    for number, host in enumerate(hosts):
        count = pinned.get(host, 0) if pinned else cpus // len(hosts) + (number < cpus % len(hosts))
        out.append(GuestNumaCell(number, host, range(cpu, cpu + count), share if number else memory - share * (len(hosts) - 1)))
        cpu += count
    return tuple(out)


def guest(cpu: ET.Element, spread: Sequence[GuestNumaCell]) -> None:
    """The nodes, in the domain's cpu element."""
    numa = ET.SubElement(cpu, "numa")
    for cell in spread:
        out = ET.SubElement(numa, "cell", id=str(cell.id), memory=str(cell.memory), unit="b")
        if cell.cpus:
            out.set("cpus", str(cell.cpus[0]) if len(cell.cpus) == 1 else f"{cell.cpus[0]}-{cell.cpus[-1]}")


def tuning(instance: Mapping[str, Any], spread: Sequence[GuestNumaCell]) -> ET.Element | None:
    """Each node's memory comes from the host's node that it stands for; that of a guest without nodes from those on which its
    CPUs are."""
    hosts = [cell.host for cell in spread] or sorted(vm.own_cpus(instance))
    if not hosts:
        return None
    out = ET.Element("numatune")
    ET.SubElement(out, "memory", mode="strict", nodeset=",".join(map(str, hosts)))
    for cell in spread:
        ET.SubElement(out, "memnode", cellid=str(cell.id), mode="strict", nodeset=str(cell.host))
    return out


def pinning(instance: Mapping[str, Any], cpus: int) -> ET.Element | None:
    """Each of the guest's CPUs on one of the host's, if it has its own; what QEMU does besides is done on the same ones.
    StartFailed: they are not as many."""
    own = [cpu for each in vm.own_cpus(instance).values() for cpu in each]
    if not own:
        return None
    if len(set(own)) != cpus or len(own) != cpus:
        raise StartFailed(f"status.flavor.cpus: the guest has {cpus} CPUs, and {len(set(own))} of the host are its own: the "
                          "machine does not start before each has one")
    out = ET.Element("cputune")
    for number, cpu in enumerate(own):
        ET.SubElement(out, "vcpupin", vcpu=str(number), cpuset=str(cpu))
    ET.SubElement(out, "emulatorpin", cpuset=",".join(map(str, sorted(own))))
    return out
