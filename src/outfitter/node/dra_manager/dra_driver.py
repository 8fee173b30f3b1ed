"""A DRA driver of others as the agent calls it: the values of its answers, and a Protocol. No I/O."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outfitter.node.device_manager.dra_checkpoint import ClaimDeviceState
from outfitter.node.kubelet.claim_reference import ClaimReference

PLUGIN_TYPE = "DRAPlugin"
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # the first that a driver offers is watched


class DeviceHealth(enum.StrEnum):
    """As in allocatedResourcesStatus of a container's status."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ReportedHealth:
    """A device in a message of a driver's health stream."""

    pool: str
    device: str
    health: DeviceHealth
    timeout: float  # seconds without a further report after which its health is unknown
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """What a driver answered to NodePrepareResources for one claim."""

    devices: tuple[ClaimDeviceState, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class DriverServices:
    """What the agent uses of what a driver offers."""

    plugin: str  # one of SERVICES
    health: str = ""  # one of HEALTH_SERVICES; "": the driver reports no health


class DraDriver(Protocol):
    """Calls a driver. NotReady: in the driver's own words why the whole call failed, or that it did not answer in time."""

    def prepare(self, claims: Sequence[ClaimReference]) -> Awaitable[Mapping[str, ClaimAnswer]]:
        """Claim uid -> its answer."""
        ...

    def unprepare(self, claims: Sequence[ClaimReference]) -> Awaitable[Mapping[str, str]]:
        """Claim uid -> why it failed, "" if it did not."""
        ...

    def watch_health(self) -> AsyncIterator[Sequence[ReportedHealth]]: ...

    def connections(self) -> AsyncIterator[bool]:
        """Whether the driver is connected, at each change."""
        ...

    def close(self) -> Awaitable[None]: ...


class Connect(Protocol):
    def __call__(self, socket: Path, services: DriverServices) -> DraDriver: ...


def choose_services(offered: Sequence[str]) -> DriverServices | None:
    """As the kubelet: the first of the driver's list that is known. None: there is none."""
    plugin = next((service for service in offered if service in SERVICES), None)
    if plugin is None:
        return None
    return DriverServices(plugin, next((service for service in HEALTH_SERVICES if service in offered), ""))
