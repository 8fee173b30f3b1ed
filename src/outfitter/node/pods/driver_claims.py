"""Claims of pods with devices of other DRA drivers, on a host that outfitter runs: unprepared when a pod ends, and what
the status of containers contains about their devices. Called by `own_pods`; `pod_preparation` has them prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection
from outfitter.node.agent_host import AgentHost
from outfitter.node.dra_manager.device_health import KnownHealth
from outfitter.node.pods.pod_preparation import DRIVER_PATIENCE, PodPreparation
from outfitter.node.status_reporter import FAILED_RELEASE, StatusReporter
from outfitter.store.clock import Clock

AGAIN = 1.0  # seconds until a driver that has not answered is looked at again


class DriverClaims:
    def __init__(self, devices: PodPreparation, report: StatusReporter, *, clock: Clock) -> None:
        self._devices, self._report, self._clock = devices, report, clock

    async def unprepare(self, host: AgentHost, pod: Object) -> float | None:
        """Before the devices of a pod that ends are released. A number: not yet, call again after so many seconds."""
        if host.dra_manager is None:
            return None
        result = host.dra_manager.unprepare_pod(pod, self._devices.claims(pod))
        if result is None:
            return None
        if isinstance(result, Rejection):
            await self._report.waiting(pod, result, FAILED_RELEASE)
        elif self._clock.monotonic() - result.since >= DRIVER_PATIENCE:
            await self._report.waiting(pod, self._devices.pending(result), FAILED_RELEASE)
        return AGAIN

    def sweep(self, host: AgentHost, pods: Sequence[Object]) -> tuple[set[tuple[str, str]], float | None]:
        """Unprepare what is recorded for pods that are not among these: the claims (namespace and name) whose devices are not
        released yet, and when to call again."""
        if host.dra_manager is None:
            return set(), None
        again = host.dra_manager.sweep({pod["metadata"]["uid"] for pod in pods})
        return host.dra_manager.recorded(), again

    def statuses(
        self, host: AgentHost, pod: Object, plugins: Mapping[str, Sequence[Object]],
        own: Callable[[DeviceId], KnownHealth | None],
    ) -> Mapping[str, Sequence[Object]]:
        """Container -> its allocatedResourcesStatus. `plugins`: the entries for devices of device plugins; `own`: the health of
        our own devices."""
        if host.dra_manager is None:
            return plugins
        claims = host.dra_manager.statuses(pod, own)
        return {name: [*plugins.get(name, ()), *claims.get(name, ())] for name in {**plugins, **claims}}
