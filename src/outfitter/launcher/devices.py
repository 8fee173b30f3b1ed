"""Builds the <devices> element of a domain, in a fixed order:

controllers; disks; emulated interfaces; host devices (of plugins: PCI, mediated, USB; then claimed); GPUs (of plugins: PCI,
mediated; then claimed); VFs of interfaces; console, graphics and the rest. Within each the order is that of the spec. Guest
addresses do not depend on it (see `pci_layout`). Called by `domain`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """The devices of one VM: all get their guest addresses first, then the elements are built."""

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
        """`drive`: path of the config drive's image; "" if there is none."""
        self._spec, self._machine, self._options, self._wires, self._drive = spec, machine, options, wires, drive
        self._given: Mapping[str, Any] = (spec.get("domain") or {}).get("devices") or {}
        self._cells = {cell.host: cell.id for cell in spread}
        if spread and not machine.express:
            raise StartFailed(f"spec.domain.cpu.numa: machine type {machine.machine} has no PCI Express to expose NUMA nodes: "
                              "use q35")
        self._layout = Layout(self._cells)
        self._user_addresses: dict[str, str] = {}  # user-defined addresses on a VM without PCI Express -> path of the device
        self._aliases = DeviceAliases()
        self._interfaces = [each for each in enumerate(self._given.get("interfaces") or ()) if each[1].get("state") != "absent"]
        self._unknown = {index: why for index, each in self._interfaces
                         if (why := interface.unsupported(each, wires.get(str(each.get("name")))))}
        self._networks = {each.get("name"): each for each in spec.get("networks") or ()}
        self.skipped: list[str] = []  # unsupported parts of the spec that were skipped, a message each
        self.tagged: list[Tagged] = []

    def elements(self, found: Sequence[ResolvedDevices], later: Collection[tuple[str, str]] = ()) -> list[ET.Element]:
        """`later`: devices, by list and name, that are plugged when the domain runs; they have their guest addresses."""
        self._unsupported()
        disks = list(self._disks())
        usb_needed = any(given.kind == "usb" for resolved in found for given in resolved.devices) or any(
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
        for resolved in found:
            self._aliases.reserve(_kind(resolved, resolved.devices[0]), resolved.ask.name)

        out = [*self._layout.controllers()] if self._machine.express and self._layout.used else []
        out += self._controllers(usb_needed, scsi)
        out += self._sata(sata)
        out += self._disk_elements(disks, disk_places)
        out += self._interface_elements(places)
        for resolved in self._ordered(found):
            parts = list(self._host_device_elements(resolved, places, shown))
            out += parts if (resolved.ask.list, resolved.ask.name) not in later else []
        out += graphics.console(self._given, self._machine)
        out += self._inputs()
        out += graphics.screen(self._given, self._machine, shown=bool(shown))
        if rng:
            out.append(self._rng())
        out.append(ET.Element("memballoon", model="none"))  # a host device pins all memory
        orders = [each.get("order") for part in out for each in part.iterfind("boot")]
        if twice := next((order for order in orders if orders.count(order) > 1), None):
            raise StartFailed(f"spec.domain.devices: bootOrder {twice} is that of more than one device: each needs its own")
        return out

    # -- guest addresses

    def _place(self, found: Sequence[ResolvedDevices]) -> dict[tuple[str, int, int], GuestPciAddress]:
        """The guest address of each device, by list, index and port number, in the order of each list."""
        out: dict[tuple[str, int, int], GuestPciAddress] = {}
        if not self._machine.express:
            return out
        by_list: dict[Lane, list[ResolvedDevices]] = {"hostDevices": [], "gpus": []}
        functions = {}
        for resolved in found:
            if resolved.ask.list == "interfaces":
                functions[resolved.ask.index] = resolved.devices[0]
            else:
                by_list[resolved.ask.list].append(resolved)
        for lane, listed in by_list.items():
            number = 0
            for resolved in sorted(listed, key=lambda each: each.ask.index):
                wanted = self._entry(resolved.ask).get("pciAddress")
                for port, (node, numbers) in enumerate(_ports(resolved)):
                    out[lane, resolved.ask.index, port] = self._layout.place(
                        lane, number, resolved.ask.path, node=node, wanted=wanted if port == 0 else None, functions=numbers)
                    number += 1
        for index, each in self._interfaces:  # an absent interface keeps its port
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
        """The entry of a device in the spec; empty for a device of a flavor."""
        entry: Mapping[str, Any] = self._given[ask.list][ask.index] if ask.number is None else {}
        return entry

    def _address(self, at: GuestPciAddress | None, path: str, entry: Mapping[str, Any], function: int = 0, *,
                 first: bool = True) -> ET.Element | None:
        """The guest address element of a device. On a VM without PCI Express it is the address of the spec, for the first
        device of the entry; the hypervisor chooses the others."""
        if at is not None:
            return self._layout.address(at, function)
        wanted = entry.get("pciAddress")
        if not wanted or not first:
            return None
        out = pci_layout.user_address(wanted, path)
        key = ET.tostring(out, encoding="unicode")
        if key in self._user_addresses:
            raise StartFailed(f"{path}: the guest address {wanted} is taken by {self._user_addresses[key]}")
        self._user_addresses[key] = path
        return out

    def _tag(self, kind: TaggedKind, path: str, entry: Mapping[str, Any], at: GuestPciAddress | None, **more: Any) -> None:
        if not entry.get("tag"):
            return
        if at is None:
            raise StartFailed(f"{path}.tag: the device has no fixed guest address, because machine type "
                              f"{self._machine.machine} has no PCI Express: use q35, or remove the tag")
        self.tagged.append(Tagged(kind, str(entry["tag"]), self._layout.guest(at), cell=at.cell, **more))

    # -- host devices

    def _ordered(self, found: Sequence[ResolvedDevices]) -> list[ResolvedDevices]:
        order = {"hostDevices": 0, "gpus": 1, "interfaces": 2}

        def place(resolved: ResolvedDevices) -> tuple[int, bool, int, int]:
            claimed = resolved.ask.by_claim and resolved.ask.list != "interfaces"
            return order[resolved.ask.list], claimed, 0 if claimed else KINDS[resolved.devices[0].kind], resolved.ask.index

        return sorted(found, key=place)

    def _displays(self, found: Sequence[ResolvedDevices]) -> dict[tuple[int, int], mdev.Display]:
        gpus = [resolved for resolved in self._ordered(found) if resolved.ask.list == "gpus"]
        return mdev.displays(gpus, self._given.get("gpus") or ())

    def _host_device_elements(self, resolved: ResolvedDevices, places: Mapping[tuple[str, int, int], GuestPciAddress],
              shown: Mapping[tuple[int, int], mdev.Display]) -> Iterator[ET.Element]:
        ask, entry = resolved.ask, self._entry(resolved.ask)
        alias_number, port = 0, 0
        for number, given in enumerate(resolved.devices):
            display = shown.get((ask.index, number), mdev.NONE) if ask.list == "gpus" else mdev.NONE
            functions = hostdev.functions(given)
            for count, (address, function) in enumerate(functions):
                at = places.get((ask.list, ask.index, port + count // FUNCTIONS))
                guest = self._address(at, ask.path, entry, function % FUNCTIONS, first=alias_number == 0)
                alias = self._aliases.name(_kind(resolved, given), ask.name, alias_number)
                alias_number += 1
                out = self._hostdev(resolved, given, address, alias, guest, first=count == 0)
                if count == 0:
                    mdev.show(out, display)
                    self._tag("nic" if ask.list == "interfaces" else "hostdev", ask.path, entry, at, mac=self._mac(ask, entry))
                yield out
            port += -(-len(functions) // FUNCTIONS) if given.kind != "usb" else 0

    def _mac(self, ask: RequestedDevice, entry: Mapping[str, Any]) -> str | None:
        return interface.mac(entry, self._wires.get(ask.name) if ask.list == "interfaces" else None)

    def _hostdev(self, resolved: ResolvedDevices, given: AssignedDevice, address: str, alias: str, guest: ET.Element | None, *,
                 first: bool) -> ET.Element:
        if resolved.ask.list == "interfaces" and first:  # further functions of the device are plain host devices
            card = self._given["interfaces"][resolved.ask.index]
            return interface.function(card, address, alias, guest, self._wires.get(resolved.ask.name))
        if given.kind == "usb":
            return usb.element(given, alias)
        if given.kind == "mdev":
            crypto = self._machine.architecture.name == "s390x" and resolved.ask.list == "hostDevices"
            return mdev.element(given, alias, "vfio-ap" if crypto else "vfio-pci", guest)
        return hostdev.element(resolved.ask.name, address, alias, guest)

    # -- everything else

    def _interface_elements(self, places: Mapping[tuple[str, int, int], GuestPciAddress]) -> Iterator[ET.Element]:
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

    def _disk_elements(
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
        """`count` SATA controllers, on a VM with PCI Express."""
        most = 1 + len(pci_layout.SATA)
        if not self._machine.express:
            return
        if count > most:
            raise StartFailed(f"spec.domain.devices.disks: a VM has at most {most * disk.SATA_PORTS} disks on sata, "
                              "including the config drive: use virtio or scsi for the others")
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
        """Skip an unsupported part of the spec on a simulated host; on a real one StartFailed."""
        if not self._options.simulated:
            raise StartFailed(why)
        self.skipped.append(why)


def _kind(resolved: ResolvedDevices, given: AssignedDevice) -> str:
    """The prefix of a device's alias."""
    return "usb-host" if given.kind == "usb" else NAMES[resolved.ask.list, resolved.ask.by_claim]


def _ports(resolved: ResolvedDevices) -> Iterator[tuple[int | None, Sequence[int]]]:
    """NUMA node and function numbers for each PCI port that an entry needs: a port has eight functions."""
    for given in resolved.devices:
        if given.kind == "usb":
            continue
        numbers = [function % FUNCTIONS for _, function in hostdev.functions(given)]
        for first in range(0, len(numbers), FUNCTIONS):
            yield given.numa, numbers[first:first + FUNCTIONS]
