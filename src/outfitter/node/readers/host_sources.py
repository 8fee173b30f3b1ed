"""Where a host's agent knows the devices of its pods: the pod objects, claims and what was prepared for them, and what device
plugins report. Implements `pod_devices.DeviceSources`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outfitter.api.assignment import assigned_devices
from outfitter.api.kinds import Object
from outfitter.errors import Invalid, Unreadable
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import cdi
from outfitter.node.readers.pod_devices import ResourceDevice

UNKNOWN: Mapping[str, tuple[int, ...]] = {}
ClaimLookup = Callable[[str, str], Object | None]  # namespace and name


class HostSources:
    def __init__(self, host: AgentHost, claim: ClaimLookup) -> None:
        self._host, self._claim = host, claim

    def assigned(self, pod: Object) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        try:
            return assigned_devices.of_plugins(pod)  # others are shown as the devices of their claim
        except Invalid:  # an annotation that a user wrote: its pod is not admitted with it
            return {}

    def claim(self, namespace: str, name: str) -> Object | None:
        try:
            return self._claim(namespace, name)
        except Unreadable:  # reported elsewhere; its pods are shown without it until it is repaired
            return None

    def cdi_ids(self, claim: Object, result: Mapping[str, Any]) -> tuple[str, ...]:
        if result["driver"] != self._host.driver and self._host.dra_manager is not None:
            return self._host.dra_manager.cdi_ids(claim["metadata"]["uid"], result)
        if (result["driver"], result["pool"]) != (self._host.driver, self._host.name) or self._host.env is None:
            return ()
        return (f"{cdi.kind(self._host.driver)}={cdi.device_name(claim['metadata']['uid'], result['device'])}",)

    def numa_nodes(self, resource: str) -> Mapping[str, tuple[int, ...]]:
        manager = self._host.device_manager
        known = manager.resources.get(resource) if manager is not None else None
        return known.numa if known is not None else UNKNOWN

    def resources(self) -> Mapping[str, Mapping[str, ResourceDevice]]:
        """Devices of a plugin that is gone are not healthy."""
        known = self._host.device_manager.resources if self._host.device_manager is not None else {}
        return {name: {device.id: ResourceDevice(device.numa_nodes, device.healthy and resource.ready)
                       for device in resource.devices.values()} for name, resource in known.items()}
