"""What a container's status contains about devices of claims: `allocatedResourcesStatus` with their health. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.node.device_manager.dra_checkpoint import ClaimDeviceState, ClaimInfoState
from outfitter.node.dra_manager.device_health import KnownHealth

PREFIX = "claim:"  # of the names of these entries; those of device plugins are resource names


def statuses(
    pod: Object, claims: Mapping[str, ClaimInfoState], health: Callable[[DeviceId], KnownHealth]
) -> dict[str, list[Object]]:
    """Container -> an entry for each claim, or request of a claim, that it uses. `claims`: those of the pod by name."""
    names = dict(pod_claims.claim_names(pod))
    out: dict[str, list[Object]] = {}
    for container in pod["spec"].get("containers") or ():
        entries = []
        for used in (container.get("resources") or {}).get("claims") or ():
            claim, request = claims.get(names.get(used["name"]) or ""), used.get("request") or ""
            resources = _resources(claim, request, health) if claim is not None else []
            if resources:
                entries.append({"name": f"{PREFIX}{used['name']}{f'/{request}' if request else ''}", "resources": resources})
        if entries:
            out[container["name"]] = entries
    return out


def _resources(claim: ClaimInfoState, request: str, health: Callable[[DeviceId], KnownHealth]) -> list[Object]:
    out: dict[str, Object] = {}
    for driver, devices in claim.drivers.items():
        for device in devices:
            if request and device.requests and request.partition("/")[0] not in device.requests:
                continue
            known, name = health(DeviceId(driver, device.pool, device.device)), resource_id(driver, device)
            message = {"message": known.message} if known.message else {}
            out.setdefault(name, {"resourceID": name, "health": str(known.health), **message})
    return list(out.values())


def resource_id(driver: str, device: ClaimDeviceState) -> str:
    """As the kubelet names a device in a status."""
    return device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"


def devices_of(claim: ClaimInfoState) -> list[DeviceId]:
    return [DeviceId(driver, device.pool, device.device) for driver, devices in claim.drivers.items() for device in devices]
