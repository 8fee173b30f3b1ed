"""NUMA topology of the guest: one cell for each host node of the VM, memory binding and CPU pinning. Called by `domain`."""

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
    """A NUMA cell of the guest."""

    id: int
    host: int  # its NUMA node on the host
    cpus: range
    memory: int  # bytes


def cells(instance: Mapping[str, Any], found: Iterable[ResolvedDevices], nodes: Sequence[int], *, cpus: int, memory: int,
          page: int = MIB) -> tuple[GuestNumaCell, ...]:
    """The guest's NUMA cells, if the VMI has cpu.numa.guestMappingPassthrough or its flavor has host cells. Memory is divided
    evenly, and CPUs too unless they are pinned per cell; the remainder goes to the first cells. `nodes` are host nodes; without
    them the nodes of the VM's devices."""
    if not vm.shows_nodes(instance):
        return ()
    flavor = vm.flavored(instance)
    nodes = flavor.get("hostCells") or nodes
    pinned = {int(node): count for node, count in (flavor.get("pinned") or {}).items()}
    of_devices = {given.numa for resolved in found for given in resolved.devices if given.numa is not None}
    hosts = sorted(set(nodes)) or sorted(of_devices) or [0]
    share = memory // len(hosts) // page * page
    out, cpu = [], 0
    for number, host in enumerate(hosts):
        count = pinned.get(host, 0) if pinned else cpus // len(hosts) + (number < cpus % len(hosts))
        out.append(GuestNumaCell(number, host, range(cpu, cpu + count), share if number else memory - share * (len(hosts) - 1)))
        cpu += count
    return tuple(out)


def guest(cpu: ET.Element, spread: Sequence[GuestNumaCell]) -> None:
    """Adds the cells to the domain's cpu element."""
    numa = ET.SubElement(cpu, "numa")
    for cell in spread:
        out = ET.SubElement(numa, "cell", id=str(cell.id), memory=str(cell.memory), unit="b")
        if cell.cpus:
            out.set("cpus", str(cell.cpus[0]) if len(cell.cpus) == 1 else f"{cell.cpus[0]}-{cell.cpus[-1]}")


def tuning(instance: Mapping[str, Any], spread: Sequence[GuestNumaCell]) -> ET.Element | None:
    """Binds the memory of each cell to its host node; without cells, to the host nodes of the pinned CPUs."""
    hosts = [cell.host for cell in spread] or sorted(vm.own_cpus(instance))
    if not hosts:
        return None
    out = ET.Element("numatune")
    ET.SubElement(out, "memory", mode="strict", nodeset=",".join(map(str, hosts)))
    for cell in spread:
        ET.SubElement(out, "memnode", cellid=str(cell.id), mode="strict", nodeset=str(cell.host))
    return out


def pinning(instance: Mapping[str, Any], cpus: int) -> ET.Element | None:
    """Pins each vCPU to a dedicated host CPU, if the VM has these, and the emulator threads to the same CPUs. StartFailed when
    the numbers differ."""
    own = [cpu for of_cell in vm.own_cpus(instance).values() for cpu in of_cell]
    if not own:
        return None
    if len(set(own)) != cpus or len(own) != cpus:
        raise StartFailed(f"status.flavor.cpus: the guest has {cpus} CPUs, and {len(set(own))} host CPUs are dedicated to it: "
                          "the VM does not start before each vCPU has one")
    out = ET.Element("cputune")
    for number, cpu in enumerate(own):
        ET.SubElement(out, "vcpupin", vcpu=str(number), cpuset=str(cpu))
    ET.SubElement(out, "emulatorpin", cpuset=",".join(map(str, sorted(own))))
    return out
