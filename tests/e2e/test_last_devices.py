"""Many clients in several processes want the last devices of one host at the same moment, over HTTPS: by booking on the page
themselves, and through the API with pods and claims. As many get one as there are; the others get the holder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.device import hardware_of
from outfitter.api.kinds import Object
from outfitter.ledger import book
from outfitter.store.kube import Kube
from tests import kubernetes, worker_processes
from tests.e2e.process import EXAMPLE, POLL, ForkedUp
from tests.worker_processes import PATIENCE, Crew

WORKER = Path(__file__).with_name("claimer.py")
PROCESSES, CLIENTS, DEVICES = 4, 8, 8  # clients of each process
EVERYBODY = PROCESSES * CLIENTS
ROUNDS, MANY = 2, 100
HOST, DRIVER, CLASS, TEMPLATE = "node-0", "pci.outfitter.dev", "virtual-function", "one-vf"


async def order(those: Crew, *orders: Object) -> list[Any]:
    """One order for each process, or one for all; what all their clients answer."""
    those.tell(*map(json.dumps, orders))
    return [answer for line in await those.hear() for answer in json.loads(line)]


@contextlib.asynccontextmanager
async def claimers(config: Path) -> AsyncIterator[Crew]:
    arguments = [[str(config), f"p{number}", str(CLIENTS)] for number in range(PROCESSES)]
    async with worker_processes.crew(WORKER, arguments) as those:
        assert [json.loads(line) for line in await those.hear()] == ["ready"] * PROCESSES
        yield those


# -- on the page


async def published(store: Kube) -> dict[str, list[str]]:
    """Devices and their hardware."""
    return {device["name"]: sorted(hardware_of(device, DRIVER)) for piece in (await store.list(kinds.RESOURCE_SLICE)).items
            for device in piece["spec"].get("devices") or ()}


async def rounds(config: Path, host: str, devices: Mapping[str, Sequence[str]], number: int) -> None:
    async with worker_processes.reader(config) as store, claimers(config) as those:
        for each in range(number):
            ends = await order(those, {"book": [host, DRIVER, devices]})
            check_ends(ends, devices, f"round {each}")
            bookings = (await book.read(store, host)).bookings
            held = {one.device.device: one.holder.name for one in bookings}
            assert held == {end["won"]: end["client"] for end in ends if "won" in end}, f"round {each}"
            assert len(bookings) == DEVICES
            for one in bookings:
                await store.delete(kinds.RESOURCE_CLAIM, one.holder.name, one.holder.namespace)
                await book.release(store, host, one.holder.uid)
        assert not (await book.read(store, host)).bookings


def check_ends(ends: Sequence[Object], devices: Iterable[str], when: str) -> None:
    assert len(ends) == EVERYBODY
    winners = {end["won"]: f"ResourceClaim {end['client']} in default" for end in ends if "won" in end}
    assert len([end for end in ends if "won" in end]) == DEVICES, f"{when}: {ends}"
    assert sorted(winners) == sorted(devices), when
    assert any(end["tries"] > 1 + len(end.get("lost", ())) for end in ends), f"{when}: nobody was ever in anybody's way"
    for end in ends:
        if "lost" in end:
            assert end["lost"] == winners, f"{when}: {end['client']} is told who has each device"


async def test_on_the_page(tmp_path: Path) -> None:
    await embedded(tmp_path, ROUNDS)


@pytest.mark.long
async def test_on_the_page_many_times(tmp_path: Path, soak_rounds: int) -> None:
    await embedded(tmp_path, MANY * soak_rounds)


async def embedded(tmp_path: Path, number: int) -> None:
    with ForkedUp(tmp_path / "data", simulate=f"1x{DEVICES}") as up:
        async with worker_processes.reader(up.kubeconfig) as store:
            devices = await published(store)
        assert len(devices) == DEVICES
        await rounds(up.kubeconfig, HOST, devices, number)
        assert up.stop() == 0


@pytest.mark.cluster
async def test_on_the_page_in_a_cluster(cluster: kubernetes.Cluster) -> None:
    await rounds(cluster.kubeconfig, *_elsewhere(), ROUNDS)


@pytest.mark.cluster
@pytest.mark.long
async def test_on_the_page_in_a_cluster_many_times(cluster: kubernetes.Cluster, soak_rounds: int) -> None:
    await rounds(cluster.kubeconfig, *_elsewhere(), MANY * soak_rounds)


def _elsewhere() -> tuple[str, dict[str, list[str]]]:
    """A host that is not served: there is its page alone, made in the first round."""
    return f"last-{uuid.uuid4().hex[:8]}", {f"vf{number}": [] for number in range(DEVICES)}


# -- through the API


async def pods(store: Kube) -> dict[str, Object]:
    return {pod["metadata"]["name"]: pod for pod in (await store.list(kinds.POD, "default")).items}


async def wave(store: Kube, left: set[str]) -> set[str]:
    """Until as many run as there are devices and all others say why they wait; who runs. At no moment are there more."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while True:
        seen = await pods(store)
        running = {name for name, pod in seen.items() if (pod.get("status") or {}).get("phase") == "Running"}
        assert len(running) <= DEVICES, running
        waiting = {name: (conditions.find(seen[name], "PodScheduled") or {}) for name in seen.keys() - running}
        if (seen.keys() == left and len(running) == min(DEVICES, len(left))
                and all(said.get("status") == "False" and said.get("message") for said in waiting.values())):
            for name, said in waiting.items():
                assert said["reason"] == "Unschedulable", (name, said)
                assert "held by" in said["message"] or "free" in said["message"], (name, said)
            return running
        assert loop.time() < end, {name: pod.get("status") for name, pod in seen.items()}
        await asyncio.sleep(POLL)


async def check_books(store: Kube, running: set[str]) -> None:
    """Each of those who run has a device of its own, and page and claims agree."""
    claims = (await store.list(kinds.RESOURCE_CLAIM, "default")).items
    given = {claim["metadata"]["uid"]: claim for claim in claims if (claim.get("status") or {}).get("allocation")}
    users = [user["name"] for claim in given.values() for user in claim["status"]["reservedFor"]]
    assert sorted(users) == sorted(running)
    bookings = (await book.read(store, HOST)).bookings
    assert len({one.device for one in bookings}) == len(bookings) == len(running)
    assert {(one.holder.uid, one.device.device, one.state) for one in bookings} == {
        (uid, result["device"], "prepared") for uid, claim in given.items()
        for result in claim["status"]["allocation"]["devices"]["results"]}


async def nothing_is_given(store: Kube) -> None:
    """Until all devices are back: a claim releases its device after the last of its pods is gone."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while True:
        claims = (await store.list(kinds.RESOURCE_CLAIM, "default")).items
        given = [claim for claim in claims if {"allocation", "reservedFor"} & (claim.get("status") or {}).keys()]
        bookings = (await book.read(store, HOST)).bookings
        if not given and not bookings:
            return
        assert loop.time() < end, (given, bookings)
        await asyncio.sleep(POLL)


def parts(names: Iterable[str]) -> list[Object]:
    """An order to delete for each process."""
    some = sorted(names)
    return [{"delete": some[number::PROCESSES]} for number in range(PROCESSES)]


async def test_race_through_the_api(tmp_path: Path) -> None:
    with ForkedUp(tmp_path / "data", simulate=f"1x{DEVICES}") as up:
        await asyncio.to_thread(up.ok, "apply", "-f", str(EXAMPLE / "1-class.yaml"))
        async with worker_processes.reader(up.kubeconfig) as store, claimers(up.kubeconfig) as those:
            made = await order(those, *({"create": [TEMPLATE if number % 2 else "", CLASS]} for number in range(PROCESSES)))
            left, ran = {each["client"] for each in made}, set[str]()
            assert len(left) == EVERYBODY
            while left:
                running = await wave(store, left)
                await check_books(store, running)
                assert not running & ran
                ran |= running
                left -= running
                await order(those, *parts(running))
            assert len(ran) == EVERYBODY
            await wave(store, set())
            await nothing_is_given(store)
        assert up.stop() == 0
