"""Parses the hosts file of `outfit up --simulate`, and its shorthand. docs/hosts-file.md documents the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from outfitter import errors
from outfitter.inventory import cpulist
from outfitter.inventory.simulation import checks
from outfitter.inventory.simulation import functions as pci_functions
from outfitter.inventory.simulation.host import (
    DEFAULT_PUBLISHER,
    Bridge,
    Hardware,
    Nic,
    NumaNode,
    PciFunction,
    SimulatedHost,
    VirtualFunctions,
    quantity,
)
from outfitter.inventory.strict_yaml import Reader, Section, Unique

__all__ = ["KEYS", "Bridge", "Hardware", "Nic", "NumaNode", "PciFunction", "SimulatedHost", "Simulation",
           "VirtualFunctions", "from_argument", "load", "parse", "parse_shorthand"]

# Allowed keys by section.
KEYS: dict[str, tuple[str, ...]] = {
    "file": ("publisher", "hosts"),
    "hosts": ("name", "count", "publisher", "labels", "cpus", "memory", "numa", "pci", "nics", "bridges"),
    "numa": ("id", "cpus", "memory", "socket", "distances"),
    **pci_functions.KEYS,
    "nics": ("name", "mac", "bridge", "speed", "physicalNetwork"),
    "bridges": ("name",),
}

MAX_HOSTS = 100_000
DEFAULT_CPUS = 16
DEFAULT_MEMORY = 64 << 30
MAX_VFS = 1024  # of one host, in the shorthand
_SHORTHAND = re.compile(r"([0-9]+)x([0-9]+)")


@dataclass(frozen=True, slots=True)
class Simulation:
    """All simulated hosts, in the order of the file."""

    hosts: tuple[SimulatedHost, ...]


def from_argument(argument: str) -> Simulation:
    """The hosts of the argument of `--simulate`: "2x8", or the path of a hosts file."""
    if not argument.strip():
        raise errors.Invalid("--simulate is empty; write for example 2x8, or the path of a hosts file")
    return parse_shorthand(argument) if _SHORTHAND.fullmatch(argument) else load(Path(argument))


def load(path: Path) -> Simulation:
    """Read a hosts file; Invalid names every field that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"the hosts file {path} cannot be read: {error}; name another, or write NxM, such as 2x8"
                             ) from error
    return parse(text, source=str(path))


def parse_shorthand(text: str) -> Simulation:
    """ "2x8": two hosts, node-0 and node-1, each with a network card of eight VFs and a bridge br0."""
    match = _SHORTHAND.fullmatch(text)
    hosts, vfs = (int(match[1][:9]), int(match[2][:9])) if match else (0, 0)
    most = f"at most {MAX_HOSTS} hosts and {MAX_VFS} VFs"
    if hosts > MAX_HOSTS or vfs > MAX_VFS:
        raise errors.Invalid(f"{text!r} is too large: {most} each, as in 2x8")
    if not hosts or not vfs:
        raise errors.Invalid(f"{text!r} has no hosts or no VFs; write for example 2x8, two hosts with eight VFs each ({most})")
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
  bridges: [{{name: br0}}]
""", source=text)


def parse(text: str, source: str = "the hosts file") -> Simulation:
    """Read the text of a hosts file; Invalid names every field that is wrong."""
    reader = Reader(source)
    top = reader.section(reader.parse(text), "", KEYS["file"])
    if not top.has("hosts"):
        top.missing("hosts", "list at least one host")
    publisher = top.text("publisher", checks.publisher) or DEFAULT_PUBLISHER
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
    name = section.needed("name", "node-a", checks.host_name)
    count = section.number("count", 1, MAX_HOSTS)
    publisher = section.text("publisher", checks.publisher) or publisher
    labels, hardware = _labels(section), _hardware(section)
    if name is None:
        return
    if (count or 1) > room:
        section.wrong("count" if count else "name", f"makes more than {MAX_HOSTS} hosts")
        return
    if count is None:
        yield SimulatedHost(name, publisher, labels, hardware)
        return
    if (message := checks.host_name(f"{name}-{count - 1}")) is not None:
        section.wrong("name", message)
        return
    for index in range(count):
        yield SimulatedHost(f"{name}-{index}", publisher, labels, hardware, index)


def _labels(section: Section) -> tuple[tuple[str, str], ...]:
    value = section.fields.get("labels")
    if value is None:
        return ()
    if not isinstance(value, dict):
        section.wrong("labels", "must be a mapping of strings")
        return ()
    labels = []
    for key, text in value.items():
        path = f"{section.at('labels')}.{key}"
        prefix, slash, last = key.rpartition("/")
        if not checks.LABEL_PART.fullmatch(last) or (slash and not checks.is_subdomain(prefix)):
            section.reader.wrong(path, f"{key!r} is not a label key; write for example rack or example.com/rack")
        if text is not None and not (isinstance(text, str) and (text == "" or checks.LABEL_PART.fullmatch(text))):
            section.reader.wrong(path, "is not a label value: at most 63 letters, digits, '-', '_' and '.', the first and "
                                       "last a letter or digit")
        labels.append((key, text if isinstance(text, str) else ""))
    return tuple(labels)


def _hardware(section: Section) -> Hardware:
    before = len(section.reader.causes)
    numa = tuple(_numa(section))
    sound = numa and len(section.reader.causes) == before  # otherwise the sums below are meaningless
    bridges = tuple(_bridges(section))
    functions = tuple(pci_functions.functions(section, {node.id for node in numa}))
    nics = tuple(_nics(section, functions, {bridge.name for bridge in bridges}))
    cpus = section.number("cpus", 1, checks.MAX_CPUS)
    sums = sum(len(cpulist.numbers(node.cpus)) for node in numa), sum(node.memory for node in numa)
    if sound and cpus is not None and cpus != sums[0]:
        section.wrong("cpus", f"is {cpus}, but the NUMA nodes have {sums[0]}; remove it")
    memory = section.text("memory", checks.memory)
    if sound and memory is not None and checks.in_bytes(memory) != sums[1]:
        section.wrong("memory", f"is {memory}, but the NUMA nodes have {quantity(sums[1])}; remove it")
    return Hardware(
        cpus=cpus or sums[0] or DEFAULT_CPUS,
        memory=checks.in_bytes(memory) if memory is not None else sums[1] or DEFAULT_MEMORY,
        numa=numa, pci=functions, nics=nics, bridges=bridges,
    )


def _numa(host: Section) -> Iterable[NumaNode]:
    ids = Unique(host.reader, "is the id of")
    owners: dict[int, str] = {}  # cpu -> the path of the node that has it
    entries = list(host.items("numa"))
    for path, value in entries:
        section = host.reader.section(value, path, KEYS["numa"])
        number = section.number("id", 0, 1023)
        if number is None and not section.has("id"):
            section.missing("id", "for example id: 0")
        cpus = section.needed("cpus", '"0-15"', checks.cpus)
        memory = section.needed("memory", "64Gi", checks.memory)
        socket = section.number("socket", 0, 1023)
        for cpu in cpulist.numbers(cpus) if cpus else ():
            if cpu in owners:
                section.wrong("cpus", f"cpu {cpu} belongs to {owners[cpu]} already", "FieldValueDuplicate")
                break
            owners[cpu] = path
        if number is not None and ids.add(str(number), section.at("id")):
            # A node with mistakes is kept, so that references to it are not reported as well.
            yield NumaNode(number, cpus or str(len(owners)), checks.in_bytes(memory or "0"),
                           number if socket is None else socket, _distances(section, len(entries)))


def _distances(node: Section, nodes: int) -> tuple[int, ...]:
    """To all NUMA nodes of the host, in the order of their ids."""
    given = list(node.texts("distances"))
    for path, text in given:
        if not (text.isascii() and text.isdecimal() and 10 <= int(text) <= 254):
            node.reader.wrong(path, f"{text!r} is no distance: from 10, to the node itself, to 254")
            return ()
    if given and len(given) != nodes:
        node.wrong("distances", f"must have {nodes} numbers, one for each NUMA node of the host in the order of their ids")
        return ()
    return tuple(int(text) for _, text in given)


def _bridges(host: Section) -> Iterable[Bridge]:
    names = Unique(host.reader, "is the name of")
    for path, value in host.items("bridges"):
        section = host.reader.section(value, path, KEYS["bridges"])
        name = section.needed("name", "br0", checks.interface)
        if name is not None and names.add(name, section.at("name")):
            yield Bridge(name)


def _nics(host: Section, functions: Iterable[PciFunction], bridges: set[str]) -> Iterable[Nic]:
    names = Unique(host.reader, "is the name of")
    for path, value in host.items("nics"):
        section = host.reader.section(value, path, KEYS["nics"])
        name = section.needed("name", "eno1", checks.interface)
        bridge = section.text("bridge", checks.interface)
        if bridge is not None and bridge not in bridges:
            section.wrong("bridge", f"{bridge} is not declared; add it to {host.at('bridges')}", "FieldValueNotFound")
        if name in bridges:
            section.wrong("name", f"{name} is the name of a bridge too", "FieldValueDuplicate")
        mac = section.text("mac", checks.mac)
        nic = Nic(name or "", mac.lower() if mac else None, bridge, section.number("speed", 1, 10_000_000),
                  section.text("physicalNetwork", checks.plain))
        if name is not None and names.add(name, section.at("name")):
            yield nic
    for function in functions:
        taken = [function.interface, *(function.vfs.interfaces if function.vfs else ())]
        for interface in sorted(bridges.intersection(name for name in taken if name)):
            host.wrong("bridges", f"{interface} is the interface of {function.address} too", "FieldValueDuplicate")
