"""How each interface of a VMI is attached to its network: the document that the node or a CNI plugin writes for the launcher.

The document is KubeVirt's: the annotation kubevirt.io/network-info of the launcher pod, mounted as a file. In a cluster, a
network plugin records there which VF a network got. Where Outfitter runs the pod, it sets up the networks too, and records the
attachment in
`wire`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.launcher import launcher_environment

BINDINGS = ("bridge", "masquerade", "sriov", "slirp", "passt", "passtBinding", "macvtap", "binding")  # fields of an interface
INFO = "kubevirt.io/network-info"  # annotation of a launcher pod
FILE = "/etc/podinfo/network-info"  # its path in the launcher's container
STATUS = "k8s.v1.cni.cncf.io/network-status"  # annotation of a pod: its secondary networks, as Multus writes it
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"  # annotation of a NetworkAttachmentDefinition: the resource that it requests
STATUSES = "interfaceStatuses"  # of status.deviceStatus: interfaces whose VF comes from a claim
# user: QEMU's user network (NAT); bridge: a bridge of the host; function: a VF whose MAC address and VLAN the hypervisor sets;
# device: a function assigned as it is; none: not available on this host.
Type = Literal["user", "bridge", "function", "device", "none"]
TYPES: tuple[Type, ...] = ("user", "bridge", "function", "device", "none")


@dataclass(frozen=True, slots=True)
class Wire:
    network: str  # its name in spec.networks, and that of the interface
    type: Type | None = None  # None: set up by a network plugin
    mac: str | None = None  # None: not set
    address: str | None = None  # PCI address of a host function
    bridge: str = ""
    vlan: int | None = None  # of a VF, invisible to the guest
    why: str = ""  # the reason for type none

    @property
    def device_info(self) -> Object:
        return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": self.address}}

    @property
    def place(self) -> str:
        """What the interface is attached to, for tables."""
        return self.address or {"bridge": f"bridge {self.bridge}", "user": "NAT of the host", "none": "skipped"}.get(
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
    """Interface name -> the status of its device."""
    statuses = ((instance.get("status") or {}).get("deviceStatus") or {}).get(STATUSES) or ()
    return {str(entry.get("name")): entry.get("deviceResourceClaimStatus") or {} for entry in statuses}


def interfaces(instance: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The interfaces of a VMI, including those with state absent."""
    entries: Sequence[Mapping[str, Any]] = (
        ((instance.get("spec") or {}).get("domain") or {}).get("devices") or {}).get("interfaces") or ()
    return entries


def networks(instance: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    entries: Sequence[Mapping[str, Any]] = (instance.get("spec") or {}).get("networks") or ()
    return entries


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
    """The name of a secondary network's interface in the pod."""
    return "pod" + hashlib.sha256(network.encode()).hexdigest()[:11]


def mac(instance: Mapping[str, Any], interface: Mapping[str, Any]) -> str:
    """The MAC address in the spec, else one that is derived from the VM and the interface name, so that it survives
    restarts."""
    if specified := specified_mac(interface):
        return specified
    owner = vm.owner(instance, kinds.VM.kind) or instance["metadata"]
    return generated_mac(owner["uid"], interface["name"])


def generated_mac(uid: str, interface: str) -> str:
    """Of an interface for which the spec has none. `uid`: of the VM, or of a VMI that no VM owns."""
    digest = hashlib.sha256(f"{uid}/{interface}".encode()).hexdigest()
    return "02:" + ":".join(digest[at:at + 2] for at in range(0, 10, 2))  # 02: locally administered, unicast


def specified_mac(interface: Mapping[str, Any]) -> str | None:
    """The MAC address in the spec, normalized; None if there is none."""
    address = interface.get("macAddress")
    return str(address).replace("-", ":").lower() if address else None


def write(wires: Iterable[Wire]) -> str:
    return json.dumps({"interfaces": [wire.to_object() for wire in wires]}, separators=(",", ":"))


def read(text: str) -> dict[str, Wire]:
    """The attachments of a document by network; the first entry of a network counts. ValueError: not such a document."""
    try:
        listed = json.loads(text).get("interfaces") or ()
        out: dict[str, Wire] = {}
        for entry in listed:
            out.setdefault(str(entry.get("network", "")), _read(entry))
    except (AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error
    return out


def _read(entry: Mapping[str, Any]) -> Wire:
    address, wire = ((entry.get("deviceInfo") or {}).get("pci") or {}).get("pci-address"), entry.get("wire") or {}
    if wire and wire.get("type") not in TYPES:
        raise ValueError(f"{wire.get('type')!r} is not one of {', '.join(TYPES)}")
    return Wire(str(entry.get("network", "")), wire.get("type"), entry.get("mac"), str(address) if address else None,
                str(wire.get("bridge") or ""), wire.get("vlan"), str(wire.get("why") or ""))


def pod_interface(pod: Mapping[str, Any], network: str) -> Mapping[str, Any] | None:
    """What Multus reports of a secondary network in a pod's network-status; None while it reports nothing."""
    return next((entry for entry in pod_interfaces(pod) if entry.get("interface") == interface_name(network)), None)


def pod_interfaces(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a pod's network-status; none where it is invalid."""
    text = (pod["metadata"].get("annotations") or {}).get(STATUS)
    try:
        listed = json.loads(text) if text else []
    except ValueError:
        return []
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def attached_name(pod: Mapping[str, Any], network: str) -> str | None:
    """The definition ("namespace/name") to which a network of a pod is attached, as its network-status reports."""
    found = pod_interface(pod, network)
    return str(found.get("name")) if found is not None else None


def wires_of_pod(pod: Mapping[str, Any]) -> dict[str, Wire]:
    """The attachments in a pod's annotation; empty where there is none or it is invalid."""
    text = (pod["metadata"].get("annotations") or {}).get(INFO)
    try:
        return read(text) if text else {}
    except ValueError:
        return {}


def without_interface_functions(env: Mapping[str, str], pod: Mapping[str, Any], wires: Iterable[Wire]) -> dict[str, str]:
    """A launcher's environment without the functions that its interfaces use: the rest of a resource's devices belongs to
    hostDevices that request it by name, and no device is assigned twice."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    counted = {f"{launcher_environment.PCI}_{launcher_environment.variable_suffix(str(mapping.get('resourceName')))}"
               for mapping in status.get("requestMappings") or ()}
    return without_functions(env, counted, wires)


def without_functions(env: Mapping[str, str], variables: Collection[str], wires: Iterable[Wire]) -> dict[str, str]:
    """The same, of the variables of extended resources."""
    taken = {wire.address for wire in wires}
    out = {name: ",".join(address for address in value.split(",") if address not in taken) if name in variables else value
           for name, value in env.items()}
    return {name: value for name, value in out.items() if value or name not in variables}
