"""What follows for the API from what DRA drivers of others do on a host: slices of a driver that is gone are deleted, and a
device that a driver reports as unhealthy is tainted by a DeviceTaintRule, so that no new claim gets it. `unhealthy_device` of
the host says what happens to the pods that have it: nothing, restart (the taint evicts them), or quarantine (it stays out of
service until an operator restores it).

A rule is deleted when the device is reported as healthy: a driver that is away leaves it in place."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Collection, Iterable

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.errors import AlreadyExists, NotFound
from outfitter.inventory.config import UnhealthyDevice
from outfitter.ledger import out_of_service
from outfitter.node.agent_host import AgentHost
from outfitter.node.dra_manager import registered_drivers
from outfitter.node.dra_manager.device_health import KnownHealth
from outfitter.node.dra_manager.dra_driver import DeviceHealth
from outfitter.node.dra_manager.driver_registry import DriverRegistry
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
SLICES, HEALTH = "slices|", "health|"  # keys: slices|HOST|DRIVER and health|HOST|DRIVER|POOL|DEVICE
GONE = 30.0  # seconds for which a driver may be away, for example to be restarted, before its slices are deleted
TAINT = "outfitter.dev/unhealthy"  # key of the taint
LABEL = "outfitter.dev/device-health"  # of our DeviceTaintRules: the host
EFFECTS = {UnhealthyDevice.NOTHING: "NoSchedule", UnhealthyDevice.RESTART: "NoExecute",
           UnhealthyDevice.QUARANTINE: "NoSchedule"}


class DriverController:
    name = "dra_drivers"

    def __init__(self, store: Store, hosts: Iterable[AgentHost], *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.queue = WorkQueue(clock)
        self._hosts: dict[str, tuple[AgentHost, DriverRegistry]] = {}
        self._gone: dict[tuple[str, str], float] = {}  # host and driver -> since when it is not connected, monotonic
        for host in hosts:
            if host.dra_manager is not None:
                drivers = host.dra_manager.drivers
                self._hosts[host.name] = host, drivers
                drivers.on_driver.append(functools.partial(self._driver_changed, host.name))
                drivers.on_health.append(functools.partial(self._health_changed, host.name))
                for driver in registered_drivers.read(host.dra_manager.files):
                    self._driver_changed(host.name, driver)

    def _driver_changed(self, host: str, driver: str) -> None:
        if self._hosts[host][1].usable(driver):
            self._gone.pop((host, driver), None)
            self._remember(host, driver, registered=True)
        elif (host, driver) not in self._gone:
            self._gone[host, driver] = self._clock.monotonic()
            self.queue.add_after(f"{SLICES}{host}|{driver}", GONE)

    def _health_changed(self, host: str, devices: Collection[DeviceId]) -> None:
        for device in devices:
            self.queue.add(f"{HEALTH}{host}|{device.driver}|{device.pool}|{device.device}")

    async def reconcile(self, key: str) -> float | None:
        what, host, *rest = key.split("|")
        if f"{what}|" == SLICES:
            return await self._delete_slices(host, rest[0])
        await self._sync_health(self._hosts[host][0], DeviceId(*rest))
        return None

    # -- slices

    async def _delete_slices(self, host: str, driver: str) -> float | None:
        since = self._gone.get((host, driver))
        if since is None:
            return None  # it is back
        if (left := since + GONE - self._clock.monotonic()) > 0:
            return left
        for part in (await self._store.list(kinds.RESOURCE_SLICE)).items:
            if (part["spec"].get("driver"), part["spec"].get("nodeName")) == (driver, host):
                try:
                    await self._store.delete(kinds.RESOURCE_SLICE, part["metadata"]["name"], uid=part["metadata"]["uid"])
                except NotFound:
                    continue
        self._remember(host, driver, registered=False)
        return None

    def _remember(self, host: str, driver: str, *, registered: bool) -> None:
        if (manager := self._hosts[host][0].dra_manager) is not None:
            registered_drivers.change(manager.files, driver, registered=registered)

    # -- health

    async def _sync_health(self, host: AgentHost, device: DeviceId) -> None:
        known = self._hosts[host.name][1].health.of(device)
        if known.health is DeviceHealth.UNHEALTHY:
            await self._taint(host, device, known)
        elif known.health is DeviceHealth.HEALTHY:
            await self._untaint(device)

    async def _taint(self, host: AgentHost, device: DeviceId, known: KnownHealth) -> None:
        policy = host.settings.unhealthy_device
        rule = taint_rule(host.name, device, EFFECTS[policy])
        try:
            await self._store.create(kinds.DEVICE_TAINT_RULE, rule)
        except AlreadyExists:
            pass
        except NotFound:  # of a cluster without the gate DRADeviceTaintRules
            log.warning("%s: %s is unhealthy, and new claims may get it: the API server has no DeviceTaintRules", host.name,
                        device)
        if policy is UnhealthyDevice.QUARANTINE:
            reason = f"its driver reports it as unhealthy{f': {known.message}' if known.message else ''}"
            await out_of_service.quarantine(self._store, host.name, device, by=f"driver {device.driver}", reason=reason,
                                            now=rfc3339(self._clock.now()))

    async def _untaint(self, device: DeviceId) -> None:
        try:
            await self._store.delete(kinds.DEVICE_TAINT_RULE, rule_name(device))
        except NotFound:
            pass


def rule_name(device: DeviceId) -> str:
    digest = hashlib.sha256(f"{device.driver}|{device.pool}|{device.device}".encode()).hexdigest()
    return f"outfitter-unhealthy-{digest[:16]}"


def taint_rule(host: str, device: DeviceId, effect: str) -> Object:
    return {"metadata": {"name": rule_name(device), "labels": {LABEL: host}},
            "spec": {"deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.device},
                     "taint": {"key": TAINT, "effect": effect}}}
