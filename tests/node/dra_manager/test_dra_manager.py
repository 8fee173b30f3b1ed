"""The DRA manager with drivers that answer over real unix sockets: what is called when, and what is recorded."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import NotReady
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.device_manager import dra_checkpoint
from outfitter.node.dra_manager.dra_driver import DeviceHealth
from outfitter.node.dra_manager.dra_manager import DraManager, InProgress
from outfitter.node.dra_manager.driver_client import DriverClient
from outfitter.node.dra_manager.driver_registry import DriverRegistry
from outfitter.store.clock import ManualClock
from tests.node.dra_manager.driver_server import PREPARE, UNPREPARE, DriverServer

OWN, NET, ACC = "pci.outfitter.dev", "net.d.io", "acc.d.io"


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  # it comes over sockets
        await asyncio.sleep(0.005)


class Node:
    """A DRA manager that can be started again on its folder, as a new process of the agent is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self.servers: list[DriverServer] = []
        self.woken: list[str] = []
        self.begin()

    def begin(self) -> None:
        self.registry = DriverRegistry("n1", OWN, DriverClient, clock=self.clock)
        self.manager = DraManager("n1", OWN, FolderFiles(self.folder, durable=False), self.registry, clock=self.clock)
        self.manager.load()
        self.manager.wake = self.woken.append

    async def restart(self) -> None:
        await self.manager.stop()
        self.begin()
        for server in self.servers:
            await self.registry.add(server.info)

    async def driver(self, name: str = NET, socket: str = "", **keys: Any) -> DriverServer:
        server = DriverServer(name, self.folder / (socket or f"{name}.sock"), **keys)
        self.servers.append(await server.start())
        await self.registry.add(server.info)
        return server

    async def stop(self) -> None:
        await self.manager.stop()
        for server in self.servers:
            server.hangs.set()
            await server.stop()

    async def done(self, act: Callable[[], Any]) -> Rejection | None:
        """Until a call has ended."""
        while isinstance(result := act(), InProgress):  # noqa: ASYNC110  # it comes over sockets
            await asyncio.sleep(0.005)
        return None if result is None else cast(Rejection, result)

    async def prepare(self, pod: Object, *claims: Object) -> Rejection | None:
        return await self.done(lambda: self.manager.prepare(pod, claims))

    async def unprepare(self, pod: Object) -> Rejection | None:
        return await self.done(lambda: self.manager.unprepare(pod["metadata"]["uid"]))

    def recorded(self) -> dict[str, tuple[set[str], dict[str, list[str]]]]:
        """Claim -> the pods and the CDI ids by driver, as the file has them."""
        found = dra_checkpoint.decode((self.folder / dra_checkpoint.FILE).read_text())
        assert isinstance(found, tuple)
        return {claim.name: (set(claim.pod_uids), {driver: [cdi for device in devices for cdi in device.cdi_ids]
                                                   for driver, devices in claim.drivers.items()}) for claim in found}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.stop()


def pod(name: str, *claims: str, phase: str = "Pending", uses: Sequence[str] = ()) -> Object:
    used = [{"name": each.partition("/")[0], "request": each.partition("/")[2]} for each in uses or claims]
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "status": {"phase": phase},
            "spec": {"resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims],
                     "containers": [{"name": "c", "resources": {"claims": used}}]}}


def claim(name: str, *devices: str, pods: Sequence[str] = ("p", "q"), uid: str = "") -> Object:
    """Devices are written driver/device."""
    results = [{"request": "r", "driver": device.split("/")[0], "pool": "n1", "device": device.split("/")[1]}
               for device in devices]
    return {"metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}, "status": {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in pods]}}


def running(pod: Object) -> Object:
    return {**pod, "status": {"phase": "Running"}}


K = claim("k", f"{NET}/d0")


async def test_a_claim_of_two_pods_is_prepared_once_and_unprepared_with_the_last(node: Node) -> None:
    driver = await node.driver(devices={"k": ["d0"]})
    first, second = pod("p", "k"), pod("q", "k")
    assert isinstance(node.manager.prepare(first, [K]), InProgress)
    assert isinstance(node.manager.prepare(second, [K]), InProgress)
    assert await node.prepare(first, K) is None
    assert await node.prepare(second, K) is None
    assert node.recorded() == {"k": ({"uid-p", "uid-q"}, {NET: [f"{NET}/dev=d0"]})}
    assert "default/q" in node.woken
    assert await node.unprepare(first) is None
    assert node.recorded()["k"][0] == {"uid-q"}
    assert await node.unprepare(second) is None
    assert driver.calls == [("v1.DRAPlugin", PREPARE, ("k",)), ("v1.DRAPlugin", UNPREPARE, ("k",))]
    assert node.recorded() == {}


async def test_each_driver_gets_all_its_claims_in_one_call(node: Node) -> None:
    net, acc = await node.driver(NET), await node.driver(ACC)
    claims = [claim("k1", f"{NET}/d0", f"{ACC}/x0"), claim("k2", f"{NET}/d1"), claim("k3", f"{OWN}/gpu-0")]
    assert await node.prepare(pod("p", "k1", "k2", "k3"), *claims) is None
    assert net.claims(PREPARE) == [("k1", "k2")]
    assert acc.claims(PREPARE) == [("k1",)]
    assert node.recorded()["k3"][1] == {OWN: [f"{OWN}/device=uid-k3-gpu-0"]}
    assert await node.unprepare(pod("p")) is None
    assert net.claims(UNPREPARE) == [("k1", "k2")]
    assert acc.claims(UNPREPARE) == [("k1",)]


async def test_the_record_is_written_before_a_driver_is_called(node: Node) -> None:
    driver = await node.driver()
    driver.hangs.clear()
    node.manager.prepare(pod("p", "k"), [K])
    await until(lambda: bool(driver.calls))
    assert node.recorded() == {"k": ({"uid-p"}, {NET: []})}


FAILURES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "the call fails": ({"errors": {(PREPARE, ""): "no firmware"}}, ["NodePrepareResources", "no firmware"]),
    "one claim fails": ({"errors": {(PREPARE, "k2"): "no link"}}, ["ResourceClaim k2", "no link"]),
    "one claim is missing": ({"skips": {(PREPARE, "k2")}}, ["skipped 1", "k2"]),
    "another claim is answered": ({"extra": "uid-other"}, ["uid-other"]),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_an_answer_that_is_not_complete_is_a_failure_and_tried_again(node: Node, name: str) -> None:
    keys, fragments = FAILURES[name]
    driver = await node.driver(**keys)
    claims = [claim("k1", f"{NET}/d0"), claim("k2", f"{NET}/d1")]
    why = await node.prepare(pod("p", "k1", "k2"), *claims)
    assert why is not None
    assert why.code is RejectionCode.DRIVER_CALL_FAILED
    assert why["driver"] == NET
    assert all(fragment in why["message"] for fragment in fragments)
    driver.errors, driver.skips, driver.extra = {}, set(), ""
    assert await node.prepare(pod("p", "k1", "k2"), *claims) == why, "not at once"
    assert len(driver.calls) == 1
    node.clock.advance(2.0)
    assert await node.prepare(pod("p", "k1", "k2"), *claims) is None
    assert driver.claims(PREPARE) == [("k1", "k2")] * 2


async def test_a_pod_waits_until_its_driver_has_registered(node: Node) -> None:
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert (why.code, why["driver"]) == (RejectionCode.DRIVER_NOT_REGISTERED, NET)
    assert not (node.folder / dra_checkpoint.FILE).exists(), "nothing is recorded for it"
    assert await node.unprepare(pod("p", "k")) is None
    await node.prepare(pod("p", "k"), K)
    await node.driver()
    assert node.woken.count("default/p") >= 1
    assert await node.prepare(pod("p", "k"), K) is None


async def test_a_claim_that_is_reserved_for_others_is_refused(node: Node) -> None:
    driver = await node.driver()
    why = await node.prepare(pod("other", "k"), K)
    assert why is not None
    assert why.code is RejectionCode.CLAIM_NOT_RESERVED
    assert driver.calls == []


async def test_a_driver_that_hangs_keeps_no_other_from_being_called(node: Node) -> None:
    (await node.driver(NET)).hangs.clear()
    await node.driver(ACC)
    assert isinstance(node.manager.prepare(pod("p", "k"), [K]), InProgress)
    assert await node.prepare(pod("q", "x"), claim("x", f"{ACC}/x0")) is None
    assert isinstance(node.manager.prepare(pod("p", "k"), [K]), InProgress)
    assert isinstance(node.manager.unprepare("uid-p"), InProgress), "not while it is being prepared"


async def test_a_failed_unprepare_keeps_the_claim_recorded(node: Node) -> None:
    driver = await node.driver(errors={(UNPREPARE, ""): "still busy"})
    await node.prepare(pod("p", "k"), K)
    why = await node.unprepare(pod("p"))
    assert why is not None
    assert "still busy" in why["message"]
    assert node.recorded()["k"][0] == {"uid-p"}
    driver.errors = {}
    node.clock.advance(2.0)
    assert await node.unprepare(pod("p")) is None
    assert node.recorded() == {}


# -- restarts

async def test_after_a_restart_pods_that_run_are_not_prepared_again_and_others_are(node: Node) -> None:
    driver = await node.driver(devices={"k": ["d0"]})
    await node.prepare(pod("p", "k"), K)
    await node.restart()
    assert await node.prepare(running(pod("p", "k")), K) is None
    assert driver.claims(PREPARE) == [("k",)]
    assert node.manager.claims_of("uid-p")["k"].drivers[NET][0].cdi_ids == (f"{NET}/dev=d0",)
    await node.restart()
    assert await node.prepare(pod("p", "k"), K) is None
    assert driver.claims(PREPARE) == [("k",)] * 2
    assert await node.unprepare(pod("p")) is None
    assert driver.claims(UNPREPARE) == [("k",)]


@pytest.mark.parametrize("damage", ["lost", "torn", "changed", "no text", "a named pipe"])
async def test_a_damaged_record_is_rebuilt_from_what_runs(node: Node, damage: str) -> None:
    driver = await node.driver(devices={"k": ["d0"]})
    await node.prepare(pod("p", "k"), K)
    file = node.folder / dra_checkpoint.FILE
    text = file.read_text()
    contents = {"torn": text[:len(text) // 2].encode(), "changed": text.replace("d0", "d1", 1).encode(),
                "no text": b"\xff\xfe{"}
    file.unlink()
    if damage in contents:
        file.write_bytes(contents[damage])
    elif damage == "a named pipe":
        os.mkfifo(file)
    await node.restart()
    assert node.manager.claims_of("uid-p") == {}
    assert await node.prepare(running(pod("p", "k")), K) is None
    assert node.recorded()["k"][0] == {"uid-p"}
    await until(lambda: node.recorded()["k"][1][NET] == [f"{NET}/dev=d0"])  # its driver was called again
    assert await node.unprepare(pod("p")) is None
    assert driver.claims(UNPREPARE) == [("k",)]


async def test_claims_of_pods_that_are_gone_are_unprepared(node: Node) -> None:
    driver = await node.driver()
    await node.prepare(pod("p", "k"), K)
    await node.prepare(pod("q", "k"), K)
    await node.restart()
    await until(lambda: node.manager.sweep({"uid-q"}) is None)
    assert node.recorded()["k"][0] == {"uid-q"}
    assert driver.claims(UNPREPARE) == []
    await until(lambda: node.manager.sweep(()) is None)
    assert driver.claims(UNPREPARE) == [("k",)]


async def test_a_folder_in_the_place_of_the_record_is_a_reason(node: Node) -> None:
    driver = await node.driver()
    (node.folder / dra_checkpoint.FILE).mkdir()
    await node.restart()
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert (why.code, dra_checkpoint.FILE in why["message"]) == (RejectionCode.PREPARE_FAILED, True)
    assert driver.claims(PREPARE) == []


async def test_a_folder_that_cannot_be_written_is_a_reason(node: Node) -> None:
    await node.driver()
    (node.folder / f".{dra_checkpoint.FILE}.new").mkdir()
    why = await node.prepare(pod("p", "k"), K)
    assert why is not None
    assert why.code is RejectionCode.PREPARE_FAILED
    assert dra_checkpoint.FILE in why["message"]


# -- registration

async def test_the_first_known_service_of_the_driver_is_used(node: Node) -> None:
    driver = await node.driver(versions=("v1alpha4.Node", "v1beta1.DRAPlugin", "v1.DRAPlugin"))
    assert await node.prepare(pod("p", "k"), K) is None
    assert [service for service, _, _ in driver.calls] == ["v1beta1.DRAPlugin"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no known service": ({"versions": ("v1alpha4.Node",)}, "v1alpha4.Node"),
    "no service": ({"versions": ()}, "none"),
    "our own name": ({"name": OWN}, "own driver"),
    "no driver name": ({"name": "Net_D"}, "Net_D"),
    "no socket": ({"endpoint": Path("/nonexistent/dra.sock")}, "does not exist"),
    "a file": ({"endpoint": Path(__file__)}, "is not a socket"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_drivers_that_are_not_registered(node: Node, name: str) -> None:
    keys, fragment = REFUSED[name]
    good = await node.driver()
    with pytest.raises(NotReady) as refused:
        await node.registry.add(dataclasses.replace(good.info, **{"name": "bad.d.io", **keys}))
    assert fragment in refused.value.message
    assert await node.prepare(pod("p", "k"), K) is None, "others are unaffected"


async def test_the_newest_socket_of_a_driver_is_called(node: Node) -> None:
    old, new = await node.driver(), await node.driver(socket="new.sock")
    with pytest.raises(NotReady):
        await node.registry.add(dataclasses.replace(new.info))
    await node.prepare(pod("p", "k"), K)
    assert (len(old.calls), len(new.calls)) == (0, 1)
    info = next(each.info for each in node.registry._registered[NET] if each.info.endpoint == new.socket)
    await node.registry.remove(info)
    await node.unprepare(pod("p"))
    assert (len(old.calls), len(new.calls)) == (1, 1)


# -- health

def health(node: Node, device: str) -> str:
    return node.registry.health.of(DeviceId(NET, "n1", device)).health


@pytest.mark.parametrize("service", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_health_reaches_the_status_of_containers(node: Node, service: str) -> None:
    driver = await node.driver(devices={"k": ["d0", "d1"]}, versions=("v1.DRAPlugin", service))
    await until(lambda: driver.streams() == [service])
    holder = pod("p", "k", uses=["k", "k/r"])
    await node.prepare(holder, claim("k", f"{NET}/d0", f"{NET}/d1"))
    node.woken.clear()
    driver.report(d0=("Healthy", 3600), d1=("Unhealthy", 3600))
    await until(lambda: node.woken == ["default/p"])
    resources = [{"resourceID": f"{NET}/dev=d0", "health": "Healthy", "message": "d0 is Healthy"},
                 {"resourceID": f"{NET}/dev=d1", "health": "Unhealthy", "message": "d1 is Unhealthy"}]
    assert node.manager.statuses(holder) == {"c": [{"name": "claim:k", "resources": resources},
                                                   {"name": "claim:k/r", "resources": resources}]}
    assert node.manager.unhealthy(holder) == {DeviceId(NET, "n1", "d1"): "d1 is Unhealthy"}


async def test_health_is_unknown_after_the_devices_timeout_and_when_the_stream_ends(node: Node) -> None:
    driver = await node.driver()
    await until(lambda: driver.streams() != [])
    driver.report(d0=("Healthy", 0), d1=("Unhealthy", 3600))
    await until(lambda: health(node, "d0") == DeviceHealth.HEALTHY)
    node.clock.advance(29.0)
    await asyncio.sleep(0)
    assert health(node, "d0") == DeviceHealth.HEALTHY
    node.clock.advance(2.0)
    await until(lambda: health(node, "d0") == DeviceHealth.UNKNOWN)
    assert health(node, "d1") == DeviceHealth.UNHEALTHY
    driver.end_streams()
    await until(lambda: health(node, "d1") == DeviceHealth.UNKNOWN)
    node.clock.advance(6.0)  # the stream is opened again, and sends what is
    await until(lambda: health(node, "d1") == DeviceHealth.UNHEALTHY)


async def test_a_driver_that_is_gone_is_not_usable(node: Node) -> None:
    driver = await node.driver()
    await until(lambda: node.registry.usable(NET))
    await driver.stop()
    await until(lambda: not node.registry.usable(NET))
