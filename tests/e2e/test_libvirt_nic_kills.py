"""kill -9 of two libvirt daemons and of `outfit up`, at seeded moments of plug, unplug and migration of real guests.
A daemon that was killed is started again, as an init system does. Afterwards each VM runs in exactly one place, as the same
VMI; its NICs have their taps, on the bridges that the VM wants, and there is no other tap; every migration has ended and
nothing of its target is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import libvirt_hosts
from tests.e2e.libvirt_hosts import PATIENCE, RUNNING, STARTING, DomainSeen, LibvirtHosts
from tests.e2e.process import typed, until
from tests.hardware import daemon

pytestmark = [pytest.mark.libvirt, pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")]
NAMES = ("blue", "green")
NICS = ("red", "pink")
NIC_ACTS = ("plug", "plug", "unplug", "unplug", "swap")
ACTS = (*NIC_ACTS, "migrate", "migrate", "migrate", "cancel")
VICTIMS = ("source", "target", "source and target", "up and source", "up and target", "up")  # each as often as the others
FINAL = ("Succeeded", "Failed")
LOST = "is lost"
WAITS = ("InterfacesReady", "MigrationRequired", "Paused")  # conditions of a VMI of which something is not done yet
QUIET = 2.0  # seconds without a change that can be seen, after which a kill comes all the same
OTHER = {"host-a": "host-b", "host-b": "host-a"}


class KilledHosts:
    """A scenario: what users do, and who is killed when."""

    def __init__(self, hosts: LibvirtHosts, seed: int) -> None:
        self.hosts, self.dice = hosts, random.Random(seed)
        self.names = [hosts.vm(name) for name in NAMES]
        self.uids: dict[str, str] = {}
        self.ended = 0  # VMs that libvirt ended, as far as it is known
        self.places: list[str] = []  # each kill: what was done before it, who was killed, and when
        self.victims: list[str] = []  # of the next kills
        self.daemons_killed = 0  # kills in which a libvirt daemon was killed
        self.within_migrations = 0  # those of them while a VM was being copied

    # -- what users do

    def type(self, *words: str, stdin: str = "") -> bool:
        """Whether a command was accepted: one that comes at a bad time is refused."""
        return typed(*words, kubeconfig=self.hosts.up.kubeconfig, stdin=stdin).code == 0

    def act(self, name: str, what: str) -> bool:
        dice, vm = self.dice, json.loads(self.hosts.up.ok("get", "vm", name, "-o", "json"))
        cards = [card["name"] for card in vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]
                 if card["name"] in NICS]
        match what:
            case "plug":
                free = [nic for nic in NICS if nic not in cards]
                return bool(free) and self.type("vm", "nic", "add", name, dice.choice(free), "--network",
                                                dice.choice(["lan", "wan"]), "--mac", self.hosts.mac())
            case "unplug":
                return bool(cards) and self.type("vm", "nic", "remove", name, dice.choice(cards))
            case "swap":
                return bool(cards) and self.swap(vm, dice.choice(cards))
            case "cancel":  # a migration that has just begun
                if self.type("vm", "migrate", name):
                    time.sleep(dice.uniform(0, 1.5))
                    return self.type("vm", "migrate", name, "--cancel") or True
                return False
            case _:
                return self.type("vm", "migrate", name)

    def swap(self, vm: Any, nic: str) -> bool:
        """To the other network."""
        for network in vm["spec"]["template"]["spec"]["networks"]:
            if network["name"] == nic:
                network["multus"] = {"networkName": "wan" if network["multus"]["networkName"] == "lan" else "lan"}
        return self.type("apply", "-f", "-", stdin=json.dumps(vm))

    # -- who is killed

    def kill(self, victims: str, host: str) -> None:
        """`host`: where the VM runs."""
        hosts, dice, copied = self.hosts, self.dice, self.copied()
        chosen = [hosts.daemons[place] for place, word in ((host, "source"), (OTHER[host], "target")) if word in victims]
        for libvirtd in chosen:
            libvirtd.kill()
        self.daemons_killed += bool(chosen)
        self.within_migrations += bool(chosen) and copied
        if "up" in victims:
            time.sleep(dice.choice([0, 0, 0.2]))
            hosts.up.kill()
        if chosen:
            time.sleep(dice.choice([0, 0.1, 0.5]))
        for libvirtd in chosen:
            libvirtd.start()
        if "up" in victims:
            hosts.up.start()

    def copied(self) -> bool:
        """Whether a VM is being copied: both daemons have a QEMU of it."""
        *_, first, second = self.hosts.glimpse()
        return bool(first & second)

    def moment(self, what: str) -> str:
        """Wait for the moment of a kill: some time, a few changes that are seen from outside, or that the VM is copied. How it
        was chosen."""
        dice = self.dice
        if what in ("migrate", "cancel") and dice.random() < 0.5:
            more, end = dice.choice([0, 0.02, 0.1, 0.3]) * dice.random(), time.monotonic() + QUIET
            while not self.copied() and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(more)
            return f"{more:.3f} s after a copy began"
        if dice.random() < 0.4:
            seconds = dice.choice([0.05, 0.3, 1.5]) * dice.random()
            time.sleep(seconds)
            return f"after {seconds:.3f} s"
        changes, more = dice.randint(1, 4), dice.choice([0, 0, 0.003, 0.02, 0.1])
        last, seen, since = self.hosts.glimpse(), 0, time.monotonic()
        while seen < changes and time.monotonic() - since < QUIET:
            time.sleep(0.001)
            if (now := self.hosts.glimpse()) != last:
                last, seen, since = now, seen + 1, time.monotonic()
        time.sleep(more)
        return f"{more} s after change {seen} of {changes}"

    def point(self) -> None:
        """One kill."""
        name = self.dice.choice(self.names)
        host = str(self.vmis()[name]["status"]["nodeName"])
        what = next(what for what in iter(lambda: self.dice.choice(ACTS), "") if self.act(name, what))
        if self.dice.random() < 0.3:  # a second VM at the same time
            self.act(next(other for other in self.names if other != name), self.dice.choice(ACTS))
        place = f"{what} of {name} on {host}, {self.moment(what)}"
        if not self.victims:
            self.victims = self.dice.sample(VICTIMS, len(VICTIMS))
        victims = self.victims.pop()
        self.places.append(f"{place}: {victims}")
        self.kill(victims, host)

    # -- what is seen afterwards

    def objects(self) -> list[Any]:
        return list(json.loads(self.hosts.up.ok("get", "vm,vmi,pods,vmim", "-o", "json"))["items"])

    def vmis(self) -> dict[str, Any]:
        return {obj["metadata"]["name"]: obj for obj in self.objects() if obj["kind"] == "VirtualMachineInstance"}

    def held(self, name: str) -> list[DomainSeen]:
        """The domains of a VM, without one that has no QEMU: libvirt cannot end it if its daemon was killed while it started
        it (tests/launcher/test_libvirt_unended.py)."""
        found = self.hosts.domains(name)
        unended = len(found) > libvirt_hosts.qemus([name]).total()
        return [domain for domain in found if not (unended and domain.state == STARTING)]

    def unrest(self) -> str:
        """Why it is not at rest; empty when it is."""
        objects = self.objects()
        by_kind = {kind: {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == kind}
                   for kind in ("VirtualMachine", "VirtualMachineInstance", "Pod", "VirtualMachineInstanceMigration")}
        vmis, taps = by_kind["VirtualMachineInstance"], set[tuple[str, str]]()
        for job in by_kind["VirtualMachineInstanceMigration"].values():
            if (job.get("status") or {}).get("phase") not in FINAL or job["metadata"].get("deletionTimestamp"):
                return f"{job['metadata']['name']}: {job.get('status')}"
        for name in self.names:
            vmi, found = vmis.get(name), self.held(name)
            status = (vmi or {}).get("status") or {}
            if vmi is None or status.get("phase") != "Running" or vmi["metadata"]["uid"] != self.uids.get(
                    name, vmi["metadata"]["uid"]):
                return f"{name} {LOST}: {status}"
            waits = [each for each in status["conditions"] if each["type"] in WAITS]
            if waits or [(one.host, one.state[0]) for one in found] != [(status["nodeName"], RUNNING)]:
                return f"{name}: {waits}, on {status['nodeName']}, and libvirt has {found}"
            spec = by_kind["VirtualMachine"][name]["spec"]["template"]["spec"]
            wanted = {(network["name"], network["multus"]["networkName"]) for network in spec["networks"]
                      if "multus" in network}
            if any(card.get("state") for card in spec["domain"]["devices"]["interfaces"]):
                return f"{name}: a NIC is to be absent: {spec['domain']['devices']['interfaces']}"
            reported = {each["name"] for each in status.get("interfaces") or () if "domain" in each.get("infoSource", "")}
            [domain] = found
            if {nic for nic, _ in wanted} != domain.nics or reported != domain.nics | {"default"} or Counter(
                    self.hosts.networks[network] for _, network in wanted) != Counter(bridge for _, bridge in domain.taps):
                return f"{name}: wants {wanted}, libvirt has {domain}, the status {reported}"
            taps |= domain.taps
        if self.hosts.taps() != taps:
            return f"taps: {self.hosts.taps()}, and NICs have {taps}"
        running = Counter(libvirt_hosts.qemus(self.names))
        if running != Counter(f"default_{name}" for name in self.names):
            return f"processes: {running}"
        alive = [pod["metadata"]["name"] for pod in by_kind["Pod"].values() if pod["status"].get("phase") not in FINAL]
        return f"pods: {alive}" if len(alive) != len(self.names) else ""

    def seen(self) -> list[str]:
        """For the note of a failure."""
        objects = self.objects()
        statuses = [f"{obj['metadata']['name']}: {obj['status'].get('nodeName')}, {obj['status'].get('migrationState')}"
                    for obj in objects if obj["kind"] == "VirtualMachineInstance"]
        waiting = [f"{obj['kind']} {obj['metadata']['name']}: {obj['status']}" for obj in objects
                   if obj["kind"] in ("Pod", "VirtualMachineInstanceMigration") and obj["status"].get("phase") not in FINAL]
        return [*statuses, *waiting, *(f"libvirt has {domain}" for name in self.names for domain in self.hosts.domains(name)),
                f"processes: {libvirt_hosts.qemus(self.names)}"]

    def rest(self) -> None:
        end = time.monotonic() + PATIENCE
        while why := self.unrest():
            name = why.partition(" ")[0]
            if LOST in why and name in self.uids and self.hosts.ended_by_libvirt() > self.ended:
                self.ended += 1
                del self.uids[name]  # another VMI takes its place
            elif time.monotonic() > end or (LOST in why and name in self.uids):
                raise AssertionError(f"not at rest within {PATIENCE:g} s: {why}")
            time.sleep(0.1)
        self.uids = {name: vmi["metadata"]["uid"] for name, vmi in self.vmis().items()}

    def tell(self, points: int) -> None:
        """`points`: how often a libvirt daemon is killed."""
        up = self.hosts.up
        up.start()
        up.ok("apply", "-f", "-", stdin=self.hosts.manifests(*NAMES))
        until(lambda: all(up.phase(name) == "Running" for name in self.names), "both run", PATIENCE)
        self.rest()
        while self.daemons_killed < points:
            self.point()
            if self.dice.random() < 0.25 and self.daemons_killed < points:  # again, before it came to rest
                self.point()
            self.rest()
        up.ok("delete", "vm", *self.names)
        until(lambda: not self.hosts.taps() and not any(self.held(name) for name in self.names), "nothing is left",
              PATIENCE)
        assert up.stop() == os.EX_OK


@contextlib.contextmanager
def noted(story: KilledHosts, seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}, after", *story.places, *story.hosts.up.log().splitlines()[-20:]]))
        with contextlib.suppress(Exception):
            error.add_note("\n".join(story.seen()))
        raise


def run_scenario(seed: int, points: int) -> None:
    with libvirt_hosts.two_hosts() as hosts:
        story = KilledHosts(hosts, seed)
        with noted(story, seed):
            story.tell(points)
            assert story.within_migrations, "no daemon was killed within a migration"


def test_twenty_kills_of_plug_unplug_and_migration() -> None:
    run_scenario(1, 20)


@pytest.mark.long(seeds=range(100, 110))
def test_two_hundred_kills_of_plug_unplug_and_migration(seed: int) -> None:
    run_scenario(seed, 20)
