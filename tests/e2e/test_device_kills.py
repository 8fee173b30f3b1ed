"""kill -9 of `outfit up` at seeded moments while GPUs and host devices are plugged into and unplugged from running VMs by
claim, and while these migrate. It is started again, sometimes killed in the middle of that start. While it is dead, no device
is in two domains and each VM is in one place; at rest each VM runs once, as the same VMI, every migration has ended, and
templates, VMIs, status, domains, attachment pods, claims, pages, checkpoints and drivers agree."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, migration
from outfitter.store.kube import Kube
from tests.e2e import device_records
from tests.e2e.device_records import NAMESPACE, DeviceRecords
from tests.e2e.process import ForkedUp, Up

# A card of two functions in one group that may not travel, and disks that may.
HOSTS = """
hosts:
- name: node-a
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 7}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 7}
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}
  - {address: 0000:68:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:69:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
- name: node-b
  pci:
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:68:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:69:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}
"""
CONFIG = "device_spec: [{vendor_id: 10de}, {vendor_id: 144d, product_id: a80a, live_migratable: 'yes'}]"
NAMES = ("blue", "green")
ENTRIES: dict[str, device_refs.List] = {
    "disk": "hostDevices", "more": "gpus", "own": "gpus", "gpu": "gpus", "shared": "hostDevices"}
TRAVELS = ("disk", "more", "own")  # `shared` is a claim by name, which both VMs may ask for; `gpu` may be any device
CLASSES = {"disk": ' && device.attributes["pci.outfitter.dev"].product == "a80a"', "any": ""}
CLASS_OF = {"gpu": "any"}
ACTS = ("plug", "plug", "plug", "unplug", "unplug", "migrate", "cancel")
FIRST = ("plug", "unplug", "migrate", "migrate", "migrate and cancel")  # what is under way when the kill comes
UNSCHEDULABLE = "4"  # seconds until a migration fails for which no host has devices
SETTLE = 300.0  # seconds until everything must have come to rest
LOOK = 0.1  # seconds between two looks at everything
QUIET = 1.5  # seconds without a change that can be seen, after which a kill comes all the same


def claim_spec(entry: str) -> Object:
    return {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": CLASS_OF.get(entry, "disk")}}]}}


def vm_spec(entries: Sequence[str]) -> Object:
    """What a VM's spec has of these devices; None removes."""
    devices: dict[str, Any] = {list_: [{"name": name, "claimName": name, "requestName": "card"} for name in entries
                                       if ENTRIES[name] == list_] or None for list_ in device_refs.LISTS}
    claims = [{"name": name, **({"resourceClaimName": name} if name == "shared" else {
        "resourceClaimTemplateName": CLASS_OF.get(name, "disk")})} for name in entries if name != "own"]
    own = [{"name": "own", "spec": {"spec": claim_spec("own")}}] if "own" in entries else None
    return {"resourceClaimTemplates": own, "template": {"spec": {"resourceClaims": claims or None, "domain": {
        "devices": devices}}}}


@dataclass
class KilledUp:
    up: Up
    dice: random.Random
    uids: dict[str, str] = field(default_factory=dict)  # name -> VMI
    places: list[str] = field(default_factory=list)  # each kill: what was done before it, and when it came
    begun: Counter[str] = field(default_factory=Counter)  # what was accepted

    # -- what users do

    async def entries(self, store: Kube, name: str) -> list[str]:
        vm = await store.get(kinds.VM, name, NAMESPACE)
        have = device_records.wanted(vm["spec"]["template"])
        return [entry for entry, list_ in ENTRIES.items() if (list_, entry) in have]

    async def act(self, store: Kube, name: str, what: str, dice: random.Random) -> bool:
        """Whether it was accepted: what comes at a bad time is refused."""
        try:
            accepted = await self._act(store, name, what, dice)
        except (errors.AlreadyExists, errors.NotFound, errors.Conflict, errors.Invalid):
            return False
        self.begun[what] += accepted
        return accepted

    async def _act(self, store: Kube, name: str, what: str, dice: random.Random) -> bool:
        have = await self.entries(store, name)
        match what:
            case "plug" | "unplug":
                plugs = what == "plug"
                choice = [entry for entry in (*ENTRIES, *TRAVELS) if (entry in have) != plugs]
                if not choice:
                    return False
                changed = dice.choice(choice)
                entries = [*have, changed] if plugs else [entry for entry in have if entry != changed]
                await store.patch(kinds.VM, name, {"spec": vm_spec(entries)}, NAMESPACE)
            case "lighten":  # to what may travel
                entries = [entry for entry in have if entry in TRAVELS]
                await store.patch(kinds.VM, name, {"spec": vm_spec(entries or [dice.choice(TRAVELS)])}, NAMESPACE)
            case "cancel":
                jobs = [job for job in (await store.list(kinds.MIGRATION, NAMESPACE)).items if not migration.is_finished(job)]
                if not jobs:
                    return False
                await store.delete(kinds.MIGRATION, dice.choice(jobs)["metadata"]["name"], NAMESPACE)
            case _:
                await store.create(kinds.MIGRATION, {"metadata": {
                    "generateName": "move-", "namespace": NAMESPACE, "annotations": {
                        migration.UNSCHEDULABLE_TIMEOUT: UNSCHEDULABLE}}, "spec": {"vmiName": name}})
        return True

    async def busy(self, store: Kube, dice: random.Random) -> None:
        """A client that goes on until the server is gone."""
        with contextlib.suppress(errors.Unavailable):
            while True:
                await asyncio.sleep(dice.choice([0.01, 0.1, 0.6]) * dice.random())
                await self.act(store, dice.choice(NAMES), dice.choice(ACTS), dice)

    # -- kills

    def glimpse(self, of: str) -> list[tuple[str, int, int]]:
        """What can be seen from outside of writes to the store, or to hosts and domains."""
        data, seen = self.up.data, []
        files = [data / "outfitter.db-wal"] if of == "store" else [
            *data.glob("domains/*/*"), *data.glob("hosts/*/state/*"), *data.glob("hosts/*/kernel/*")]
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                seen.append((str(path), found.st_mtime_ns, found.st_size))
        return seen

    async def moment(self) -> str:
        """Wait for the moment of a kill: some time, or some writes. How it was chosen."""
        dice = self.dice
        if dice.random() < 0.3:
            seconds = dice.choice([0.05, 0.3, 1.0]) * dice.random()
            await asyncio.sleep(seconds)
            return f"after {seconds:.3f} s"
        of = dice.choice(["store", "host"])
        changes, more = dice.randint(1, 40 if of == "store" else 8), dice.choice([0, 0, 0.003, 0.02])
        last, seen, since = self.glimpse(of), 0, time.monotonic()
        while seen < changes and time.monotonic() - since < QUIET:
            await asyncio.sleep(0.001)
            if (now := self.glimpse(of)) != last:
                last, seen, since = now, seen + 1, time.monotonic()
        await asyncio.sleep(more)
        return f"{more} s after write {seen} of {changes} to the {of}"

    def kill(self) -> None:
        self.up.kill()
        self.check_dead()

    def check_dead(self) -> None:
        hosts = device_records.read_hosts(self.up.data)
        if any(host.incoming for host in hosts.values()):
            self.places[-1] += ", before a VM arrived"
        wrong = list(device_records.never(hosts))
        for name, uid in self.uids.items():
            if sum(uid in host.domains for host in hosts.values()) != 1:
                wrong.append(f"{name} is lost: {hosts}")
        assert not wrong, "\n".join(wrong)

    async def round(self) -> None:
        dice = self.dice
        async with self.up.store() as store:
            name, what = dice.choice(NAMES), dice.choice(FIRST)
            if what.startswith("migrate") and await self.act(store, name, "lighten", dice):
                await self.rest(store)
            while not await self.act(store, name, what.partition(" ")[0], dice):
                what = dice.choice(FIRST)
            if what == "migrate and cancel":
                await asyncio.sleep(dice.uniform(0, 0.6))
                await self.act(store, name, "cancel", dice)
            more = asyncio.create_task(self.busy(store, random.Random(dice.random()))) if dice.random() < 0.6 else None
            self.places.append(f"{what} of {name}")  # and when, once that is known
            self.places[-1] += f", {'with others, ' if more else ''}{await self.moment()}"
            self.kill()
            if more is not None:
                await asyncio.wait_for(more, SETTLE)
        if dice.random() < 0.3:  # and again, in the middle of the next start or just after it
            self.up.launch()
            await asyncio.sleep(dice.uniform(0.3, 1.6) * self.up.took)
            self.kill()
            self.places[-1] += ", and in the next start"
        self.up.start()
        async with self.up.store() as store:
            await self.rest(store)

    # -- what is seen afterwards

    async def rest(self, store: Kube) -> None:
        deadline = time.monotonic() + SETTLE
        while True:
            records = await DeviceRecords.read(store, self.up.data)
            wrong = list(records.never())
            for name, uid in self.uids.items():
                if (vmi := records.vmis.get(name)) is None or vmi["metadata"]["uid"] != uid:
                    wrong.append(f"{name} is lost: {vmi}")
            assert not wrong, "\n".join(wrong)
            if not (why := records.unrest()):
                self.uids = {name: vmi["metadata"]["uid"] for name, vmi in records.vmis.items()}
                return
            assert time.monotonic() < deadline, f"not at rest within {SETTLE:g} s: {why}\n{records.text()}"
            await asyncio.sleep(LOOK)

    async def prepare(self, store: Kube) -> None:
        for name, condition in CLASSES.items():
            await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": name}, "spec": {"selectors": [
                {"cel": {"expression": f'device.driver == "pci.outfitter.dev"{condition}'}}]}})
        for name, entry in (("disk", "disk"), ("any", "gpu")):
            await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
                "spec": claim_spec(entry)}})
        await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "shared", "namespace": NAMESPACE},
                                                  "spec": claim_spec("shared")})
        for name, memory in zip(NAMES, ("256Mi", "1Gi"), strict=True):
            spec = vm_spec(self.dice.sample(TRAVELS, self.dice.randint(0, 2)))
            template = spec["template"]["spec"]
            devices = {list_: entries for list_, entries in template["domain"]["devices"].items() if entries}
            await store.create(kinds.VM, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {
                "runStrategy": "Always",
                **({"resourceClaimTemplates": spec["resourceClaimTemplates"]} if spec["resourceClaimTemplates"] else {}),
                "template": {"spec": {
                    "networks": [{"name": "default", "pod": {}}],
                    **({"resourceClaims": template["resourceClaims"]} if template["resourceClaims"] else {}),
                    "domain": {"memory": {"guest": memory}, "devices": {
                        **devices, "interfaces": [{"name": "default", "masquerade": {}}]}}}}}})
        await self.rest(store)

    async def end(self, store: Kube) -> None:
        """Nothing is left, and the hosts are as they were."""
        self.uids = {}
        for name in NAMES:
            await store.delete(kinds.VM, name, NAMESPACE)
        await store.delete(kinds.RESOURCE_CLAIM, "shared", NAMESPACE)
        deadline = time.monotonic() + SETTLE
        while True:
            records = await DeviceRecords.read(store, self.up.data)
            left = (records.vms, records.vmis, records.pods, records.claims, records.held())
            files = [host for host in records.hosts.values() if host.domains or host.incoming or host.prepared or host.bound]
            if not any(left) and not files:
                return
            assert time.monotonic() < deadline, f"left after {SETTLE:g} s: {left}, {files}\n{records.text()}"
            await asyncio.sleep(LOOK)


async def check(folder: Path, seed: int, kills: int) -> None:
    hosts, settings = folder / "hosts.yaml", folder / "outfitter.yaml"
    hosts.write_text(HOSTS)
    settings.write_text(CONFIG)
    with ForkedUp(folder / "data", "--config", str(settings), simulate=str(hosts)) as up:
        killed = KilledUp(up, random.Random(seed))
        try:
            async with up.store() as store:
                await killed.prepare(store)
            while len(killed.places) < kills:
                await killed.round()
            async with up.store() as store:
                await killed.end(store)
        except BaseException as error:
            error.add_note("\n".join([f"seed {seed}, after", *killed.places, *up.log().splitlines()[-20:]]))
            raise
        assert up.stop() == os.EX_OK


@pytest.mark.thorough
async def test_kills_of_plug_unplug_and_migration(tmp_path: Path) -> None:
    await check(tmp_path, 1, 6)


@pytest.mark.long(seeds=range(100, 120))
async def test_two_hundred_kills_of_plug_unplug_and_migration(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed, 10)
