"""The health of devices as drivers report it. A report holds for the device's own timeout; after that, or when the driver's
stream ends, the health is unknown. Values and lookups, no I/O; changed by `driver_registry` alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from outfitter.api.device import DeviceId
from outfitter.node.dra_manager.dra_driver import DeviceHealth, ReportedHealth


@dataclass(frozen=True, slots=True)
class KnownHealth:
    health: DeviceHealth
    message: str = ""
    until: float = 0.0  # monotonic


NEVER_REPORTED = KnownHealth(DeviceHealth.UNKNOWN)


class HealthCache:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known: dict[DeviceId, KnownHealth] = {}

    def of(self, device: DeviceId) -> KnownHealth:
        return self._known.get(device, NEVER_REPORTED)

    def unhealthy(self) -> Mapping[DeviceId, KnownHealth]:
        return {device: known for device, known in self._known.items() if known.health is DeviceHealth.UNHEALTHY}

    def report(self, driver: str, reports: Iterable[ReportedHealth]) -> Collection[DeviceId]:
        """The devices whose health or message changed."""
        now, changed = self._monotonic(), []
        for report in reports:
            device = DeviceId(driver, report.pool, report.device)
            before = self.of(device)
            self._known[device] = KnownHealth(report.health, report.message, now + report.timeout)
            if (before.health, before.message) != (report.health, report.message):
                changed.append(device)
        return changed

    def expire(self) -> Collection[DeviceId]:
        """Those that became unknown as their driver has not reported them in time."""
        now = self._monotonic()
        late = [device for device, known in self._known.items() if known.until <= now]
        return self._forget(late)

    def forget_driver(self, driver: str) -> Collection[DeviceId]:
        """Those that became unknown as the stream of their driver has ended."""
        return self._forget([device for device in self._known if device.driver == driver])

    def _forget(self, devices: Iterable[DeviceId]) -> Collection[DeviceId]:
        return [device for device in devices if self._known.pop(device).health is not DeviceHealth.UNKNOWN]
