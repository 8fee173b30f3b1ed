"""kill -9 of the whole product at any moment: what was acknowledged is there, nothing is given twice, and all of it settles.

Three devices, more machines than that, several clients that create and delete. After each kill the same data is started
again and must come to rest with every device in use, and the claims, the pages, the domains, the host's checkpoint and the
drivers of its devices telling the same story."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.store.kube import Kube
from tests.e2e.process import EXAMPLE, POLL, Up

DEVICES = 3
CLIENTS = 3
NAMES = 3  # of each client: nine machines for three devices
HOST = f"""
hosts:
- name: node
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice,
     vfs: {{count: {DEVICES}, product: 1889, driver: iavf}}}}
"""
CONFIG = "device_spec: [{vendor_id: 8086, product_id: 1889}]"  # so each is taken from its driver, and given back
SETTLE = 30.0  # seconds until everything must have come to rest


def _machine(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {
        "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
        "domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "network", "requestName": "nic"}]}}}}


@dataclass
class Known:
    """What the clients were told. A machine is in neither when its fate was not acknowledged."""

    there: dict[str, str] = field(default_factory=dict)  # name -> uid of a create that was acknowledged
    gone: set[str] = field(default_factory=set)  # uids of deletes that were acknowledged
    running: dict[str, str] = field(default_factory=dict)  # uid -> address that a machine was seen to run with
    answers: int = 0


async def _client(store: Kube, names: list[str], known: Known, dice: random.Random, enough: asyncio.Event) -> None:
    """Create and delete until the server is gone."""
    while True:
        name = dice.choice(names)
        try:
            if name in known.there:
                uid = known.there.pop(name)  # from here on until the answer nobody knows
                await store.delete(kinds.INSTANCE, name, "default", uid=uid)
                known.gone.add(uid)
            else:
                made = await store.create(kinds.INSTANCE, _machine(name))
                known.there[name] = made["metadata"]["uid"]
        except errors.Unavailable:
            return
        except errors.AlreadyExists:
            pass  # the one before it is still going, or an earlier create was carried out unheard
        except (errors.NotFound, errors.Conflict):
            pass
        known.answers += 1
        if dice.random() < 0.3:
            with contextlib.suppress(errors.NotFound, errors.Unavailable):
                _note(await store.get(kinds.INSTANCE, name, "default"), known)
        if known.answers >= dice.randrange(5, 40):
            enough.set()


def _address(instance: Object) -> str:
    given = instance["status"]["deviceStatus"]["hostDeviceStatuses"]
    assert len(given) == 1, given
    address: str = given[0]["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
    return address


def _note(instance: Object, known: Known) -> None:
    if (instance.get("status") or {}).get("phase") == "Running":
        known.running[instance["metadata"]["uid"]] = _address(instance)


@dataclass
class World:
    """Everything there is, read at about one moment."""

    instances: dict[str, Object]
    pods: list[Object]
    claims: list[Object]
    pages: list[Object]
    domains: dict[str, str]  # uid -> XML
    taken: list[tuple[str, str]]  # device and holder's uid of what the host's checkpoint says
    bound: list[str]  # addresses that the host handed to vfio-pci

    @property
    def running(self) -> dict[str, Object]:
        return {obj["metadata"]["uid"]: obj for obj in self.instances.values()
                if (obj.get("status") or {}).get("phase") == "Running" and not obj["metadata"].get("deletionTimestamp")}

    @property
    def booked(self) -> list[tuple[str, str]]:
        """Device and holder's uid of every booking."""
        return sorted((raw["device"]["device"], raw["holder"]["uid"]) for page in self.pages
                      for raw in page["spec"]["bookings"])

    @property
    def allocated(self) -> list[tuple[str, str]]:
        results = ((claim, ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}) for claim in self.claims)
        return sorted((result["device"], claim["metadata"]["uid"]) for claim, devices in results
                      for result in devices.get("results") or ())

    def unrest(self) -> str:
        """Why this is not yet the end of the story; empty when it is. Says nothing that may never be true on the way."""
        left = [name for name, obj in self.instances.items() if obj["metadata"].get("deletionTimestamp")]
        if left:
            return f"still being deleted: {left}"
        if len(self.running) != min(DEVICES, len(self.instances)):
            phases = {name: (obj.get("status") or {}).get("phase") for name, obj in self.instances.items()}
            return f"{len(self.running)} run of {phases}"
        if {"pods": len(self.pods), "claims": len(self.claims)} != dict.fromkeys(("pods", "claims"), len(self.instances)):
            return f"{len(self.pods)} pods and {len(self.claims)} claims for {len(self.instances)} machines"
        if self.booked != self.allocated:
            return f"pages say {self.booked}, claims say {self.allocated}"
        states = {raw["state"] for page in self.pages for raw in page["spec"]["bookings"]}
        if states - {"prepared"}:
            return f"bookings are {states}"
        if self.domains.keys() != self.running.keys():
            return f"domains {sorted(self.domains)} are not the machines {sorted(self.running)}"
        if self.taken != self.booked:
            return f"pages say {self.booked}, the checkpoint says {self.taken}"
        if self.bound != sorted(map(_address, self.running.values())):
            return f"{self.bound} are with vfio-pci, and machines have {sorted(map(_address, self.running.values()))}"
        return ""


async def _world(store: Kube, up: Up) -> World:
    async def everything(kind: kinds.Kind) -> list[Object]:
        return (await store.list(kind)).items

    instances, pods, claims, pages = [await everything(kind) for kind in (
        kinds.INSTANCE, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE)]
    domains = {name.partition("_")[0]: xml for name, xml in up.domains().items()}
    host = up.data / "hosts" / "node"
    taken = sorted((one["device"], one["uid"]) for one in _read(host / "state" / "checkpoint.json").get("taken", ()))
    bound = sorted(path.split("/")[-2] for path, entry in _read(host / "kernel" / "kernel.json").get("new", {}).items()
                   if path.endswith("/driver") and entry["l"].endswith("/vfio-pci"))
    return World({obj["metadata"]["name"]: obj for obj in instances}, pods, claims, pages, domains, taken, bound)


def _read(path: Path) -> Object:
    """A file of the host; nothing in it if it is not there (any more)."""
    with contextlib.suppress(FileNotFoundError):
        found: Object = json.loads(path.read_text())
        return found
    return {}


def _never(world: World) -> None:
    """What must not be at any moment, settled or not."""
    devices = [device for device, _ in world.booked]
    assert len(devices) == len(set(devices)), f"booked twice: {world.booked}"
    addresses = [_address(obj) for obj in world.running.values()]
    assert len(addresses) == len(set(addresses)), f"given twice: {addresses}"


async def _settled(store: Kube, up: Up) -> World:
    deadline = time.monotonic() + SETTLE
    while True:
        world = await _world(store, up)
        _never(world)
        if not (why := world.unrest()):
            return world
        if time.monotonic() > deadline:
            raise TimeoutError(f"not settled within {SETTLE:g} s: {why}\nlog of the server: {up.log()}")
        await asyncio.sleep(POLL)


def _check(world: World, known: Known) -> None:
    """A settled world against what the clients were told."""
    have = {obj["metadata"]["uid"] for obj in world.instances.values()}
    for name, uid in known.there.items():
        assert uid in have, f"the create of {name} was acknowledged, and it is gone"
    assert not have & known.gone, "what was deleted is back"
    for uid, obj in world.running.items():
        address = _address(obj)
        bus, slot, function = address[5:7], address[8:10], address[11]
        assert f'bus="0x{bus}" slot="0x{slot}" function="0x{function}"' in world.domains[uid]
        if uid in known.running:
            assert address == known.running[uid], "a device moved under a running machine"
    stopped = [uid for uid in known.running if uid in have and uid not in world.running]
    assert not stopped, f"ran before the kill and do not any more: {stopped}"


@contextlib.asynccontextmanager
async def _connected(up: Up) -> AsyncIterator[Kube]:
    store = up.store()
    try:
        yield store
    finally:
        await store.close()


async def _round(up: Up, known: Known, dice: random.Random) -> None:
    """Work, kill in the middle of it, start again, settle, compare."""
    async with _connected(up) as store:
        enough = asyncio.Event()
        known.answers = 0
        names = [[f"m{client}{number}" for number in range(NAMES)] for client in range(CLIENTS)]
        clients = [asyncio.create_task(_client(store, mine, known, random.Random(dice.random()), enough)) for mine in names]
        await asyncio.wait_for(enough.wait(), SETTLE)
        await asyncio.sleep(dice.uniform(0, 0.05))  # the moment of the kill is the point of the test
        up.kill()
        await asyncio.wait_for(asyncio.gather(*clients), SETTLE)
    if dice.random() < 0.5:  # and again, in the middle of the next start
        up.launch()
        await asyncio.sleep(dice.uniform(0.5, 1.2) * up.took)
        up.kill()
    up.start()
    async with _connected(up) as store:
        world = await _settled(store, up)
        _check(world, known)
        # What was in flight has now an answer, and the next round begins from it.
        known.there = {name: obj["metadata"]["uid"] for name, obj in world.instances.items()}
        known.running = {uid: _address(obj) for uid, obj in world.running.items()}


async def _story(up: Up, rounds: int, seed: int) -> list[float]:
    dice, known, starts = random.Random(seed), Known(), [up.took]
    for number in range(rounds):
        try:
            await _round(up, known, dice)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number} of {rounds}")
            raise
        starts.append(up.took)
    async with _connected(up) as store:
        for name in known.there:
            await store.delete(kinds.INSTANCE, name, "default")
        world = await _settled(store, up)
        assert (world.instances, world.pods, world.claims, world.booked, world.domains) == ({}, [], [], [], {})
    assert not _read(up.data / "hosts" / "node" / "kernel" / "kernel.json"), "the host is not as it was"
    return starts


def _run(tmp_path: Path, rounds: int, seed: int) -> None:
    (tmp_path / "hosts.yaml").write_text(HOST)
    (tmp_path / "outfitter.yaml").write_text(CONFIG)
    with Up(tmp_path / "data", "--config", str(tmp_path / "outfitter.yaml"), simulate=str(tmp_path / "hosts.yaml")) as up:
        up.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"))
        starts = asyncio.run(_story(up, rounds, seed))
        print(f"{rounds + 1} starts took {min(starts):.2f} to {max(starts):.2f} s")
        assert up.stop() == 0
        assert not up.domains()


@pytest.mark.parametrize("seed", [1])
def test_five_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, 5, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2])
def test_fifty_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, 50, seed)
