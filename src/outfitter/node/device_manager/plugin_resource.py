"""A resource as its device plugin reports it: devices, health, NUMA nodes. Values, and what a Node shows of them. No I/O."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from outfitter.api.validate import names

VERSION = "v1beta1"
CAPACITY_KEPT = 300.0  # seconds for which the devices of a plugin that is gone count as capacity
HEALTHY = "Healthy"
_SOCKET_NAME = re.compile(r"[^/\0]+")


SocketId = tuple[int, int]


def socket_id(found: os.stat_result) -> SocketId:
    """Differs for a socket that is created again: file systems give it the inode of the one that was removed."""
    return found.st_ino, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device in a plugin's list."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()  # empty: the plugin does not say


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """What GetDevicePluginOptions answered."""

    prestart: bool = False
    prefers: bool = False


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """A plugin's answer to Allocate for one container: how it gets its devices."""

    ids: frozenset[str]  # the devices that it is for
    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[tuple[str, str, str], ...] = ()  # path in the container, on the host, permissions
    mounts: tuple[tuple[str, str, bool], ...] = ()  # path in the container, on the host, read only
    cdi_ids: tuple[str, ...] = ()
    message: bytes = b""  # as it was answered: checkpoints contain it


class DevicePlugin(Protocol):
    """Calls a plugin. Every call raises NotReady with the plugin's own words; `Unavailable` when it is gone."""

    def connect(self) -> Awaitable[None]: ...
    def options(self) -> Awaitable[PluginOptions]: ...
    def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        """Each list that the plugin sends; ends with the plugin."""
        ...
    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> Awaitable[Sequence[str]]: ...
    def allocate(self, ids: Sequence[str]) -> Awaitable[ContainerAllocation]: ...
    def prestart(self, ids: Sequence[str]) -> Awaitable[None]: ...
    def close(self) -> Awaitable[None]: ...


@dataclass(slots=True)
class PluginResource:
    """What is known of one resource; changed by the device manager alone."""

    name: str
    socket: Path | None = None
    socket_id: SocketId = (0, 0)
    plugin: DevicePlugin | None = None  # None: it is gone, or was never here since this process started
    options: PluginOptions = PluginOptions()
    listed: bool = False  # its plugin has sent its devices
    devices: Mapping[str, PluginDevice] = field(default_factory=dict)  # of the last list
    healthy: frozenset[str] = frozenset()  # of these
    healthy_ids: tuple[str, ...] = ()  # the same, sorted
    numa: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # and their NUMA nodes
    gone_since: float | None = None  # monotonic

    @property
    def ready(self) -> bool:
        return self.plugin is not None and self.listed

    def list(self, devices: Iterable[PluginDevice]) -> None:
        """Its plugin has sent its devices."""
        self.devices, self.listed = {device.id: device for device in devices}, True
        self.healthy = frozenset(device.id for device in self.devices.values() if device.healthy)
        self.healthy_ids = tuple(sorted(self.healthy))
        self.numa = {device.id: device.numa_nodes for device in self.devices.values()}

    def health(self, device: str) -> str:
        """As in allocatedResourcesStatus."""
        if not self.ready or device not in self.devices:
            return "Unknown"
        return HEALTHY if self.devices[device].healthy else "Unhealthy"

    def amounts(self, now: float) -> tuple[int, int]:
        """Capacity and allocatable."""
        if self.ready:
            return len(self.devices), len(self.healthy)
        kept = self.gone_since is not None and now - self.gone_since < CAPACITY_KEPT
        return (len(self.devices) if kept else 0), 0


def is_extended(name: str) -> bool:
    """Whether a name is one of an extended resource, as the kubelet decides it."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.") and not list(
        names.key(f"requests.{name}", "resource"))


def wrong_name(resource: str) -> str:
    """Why no plugin can be registered for a resource; "": one can."""
    return "" if is_extended(resource) else (
        f"the ResourceName {resource!r} is invalid: it must be an extended resource, for example example.com/gpu")


def wrong_registration(version: str, resource: str, endpoint: str) -> str:
    """Why a plugin is not registered; "": nothing is wrong."""
    if version != VERSION:
        return f"the device plugin API version {version!r} is not supported; supported is {VERSION}"
    if why := wrong_name(resource):
        return why
    if not _SOCKET_NAME.fullmatch(endpoint) or endpoint in (".", ".."):
        return f"the endpoint {endpoint!r} must be the name of a socket beside that of the kubelet"
    return ""
