"""kill -9 of a device plugin, a DRA driver, and the agent with its API server, at any moment while pods come and go: no device
moves, none is given twice, readers never show a device that is not assigned, and no started container is missing from them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.assignment import assigned_devices
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.store.kube import Kube
from tests.cases.assignment.monitors import Monitor
from tests.e2e.process import POLL, ForkedUp, Up

GPU, NET, NODE = "a.io/gpu", "net.d.io", "node-0"
GPUS, NICS = 4, 3
MOST = 6  # pods at a time: more than there are devices for
SETTLE = 180.0  # seconds until everything must have come to rest
VICTIMS = ("agent", "agent", "plugin", "driver", "agent+plugin", "agent+driver", "plugin+driver")
SCRIPT = Path(__file__).with_name("plugin_process.py")
Devices = dict[str, frozenset[str]]  # container -> "resource/id" and "driver/device"


class PluginProcess:
    """Of `plugin_process.py`."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        leash = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
        self._process = subprocess.Popen([*leash, sys.executable, str(SCRIPT), *self._words], stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass
class World:
    up: Up
    folder: Path  # the kubelet's of the node
    processes: dict[str, PluginProcess]
    dice: random.Random
    known: dict[str, Devices] = field(default_factory=dict)  # uid of a pod -> what it was seen to have
    names: dict[str, str] = field(default_factory=dict)  # name -> uid
    live: list[str] = field(default_factory=list)  # names of pods that were created
    ran: set[str] = field(default_factory=set)  # uids of pods that were seen to run
    ended: set[str] = field(default_factory=set)  # and whose end was asked for
    made: int = 0
    looks: int = 0  # comparisons of readers with the API

    # -- what is done

    async def act(self, store: Kube) -> None:
        """Names are used once, so that what readers show is of one pod."""
        try:
            if len(self.live) < MOST and self.dice.random() < 0.6:
                self.live.append(f"p{self.made}")
                await store.create(kinds.POD, self._pod(self.live[-1]))
            elif self.live:
                name = self.live.pop(self.dice.randrange(len(self.live)))
                pod = await store.get(kinds.POD, name, "default")
                self.ended.add(pod["metadata"]["uid"])
                await store.delete(kinds.POD, name, "default", uid=pod["metadata"]["uid"])
        except (errors.AlreadyExists, errors.NotFound, errors.Conflict, errors.Unavailable):
            pass

    def _pod(self, name: str) -> Object:
        self.made += 1
        gpus, nic = self.dice.choice([0, 1, 1, 2]), self.dice.random() < 0.5
        container: Object = {"name": "c", "image": "i", "resources": {}}
        if gpus:
            container["resources"]["limits"] = {GPU: str(gpus)}
            if self.dice.random() < 0.2:  # a custom scheduler chose one
                container["assignedDevices"] = [{"resourceName": GPU, "deviceIDs": [f"g{self.dice.randrange(GPUS)}"]}]
        spec: Object = {"nodeName": NODE, "containers": [container]}
        if nic:
            container["resources"]["claims"] = [{"name": "nic"}]
            spec |= {"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}]}
            del spec["nodeName"]  # the scheduler allocates its claim
        return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}

    # -- what is seen

    async def look(self, store: Kube) -> None:
        """Compare what readers show with the API before and after."""
        try:
            before = await self._pods(store)
            shown = await Monitor(self.folder).pod_resources()
            after = await self._pods(store)
        except (errors.Unavailable, errors.NotReady, grpc.aio.AioRpcError):
            return  # the agent is away
        self.looks += 1
        listed: dict[str, Devices] = {pod.name: _shown(pod) for pod in shown}
        for name, devices in listed.items():
            if name in self.names:  # else it came and went between the two reads of the API
                had = self.known[self.names[name]]
                assert devices == had, f"readers show {devices} for {name}, which has {had}"
        for uid, (name, runs) in before.items():
            if runs and after.get(uid, (name, False))[1] and uid not in self.ended:
                assert name in listed, f"{name} runs and readers do not show it"

    async def _pods(self, store: Kube) -> dict[str, tuple[str, bool]]:
        """uid -> name, and whether it was started."""
        pods = (await store.list(kinds.POD, "default")).items
        claims = {claim["metadata"]["name"]: claim for claim in (await store.list(kinds.RESOURCE_CLAIM, "default")).items}
        out, holders = {}, dict[str, str]()
        for pod in pods:
            meta, phase = pod["metadata"], pod["status"].get("phase")
            devices, before = _assigned(pod, claims), self.known.get(meta["uid"])
            if before is not None:
                for container, ids in before.items():
                    lost = {each for each in ids - devices.get(container, frozenset()) if not each.startswith(NET)}
                    assert not lost, f"{lost} moved away from {meta['name']}"
                kept = {container: frozenset(each for each in ids if each.startswith(NET)) for container, ids in before.items()}
                devices = {name: devices.get(name, frozenset()) | kept.get(name, frozenset())  # its claim may be gone before it
                           for name in {**devices, **kept} if name in devices or kept.get(name)}
            self.known[meta["uid"]] = devices
            self.names[meta["name"]] = meta["uid"]
            if phase == "Running":
                if meta["uid"] in self.ran and not meta.get("deletionTimestamp"):
                    assert before == devices, f"the devices of {meta['name']} changed from {before} to {devices}"
                self.ran.add(meta["uid"])
                for device in (each for ids in devices.values() for each in ids):
                    assert device not in holders, f"{device} is given to {holders[device]} and {meta['name']}"
                    holders[device] = meta["name"]
            out[meta["uid"]] = meta["name"], phase == "Running"
        return out

    async def unrest(self, store: Kube) -> str:
        """Why this is not the end of a round yet; empty when it is."""
        pods = (await store.list(kinds.POD, "default")).items
        pages = (await store.list(kinds.LEDGER_PAGE)).items
        booked = sorted((booking.holder.name, booking.device.device) for page in pages for booking in Page(page).bookings
                        if booking.holder.kind == "Pod")
        free, waiting = GPUS - len(booked), list[str]()
        for pod in pods:
            name, phase = pod["metadata"]["name"], pod["status"].get("phase")
            if pod["metadata"].get("deletionTimestamp"):
                return f"{name} is being deleted"
            if phase == "Pending":
                waits = pod["status"].get("message") or pod["status"].get("conditions")
                if pod["spec"].get("nodeName") or not pod["spec"].get("resourceClaims"):
                    return f"{name} waits: {waits}"
                waiting.append(f"{name}: {waits}")
        claims = (await store.list(kinds.RESOURCE_CLAIM, "default")).items
        nics = sum(bool((claim.get("status") or {}).get("allocation")) for claim in claims)
        if waiting and nics < NICS and free >= GPUS:
            return f"{nics} of {NICS} claims are allocated, and pods wait: {waiting}"
        expected = sorted((pod["metadata"]["name"], each) for pod in pods if pod["status"].get("phase") == "Running"
                          for devices in assigned_devices.of_pod(pod).values() for ids in devices.values() for each in ids)
        return "" if booked == expected else f"the page has {booked}, pods have {expected}"

    async def settled(self, store: Kube) -> None:
        deadline, why = time.monotonic() + SETTLE, "nothing is read"
        while True:
            with contextlib.suppress(errors.Unavailable):
                await _publish(store)
                await self.look(store)
                why = await self.unrest(store)
                if not why:
                    return
            assert time.monotonic() < deadline, f"not settled: {why}\n{self.up.log()}"
            await asyncio.sleep(POLL)

    # -- kills

    def kill(self, victims: str) -> None:
        for victim in victims.split("+"):
            self.up.kill() if victim == "agent" else self.processes[victim].kill()

    def restart(self, victims: str) -> None:
        for victim in victims.split("+"):
            self.up.start() if victim == "agent" else self.processes[victim].start()


def _assigned(pod: Object, claims: dict[str, Object]) -> Devices:
    devices = {name: {f"{resource}/{each}" for resource, ids in by_resource.items() for each in ids}
               for name, by_resource in assigned_devices.of_pod(pod).items()}
    for status in pod["status"].get("resourceClaimStatuses") or ():
        claim = claims.get(status.get("resourceClaimName") or "") or {}
        allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        results = allocation.get("results", ())
        devices.setdefault("c", set()).update(f"{result['driver']}/{result['device']}" for result in results)
    return {name: frozenset(ids) for name, ids in devices.items() if ids}


def _shown(pod: Any) -> Devices:
    out: dict[str, set[str]] = {}
    for container in pod.containers:
        mine = out.setdefault(container.name, set())
        mine.update(f"{each.resource_name}/{device}" for each in container.devices for device in each.device_ids)
        mine.update(f"{device.driver_name}/{device.device_name}" for claim in container.dynamic_resources
                    for device in claim.claim_resources)
    return {name: frozenset(ids) for name, ids in out.items() if ids}


@contextlib.contextmanager
def kubelet_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ok-", dir="/tmp"))  # short: unix sockets
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _publish(store: Kube) -> None:
    """As the driver does when it starts: its slice was deleted if it was away for long."""
    with contextlib.suppress(errors.AlreadyExists):
        await store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "nics"}, "spec": {
            "driver": NET, "nodeName": NODE, "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"d{number}"} for number in range(NICS)]}})


async def _prepare(store: Kube) -> None:
    await _publish(store)
    await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "nic"}, "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "{NET}"'}}]}})
    await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "nic", "namespace": "default"}, "spec": {
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "nic"}}]}}}})


async def _round(world: World) -> None:
    """Work, kill in the middle of it, start again, settle."""
    dice = world.dice
    async with world.up.store() as store:
        watching = asyncio.create_task(_watch(world, store))
        for _ in range(dice.randrange(1, 8)):
            await world.act(store)
            await asyncio.sleep(dice.uniform(0, 0.03))
        victims = dice.choice(VICTIMS)
        await asyncio.sleep(dice.uniform(0, 0.1))  # the moment of the kill is the point of the test
        world.kill(victims)
        if "agent" not in victims:
            for _ in range(dice.randrange(0, 4)):
                await world.act(store)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    world.restart(victims)
    async with world.up.store() as store:
        await world.settled(store)


async def _watch(world: World, store: Kube) -> None:
    while True:
        await world.look(store)
        await asyncio.sleep(POLL)


async def check(data: Path, seed: int, kills: int) -> None:
    with kubelet_folder() as folder:
        up = ForkedUp(data, "--kubelet-dir", str(folder), simulate="1x1")
        node = folder / NODE
        processes = {"plugin": PluginProcess("plugin", str(node), GPU, ",".join(f"g{number}" for number in range(GPUS))),
                     "driver": PluginProcess("driver", str(node), NET)}
        world = World(up, node, processes, random.Random(seed))
        try:
            world.restart("agent+plugin+driver")
            async with up.store() as store:
                await _prepare(store)
            for number in range(kills):
                try:
                    await _round(world)
                except BaseException as error:
                    error.add_note(f"seed {seed}, kill {number}; log: {up.log()}")
                    raise
            assert world.looks > kills
            assert world.ran
        finally:
            world.kill("agent+plugin+driver")


@pytest.mark.thorough
async def test_kills_of_plugin_driver_and_agent(tmp_path: Path) -> None:
    await check(tmp_path / "data", 1, 4)


@pytest.mark.long(seeds=range(100, 110))
async def test_a_hundred_kills_of_plugin_driver_and_agent(seed: int, tmp_path: Path) -> None:
    await check(tmp_path / "data", seed, 10)
