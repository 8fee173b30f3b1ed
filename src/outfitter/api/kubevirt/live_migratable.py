"""Condition LiveMigratable of a VMI, with KubeVirt's reasons and the beginning of its messages: whether its spec allows a move
to another host while it runs. The first reason counts. Pure.

What becomes of claimed devices depends on claims and slices (`scheduling.device_migration`): of a VMI that has some, the device
status controller sets the condition, and the node agent leaves it. Of others the node agent's status reporter sets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api.conditions import Condition
from outfitter.api.kubevirt import device_refs, network_info, vm

TYPE = "LiveMigratable"
HOST_DEVICES = "HostDeviceNotLiveMigratable"  # reason
BRIDGE_MAY_MOVE = "kubevirt.io/allow-pod-bridge-network-live-migration"  # annotation of a VMI


def live_migratable(vmi: Mapping[str, Any], blocked: Sequence[str] = ()) -> Condition:
    """`blocked`: what the plan of its claimed devices says about those that cannot travel."""
    for reason, message_of in _CHECKS:
        if message := message_of(vmi):
            return Condition(TYPE, False, reason, message)
        if reason == HOST_DEVICES and blocked:
            return Condition(TYPE, False, HOST_DEVICES, f"VMI uses a PCI host devices: {'; '.join(blocked)}")
    return Condition(TYPE, True)


def depends_on_claims(vmi: Mapping[str, Any]) -> bool:
    """Whether its spec alone does not decide it."""
    return bool(vmi["spec"].get("resourceClaims")) or bool(vm.flavored(vmi).get("claimName")) or bool(vm.flavor_name(vmi))


def _interfaces(vmi: Mapping[str, Any]) -> str:
    """On the pod network, whose address stays on the host, only masquerade, or a bridge whose owner permits it, may move."""
    on_pod = {network.get("name") for network in network_info.networks(vmi) if network.get("pod") is not None}
    bridges = BRIDGE_MAY_MOVE in (vmi["metadata"].get("annotations") or {})
    blocked = [interface["name"] for interface in network_info.interfaces(vmi)
               if interface.get("name") in on_pod and interface.get("masquerade") is None
               and not (bridges and _is_bridge(interface))]
    return (f"cannot migrate VMI which does not use masquerade, bridge with {BRIDGE_MAY_MOVE} VM annotation or a migratable "
            f"plugin to connect to the pod network: {', '.join(blocked)}") if blocked else ""


def _is_bridge(interface: Mapping[str, Any]) -> bool:
    """An interface without a binding is a bridge."""
    return all(interface.get(binding) is None for binding in network_info.BINDINGS if binding != "bridge")


def _host_devices(vmi: Mapping[str, Any]) -> str:
    """GPUs and host devices by resource name. NICs on virtual functions are unplugged before a move and do not count."""
    names = [ref.name for ref in device_refs.device_refs(vmi) if not ref.by_claim]
    return f"VMI uses a PCI host devices: {', '.join(names)}" if names else ""


def _launch_security(kind: str) -> Callable[[Mapping[str, Any]], str]:
    def message(vmi: Mapping[str, Any]) -> str:
        security = _mapping(vmi["spec"]["domain"].get("launchSecurity"))
        kinds = ("sev", "snp") if kind == "SEV" else (kind.lower(),)
        return f"VMI uses {kind}" if any(security.get(name) is not None for name in kinds) else ""

    return message


def _reservations(vmi: Mapping[str, Any]) -> str:
    disks = (vmi["spec"]["domain"].get("devices") or {}).get("disks") or ()
    names = [str(disk.get("name")) for disk in disks if _mapping(disk.get("lun")).get("reservation")]
    return f"VMI uses SCSI persistent reservation: {', '.join(names)}" if names else ""


def _hyperv(vmi: Mapping[str, Any]) -> str:
    passthrough = _mapping(vmi["spec"]["domain"].get("features")).get("hypervPassthrough")
    return "VMI uses hyperv passthrough" if passthrough is not None and _mapping(passthrough).get("enabled", True) else ""


def _volumes(vmi: Mapping[str, Any]) -> str:
    """Images and cloud-init disks are copied; a disk on the host or on a claim of one host is not."""
    for volume in vmi["spec"].get("volumes") or ():
        if (disk := volume.get("hostDisk")) is not None and not _mapping(disk).get("shared"):
            return f"cannot migrate VMI with non-shared HostDisk: {volume.get('name')}"
        claim = _mapping(volume.get("persistentVolumeClaim")).get("claimName") or _mapping(volume.get("dataVolume")).get("name")
        if claim:  # its access modes are in status.volumeStatus of KubeVirt alone
            return (f"cannot migrate VMI: Unable to determine if PVC {claim} is shared, live migration requires that all PVCs "
                    "must be shared (using ReadWriteMany access mode)")
    return ""


def _mapping(value: Any) -> Mapping[str, Any]:
    """A part of the spec that admission keeps without a look at its shape."""
    return value if isinstance(value, Mapping) else {}


_CHECKS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("InterfaceNotLiveMigratable", _interfaces),
    (HOST_DEVICES, _host_devices),
    ("SEVNotLiveMigratable", _launch_security("SEV")),
    ("TDXNotLiveMigratable", _launch_security("TDX")),
    ("PersistentReservationNotLiveMigratable", _reservations),
    ("HypervPassthroughNotLiveMigratable", _hyperv),
    ("DisksNotLiveMigratable", _volumes),
)
