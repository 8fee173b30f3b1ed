"""The health of our devices as the kubelet sees it: over a unix socket, with a client made from the protobuf definitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.errors import NotReady
from outfitter.ledger import out_of_service
from outfitter.node.kubelet import health_service
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import HOST, VF0, VF1, DriverHost
from tests.node.kubelet.kubelet_client import HEALTH, KubeletClient

WORDS = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}


@pytest.fixture
async def node() -> AsyncIterator[DriverHost]:
    definitions = kubelet_client.published_definitions() or kubelet_client.our_definitions()
    async with driver_host.running(KubeletClient(definitions)) as there:
        yield there


def read(message: Any) -> dict[str, tuple[str, str]]:
    """Device -> health and message."""
    assert all(device.device.pool_name == HOST for device in message.devices)
    assert {device.health_check_timeout_seconds for device in message.devices} == {health_service.TIMEOUT}
    return {device.device.device_name: (WORDS[device.health], device.message) for device in message.devices}


@pytest.mark.parametrize("service", HEALTH)
async def test_a_quarantined_device_is_unhealthy_until_it_is_restored(node: DriverHost, service: str) -> None:
    info = await node.registered()
    assert service in info.supported_versions
    device = node.host.device(VF0)
    async with node.client.stream(info.endpoint, service, "NodeWatchResources") as stream:
        assert read(await anext(stream)) == {VF0: ("Healthy", ""), VF1: ("Healthy", "")}
        await out_of_service.quarantine(node.store, HOST, device, by="operator", reason="it smells")
        await node.settle()
        assert (await reported(node, stream))[VF0] == ("Unhealthy", "quarantined: it smells")
        await out_of_service.restore(node.store, HOST, device)
        await node.settle()
        while (await reported(node, stream))[VF0] != ("Healthy", ""):
            pass  # sent again before it changed
        assert (await reported(node, stream)).keys() == {VF0, VF1}, "all of them, before the kubelet calls them outdated"


async def reported(node: DriverHost, stream: AsyncIterator[Any]) -> dict[str, tuple[str, str]]:
    """The next message; time passes until it comes."""
    message = asyncio.ensure_future(anext(stream))
    while not message.done():
        node.manual.advance(health_service.LOOK_EVERY)
        await asyncio.wait({message}, timeout=0.01)
    return read(await message)


async def test_a_booked_device_that_left_the_bus_is_unhealthy(node: DriverHost) -> None:
    await node.allocate("gold", VF1)
    node.host.devices = {name: device for name, device in node.host.devices.items() if name != VF1}
    page = node.context.informers[kinds.LEDGER_PAGE].get(HOST)
    assert health_service.own_health(node.host, page)[VF1] == health_service.OwnHealth(
        "UNHEALTHY", f"no longer on the bus of {HOST}")
    assert health_service.own_health(node.host, None) == {VF0: health_service.OwnHealth("HEALTHY")}
    node.host.refusal = NotReady("no IOMMU")
    assert health_service.own_health(node.host, page) == {VF0: health_service.OwnHealth("UNKNOWN", "no IOMMU")}
