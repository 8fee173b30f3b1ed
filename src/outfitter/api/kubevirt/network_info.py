"""How each network card of a machine meets its network: what whoever sets networks up on a host leaves for the launcher.

The document is KubeVirt's: the annotation kubevirt.io/network-info of the machine's pod, which the launcher finds as a file. A
network plugin of a cluster says there which function a network got. Where outfitter runs the pod itself it sets the networks up
too, and says in `wire` what the card is to be plugged into."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api import kinds, launcher_environment
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm

INFO = "kubevirt.io/network-info"  # annotation of a launcher pod
FILE = "/etc/podinfo/network-info"  # and where the launcher finds it
STATUS = "k8s.v1.cni.cncf.io/network-status"  # annotation of a pod: its secondary networks, in the words of Multus
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"  # annotation of a NetworkAttachmentDefinition: what it takes of a host
STATUSES = "interfaceStatuses"  # of status.deviceStatus: cards whose function came from a claim
# user: the emulator's own network, behind the host; bridge: one of the host; function: a virtual function whose MAC address and
# VLAN the hypervisor sets; device: a function that is handed over as it is; none: it cannot be had here.
Type = Literal["user", "bridge", "function", "device", "none"]
TYPES: tuple[Type, ...] = ("user", "bridge", "function", "device", "none")


@dataclass(frozen=True, slots=True)
class Wire:
    network: str  # its name in spec.networks, and that of the interface
    type: Type | None = None  # None: a network plugin has seen to it
    mac: str | None = None  # None: nobody sets one
    address: str | None = None  # of a function of the host
    bridge: str = ""
    vlan: int | None = None  # of a virtual function, which the guest does not see
    why: str = ""  # of type none

    @property
    def device_info(self) -> Object:
        return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": self.address}}

    @property
    def place(self) -> str:
        """What it is plugged into, in a word or two."""
        return self.address or {"bridge": f"bridge {self.bridge}", "user": "behind the host", "none": "left out"}.get(
            self.type or "", "by a plugin")

    @property
    def words(self) -> str:
        about = [f"MAC {self.mac}" if self.mac else "", f"VLAN {self.vlan}" if self.vlan else "", self.why]
        return ", ".join(filter(None, (self.place, *about)))

    def to_object(self) -> Object:
        wire = {"type": self.type, "bridge": self.bridge, "vlan": self.vlan, "why": self.why}
        out = {"network": self.network, "mac": self.mac, "deviceInfo": self.device_info if self.address else None,
               "wire": {key: value for key, value in wire.items() if value} if self.type else None}
        return {key: value for key, value in out.items() if value}


def interface_devices(instance: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name of a card -> what the status says of the device that it is."""
    told = ((instance.get("status") or {}).get("deviceStatus") or {}).get(STATUSES) or ()
    return {str(entry.get("name")): entry.get("deviceResourceClaimStatus") or {} for entry in told}


def interfaces(instance: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The network cards of an instance, those that are to go too."""
    found: Sequence[Mapping[str, Any]] = (
        ((instance.get("spec") or {}).get("domain") or {}).get("devices") or {}).get("interfaces") or ()
    return found


def networks(instance: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (instance.get("spec") or {}).get("networks") or ()
    return found


def attachment(instance: Mapping[str, Any], network: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of the NetworkAttachmentDefinition that a network names."""
    namespace, _, name = str(network["multus"]["networkName"]).rpartition("/")
    return namespace or instance["metadata"]["namespace"], name


def resource_of(definition: Mapping[str, Any]) -> str:
    """The resource of which a network takes one device for each interface; "": none, so an sriov interface gets no function."""
    return str((definition["metadata"].get("annotations") or {}).get(RESOURCE) or "")


def no_resource(definition: Mapping[str, Any], network: str) -> str:
    """That a NetworkAttachmentDefinition gives an sriov interface nothing, and what helps."""
    return (f'NetworkAttachmentDefinition "{definition["metadata"]["name"]}" names no resource from which the sriov interface '
            f"{network} would get its function: add the annotation {RESOURCE}, or use bridge for the interface")


def interface_name(network: str) -> str:
    """What the interface on a secondary network is called in the pod."""
    return "pod" + hashlib.sha256(network.encode()).hexdigest()[:11]


def mac(instance: Mapping[str, Any], interface: Mapping[str, Any]) -> str:
    """The address that the user gave a card, else one that is made from the machine and the card's name: it stays over every
    restart of the machine."""
    if given := specified_mac(interface):
        return given
    owner = vm.owner(instance, kinds.VM.kind) or instance["metadata"]
    digest = hashlib.sha256(f"{owner['uid']}/{interface['name']}".encode()).hexdigest()
    return "02:" + ":".join(digest[at:at + 2] for at in range(0, 10, 2))  # 02: given by its owner, for one receiver


def specified_mac(interface: Mapping[str, Any]) -> str | None:
    """The address that the user gave a card, in one spelling."""
    given = interface.get("macAddress")
    return str(given).replace("-", ":").lower() if given else None


def write(wires: Iterable[Wire]) -> str:
    return json.dumps({"interfaces": [wire.to_object() for wire in wires]}, separators=(",", ":"))


def read(text: str) -> dict[str, Wire]:
    """By network; of two for one network the first. ValueError: it is no such document."""
    try:
        listed = json.loads(text).get("interfaces") or ()
        out: dict[str, Wire] = {}
        for each in listed:
            out.setdefault(str(each.get("network", "")), _read(each))
    except (AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error
    return out


def _read(each: Mapping[str, Any]) -> Wire:
    address, wire = ((each.get("deviceInfo") or {}).get("pci") or {}).get("pci-address"), each.get("wire") or {}
    if wire and wire.get("type") not in TYPES:
        raise ValueError(f"{wire.get('type')!r} is none of {', '.join(TYPES)}")
    return Wire(str(each.get("network", "")), wire.get("type"), each.get("mac"), str(address) if address else None,
                str(wire.get("bridge") or ""), wire.get("vlan"), str(wire.get("why") or ""))


def wires_of_pod(pod: Mapping[str, Any]) -> dict[str, Wire]:
    """What a pod says of its machine's network cards, for people; nothing where it says nothing that can be read."""
    text = (pod["metadata"].get("annotations") or {}).get(INFO)
    try:
        return read(text) if text else {}
    except ValueError:
        return {}


def without_interface_functions(env: Mapping[str, str], pod: Mapping[str, Any], cards: Iterable[Wire]) -> dict[str, str]:
    """A launcher's environment without the functions that its network cards have: what a pod got of a resource is also for the
    devices that ask by the resource's name, and nothing is handed out twice."""
    taken = {wire.address for wire in cards}
    told = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    counted = {f"{launcher_environment.PCI}_{launcher_environment.variable_suffix(str(each.get('resourceName')))}"
               for each in told.get("requestMappings") or ()}
    out = {name: ",".join(each for each in value.split(",") if each not in taken) if name in counted else value
           for name, value in env.items()}
    return {name: value for name, value in out.items() if value or name not in counted}
