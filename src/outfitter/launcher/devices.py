"""Everything below <devices> of a domain, in an order that does not change:

controllers; disks; interfaces that are no device of the host; host devices (of plugins: PCI, mediated, USB; then claimed); GPUs
(of plugins: PCI, mediated; then claimed); virtual functions of interfaces; console, screen and the rest. Within each the order
is that of the spec. Addresses in the guest do not depend on it (see addresses.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt.network_info import Wire
from outfitter.errors import StartFailed
from outfitter.launcher import disk, graphics, hostdev, interface, mdev, numa, pci_layout, usb
from outfitter.launcher.device_alias import DeviceAliases
from outfitter.launcher.device_assignment import AssignedDevice, RequestedDevice, ResolvedDevices
from outfitter.launcher.device_tags import Tagged, TaggedKind
from outfitter.launcher.domain_options import DomainOptions
from outfitter.launcher.machine_type import MachineType
from outfitter.launcher.pci_layout import FUNCTIONS, GuestPciAddress, Lane, Layout

KINDS = {"pci": 0, "mdev": 1, "usb": 2}
NAMES = {("gpus", False): "gpu", ("gpus", True): "dra-gpu", ("hostDevices", False): "hostdevice",
         ("hostDevices", True): "dra-hostdevice", ("interfaces", False): "sriov", ("interfaces", True): "sriov"}
UNSUPPORTED = ("tpm", "watchdog", "sound", "filesystems", "clientPassthrough", "downwardMetrics", "panicDevices")


class Devices:
    """The devices of one machine: first all get their places, then they are drawn."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        machine: MachineType,
        spread: Sequence[numa.GuestNumaCell],
        options: DomainOptions,
        wires: Mapping[str, Wire],
        *,
        drive: str = "",
    ) -> None:
        """`drive`: where the image for the machine's cloud-init is, if it has one."""
        self._spec, self._machine, self._options, self._wires, self._drive = spec, machine, options, wires, drive
        self._given: Mapping[str, Any] = (spec.get("domain") or {}).get("devices") or {}
        self._cells = {cell.host: cell.id for cell in spread}
        if spread and not machine.express:
            raise StartFailed(f"spec.domain.cpu.numa: machine type {machine.machine} has no PCI Express to show nodes on: use "
                              "q35")
        self._layout = Layout(self._cells)
        self._told: dict[str, str] = {}  # addresses of the user's on a machine that is not laid out here -> whose
        self._aliases = DeviceAliases()
        self._interfaces = [each for each in enumerate(self._given.get("interfaces") or ()) if each[1].get("state") != "absent"]
        self._unknown = {index: why for index, each in self._interfaces
                         if (why := interface.unsupported(each, wires.get(str(each.get("name")))))}
        self._networks = {each.get("name"): each for each in spec.get("networks") or ()}
        self.left_out: list[str] = []  # what the spec has and this domain has not, a sentence each
        self.tagged: list[Tagged] = []

    def elements(self, found: Sequence[ResolvedDevices]) -> list[ET.Element]:
        self._unsupported()
        disks = list(self._disks())
        usb_needed = any(given.kind == "usb" for one in found for given in one.devices) or any(
            bus == "usb" for _, _, _, bus, _ in disks) or bool(self._given.get("inputs"))
        scsi = any(bus == "scsi" for _, _, _, bus, _ in disks)
        sata = -(-sum(bus == "sata" for _, _, _, bus, _ in disks) // disk.SATA_PORTS)
        rng = self._given.get("rng") is not None
        own = ((usb_needed, pci_layout.USB, "the USB controller"), (scsi, pci_layout.SCSI, "the SCSI controller"),
               (rng, pci_layout.RNG, "the random number generator"),
               (graphics.needs_graphics(self._given), pci_layout.VIDEO, "the video card"))
        for needed, slot, who in own:
            if needed:
                self._layout.reserve(slot, who)
        places = self._place(found)
        disk_places = self._place_disks(disks)
        self._layout.spare(len(self._interfaces))
        self._layout.check()
        shown = self._displays(found)
        for one in found:
            self._aliases.keep(_kind(one, one.devices[0]), one.ask.name)

        out = [*self._layout.controllers()] if self._machine.express and self._layout.used else []
        out += self._controllers(usb_needed, scsi)
        out += self._sata(sata)
        out += self._draw_disks(disks, disk_places)
        out += self._draw_interfaces(places)
        for one in self._ordered(found):
            out += self._draw(one, places, shown)
        out += graphics.console(self._given, self._machine)
        out += self._inputs()
        out += graphics.screen(self._given, self._machine, shown=bool(shown))
        if rng:
            out.append(self._rng())
        out.append(ET.Element("memballoon", model="none"))  # a device of the host pins all memory anyway
        orders = [each.get("order") for part in out for each in part.iterfind("boot")]
        if twice := next((order for order in orders if orders.count(order) > 1), None):
            raise StartFailed(f"spec.domain.devices: bootOrder {twice} is that of more than one device: each needs its own")
        return out

    # -- places

    def _place(self, found: Sequence[ResolvedDevices]) -> dict[tuple[str, int, int], GuestPciAddress]:
        """Where each device goes, by list, index and number of its port; in the order of the spec in every list."""
        out: dict[tuple[str, int, int], GuestPciAddress] = {}
        if not self._machine.express:
            return out
        by_list: dict[Lane, list[ResolvedDevices]] = {"hostDevices": [], "gpus": []}
        functions = {}
        for one in found:
            if one.ask.list == "interfaces":
                functions[one.ask.index] = one.devices[0]
            else:
                by_list[one.ask.list].append(one)
        for lane, listed in by_list.items():
            number = 0
            for one in sorted(listed, key=lambda each: each.ask.index):
                wanted = self._entry(one.ask).get("pciAddress")
                for port, (node, numbers) in enumerate(_ports(one)):
                    out[lane, one.ask.index, port] = self._layout.place(
                        lane, number, one.ask.path, node=node, wanted=wanted if port == 0 else None, functions=numbers)
                    number += 1
        for index, each in self._interfaces:  # one that is absent keeps its port
            given = functions.get(index)
            out["interfaces", index, 0] = self._layout.place(
                "interfaces", index, f"spec.domain.devices.interfaces[{index}]", wanted=each.get("pciAddress"),
                node=given.numa if given else None,
                functions=[function for _, function in hostdev.functions(given)] if given else (0,))
        return out

    def _place_disks(self, disks: Sequence[tuple[int, Any, str, str, str]]) -> dict[int, GuestPciAddress]:
        if not self._machine.express:
            return {}
        on_pci = [(index, each[kind].get("pciAddress") if each.get(kind) else None) for index, each, kind, bus, _ in disks
                  if bus == "virtio"]
        return {index: self._layout.place("disks", number, disk.path(index), wanted=wanted)
                for number, (index, wanted) in enumerate(on_pci)}

    def _entry(self, ask: RequestedDevice) -> Mapping[str, Any]:
        """What the spec says of a device; nothing of one that a flavor brings."""
        entry: Mapping[str, Any] = self._given[ask.list][ask.index] if ask.number is None else {}
        return entry

    def _address(self, at: GuestPciAddress | None, path: str, entry: Mapping[str, Any], function: int = 0, *,
                 first: bool = True) -> ET.Element | None:
        """The guest's address of a device. Where addresses are not laid out here it is the one that the user gave, for the
        first device of the entry; the hypervisor chooses the others."""
        if at is not None:
            return self._layout.address(at, function)
        wanted = entry.get("pciAddress")
        if not wanted or not first:
            return None
        out = pci_layout.user_address(wanted, path)
        key = ET.tostring(out, encoding="unicode")
        if key in self._told:
            raise StartFailed(f"{path}: the guest address {wanted} is taken by {self._told[key]}")
        self._told[key] = path
        return out

    def _tag(self, kind: TaggedKind, path: str, entry: Mapping[str, Any], at: GuestPciAddress | None, **more: Any) -> None:
        if not entry.get("tag"):
            return
        if at is None:
            raise StartFailed(f"{path}.tag: the guest could not be told an address, because machine type "
                              f"{self._machine.machine} has no PCI Express: use q35, or leave the tag out")
        self.tagged.append(Tagged(kind, str(entry["tag"]), self._layout.guest(at), cell=at.cell, **more))

    # -- devices of the host

    def _ordered(self, found: Sequence[ResolvedDevices]) -> list[ResolvedDevices]:
        order = {"hostDevices": 0, "gpus": 1, "interfaces": 2}

        def place(one: ResolvedDevices) -> tuple[int, bool, int, int]:
            claimed = one.ask.by_claim and one.ask.list != "interfaces"
            return order[one.ask.list], claimed, 0 if claimed else KINDS[one.devices[0].kind], one.ask.index

        return sorted(found, key=place)

    def _displays(self, found: Sequence[ResolvedDevices]) -> dict[tuple[int, int], mdev.Display]:
        gpus = [one for one in self._ordered(found) if one.ask.list == "gpus"]
        return mdev.displays(gpus, self._given.get("gpus") or ())

    def _draw(self, one: ResolvedDevices, places: Mapping[tuple[str, int, int], GuestPciAddress],
              shown: Mapping[tuple[int, int], mdev.Display]) -> Iterator[ET.Element]:
        ask, entry = one.ask, self._entry(one.ask)
        alias_number, port = 0, 0
        for number, given in enumerate(one.devices):
            display = shown.get((ask.index, number), mdev.NONE) if ask.list == "gpus" else mdev.NONE
            functions = hostdev.functions(given)
            for count, (address, function) in enumerate(functions):
                at = places.get((ask.list, ask.index, port + count // FUNCTIONS))
                guest = self._address(at, ask.path, entry, function % FUNCTIONS, first=alias_number == 0)
                alias = self._aliases.name(_kind(one, given), ask.name, alias_number)
                alias_number += 1
                out = self._hostdev(one, given, address, alias, guest, first=count == 0)
                if count == 0:
                    mdev.show(out, display)
                    self._tag("nic" if ask.list == "interfaces" else "hostdev", ask.path, entry, at, mac=self._mac(ask, entry))
                yield out
            port += -(-len(functions) // FUNCTIONS) if given.kind != "usb" else 0

    def _mac(self, ask: RequestedDevice, entry: Mapping[str, Any]) -> str | None:
        return interface.mac(entry, self._wires.get(ask.name) if ask.list == "interfaces" else None)

    def _hostdev(self, one: ResolvedDevices, given: AssignedDevice, address: str, alias: str, guest: ET.Element | None, *,
                 first: bool) -> ET.Element:
        if one.ask.list == "interfaces" and first:  # what travels with an interface is no interface
            card = self._given["interfaces"][one.ask.index]
            return interface.function(card, address, alias, guest, self._wires.get(one.ask.name))
        if given.kind == "usb":
            return usb.element(given, alias)
        if given.kind == "mdev":
            crypto = self._machine.architecture.name == "s390x" and one.ask.list == "hostDevices"
            return mdev.element(given, alias, "vfio-ap" if crypto else "vfio-pci", guest)
        return hostdev.element(one.ask.name, address, alias, guest)

    # -- everything else

    def _draw_interfaces(self, places: Mapping[tuple[str, int, int], GuestPciAddress]) -> Iterator[ET.Element]:
        for index, each in self._interfaces:
            path = f"spec.domain.devices.interfaces[{index}]"
            network = self._networks.get(each.get("name"))
            if network is None:
                raise StartFailed(f"{path}: no entry of spec.networks is called {each.get('name')!r}")
            if index in self._unknown:
                self.skip(f"{path}: {self._unknown[index]}")
            if index in self._unknown or interface.binding(each) == "sriov":
                continue
            at, wire = places.get(("interfaces", index, 0)), self._wires.get(str(each["name"]))
            self._tag("nic", path, each, at, mac=interface.mac(each, wire))
            yield interface.element(each, network, alias=self._aliases.name("", str(each["name"])), wire=wire,
                                    guest=self._address(at, path, each), express=self._machine.express)

    def _disks(self) -> Iterator[tuple[int, Mapping[str, Any], str, str, str]]:
        for index, each, kind, bus in disk.listed(self._spec):
            try:
                yield index, each, kind, bus, disk.source(each, index, self._spec, self._drive)
            except disk.MissingVolume as error:
                self.skip(error.message)
        if self._drive and (name := disk.unlisted_drive(self._spec)):
            bus = "sata" if self._machine.architecture.name == "x86_64" else "scsi"
            yield len(self._given.get("disks") or ()), {"name": name}, "cdrom", bus, self._drive

    def _draw_disks(
        self, disks: Sequence[tuple[int, Any, str, str, str]], places: Mapping[int, GuestPciAddress]
    ) -> Iterator[ET.Element]:
        targets = disk.Targets()
        for index, each, kind, bus, file in disks:
            target, number = targets.next(bus)
            guest = disk.drive_address(bus, number)
            if bus == "virtio":
                at = places.get(index)
                self._tag("disk", disk.path(index), each, at, serial=each.get("serial"))
                guest = self._address(at, disk.path(index), each.get(kind) or {})
            alias = self._aliases.name("", str(each.get("name")))
            yield disk.element(each, kind, target=(target, bus), file=file, alias=alias, guest=guest)

    def _controllers(self, usb_needed: bool, scsi: bool) -> Iterator[ET.Element]:
        for needed, kind, model, slot in ((usb_needed, "usb", "qemu-xhci", pci_layout.USB),
                                          (scsi, "scsi", "virtio-scsi", pci_layout.SCSI)):
            if needed:
                out = ET.Element("controller", type=kind, index="0", model=model)
                if self._machine.express:
                    out.append(pci_layout.fixed(slot))
                yield out
            elif kind == "usb":
                yield ET.Element("controller", type="usb", index="0", model="none")

    def _sata(self, count: int) -> Iterator[ET.Element]:
        """So many SATA controllers, where their addresses are ours to say."""
        most = 1 + len(pci_layout.SATA)
        if not self._machine.express:
            return
        if count > most:
            raise StartFailed(f"spec.domain.devices.disks: a machine has {most * disk.SATA_PORTS} disks on sata at most, the "
                              "drive for cloud-init among them: use virtio or scsi for the others")
        for number in range(count):
            out = ET.Element("controller", type="sata", index=str(number))
            out.append(pci_layout.sata(number, chipset=self._machine.architecture.name == "x86_64"))
            yield out

    def _inputs(self) -> Iterator[ET.Element]:
        for index, each in enumerate(self._given.get("inputs") or ()):
            if each.get("type") != "tablet" or each.get("bus", "usb") != "usb":
                self.skip(f"spec.domain.devices.inputs[{index}]: only a tablet on usb can be attached")
                continue
            out = ET.Element("input", type="tablet", bus="usb")
            ET.SubElement(out, "alias", name=self._aliases.name("", str(each.get("name") or f"input{index}")))
            yield out

    def _rng(self) -> ET.Element:
        out = ET.Element("rng", model="virtio")
        ET.SubElement(out, "backend", model="random").text = "/dev/urandom"
        if self._machine.express:
            out.append(pci_layout.fixed(pci_layout.RNG))
        return out

    def _unsupported(self) -> None:
        for key in UNSUPPORTED:
            if self._given.get(key) not in (None, [], False):
                self.skip(f"spec.domain.devices.{key} is not supported")

    def skip(self, why: str) -> None:
        """A machine that only plays does without; a real one would not be what was asked for."""
        if not self._options.simulated:
            raise StartFailed(why)
        self.left_out.append(why)


def _kind(one: ResolvedDevices, given: AssignedDevice) -> str:
    """What the name of a device begins with."""
    return "usb-host" if given.kind == "usb" else NAMES[one.ask.list, one.ask.by_claim]


def _ports(one: ResolvedDevices) -> Iterator[tuple[int | None, Sequence[int]]]:
    """Node and numbers of functions for each PCI port that an entry needs: a port takes eight functions."""
    for given in one.devices:
        if given.kind == "usb":
            continue
        numbers = [function % FUNCTIONS for _, function in hostdev.functions(given)]
        for first in range(0, len(numbers), FUNCTIONS):
            yield given.numa, numbers[first:first + FUNCTIONS]
