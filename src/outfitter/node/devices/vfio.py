"""Binds PCI functions to vfio-pci and restores their drivers, by driver_override, unbind and drivers_probe. Each step may be
repeated, and is read back: a write that the kernel accepts need not have had an effect."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator

from outfitter.api.rejection import Rejection, RejectionCode, carrying
from outfitter.errors import BindFailed
from outfitter.inventory import pci
from outfitter.node.devices.checkpoint import Before
from outfitter.node.devices.device_holders import device_holders
from outfitter.node.sysfs_root import Root

DEVICES = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
PROBE = "/sys/bus/pci/drivers_probe"


def driver(root: Root, address: str) -> str | None:
    end = root.link(f"{DEVICES}/{address}/driver")
    return None if end is None else end.rpartition("/")[2]


def read_binding(root: Root, address: str) -> Before:
    """A function as it is now. BindFailed: it is gone."""
    ids = _ids(root, address)
    if ids is None:
        raise carrying(BindFailed(address, "is no longer on the bus"), RejectionCode.DEVICE_MISSING)
    return Before(address, ids, driver(root, address), _override(root, address))


def group(root: Root, place: str) -> str | None:
    """The number of the IOMMU group of a device in that folder."""
    end = root.link(f"{place}/iommu_group")
    return None if end is None else end.rpartition("/")[2]


def obstacle(root: Root, addresses: Collection[str]) -> Rejection | None:
    """Why these functions cannot be bound together: the host uses another of their IOMMU group, or they have VFs that would go
    with their driver."""
    for address in addresses:
        number = group(root, f"{DEVICES}/{address}")
        for other in _neighbours(root, number) if number is not None else ():
            name = driver(root, other)
            if other in addresses or not pci.blocks_iommu_group(_class(root, other), name):
                continue
            message = (f"{address} is in IOMMU group {number} with {other}, which the host uses through {name}: only a whole "
                       f"group can be prepared; list {other} in device_spec too, or free it from {name}")
            return Rejection.of(RejectionCode.IOMMU_GROUP_SHARED, message=message, group=number, other=other, driver=name)
        virtual = [name for name in root.names(f"{DEVICES}/{address}") if name.startswith("virtfn")]
        if virtual and not pci.is_vfio_driver(driver(root, address)):
            return Rejection.of(RejectionCode.VFS_PRESENT, message=(
                f"{address} has {len(virtual)} VFs, which would go when it is unbound from "
                f"{driver(root, address) or 'the host'}: remove them first (sriov_numvfs 0)"), vfs=len(virtual))
    return None


def bind(root: Root, before: Before) -> None:
    """Bind a function to vfio-pci, unless its driver passes it through itself. BindFailed says what failed."""
    address = before.address
    if _ids(root, address) != before.ids:
        raise carrying(BindFailed(address, f"is no longer the function {before.ids} that it was"), RejectionCode.DEVICE_MISSING)
    have = driver(root, address)
    if pci.is_vfio_driver(have):
        return
    if not root.exists(f"{DRIVERS}/{pci.VFIO}"):
        raise BindFailed(address, f"cannot be bound to {pci.VFIO}: the module is not loaded (modprobe {pci.VFIO})")
    what = f"could not be unbound from {have}" if have else f"could not be bound to {pci.VFIO}"
    _write(root, address, f"{DEVICES}/{address}/driver_override", pci.VFIO, what)
    if have is not None:
        _write(root, address, f"{DRIVERS}/{have}/unbind", address, what)
    _write(root, address, PROBE, address, what)
    if (now := driver(root, address)) != pci.VFIO:
        raise BindFailed(address, f"is bound to {now or 'no driver'} after it was bound to {pci.VFIO}; "
                         "the kernel's log (dmesg) says why")


def restore(root: Root, before: Before) -> None:
    """Reset a function and restore the driver that it had. One that is gone, or whose address has another card now, is skipped.
    BindFailed says what failed, and which state the function is in."""
    address = before.address
    if _ids(root, address) != before.ids:
        return
    if pci.is_vfio_driver(before.driver):  # bound by the operator, and stays so
        if not pci.is_vfio_driver(have := driver(root, address)):
            raise BindFailed(address, f"was bound to {before.driver} and is bound to {have or 'no driver'} now")
        _reset(root, address)
        return
    what = f"could not be returned to {before.driver or 'the host'}"
    have = driver(root, address)
    if have is None or have != before.driver:  # else it was never bound, or is restored already
        # An override with another driver than it had would bind it to that: it is written again once the driver is restored.
        _write_override(root, address, before.override and (before.driver or before.override), what)
        if pci.is_vfio_driver(have):
            _write(root, address, f"{DRIVERS}/{have}/unbind", address, what)
            have = driver(root, address)
        if have is None:
            _reset(root, address)
            if before.driver is not None:
                _write(root, address, PROBE, address, what)
    _write_override(root, address, before.override, what)
    if (now := driver(root, address)) != before.driver:
        raise BindFailed(address, f"is bound to {now or 'no driver'}, and was bound to {before.driver or 'none'} before it was "
                         "prepared")


def _reset(root: Root, address: str) -> None:
    path = f"{DEVICES}/{address}/reset"
    if root.exists(path):
        _write(root, address, path, "1", "could not be reset")


def _write(root: Root, address: str, path: str, text: str, what: str) -> None:
    try:
        root.write(path, text)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        holders = device_holders(root, [address]) if error.errno == errno.EBUSY else ()
        raise BindFailed(address, f"{what}: writing {text.strip() or 'nothing'!r} to {path}: "
                                  f"{'; '.join([reason, *map(str, holders)])}") from error


def _ids(root: Root, address: str) -> str | None:
    parts = [root.read(f"{DEVICES}/{address}/{name}") for name in ("vendor", "device")]
    return ":".join(part.strip().removeprefix("0x") for part in parts if part) if all(parts) else None


def _override(root: Root, address: str) -> str | None:
    text = (root.read(f"{DEVICES}/{address}/driver_override") or "").strip()
    return text if text not in ("", "(null)") else None


def _write_override(root: Root, address: str, name: str | None, what: str) -> None:
    if _override(root, address) != name:
        _write(root, address, f"{DEVICES}/{address}/driver_override", name or "\n", what)


def _neighbours(root: Root, number: str) -> Iterator[str]:
    return (name for name in root.names(f"/sys/kernel/iommu_groups/{number}/devices") if pci.ADDRESS.fullmatch(name))


def _class(root: Root, address: str) -> str:
    return (root.read(f"{DEVICES}/{address}/class") or "").strip().removeprefix("0x")
