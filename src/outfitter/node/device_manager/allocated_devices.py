"""A pod's devices of device plugins: whether its object contains all of them, whether plugins have answered Allocate for each,
which hardware they are by these answers, and their health. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfitter.api.assignment import assigned_devices
from outfitter.api.assignment.assigned_devices import PodDevices
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.node.device_manager import device_admission
from outfitter.node.device_manager.checkpoint_file import Allocations
from outfitter.node.device_manager.container_edits import plugin_hardware
from outfitter.node.device_manager.plugin_resource import PluginResource


def complete(pod: Object) -> bool:
    """Whether a pod's object contains as many ids as its containers request."""
    have = assigned_devices.readable_of_plugins(pod)
    return all(len(have.get(container["name"], {}).get(resource, ())) >= count
               for container in assigned_devices.containers(pod)
               for resource, count in device_admission.requested(pod, container).items())


def answered(allocations: Allocations, pod: Object) -> bool:
    """Whether the plugins have answered for all devices of a pod, to an earlier process too."""
    have = assigned_devices.readable_of_plugins(pod)
    for container in assigned_devices.containers(pod):
        for resource, count in device_admission.requested(pod, container).items():
            answer = allocations.get((pod["metadata"]["uid"], container["name"], resource))
            ids = have.get(container["name"], {}).get(resource, ())
            if answer is None or len(ids) != count or answer.ids != set(ids):
                return False
    return True


def hardware(allocations: Allocations, host: str, pod: Object, devices: PodDevices) -> dict[DeviceId, tuple[str, ...]]:
    """What the devices of a pod are. An answer lists addresses, not of which device each is: they are taken in order, what is
    left over is the last one's."""
    out: dict[DeviceId, tuple[str, ...]] = {}
    for name, by_resource in devices.items():
        for resource, ids in by_resource.items():
            answer = allocations.get((pod["metadata"]["uid"], name, resource))
            found = plugin_hardware(resource, answer.envs) if answer is not None else ()
            for number, each in enumerate(ids):
                own = found[number:] if number == len(ids) - 1 else found[number:number + 1]
                if own:
                    out[DeviceId(resource, host, each)] = tuple(sorted(own))
    return out


def statuses(resources: Mapping[str, PluginResource], pod: Object) -> dict[str, Sequence[Object]]:
    """Container -> its allocatedResourcesStatus."""
    return {name: [{"name": resource, "resources": [
        {"resourceID": each, "health": resources[resource].health(each) if resource in resources else "Unknown"}
        for each in ids]} for resource, ids in sorted(devices.items())]
        for name, devices in assigned_devices.readable_of_plugins(pod).items()}


def keys(devices: PodDevices) -> set[tuple[str, str]]:
    """All (resource, id)."""
    return {(resource, each) for by_resource in devices.values() for resource, ids in by_resource.items() for each in ids}


def same(one: PodDevices, other: PodDevices) -> bool:
    """Whether containers have the same devices, in whichever order."""
    return _sets(one) == _sets(other)


def _sets(devices: PodDevices) -> dict[tuple[str, str], set[str]]:
    return {(name, resource): set(ids) for name, by_resource in devices.items() for resource, ids in by_resource.items()}
