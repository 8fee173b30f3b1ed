"""The DRA drivers that have registered at a host, and the health of their devices. Of several sockets of one driver the newest
is called: a new version registers before the old one ends. `PluginWatcher` registers them here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.validate import names
from outfitter.errors import NotReady, OutfitterError
from outfitter.node.device_manager.update_rate import UpdateRate
from outfitter.node.dra_manager import device_health
from outfitter.node.dra_manager.device_health import HealthCache
from outfitter.node.dra_manager.dra_driver import SERVICES, Connect, DraDriver, choose_services
from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
LONGEST_PATH = 256  # characters of an endpoint in messages; a socket's has at most 107
LONGEST_NAME = 128  # characters of what a driver calls itself, in messages
STREAM_AGAIN = 5.0  # seconds until a health stream that ended is opened again
EXPIRE_EVERY = 1.0  # seconds between two looks for devices that were not reported in time


class RegisteredPlugin(Protocol):
    """What the watcher of `plugins_registry` knows about a plugin."""

    @property
    def name(self) -> str: ...
    @property
    def endpoint(self) -> Path: ...
    @property
    def versions(self) -> tuple[str, ...]: ...


@dataclass(slots=True, eq=False)
class _Registration:
    info: RegisteredPlugin
    driver: DraDriver
    connected: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class DriverRegistry:
    def __init__(
        self, host: str, own: str, connect: Connect, *, clock: Clock,
        problem: Callable[[str, Rejection | None], None] = lambda key, why: None,
    ) -> None:
        """`own`: our driver, which no other may pose as. `problem`: called with what is wrong with a driver, and None when that
        is over."""
        self._host, self._own, self._connect, self._clock, self._problem = host, own, connect, clock, problem
        self.health = HealthCache(clock.monotonic)
        self._registered: dict[str, list[_Registration]] = {}  # by driver, the newest last
        self._expiry: asyncio.Task[None] | None = None
        self.on_driver: list[Callable[[str], None]] = []  # called with a driver that came, went or is connected again
        self.on_health: list[Callable[[Collection[DeviceId]], None]] = []  # called with devices whose health changed

    def get(self, driver: str) -> DraDriver | None:
        """None: it is not registered."""
        found = self._registered.get(driver)
        return found[-1].driver if found else None

    def usable(self, driver: str) -> bool:
        """Whether a process of the driver is connected."""
        return any(registration.connected for registration in self._registered.get(driver, ()))

    # -- PluginHandler

    async def add(self, info: RegisteredPlugin) -> None:
        """NotReady: why it is not registered."""
        services = choose_services(info.versions)
        if services is None or (why := self._refused(info)):
            if services is None:
                offered = ", ".join(info.versions)[:LONGEST_NAME] or "none"
                why = f"none of the services that it offers ({offered}) is supported; supported are {', '.join(SERVICES)}"
            self._problem(info.name, _refusal(info.name, why))
            raise NotReady(f"DRA driver {info.name[:LONGEST_NAME]}: {why}")
        self._problem(info.name, None)
        registration = _Registration(info, self._connect(info.endpoint, services))
        self._registered.setdefault(info.name, []).append(registration)
        self._begin(registration, self._watch_connection(registration))
        if services.health:
            self._begin(registration, self._watch_health(registration))
            if self._expiry is None:
                self._expiry = asyncio.create_task(self._expire())
        log.info("%s: the DRA driver %s has registered with %s", self._host, info.name, services.plugin)
        self._driver_changed(info.name)

    def _refused(self, info: RegisteredPlugin) -> str:
        """Why a driver whose services are known is not registered; "" if it is."""
        if wrong := next(iter(names.driver(info.name[:LONGEST_NAME], "name")), None):
            return wrong.message
        if info.name == self._own:
            return f"this is outfitter's own driver on {self._host}; it needs no socket here"
        if any(registration.info.endpoint == info.endpoint for registration in self._registered.get(info.name, ())):
            return f"{info.endpoint} is registered already"
        return _no_socket(info.endpoint)

    async def remove(self, info: RegisteredPlugin) -> None:
        """Its socket was removed from the registry."""
        found = self._registered.get(info.name, [])
        for registration in [each for each in found if each.info is info]:
            found.remove(registration)
            if not found:
                del self._registered[info.name]
                log.warning("%s: the DRA driver %s is gone", self._host, info.name)
            await self._close(registration)
            self._health_changed(self.health.forget_driver(info.name))
            self._driver_changed(info.name)

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        for registration in [each for found in self._registered.values() for each in found]:
            await self._close(registration)
        self._registered.clear()

    async def _close(self, registration: _Registration) -> None:
        for task in registration.tasks:
            task.cancel()
        await asyncio.gather(*registration.tasks, return_exceptions=True)
        await registration.driver.close()

    def _begin(self, registration: _Registration, work: Coroutine[Any, Any, None]) -> None:
        registration.tasks.append(asyncio.create_task(work))

    # -- what a driver reports

    async def _watch_connection(self, registration: _Registration) -> None:
        async for connected in registration.driver.connections():
            if connected is not registration.connected:
                registration.connected = connected
                self._driver_changed(registration.info.name)

    async def _watch_health(self, registration: _Registration) -> None:
        name, reported, rate = registration.info.name, "", UpdateRate(self._clock)
        while True:
            try:
                async for reports in registration.driver.watch_health():
                    reported = ""
                    usable, wrong = device_health.read_reports(reports)
                    self._problem(f"health of {name}", _refusal(name, wrong) if wrong else None)
                    self._health_changed(self.health.report(name, usable))
                    await rate.wait(len(reports))
            except OutfitterError as error:
                if error.message != reported:
                    log.warning("%s: the DRA driver %s does not report health: %s", self._host, name, error.message)
                reported = error.message
            self._health_changed(self.health.forget_driver(name))
            await self._clock.sleep(STREAM_AGAIN)

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(EXPIRE_EVERY)
            self._health_changed(self.health.expire())

    def _driver_changed(self, name: str) -> None:
        for changed in self.on_driver:
            changed(name)

    def _health_changed(self, devices: Collection[DeviceId]) -> None:
        for changed in self.on_health if devices else ():
            changed(devices)


def _refusal(driver: str, message: str) -> Rejection:
    return Rejection.of(RejectionCode.DRIVER_REFUSED, driver=driver[:LONGEST_NAME], message=message)


def _no_socket(path: Path) -> str:
    """Why a path is no socket; "": it is one."""
    with contextlib.suppress(OSError, ValueError):
        return "" if stat.S_ISSOCK(os.stat(path).st_mode) else f"{path} is not a socket"
    return f"{str(path)[:LONGEST_PATH]} does not exist"
