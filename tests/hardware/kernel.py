"""The kernel's own word on devices, and devices changed by hand; knows nothing of outfitter, so that both can be compared."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
MDEV = Path("/sys/class/mdev_bus")
MODULES = ("nvme", "igb", "igbvf", "vfio-pci", "mtty", "mdpy", "mbochs")
PATIENCE = 240.0  # seconds; everything is emulated


def load() -> None:
    subprocess.run(["modprobe", "-a", *MODULES], check=True)
    settle()


def settle() -> None:
    """Until every driver has had its try: some are tried in the background, and who loads a module waits for all of that."""
    subprocess.run(["modprobe", "-r", "dummy"], check=True)
    subprocess.run(["modprobe", "dummy", "numdummies=0"], check=True)


def lspci() -> dict[str, dict[str, str]]:
    """By address, every function with what lspci says of it: class, vendor, product, driver, NUMA node, IOMMU group."""
    told = subprocess.run(["lspci", "-Dvmmnnk"], check=True, capture_output=True, text=True).stdout
    found = {}
    for block in told.strip().split("\n\n"):
        words = dict(line.split(":\t", 1) for line in block.splitlines())
        found[words["Slot"]] = {
            "class": _id(words["Class"]), "vendor": _id(words["Vendor"]), "product": _id(words["Device"]),
            "driver": words.get("Driver", ""), "numa": words.get("NUMANode", ""), "group": words.get("IOMMUGroup", "")}
    return found


def _id(text: str) -> str:
    """lspci writes names with the number behind them: "Ethernet controller [0200]"."""
    matched = re.search(r"\[([0-9a-f]{4})\]$", text)
    return matched[1] if matched else text


def of(vendor: str, product: str) -> list[str]:
    """Addresses of a product."""
    return [address for address, said in lspci().items() if (said["vendor"], said["product"]) == (vendor, product)]


def driver(address: str) -> str:
    link = PCI / address / "driver"
    return link.resolve().name if link.exists() else ""


def virtual(address: str, count: int) -> list[str]:
    """Make so many virtual functions, and tell which."""
    path = PCI / address
    (path / "sriov_numvfs").write_text(str(count))
    settle()
    return virtual_of(address)


def wait_for_loose(addresses: list[str]) -> None:
    """The NVMe driver tries virtual functions that are not configured, and releases them after a while."""
    settle()
    end = time.monotonic() + PATIENCE
    while any(driver(address) for address in addresses):
        if time.monotonic() > end:
            raise AssertionError(f"{addresses} still have drivers: {[driver(address) for address in addresses]}")
        time.sleep(0.5)


def virtual_of(address: str) -> list[str]:
    return [path.resolve().name for path in sorted((PCI / address).glob("virtfn*"))]


def interface(address: str) -> str:
    """The network interface of a physical function."""
    return next(path.name for path in (PCI / address / "net").iterdir())


def switch(name: str, state: str) -> None:
    """A network interface, "up" or "down"."""
    subprocess.run(["ip", "link", "set", name, state], check=True)


def set_on(parent: str, function: str) -> tuple[str, str]:
    """The MAC address and the VLAN ("" for none) that a network card says its virtual function has."""
    links = (PCI / parent).glob("virtfn*")
    number = next(path.name.removeprefix("virtfn") for path in links if path.resolve().name == function)
    told = subprocess.run(["ip", "link", "show", interface(parent)], check=True, capture_output=True, text=True).stdout
    line = next(line for line in told.splitlines() if line.split()[:2] == ["vf", number])
    mac, vlan = re.search(r"link/ether ([0-9a-f:]{17})", line), re.search(r"vlan (\d+)", line)
    return mac[1] if mac else "", vlan[1] if vlan else ""


def bind(address: str, to: str) -> None:
    """To a driver, whatever it is made for; to none when it is empty."""
    path = PCI / address
    if (path / "driver").exists():
        (path / "driver" / "unbind").write_text(address)
    if not to:
        (path / "driver_override").write_text("\n")
        return
    (path / "driver_override").write_text(to)
    Path("/sys/bus/pci/drivers_probe").write_text(address)


def give_back(address: str, to: str) -> None:
    """To the driver that it had, as if nothing had been; or to none."""
    bind(address, to)
    (PCI / address / "driver_override").write_text("\n")


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            raise AssertionError(f"{path} did not come in {PATIENCE:.0f} s")
        time.sleep(0.1)


def group(device: str) -> str:
    """The IOMMU group of a function or a mediated device."""
    base = PCI if device.count(":") == 2 else Path("/sys/bus/mdev/devices")
    return (base / device / "iommu_group").resolve().name


def groups_of(pid: int) -> list[str]:
    """The IOMMU groups that a process has open."""
    return [Path(link).name for link in opened(pid) if re.fullmatch(r"/dev/vfio/[0-9]+", link)]


def opened(pid: int) -> list[str]:
    """The files that a process has open. It may close one while we look."""
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(path))
    return links


def mediated() -> list[str]:
    return sorted(path.name for path in Path("/sys/bus/mdev/devices").iterdir())


def make_mdev(parent: str, kind: str, uuid: str) -> None:
    (MDEV / parent / "mdev_supported_types" / kind / "create").write_text(uuid)
