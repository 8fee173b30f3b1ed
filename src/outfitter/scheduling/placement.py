"""What scheduling answers: a host with devices, or why a pod waits, host by host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.rejection import TAKEN, UNLIKE, Rejection, RejectionCode
from outfitter.scheduling.dra import allocator
from outfitter.scheduling.nova.host_state_cache import Unmet

HOLDS = (RejectionCode.HELD, RejectionCode.HARDWARE_HELD)
COUNTS_FREE = frozenset({RejectionCode.TOO_FEW_FREE, RejectionCode.TOO_FEW_TOGETHER})  # they count devices that match


@dataclass(frozen=True)
class HostRejection:
    """Why a host cannot take a pod, and, made when it is read, what is wrong with each of its devices."""

    rejections: tuple[Rejection, ...]
    far: tuple[int, ...] = (0,)  # how far the host is from taking it: the smaller, the nearer
    seek: Callable[[], object] | None = field(default=None, repr=False, compare=False)  # None: it was not for its devices

    @functools.cached_property
    def found(self) -> allocator.AllocationRejection | Unmet | None:
        """The search that failed; made when it is read."""
        found = self.seek() if self.seek is not None else None
        return found if isinstance(found, allocator.AllocationRejection | Unmet) else None

    @property
    def obstacles(self) -> tuple[Rejection, ...]:
        """What is wrong with each device: held ones first, those last that are not what is asked for."""
        there = self.found.obstacles if self.found is not None else ()
        return tuple(sorted(there, key=lambda one: (
            one.device is not None, one.code in UNLIKE, one.code not in HOLDS, -one.detail.get("passed", 0))))

    @property
    def blocking(self) -> tuple[Rejection, ...]:
        """The same of those devices alone that are what is asked for, and of the host."""
        return self.found.blocking if self.found is not None else ()

    @property
    def taken(self) -> tuple[Rejection, ...]:
        """The devices that are what is asked for, and that are held or out of service."""
        return tuple(one for one in self.blocking if one.code in TAKEN)

    @property
    def not_free(self) -> tuple[Rejection, ...]:
        """Why devices that are what is asked for are not free: held or out of service first; where free devices were counted
        also tainted, without capacity and so on."""
        counted = any(one.code in COUNTS_FREE for one in self.rejections)
        there = [one for one in self.blocking if one.device is not None and (counted or one.code in TAKEN)]
        return tuple(sorted(there, key=lambda one: one.code not in TAKEN))


@dataclass(frozen=True, slots=True)
class Waiting:
    """No host was chosen. Without `hosts` it is for the pod or its claims, whatever hosts there are."""

    rejections: tuple[Rejection, ...] = ()  # of the pod, its claims and its pre-assigned devices
    hosts: tuple[tuple[str, HostRejection], ...] = ()  # those that were asked why, or all of them
    total: int = 0  # hosts that there are
    named: tuple[str, ...] = ()  # hosts that a summary names
    unlike: int = 0  # hosts that have no devices of the kind, where a summary counts them apart
    skipped: tuple[Rejection, ...] = ()  # slices, nodes, pages and taint rules that cannot be read: it may wait for them

    @property
    def codes(self) -> tuple[RejectionCode, ...]:
        """Each code once: of the pod, then of the nearest hosts first."""
        ordered = sorted(self.hosts, key=lambda one: one[1].far)
        return tuple(dict.fromkeys(one.code for one in (
            *self.rejections, *(each for _, host in ordered for each in host.rejections), *self.skipped)))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes and what its claims get there."""

    host: str
    # Claim -> its v1 AllocationResult. The last one may be a claim that is still to be made, for extended resources.
    claims: tuple[tuple[Object, Mapping[str, Any]], ...]
    why: str = ""  # it was this host, for people
    mappings: tuple[Mapping[str, str], ...] = ()  # which container gets extended resources by which request


def results(given: Mapping[str, Any]) -> list[tuple[DeviceId, Mapping[str, Any]]]:
    """The devices of an allocation."""
    found = (given.get("devices") or {}).get("results") or ()
    return [(DeviceId(one["driver"], one["pool"], one["device"]), one) for one in found]
