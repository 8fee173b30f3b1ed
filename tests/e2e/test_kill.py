"""kill -9 of the whole product at any moment: what was acknowledged is there, nothing is given twice, and all of it settles.

Three devices, more VMs than that, several clients: one makes and deletes instances, one virtual machines with claims of
their own, one such whose claims are made for each start; these are started, stopped and restarted too. After each kill the same
data is started again and must come to rest with no device idle that a VM waits for, and the claims, the pages, the domains,
the host's checkpoint and the drivers of its devices agreeing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.store.kube import Kube
from tests.e2e.process import EXAMPLE, POLL, ForkedUp, Up

DEVICES = 3
CLIENTS = 3
NAMES = 3  # of each client: nine VMs for three devices
HOST = f"""
hosts:
- name: node
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice,
     vfs: {{count: {DEVICES}, product: 1889, driver: iavf}}}}
"""
CONFIG = "device_spec: [{vendor_id: 8086, product_id: 1889}]"  # so each is taken from its driver, and released
SETTLE = 120.0  # seconds until everything must have come to rest


CLAIM = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "virtual-function"}}]}}
ACTS = ("start", "start", "stop", "restart", "delete")
STRATEGIES = ("Always", "Manual", "RerunOnFailure")


def _instance(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {
        "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
        "domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "network", "requestName": "nic"}]}}}}


def _machine(name: str, strategy: str, *, own: bool) -> Object:
    """With a claim of its own, which it keeps while it is stopped, or one that is made for each start."""
    made = _instance(name)
    if own:
        del made["spec"]["resourceClaims"]
    more = {"resourceClaimTemplates": [{"name": "network", "spec": {"spec": CLAIM}}]} if own else {}
    return {"metadata": made["metadata"], "spec": {"runStrategy": strategy, **more, "template": {"spec": made["spec"]}}}


@dataclass
class Known:
    """The responses that the clients got. A VM is in neither when its fate was not acknowledged."""

    there: dict[str, str] = field(default_factory=dict)  # name -> uid of a create that was acknowledged
    gone: set[str] = field(default_factory=set)  # uids of deletes that were acknowledged
    running: dict[str, tuple[str, str]] = field(default_factory=dict)  # uid -> name and address of what was seen to run
    stopping: set[str] = field(default_factory=set)  # names of what was, or may have been, asked to stop in this round
    answers: int = 0


async def _client(
    store: Kube, names: list[str], known: Known, *, number: int, dice: random.Random, enough: asyncio.Event
) -> None:
    """Make, start, stop, restart and delete until the server is gone."""
    kind = kinds.VM if number else kinds.VMI
    while True:
        name = dice.choice(names)
        try:
            if name not in known.there:
                wanted = _machine(name, dice.choice(STRATEGIES), own=number == 1) if number else _instance(name)
                made = await store.create(kind, wanted)
                known.there[name] = made["metadata"]["uid"]
            elif not number or (what := dice.choice(ACTS)) == "delete":
                known.stopping.add(name)
                uid = known.there.pop(name)  # unknown until the answer comes
                await store.delete(kind, name, "default", uid=uid)
                known.gone.add(uid)
            else:
                known.stopping.update([name] if what != "start" else ())
                place = f"/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/{name}/{what}"
                status, _, payload = await store.raw("PUT", place, body=b"{}")
                assert status in (202, 404, 409), payload
        except errors.Unavailable:
            return
        except errors.AlreadyExists:
            pass  # the one before it is still going, or an earlier create was carried out unheard
        except (errors.NotFound, errors.Conflict):
            pass
        known.answers += 1
        if dice.random() < 0.3 and name not in known.stopping:
            with contextlib.suppress(errors.NotFound, errors.Unavailable):
                _note(await store.get(kinds.VMI, name, "default"), known)
        if known.answers >= dice.randrange(5, 40):
            enough.set()


def _address(instance: Object) -> str:
    given = instance["status"]["deviceStatus"]["hostDeviceStatuses"]
    assert len(given) == 1, given
    address: str = given[0]["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
    return address


def _note(instance: Object, known: Known) -> None:
    if (instance.get("status") or {}).get("phase") == "Running":
        known.running[instance["metadata"]["uid"]] = instance["metadata"]["name"], _address(instance)


@dataclass
class Snapshot:
    """Everything there is, read at about one moment."""

    machines: dict[str, Object]
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

    def held(self, *states: str) -> list[tuple[str, str]]:
        """Device and holder's uid of every booking in one of these states."""
        return sorted((raw["device"]["device"], raw["holder"]["uid"]) for page in self.pages
                      for raw in page["spec"]["bookings"] if not states or raw["state"] in states)

    @property
    def allocated(self) -> list[tuple[str, str]]:
        results = ((claim, ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}) for claim in self.claims)
        return sorted((result["device"], claim["metadata"]["uid"]) for claim, devices in results
                      for result in devices.get("results") or ())

    def unrest(self) -> str:
        """Why this is not yet the end of the scenario; empty when it is. Says nothing that may never be true on the way."""
        left = [name for objects in (self.machines, self.instances) for name, obj in objects.items()
                if obj["metadata"].get("deletionTimestamp")]
        if left:
            return f"still being deleted: {left}"
        if lost := [name for name, obj in self.instances.items()
                    if vm_api.owner(obj, kinds.VM.kind) and name not in self.machines]:
            return f"their machines are gone: {lost}"
        for name, vm in self.machines.items():
            how, status = vm_api.run_strategy(vm), vm.get("status") or {}
            if status.get("stateChangeRequests") or (how, name in self.instances) in (("Always", False), ("Halted", True)):
                return f"{name} is to be {how}, and has to do {status.get('stateChangeRequests')}"
            if (status.get("printableStatus") == "Stopped") != (name not in self.instances):
                return f"{name} says {status.get('printableStatus')}, and its instance is {self.instances.get(name)}"
        waiting = self.instances.keys() - {obj["metadata"]["name"] for obj in self.running.values()}
        if waiting and len(self.held()) < DEVICES:
            return f"{waiting} wait, and {len(self.held())} devices are held"
        own = [name for name, vm in self.machines.items() if vm["spec"].get("resourceClaimTemplates")]
        claims = len(own) + len(self.instances.keys() - set(own))
        if (len(self.pods), len(self.claims)) != (len(self.instances), claims):
            return f"{len(self.pods)} pods for {len(self.instances)} instances, {len(self.claims)} claims and not {claims}"
        if self.held() != self.allocated:
            return f"pages say {self.held()}, claims say {self.allocated}"
        if len(self.held("prepared")) != len(self.running):
            return f"{self.held('prepared')} are prepared, and {sorted(self.running)} run"
        if self.domains.keys() != self.running.keys():
            return f"domains {sorted(self.domains)} are not the machines {sorted(self.running)}"
        if self.taken != self.held("prepared"):
            return f"pages say {self.held('prepared')}, the checkpoint says {self.taken}"
        if self.bound != sorted(map(_address, self.running.values())):
            return f"{self.bound} are with vfio-pci, and machines have {sorted(map(_address, self.running.values()))}"
        return ""


async def _snapshot(store: Kube, up: Up) -> Snapshot:
    async def everything(kind: kinds.Kind) -> list[Object]:
        return (await store.list(kind)).items

    machines, instances, pods, claims, pages = [await everything(kind) for kind in (
        kinds.VM, kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE)]
    domains = {name.partition("_")[0]: xml for name, xml in up.domains().items()}
    host = up.data / "hosts" / "node"
    taken = sorted((one["device"], one["uid"]) for one in _read(host / "state" / "checkpoint.json").get("taken", ()))
    bound = sorted(path.split("/")[-2] for path, entry in _read(host / "kernel" / "kernel.json").get("new", {}).items()
                   if path.endswith("/driver") and entry["l"].endswith("/vfio-pci"))
    return Snapshot(_by_name(machines), _by_name(instances), pods, claims, pages, domains, taken, bound)


def _by_name(objects: list[Object]) -> dict[str, Object]:
    return {obj["metadata"]["name"]: obj for obj in objects}


def _read(path: Path) -> Object:
    """A file of the host; nothing in it if it is not there (any more)."""
    with contextlib.suppress(FileNotFoundError):
        found: Object = json.loads(path.read_text())
        return found
    return {}


def _never(snapshot: Snapshot) -> None:
    """What must not be at any moment, settled or not."""
    devices = [device for device, _ in snapshot.held()]
    assert len(devices) == len(set(devices)), f"booked twice: {snapshot.held()}"
    addresses = [_address(obj) for obj in snapshot.running.values()]
    assert len(addresses) == len(set(addresses)), f"given twice: {addresses}"


async def _settled(store: Kube, up: Up) -> Snapshot:
    deadline = time.monotonic() + SETTLE
    while True:
        snapshot = await _snapshot(store, up)
        _never(snapshot)
        if not (why := snapshot.unrest()):
            return snapshot
        if time.monotonic() > deadline:
            raise TimeoutError(f"not settled within {SETTLE:g} s: {why}\nlog of the server: {up.log()}")
        await asyncio.sleep(POLL)


def _check(snapshot: Snapshot, known: Known) -> None:
    """A settled scenario against the responses that the clients got."""
    have = {obj["metadata"]["uid"] for objects in (snapshot.machines, snapshot.instances) for obj in objects.values()}
    for name, uid in known.there.items():
        assert uid in have, f"the create of {name} was acknowledged, and it is gone"
    assert not have & known.gone, "what was deleted is back"
    for uid, obj in snapshot.running.items():
        address = _address(obj)
        bus, slot, function = address[5:7], address[8:10], address[11]
        assert f'bus="0x{bus}" slot="0x{slot}" function="0x{function}"' in snapshot.domains[uid]
        if uid in known.running:
            assert address == known.running[uid][1], "a device moved under a running VM"
    stopped = [name for uid, (name, _) in known.running.items() if uid not in snapshot.running and name not in known.stopping]
    assert not stopped, f"ran before the kill and do not any more: {stopped}"


async def _round(up: Up, known: Known, dice: random.Random) -> None:
    """Work, kill in the middle of it, start again, settle, compare."""
    async with up.store() as store:
        enough = asyncio.Event()
        known.answers, known.stopping = 0, set()
        names = [[f"m{client}{number}" for number in range(NAMES)] for client in range(CLIENTS)]
        clients = [asyncio.create_task(_client(store, mine, known, number=number, enough=enough,
                                               dice=random.Random(dice.random()))) for number, mine in enumerate(names)]
        await asyncio.wait_for(enough.wait(), SETTLE)
        await asyncio.sleep(dice.uniform(0, 0.05))  # the moment of the kill is the point of the test
        up.kill()
        await asyncio.wait_for(asyncio.gather(*clients), SETTLE)
    if dice.random() < 0.5:  # and again, in the middle of the next start
        up.launch()
        await asyncio.sleep(dice.uniform(0.5, 1.2) * up.took)
        up.kill()
    up.start()
    async with up.store() as store:
        snapshot = await _settled(store, up)
        _check(snapshot, known)
        # What was in flight has now an answer, and the next round begins from it.
        known.there = {name: obj["metadata"]["uid"] for name, obj in (snapshot.instances | snapshot.machines).items()}
        known.running = {uid: (obj["metadata"]["name"], _address(obj)) for uid, obj in snapshot.running.items()}


async def _run_scenario(up: Up, rounds: int, seed: int) -> list[float]:
    dice, known, starts = random.Random(seed), Known(), [up.took]
    for number in range(rounds):
        try:
            await _round(up, known, dice)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number} of {rounds}")
            raise
        starts.append(up.took)
    async with up.store() as store:
        for name in known.there:
            await store.delete(kinds.VMI if name.startswith("m0") else kinds.VM, name, "default")
        snapshot = await _settled(store, up)
        left = (snapshot.machines, snapshot.instances, snapshot.pods, snapshot.claims, snapshot.held(), snapshot.domains)
        assert left == ({}, {}, [], [], [], {})
    assert not _read(up.data / "hosts" / "node" / "kernel" / "kernel.json"), "the host is not as it was"
    return starts


def _run(tmp_path: Path, rounds: int, seed: int) -> None:
    (tmp_path / "hosts.yaml").write_text(HOST)
    (tmp_path / "outfitter.yaml").write_text(CONFIG)
    with ForkedUp(tmp_path / "data", "--config", str(tmp_path / "outfitter.yaml"), simulate=str(tmp_path / "hosts.yaml")) as up:
        up.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"))
        starts = asyncio.run(_run_scenario(up, rounds, seed))
        print(f"{rounds + 1} starts took {min(starts):.2f} to {max(starts):.2f} s")
        assert up.stop() == 0
        assert not up.domains()


def test_five_kills(tmp_path: Path) -> None:
    _run(tmp_path, 5, seed=1)


@pytest.mark.long(seeds=range(2, 3))
def test_fifty_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, 50, seed)
