"""The entries of `status.deviceStatus`: for each device that a VMI requests, and for each network interface on a function of a
claim, what the pod's claims and the drivers' slices say of it. Pure but for the lookups handed in; called by the device status
controller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.device import ADDRESS_NAMES, MDEV_NAMES, members, numa_node, product_name, text_attribute
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, network_info, pod_claims, vm
from outfitter.controllers import launcher_resources

Find = Callable[[Mapping[str, Any], str | None], Mapping[str, Any] | str]  # a result, a host -> the device, or why not


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """What is known of a VMI's devices, and what is still missing (empty: everything is known)."""

    status: Object | None
    missing: tuple[str, ...]
    unnamed: bool = False  # some claim has not even a name yet
    gated: bool = False  # what is missing waits for a gate to be opened, and for nothing else


def find_devices(
    instance: Object, pod: Object, claims: device_refs.Claims, find: Find, closed: Collection[device_refs.List] = (),
) -> FoundDevices:
    """The device status of an instance in its pod. Lists whose gate is closed keep what they have and get nothing new. Pure but
    for the look-ups handed in."""
    names = dict(pod_claims.claim_names(pod))
    nodes = vm.shows_nodes(instance)
    missing: list[str] = []
    shut: list[str] = []
    unnamed = False
    out: dict[str, list[Object]] = {}
    for ref in device_refs.refs_in(instance, pod):
        if not ref.by_claim:
            continue
        if ref.list in closed and ref.number is None:
            kept = [dict(entry) for entry in device_status.statuses(instance, ref.list) if entry.get("name") == ref.name]
            if kept:
                out.setdefault(device_status.STATUS_LISTS[ref.list], []).extend(kept)
            else:
                shut.append(f"{ref.name}: the feature gate {launcher_resources.GATES[ref.list]} is closed")
                missing.append(shut[-1])
            continue
        claim_name = names.get(ref.claim or "")
        if not claim_name:
            unnamed = True
            missing.append(f"{ref.name}: claim {ref.claim} has not been made yet")
            continue
        entries, why = claim_entries(ref, claim_name, pod, claims, find, nodes=nodes)
        if why:
            missing.append(f"{ref.name}: {why}")
        if entries:
            out.setdefault(device_status.STATUS_LISTS[ref.list], []).extend(entries)
    return FoundDevices(out or None, tuple(missing), unnamed, bool(missing) and missing == shut)


def claim_entries(
    ref: device_refs.DeviceRef, claim_name: str, pod: Object, claims: device_refs.Claims, find: Find, *, nodes: bool
) -> tuple[list[Object], str]:
    """One status entry for each device that answers a reference, as far as it is known, and what is missing."""
    blank = [{"name": ref.name, "deviceResourceClaimStatus": {"resourceClaimName": claim_name}}]
    claim = claims(pod["metadata"]["namespace"], claim_name)
    if claim is None:
        # One by resource name is waited for because the status contains it, by claim because the spec does.
        return blank if ref.by_resource else [], f"claim {claim_name} does not exist"
    status = claim.get("status") or {}
    users = status.get("reservedFor") or ()
    ours = any(user.get("uid") == pod["metadata"]["uid"] for user in users)
    if claim["metadata"].get("deletionTimestamp") and not ours:
        return blank, f"claim {claim_name} is being deleted"
    if not ref.request:
        return blank, f"it does not say which request of claim {claim_name} it means: write {ref.path}.{ref.request_at}"
    results = pod_claims.results_for(claim, ref)
    if not results and (message := device_refs.unknown_request(claim.get("spec") or {}, ref.request)):
        return blank, f"claim {claim_name} {message}"
    if not status.get("allocation"):
        return blank, f"claim {claim_name} has no devices yet"
    others = users and all(user.get("resource") == "pods" for user in users)  # of a group the pod may be a part
    if not ours and (others or not pod["spec"].get("nodeName")):  # what other pods have, or may get, is not shown as this VMI's
        return blank, f"claim {claim_name} is not given to it yet"
    if not pod_claims.claimed(ref, claim):
        return [], ""  # the launcher reports that there are too few
    if not results:
        return blank, f"claim {claim_name} got no device for request {ref.request}"
    out: list[Object] = []
    missing = []
    for result in results:
        entry, why = _entry(ref.name, claim_name, result, find(result, pod["spec"].get("nodeName")), nodes=nodes)
        out.append(entry)
        missing += [why] if why else []
    return out, "; ".join(missing)


def _entry(
    name: str, claim_name: str, result: Mapping[str, Any], found: Mapping[str, Any] | str, *, nodes: bool
) -> tuple[Object, str]:
    """The status entry of one result of a claim, and what is missing in it. `found`: the device, or why not."""
    device = {} if isinstance(found, str) else found
    attributes = _attributes(device, result["driver"], nodes=nodes)
    why = found if isinstance(found, str) else "" if attributes else (
        f"device {result['device']} of {result['driver']} has neither a PCI address nor a mediated device's UUID")
    return {"name": name, "deviceResourceClaimStatus": {
        "name": result["device"], "resourceClaimName": claim_name, "driver": result["driver"], "pool": result["pool"],
        **_product(device, result["driver"]), "attributes": attributes}}, why


def _attributes(device: Mapping[str, Any], driver: str, *, nodes: bool) -> Object:
    """Where a device is: all functions if it has several, and with `nodes` its NUMA node."""
    address, uuid = text_attribute(device, driver, ADDRESS_NAMES), text_attribute(device, driver, MDEV_NAMES)
    out: Object = {}
    if address:
        out["pciAddress"] = address
    if uuid:
        out["mdevUUID"] = uuid
    if address and not uuid and len(functions := members(device, driver)) > 1:
        out["members"] = functions
    node = numa_node(device)
    if out and nodes and node is not None:
        out["numaNode"] = node
    return out


def _product(device: Mapping[str, Any], driver: str) -> Object:
    """The product, or the type of a mediated device, where the driver publishes one."""
    name = product_name(device, driver)
    return {"product": name} if name else {}


def network_entries(
    instance: Object, pod: Object, claims: device_refs.Claims, find: Find, attached: Sequence[Object] = ()
) -> list[Object]:
    """One entry for each network interface whose function one of the claims of the pod or of its attachment pods got. The
    network plugin or the node agent records on the pod which function an interface is on; this finds the claim that the
    function came from."""
    wanted = {name: wire.address.lower() for name, wire in network_info.wires_of_pod(pod).items() if name and wire.address}
    if not wanted:
        return []
    host, nodes = pod["spec"].get("nodeName"), vm.shows_nodes(instance)
    by_address: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {}
    for claim_name in dict.fromkeys(name for each in (pod, *attached) for _, name in pod_claims.claim_names(each) if name):
        claim = claims(pod["metadata"]["namespace"], claim_name) or {}
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ():
            device = find(result, host)
            if not isinstance(device, str) and (address := text_attribute(device, result["driver"], ADDRESS_NAMES)):
                by_address[address.lower()] = claim_name, result, device
    return [
        _entry(network, *by_address[address], nodes=nodes)[0] for network, address in wanted.items() if address in by_address
    ]
