"""`status.deviceStatus` of a VMI: what it says of each requested device, which are still missing, and whether it agrees with
the claims of the pod. Pure functions over wire objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outfitter.api.kubevirt.device_refs import FLAVOR_CLAIM, LISTS, Claims, DeviceRef, List, device_refs, refs_in
from outfitter.api.kubevirt.pod_claims import cells_of, claim_names, claimed, results_for
from outfitter.api.kubevirt.vm import dedicated, flavor_name, flavored

STATUS_LISTS: Mapping[List, str] = {"gpus": "gpuStatuses", "hostDevices": "hostDeviceStatuses"}


def _unsettled_flavor(instance: Mapping[str, Any]) -> list[str]:
    """A machine whose flavor is not settled has devices that nobody knows yet."""
    name = flavor_name(instance)
    return [f"those of flavor {name}"] if name and not flavored(instance) else []


def statuses(instance: Mapping[str, Any], list_: List) -> Sequence[Mapping[str, Any]]:
    """What the status says of the devices of one list."""
    given = (instance.get("status") or {}).get("deviceStatus") or {}
    return given.get(STATUS_LISTS[list_]) or ()


def status_of(instance: Mapping[str, Any], ref: DeviceRef) -> list[Mapping[str, Any]]:
    """What the status says of a device asked for."""
    return [entry for entry in statuses(instance, ref.list) if entry.get("name") == ref.name]


def missing_devices(instance: Mapping[str, Any]) -> list[str]:
    """The devices of which the status does not yet say where they are; empty: the machine may start. Of one that a device
    plugin gives it says nothing."""
    return [*_unsettled_flavor(instance), *(ref.name for ref in device_refs(instance) if not _complete(instance, ref)
                                            and (ref.by_claim or status_of(instance, ref)))]


def _complete(instance: Mapping[str, Any], ref: DeviceRef) -> bool:
    entries = status_of(instance, ref)
    return bool(entries) and all(address_of(entry) for entry in entries)


def unsettled_devices(instance: Mapping[str, Any], pod: Mapping[str, Any], claims: Claims) -> list[str]:
    """The devices of which the status does not say what the claims of this pod say: it is not written yet, or tells of an
    earlier pod, or of devices that nobody asks for. Empty: the machine may start in this pod."""
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
    asked = {(ref.list, ref.name) for ref in refs}
    out += [str(entry.get("name")) for list_ in LISTS for entry in statuses(instance, list_)
            if (list_, entry.get("name")) not in asked]
    for ref in refs:
        claim_name = names.get(ref.claim or "")
        claim = claims(pod["metadata"]["namespace"], claim_name) if ref.by_claim and claim_name else None
        told = [entry.get("deviceResourceClaimStatus") or {} for entry in status_of(instance, ref)]
        true = [{"resourceClaimName": claim_name, "driver": one["driver"], "pool": one["pool"], "name": one["device"]}
                for one in results_for(claim or {}, ref)]
        settled = _complete(instance, ref) and _same(told, true) if claimed(ref, claim) else not told
        if not settled:
            out.append(ref.name)
    return out


def _same(told: Sequence[Mapping[str, Any]], true: Sequence[Mapping[str, Any]]) -> bool:
    """Every entry tells of another one of the results. Driver and pool may be missing: not every writer says them."""
    left = list(true)
    for entry in told:
        found = next((one for one in left if all(entry.get(key, one[key] if key in ("driver", "pool") else None) == one[key]
                                                 for key in one)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def address_of(entry: Mapping[str, Any]) -> tuple[Literal["pci", "mdev"], str] | None:
    """Where a status entry says its device is. A mediated device may also name its parent's address; it stays mediated."""
    attributes = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
    for key in ("mdevUUID", "mDevUUID"):
        if attributes.get(key):
            return "mdev", attributes[key]
    return ("pci", attributes["pciAddress"]) if attributes.get("pciAddress") else None
