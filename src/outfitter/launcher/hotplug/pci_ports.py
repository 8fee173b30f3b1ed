"""The guest's PCI ports that a running domain does not use, and the choice of one. Pure. Called for NICs and host devices that
are plugged."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from outfitter.api.kubevirt import guest_address
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import HypervisorError
from outfitter.launcher import pci_layout
from outfitter.launcher.pci_layout import LANES, Lane


class FreePorts:
    """The unused root ports of a domain. A port that was chosen is used."""

    def __init__(self, root: ET.Element) -> None:
        self.express = root.find("devices/controller[@model='pcie-root']") is not None
        used = {int(address.get("bus", "0"), 0) for address in root.iterfind("devices/*/address[@type='pci']")}
        self._free = sorted(set(_ports(root)) - used)

    def address(self, lane: Lane, index: int, path: str, wanted: str | None) -> ET.Element | None:
        """The guest address of the device of this index of a list: `wanted`; else the port that it has at the next start, else
        one of its list, else any. None: the hypervisor chooses. HypervisorError with code NoPciPort: there is none."""
        if not self.express:
            return pci_layout.user_address(wanted, path) if wanted else None
        bus = self._wanted(wanted, path) if wanted else self._any(lane, index, path)
        self._free.remove(bus)
        return pci_layout.behind_port(bus)

    def _wanted(self, wanted: str, path: str) -> int:
        at = guest_address.parse(wanted)
        if at is None or at.slot or at.function or at.bus not in self._free:
            unused = ", ".join(f"0000:{bus:02x}:00.0" for bus in self._free) or "none"
            raise _no_port(f"{path}.pciAddress: the guest has no unused PCI port at {wanted}; unused are {unused}")
        return at.bus

    def _any(self, lane: Lane, index: int, path: str) -> int:
        first, step = 1 + LANES[lane], len(LANES)
        if not self._free:
            what = "an interface" if lane == "interfaces" else "a device"
            raise _no_port(f"{path}: the guest has no unused PCI port left: unplug {what} first, or restart the VM, which "
                           "then has ports for more")
        return min(self._free, key=lambda bus: (bus != first + step * index, (bus - first) % step != 0, bus))


def _ports(root: ET.Element) -> Iterator[int]:
    for controller in root.iterfind("devices/controller[@model='pcie-root-port']"):
        address = controller.find("address")
        if address is None or int(address.get("bus", "0"), 0) == 0:  # not those of a NUMA node
            yield int(controller.get("index", "0"))


def _no_port(message: str) -> HypervisorError:
    return carrying(HypervisorError(message), RejectionCode.NO_PCI_PORT)
