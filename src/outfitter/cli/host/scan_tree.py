"""A scan as a tree for the terminal: NUMA nodes, PCIe roots, bridges, PFs with their VFs, mediated devices. Called by
`scan.py`."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from outfitter.cli import tree_printer
from outfitter.cli.tree_printer import Branch
from outfitter.inventory import pci, pci_ids
from outfitter.inventory.mdev import Mdev, MdevType
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.pci_ids import PciIds
from outfitter.inventory.scan import Scan
from outfitter.inventory.simulation.host import quantity
from outfitter.inventory.sysfs_reader import plain as harmless

WIDTH = 100
FEW = 2  # up to this many alike VFs get a line each
SHOWN_WARNINGS = 30


def lines(found: Scan, names: PciIds, *, plain: bool = False) -> Iterator[str]:
    return tree_printer.for_terminal(_lines(found, names), plain=plain)


def _lines(found: Scan, names: PciIds) -> Iterator[str]:
    for node in _Tree(found, names).nodes():
        yield from tree_printer.tree_lines(node, WIDTH)
        yield ""
    yield from textwrap.wrap(_counts(found), WIDTH, subsequent_indent="  ")
    if not names and found.devices:
        yield pci_ids.MISSING
    if found.warnings:
        yield f"{_many(len(found.warnings), 'warning')}:"
    for warning in found.warnings[:SHOWN_WARNINGS]:
        yield from textwrap.wrap(str(warning), WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    if len(found.warnings) > SHOWN_WARNINGS:
        yield f"  and {len(found.warnings) - SHOWN_WARNINGS} more; -o json shows all"


class _Tree:
    def __init__(self, found: Scan, names: PciIds) -> None:
        self.found, self.names = found, names
        self.iommu = any(device.iommu_group is not None for device in found.devices)  # else the summary says so
        self.mdevs: dict[tuple[str, str], list[Mdev]] = defaultdict(list)  # by parent and type
        for mdev in found.mdevs:
            self.mdevs[mdev.parent, mdev.type_id].append(mdev)
        self.vfs: dict[str, list[HostDevice]] = defaultdict(list)  # by PF
        self.below: dict[str, list[HostDevice]] = defaultdict(list)  # by the name of the bridge
        self.top: dict[tuple[int | None, str | None], list[HostDevice]] = defaultdict(list)  # by NUMA node and root
        by_name = {device.name: device for device in found.devices}
        addresses = {device.address for device in found.devices}
        for device in found.devices:
            # A name is the path from the root, two words per hop, so it starts with the name of the bridge above.
            above = by_name.get(device.name.rsplit("-", 2)[0])
            if device.parent is not None and device.parent in addresses:
                self.vfs[device.parent].append(device)
            elif above is not None and above.pcie_root == device.pcie_root:
                self.below[above.name].append(device)
            else:
                self.top[device.numa, device.pcie_root].append(device)

    def nodes(self) -> Iterator[Branch]:
        numbers = sorted({numa for numa, _ in self.top}, key=lambda numa: (numa is None, numa or 0))
        for numa in numbers:
            title = "No NUMA node" if numa is None else f"NUMA node {numa}"
            roots = [(root, devices) for (node, root), devices in self.top.items() if node == numa]
            yield Branch(title, [Branch(root or "no PCIe root known", [self._function(device, numa) for device in devices])
                                    for root, devices in roots])
        if self.found.parents:
            yield Branch("Mediated devices that are not on PCI", [
                Branch(parent.name, list(self._types(parent.name, parent.types))) for parent in self.found.parents])

    def _function(self, device: HostDevice, numa: int | None) -> Branch:
        vendor, product = self.names.vendor_and_product(device.vendor, device.product)
        if device.is_bridge and product is None:  # a bridge has no facts line
            product = self.names.class_name(device.class_code) or "bridge"
        called = " ".join(filter(None, (vendor, product)))
        ids = f"[{device.vendor or '????'}:{device.product or '????'}]"
        room = WIDTH - 40
        called = called if len(called) <= room else f"{called[:room - 1]}…"
        below = [*self._virtual(device), *self._types(device.address, device.mdev_types)]
        below += [self._function(child, device.numa) for child in self.below[device.name]]
        facts = () if device.is_bridge else tuple(self._facts(device, numa))
        return Branch("  ".join(filter(None, (device.address, called, ids))), below, facts)

    def _facts(self, device: HostDevice, numa: int | None) -> Iterator[str]:
        yield self.names.class_name(device.class_code) or f"class {device.class_code or 'unknown'}"
        if device.kind is FunctionKind.PF:
            yield f"PF with {_known(device.num_vfs)} of {_known(device.total_vfs)} VFs"
        elif device.kind is not FunctionKind.PCI:
            yield "VF of an unknown PF"
        yield f"driver {harmless(device.driver)}" if device.driver is not None else "no driver"
        yield from self._group(device)
        if device.numa != numa:
            yield "no NUMA node" if device.numa is None else f"NUMA node {device.numa}"
        yield from _interfaces(device)
        if device.serial is not None:
            yield f"serial {device.serial}"
        if device.card_serial is not None:
            yield f"card {device.card_serial}"
        yield f"name {device.name}"

    def _group(self, device: HostDevice) -> Iterator[str]:
        if device.iommu_group is None:
            yield from ["no IOMMU group"] if self.iommu else []
        elif not device.members:
            yield f"IOMMU group {device.iommu_group}"
        else:
            others = device.members if len(device.members) <= FEW else (*device.members[:FEW], "…")
            yield f"IOMMU group {device.iommu_group} with {' '.join(map(harmless, others))}"

    def _virtual(self, pf: HostDevice) -> Iterator[Branch]:
        """The VFs of a PF; consecutive alike VFs are one line."""
        vfs = sorted(self.vfs[pf.address], key=lambda vf: (vf.vf_index is None, vf.vf_index or 0, pci.order(vf.address)))
        for _, run in groupby(vfs, key=lambda vf: (vf.kind, vf.vendor, vf.product, vf.driver, vf.numa, bool(vf.interfaces),
                                                   vf.vf_index is None, self._own(vf, pf), bool(vf.mdev_types))):
            alike = list(run)
            if len(alike) <= FEW or alike[0].mdev_types or self._own(alike[0], pf):
                yield from (self._vfs([vf], pf) for vf in alike)
            else:
                yield self._vfs(alike, pf)

    @staticmethod
    def _own(vf: HostDevice, pf: HostDevice) -> bool:
        """Whether the VF has a serial number of its own, which must be shown."""
        return vf.serial != pf.serial or vf.card_serial != pf.card_serial

    def _vfs(self, vfs: Sequence[HostDevice], pf: HostDevice) -> Branch:
        first, last = vfs[0], vfs[-1]
        number = "VF" if first.vf_index is None else f"vf{first.vf_index}"
        address = first.address
        if len(vfs) > 1:
            number, address = f"{number}–{last.vf_index}", f"{first.address} – {last.address}"
        facts = ["" if first.product == pf.product and first.vendor == pf.vendor else f"[{first.vendor}:{first.product}]",
                 {FunctionKind.VDPA: "vdpa", FunctionKind.VENDOR_VF: "vendor's VFIO"}.get(first.kind, ""),
                 f"driver {harmless(first.driver)}" if first.driver is not None else "no driver"]
        facts += [_groups(vfs)] if len(vfs) > 1 and self.iommu else list(self._group(first))
        if len(vfs) > 1 and first.interfaces:
            facts.append(f"{harmless(first.interfaces[0])} – {harmless(last.interfaces[-1])}")
        elif first.interfaces:
            facts += list(_interfaces(first))
        if first.numa != pf.numa:
            facts.append(f"NUMA node {_known(first.numa)}")
        if self._own(first, pf):
            facts += [f"{what} {text}" for what, text in (("serial", first.serial), ("card", first.card_serial)) if text]
        title = f"{number:<8}{address}  {', '.join(filter(None, facts))}"
        return Branch(title, list(self._types(first.address, first.mdev_types)))

    def _types(self, parent: str, types: Sequence[MdevType]) -> Iterator[Branch]:
        titles = {type_.id: type_.id if type_.name == type_.id else f"{type_.id}  {harmless(type_.name)}" for type_ in types}
        wide = min(max(map(len, titles.values()), default=0), WIDTH - 60)
        for type_ in types:
            yield Branch(f"{titles[type_.id]:<{wide}}  {len(type_.instances)} created, {_known(type_.available)} available",
                        [_mdev(mdev) for mdev in self.mdevs[parent, type_.id]])
        for mdev in self.mdevs[parent, ""]:
            yield _mdev(mdev)


def _mdev(mdev: Mdev) -> Branch:
    facts = [f"{quantity(mdev.memory)} of memory"] if mdev.memory is not None else []
    facts.append("no IOMMU group" if mdev.iommu_group is None else f"IOMMU group {mdev.iommu_group}")
    return Branch(f"{mdev.uuid}  {', '.join(facts)}")


def _interfaces(device: HostDevice) -> Iterator[str]:
    shown = [harmless(name) for name in device.interfaces]
    if shown and device.speed is not None:
        shown[-1] += f" at {device.speed // 1000} Gbit/s" if device.speed % 1000 == 0 else f" at {device.speed} Mbit/s"
    yield from shown


def _groups(vfs: Sequence[HostDevice]) -> str:
    groups = [vf.iommu_group for vf in vfs]
    if None in groups:
        return "no IOMMU group" if len(set(groups)) == 1 else "some in no IOMMU group"
    numbers = sorted({group for group in groups if group is not None})
    if len(numbers) == 1:
        return f"IOMMU group {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"IOMMU groups {numbers[0]}–{numbers[-1]}"
    return f"IOMMU groups {numbers[0]} … {numbers[-1]}"


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _counts(found: Scan) -> str:
    counts = Counter("bridge" if device.is_bridge else "VF" if device.kind.is_vf else
                     "PF" if device.kind is FunctionKind.PF else "other endpoint" for device in found.devices)
    parts = [_many(counts[noun], noun) for noun in ("PF", "VF", "other endpoint", "bridge") if counts[noun]]
    text = _many(len(found.devices), "PCI function") + (f": {', '.join(parts)}" if parts else "")
    if ready := sum(device.self_vfio for device in found.devices):
        text += f"; {ready} bound to VFIO"
    if found.mdevs:
        text += f"; {_many(len(found.mdevs), 'mediated device')}"
    if found.devices and all(device.iommu_group is None for device in found.devices):
        text += "; no IOMMU is on"
    return text
