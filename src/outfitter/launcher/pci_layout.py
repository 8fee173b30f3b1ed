"""Assigns stable addresses on the guest's PCI Express bus, so that an address is the same device at the next start. Called by
`devices`.

Each list of the spec has a lane, and its n-th device (counted from 0) has the port 1 + 4 n + lane. All ports up to the last
used one exist, in the order of their numbers, so that a port has the number of its bus in the guest. A device that is added at
the end of its list changes no other address, whatever the other lists contain.

A VM that exposes its host's NUMA nodes has one expander bus per node; devices of that node are behind it in the same lanes, on
bus numbers reserved for the node. A list may be longer than a lane: a device after its end gets the first unused port of the
lane, which earlier devices left free because they are on other nodes.

A VM has ports for 4 interfaces, or 2 more than it has interfaces if that is more: free ones are for interfaces that are plugged
while it runs (`nic_hotplug`). They give way to addresses that the user defined and to the buses of NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt import guest_address
from outfitter.errors import StartFailed

Lane = Literal["interfaces", "hostDevices", "gpus", "disks"]
LANES: Mapping[Lane, int] = {"interfaces": 0, "hostDevices": 1, "gpus": 2, "disks": 3}
HOTPLUG, FREE = 4, 2  # ports for interfaces: at least, and in addition to those that are used

# Slots of the guest's own bus; 0 is the host bridge.
VIDEO, FIRST_PORT, USB, SCSI, RNG = 0x01, 0x02, 0x1C, 0x1D, 0x1E
FUNCTIONS = 8
SATA = (4, 5, 6, 7)  # functions of the chipset's slot for further controllers, contiguous so that a guest finds them
MOST_PORTS = guest_address.LAST_BUS  # one bus per port
FIRST_EXPANDER = FIRST_PORT + MOST_PORTS // FUNCTIONS
MOST_EXPANDERS = USB - FIRST_EXPANDER
NODE_BUSES = 0x20  # bus numbers per node: that of the expander, and one for each of its ports
TOP = 0x100


@dataclass(frozen=True, slots=True)
class GuestPciAddress:
    """An address: on the root bus (cell and port None), behind a root port, or behind a port of a cell's expander. A port has
    slot 0 only: for a user-defined address with another slot, a conventional PCI bus replaces the port."""

    cell: int | None
    port: int | None
    slot: int = 0
    function: int = 0


class Layout:
    """The addresses of one VM. All devices are placed before elements are built: libvirt's indexes of the expanders' ports
    depend on the number of other ports (the bus numbers in the guest do not)."""

    def __init__(self, cells: Mapping[int, int]) -> None:
        """`cells`: host NUMA node -> guest cell; empty for a VM that does not expose NUMA nodes."""
        if len(cells) > MOST_EXPANDERS:
            raise StartFailed(f"spec.domain.cpu.numa: {len(cells)} nodes are more than the {MOST_EXPANDERS} that a guest can "
                              "have")
        self._cells = cells
        # Cell -> number of its expander: that of its node, so that a device on another node changes no address of this one.
        small = all(node < MOST_EXPANDERS for node in cells)
        self._expanders = {cell: node if small else cell for node, cell in cells.items()}
        self._used_by: dict[GuestPciAddress, str] = {
            GuestPciAddress(None, None, FIRST_EXPANDER + expander): "the expander bus of a NUMA node"
            for expander in self._expanders.values()
        }

    def place(self, lane: Lane, number: int, who: str, *, node: int | None = None, wanted: str | None = None,
              functions: Sequence[int] = (0,)) -> GuestPciAddress:
        """A port for the n-th device of a list, or the user-defined address. `functions`: the function numbers that it uses,
        relative to the address."""
        at = self._wanted(wanted, who, functions) if wanted else self._port(lane, number, who, node)
        for each in (replace(at, function=at.function + function) for function in functions):
            if each in self._used_by:
                raise StartFailed(f"{who}: the guest address {self.guest(each)} is taken by {self._used_by[each]}")
            self._used_by[each] = who
        return at

    def _port(self, lane: Lane, number: int, who: str, node: int | None) -> GuestPciAddress:
        cell = self._cells.get(node) if node is not None else None
        most = MOST_PORTS if cell is None else NODE_BUSES - 1
        places = [
            GuestPciAddress(None, 1 + port) if cell is None else GuestPciAddress(cell, port)
            for port in range(LANES[lane], most, len(LANES))
        ]
        found = places[number] if number < len(places) else next((at for at in places if at not in self._used_by), None)
        if found is None:
            where = f" on NUMA node {node}" if cell is not None else ""
            raise StartFailed(f"{who}: there is no PCI port left for it{where}: a list may have {len(places)} devices"
                              f"{' there' if where else ''}")
        return found

    def reserve(self, slot: int, who: str) -> None:
        """Reserve a slot of the root bus for an emulated device."""
        self._used_by[GuestPciAddress(None, None, slot)] = who

    def _wanted(self, text: str, who: str, functions: Sequence[int]) -> GuestPciAddress:
        if why := guest_address.address_error(text):
            raise StartFailed(f"{who}: {why}")
        at = guest_address.parse(text)
        assert at is not None
        highest = FUNCTIONS - 1 - max(functions)
        if at.function > highest:
            raise StartFailed(f"{who}: the {len(functions)} functions of the device are too many for {text}: a slot has "
                              f"functions 0 to {FUNCTIONS - 1}, so choose {text[:-1]}{highest} at most")
        return GuestPciAddress(None, at.bus or None, at.slot, at.function)

    @property
    def used(self) -> bool:
        """Whether any port is used."""
        return any(at.port is not None for at in self._used_by)

    def _bus_of(self, cell: int) -> int:
        """The bus number of a cell's expander; the buses of its ports follow."""
        return TOP - NODE_BUSES * (self._expanders[cell] + 1)

    def _last(self, cell: int | None) -> int:
        return max((at.port for at in self._used_by if at.port is not None and at.cell == cell), default=-1)

    def _bridges(self) -> set[int]:
        """Conventional PCI buses with several slots, each behind the port with the previous number."""
        out = {at.port for at in self._used_by if at.cell is None and at.port is not None and at.slot}
        for at, who in self._used_by.items():
            if at.cell is None and at.port is not None and who and (
                    (at.port in out and not at.slot) or at.port + 1 in out):
                raise StartFailed(f"{who}: the guest address {self.guest(at)} is needed for the bus of another device, whose "
                                  "pciAddress has a slot other than 00: choose slot 00 there, or another bus")
        return out

    def spare(self, interfaces: int) -> None:
        """Reserve ports for interfaces that are plugged later; called when all devices are placed."""
        slots = [at.slot for at in self._used_by if at.port is None and at.slot >= FIRST_PORT]
        begins = min((self._bus_of(cell) for cell in self._cells.values() if self._last(cell) >= 0), default=TOP)
        for number in range(max(HOTPLUG, interfaces + FREE), 0, -1):
            port = 1 + LANES["interfaces"] + len(LANES) * (number - 1)
            room = FIRST_PORT + (port - 1) // FUNCTIONS < min(slots, default=FIRST_EXPANDER)
            if room and port <= min(MOST_PORTS, begins - 1):
                self._used_by.setdefault(GuestPciAddress(None, port), "")
                return

    def check(self) -> None:
        """StartFailed for devices that no guest would find; called when all are placed."""
        for at, who in self._used_by.items():
            first = replace(at, function=0)
            if first not in self._used_by:
                raise StartFailed(f"{who}: a guest does not find {self.guest(at)} without a device at {self.guest(first)}: "
                                  "choose that address, or assign it to another device")
        self._check_ports_before_expanders()

    def _check_ports_before_expanders(self) -> None:
        """The root ports must end before the first expander, as the firmware numbers buses consecutively. This also limits the
        guest to 256 buses."""
        begins, node = min(((self._bus_of(self._cells[node]), node) for node in self._cells
                            if self._last(self._cells[node]) >= 0), default=(TOP, None))
        for at, who in self._used_by.items():
            if at.cell is None and at.port is not None and at.port >= begins:
                lane = range(1 + (at.port - 1) % len(LANES), begins, len(LANES))
                raise StartFailed(f"{who}: bus {at.port:02x} is reserved for NUMA node {node}, of which this VM has devices: "
                                  f"other devices have the buses up to {begins - 1:02x}, {len(lane)} of a list")

    def guest(self, at: GuestPciAddress, function: int = 0) -> str:
        """The address as the guest sees it."""
        bus = 0 if at.port is None else at.port if at.cell is None else self._bus_of(at.cell) + 1 + at.port
        return f"0000:{bus:02x}:{at.slot:02x}.{at.function + function}"

    def address(self, at: GuestPciAddress, function: int = 0) -> ET.Element:
        """The address element, with libvirt's controller index as bus."""
        if at.port is None:
            bus = 0
        elif at.cell is None:
            bus = at.port
        else:
            bus = self._indexes()[at.cell] + 1 + at.port
        number = at.function + function
        slot = (at.cell, at.port, at.slot)
        beside = any((used.cell, used.port, used.slot) == slot and used.function for used in self._used_by)
        return _pci(bus, at.slot, number, multifunction=number == 0 and beside)

    def _indexes(self) -> dict[int, int]:
        """libvirt's index of each expander: after all root ports, each followed by its own ports."""
        out, index = {}, max(self._last(None), 0) + 1
        for cell in sorted(self._cells.values()):
            if self._last(cell) >= 0:
                out[cell] = index
                index += 2 + self._last(cell)
        return out

    def controllers(self) -> list[ET.Element]:
        """The root complex, all ports up to the last used one, and the expanders."""
        out = [_controller(0, "pcie-root")]
        main = max(self._last(None), 0)
        slots = {at.slot for at in self._used_by if at.port is None}
        bridges = self._bridges()
        for number, port in enumerate(each for each in range(1, main + 1) if each not in bridges):
            slot, function = FIRST_PORT + number // FUNCTIONS, number % FUNCTIONS
            if slot in slots:
                free = FIRST_PORT + (main - 1) // FUNCTIONS + 1
                who = next(who for at, who in self._used_by.items() if at.port is None and at.slot == slot)
                raise StartFailed(f"{who}: the guest address 0000:00:{slot:02x}.0 is needed for "
                                  f"ports of this VM: choose one from 0000:00:{free:02x}.0 on")
            controller = _controller(port, "pcie-root-port")
            controller.append(_pci(0, slot, function, multifunction=function == 0))
            out.append(controller)
            if port + 1 in bridges:
                bridge = _controller(port + 1, "pcie-to-pci-bridge")
                bridge.append(_pci(port, 0, 0))
                out.append(bridge)
        for cell, index in self._indexes().items():
            expander = _controller(index, "pcie-expander-bus")
            ET.SubElement(expander, "model", name="pxb-pcie")
            target = ET.SubElement(expander, "target", busNr=str(self._bus_of(cell)))
            ET.SubElement(target, "node").text = str(cell)
            expander.append(_pci(0, FIRST_EXPANDER + self._expanders[cell], 0))
            out.append(expander)
            for port in range(self._last(cell) + 1):
                below = _controller(index + 1 + port, "pcie-root-port")
                below.append(_pci(index, port, 0))
                out.append(below)
        return out


def fixed(slot: int) -> ET.Element:
    """The address of an emulated device on the root bus."""
    return _pci(0, slot, 0)


def behind_port(bus: int) -> ET.Element:
    """The address of a device behind a root port."""
    return _pci(bus, 0, 0)


def sata(number: int, *, chipset: bool) -> ET.Element:
    """The address of a SATA controller; `chipset`: the machine type has the first one."""
    function = SATA[number - 1] if number else 2 if chipset else 0
    return _pci(0, guest_address.CHIPSET, function, multifunction=function == 0)


def user_address(text: str, who: str) -> ET.Element:
    """A user-defined address, for a machine type without PCI Express."""
    at = guest_address.parse(text)
    if at is None:
        raise StartFailed(f"{who}: {text} is not a PCI address: it must be domain:bus:slot.function, such as 0000:05:00.0")
    return _pci(at.bus, at.slot, at.function, at.domain)


def _controller(index: int, model: str) -> ET.Element:
    return ET.Element("controller", type="pci", index=str(index), model=model)


def _pci(bus: int, slot: int, function: int, domain: int = 0, *, multifunction: bool = False) -> ET.Element:
    out = ET.Element("address", type="pci", domain=f"0x{domain:04x}", bus=f"0x{bus:02x}", slot=f"0x{slot:02x}",
                     function=f"0x{function:x}")
    if multifunction:
        out.set("multifunction", "on")
    return out
