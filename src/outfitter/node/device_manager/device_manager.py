"""What device plugins have registered on a host, and their devices: the kubelet's device manager without its sockets. Keeps
what plugins report; which pod has what is in the API. `registration` and `plugin_watcher` register plugins here,
`pods.device_assignment` reads it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from outfitter.api.assignment.assigned_devices import LONGEST_ID
from outfitter.api.rejection import Rejection
from outfitter.api.rejection_text import render
from outfitter.errors import NotReady, OutfitterError
from outfitter.node.device_manager import plugin_device_list
from outfitter.node.device_manager.checkpoint_file import CheckpointFile
from outfitter.node.device_manager.plugin_resource import (
    CAPACITY_KEPT,
    ContainerAllocation,
    DevicePlugin,
    PluginDevice,
    PluginOptions,
    PluginResource,
    SocketId,
    socket_id,
    wrong_registration,
)
from outfitter.node.device_manager.update_rate import UpdateRate
from outfitter.scheduling.topology.settings import TopologySettings
from outfitter.store.clock import Clock, within

T = TypeVar("T")
log = logging.getLogger(__name__)
FOLDER = "device-plugins"  # below the kubelet's
DIAL = 10.0  # seconds until a plugin that has registered must accept a connection
DIAL_EVERY = 0.5
ANSWER = 10.0  # seconds for an answer
MOST_PLUGINS = 256  # resources with a plugin: each is a connection, and a line in the Node's status
MOST_PROBLEMS = 256  # resources of which is kept what was wrong with their plugins
LONGER: Mapping[str, float] = {"Allocate": 300.0, "PreStartContainer": 30.0}  # for answers that wait for hardware


class DeviceManager:
    def __init__(
        self, host: str, folder: Path, connect: Callable[[Path], DevicePlugin], settings: TopologySettings, *, clock: Clock,
    ) -> None:
        """`folder`: the kubelet's. `connect` makes a client for the plugin that listens at a path."""
        self.host, self.folder, self.settings = host, folder, settings
        self._connect, self._clock = connect, clock
        self._changed: list[Callable[[], None]] = []
        self.resources: dict[str, PluginResource] = {}
        self.file = CheckpointFile(folder / FOLDER)
        self.allocations: dict[tuple[str, str, str], ContainerAllocation] = {}  # pod's uid, container, resource -> the answer
        self._watches: dict[str, asyncio.Task[None]] = {}  # by resource
        self._problems: dict[str, Rejection] = {}  # resource, or driver -> what was wrong with it the last time
        self._unreported: dict[str, Rejection] = {}  # of these, what `take_problems` has not returned

    def on_change(self, changed: Callable[[], None]) -> None:
        """`changed`: called when devices, their health or a plugin came or went."""
        self._changed.append(changed)

    def load(self, decode: Callable[[bytes, Collection[str]], ContainerAllocation | None]) -> None:
        """Read what an earlier process left: resources whose plugins may come back, and answers to Allocate."""
        found = self.file.load()
        self.known(found.registered)
        for entry in found.entries:
            if entry.response and (answer := decode(entry.response, entry.ids)) is not None:
                self.allocations[entry.pod_uid, entry.container, entry.resource] = answer

    def known(self, resources: Iterable[str]) -> None:
        """Resources of an earlier run, whose plugins may come back."""
        for name in sorted(set(resources) - self.resources.keys()):
            self.resources[name] = PluginResource(name, gone_since=self._clock.monotonic())
            self._notify()

    def forget(self, uid: str) -> None:
        """A pod has ended."""
        for key in [key for key in self.allocations if key[0] == uid]:
            del self.allocations[key]

    def amounts(self) -> Mapping[str, tuple[int, int]]:
        """Resource -> capacity and allocatable of the Node."""
        now = self._clock.monotonic()
        return {name: resource.amounts(now) for name, resource in self.resources.items()}

    def changes_after(self) -> float | None:
        """Seconds until a plugin that is gone counts no more; None: none does."""
        now = self._clock.monotonic()
        ends = [resource.gone_since + CAPACITY_KEPT - now for resource in self.resources.values()
                if resource.gone_since is not None]
        return min((end for end in ends if end > 0), default=None)

    async def answer(self, method: str, call: Awaitable[T]) -> T:
        """A plugin's answer to a call. NotReady: also, that there is none in time."""
        seconds = LONGER.get(method, ANSWER)
        try:
            return await within(self._clock, seconds, call)
        except TimeoutError:
            raise NotReady(f"no answer within {seconds:.0f} s") from None

    # -- registering

    async def register(self, version: str, name: str, endpoint: str) -> None:
        """A plugin called Register. NotReady: why it is not registered."""
        if why := wrong_registration(version, name, endpoint):
            self.refuse(name, why)
            raise NotReady(why)
        await self.add(name, self.folder / FOLDER / endpoint)

    def refuse(self, resource: str, why: str) -> None:
        """Record why a plugin is not registered."""
        self.problem(resource, plugin_device_list.refused(resource, why))

    def problem(self, resource: str, why: Rejection | None) -> None:
        """What is wrong with a plugin or a DRA driver; None: nothing any more."""
        key = resource[:LONGEST_ID]
        if why is None:
            self._problems.pop(key, None)
            self._unreported.pop(key, None)
        elif self._problems.get(key) != why:
            if len(self._problems) >= MOST_PROBLEMS and key not in self._problems:
                self._unreported.pop(oldest := next(iter(self._problems)), None)
                del self._problems[oldest]
            log.warning("%s: %s: %s", self.host, why.code, render(why))
            self._problems[key] = self._unreported[key] = why
            self._notify()

    def problems(self, resources: Iterable[str]) -> list[Rejection]:
        """What is wrong with the plugins of these resources."""
        return [self._problems[name] for name in resources if name in self._problems]

    def take_problems(self) -> list[Rejection]:
        """What is wrong with plugins and was not returned before."""
        found, self._unreported = list(self._unreported.values()), {}
        return found

    async def add(self, name: str, socket: Path) -> None:
        """Begin to use the plugin at a socket for a resource; an earlier one of it is not used any more. NotReady: it cannot
        be used."""
        try:
            identity = await self._listens(socket)
        except NotReady as error:
            self.refuse(name, error.message)
            raise
        known = self.resources.get(name)
        if sum(each.plugin is not None for each in self.resources.values() if each is not known) >= MOST_PLUGINS:
            self.refuse(name, why := f"{MOST_PLUGINS} resources of this host have device plugins: no more are accepted")
            raise NotReady(why)
        if known is not None and known.plugin is not None and (known.socket, known.socket_id) == (socket, identity):
            raise NotReady(f"{socket} is connected already, for {name}")
        plugin = self._connect(socket)
        try:
            await plugin.connect()
            options = await self.answer("GetDevicePluginOptions", plugin.options())
        except OutfitterError as error:
            await plugin.close()
            self.refuse(name, why := f"GetDevicePluginOptions: {error.message}")
            raise NotReady(why) from error
        await self._leave(name)
        self.problem(name, None)
        resource = self.resources.setdefault(name, PluginResource(name))
        resource.socket, resource.socket_id, resource.plugin, resource.options = socket, identity, plugin, options
        resource.listed, resource.gone_since = False, None
        self._watches[name] = asyncio.create_task(self._watch(resource, plugin))

    async def remove(self, name: str, socket: Path) -> None:
        """The socket of a plugin was removed from the registry."""
        resource = self.resources.get(name)
        if resource is not None and resource.socket == socket:
            await self._leave(name)
            self._gone(resource)

    async def _listens(self, socket: Path) -> SocketId:
        """Which socket it is that accepts connections. NotReady: there is none."""
        until = self._clock.monotonic() + DIAL
        while True:
            try:
                found = os.lstat(socket)
                if not stat.S_ISSOCK(found.st_mode):
                    raise NotReady(f"{socket} is not a socket")
                _, writer = await asyncio.open_unix_connection(str(socket))
                writer.close()
                return socket_id(found)
            except OSError as error:
                if self._clock.monotonic() >= until:
                    raise NotReady(f"{socket} could not be dialled for {DIAL:.0f} s: {error.strerror or error}") from error
            await self._clock.sleep(DIAL_EVERY)

    # -- devices

    async def _watch(self, resource: PluginResource, plugin: DevicePlugin) -> None:
        """Until the plugin ends."""
        try:
            rate = UpdateRate(self._clock)
            async for devices in plugin.watch():
                self._list(resource, devices)
                await rate.wait(len(devices))
        except OutfitterError as error:
            log.warning("%s: %s: ListAndWatch: %s", self.host, resource.name, error.message)
            if isinstance(error, NotReady):
                self.refuse(resource.name, f"its list cannot be read: ListAndWatch: {error.message}")
        if resource.plugin is plugin:
            self._gone(resource)
            await plugin.close()

    def _list(self, resource: PluginResource, devices: Sequence[PluginDevice]) -> None:
        read = plugin_device_list.read_list(resource.name, devices)
        self.problem(resource.name, read.problem)
        if not resource.listed or list(read.devices) != list(resource.devices.values()):
            resource.list(read.devices)
            self._notify()

    def _gone(self, resource: PluginResource) -> None:
        resource.plugin, resource.listed, resource.options = None, False, PluginOptions()
        if resource.gone_since is None:
            resource.gone_since = self._clock.monotonic()
        self._notify()

    def _notify(self) -> None:
        for changed in self._changed:
            changed()

    async def _leave(self, name: str) -> None:
        """Do not use the plugin of a resource any more."""
        resource, watch = self.resources.get(name), self._watches.pop(name, None)
        plugin = resource.plugin if resource is not None else None
        if watch is not None:
            watch.cancel()
            await asyncio.wait({watch})
        if plugin is not None:
            await plugin.close()

    async def stop(self) -> None:
        for name in list(self._watches):
            await self._leave(name)
