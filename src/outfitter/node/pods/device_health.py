"""What follows for pods and VMs from the health of their devices, on hosts whose pods the agent runs: the condition
`DevicesHealthy` on the pod and its VMI, an event when it changes and, with the policy `restart`, the end of a pod that has a
device which its plugin reports as unhealthy. Pods with devices of claims are evicted by the taint of the device (`host_audit`,
`driver_controller`).

The page contains which devices of plugins are not healthy, so that nothing changes while an agent or a plugin is restarted.
Called by `own_pods`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.ledger_page.page import device_of
from outfitter.api.ledger_page.page_entries import raw_entries, readable_device
from outfitter.errors import Invalid, NotFound
from outfitter.inventory.config import UnhealthyDevice
from outfitter.ledger import book
from outfitter.ledger.out_of_service import HEALTH
from outfitter.node.agent_host import AgentHost
from outfitter.node.device_manager import device_admission, plugin_health
from outfitter.node.dra_manager.device_health import KnownHealth
from outfitter.node.dra_manager.dra_driver import DeviceHealth
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.status_reporter import subject
from outfitter.store import revision_patch
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events.event_recorder import EventRecorder

_Instance = TypeVar("_Instance", Object, None)
UNHEALTHY = "DeviceUnhealthy"  # reason of the condition DevicesHealthy, and of the event
EVICTED = "DeviceUnhealthyEviction"  # reason of the condition DisruptionTarget, and of the event
VANISHED = "no longer on the bus"


class PodDeviceHealth:
    def __init__(
        self, store: Store, cache: PodCache, page: Callable[[str], Object | None], *, clock: Clock, events: EventRecorder
    ) -> None:
        """`page`: the page of a host; None while it is not known."""
        self._store, self._cache, self._page, self._clock, self._events = store, cache, page, clock, events

    async def record_plugins(self, host: AgentHost) -> None:
        """Write what device plugins report into the page of the host."""
        manager = host.device_manager
        if manager is None:
            return
        now, monotonic = rfc3339(self._clock.now()), self._clock.monotonic()
        await book.change_page(self._store, host.name, lambda page: plugin_health.with_health(
            page, manager.resources, host.settings.unhealthy_device, monotonic=monotonic, now=now))

    async def report(self, host: AgentHost, pod: Object, instance: _Instance) -> tuple[Object, _Instance]:
        """The condition DevicesHealthy of a pod that runs, and of its VMI; an event when it changes. Both as they are then."""
        why = _text(self._unhealthy(host, pod))
        fresh = await self._set_condition(kinds.POD, pod, why)
        if fresh is not pod and why:
            await self._events.warning(subject(pod), UNHEALTHY, why)
        elif fresh is not pod:
            await self._events.normal(subject(pod), "DevicesHealthy", "its devices are no longer reported as unhealthy")
        return fresh, instance and await self._set_condition(kinds.VMI, instance, why)

    async def evict(self, host: AgentHost, pod: Object) -> bool:
        """Delete a pod with a device that its plugin reports as unhealthy, if that is the host's policy. Whether it goes."""
        manager = host.device_manager
        if manager is None or host.settings.unhealthy_device is not UnhealthyDevice.RESTART:
            return False
        bad = [device for device in sorted(_of_plugins(host, pod))
               if plugin_health.reports_unhealthy(manager.resources, device)]
        if not bad:
            return False
        meta, why = pod["metadata"], f"{', '.join(map(str, bad))}: {plugin_health.REPORTED}"
        try:
            if not conditions.is_true(pod, "DisruptionTarget"):
                have = conditions.with_condition((pod.get("status") or {}).get("conditions"), Condition(
                    "DisruptionTarget", True, EVICTED, why), rfc3339(self._clock.now()))
                pod = await revision_patch.patch_status(self._store, kinds.POD, pod, {"conditions": have})
            await self._events.warning(subject(pod), EVICTED, f"Marking for deletion: {why}")
            await self._store.delete(kinds.POD, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            pass  # it is gone
        return True

    def own(self, host: AgentHost) -> Callable[[DeviceId], KnownHealth | None]:
        """The health of our own devices of a host; None of a device of another driver."""
        quarantined = self._quarantined(host)

        def health(device: DeviceId) -> KnownHealth | None:
            if device.driver != host.driver:
                return None
            if host.refusal is not None:
                return KnownHealth(DeviceHealth.UNKNOWN, host.refusal.message)
            why = VANISHED if device.device in host.vanished else quarantined.get(device)
            return KnownHealth(DeviceHealth.HEALTHY) if why is None else KnownHealth(DeviceHealth.UNHEALTHY, why)

        return health

    # -- which devices

    def _unhealthy(self, host: AgentHost, pod: Object) -> dict[DeviceId, str]:
        """The unhealthy devices that a pod has, and why."""
        out = dict(host.dra_manager.unhealthy(pod)) if host.dra_manager is not None else {}
        quarantined = self._quarantined(host)
        if quarantined or host.vanished:
            for device in self._devices(host, pod):
                if device in quarantined:
                    out.setdefault(device, quarantined[device])
                elif device.driver == host.driver and device.device in host.vanished:
                    out[device] = VANISHED
        return out

    def _quarantined(self, host: AgentHost) -> Mapping[DeviceId, str]:
        """Why devices on the host's page are quarantined."""
        return {device_of(raw["device"]): _reason(raw) for raw in raw_entries(self._page(host.name), "quarantined")
                if readable_device(raw)}

    def _devices(self, host: AgentHost, pod: Object) -> Iterator[DeviceId]:
        """All devices of a pod; of a launcher pod also those that were plugged."""
        yield from _of_plugins(host, pod)
        for each in (pod, *self._cache.attachments(pod)):
            for _, name in pod_claims.claim_names(each):
                claim = self._cache.claim(each["metadata"]["namespace"], name) if name else None
                for result in pod_claims.allocation_results(claim or {}):
                    yield DeviceId(result["driver"], result["pool"], result["device"])

    async def _set_condition(self, kind: Kind, obj: Object, why: str) -> Object:
        have = (obj.get("status") or {}).get("conditions") or []
        if why:
            unhealthy = Condition(conditions.DEVICES_HEALTHY, False, UNHEALTHY, why)
            fresh = conditions.with_condition(have, unhealthy, rfc3339(self._clock.now()))
        else:
            fresh = conditions.without_condition(have, conditions.DEVICES_HEALTHY)
        return obj if fresh == have else await revision_patch.patch_status(self._store, kind, obj, {"conditions": fresh})


def _of_plugins(host: AgentHost, pod: Object) -> set[DeviceId]:
    try:
        return {DeviceId(resource, host.name, each) for resource, each in device_admission.devices_of(pod)}
    except Invalid:
        return set()  # ids that cannot be read


def _reason(record: Object) -> str:
    reason = str(record.get("reason") or "")
    return reason if record.get("origin") == HEALTH else f"quarantined{f': {reason}' if reason else ''}"


def _text(unhealthy: Mapping[DeviceId, str]) -> str:
    texts = [f"{device} is unhealthy{f': {message}' if message else ''}" for device, message in sorted(unhealthy.items())]
    return "; ".join(texts)
