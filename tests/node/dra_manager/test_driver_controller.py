"""What follows from a driver's report where the API server has no DeviceTaintRules: a cluster without their gate, in which
`outfit node --simulate` serves DRA drivers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.errors import NotFound
from outfitter.inventory.config import HostSettings, UnhealthyDevice
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import MemoryFiles
from outfitter.node.dra_manager.device_health import KnownHealth
from outfitter.node.dra_manager.dra_driver import DeviceHealth
from outfitter.node.dra_manager.driver_controller import HEALTH, DriverController
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory

DEVICE = DeviceId("net.d.io", "n1", "d0")


class WithoutTaintRules(Memory):
    async def create(self, kind: Kind, obj: Object, **more: Any) -> Object:
        if kind == kinds.DEVICE_TAINT_RULE:
            raise NotFound("the server could not find the requested resource")
        return await super().create(kind, obj, **more)


def host(health: KnownHealth) -> AgentHost:
    drivers = SimpleNamespace(on_driver=[], on_health=[], health=SimpleNamespace(of=lambda device: health))
    return cast(AgentHost, SimpleNamespace(name="n1", settings=HostSettings(unhealthy_device=UnhealthyDevice.QUARANTINE),
                                           dra_manager=SimpleNamespace(drivers=drivers, files=MemoryFiles())))


async def test_an_unhealthy_device_is_quarantined_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = WithoutTaintRules(clock=clock)
    unhealthy = host(KnownHealth(DeviceHealth.UNHEALTHY, "too hot"))
    await DriverController(store, [unhealthy], clock=clock).reconcile(f"{HEALTH}n1|net.d.io|n1|d0")
    assert [(record.device, record.reason) for record in (await book.read(store, "n1")).quarantined] == [
        (DEVICE, "its driver reports it as unhealthy: too hot")]
    assert "the API server has no DeviceTaintRules" in caplog.text
