"""What the launcher of a machine is told of its devices by whoever handed them over, besides what the instance's status says.
It compares the two. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outfitter.api import device_metadata
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, vm
from outfitter.errors import StartFailed
from outfitter.node import metadata
from outfitter.node.metadata import PreparedDevice


@dataclass(frozen=True, slots=True)
class LauncherDevices:
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # path in the container -> text


def launcher_devices(pod: Object, handed: Iterable[tuple[str, Object, Sequence[PreparedDevice]]]) -> LauncherDevices:
    """`handed`: entries of the pod's claims, the claim of each, and what was handed over for it."""
    out = LauncherDevices()
    for name, claim, given in handed:
        whole = [one for one in given if one.asked not in _of_others(claim, given)]
        out.env.update(metadata.environment(claim["metadata"]["name"], whole))
        out.files.update({f"{device_metadata.BASE}/{path}": text for path, text in metadata.files(claim, whole).items()})
        if name == device_refs.EXTENDED:
            out.env.update(metadata.by_resource(_resources(pod), given))
    return out


def merged_environment(published: Mapping[str, str], handed: Mapping[str, str]) -> dict[str, str]:
    """The environment, from what drivers publish of the devices that a pod got by the names of resources, and from what was
    prepared. Of one resource some devices may be prepared by another driver. StartFailed: the two contradict each other."""
    out = dict(published)
    for name, value in handed.items():
        said = out.setdefault(name, value)
        if not set(value.split(",")) <= set(said.split(",")):
            raise StartFailed(f"{name}: {value} was handed over, but what is published says {said}: the machine does not start "
                              "before they agree")
    return out


def _of_others(claim: Object, given: Sequence[PreparedDevice]) -> set[str]:
    """The requests that got something which is not ours to hand over: we cannot tell of all that they got."""
    ours = {(one.driver, one.pool, one.device) for one in given}
    results = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
    return {str(one["request"]).partition("/")[0] for one in results if (one["driver"], one["pool"], one["device"]) not in ours}


def _resources(pod: Object) -> list[tuple[str, str]]:
    """Which requests of the claim for extended resources stand for which resource."""
    said = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return [(one["resourceName"], one["requestName"]) for one in said.get("requestMappings") or ()
            if one["containerName"] == vm.CONTAINER]
