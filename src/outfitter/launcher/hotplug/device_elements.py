"""The elements of a GPU or host device of a claim that is plugged into a running domain. Each function gets a port of its own:
libvirt plugs no second function into a slot. At the next start the functions of a device share a slot again. Pure. Called for
the node agent."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import PluggedDevice
from outfitter.api.kinds import Object
from outfitter.api.kubevirt.device_refs import DeviceRef
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import HypervisorError
from outfitter.launcher import hostdev, mdev, sources
from outfitter.launcher.device_alias import DeviceAliases
from outfitter.launcher.device_assignment import RequestedDevice
from outfitter.launcher.devices import NAMES
from outfitter.launcher.environment import Env
from outfitter.launcher.hotplug.pci_ports import FreePorts
from outfitter.launcher.metadata import Files
from outfitter.launcher.nics import domain_nics


def build(running: str, instance: Object, ref: DeviceRef, env: Env, files: Files) -> list[PluggedDevice]:
    """The functions of the device that the domain does not have yet. The same devices as at a start: `sources`."""
    root = ET.fromstring(running)
    resolved = sources.claimed_device(instance, _asked(ref), env, files)
    have = {device.source.lower() for device in hostdev.claimed(root)}
    aliases, ports = DeviceAliases(domain_nics.aliases(root)), FreePorts(root)
    wanted = _entry(instance, ref).get("pciAddress")
    out: list[PluggedDevice] = []
    for given in resolved.devices:
        if given.kind == "usb":
            raise carrying(HypervisorError(f"{ref.path}: a USB device is not plugged into a running VM: restart the VM"),
                           RejectionCode.DEVICE_NOT_PLUGGED)
        for address, _ in hostdev.functions(given):
            if address.lower() in have:
                continue
            guest = ports.address(ref.list, ref.index, ref.path, wanted)
            wanted, alias = None, aliases.name(NAMES[ref.list, True], ref.name, len(out))
            element = mdev.element(given, alias, "vfio-pci", guest) if given.kind == "mdev" else (
                hostdev.element(ref.name, address, alias, guest))
            out.append(PluggedDevice(alias, address.lower(), ET.tostring(element, encoding="unicode")))
    return out


def _asked(ref: DeviceRef) -> RequestedDevice:
    return RequestedDevice(ref.list, ref.index, ref.name, None, ref.claim, ref.request)


def _entry(instance: Object, ref: DeviceRef) -> Object:
    entry: Object = instance["spec"]["domain"]["devices"][ref.list][ref.index]
    return entry
