"""The simulated kernel: a tree in memory in which writing an attribute has the effects that Linux gives it. Drivers release and
bind functions, SR-IOV creates VFs, parents create mediated devices. Faults can be injected.

As on a real kernel a write that succeeds need not have had an effect: a function that a driver rejects has no driver."""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outfitter.inventory import pci
from outfitter.inventory.host_tree import Entry, Link, MemoryTree

DEVICES = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
GROUPS = "/sys/kernel/iommu_groups"
MDEVS = "/sys/bus/mdev/devices"
NETWORKS = "/sys/class/net"
NULL = "(null)"  # the content of an empty driver_override
_DRIVER_FILE = re.compile(rf"{DRIVERS}/([^/]+)/(bind|unbind)")
_RESET = re.compile(rf"{DEVICES}/([^/]+)/reset")
_NUMBER = re.compile(r"[0-9]{1,5}")


@dataclass(slots=True)
class SimulatedFault:
    """A write that fails."""

    suffix: str  # of the path
    number: int  # errno
    times: int  # that are left; below zero: always


@dataclass(frozen=True, slots=True)
class KernelChanges:
    """What was written since the start, as entries that differ."""

    new: Mapping[str, Entry]
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.gone)


class SimulatedKernel(MemoryTree):
    """`first` is the host as it is described, and is not changed."""

    def __init__(self, first: MemoryTree, changes: KernelChanges | None = None) -> None:
        # Instead of super().__init__: the tree was validated when it was made.
        self._entries = dict(first._entries)
        self._folders = {path: set(names) for path, names in first._folders.items()}
        self.faults: list[SimulatedFault] = []
        self.rejects: set[tuple[str, str]] = set()  # driver and address: the driver does not bind the function
        self.busy: set[str] = set()  # addresses and UUIDs that a process has open
        self.no_reset: set[str] = set()  # addresses of functions that cannot be reset
        self.resets: list[str] = []  # addresses, as they were reset
        self.default_drivers: dict[str, str] = {}  # address -> the driver that binds a function without an override
        self._put(f"{DRIVERS}/{pci.VFIO}", None)
        for address in self.names(DEVICES):
            driver = self.driver(address)
            if driver is not None:
                self._put(f"{DRIVERS}/{driver}", None)
                self._link(f"{DRIVERS}/{driver}/{address}", self._base(address))
                if driver != pci.VFIO:
                    self.default_drivers[address] = driver
        self._first = dict(self._entries)
        self._first_vfs = {address: self._vfs(self._base(address)) for address in self.names(DEVICES)
                           if f"{self._base(address)}/sriov_numvfs" in self._first}
        for path in changes.gone if changes is not None else ():
            self._remove(path)
        for path, entry in changes.new.items() if changes is not None else ():
            self._put(path, entry)

    # -- reading

    def changes(self) -> KernelChanges:
        first, now = self._first, self._entries
        return KernelChanges({path: entry for path, entry in now.items() if path not in first or first[path] != entry},
                       tuple(path for path in first if path not in now))

    def exists(self, path: str) -> bool:
        if reset := _RESET.fullmatch(path):  # write-only, so that no description of a host contains it
            return super().exists(f"{DEVICES}/{reset[1]}") and reset[1] not in self.no_reset
        return super().exists(path)

    def driver(self, address: str) -> str | None:
        end = self.link(f"{self._base(address)}/driver")
        return None if end is None else posixpath.basename(end)

    # -- faults

    def fail(self, suffix: str, number: int, times: int = -1) -> None:
        """Writes to paths that end with `suffix` fail with that errno."""
        self.faults.append(SimulatedFault(suffix, number, times))

    def hold(self, place: str, pid: int, command: str, node: str | None = None) -> None:
        """A process opens a function or mediated device: that of its VFIO group, or another node of it ("/dev/nvme0")."""
        self.busy.add(place)
        base = self.link(f"{MDEVS}/{place}") or self._base(place)
        group = posixpath.basename(self.link(f"{base}/iommu_group") or "")
        if node is not None:
            name = node.removeprefix("/dev/")
            self._set(f"{base}/{name.rstrip('0123456789')}/{posixpath.basename(name)}/uevent", f"MAJOR=240\nDEVNAME={name}")
        self._set(f"/proc/{pid}/comm", command)
        self._link(f"/proc/{pid}/fd/0", "/dev/null")
        self._link(f"/proc/{pid}/fd/7", node or f"/dev/vfio/{group}")

    def vanish(self, address: str) -> None:
        """The function disappears from the bus."""
        base = self._base(address)
        self._release(address)
        if (pf := self.link(f"{base}/physfn")) is not None:
            for index, vf in self._vfs(pf).items():
                if vf == address:
                    self._remove(f"{pf}/virtfn{index}")
        if (group := self.link(f"{base}/iommu_group")) is not None:
            self._remove(f"{group}/devices/{address}")
        self._remove(f"{DEVICES}/{address}")
        self._remove(base)

    # -- writing

    def write(self, path: str, text: str) -> None:
        for fault in self.faults:
            if path.endswith(fault.suffix) and fault.times:
                fault.times -= 1
                raise _error(fault.number, path)
        if (driver := _DRIVER_FILE.fullmatch(path)) is not None:
            if not super().exists(f"{DRIVERS}/{driver[1]}"):
                raise _error(errno.ENOENT, path)
            (self._bind if driver[2] == "bind" else self._unbind)(driver[1], text.strip(), path)
            return
        if path == "/sys/bus/pci/drivers_probe":
            self._require(text.strip(), path)
            self._probe(text.strip())
            return
        folder, _, name = path.rpartition("/")
        inside = self._resolve(folder)
        if inside is None or not super().exists(inside):
            raise _error(errno.ENOENT, path)
        effect = {"driver_override": self._override, "sriov_numvfs": self._set_vf_count, "reset": self._reset,
                  "create": self._create_mdev, "remove": self._remove_mdev}.get(name)
        if effect is None:
            raise _error(errno.EACCES, path)
        effect(inside, text.strip(), path)

    # -- drivers

    def _override(self, base: str, text: str, path: str) -> None:
        if f"{base}/driver_override" not in self._entries and not super().exists(f"{base}/vendor"):
            raise _error(errno.ENOENT, path)
        self._set(f"{base}/driver_override", text or NULL)

    def _bind(self, driver: str, address: str, path: str) -> None:
        self._require(address, path)
        if self.driver(address) is not None or self._wanted(address) != driver or not self._take(address, driver):
            raise _error(errno.ENODEV, path)

    def _unbind(self, driver: str, address: str, path: str) -> None:
        self._require(address, path)
        if self.driver(address) != driver:
            raise _error(errno.ENODEV, path)
        if address in self.busy:  # Linux waits for the process that has it open; a simulated write cannot
            raise _error(errno.EBUSY, path)
        self._release(address)

    def _probe(self, address: str) -> None:
        wanted = self._wanted(address)
        if self.driver(address) is None and wanted is not None and super().exists(f"{DRIVERS}/{wanted}"):
            self._take(address, wanted)

    def _wanted(self, address: str) -> str | None:
        """The driver that matches a function."""
        override = (self.read(f"{self._base(address)}/driver_override") or "").strip()
        return override if override not in ("", NULL) else self.default_drivers.get(address)

    def _take(self, address: str, driver: str) -> bool:
        if (driver, address) in self.rejects:
            return False
        base = self._base(address)
        self._link(f"{base}/driver", f"{DRIVERS}/{driver}")
        self._link(f"{DRIVERS}/{driver}/{address}", base)
        if driver == self.default_drivers.get(address):
            for path, entry in self._first.items():
                if path.startswith(f"{base}/net/") or (
                        path.startswith(NETWORKS) and isinstance(entry, Link) and f"/{address}/net/" in entry.target):
                    self._put(path, entry)
        return True

    def _release(self, address: str) -> None:
        base, driver = self._base(address), self.driver(address)
        if driver is None:
            return
        for name in self.names(f"{base}/net"):
            self._remove(f"{NETWORKS}/{name}")
        self._remove(f"{base}/net")
        self._remove(f"{base}/driver")
        self._remove(f"{DRIVERS}/{driver}/{address}")

    def _reset(self, base: str, text: str, path: str) -> None:
        address = posixpath.basename(base)
        if not self.exists(f"{DEVICES}/{address}/reset"):
            raise _error(errno.ENOENT, path)
        if text != "1":
            raise _error(errno.EINVAL, path)
        self.resets.append(address)

    # -- virtual functions

    def _set_vf_count(self, base: str, text: str, path: str) -> None:
        pf, total = posixpath.basename(base), int(self.read(f"{base}/sriov_totalvfs") or 0)
        if not _NUMBER.fullmatch(text):
            raise _error(errno.EINVAL, path)
        count, have = int(text), self._vfs(base)
        if count > total:
            raise _error(errno.ERANGE, path)
        if count == len(have):
            return
        if self.driver(pf) is None:
            raise _error(errno.ENOENT, path)
        if (count and have) or any(address in self.busy for address in have.values()):
            raise _error(errno.EBUSY, path)
        for address in have.values():
            self.vanish(address)
        for index in range(count):
            self._create_vf(pf, base, index)
        self._set(f"{base}/sriov_numvfs", str(count))

    def _vfs(self, base: str) -> dict[int, str]:
        return {int(name.removeprefix("virtfn")): posixpath.basename(self.link(f"{base}/{name}") or "")
                for name in self.names(base) if name.startswith("virtfn")}

    def _create_vf(self, pf: str, base: str, index: int) -> None:
        address = self._first_vfs.get(pf, {}).get(index)
        if address is None:
            domain, start = pci.routing(pf)
            offset = int(self.read(f"{base}/sriov_offset") or 8)
            stride = int(self.read(f"{base}/sriov_stride") or 1)
            address = pci.at(domain, start + offset + index * stride)
        place = f"{posixpath.dirname(base)}/{address}"
        old = {path: entry for path, entry in self._first.items() if path.startswith(f"{place}/")
               and not path.startswith((f"{place}/net", f"{place}/driver"))}
        for path, entry in old.items():
            self._put(path, entry)
        if not old:
            for name in ("vendor", "class", "revision", "numa_node", "local_cpulist"):
                if (text := self.read(f"{base}/{name}")) is not None:
                    self._put(f"{place}/{name}", text)
            product = (self.read(f"{base}/sriov_vf_device") or self.read(f"{base}/device") or "ffff").strip()
            self._set(f"{place}/device", f"0x{product.removeprefix('0x')}")
            self._link(f"{place}/subsystem", "/sys/bus/pci")
            self._link(f"{place}/physfn", base)
            if self.link(f"{base}/iommu_group") is not None:
                self._link(f"{place}/iommu_group", self._new_group())
        self._set(f"{place}/driver_override", NULL)
        if (group := self.link(f"{place}/iommu_group")) is not None:
            self._link(f"{group}/devices/{address}", place)
        self._link(f"{DEVICES}/{address}", place)
        self._link(f"{base}/virtfn{index}", place)
        self._probe(address)

    def _new_group(self) -> str:
        return f"{GROUPS}/{1 + max(map(int, self.names(GROUPS)), default=0)}"

    # -- mediated devices

    def _create_mdev(self, folder: str, uuid: str, path: str) -> None:
        parent = posixpath.dirname(posixpath.dirname(folder))
        left = int(self.read(f"{folder}/available_instances") or 0)
        if self.link(f"{MDEVS}/{uuid}") is not None:
            raise _error(errno.EEXIST, path)
        if left <= 0:
            raise _error(errno.ENOSPC, path)
        self._set(f"{folder}/available_instances", str(left - 1))
        group, base = self._new_group(), f"{parent}/{uuid}"
        self._link(f"{base}/mdev_type", folder)
        self._link(f"{base}/subsystem", "/sys/bus/mdev")
        self._link(f"{base}/iommu_group", group)
        self._link(f"{group}/devices/{uuid}", base)
        self._link(f"{folder}/devices/{uuid}", base)
        self._link(f"{MDEVS}/{uuid}", base)

    def _remove_mdev(self, base: str, text: str, path: str) -> None:
        folder, uuid = self.link(f"{base}/mdev_type"), posixpath.basename(base)
        if folder is None:
            raise _error(errno.ENOENT, path)
        if text != "1":
            raise _error(errno.EINVAL, path)
        if uuid in self.busy:
            raise _error(errno.EBUSY, path)
        if (group := self.link(f"{base}/iommu_group")) is not None:
            self._remove(group)
        for one in (f"{folder}/devices/{uuid}", f"{MDEVS}/{uuid}", base):
            self._remove(one)
        self._set(f"{folder}/available_instances", str(1 + int(self.read(f"{folder}/available_instances") or 0)))

    # -- entries

    def _base(self, address: str) -> str:
        return self.link(f"{DEVICES}/{address}") or f"{DEVICES}/{address}"

    def _require(self, address: str, path: str) -> None:
        if not super().exists(f"{DEVICES}/{address}"):
            raise _error(errno.ENODEV, path)

    def _put(self, path: str, entry: Entry) -> None:
        self._entries[path] = entry
        if entry is None:
            self._folders.setdefault(path, set())
        self._imply(path)

    def _set(self, path: str, text: str) -> None:
        self._put(path, f"{text}\n")

    def _link(self, path: str, target: str) -> None:
        self._put(path, Link(posixpath.relpath(target, posixpath.dirname(path))))

    def _remove(self, path: str) -> None:
        """An entry, or a folder with everything in it."""
        for name in list(self._folders.get(path, ())):
            self._remove(f"{path}/{name}")
        self._folders.pop(path, None)
        self._entries.pop(path, None)
        folder, _, name = path.rpartition("/")
        self._folders.get(folder, set()).discard(name)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
