"""The health of devices as drivers report it. A report holds for the device's own timeout; after that, or when the driver's
stream ends, the health is unknown. Values and lookups, no I/O; changed by `driver_registry` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api.device import DeviceId
from outfitter.api.validate import names
from outfitter.node.dra_manager.dra_driver import DeviceHealth, ReportedHealth

MOST_DEVICES = 65_536  # of one driver on a host


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
        self._devices: Counter[str] = Counter()  # by driver, how many are known

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
            if device not in self._known:
                if self._devices[driver] >= MOST_DEVICES:
                    continue
                self._devices[driver] += 1
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
        gone = {device: self._known.pop(device) for device in devices}
        self._devices.subtract(device.driver for device in gone)
        return [device for device, known in gone.items() if known.health is not DeviceHealth.UNKNOWN]


def read_reports(reports: Sequence[ReportedHealth]) -> tuple[Sequence[ReportedHealth], str]:
    """What of a message is used, and why the rest is not: "" if all is."""
    usable = [report for report in reports[:MOST_DEVICES] if _is_device(report)]
    if len(reports) > MOST_DEVICES:
        return usable, f"it reports the health of more than {MOST_DEVICES} devices: the others are not used"
    if len(usable) == len(reports):
        return usable, ""
    wrong = [f"{report.pool}/{report.device}" for report in reports if not _is_device(report)]
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return usable, f"it reports the health of what is no device: {wrong[0][:80]!r}{more}"


def _is_device(report: ReportedHealth) -> bool:
    """Whether a ResourceSlice could have such a device."""
    return not any((*names.label(report.device, ""), *(
        cause for part in report.pool.split("/") for cause in names.subdomain(part, ""))))
