"""Parses the PCI functions of a hosts file, with their VFs and mediated device types. Called by `hosts_file`."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Literal

from outfitter.inventory import pci
from outfitter.inventory.simulation import checks, driver_profile
from outfitter.inventory.simulation.checks import Check
from outfitter.inventory.simulation.host import Grouping, PciFunction, SimulatedMdevType, VirtualFunctions
from outfitter.inventory.strict_yaml import Section, Unique

KEYS: dict[str, tuple[str, ...]] = {
    "pci": ("address", "vendor", "product", "class", "revision", "driver", "numa", "pcieRoot", "iommuGroup", "serial",
            "interface", "vfs", "mdevTypes", "published"),
    "vfs": ("count", "total", "product", "driver", "offset", "stride", "iommuGroups", "interfaces"),
    "mdevTypes": ("id", "name", "description", "deviceApi", "available", "instances"),
    "published": driver_profile.KEYS,
}
DEFAULT_CLASS = "ff0000"  # unassigned class
DEFAULT_PF_DRIVER = "pci-pf-stub"  # the kernel's driver for a PF that only provides VFs
DEFAULT_OFFSET = 8  # the first VF is in the slot after its PF
GROUPINGS: dict[str, Grouping] = {"own": "own", "shared": "shared", "parent": "parent", "none": "none"}
NONE = "none"  # value for no driver or no IOMMU group


def functions(host: Section, nodes: set[int]) -> list[PciFunction]:
    """The functions of a host with these NUMA nodes. Addresses, interfaces, names and UUIDs must be unique."""
    addresses = Unique(host.reader, "is the address of")
    interfaces = Unique(host.reader, "is the interface of")
    mdevs = Unique(host.reader, "is the UUID of")
    names = Unique(host.reader, "is the name of")
    parsed: list[tuple[str, PciFunction]] = []
    for path, value in host.items("pci"):
        section = host.reader.section(value, path, KEYS["pci"])
        function = _function(section, nodes)
        if function is None:
            continue
        addresses.add(function.address, section.at("address"))
        if function.interface is not None:
            interfaces.add(function.interface, section.at("interface"))
        if function.profile is not None and function.profile.name is not None:
            names.add(function.profile.name, f"{section.at('published')}.name")
        for mdev_type, instance in ((t, i) for t in function.mdev_types for i in t.instances):
            mdevs.add(instance, f"{section.at('mdevTypes')} ({mdev_type.id})")
        parsed.append((path, function))
    # VFs are added after all listed functions, so that a clash is reported for the VFs, where it can be corrected.
    for path, function in parsed:
        if function.vfs is None:
            continue
        for address in function.vf_addresses():
            if not addresses.add(address, f"{path}.vfs", hint="; set offset and stride so that the VFs do not overlap"):
                break
        for interface in filter(None, function.vfs.interfaces):
            interfaces.add(interface, f"{path}.vfs.interfaces")
    return [function for _, function in parsed]


def _function(section: Section, nodes: set[int]) -> PciFunction | None:
    address = section.needed("address", "0000:3b:00.0", checks.address)
    for key, digits, example in (("vendor", 4, "8086"), ("product", 4, "1889")):
        if not section.has(key):
            section.missing(key, f"{digits} hex digits, for example {key}: {example}")
    vendor, product = section.hex("vendor", 4), section.hex("product", 4)
    numa = section.number("numa", 0, 1023)
    if numa is not None and numa not in nodes:
        known = f"known are {', '.join(map(str, sorted(nodes)))}" if nodes else "the host has no list numa"
        section.wrong("numa", f"node {numa} is not declared; {known}", "FieldValueNotFound")
        numa = None
    mdev_types = tuple(_mdev_types(section))
    default = DEFAULT_PF_DRIVER if section.has("vfs") else pci.VFIO
    driver = section.text("driver", checks.driver) or default
    if section.has("mdevTypes") and driver == pci.VFIO:
        section.wrong("driver", f"a function bound to {pci.VFIO} has no mediated devices; name its vendor's driver")
    if address is None:
        if section.has("vfs"):
            _vfs(section, "0000:00:00.0", "0000")  # to report its mistakes
        return None
    return PciFunction(
        address=address,
        vendor=vendor or "0000",
        product=product or "0000",
        class_code=section.hex("class", 6) or DEFAULT_CLASS,
        revision=section.hex("revision", 2) or "00",
        driver=None if driver == NONE else driver,
        numa=numa,
        pcie_root=section.text("pcieRoot", checks.pcie_root) or f"pci{address.rpartition(':')[0]}",
        iommu_group=_group(section),
        serial=section.text("serial", checks.serial),
        interface=section.text("interface", checks.interface),
        vfs=_vfs(section, address, product or "0000") if section.has("vfs") else None,
        mdev_types=mdev_types,
        profile=_driver_profile(section),
    )


def _driver_profile(function: Section) -> driver_profile.DriverProfile | None:
    if not function.has("published"):
        return None
    return driver_profile.read(
        function.reader.section(function.fields["published"], function.at("published"), KEYS["published"])
    )


def _group(section: Section) -> int | Literal["own", "none"]:
    value = section.text("iommuGroup")
    if value in (None, "own"):
        return "own"
    if value == NONE:
        return "none"
    if re.fullmatch("[0-9]{1,6}", value or ""):
        return int(value or "")
    section.wrong("iommuGroup", f"{value!r} is neither a number, own nor none")
    return "own"


def _vfs(pf: Section, address: str, product: str) -> VirtualFunctions:
    section = pf.reader.section(pf.fields["vfs"], pf.at("vfs"), KEYS["vfs"])
    count = section.number("count", 0, 65535)
    if not section.has("count"):
        section.missing("count", "for example count: 8")
    count = count or 0
    total = section.number("total", 1, 65535)
    if total is not None and total < count:
        section.wrong("total", f"is {total}, but there are {count} VFs")
    offset = section.number("offset", 1, 65535) or DEFAULT_OFFSET
    stride = section.number("stride", 1, 65535) or 1
    _, start = pci.routing(address)
    if count and start + offset + (count - 1) * stride > 0xFFFF:
        section.wrong("count", f"{count} VFs from offset {offset} with stride {stride} do not fit after {address}")
        count = 0
    section.text("iommuGroups", checks.one_of(tuple(GROUPINGS)))
    drivers = _each(section, "driver", count, checks.driver, pci.VFIO)
    return VirtualFunctions(
        count=count,
        total=max(total or 1, count),
        product=section.hex("product", 4) or product,
        drivers=tuple(None if driver == NONE else driver for driver in drivers),
        offset=offset,
        stride=stride,
        iommu_groups=GROUPINGS.get(str(section.fields.get("iommuGroups")), "own"),
        interfaces=_interfaces(section, count),
    )


def _each(section: Section, key: str, count: int, check: Check, default: str) -> tuple[str, ...]:
    """A string for each VF: one for all, or a list."""
    if not isinstance(section.fields.get(key), list):
        return (section.text(key, check) or default,) * count
    values = []
    for path, text in section.texts(key):
        if (message := check(text)) is not None:
            section.reader.wrong(path, message)
        values.append(text)
    if len(values) != count:
        section.wrong(key, f"lists {len(values)}, but there are {count} VFs; give one for each or a single string for all")
    return (*values, *(default,) * count)[:count]


def _interfaces(section: Section, count: int) -> tuple[str | None, ...]:
    """A list with a name for each VF, or one string with {index} in it."""
    if not section.has("interfaces"):
        return (None,) * count
    if isinstance(section.fields["interfaces"], list):
        return _each(section, "interfaces", count, checks.interface, "")
    pattern = section.text("interfaces") or ""
    if "{index}" not in pattern:
        section.wrong("interfaces", f"{pattern!r} must be a list, or a string with {{index}} in it such as ens1f0v{{index}}")
        return (None,) * count
    names = tuple(pattern.replace("{index}", str(index)) for index in range(count))
    if names and (message := checks.interface(names[-1])) is not None:
        section.wrong("interfaces", message)
    return names


def _mdev_types(function: Section) -> Iterable[SimulatedMdevType]:
    ids = Unique(function.reader, "is the id of")
    for path, value in function.items("mdevTypes"):
        section = function.reader.section(value, path, KEYS["mdevTypes"])
        identity = section.needed("id", "nvidia-232", checks.mdev_type)
        instances = []
        for where, text in section.texts("instances"):
            try:
                instances.append(str(uuid.UUID(text)))
            except ValueError:
                section.reader.wrong(where, f"{text!r} is not a UUID")
        if identity is not None and ids.add(identity, section.at("id")):
            yield SimulatedMdevType(
                id=identity,
                name=section.text("name", checks.plain) or identity,
                description=section.text("description", checks.line) or "",
                device_api=section.text("deviceApi", checks.plain) or pci.VFIO,
                available=section.number("available", 0, 65535) or 0,
                instances=tuple(instances),
            )
