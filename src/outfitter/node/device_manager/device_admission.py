"""Which devices of device plugins a pod gets on its node, all containers at once: ids that are assigned already are kept and
checked, what is missing is chosen. Pure; called by the agent at pod admission, which asks plugins for their preference:

    steps = assign(pod, resources, use, settings)
    needed = next(steps)                       # Preference: GetPreferredAllocation of needed.resource
    needed = steps.send(("gpu-0", "gpu-1"))    # its answer, () if the plugin offers none
    ...                                        # StopIteration.value: the devices, or a Rejection"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api import rejection as rejections
from outfitter.api.assignment import assigned_devices
from outfitter.api.assignment.assigned_devices import ContainerDevices, PodDevices
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Holder
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import Invalid
from outfitter.node.device_manager.plugin_resource import PluginResource, is_extended
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.filter import pod_requests
from outfitter.scheduling.topology.device_choice import DevicesUnavailable, PreferenceNeeded, begin_choice, finish_choice
from outfitter.scheduling.topology.hints import DeviceRequest, ResourceDevices
from outfitter.scheduling.topology.merge import decide_affinity
from outfitter.scheduling.topology.settings import TopologyScope, TopologySettings

Held = Mapping[str, Mapping[str, Holder]]  # resource -> id -> the pod that has it
OutOfService = Mapping[str, Mapping[str, Rejection]]  # resource -> id -> why the host's page keeps it out of service
OF_THE_NODE = ("bridge.network.kubevirt.io/", "devices.kubevirt.io/")  # resources that no plugin gives here
AssignSteps = Generator["Preference", Sequence[str], PodDevices | Rejection]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What the devices of a host are used for, as far as it matters for a pod."""

    held: Held  # by other pods
    out_of_service: OutOfService
    earlier: ContainerDevices  # what the VM of the pod had, and gets again where that is possible


@dataclass(frozen=True, slots=True)
class Preference:
    """A plugin may say which devices it prefers."""

    container: str
    resource: str
    request: PreferenceNeeded


def requested(pod: Object, container: Object) -> dict[str, int]:
    """What a container asks for that device plugins give: resource -> number. What the pod has by a claim is not counted."""
    by_claim = assigned_devices.by_claim(pod)
    return {name: count for name, count in sorted(extended_resources.asked(container).items())
            if count > 0 and is_extended(name) and name not in by_claim and not name.startswith(OF_THE_NODE)}


def resources_of(pod: Object) -> frozenset[str]:
    """All resources of device plugins that a pod asks for."""
    return frozenset(name for container in assigned_devices.containers(pod) for name in requested(pod, container))


def unrequested(pod: Object) -> Rejection | None:
    """Why a pod that asks for no device of a plugin is rejected: it has some all the same. An API server that keeps them in the
    annotation does not check it."""
    try:
        assigned = assigned_devices.of_plugins(pod)
    except Invalid as error:
        return rejections.of_error(error, RejectionCode.POD_INVALID)
    asked = {container["name"]: extended_resources.asked(container) for container in assigned_devices.containers(pod)}
    return next((Rejection.of(RejectionCode.TOO_MANY_ASSIGNED, container=name, resource=resource, assigned=len(ids), wanted=0)
                 for name, devices in assigned.items() for resource, ids in devices.items()
                 if not asked.get(name, {}).get(resource)), None)


def assign(
    pod: Object, resources: Mapping[str, PluginResource], use: DeviceUse, settings: TopologySettings
) -> AssignSteps:
    """The devices of every container; a Rejection if it cannot have them here. `resources` has all that the pod asks for."""
    return _Admission(pod, resources, use, settings).run()


class _Admission:
    def __init__(
        self, pod: Object, resources: Mapping[str, PluginResource], use: DeviceUse, settings: TopologySettings
    ) -> None:
        self._pod, self._resources, self._held, self._settings = pod, resources, use.held, settings
        self._out_of_service, self._earlier = use.out_of_service, use.earlier
        self._preset = assigned_devices.of_plugins(pod)
        self._containers = [(container, requested(pod, container)) for container in assigned_devices.containers(pod)]
        self._taken: dict[str, set[str]] = {name: set() for name in resources}  # by containers so far, and what is preset
        for devices in self._preset.values():
            for resource, ids in devices.items():
                self._taken.setdefault(resource, set()).update(ids)
        self._reusable: dict[str, set[str]] = {name: set() for name in resources}  # of plain init containers before

    def run(self) -> AssignSteps:
        wrong = next(self._wrong_presets(), None)
        if wrong is not None:
            return wrong
        whole: int | None = None
        if self._settings.scope is TopologyScope.POD:
            affinity = decide_affinity(self._settings, self._of_pod())
            if not affinity.admitted:
                return Rejection(RejectionCode.TOPOLOGY_AFFINITY)
            whole = affinity.mask
        out: dict[str, dict[str, tuple[str, ...]]] = {}
        for container, counts in self._containers:
            requests = {resource: self._request(container, resource, count) for resource, count in counts.items()}
            mask = whole
            if self._settings.scope is TopologyScope.CONTAINER:
                affinity = decide_affinity(self._settings, requests)
                if not affinity.admitted:
                    return Rejection(RejectionCode.TOPOLOGY_AFFINITY)
                mask = affinity.mask
            for resource, request in requests.items():
                chosen = yield from self._choose(container["name"], resource, request, mask)
                if isinstance(chosen, Rejection):
                    return chosen
                out.setdefault(container["name"], {})[resource] = chosen
                self._taken[resource].update(chosen)
                if assigned_devices.is_plain_init(self._pod, container):
                    self._reusable[resource].update(chosen)
                else:
                    self._reusable[resource].difference_update(chosen)
        return out

    def _choose(
        self, container: str, resource: str, request: DeviceRequest, mask: int | None
    ) -> Generator[Preference, Sequence[str], tuple[str, ...] | Rejection]:
        choice = begin_choice(request, mask)
        if isinstance(choice, DevicesUnavailable):
            return self._unavailable(resource, choice)
        if isinstance(choice, PreferenceNeeded):
            again = [each for each in self._earlier.get(resource, ()) if each in choice.eligible]
            asks = self._resources[resource].options.prefers and len(choice.must_include) + len(again) < choice.size
            choice = finish_choice(choice, (yield Preference(container, resource, choice)) if asks else again)
        return choice.ids

    def _unavailable(self, resource: str, choice: DevicesUnavailable) -> Rejection:
        found = self._resources[resource]
        if found.devices and not found.healthy:
            return Rejection.of(RejectionCode.NO_HEALTHY_DEVICE, resource=resource)
        return Rejection.of(RejectionCode.DEVICES_UNAVAILABLE, resource=resource, wanted=choice.needed, free=choice.available)

    def _request(self, container: Object, resource: str, count: int) -> DeviceRequest:
        own = frozenset(self._preset.get(container["name"], {}).get(resource, ()))
        reusable = frozenset(self._reusable[resource])
        if assigned_devices.is_plain_init(self._pod, container):  # it ends before those start
            reusable |= frozenset(each for later in self._after(container)
                                  for each in self._preset.get(later["name"], {}).get(resource, ()))
        return DeviceRequest(self._devices(resource), count, own, reusable - own)

    def _after(self, container: Object) -> list[Object]:
        """The sidecars and containers that start when an init container has ended."""
        containers = [each for each, _ in self._containers]
        return [later for later in containers[containers.index(container) + 1:]
                if not assigned_devices.is_plain_init(self._pod, later)]

    def _of_pod(self) -> dict[str, DeviceRequest]:
        """What the pod asks for as a whole."""
        counts = pod_requests.requests(self._pod)
        out = {}
        for resource in self._resources:
            own = frozenset(each for devices in self._preset.values() for each in devices.get(resource, ()))
            out[resource] = DeviceRequest(self._devices(resource), max(counts.get(resource, 0), len(own)), own)
        return out

    def _devices(self, resource: str) -> ResourceDevices:
        found = self._resources[resource]
        return ResourceDevices(found.numa, found.healthy.difference(
            self._taken[resource], self._held.get(resource, ()), self._out_of_service.get(resource, ())))

    def _wrong_presets(self) -> Iterator[Rejection]:
        """What is wrong with ids that are assigned already."""
        seen: dict[tuple[str, str], Object] = {}
        for container, counts in self._containers:
            for resource, ids in self._preset.get(container["name"], {}).items():
                if len(ids) > counts.get(resource, 0):
                    yield Rejection.of(RejectionCode.TOO_MANY_ASSIGNED, container=container["name"], resource=resource,
                                       assigned=len(ids), wanted=counts.get(resource, 0))
                    continue
                for device in ids:
                    yield from self._wrong(resource, device)
                    if not assigned_devices.is_plain_init(self._pod, container):
                        if (other := seen.get((resource, device))) is not None:
                            yield Rejection.of(RejectionCode.ASSIGNED_TWICE, id=device, resource=resource,
                                               containers=(other["name"], container["name"]))
                        seen[resource, device] = container

    def _wrong(self, resource: str, device: str) -> Iterator[Rejection]:
        found = self._resources[resource].devices.get(device)
        if found is None:
            yield Rejection.of(RejectionCode.ASSIGNED_DEVICE_MISSING, id=device, resource=resource,
                               host=self._pod["spec"].get("nodeName"))
        elif (holder := self._held.get(resource, {}).get(device)) is not None:
            yield Rejection(RejectionCode.HELD, DeviceId(resource, "", device), holder)
        elif not found.healthy:
            yield Rejection.of(RejectionCode.DEVICE_UNHEALTHY, id=device, resource=resource)
        elif (why := self._out_of_service.get(resource, {}).get(device)) is not None:
            yield why


def devices_of(pod: Object) -> Collection[tuple[str, str]]:
    """All (resource, id) of a pod."""
    return {(resource, each) for devices in assigned_devices.of_plugins(pod).values() for resource, ids in devices.items()
            for each in ids}
