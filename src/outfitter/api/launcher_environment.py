"""What a launcher finds in its environment of devices that its pod got by the name of a resource, in the words of device
plugins. Where the devices come from claims, the scheduler has made one for the pod, and whoever runs the pod says this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outfitter.api import device
from outfitter.api.kubevirt import pod_claims, vm

PCI, MDEV = "PCI_RESOURCE", "MDEV_PCI_RESOURCE"
NETWORK_RESOURCE = "KUBEVIRT_RESOURCE_NAME"  # of a network: under which resource name its functions are counted


def variable_suffix(*words: str) -> str:
    """How a resource name is written in a variable's name. A dash stays as it is."""
    return "_".join(words).upper().replace("/", "_").replace(".", "_")


def resource_variables(pod: Mapping[str, Any], claim: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Variables for what the claim for a pod's extended resources got for the machine's container, as far as slices say where
    it is; in the order in which the entries of the machine take them (`machine.refs_in`). Of a device that is several functions
    all are listed."""
    known = list(slices)
    found: dict[str, list[str]] = {}
    told = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for mapping in told.get("requestMappings") or ():
        if mapping["containerName"] != vm.CONTAINER:
            continue
        for driver, one in published_devices(claim, mapping.get("requestName"), known):
            if uuid := device.text_attribute(one, driver, device.MDEV_NAMES):
                found.setdefault(f"{MDEV}_{variable_suffix(mapping['resourceName'])}", []).append(uuid)
            else:
                found.setdefault(f"{PCI}_{variable_suffix(mapping['resourceName'])}", []).extend(pci_addresses(one, driver))
    return {name: ",".join(places) for name, places in found.items() if places}


def published_devices(
    claim: Mapping[str, Any], request: str | None, slices: Iterable[Mapping[str, Any]],
) -> list[tuple[str, Mapping[str, Any]]]:
    """What a claim got for a request, in its order, each with its driver and as that publishes it; empty while it does not."""
    known = {(driver, pool, one["name"]): one for (driver, pool), parts in device.newest_pools(slices).items()
             for part in parts for one in part["spec"].get("devices") or ()}
    return [(result["driver"], known.get((result["driver"], result["pool"], result["device"])) or {})
            for result in pod_claims.results(claim, request)]


def pci_addresses(one: Mapping[str, Any], driver: str) -> list[str]:
    """The addresses of a published device, all of them when it is several functions; none of a mediated one."""
    if device.text_attribute(one, driver, device.MDEV_NAMES):
        return []
    address = device.text_attribute(one, driver, device.ADDRESS_NAMES)
    return (device.members(one, driver) or [address]) if address else []
