"""Architecture and machine type, memory, CPUs, firmware and clock of a domain. Called by `domain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt import guest_address, vm
from outfitter.api.quantity import to_int
from outfitter.errors import StartFailed
from outfitter.launcher import numa
from outfitter.launcher.domain_options import DomainOptions

PASSED_THROUGH = ("host-passthrough", "host-model")  # CPU models that need KVM


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str  # libvirt's name
    machine: str  # default machine type
    acpi: bool
    serial: str | None  # type of the serial port; None: it has none


ARCHITECTURES: Mapping[str, Architecture] = {
    "amd64": Architecture("x86_64", "q35", True, "isa-serial"),
    "arm64": Architecture("aarch64", "virt", True, "system-serial"),
    "s390x": Architecture("s390x", "s390-ccw-virtio", False, None),
}


@dataclass(frozen=True, slots=True)
class MachineType:
    architecture: Architecture
    machine: str
    express: bool  # whether it has PCI Express, so that `pci_layout` assigns the addresses


def machine_type_of(spec: Mapping[str, Any]) -> MachineType:
    name = spec.get("architecture") or "amd64"
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise StartFailed(f"spec.architecture: {name} is not supported; supported are {', '.join(ARCHITECTURES)}")
    kind = ((spec.get("domain") or {}).get("machine") or {}).get("type")
    return MachineType(architecture, kind or architecture.machine, guest_address.has_pcie(spec))


def page(domain: Mapping[str, Any]) -> int | None:
    """The size of the requested huge pages in bytes; None without."""
    size = ((domain.get("memory") or {}).get("hugepages") or {}).get("pageSize")
    return to_int(str(size)) if size else None


def backing(domain: Mapping[str, Any]) -> ET.Element | None:
    size = page(domain)
    if size is None:
        return None
    out = ET.Element("memoryBacking")
    ET.SubElement(ET.SubElement(out, "hugepages"), "page", size=str(size // 1024), unit="KiB")
    return out


def boot(domain: Mapping[str, Any], kind: MachineType) -> ET.Element:
    out = ET.Element("os")
    efi = _efi(domain)
    if efi is not None:
        out.set("firmware", "efi")
    ET.SubElement(out, "type", arch=kind.architecture.name, machine=kind.machine).text = "hvm"
    if efi is not None:
        secure = efi.get("secureBoot") is not False
        ET.SubElement(ET.SubElement(out, "firmware"), "feature", enabled="yes" if secure else "no", name="secure-boot")
    return out


def _efi(domain: Mapping[str, Any]) -> Mapping[str, Any] | None:
    firmware = domain.get("firmware") or {}
    return (firmware.get("bootloader") or {}).get("efi")


def features(domain: Mapping[str, Any], kind: MachineType) -> ET.Element:
    out = ET.Element("features")
    given = domain.get("features") or {}
    if kind.architecture.acpi and (given.get("acpi") or {}).get("enabled") is not False:
        ET.SubElement(out, "acpi")
    if given.get("apic") is not None and given["apic"].get("enabled") is not False and kind.architecture.name == "x86_64":
        ET.SubElement(out, "apic")
    efi = _efi(domain)
    if (efi is not None and efi.get("secureBoot") is not False) or (
            given.get("smm") is not None and given["smm"].get("enabled") is not False):
        ET.SubElement(out, "smm", state="on")
    return out


def processor(instance: Mapping[str, Any], options: DomainOptions, spread: Sequence[numa.GuestNumaCell]) -> ET.Element | None:
    cpu = (instance["spec"].get("domain") or {}).get("cpu") or {}
    model = cpu.get("model") or ("host-model" if options.type == "kvm" else None)
    out = ET.Element("cpu")
    if model in PASSED_THROUGH:
        out.set("mode", model if options.type == "kvm" else "maximum")
    elif model:
        out.set("mode", "custom")
        out.set("match", "exact")
        ET.SubElement(out, "model").text = str(model)
    if any(cpu.get(key) for key in ("sockets", "cores", "threads")):
        sockets, cores, threads = vm.topology(instance)
        ET.SubElement(out, "topology", sockets=str(sockets), cores=str(cores), threads=str(threads))
    for feature in cpu.get("features") or ():
        ET.SubElement(out, "feature", policy=str(feature.get("policy") or "require"), name=str(feature.get("name")))
    if spread:
        numa.guest(out, spread)
    return out if len(out) or out.attrib else None


def clock(domain: Mapping[str, Any]) -> ET.Element:
    given = domain.get("clock") or {}
    if given.get("timezone"):
        out = ET.Element("clock", offset="timezone", timezone=str(given["timezone"]))
    elif (seconds := (given.get("utc") or {}).get("offsetSeconds")) is not None:
        out = ET.Element("clock", offset="variable", adjustment=str(seconds), basis="utc")
    else:
        out = ET.Element("clock", offset="utc")
    names = {"hpet": "hpet", "pit": "pit", "rtc": "rtc", "kvm": "kvmclock", "hyperv": "hypervclock"}
    for key, timer in (given.get("timer") or {}).items():
        if timer is not None and key in names:
            each = ET.SubElement(out, "timer", name=names[key], present="no" if timer.get("present") is False else "yes")
            for field, attribute in (("tickPolicy", "tickpolicy"), ("track", "track")):
                if timer.get(field):
                    each.set(attribute, str(timer[field]))
    return out
