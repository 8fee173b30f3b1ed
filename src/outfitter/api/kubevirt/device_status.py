"""`status.deviceStatus` of a VMI: its entries by requested device, which devices are missing, and whether it agrees with the
claims of the pod. Pure functions over wire objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outfitter.api.kubevirt.device_refs import FLAVOR_CLAIM, LISTS, Claims, DeviceRef, List, device_refs, refs_in
from outfitter.api.kubevirt.pod_claims import cells_of, claim_names, claimed, results_for
from outfitter.api.kubevirt.vm import dedicated, flavor_name, flavored

STATUS_LISTS: Mapping[List, str] = {"gpus": "gpuStatuses", "hostDevices": "hostDeviceStatuses"}


def _unsettled_flavor(instance: Mapping[str, Any]) -> list[str]:
    """While status.flavor is not set, the devices of the flavor are unknown."""
    name = flavor_name(instance)
    return [f"those of flavor {name}"] if name and not flavored(instance) else []


def statuses(instance: Mapping[str, Any], list_: List) -> Sequence[Mapping[str, Any]]:
    """The status entries of one list."""
    status = (instance.get("status") or {}).get("deviceStatus") or {}
    return status.get(STATUS_LISTS[list_]) or ()


def status_of(instance: Mapping[str, Any], ref: DeviceRef) -> list[Mapping[str, Any]]:
    """The status entries of a requested device."""
    return [entry for entry in statuses(instance, ref.list) if entry.get("name") == ref.name]


def missing_devices(instance: Mapping[str, Any]) -> list[str]:
    """Requested devices without an address in the status; empty: the VMI may start. Devices of a device plugin are never in the
    status."""
    return [*_unsettled_flavor(instance), *(ref.name for ref in device_refs(instance) if not _complete(instance, ref)
                                            and (ref.by_claim or status_of(instance, ref)))]


def _complete(instance: Mapping[str, Any], ref: DeviceRef) -> bool:
    entries = status_of(instance, ref)
    return bool(entries) and all(address_of(entry) for entry in entries)


def unsettled_devices(instance: Mapping[str, Any], pod: Mapping[str, Any], claims: Claims) -> list[str]:
    """Devices whose status does not match the claims of this pod: not written yet, of an earlier pod, or not requested. Empty:
    the VMI may start in this pod."""
    names = dict(claim_names(pod))
    out = _unsettled_flavor(instance)
    record = flavored(instance)
    if not record and not out and dedicated(instance) and FLAVOR_CLAIM in names:
        out.append("its CPUs")
    if record.get("claimName"):
        claim = claims(pod["metadata"]["namespace"], record["claimName"])
        if claim is not None and any(record.get(key) != value for key, value in cells_of(claim).items()):
            out.append("its NUMA cells")
    refs = refs_in(instance, pod)
    requested = {(ref.list, ref.name) for ref in refs}
    out += [str(entry.get("name")) for list_ in LISTS for entry in statuses(instance, list_)
            if (list_, entry.get("name")) not in requested]
    for ref in refs:
        claim_name = names.get(ref.claim or "")
        claim = claims(pod["metadata"]["namespace"], claim_name) if ref.by_claim and claim_name else None
        reported = [entry.get("deviceResourceClaimStatus") or {} for entry in status_of(instance, ref)]
        allocated = [{"resourceClaimName": claim_name, "driver": result["driver"], "pool": result["pool"],
                      "name": result["device"]} for result in results_for(claim or {}, ref)]
        settled = _complete(instance, ref) and _same(reported, allocated) if claimed(ref, claim) else not reported
        if not settled:
            out.append(ref.name)
    return out


def _same(reported: Sequence[Mapping[str, Any]], allocated: Sequence[Mapping[str, Any]]) -> bool:
    """Whether entries and results match one to one. Driver and pool may be missing in an entry: not every writer sets them."""
    unmatched = list(allocated)
    for entry in reported:
        match = next((result for result in unmatched if all(
            entry.get(key, value if key in ("driver", "pool") else None) == value for key, value in result.items())), None)
        if match is None:
            return False
        unmatched.remove(match)
    return not unmatched


def address_of(entry: Mapping[str, Any]) -> tuple[Literal["pci", "mdev"], str] | None:
    """The address in a status entry. A mediated device is found by its UUID, even if the entry has its parent's PCI address
    too."""
    attributes = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
    for key in ("mdevUUID", "mDevUUID"):
        if attributes.get(key):
            return "mdev", attributes[key]
    return ("pci", attributes["pciAddress"]) if attributes.get("pciAddress") else None
