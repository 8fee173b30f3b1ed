"""Environment variables of a launcher for devices that its pod requests by extended resource, named as device plugins name
them. Where the scheduler made a claim for these resources, the node agent sets the variables from the claim; `outfit domxml`
does the
same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outfitter.api import device
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import StartFailed

PCI, MDEV = "PCI_RESOURCE", "MDEV_PCI_RESOURCE"
NETWORK = "PCIDEVICE"  # prefix of what network device plugins write
NETWORK_RESOURCE = "KUBEVIRT_RESOURCE_NAME"  # prefix of a network's variable: its resource name


def variable_suffix(*words: str) -> str:
    """The part of a variable's name for a resource: upper case, / and . become _. A dash is kept."""
    return "_".join(words).upper().replace("/", "_").replace(".", "_")


def addresses(env: Mapping[str, str], prefix: str, *words: str) -> tuple[str, ...]:
    """The addresses in a variable. Some plugins write a dash as an underscore, some keep the name unchanged."""
    plain = variable_suffix(*words)
    for name in dict.fromkeys((plain, plain.replace("-", "_"), "_".join(words))):
        if (text := env.get(f"{prefix}_{name}")) is not None:
            return tuple(address.strip() for address in text.split(",") if address.strip())
    return ()


def resource_variables(pod: Mapping[str, Any], claim: Mapping[str, Any], slices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Variables for the devices of the pod's extended resource claim that belong to the compute container, as far as slices
    publish their addresses, in the order of `device_refs.refs_in`. All functions of a device are listed."""
    known = list(slices)
    values: dict[str, list[str]] = {}
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for mapping in status.get("requestMappings") or ():
        if mapping["containerName"] != vm.CONTAINER:
            continue
        for driver, published in published_devices(claim, mapping.get("requestName"), known):
            if uuid := device.text_attribute(published, driver, device.MDEV_NAMES):
                values.setdefault(f"{MDEV}_{variable_suffix(mapping['resourceName'])}", []).append(uuid)
            else:
                values.setdefault(f"{PCI}_{variable_suffix(mapping['resourceName'])}", []).extend(
                    pci_addresses(published, driver)
                )
    return {name: ",".join(places) for name, places in values.items() if places}


def published_devices(
    claim: Mapping[str, Any], request: str | None, slices: Iterable[Mapping[str, Any]],
) -> list[tuple[str, Mapping[str, Any]]]:
    """The allocated devices of a claim's request in order, each with its driver and its entry in a ResourceSlice ({} while it
    has none)."""
    known = {(driver, pool, entry["name"]): entry for (driver, pool), parts in device.newest_pools(slices).items()
             for part in parts for entry in part["spec"].get("devices") or ()}
    return [(result["driver"], known.get((result["driver"], result["pool"], result["device"])) or {})
            for result in pod_claims.results(claim, request)]


def pci_addresses(published: Mapping[str, Any], driver: str) -> list[str]:
    """The PCI addresses of all functions of a published device; empty for a mediated device."""
    if device.text_attribute(published, driver, device.MDEV_NAMES):
        return []
    address = device.text_attribute(published, driver, device.ADDRESS_NAMES)
    return (device.members(published, driver) or [address]) if address else []


def merged_environment(published: Mapping[str, str], prepared: Mapping[str, str]) -> dict[str, str]:
    """The environment, from what drivers publish about a pod's extended resources, and from what was prepared here. Of one
    resource some devices may be prepared by another driver. StartFailed: the two contradict each other."""
    out = dict(published)
    for name, value in prepared.items():
        other = out.setdefault(name, value)
        if not set(value.split(",")) <= set(other.split(",")):
            raise carrying(StartFailed(f"{name}: {value} was prepared, but {other} is published: the VM does not start before "
                                       "they agree"), RejectionCode.SOURCES_DISAGREE)
    return out
