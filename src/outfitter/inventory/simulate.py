"""The hosts file of `outfit up --simulate`, and its shorthand. docs/hosts-file.md tells people what may stand in it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outfitter import errors
from outfitter.inventory import cpulist, guise, pci
from outfitter.inventory.fields import Reader, Section
from outfitter.inventory.host import (
    DEFAULT_PUBLISHER,
    Bridge,
    Grouping,
    Hardware,
    MdevType,
    Nic,
    NumaNode,
    PciFunction,
    SimulatedHost,
    VirtualFunctions,
    quantity,
)

__all__ = ["KEYS", "Bridge", "Hardware", "MdevType", "Nic", "NumaNode", "PciFunction", "SimulatedHost", "Simulation",
           "VirtualFunctions", "load", "named", "parse", "parse_shorthand"]

# Every key that may stand in the file, by where it stands.
KEYS: dict[str, tuple[str, ...]] = {
    "file": ("publisher", "hosts"),
    "hosts": ("name", "count", "publisher", "labels", "cpus", "memory", "numa", "pci", "nics", "bridges"),
    "numa": ("id", "cpus", "memory", "socket"),
    "pci": ("address", "vendor", "product", "class", "revision", "driver", "numa", "pcieRoot", "iommuGroup", "serial",
            "interface", "vfs", "mdevTypes", "published"),
    "vfs": ("count", "total", "product", "driver", "offset", "stride", "iommuGroups", "interfaces"),
    "mdevTypes": ("id", "name", "description", "deviceApi", "available", "instances"),
    "published": guise.KEYS,
    "nics": ("name", "mac", "bridge", "speed", "physicalNetwork"),
    "bridges": ("name",),
}

MAX_HOSTS = 100_000
MAX_CPUS = 65_536
DEFAULT_CPUS = 16
DEFAULT_MEMORY = 64 << 30
DEFAULT_CLASS = "ff0000"  # fits no class
DEFAULT_PF_DRIVER = "pci-pf-stub"  # the kernel's driver for a PF that does nothing but carry VFs
DEFAULT_OFFSET = 8  # the first VF is in the slot behind its PF
GROUPINGS: dict[str, Grouping] = {"own": "own", "shared": "shared", "parent": "parent", "none": "none"}
NONE = "none"  # said of a driver or an IOMMU group that is not there

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUANTITY = re.compile(r"([1-9][0-9]{0,14})(|Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
          "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_INTERFACE = re.compile(r"[^\s/:{}]{1,15}")
_DRIVER = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_]{0,62}")
_MDEV_TYPE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
_MAC = re.compile(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")
_PLAIN = re.compile(r"[\x20-\x7e]{1,64}")
_SERIAL = re.compile(r"[\x21-\x7e]{1,56}")  # published as at most 64 characters, with the number of a repeated host
_SHORTHAND = re.compile(r"([0-9]{1,6})x([0-9]{1,4})")

Check = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Simulation:
    """All simulated hosts, in the order of the file."""

    hosts: tuple[SimulatedHost, ...]


def named(argument: str) -> Simulation:
    """What `--simulate` was given: "2x8", or else the path of a hosts file."""
    if not argument.strip():
        raise errors.Invalid("--simulate says nothing; write for example 2x8, or the path of a hosts file")
    return parse_shorthand(argument) if _SHORTHAND.fullmatch(argument) else load(Path(argument))


def load(path: Path) -> Simulation:
    """Read a hosts file; Invalid names every field that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"the hosts file {path} cannot be read: {error}") from error
    return parse(text, source=str(path))


def parse_shorthand(text: str) -> Simulation:
    """ "2x8": two hosts, node-0 and node-1, each with a network card of eight VFs."""
    match = _SHORTHAND.fullmatch(text)
    hosts, vfs = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < hosts <= MAX_HOSTS or not 0 < vfs <= 1024:
        raise errors.Invalid(f"{text!r} does not say how many hosts with how many VFs each; write for example 2x8 "
                             f"(at most {MAX_HOSTS} hosts and 1024 VFs)")
    return parse(f"""
hosts:
- name: node
  count: {hosts}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}]
  pci:
  - address: 0000:3b:00.0
    vendor: 8086
    product: 1592
    class: 020000
    revision: 02
    driver: ice
    numa: 0
    interface: ens1f0
    vfs: {{count: {vfs}, product: 1889}}
""", source=text)


def parse(text: str, source: str = "the hosts file") -> Simulation:
    """Read the text of a hosts file; Invalid names every field that is wrong."""
    reader = Reader(source)
    top = reader.section(reader.parse(text), "", KEYS["file"])
    if not top.has("hosts"):
        top.missing("hosts", "list at least one host")
    publisher = top.text("publisher", _publisher) or DEFAULT_PUBLISHER
    hosts: list[SimulatedHost] = []
    names: dict[str, str] = {}  # host -> the path that named it
    for path, value in top.items("hosts"):
        for host in _hosts(reader.section(value, path, KEYS["hosts"]), publisher, room=MAX_HOSTS - len(hosts)):
            if host.name in names:
                reader.wrong(f"{path}.name", f"{host.name} is the name of a host of {names[host.name]} too",
                             "FieldValueDuplicate")
                break
            names[host.name] = path
            hosts.append(host)
    if top.fields.get("hosts") == []:
        top.missing("hosts", "list at least one host")
    reader.finish()
    return Simulation(tuple(hosts))


def _hosts(section: Section, publisher: str, room: int) -> Iterable[SimulatedHost]:
    name = section.needed("name", "node-a", _host_name)
    count = section.number("count", 1, MAX_HOSTS)
    publisher = section.text("publisher", _publisher) or publisher
    labels, hardware = _labels(section), _hardware(section)
    if name is None:
        return
    if (count or 1) > room:
        section.wrong("count" if count else "name", f"makes more than {MAX_HOSTS} hosts")
        return
    if count is None:
        yield SimulatedHost(name, publisher, labels, hardware)
        return
    if (message := _host_name(f"{name}-{count - 1}")) is not None:
        section.wrong("name", message)
        return
    for index in range(count):
        yield SimulatedHost(f"{name}-{index}", publisher, labels, hardware, index)


def _labels(section: Section) -> tuple[tuple[str, str], ...]:
    value = section.fields.get("labels")
    if value is None:
        return ()
    if not isinstance(value, dict):
        section.wrong("labels", "must be a mapping of texts")
        return ()
    labels = []
    for key, text in value.items():
        path = f"{section.at('labels')}.{key}"
        prefix, slash, last = key.rpartition("/")
        if not _LABEL_PART.fullmatch(last) or (slash and not _is_subdomain(prefix)):
            section.reader.wrong(path, f"{key!r} is no label key; write for example rack or example.com/rack")
        if text is not None and not (isinstance(text, str) and (text == "" or _LABEL_PART.fullmatch(text))):
            section.reader.wrong(path, "is no label value: at most 63 letters, digits, '-', '_' and '.', the first and "
                                       "last a letter or digit")
        labels.append((key, text if isinstance(text, str) else ""))
    return tuple(labels)


def _hardware(section: Section) -> Hardware:
    before = len(section.reader.causes)
    numa = tuple(_numa(section))
    sound = numa and len(section.reader.causes) == before  # else the sums below mean nothing
    bridges = tuple(_bridges(section))
    functions = tuple(_functions(section, {node.id for node in numa}))
    nics = tuple(_nics(section, functions, {bridge.name for bridge in bridges}))
    cpus = section.number("cpus", 1, MAX_CPUS)
    sums = sum(len(cpulist.numbers(node.cpus)) for node in numa), sum(node.memory for node in numa)
    if sound and cpus is not None and cpus != sums[0]:
        section.wrong("cpus", f"says {cpus}, but the NUMA nodes have {sums[0]}; leave it out")
    memory = section.text("memory", _quantity)
    if sound and memory is not None and _bytes(memory) != sums[1]:
        section.wrong("memory", f"says {memory}, but the NUMA nodes have {quantity(sums[1])}; leave it out")
    return Hardware(
        cpus=cpus or sums[0] or DEFAULT_CPUS,
        memory=_bytes(memory) if memory is not None else sums[1] or DEFAULT_MEMORY,
        numa=numa, pci=functions, nics=nics, bridges=bridges,
    )


def _numa(host: Section) -> Iterable[NumaNode]:
    ids = _Unique(host.reader, "is the id of", "too")
    owners: dict[int, str] = {}  # cpu -> the path of the node that has it
    for path, value in host.items("numa"):
        section = host.reader.section(value, path, KEYS["numa"])
        number = section.number("id", 0, 1023)
        if number is None and not section.has("id"):
            section.missing("id", "for example id: 0")
        cpus = section.needed("cpus", '"0-15"', _cpus)
        memory = section.needed("memory", "64Gi", _quantity)
        socket = section.number("socket", 0, 1023)
        for cpu in cpulist.numbers(cpus) if cpus else ():
            if cpu in owners:
                section.wrong("cpus", f"cpu {cpu} belongs to {owners[cpu]} already", "FieldValueDuplicate")
                break
            owners[cpu] = path
        if number is not None and ids.add(str(number), section.at("id")):
            # A node that was told to be wrong in part is kept, so that references to it are not told as well.
            yield NumaNode(number, cpus or str(len(owners)), _bytes(memory or "0"), number if socket is None else socket)


def _functions(host: Section, nodes: set[int]) -> Iterable[PciFunction]:
    addresses = _Unique(host.reader, "is the address of", "too")
    interfaces = _Unique(host.reader, "is the interface of", "too")
    mdevs = _Unique(host.reader, "is the UUID of", "too")
    names = _Unique(host.reader, "is the name of", "too")
    found: list[tuple[str, PciFunction]] = []
    for path, value in host.items("pci"):
        section = host.reader.section(value, path, KEYS["pci"])
        function = _function(section, nodes)
        if function is None:
            continue
        addresses.add(function.address, section.at("address"))
        if function.interface is not None:
            interfaces.add(function.interface, section.at("interface"))
        if function.guise is not None and function.guise.name is not None:
            names.add(function.guise.name, f"{section.at('published')}.name")
        for mdev_type, instance in ((t, i) for t in function.mdev_types for i in t.instances):
            mdevs.add(instance, f"{section.at('mdevTypes')} ({mdev_type.id})")
        found.append((path, function))
    # VFs come after all that is written down, so that a clash is told of the VFs, where it can be mended.
    for path, function in found:
        if function.vfs is None:
            continue
        for address in function.vf_addresses():
            if not addresses.add(address, f"{path}.vfs", hint="; set offset and stride so that the VFs keep clear"):
                break
        for interface in filter(None, function.vfs.interfaces):
            interfaces.add(interface, f"{path}.vfs.interfaces")
    return [function for _, function in found]


def _function(section: Section, nodes: set[int]) -> PciFunction | None:
    address = section.needed("address", "0000:3b:00.0", _address)
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
    driver = section.text("driver", _driver) or default
    if section.has("mdevTypes") and driver == pci.VFIO:
        section.wrong("driver", f"a function bound to {pci.VFIO} makes no mediated devices; name its vendor's driver")
    if address is None:
        if section.has("vfs"):
            _vfs(section, "0000:00:00.0", "0000")  # for the mistakes in it
        return None
    return PciFunction(
        address=address,
        vendor=vendor or "0000",
        product=product or "0000",
        class_code=section.hex("class", 6) or DEFAULT_CLASS,
        revision=section.hex("revision", 2) or "00",
        driver=None if driver == NONE else driver,
        numa=numa,
        pcie_root=section.text("pcieRoot", _root) or f"pci{address.rpartition(':')[0]}",
        iommu_group=_group(section),
        serial=section.text("serial", _serial),
        interface=section.text("interface", _interface),
        vfs=_vfs(section, address, product or "0000") if section.has("vfs") else None,
        mdev_types=mdev_types,
        guise=_guise(section),
    )


def _guise(function: Section) -> guise.Guise | None:
    if not function.has("published"):
        return None
    return guise.read(function.reader.section(function.fields["published"], function.at("published"), KEYS["published"]))


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
        section.wrong("total", f"says {total}, but there are {count} VFs")
    offset = section.number("offset", 1, 65535) or DEFAULT_OFFSET
    stride = section.number("stride", 1, 65535) or 1
    _, start = pci.routing(address)
    if count and start + offset + (count - 1) * stride > 0xFFFF:
        section.wrong("count", f"{count} VFs from offset {offset} with stride {stride} do not fit behind {address}")
        count = 0
    section.text("iommuGroups", _one_of(tuple(GROUPINGS)))
    drivers = _each(section, "driver", count, _driver, pci.VFIO)
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
    """One text for each VF: written once for all, or as a list."""
    if not isinstance(section.fields.get(key), list):
        return (section.text(key, check) or default,) * count
    values = []
    for path, text in section.texts(key):
        if (message := check(text)) is not None:
            section.reader.wrong(path, message)
        values.append(text)
    if len(values) != count:
        section.wrong(key, f"lists {len(values)}, but there are {count} VFs; give one for each or a single text for all")
    return (*values, *(default,) * count)[:count]


def _interfaces(section: Section, count: int) -> tuple[str | None, ...]:
    """A list with a name for each VF, or one text with {index} in it."""
    if not section.has("interfaces"):
        return (None,) * count
    if isinstance(section.fields["interfaces"], list):
        return _each(section, "interfaces", count, _interface, "")
    pattern = section.text("interfaces") or ""
    if "{index}" not in pattern:
        section.wrong("interfaces", f"{pattern!r} must be a list, or a text with {{index}} in it such as ens1f0v{{index}}")
        return (None,) * count
    names = tuple(pattern.replace("{index}", str(index)) for index in range(count))
    if names and (message := _interface(names[-1])) is not None:
        section.wrong("interfaces", message)
    return names


def _mdev_types(function: Section) -> Iterable[MdevType]:
    ids = _Unique(function.reader, "is the id of", "too")
    for path, value in function.items("mdevTypes"):
        section = function.reader.section(value, path, KEYS["mdevTypes"])
        identity = section.needed("id", "nvidia-232", _matching(_MDEV_TYPE, "no name of a type", "nvidia-232"))
        instances = []
        for where, text in section.texts("instances"):
            try:
                instances.append(str(uuid.UUID(text)))
            except ValueError:
                section.reader.wrong(where, f"{text!r} is no UUID")
        if identity is not None and ids.add(identity, section.at("id")):
            yield MdevType(
                id=identity,
                name=section.text("name", _plain) or identity,
                description=section.text("description", _line) or "",
                device_api=section.text("deviceApi", _plain) or pci.VFIO,
                available=section.number("available", 0, 65535) or 0,
                instances=tuple(instances),
            )


def _bridges(host: Section) -> Iterable[Bridge]:
    names = _Unique(host.reader, "is the name of", "too")
    for path, value in host.items("bridges"):
        section = host.reader.section(value, path, KEYS["bridges"])
        name = section.needed("name", "br0", _interface)
        if name is not None and names.add(name, section.at("name")):
            yield Bridge(name)


def _nics(host: Section, functions: Iterable[PciFunction], bridges: set[str]) -> Iterable[Nic]:
    names = _Unique(host.reader, "is the name of", "too")
    for path, value in host.items("nics"):
        section = host.reader.section(value, path, KEYS["nics"])
        name = section.needed("name", "eno1", _interface)
        bridge = section.text("bridge", _interface)
        if bridge is not None and bridge not in bridges:
            section.wrong("bridge", f"{bridge} is not declared; add it to {host.at('bridges')}", "FieldValueNotFound")
        if name in bridges:
            section.wrong("name", f"{name} is the name of a bridge too", "FieldValueDuplicate")
        mac = section.text("mac", _matching(_MAC, "no MAC address", "52:54:00:12:34:56"))
        nic = Nic(name or "", mac.lower() if mac else None, bridge, section.number("speed", 1, 10_000_000),
                  section.text("physicalNetwork", _plain))
        if name is not None and names.add(name, section.at("name")):
            yield nic
    for function in functions:
        taken = [function.interface, *(function.vfs.interfaces if function.vfs else ())]
        for interface in sorted(bridges.intersection(name for name in taken if name)):
            host.wrong("bridges", f"{interface} is the interface of {function.address} too", "FieldValueDuplicate")


class _Unique:
    """Values that may stand in one place only."""

    def __init__(self, reader: Reader, is_of: str, too: str) -> None:
        self.reader, self.is_of, self.too = reader, is_of, too
        self.seen: dict[str, str] = {}

    def add(self, value: str, path: str, hint: str = "") -> bool:
        """Whether the value is new; complains if not."""
        if value in self.seen:
            self.reader.wrong(path, f"{value} {self.is_of} {self.seen[value]} {self.too}{hint}", "FieldValueDuplicate")
            return False
        self.seen[value] = path
        return True


def _matching(pattern: re.Pattern[str], what: str, example: str) -> Check:
    return lambda text: None if pattern.fullmatch(text) else f"{text!r} is {what}; write for example {example}"


_interface = _matching(_INTERFACE, "no interface name (at most 15 characters, no blank and no /)", "ens1f0")
_driver = _matching(_DRIVER, "no name of a driver", "vfio-pci, or none for a function without one")
_root = _matching(pci.ROOT, "no PCIe root", "pci0000:3a")
_address = _matching(pci.ADDRESS, "no PCI address in full and in small letters", "0000:3b:00.0")
_quantity = _matching(_QUANTITY, "no amount of memory", "64Gi")
_plain = _matching(_PLAIN, "no text of 1 to 64 plain characters", "A1-0042")
_serial = _matching(_SERIAL, "no serial number of 1 to 56 plain characters without blanks", "A1-0042")


def _line(text: str) -> str | None:
    return None if text.isprintable() else "must be one line of text"


def _one_of(words: tuple[str, ...]) -> Check:
    return lambda text: None if text in words else f"{text!r} is none of {', '.join(words)}"


def _is_subdomain(text: str) -> bool:
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def _host_name(text: str) -> str | None:
    if _is_subdomain(text):
        return None
    return (f"{text!r} is no host name: at most 253 small letters, digits, '-' and '.', the first and last a letter or "
            f"digit; write for example node-a")


def _publisher(text: str) -> str | None:
    if len(text) <= 63 and _is_subdomain(text):
        return None
    return f"{text!r} is no name of a driver: a DNS name of at most 63 characters, for example {DEFAULT_PUBLISHER}"


def _cpus(text: str) -> str | None:
    try:
        numbers = cpulist.numbers(text)
    except ValueError as error:
        return f"{text!r} is no list of cpus such as 0-15 or 0-7,16-23: {error}"
    return None if len(numbers) <= MAX_CPUS and numbers[-1] < MAX_CPUS else f"{text!r} names cpus beyond {MAX_CPUS - 1}"


def _bytes(text: str) -> int:
    """A quantity that was checked, as a number of bytes."""
    match = _QUANTITY.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else 0
