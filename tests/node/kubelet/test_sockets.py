"""The driver's sockets: only for its own user, in place when the kubelet looks, also after a kill and when they are removed;
calls in progress are finished."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from outfitter.errors import StartupRefused
from outfitter.node.kubelet import plugin as plugins
from outfitter.node.kubelet.plugin import KubeletPlugin
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import DRIVER, VF0, DriverHost
from tests.node.kubelet.kubelet_client import REGISTRATION, KubeletClient


@pytest.fixture
async def node() -> AsyncIterator[DriverHost]:
    async with driver_host.running(KubeletClient(kubelet_client.our_definitions())) as there:
        yield there


def sockets(node: DriverHost) -> list[str]:
    return sorted(str(path.relative_to(node.kubelet_folder)) for path in node.kubelet_folder.rglob("*") if path.is_socket())


BOTH = [f"plugins/{DRIVER}/dra.sock", f"plugins_registry/{DRIVER}-reg.sock"]


async def appears(node: DriverHost) -> None:
    """The watch looks once in a second of the clock that the test owns."""
    while not node.socket.exists():
        node.manual.advance(plugins.CHECK_EVERY)
        await asyncio.sleep(0)


async def test_sockets_are_for_their_own_user_and_go_with_the_process(node: DriverHost) -> None:
    assert sockets(node) == BOTH
    modes = {str(path.relative_to(node.kubelet_folder)): stat.S_IMODE(path.stat().st_mode)
             for path in (node.socket, node.endpoint, node.endpoint.parent)}
    assert modes == {BOTH[0]: 0o600, BOTH[1]: 0o600, f"plugins/{DRIVER}": 0o700}
    await node.plugin.stop()
    assert sockets(node) == []


async def test_sockets_of_a_killed_process_are_replaced(node: DriverHost) -> None:
    await node.kill()
    assert sockets(node) == BOTH
    with pytest.raises(grpc.aio.AioRpcError):
        await node.registered()
    await node.start()
    assert (await node.registered()).name == DRIVER
    assert sockets(node) == BOTH


@pytest.mark.parametrize("what", ["registration socket", "registration folder", "both sockets", "the kubelet's folder"])
async def test_what_is_removed_is_created_again(node: DriverHost, what: str) -> None:
    await node.registered()
    node.socket.unlink()
    if what == "both sockets":
        node.endpoint.unlink()
    if what in ("registration folder", "the kubelet's folder"):
        node.registry.rmdir()
    if what == "the kubelet's folder":
        node.endpoint.unlink()
        node.endpoint.parent.rmdir()
    for _ in range(3):  # without the kubelet there is nothing to do
        node.manual.advance(plugins.CHECK_EVERY)
        await asyncio.sleep(0)
    node.registry.mkdir(exist_ok=True)
    await appears(node)
    info, claim = await node.registered(), await node.allocate("gold", VF0)
    assert (await node.client.prepare(info, claim))[claim["uid"]].error == ""


async def test_a_socket_that_a_newer_process_put_there_stays(node: DriverHost) -> None:
    newer = KubeletPlugin(node.driver, node.kubelet_folder, clock=node.clock, page=lambda: None)
    await newer.start()
    await node.plugin.stop()
    assert sockets(node) == BOTH
    await node.registered()
    await newer.stop()
    assert sockets(node) == []


async def test_calls_in_progress_are_finished(node: DriverHost) -> None:
    """Also one that the kubelet gave up: nothing is left between two states."""
    info, claim = await node.registered(), await node.allocate("gold", VF0)
    await node.host.lock.acquire()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.client.prepare(info, claim, timeout=0.05)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = asyncio.create_task(node.client.prepare(info, claim))
    stopping = asyncio.create_task(node.plugin.stop())
    while not node.plugin._dra._calls or node.endpoint.exists():  # noqa: ASYNC110  # what others do cannot be waited for
        await asyncio.sleep(0.01)
    node.host.lock.release()
    await stopping
    assert await node.states() == {"gold": "prepared"}
    waiting.cancel()


async def test_a_rejected_registration_is_known(node: DriverHost, caplog: pytest.LogCaptureFixture) -> None:
    await node.client.call(node.socket, REGISTRATION, "NotifyRegistrationStatus",
                           {"plugin_registered": False, "error": "no supported version"})
    assert (node.plugin.registration.registered, node.plugin.registration.error) == (False, "no supported version")
    assert "rejects the DRA driver pci.outfitter.dev and will try again: no supported version" in caplog.text


async def test_a_folder_that_cannot_be_used_refuses_the_start(node: DriverHost) -> None:
    long = node.folder / ("long" * 25)
    (long / "plugins_registry").mkdir(parents=True)
    with pytest.raises(StartupRefused, match="is too long for a unix socket"):
        await KubeletPlugin(node.driver, long, clock=node.clock, page=lambda: None).start()
    (node.folder / "file").mkdir()
    (node.folder / "file" / "plugins_registry").mkdir()
    (node.folder / "file" / "plugins").write_text("")
    with pytest.raises(StartupRefused, match=r"dra\.sock cannot be created"):
        await KubeletPlugin(node.driver, node.folder / "file", clock=node.clock, page=lambda: None).start()
