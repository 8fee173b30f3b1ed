"""What a launcher finds in its environment of devices that its pod got by the name of a resource, in the words of device
plugins. Where the devices come from claims, the scheduler has made one for the pod, and whoever runs the pod says this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outfitter.api import device, machine

PCI, MDEV = "PCI_RESOURCE", "MDEV_PCI_RESOURCE"


def key(*words: str) -> str:
    """How a resource name is written in a variable's name. A dash stays as it is."""
    return "_".join(words).upper().replace("/", "_").replace(".", "_")


def of_resources(pod: Mapping[str, Any], claim: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Variables for what the claim for a pod's extended resources got, as far as slices say where it is. Of a device that is
    several functions all are listed."""
    published = {(driver, pool, one["name"]): one for (driver, pool), parts in device.newest_pools(slices).items()
                 for part in parts for one in part["spec"].get("devices") or ()}
    found: dict[str, list[str]] = {}
    told = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for mapping in told.get("requestMappings") or ():
        for result in machine.results(claim, mapping.get("requestName")):
            driver = result["driver"]
            one = published.get((driver, result["pool"], result["device"])) or {}
            if uuid := device.text_attribute(one, driver, device.MDEV_NAMES):
                found.setdefault(f"{MDEV}_{key(mapping['resourceName'])}", []).append(uuid)
            elif address := device.text_attribute(one, driver, device.ADDRESS_NAMES):
                functions = device.members(one, driver) or [address]
                found.setdefault(f"{PCI}_{key(mapping['resourceName'])}", []).extend(functions)
    return {name: ",".join(places) for name, places in found.items()}
