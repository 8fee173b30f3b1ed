"""Device plugins that are wrong: each is refused with a reason and a code, and other plugins and pods go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.ledger import book
from outfitter.node.device_manager.checkpoint_file import LARGEST, CheckpointFile
from outfitter.node.device_manager.update_rate import UPDATES
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb
from tests.cases.assignment.plugins import WAIT, PlayedPlugin, register
from tests.cases.assignment.pod_view import pod_path
from tests.cases.assignment.world import World
from tests.node.device_manager.test_device_plugins import GPU, create, run, world

REFUSED = "DevicePluginRefused"


async def refusals(made: World) -> list[str]:
    """Messages of the Node's events."""
    events: list[Object] = (await made.send("GET", "/api/v1/namespaces/default/events")).body["items"]
    return [event["message"] for event in events
            if (event["reason"], event["involvedObject"]["kind"]) == (REFUSED, "Node")]


def devices(*ids: str, nodes: tuple[int, ...] = ()) -> list[Any]:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
    return [pb.Device(ID=each, health="Healthy", topology=topology) for each in ids]


@pytest.mark.parametrize(("listed", "says", "left"), [
    pytest.param(devices("g0", "") + devices("g1"), "skipped: ''", 2, id="an empty id"),
    pytest.param(devices("g0", "x" * 600), "skipped: 'xxx", 1, id="an id that is too long"),
    pytest.param(devices("g0", "a\nb"), "skipped: 'a\\nb'", 1, id="an id with a line break"),
    pytest.param([*devices("g0", "g1"), pb.Device(ID="g1", health="Unhealthy")], "listed twice", 1, id="one id, two healths"),
    pytest.param(devices("g0", nodes=(-1,)) + devices("g1", nodes=(1 << 60,)), "NUMA nodes", 2, id="NUMA nodes of no host"),
    pytest.param(devices(*(f"g{number}" for number in range(65_537))), "more than 65536", 0, id="too many devices"),
    pytest.param(devices(*("x" * 500 + str(number) for number in range(40_000))), "cannot be read", 0, id="a list too large"),
])
async def test_a_list_that_is_wrong(monkeypatch: pytest.MonkeyPatch, listed: list[Any], says: str, left: int) -> None:
    async with world() as (made, steps):
        gpu, send = made.plugins["gpu"], PlayedPlugin._list
        monkeypatch.setattr(PlayedPlugin, "_list", lambda plugin: pb.ListAndWatchResponse(
            devices=listed) if plugin is gpu else send(plugin))
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        await made.settle()
        [message] = await refusals(made)
        assert GPU in message
        assert says in message
        node = await made.must("GET", "/api/v1/nodes/n1")
        assert node["status"]["allocatable"][GPU] == str(left)
        assert (await run(made, steps, "other", nic=1))["status"]["phase"] == "Running"


@pytest.mark.parametrize(("version", "resource", "says"), [
    ("v1", "a.io/odd", "version 'v1' is not supported"), ("", "a.io/odd", "version '' is not supported"),
    ("v1beta1", "odd", "ResourceName"), ("v1beta1", "", "ResourceName"), ("v1beta1", "kubernetes.io/odd", "ResourceName"),
    ("v1beta1", "requests.a.io/odd", "ResourceName"), ("v1beta1", "a.io/" + "x" * 70, "ResourceName"),
    ("v1beta1", "a.io/o d", "ResourceName"),
])
async def test_a_registration_that_is_wrong_is_an_event_of_the_node(version: str, resource: str, says: str) -> None:
    async with world() as (made, steps):
        assert says in (await register(made.first.folder, version, resource, "odd.sock") or "")
        await made.settle()
        assert [says in message for message in await refusals(made)] == [True]
        assert (await run(made, steps, "p", gpu=1))["status"]["phase"] == "Running"


async def test_plugins_of_no_more_resources_than_a_host_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfitter.node.device_manager.device_manager.MOST_PLUGINS", 2)
    async with world() as (made, steps):
        gpu = made.plugins["gpu"].socket.name

        async def registered(resource: str) -> str:
            return str(await made.wait_for(asyncio.create_task(register(made.first.folder, "v1beta1", resource, gpu))))

        assert "2 resources" in await registered("a.io/third")
        await made.settle()
        [message] = await refusals(made)
        assert "a.io/third" in message
        assert (await run(made, steps, "p", gpu=1))["status"]["phase"] == "Running"
        await steps.run({"op": "stop_plugin", "plugin": "nic"})
        await made.settle()
        assert await registered("a.io/third") == "None"


def _folder(path: Path) -> None:
    path.mkdir()


def _outside(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("make", [_folder, _outside])
async def test_an_endpoint_that_is_no_socket_is_an_event_of_the_node(make: Callable[[Path], None]) -> None:
    async with world() as (made, _):
        make(made.first.folder / "device-plugins" / "odd.sock")
        await made.wait_for(asyncio.create_task(register(made.first.folder, "v1beta1", "a.io/odd", "odd.sock")))
        await made.settle()
        [message] = await refusals(made)
        assert "is not a socket" in message


async def until(holds: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(60):
        while not holds():
            meanwhile()
            await asyncio.sleep(0.005)


async def test_a_plugin_that_sends_lists_without_end_is_read_slowly_and_others_go_on() -> None:
    async with world() as (made, steps):
        gpu, lists = made.plugins["gpu"], UPDATES * 4
        for number in range(lists):
            gpu.update({"devices": {"g0": [], "g1": []}, "unhealthy": ["g0"] if number % 2 else []})
        await create(steps, "other", nic=1)

        def read() -> int:
            return sum(count for [count] in made.wire.received[gpu.socket])

        await until(lambda: read() >= UPDATES)
        pods = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in (await made.pods()).values()}
        assert pods == {"other": "Running"}
        assert read() < UPDATES * 2, "the others are read when their time has come"
        await until(lambda: read() > lists, lambda: made.clock.advance(0.1))
        await made.settle()
        assert (await made.must("GET", "/api/v1/nodes/n1"))["status"]["allocatable"][GPU] == "1"


def test_a_checkpoint_that_is_too_large_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (tmp_path / "kubelet_internal_checkpoint").open("wb") as file:
        file.truncate(LARGEST + 1)
    assert not CheckpointFile(tmp_path).load().entries
    assert "more than" in caplog.text


# -- answers

def spoil(monkeypatch: pytest.MonkeyPatch, plugin: PlayedPlugin, method: str, answer: Callable[[], Any]) -> None:
    """Have a plugin answer a method otherwise, from its next start on."""
    usual = getattr(plugin, method)

    async def call(request: Any, context: Any) -> Any:
        await usual(request, context)
        return answer()

    monkeypatch.setattr(plugin, method, call)


async def booked(made: World) -> list[tuple[str, str]]:
    return sorted((each.device.device, each.holder.name) for each in (await book.read(made.store, "n1")).bookings)


class Raw:
    """An answer in bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def SerializeToString(self) -> bytes:  # as messages
        return self._content


@pytest.mark.parametrize(("content", "says"), [
    pytest.param(b"\xff\xff\xff\xff", "not a message of this API", id="no message"),
    pytest.param(b"\0" * ((16 << 20) + 1), "larger than max", id="too large"),
])
async def test_an_answer_to_allocate_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, content: bytes, says: str) -> None:
    async with world() as (made, steps):
        spoil(monkeypatch, made.plugins["gpu"], "_allocate", lambda: Raw(content))
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        await made.settle()
        pod = await run(made, steps, "p", gpu=1)
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "UnexpectedAdmissionError")
        assert says in pod["status"]["message"]
        assert (await run(made, steps, "other", nic=1))["status"]["phase"] == "Running"
        assert await booked(made) == [("n0", "other")], "no device leaks"


async def test_a_list_that_is_no_message_is_an_event_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as (made, steps):
        monkeypatch.setattr(made.plugins["gpu"], "_list", lambda: Raw(b"\xff\xff\xff\xff"))
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        await made.settle()
        [message] = await refusals(made)
        assert "its list cannot be read: ListAndWatch: the answer is not a message" in message
        waits = await run(made, steps, "p", gpu=1)
        assert (waits["status"]["reason"], message in waits["status"]["message"]) == ("WaitingForDevicePlugin", True)
        assert (await run(made, steps, "other", nic=1))["status"]["phase"] == "Running"


async def settled(made: World, name: str, reached: Callable[[Object], bool]) -> Object:
    """The pod, once it is as expected: when the end of a plugin's process is noticed is not the product's to say."""
    async with asyncio.timeout(WAIT):
        while not reached(pod := await made.must("GET", pod_path(name))):
            await made.settle()
    return pod


async def test_a_plugin_that_ends_within_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet rejects the pod; here it keeps its device, and goes on when the plugin is back."""
    async with world() as (made, steps):
        gpu = made.plugins["gpu"]
        usual, ends = gpu._allocate, [True]

        async def allocate(request: Any, context: Any) -> Any:
            if ends[0]:
                asyncio.create_task(gpu.stop())  # noqa: RUF006  # the connection breaks: there is no answer
                await asyncio.Event().wait()
            return await usual(request, context)

        monkeypatch.setattr(gpu, "_allocate", allocate)
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        await made.settle()
        await run(made, steps, "p", gpu=1)
        pod = await settled(made, "p", lambda pod: list(rejection_conditions.of(pod)) == [RejectionCode.DEVICE_PLUGIN_MISSING])
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Pending", "WaitingForDevicePlugin")
        assert await booked(made) == [("g0", "p")]
        assert (await run(made, steps, "other", nic=1))["status"]["phase"] == "Running"
        ends[0] = False
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        await settled(made, "p", lambda pod: pod["status"]["phase"] == "Running")
        assert await booked(made) == [("g0", "p"), ("n0", "other")]
        assert (await run(made, steps, "q", gpu=1))["status"]["phase"] == "Running"
        await steps.run({"op": "finish", "pod": "p", "phase": "Succeeded"})
        await made.settle()
        assert await booked(made) == [("g1", "q"), ("n0", "other")]


async def test_a_pod_that_is_deleted_while_its_plugin_is_gone_leaves_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as (made, steps):
        gpu = made.plugins["gpu"]

        async def allocate(request: Any, context: Any) -> Any:
            asyncio.create_task(gpu.stop())  # noqa: RUF006
            await asyncio.Event().wait()

        monkeypatch.setattr(gpu, "_allocate", allocate)
        await steps.run({"op": "start_plugin", "plugin": "gpu"})
        await made.settle()
        await run(made, steps, "p", gpu=1)
        await settled(made, "p", lambda pod: list(rejection_conditions.of(pod)) == [RejectionCode.DEVICE_PLUGIN_MISSING])
        await made.send("DELETE", pod_path("p"))
        await made.settle()
        assert "p" not in await made.pods()
        assert await booked(made) == []
