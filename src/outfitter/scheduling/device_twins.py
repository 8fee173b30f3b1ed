"""Devices of other hosts in which the state of a VM's device can arrive (its twins), and which of them are free. Pure; the
migration controller and `outfit plan migrate` ask when no host can take a migration, so that each device has its own reason.

A twin has the same driver and, where it is published, the same product or mdev type, and is marked as the device is.
`controllers.migrations.target_claims` asks for the same in the target's claim; what else the claim asks for is not looked at
here, so that a device without a free twin cannot travel, and one with a free twin may still wait for another reason.

The twin of a device that is reattached need not be marked: it gets no state.
The twin of a NIC on a VF is any VF of the same physical network, or of the same product where none is published: it carries no
state, and its claim or resource decides which VF it gets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfitter.api.device import MDEV_NAMES, DeviceId, flag_attribute, newest_pools, text_attribute
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, network_info, pod_claims
from outfitter.api.launcher.launcher_environment import NETWORK_RESOURCE
from outfitter.api.ledger_page.page import Booking, Page
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.device_migration import LIVE_MIGRATABLE, DeviceMigration, SourceView, claim_of

SAME = ("mdevType", "mdevTypeName", "product", "productName", "model")  # the first that a device has: its twin has it too
NETWORK = "physicalNetwork"  # attribute of a VF
SHOWN = 3  # holders of twins
Twin = tuple[str, str, str, str]  # driver, how it is marked, attribute, its value


@dataclass(frozen=True, slots=True)
class PublishedTwins:
    """What is published and held, on all hosts."""

    slices: Sequence[Object]
    pages: Sequence[Object]
    claims: Sequence[Object]


def first_attribute(device: Mapping[str, Any], driver: str, names: Sequence[str]) -> tuple[str, str] | None:
    """The first of these attributes that a device has: its name and value."""
    return next(((name, value) for name in names if (value := text_attribute(device, driver, (name,)))), None)


def twin_of(device: Mapping[str, Any], driver: str) -> Twin:
    """Devices for which this is equal are twins."""
    marked = LIVE_MIGRATABLE if flag_attribute(device, driver, LIVE_MIGRATABLE) else (
        first_attribute(device, driver, MDEV_NAMES) or ("", ""))[0]
    return driver, marked, *(first_attribute(device, driver, SAME) or ("", ""))


def reattached_twin_of(device: Mapping[str, Any], driver: str) -> Twin:
    """The same for devices that are reattached."""
    mediated = (first_attribute(device, driver, MDEV_NAMES) or ("", ""))[0]
    return driver, mediated, *(first_attribute(device, driver, SAME) or ("", ""))


def nic_twin_of(device: Mapping[str, Any], driver: str) -> Twin:
    """The same for NICs."""
    network = text_attribute(device, driver, (NETWORK,))
    return (driver, text_attribute(device, driver, ("kind",)) or "", NETWORK, network) if network else twin_of(device, driver)


def with_twins(
    devices: Sequence[DeviceMigration], vmi: Mapping[str, Any], view: SourceView, published: PublishedTwins
) -> tuple[DeviceMigration, ...]:
    """The devices, with the reason of those that travel or are reattached and have too few free twins on every other host."""
    if not any(device.how in ("travels", "reattached") for device in devices):
        return tuple(devices)
    host = str((vmi.get("status") or {}).get("nodeName") or "")
    search = _TwinSearch(host, _places(published.slices), published)
    refs = {(ref.list, ref.name): ref for ref in device_refs.refs_in(vmi, view.pod or {})}
    nics = _nic_twins(vmi, view, host)
    out = []
    for device in devices:
        wanted: Counter[Twin] = Counter()
        ref = refs.get((device.list, device.name)) if device.list is not None else None
        if device.how != "blocks" and ref is not None:
            results = pod_claims.results_for(claim_of(vmi, ref.claim or "", view)[1] or {}, ref)
            wanted = _twins(results, view, host, twin_of if device.how == "travels" else reattached_twin_of)
        elif device.how == "reattached" and device.list is None and (twin := nics.get(device.name)) is not None:
            wanted[twin] = sum(each == twin for each in nics.values())
        why = search.lacks(device.name, wanted)
        out.append(device if why is None else replace(device, rejection=why))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _TwinSearch:
    host: str  # on which the VM runs
    places: Mapping[Twin, Sequence[tuple[str, DeviceId]]]
    published: PublishedTwins

    def lacks(self, name: str, wanted: Mapping[Twin, int]) -> Rejection | None:
        """Why no other host has as many free devices of these kinds."""
        for twin, number in wanted.items():
            elsewhere = [(place, id_) for place, id_ in self.places.get(twin, ()) if place != self.host]
            held = _holders(self.published, {id_ for _, id_ in elsewhere})
            free: Counter[str] = Counter(place for place, id_ in elsewhere if id_ not in held)
            if (most := max(free.values(), default=0)) >= number:
                continue
            rejection = Rejection.of(RejectionCode.NO_FREE_TWIN, name=name, wanted=number, match=len(elsewhere), free=most)
            holders = [booking for _, id_ in elsewhere if (booking := held.get(id_)) is not None]
            return replace(rejection, causes=tuple(
                Rejection(RejectionCode.HELD, one.device, one.holder, one.since) for one in holders[:SHOWN]))
        return None


def _twins(
    results: Iterable[Mapping[str, Any]], view: SourceView, host: str, kind: Callable[[Mapping[str, Any], str], Twin]
) -> Counter[Twin]:
    return Counter(kind(device, result["driver"]) for result in results
                   if not isinstance(device := view.find(result, host or None), str))


def _nic_twins(vmi: Mapping[str, Any], view: SourceView, host: str) -> dict[str, Twin]:
    """NICs whose VF is known, each with its kind."""
    out: dict[str, Twin] = {}
    for name, result in _nic_results(vmi, view).items():
        if not isinstance(device := view.find(result, host or None), str):
            out[name] = nic_twin_of(device, result["driver"])
    return out


def _nic_results(vmi: Mapping[str, Any], view: SourceView) -> dict[str, Mapping[str, Any]]:
    """The VF of each SR-IOV interface, by its own claim or by the claim for the resources of the pod."""
    pod, out = view.pod or {}, dict[str, Mapping[str, Any]]()
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    requests = {mapping["resourceName"]: mapping["requestName"] for mapping in extended.get("requestMappings") or ()}
    variables = {entry.get("name"): entry.get("value") for container in (pod.get("spec") or {}).get("containers") or ()
                 for entry in container.get("env") or ()}
    networks = {network.get("name"): network for network in network_info.networks(vmi)}
    taken: Counter[str] = Counter()  # interfaces of one resource share a request
    for interface in network_info.interfaces(vmi):
        if interface.get("sriov") is None or interface.get("state") == "absent":
            continue
        name = str(interface["name"])
        if (ref := (networks.get(name) or {}).get("resourceClaim")) is not None:
            entry, request = str(ref.get("claimName") or ""), ref.get("requestName")
        else:
            entry, request = device_refs.EXTENDED, requests.get(variables.get(f"{NETWORK_RESOURCE}_{name}"))
        results = pod_claims.results(claim_of(vmi, entry, view)[1] or {}, request) if request else []
        place = f"{entry}/{request}"
        if len(results) > taken[place]:
            out[name] = results[taken[place]]
        taken[place] += 1
    return out


def _places(slices: Sequence[Object]) -> dict[Twin, list[tuple[str, DeviceId]]]:
    """The devices of each kind, with their hosts. Devices that no single host has are left out."""
    out: dict[Twin, list[tuple[str, DeviceId]]] = defaultdict(list)
    for part in (part for parts in newest_pools(slices).values() for part in parts):
        spec = part["spec"]
        for device in spec.get("devices") or ():
            host = device.get("nodeName") if spec.get("perDeviceNodeSelection") else spec.get("nodeName")
            if host:
                id_ = DeviceId(spec["driver"], spec["pool"]["name"], device["name"])
                for twin in {kind(device, spec["driver"]) for kind in (twin_of, reattached_twin_of, nic_twin_of)}:
                    out[twin].append((str(host), id_))
    return out


def _holders(published: PublishedTwins, wanted: Iterable[DeviceId]) -> dict[DeviceId, Booking | None]:
    """Which of these devices are held: by their booking, or without one by a claim."""
    those = set(wanted)
    out: dict[DeviceId, Booking | None] = {}
    for claim in published.claims:
        for result in pod_claims.allocation_results(claim):
            if (id_ := DeviceId(result["driver"], result["pool"], result["device"])) in those:
                out[id_] = None
    for page in map(Page, published.pages):
        out |= {booking.device: booking for booking in page.bookings if booking.counted and booking.device in those}
    return out
