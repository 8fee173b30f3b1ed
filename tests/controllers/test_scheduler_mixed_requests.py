"""Everything that the embedded scheduler gives, at once: claims, extended resources, flavors with CPUs of their own, devices
that were pre-assigned, that no host owns and that must be made ready, while operators mark and taint, and products die
between any two writes. After every write nothing is held beyond what was published; at rest nothing leaks and nothing waits for
what is free."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import device_refs, pod_claims
from outfitter.api.ledger_page.page import Page, pool_page
from outfitter.errors import Conflict, NotFound
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.ledger import out_of_service
from outfitter.scheduling.dra import binding_conditions, extended_resources
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.filter import node_fit, node_usage
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.placement import Placement
from outfitter.store.clock import ManualClock
from tests.controllers import invariants, replicas
from tests.controllers.invariants import Books, results
from tests.controllers.numa_hosts import CONFIG, HOSTS
from tests.controllers.replicas import RACK, SPACE, Controllers, ReplicaClient, ReplicaRun, ReplicaScenario, SharedBackend
from tests.controllers.scenario import CLUSTER_OBJECTS

VF, GPU = "example.com/vf", "example.com/gpu"
CELLS = {"elm": {"0": 4, "1": 4}, "oak": {"0": 4}}  # the CPUs of each cell
OURS = "pci.outfitter.dev"
NAMES = [f"{word}-{number}" for word in ("a", "b", "c") for number in range(5)]
RULE = "rule"
PINNED = {"hw:cpu_policy": "dedicated"}
FLAVORS = {
    "cpus": (2, PINNED), "near": (3, {**PINNED, "pci_passthrough:alias": "near gpu:1"}),
    "nics": (1, {"pci_passthrough:alias": "nic:2"}), "both": (1, {"pci_passthrough:alias": "gpu:1, nic:1"}),
}


def beyond(books: Books) -> Iterator[str]:
    """At every moment: what is held beyond what was published, and claims that no page knows."""
    holders: dict[DeviceId, list[str]] = {}
    cells: Counter[tuple[str, str]] = Counter()
    for page in books.pages:
        for booking in page.bookings:
            if booking.counted:
                holders.setdefault(booking.device, []).append(str(booking.holder))
            for cell, count in (booking.amount.get("cells") or {}).items():
                cells[page.host, str(cell)] += count
    yield from (f"{device.short} is held by {' and by '.join(those)}" for device, those in holders.items() if len(those) > 1)
    yield from (f"{count} CPUs of cell {cell} of {host} are booked" for (host, cell), count in cells.items()
                if count > CELLS[host][cell])
    yield from invariants._counters(books)
    held = {(booking.holder.uid, booking.device) for booking in books.bookings}
    for claim in books.all(kinds.RESOURCE_CLAIM):
        yield from (f"claim {claim['metadata']['name']} has {device.short}, and no page says so" for device in results(claim)
                    if (claim["metadata"]["uid"], device) not in held)


def crowded(books: Books) -> Iterator[str]:
    """Where one scheduler is at work no host has promised more than it has. Two may: amounts stand on no page."""
    taken = node_usage.NodeUsage(books.all(kinds.POD))
    for node in books.all(kinds.NODE):
        name = node["metadata"]["name"]
        for what, amount in taken.at(name).items():
            if what in ("cpu", "memory") and amount > node_fit.NodeInfo.of(node).amounts[what]:
                yield f"{amount} {what} of {name} are taken"


def leaks(books: Books) -> Iterator[str]:
    """At rest."""
    claims = {claim["metadata"]["uid"]: claim for claim in books.all(kinds.RESOURCE_CLAIM)}
    promised = sorted((uid, device) for uid, claim in claims.items() for device in results(claim))
    booked = sorted((booking.holder.uid, booking.device) for booking in books.bookings if booking.counted)
    if promised != booked:
        yield f"claims say {promised}, pages say {booked}"
    yield from (f"{booking.holder} is gone and has {booking.device.short}" for booking in books.bookings
                if booking.holder.uid not in claims)
    for claim in claims.values():
        meta = claim["metadata"]
        for owner in meta.get("ownerReferences") or ():
            kind = kinds.POD if owner["kind"] == "Pod" else kinds.VMI
            if (there := books.objects[kind].get((meta["namespace"], owner["name"]))) is None or (
                    there["metadata"]["uid"] != owner["uid"]):
                yield f"claim {meta['name']} outlived its {owner['kind']}"
        if (claim.get("status") or {}).get("allocation") and not claim["status"].get("reservedFor"):
            yield f"claim {meta['name']} has devices and no user"
    made = [claim["metadata"]["name"] for claim in claims.values()
            if extended_resources.ANNOTATION in (claim["metadata"].get("annotations") or {})]
    told = [dict(pod_claims.claim_names(pod)).get(device_refs.EXTENDED) for pod in books.all(kinds.POD)]
    if sorted(made) != sorted(name for name in told if name):
        yield f"made for extended resources: {made}; pods say {told}"
    for pod in books.all(kinds.POD):
        meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
        if meta.get("deletionTimestamp"):
            yield f"pod {meta['name']} was deleted and is still there"
        if status.get("phase") == "Pending" and (spec.get("nodeName") or not (
                conditions.find(pod, "PodScheduled") or {}).get("message")):
            yield f"pod {meta['name']} waits for no reason: {status}"
        if chosen := [word for _, word in extended_resources.presets(pod)] if spec.get("nodeName") else []:
            mine = books.objects[kinds.RESOURCE_CLAIM][SPACE, status["extendedResourceClaimStatus"]["resourceClaimName"]]
            if sorted(chosen) != sorted(f"{device.pool}/{device.device}" for device in results(mine)):
                yield f"pod {meta['name']} was given {chosen} beforehand and has {results(mine)}"


class Mixed(SharedBackend):
    alone = True  # one scheduler

    def look(self) -> None:
        self.note(beyond(self.books))
        if self.alone:
            self.note(crowded(self.books))


class Mix(ReplicaScenario):
    backend: Mixed

    def __post_init__(self) -> None:
        self.dice, self.books = random.Random(self.seed), Books()
        self.backend = Mixed(self.clock, self.books, self.seed)
        self.backend.alone = not self.seed % 2
        self.settings = config.parse(CONFIG)
        played = app.simulated_hosts(hosts_file.parse(HOSTS).hosts, config=self.settings)
        self.hosts = {host.name: host for host in played}
        self.served = list(self.hosts)

    async def begin(self) -> None:
        backend = self.backend
        await backend.create(kinds.NAMESPACE, {"metadata": {"name": SPACE}})
        for name, driver, kind, resource in (("vf", OURS, "VF", VF), ("gpu", OURS, "PCI", GPU), ("rack", RACK, "", "")):
            words = f'device.driver == "{driver}"' + (f' && device.attributes["{OURS}"].kind == "{kind}"' if kind else "")
            await backend.create(kinds.DEVICE_CLASS, {"metadata": {"name": name}, "spec": {
                "selectors": [{"cel": {"expression": words}}], **({"extendedResourceName": resource} if resource else {})}})
        ready = {"bindsToNode": True, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
        await backend.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "rack"}, "spec": {
            "driver": RACK, "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 1}, "allNodes": True,
            "devices": [{"name": "x0"}, {"name": "x1", **ready}, {"name": "x2", **ready}]}})
        for name, (vcpus, extra) in FLAVORS.items():
            await backend.create(kinds.FLAVOR, {"metadata": {"name": name}, "spec": {
                "vcpus": vcpus, "memory": "1Gi", "extraSpecs": extra}})
        self.start()

    def start(self) -> ReplicaRun:
        client = ReplicaClient(self.backend, random.Random(self.dice.random()))
        serves = not any(life.serves for life in self.lives)
        kind, hosts = (app.Embedded, list(self.hosts.values())) if serves else (Controllers, [])
        product = kind(client, hosts, clock=self.clock, config=self.settings, aliases=AliasSet.of(self.settings.default))
        self.lives.append(ReplicaRun(client, product, asyncio.get_running_loop().create_task(product.start())))
        return self.lives[-1]

    async def rest(self) -> None:
        for life in self.lives:
            life.client.open.set()
            life.client.fatal = None
        try:
            await self._rest(self.backend.steps + replicas.ENOUGH)
        except TimeoutError as error:
            self.backend.broken.append(str(error))
            return
        self.backend.look()
        self.backend.note(leaks(self.books))
        self.backend.note(self.idle())

    def idle(self) -> Iterator[str]:
        """Pods that wait and could be given a host."""
        books = self.books
        found: dict[str, Any] = {name: books.all(kind) for name, kind in CLUSTER_OBJECTS.items()}
        cluster = ClusterObjects(**found)
        for pod in books.all(kinds.POD):
            mine = [books.objects[kinds.RESOURCE_CLAIM].get((SPACE, name or "")) for _, name in pod_claims.claim_names(pod)]
            if pod["spec"].get("nodeName") or binding_conditions.readiness(
                    [claim for claim in mine if claim], self.clock.now()).state != "ready":
                continue
            if isinstance(verdict := cluster.choose(pod), Placement):
                yield f"pod {pod['metadata']['name']} waits and could be on {verdict.host}: {pod['status']}"

    # -- what may happen

    async def act(self) -> None:
        what = self.dice.choice([
            self.pod, self.pod, self.pod, self.pod, self.machine, self.machine, self.drop, self.drop, self.drop, self.driver,
            self.driver, self.mark, self.unmark, self.taint, self.doom, self.another, self.restart, self.later, self.work_on])
        with contextlib.suppress(NotFound, Conflict):
            await what()

    async def pod(self) -> None:
        name, dice = self.dice.choice(NAMES), self.dice
        container: Object = {"name": "main", "resources": {"requests": {"cpu": dice.choice(["100m", "1", "3"])}}}
        claims = []
        for number, class_ in enumerate(dice.choice([["vf"], ["rack"], ["rack"], ["vf", "rack"], ["gpu"], [], [], []])):
            claim = f"{name}-{number}"
            claims.append({"name": f"c{number}", "resourceClaimName": claim})
            tolerant = {"tolerations": [{"operator": "Exists"}]} if dice.random() < 0.2 else {}
            await self.create(kinds.RESOURCE_CLAIM, claim, {"devices": {"requests": [
                {"name": "it", "exactly": {"deviceClassName": class_, "count": dice.choice([1, 1, 2]), **tolerant}}]}})
        way = dice.random()
        if way < 0.3:
            container["resources"]["limits"] = {dice.choice([VF, GPU]): str(dice.choice([1, 1, 2]))}
        elif way < 0.5 and (device := self.some()):
            resource = VF if "-vf" in device else GPU
            container["resources"]["limits"] = {resource: "1"}
            container["assignedDevices"] = [{"resourceName": resource, "deviceIDs": [device]}]
        await self.create(kinds.POD, name, {"containers": [container], "resourceClaims": claims})

    def some(self) -> str:
        """A device of a host, as people say it."""
        names = [f"{piece['spec']['nodeName']}/{device['name']}" for piece in self.books.all(kinds.RESOURCE_SLICE)
                 if piece["spec"].get("nodeName") for device in piece["spec"].get("devices") or ()]
        return self.dice.choice(sorted(names)) if names else ""

    async def machine(self) -> None:
        await self.create(kinds.VMI, self.dice.choice(NAMES[:4]), {
            "flavor": {"name": self.dice.choice(sorted(FLAVORS))}, "domain": {}})

    async def drop(self) -> None:
        kind: Kind = self.dice.choice([kinds.POD, kinds.POD, kinds.VMI, kinds.RESOURCE_CLAIM])
        if there := sorted(self.books.objects[kind]):
            await self.delete(kind, self.dice.choice(there)[1], self.dice.choice([None, 0]) if kind == kinds.POD else None)

    async def driver(self) -> None:
        """It says of a device whether it is ready."""
        for claim in self.books.all(kinds.RESOURCE_CLAIM):
            given = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
            said = [{**{key: one[key] for key in ("driver", "pool", "device")}, "conditions": [
                {"type": self.dice.choice(["Attached", "Attached", "Broken"]), "status": "True", "reason": "Said",
                 "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
                for one in given.get("results") or () if one.get("bindingConditions")]
            if said and self.dice.random() < 0.6:
                await self.backend.patch(kinds.RESOURCE_CLAIM, claim["metadata"]["name"], {"status": {"devices": said}}, SPACE,
                                      subresource="status")

    def place(self) -> tuple[str, DeviceId]:
        if self.dice.random() < 0.2 or not (word := self.some()):
            return pool_page(RACK, "rack"), DeviceId(RACK, "rack", self.dice.choice(["x0", "x1", "x2"]))
        host, _, name = word.partition("/")
        return host, DeviceId(OURS, host, name)

    async def mark(self) -> None:
        page, device = self.place()
        await self.dice.choice([out_of_service.reserve, out_of_service.quarantine])(self.backend, page, device, by="admin")

    async def unmark(self) -> None:
        for page in self.books.pages:
            for mark in page.records("reserved"):
                await out_of_service.unreserve(self.backend, page.host, mark.device)
            for mark in page.records("quarantined"):
                await out_of_service.restore(self.backend, page.host, mark.device)

    async def taint(self) -> None:
        """A rule comes, or goes when it is there."""
        if ("", RULE) in self.books.objects[kinds.DEVICE_TAINT_RULE]:
            await self.backend.delete(kinds.DEVICE_TAINT_RULE, RULE)
            return
        _, device = self.place()
        await self.backend.create(kinds.DEVICE_TAINT_RULE, {"metadata": {"name": RULE}, "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.device},
            "taint": {"key": "example.com/sick", "effect": self.dice.choice(["NoSchedule", "NoExecute"])}}})

    async def doom(self) -> None:
        client = self.dice.choice(self.lives).client
        client.fatal = (client.writes + self.dice.randint(1, 12), self.dice.choice(["before", "after"]))

    async def another(self) -> None:
        if len(self.lives) < 2 and not self.backend.alone:
            self.start()

    async def restart(self) -> None:
        await self.kill(self.dice.choice(self.lives))
        if not self.lives:
            self.start()

    async def later(self) -> None:
        self.clock.advance(self.dice.choice([0.01, 1, 70, 601]))

    async def work_on(self) -> None:
        await self.work(300)

    async def clear(self) -> None:
        """All goes, and nothing is left."""
        await self.unmark()
        for kind in (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM):
            for _, name in list(self.books.objects[kind]):
                await self.delete(kind, name)
        await self.rest()
        for kind in (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM):
            self.backend.broken += [f"left: {obj}" for obj in self.books.all(kind)]
        self.backend.broken += [f"left: {booking}" for booking in self.books.bookings]


async def random_run(seed: int, steps: int) -> None:
    scenario = Mix(seed, ManualClock())
    await scenario.begin()
    try:
        await scenario.rest()
        for number in range(steps):
            await scenario.act()
            await scenario.work(scenario.dice.choice([0, 0, 5, 30, 100]))
            if not scenario.lives:
                scenario.start()
            if number % 15 == 14:
                await scenario.rest()
            assert not scenario.backend.broken, "\n".join(
                [f"seed {seed}, step {number}", *scenario.backend.broken[:5], scenario.picture()])
        await scenario.rest()
        await scenario.clear()
        assert not scenario.backend.broken, "\n".join([f"seed {seed}", *scenario.backend.broken[:5], scenario.picture()])
    finally:
        await scenario.end()


@pytest.mark.parametrize("seed", range(3))
async def test_everything_at_once(seed: int) -> None:
    await random_run(seed, 60)


@pytest.mark.long(seeds=range(100, 112))
async def test_everything_at_once_for_long(seed: int) -> None:
    await random_run(seed, 300)


@pytest.mark.parametrize(("name", "says"), [("cells", "CPUs of cell"), ("whole", "is held by")])
async def test_a_page_that_lets_everything_pass_is_noticed(name: str, says: str) -> None:
    """So that the tests above can fail."""
    claim = [{"device": {"driver": OURS, "pool": "elm", "device": "d"}, "holder": {"kind": "ResourceClaim", "uid": str(number),
              "name": str(number), "namespace": SPACE}, "request": "", "state": "booked", "since": "now",
              "amount": {"resources": {}, "cells": {"0": 3}} if name == "cells" else {"whole": True}} for number in range(2)]
    books = Books()
    books.objects[kinds.LEDGER_PAGE]["", "elm"] = {**Page.blank("elm"), "spec": {"bookings": claim}}
    assert any(says in sentence for sentence in beyond(books))
