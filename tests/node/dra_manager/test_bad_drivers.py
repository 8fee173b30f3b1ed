"""DRA drivers of others that are wrong: each is refused, or keeps its own pods waiting, with a reason and a code; other drivers
and pods go on."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.node.device_manager.plugin_watcher import PluginWatcher
from outfitter.node.device_manager.update_rate import UPDATES
from outfitter.node.dra_manager.claim_calls import LONGEST_MESSAGE, MOST_ENTRIES
from outfitter.node.dra_manager.device_health import MOST_DEVICES, HealthCache
from outfitter.node.dra_manager.dra_driver import DeviceHealth, ReportedHealth
from outfitter.node.dra_manager.driver_client import LARGEST, DriverClient
from outfitter.node.dra_manager.driver_registry import DriverRegistry
from tests.node.dra_manager.driver_server import PREPARE, UNPREPARE, DriverServer
from tests.node.dra_manager.test_dra_manager import ACC, NET, K, Node, claim, pod, until
from tests.node.dra_manager.test_pods_with_drivers import DriverScene, scene_with

GARBAGE = b"\xff\xff\xff\xff"
OTHER = claim("x", f"{ACC}/x0")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.stop()


# -- answers

def with_devices(*devices: dict[str, Any]) -> Callable[[str, Any], Any]:
    """Answers every claim with these devices of pool n1."""

    def spoil(method: str, answer: Any) -> Any:
        for found in answer.claims.values() if method == PREPARE else ():
            for device in devices:
                found.devices.add(**{"pool_name": "n1", "device_name": "d0", **device})
        return answer

    return spoil


def bytes_of(wrong: str, content: bytes) -> Callable[[str, Any], Any]:
    return lambda method, answer: content if method == wrong else answer


def failing(message: str) -> Callable[[str, Any], Any]:
    def spoil(method: str, answer: Any) -> Any:
        for found in answer.claims.values():
            found.error = message
        return answer

    return spoil


ANSWERS: dict[str, tuple[Callable[[str, Any], Any], str]] = {
    "a device that is not allocated": (with_devices({"device_name": "d7"}), "device n1/d7, which is not allocated to it"),
    "a device of another pool": (with_devices({"pool_name": "n2"}), "device n2/d0, which is not allocated to it"),
    "one of many devices is not allocated": (with_devices({}, {}, {"device_name": ""}), "device n1/, which is not allocated"),
    "a CDI id without a kind": (with_devices({"cdi_device_ids": ["d0"]}), "the CDI id 'd0' of d0"),
    "a CDI id with a line break": (with_devices({"cdi_device_ids": ["a.io/b=c", "a.io/b=c\nd"]}), "'a.io/b=c\\nd'"),
    "an empty CDI id": (with_devices({"cdi_device_ids": [""]}), "the CDI id '' of d0"),
    "a long CDI id": (with_devices({"cdi_device_ids": ["a.io/b=" + "c" * 600]}), "a.io/b=ccc"),
    "many CDI ids": (with_devices({"cdi_device_ids": ["a.io/b=c"] * (MOST_ENTRIES + 1)}), "more than 1024"),
    "many devices": (with_devices(*[{}] * (MOST_ENTRIES + 1)), "more than 1024"),
    "bytes that are no message": (bytes_of(PREPARE, GARBAGE), "not a message of this API"),
    "an answer that is too large": (bytes_of(PREPARE, b"\0" * (LARGEST + 1)), "larger than max"),
    "an endless error": (failing("no " * 100_000), "no no no"),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_cannot_be_used_keeps_its_own_pod_waiting(node: Node, name: str) -> None:
    spoils, fragment = ANSWERS[name]
    driver, other = await node.driver(spoils=spoils), await node.driver(ACC)
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert (why.code, why["driver"]) == (RejectionCode.DRIVER_CALL_FAILED, NET)
    assert fragment in why["message"]
    assert PREPARE in why["message"]
    assert len(why["message"]) <= LONGEST_MESSAGE + len("...")
    assert node.recorded() == {"k": ({"uid-p"}, {NET: []})}, "nothing of the answer is used"
    assert await node.prepare(pod("q", "x"), OTHER) is None, "others are unaffected"
    assert other.claims(PREPARE) == [("x",)]
    driver.spoils = None
    node.clock.advance(2.0)
    assert await node.prepare(pod("p", "k"), K) is None
    assert await node.unprepare(pod("p")) is None
    assert driver.claims(UNPREPARE) == [("k",)]


async def test_an_answer_to_unprepare_that_cannot_be_read_keeps_the_claim(node: Node) -> None:
    driver = await node.driver(spoils=bytes_of(UNPREPARE, GARBAGE))
    assert await node.prepare(pod("p", "k"), K) is None
    why = await node.unprepare(pod("p"))
    assert why is not None
    assert (why.code, "not a message" in why["message"]) == (RejectionCode.DRIVER_CALL_FAILED, True)
    assert node.recorded()["k"][0] == {"uid-p"}
    driver.spoils = None
    node.clock.advance(2.0)
    assert await node.unprepare(pod("p")) is None


async def test_devices_of_a_claim_in_use_are_checked_when_its_driver_is_called_again(node: Node) -> None:
    driver = await node.driver(devices={"k": ["d0"]})
    (node.folder / "dra_manager_state").unlink(missing_ok=True)
    driver.devices = {"k": ["d7"]}
    assert await node.prepare({**pod("p", "k"), "status": {"phase": "Running"}}, K) is None
    await until(lambda: bool(driver.calls))
    await until(lambda: not node.manager._called)
    assert [device.device for device in node.manager.claims_of("uid-p")["k"].drivers[NET]] == ["d0"]


async def test_a_call_without_an_answer_ends_with_a_reason(node: Node) -> None:
    node.registry._connect = functools.partial(DriverClient, seconds=0.2)
    driver = await node.driver()
    driver.hangs.clear()
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert (why.code, why["message"]) == (RejectionCode.DRIVER_CALL_FAILED, f"{PREPARE}: no answer within 0.2 s")
    driver.hangs.set()
    node.clock.advance(2.0)
    node.registry._connect = DriverClient
    assert await node.unprepare(pod("p")) is None


async def test_a_driver_that_ends_during_a_call_is_called_again(node: Node) -> None:
    driver = await node.driver()
    driver.hangs.clear()
    node.manager.prepare(pod("p", "k"), [K])
    await until(lambda: bool(driver.calls))
    await driver.stop()
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert why.code is RejectionCode.DRIVER_CALL_FAILED
    driver.hangs.set()
    await driver.start()
    while why is not None:  # until the connection is made again
        node.clock.advance(31.0)
        why = await node.prepare(pod("p", "k"), K)
    assert node.recorded() == {"k": ({"uid-p"}, {NET: []})}


async def test_a_socket_that_nothing_listens_on_is_a_reason_of_its_pods_alone(node: Node) -> None:
    stale = node.folder / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    await node.driver(ACC)
    await node.registry.add(DriverServer(NET, stale).info)
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert (why.code, why["driver"]) == (RejectionCode.DRIVER_CALL_FAILED, NET)
    assert not node.registry.usable(NET)
    assert await node.prepare(pod("q", "x"), OTHER) is None


# -- health

def reports(*devices: str, pool: str = "n1", health: DeviceHealth = DeviceHealth.UNHEALTHY) -> list[ReportedHealth]:
    return [ReportedHealth(pool, device, health, 3600.0) for device in devices]


@pytest.mark.parametrize("wrong", [
    pytest.param({"pool_name": "n1", "device_name": "d|0"}, id="a device's name"),
    pytest.param({"pool_name": "n|1", "device_name": "d0"}, id="a pool's name"),
    pytest.param({"pool_name": "", "device_name": ""}, id="no name"),
])
async def test_health_of_what_is_no_device_is_a_problem_of_the_driver(node: Node, wrong: dict[str, str]) -> None:
    problems: dict[str, Rejection | None] = {}
    node.registry._problem = problems.__setitem__

    def spoil(method: str, answer: Any) -> Any:
        if method == "NodeWatchResources":
            answer.devices.add(device=wrong, health=2, health_check_timeout_seconds=3600)
        return answer

    driver = await node.driver(spoils=spoil)
    await until(lambda: driver.streams() != [])
    driver.report(d1=("Unhealthy", 3600))
    await until(lambda: node.registry.health.of(DeviceId(NET, "n1", "d1")).health is DeviceHealth.UNHEALTHY)
    assert list(node.registry.health.unhealthy()) == [DeviceId(NET, "n1", "d1")]
    why = problems[f"health of {NET}"]
    assert why is not None
    assert (why.code, "no device" in why["message"]) == (RejectionCode.DRIVER_REFUSED, True)
    driver.spoils = None
    driver.report(d1=("Healthy", 3600))
    await until(lambda: problems[f"health of {NET}"] is None)


def test_health_of_many_devices_is_kept_of_some() -> None:
    cache = HealthCache(lambda: 0.0)
    for first in range(0, MOST_DEVICES * 2, MOST_DEVICES):
        cache.report(NET, reports(*(f"d{number}" for number in range(first, first + MOST_DEVICES))))
    cache.report(ACC, reports("x0"))
    assert len(cache.unhealthy()) == MOST_DEVICES + 1, "another driver has its own limit"
    cache.forget_driver(NET)
    assert cache.report(NET, reports("d0")) == [DeviceId(NET, "n1", "d0")]


async def test_endless_reports_are_read_slowly_and_others_go_on(node: Node) -> None:
    driver, messages = await node.driver(), UPDATES * 4
    await until(lambda: driver.streams() != [])
    sent = [0]

    def count(method: str, answer: Any) -> Any:
        sent[0] += 1
        for _ in range(2000):  # so large that few are on their way at once
            answer.devices.add(device={"pool_name": "n1", "device_name": "d9"}, health=1, message="x" * 400)
        return answer

    driver.spoils = count
    for number in range(messages):
        driver.report(d0=("Healthy" if number % 2 else "Unhealthy", 3600))
    await until(lambda: sent[0] >= UPDATES // 2)
    await node.driver(ACC)
    assert await node.prepare(pod("q", "x"), OTHER) is None
    assert sent[0] < messages, "the others are read when their time has come"

    def advanced() -> bool:
        node.clock.advance(1.0)
        return sent[0] == messages

    await until(advanced)


@pytest.mark.parametrize("content", [GARBAGE, b"\0" * (LARGEST + 1)], ids=["no message", "too large"])
async def test_a_report_that_cannot_be_read_ends_the_stream_for_some_time(
    node: Node, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await node.driver(spoils=bytes_of("NodeWatchResources", content))
    await until(lambda: "does not report health" in caplog.text)
    driver.spoils = None
    driver.report(d0=("Healthy", 3600))

    def opened_again() -> bool:
        node.clock.advance(6.0)
        return node.registry.health.of(DeviceId(NET, "n1", "d0")).health is DeviceHealth.HEALTHY

    await until(opened_again)
    assert await node.prepare(pod("p", "k"), K) is None


# -- registration

@pytest.fixture
async def watched(node: Node) -> AsyncIterator[Node]:
    """With the watcher of plugins_registry."""
    watcher = PluginWatcher(node.folder, {"DRAPlugin": node.registry}, clock=node.clock)
    await watcher.start()
    yield node
    await watcher.stop()


async def registering(node: Node, name: str, **keys: Any) -> DriverServer:
    server = DriverServer(name, node.folder / f"{name}.sock", registry=node.folder / "plugins_registry", **keys)
    node.servers.append(await server.start())
    return server


async def advanced_until(node: Node, true: Callable[[], bool]) -> None:
    def look() -> bool:
        node.clock.advance(0.5)
        return true()

    await until(look)


async def test_a_driver_that_does_not_accept_its_status_is_registered_and_deregistered(watched: Node) -> None:
    driver = await registering(watched, NET, deaf=True)
    await advanced_until(watched, lambda: driver.notified != [])
    for _ in range(20):
        watched.clock.advance(10.0)
        await asyncio.sleep(0.005)
    assert driver.notified == [(True, "")], "it is not registered again"
    assert await watched.prepare(pod("p", "k"), K) is None
    await driver.stop()
    await advanced_until(watched, lambda: watched.registry.get(NET) is None)


async def test_a_driver_whose_answer_to_get_info_cannot_be_read_is_asked_again(watched: Node) -> None:
    wrong = await registering(watched, NET, spoils=bytes_of("GetInfo", GARBAGE))
    good = await registering(watched, ACC)
    await advanced_until(watched, lambda: good.notified == [(True, "")])
    assert wrong.notified == []
    wrong.spoils = None
    await advanced_until(watched, lambda: watched.registry.get(NET) is not None)


async def test_what_is_no_socket_in_the_registry_is_skipped(watched: Node) -> None:
    registry = watched.folder / "plugins_registry"
    (registry / "file.sock").write_text("")
    (registry / "link.sock").symlink_to("/dev/null")
    os.mkfifo(registry / "fifo.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(registry / "stale.sock"))
    good = await registering(watched, NET)
    await advanced_until(watched, lambda: good.notified == [(True, "")])
    assert watched.registry.get(NET) is not None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a version": ({"versions": ("v1alpha4.Node",)}, "v1alpha4.Node"),
    "many versions": ({"versions": tuple(f"v{number}" for number in range(10_000))}, "supported are v1.DRAPlugin"),
    "a name": ({"name": "Net_D"}, "RFC 1123"),
    "a long name": ({"name": "d" * 200 + ".io"}, "more than 63 bytes"),
    "our name": ({"name": "own"}, "own driver"),
    "an endpoint that does not exist": ({"endpoint": "/nonexistent/dra.sock"}, "does not exist"),
    "an endpoint that is a file": ({"endpoint": __file__}, "is not a socket"),
    "an endpoint that is a folder": ({"endpoint": "/"}, "is not a socket"),
    "a relative endpoint": ({"endpoint": "dra.sock"}, "does not exist"),
    "a long endpoint": ({"endpoint": "/" + "d" * 5000}, "does not exist"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_driver_that_is_not_registered_is_an_event_of_the_node(tmp_path: Path, name: str) -> None:
    keys, fragment = WRONG[name]
    async with scene_with(tmp_path) as scene:
        await scene.publish("d0")
        await scene.driver_process()
        await scene.pod_with_claim("p")
        driver = {"own": scene.host.driver}.get(keys.get("name", ""), keys.get("name", "odd.d.io"))
        bad = DriverServer(driver, scene.folder / "o.sock", registry=scene.folder / "plugins_registry",
                           **{key: value for key, value in keys.items() if key != "name"})
        scene.drivers.append(await bad.start())
        [message] = await scene.reach(lambda: refusals(scene), "an event of the Node")
        assert f"DRA driver {driver[:128]}: " in message
        assert fragment in message
        assert len(message) < 1024

        async def notified() -> bool:
            return bool(bad.notified)

        await scene.reach(notified, "the driver is told")
        assert bad.notified[0] == (False, message)
        await scene.runs("p")


async def refusals(scene: DriverScene) -> list[str]:
    events: list[Object] = (await scene.store.list(kinds.EVENT)).items
    return [event["message"] for event in events
            if (event["reason"], event["involvedObject"]["kind"]) == (str(RejectionCode.DRIVER_REFUSED), "Node")]


async def test_a_driver_is_refused_until_it_is_right(watched: Node) -> None:
    driver = await registering(watched, NET, versions=("v1alpha4.Node",))
    await advanced_until(watched, lambda: driver.notified != [])
    assert driver.notified[0][0] is False
    driver.versions = ("v1.DRAPlugin",)
    await advanced_until(watched, lambda: (True, "") in driver.notified)
    assert isinstance(watched.registry, DriverRegistry)
    assert await watched.prepare(pod("p", "k"), K) is None
