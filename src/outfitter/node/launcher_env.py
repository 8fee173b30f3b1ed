"""What a launcher gets to know about its prepared devices, besides the VMI's status: environment variables and metadata files.
The launcher compares the two. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outfitter.api import device_metadata
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, pod_claims, vm
from outfitter.node.devices import metadata
from outfitter.node.devices.metadata import PreparedDevice


@dataclass(frozen=True, slots=True)
class LauncherDevices:
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # path in the container -> text


def launcher_devices(pod: Object, prepared: Iterable[tuple[str, Object, Sequence[PreparedDevice]]]) -> LauncherDevices:
    """`prepared`: entries of the pod's claims, the claim of each, and what was prepared for it."""
    out = LauncherDevices()
    for name, claim, devices in prepared:
        incomplete = _incomplete_requests(claim, devices)
        whole = [device for device in devices if device.asked not in incomplete]
        out.env.update(metadata.environment(claim["metadata"]["name"], whole))
        out.files.update({f"{device_metadata.BASE}/{path}": text for path, text in metadata.files(claim, whole).items()})
        if name == device_refs.EXTENDED:
            out.env.update(metadata.by_resource(_resources(pod), devices))
    return out


def _incomplete_requests(claim: Object, devices: Sequence[PreparedDevice]) -> set[str]:
    """The requests that also have devices of other drivers: this host does not know all of them."""
    ours = {(device.driver, device.pool, device.device) for device in devices}
    return {str(result["request"]).partition("/")[0] for result in pod_claims.allocation_results(claim)
            if (result["driver"], result["pool"], result["device"]) not in ours}


def _resources(pod: Object) -> list[tuple[str, str]]:
    """Which requests of the claim for extended resources stand for which resource."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return [(mapping["resourceName"], mapping["requestName"]) for mapping in status.get("requestMappings") or ()
            if mapping["containerName"] == vm.CONTAINER]
