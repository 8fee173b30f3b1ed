"""Several products on one store, as after a fail-over in which the old one is not dead yet. Each has a door of its own to the
store, behind which it can be slow, held still, or killed between any two of its writes; behind all doors is one home that
looks at the invariants after every single write. A host has one agent at a time, as it has one hypervisor: one of the products
serves the hosts, the others schedule and control."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from outfitter import app
from outfitter.api import admission, kinds, write_request
from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES, Page
from outfitter.cel.library import quantity
from outfitter.errors import AlreadyExists, Conflict, NotFound, OutfitterError, Unavailable
from outfitter.inventory import config, scan
from outfitter.inventory.host_tree import Tree
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.simulated import Simulated
from outfitter.node.agent_host import AgentHost
from outfitter.store import base
from outfitter.store.clock import ManualClock, rfc3339
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from outfitter.store.transaction import Transaction
from outfitter.store.watch_cache import ObjectChange, Record, Selection, WatchCache, Watcher
from tests.controllers import invariants, resync
from tests.controllers.invariants import Books

T = TypeVar("T")
When = Literal["before", "after"]
SPACE, DRIVER = "here", "pci.outfitter.dev"
PACES = (0, 0, 0, 1, 3, 10, 30)  # turns of the others during one step to or from the store
QUIET = (0.01, 1, 2, 8, 31, 61)  # seconds; who has not moved after all of these will not
LONG = 500  # turns after which whoever is not done waits for the clock
ENOUGH = 1000  # writes after which those who still move will go on for ever
MOST = 3  # VFs of a host
PF = "pci-0000-3b-00-0"
# node-0 gives its card away whole or in parts, which is counted; the others give away parts only.
HOSTS = {"node-0": "device_spec: [{vendor_id: '8086'}]", "node-1": "{}", "node-2": "{}"}
OURS = (kinds.VM, kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM)  # what users make
COUNTED = (kinds.LEDGER_PAGE, kinds.RESOURCE_CLAIM)


class SharedBackend(Memory):
    """Where the objects are. What is broken is noted, not raised: a controller would take it for its own mistake."""

    def __init__(self, clock: ManualClock, books: Books, seed: int) -> None:
        super().__init__(clock=clock, names=IdGenerator(random.Random(seed)), rules=admission.AdmissionRules())
        self.books, self.broken = books, list[str]()
        self.steps = 0
        self.trace = hashlib.sha256()  # of all that was ever written, in order

    def _publish(self, steps: Sequence[ObjectChange]) -> None:
        super()._publish(steps)
        self.steps += 1
        touched = False
        for step in steps:
            record = step.next or step.previous
            assert record is not None
            new = step.next.object() if step.next is not None else None
            self.trace.update(f"{step.revision} {record.kind.resource} {record.key} {new}\n".encode())
            if new is None:
                self.books.objects[record.kind].pop(record.key, None)
            else:
                self.books.objects[record.kind][record.key] = new
            touched |= record.kind in COUNTED
            if record.kind == kinds.LEDGER_PAGE and new is not None:
                old = Page(step.previous.object() if step.previous is not None else Page.blank(record.key[1]))
                self.note(invariants.change(old, Page(new)))
            if record.kind == kinds.RESOURCE_SLICE and new is not None:
                self._count(new)
        if touched:
            self.look()

    def _count(self, piece: Object) -> None:
        for entry in piece["spec"].get("sharedCounters") or ():
            for counter, amount in entry["counters"].items():
                place = piece["spec"]["pool"]["name"], entry["name"], counter
                if quantity.parse(amount["value"]) > quantity.parse(self.books.counters.get(place, "0")):
                    self.books.counters[place] = amount["value"]

    def forget(self) -> None:
        """Nothing of what happened: who has not heard of it must list again."""
        for shelf in self._caches.values():
            shelf.first += len(shelf.log)
            shelf.compacted = shelf.revision
            shelf.log.clear()

    def look(self) -> None:
        self.note(invariants.moment(self.books))

    def note(self, sentences: Iterable[str]) -> None:
        self.broken += [f"write {self.steps}: {sentence}" for sentence in sentences]


RACK = "rack.example.com"  # publishes devices that every host reaches
TWIN = "twin.example.com"  # publishes functions of hosts that our driver publishes too, one of them under two names
TWINS = {"t0": 0, "t1": 1, "t2": 1}  # device -> the VF that it is


class ReplicaClient(Memory):
    """One product's way to the home."""

    def __init__(self, backend: SharedBackend, dice: random.Random) -> None:
        super().__init__(clock=backend.clock, names=backend.names, rules=backend.rules)
        self.backend, self.dice = backend, dice
        self.open = asyncio.Event()
        self.open.set()
        self.dead = self.buried = False
        self.writes = 0
        self.fatal: tuple[int, When] | None = None
        self.stumbles: tuple[int, When] | None = None  # the write that fails, or whose answer is lost
        self.watches: list[Watcher] = []
        self.trap: tuple[int, Callable[[], Awaitable[object]]] | None = None  # called after so many more reads

    def watch_cache(self, kind: Kind) -> WatchCache:
        return self.backend.watch_cache(kind)

    def list_records(
        self, kind: Kind, selection: Selection, *, limit: int = 0, continue_: str = "", at: int | None = None
    ) -> tuple[Sequence[Record], int, str, int | None]:
        return self.backend.list_records(kind, selection, limit=limit, continue_=continue_, at=at)

    def open_watch(self, kind: Kind, selection: Selection, since: int) -> Watcher:
        self.watches = [watch for watch in self.watches if not watch.ended]
        self.watches.append(self.backend.open_watch(kind, selection, since))
        return self.watches[-1]

    async def _turn(self) -> None:
        """The others move on while this one is on its way."""
        for _ in range(self.dice.choice(PACES)):
            await asyncio.sleep(0)
        while not self.open.is_set():
            await self.open.wait()
        if self.buried:
            raise asyncio.CancelledError  # whatever it still does on its way out no longer reaches the store
        if self.dead:
            await asyncio.Event().wait()

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        await self._turn()
        obj = await super().get(kind, name, namespace)
        if self.trap is not None:
            left, act = self.trap
            self.trap = (left - 1, act) if left > 1 else None
            if left <= 1:
                await act()
        await self._turn()
        return obj

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> base.Listing:
        await self._turn()
        return await super().list(kind, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_)

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[base.Event]:
        stream = super().watch(kind, namespace, since=since, labels=labels, fields=fields, bookmarks=bookmarks)
        async for event in stream:
            await self._turn()
            yield event

    async def write(
        self, work: Callable[[Transaction], T], *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES
    ) -> T:
        await self._turn()
        self.writes += 1
        mine, (number, when) = self.writes, self.fatal or (0, "before")
        if mine == number and when == "before":
            await self.die()
        if self.stumbles == (mine, "before"):
            raise Unavailable("the store did not get it", 0.5)
        try:
            answer = await self.backend.write(work, dry_run=dry_run, by=by)
        finally:  # one that was refused counts as well
            if mine == number and when == "after":
                await self.die()
        if self.stumbles == (mine, "after"):
            raise Unavailable("nobody knows what became of it", 0.5)
        await self._turn()
        return answer

    async def die(self) -> None:
        self.dead = True
        await asyncio.Event().wait()

    async def close(self) -> None:
        """The home stays."""


class Watched(Simulated):
    """A hypervisor that has the invariants looked at whenever a VM starts."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    async def start(self, domain: Domain) -> None:
        await super().start(domain)
        self._look()

    @property
    def running(self) -> Collection[Domain]:
        return self._domains.values()


class Controllers(app.Embedded):
    """A product that serves no hosts, and leaves those that it finds to whoever does."""

    async def _set_aside(self) -> None:
        pass


@dataclass
class ReplicaRun:
    """A product from its start to its death."""

    client: ReplicaClient
    product: app.Embedded
    starting: asyncio.Task[None]

    @property
    def serves(self) -> bool:
        return not isinstance(self.product, Controllers)

    @property
    def over(self) -> bool:
        if self.starting.done() and not self.starting.cancelled() and (error := self.starting.exception()):
            if not isinstance(error, (Conflict, AlreadyExists, Unavailable)):
                raise error
            return True  # it could not write what it wanted to write at its start: it ends, and is started again
        return self.client.dead


def trees() -> dict[str, list[Tree]]:
    """Each host with no VF, with one, and so on; the names of devices stay."""
    return {name: [hosts_file.parse(f"""
hosts:
- name: {name}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}]
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0,
     vfs: {{count: {count}, product: 1889}}}}
""", name).hosts[0].tree() for count in range(MOST + 1)] for name in HOSTS}


TREES = trees()
FULL = {name: scan.scan(those[MOST]).devices for name, those in TREES.items()}


@dataclass
class ReplicaScenario:
    """Hosts, one home, the products on it, and what users do. Users write to the home itself: nothing of theirs waits."""

    seed: int
    clock: ManualClock = field(default_factory=ManualClock)
    lives: list[ReplicaRun] = field(default_factory=list)
    told: bool = True  # the other driver reports from the start where its devices are

    def __post_init__(self) -> None:
        addresses = {device.address: device.name for devices in FULL.values() for device in devices}
        self.dice = random.Random(self.seed)
        self.books = Books(
            names={(host, device.address): device.name for host, devices in FULL.items() for device in devices},
            twins={DeviceId(TWIN, host, name): f"{PF}-vf{number}" for host in FULL for name, number in TWINS.items()},
            parents={(host, device.name): addresses[device.parent] for host, devices in FULL.items() for device in devices
                     if device.parent is not None})
        self.backend = SharedBackend(self.clock, self.books, self.seed)
        self.vfs = {"node-0": 2, "node-1": 2, "node-2": 1}
        self.hosts = {name: self._host(name, words) for name, words in HOSTS.items()}
        self.served = ["node-0", "node-1"]

    def _host(self, name: str, words: str) -> AgentHost:
        machines = Watched(self.backend.look)
        self.books.domains = {**self.books.domains, name: machines.running}
        return AgentHost(name, DRIVER, lambda: TREES[name][self.vfs[name]], machines, {"cpu": "16", "memory": "64Gi"}, {},
                    simulated=True, settings=config.parse(words).default)

    async def begin(self) -> None:
        await self.backend.create(kinds.NAMESPACE, {"metadata": {"name": SPACE}})
        for kind in ("pf", "vf"):
            expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "{kind.upper()}"'
            await self.backend.create(kinds.DEVICE_CLASS, {"metadata": {"name": kind},
                                                        "spec": {"selectors": [{"cel": {"expression": expression}}]}})
            for count in (1, 2, 3):
                await self.backend.create(kinds.RESOURCE_CLAIM_TEMPLATE, {
                    "metadata": {"name": f"{kind}-{count}", "namespace": SPACE}, "spec": {"spec": claim_spec(kind, count)}})
        await self.backend.create(kinds.DEVICE_CLASS, {"metadata": {"name": "rack"}, "spec": {"selectors": [
            {"cel": {"expression": f'device.driver == "{RACK}"'}}]}})
        await self.backend.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "rack"}, "spec": {
            "driver": RACK, "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 1}, "allNodes": True,
            "devices": [{"name": f"x{number}", "attributes": {"kind": {"string": "RACK"}}} for number in range(2)]}})
        await self.backend.create(kinds.DEVICE_CLASS, {"metadata": {"name": "twin"}, "spec": {"selectors": [
            {"cel": {"expression": f'device.driver == "{TWIN}"'}}]}})
        for host in HOSTS:
            await self.backend.create(kinds.RESOURCE_SLICE, {
                "metadata": {"name": f"twin-{host}"}, "spec": self._twins(host, 1, told=self.told)})
        for kind, count in (("rack", 1), ("rack", 2), ("twin", 1), ("twin", 2)):
            await self.backend.create(kinds.RESOURCE_CLAIM_TEMPLATE, {
                "metadata": {"name": f"{kind}-{count}", "namespace": SPACE}, "spec": {"spec": claim_spec(kind, count)}})
        self.start()

    def _twins(self, host: str, generation: int, *, told: bool = True) -> Object:
        """What the other driver publishes of a host; it may not tell where its devices are."""
        def attributes(name: str) -> Object:
            address = next(device.address for device in FULL[host] if device.name == f"{PF}-vf{TWINS[name]}")
            return {"kind": {"string": "TWIN"}, **({"pciAddress": {"string": address}} if told else {})}

        return {"driver": TWIN, "nodeName": host, "pool": {"name": host, "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": name, "attributes": attributes(name)} for name in TWINS]}

    async def tell(self, host: str, told: bool) -> None:
        """The other driver reports where its devices are, or does not any more."""
        piece = self.books.objects[kinds.RESOURCE_SLICE]["", f"twin-{host}"]
        generation = piece["spec"]["pool"]["generation"] + 1
        await self.backend.replace(kinds.RESOURCE_SLICE, {**piece, "spec": self._twins(host, generation, told=told)})

    # -- products

    def start(self) -> ReplicaRun:
        """Another product, which serves the hosts when no other does; it starts while the others go on."""
        client = ReplicaClient(self.backend, random.Random(self.dice.random()))
        hosts = [self.hosts[name] for name in self.served]
        alone = not any(life.serves for life in self.lives)
        product = app.Embedded(client, hosts, clock=self.clock) if alone else Controllers(client, [], clock=self.clock)
        self.lives.append(ReplicaRun(client, product, asyncio.get_running_loop().create_task(product.start())))
        return self.lives[-1]

    async def kill(self, life: ReplicaRun) -> None:
        life.client.dead = life.client.buried = True
        life.client.open.set()
        life.starting.cancel()
        await asyncio.gather(life.starting, return_exceptions=True)
        await life.product.runner.stop()
        self._faults()
        self.lives.remove(life)

    async def bury(self) -> None:
        for life in [life for life in self.lives if life.over]:
            await self.kill(life)

    async def work(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await self.bury()

    async def rest(self) -> None:
        """Until all controllers are idle, however long one waits; then the books must be in order."""
        for life in self.lives:
            life.client.open.set()
            life.client.fatal = life.client.stumbles = None
        try:
            await self._rest(self.backend.steps + ENOUGH)
        except TimeoutError as error:
            self.backend.broken.append(str(error))
            return
        self.books.served = list(self.served)
        self.backend.look()
        self.backend.note(invariants.rest(self.books))
        await self._look_again()
        self._faults()

    async def _look_again(self) -> None:
        """A resync finds nothing to do."""
        before, traps = self._versions(), [(life.client, life.client.trap) for life in self.lives]
        for life in self.lives:
            life.client.trap = None  # what a user does about what is read now would be a change
            resync.look(life.product)
        await self._settle(self.backend.steps + ENOUGH)
        for client, trap in traps:
            client.trap = trap
        self.backend.note(resync.missed(before, self._versions()))

    def _versions(self) -> resync.Versions:
        return resync.versions((kind, obj) for kind in self.books.objects for obj in self.books.all(kind))

    def _faults(self) -> None:
        """What no reconcile may end with."""
        for life in self.lives:
            self.backend.note(f"{who} had a fault" for (who, what), _ in life.product.runner.errors.items() if what == "fault")

    async def _rest(self, most: int) -> None:
        quiet = 0
        while quiet < len(QUIET):
            before = self.backend.steps
            self.clock.advance(QUIET[quiet])
            await self._settle(most)
            quiet = quiet + 1 if self.backend.steps == before else 0

    async def _settle(self, most: int) -> None:
        """Until all informers are up to date and all controllers are idle, several times in a row."""
        still = busy = 0
        while still < 5:
            await asyncio.sleep(0)
            busy += 1
            if busy % LONG == 0:
                self.clock.advance(1)  # whoever follows something that ended waits before it asks again
            await self.bury()
            if not any(life.serves for life in self.lives):
                self.start()
            if not all(life.starting.done() for life in self.lives):
                self.clock.advance(0.001)  # what hinders it may wait for the clock
            still = still + 1 if all(map(self._idle, self.lives)) else 0
            if self.backend.steps > most:
                raise TimeoutError(f"{ENOUGH} writes, and the products do not come to rest")

    def _idle(self, life: ReplicaRun) -> bool:
        return life.starting.done() and life.product.runner.idle and all(
            int(informer.revision or 0) >= self.backend.watch_cache(kind).revision
            for kind, informer in life.product.context.informers.items())

    async def serve(self, hosts: Collection[str]) -> None:
        """Other hosts: who served them is stopped, and another one started."""
        for life in [life for life in self.lives if life.serves]:
            await self.kill(life)
        self.served = sorted(hosts)
        self.start()

    async def end(self) -> None:
        for life in list(self.lives):
            await self.kill(life)

    # -- users

    async def create(self, kind: Kind, name: str, spec: Object, *, kept: bool = False) -> None:
        """`kept`: it is deleted on request only."""
        meta = {"name": name, "namespace": SPACE, **({"finalizers": [invariants.KEPT]} if kept else {})}
        with contextlib.suppress(OutfitterError):  # there is one of this name
            await self.backend.create(kind, {"metadata": meta, "spec": spec})

    async def let_go(self) -> None:
        """What was kept may go."""
        for kind in (kinds.VM, kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM):
            for obj in self.books.all(kind):
                if invariants.KEPT in (finalizers := obj["metadata"].get("finalizers") or ()):
                    left = [one for one in finalizers if one != invariants.KEPT]
                    await self.backend.patch(kind, obj["metadata"]["name"], {"metadata": {"finalizers": left or None}}, SPACE)

    async def ask(self, name: str, action: vm_actions.Action) -> None:
        """What people ask of a VirtualMachine, which may be refused."""
        vm, instance = (self.books.objects[kind].get((SPACE, name)) for kind in (kinds.VM, kinds.VMI))
        if vm is None:
            return
        own = instance if instance is not None and vm_api.belongs(instance, vm) else None
        with contextlib.suppress(Conflict, NotFound):
            for change in vm_actions.requested_changes(action, vm, own):
                await self.backend.patch(change.kind, name, change.patch, SPACE, subresource=change.subresource)
            self.books.asked[vm["metadata"]["uid"]] = action

    async def press(self, name: str, action: vmi_actions.Action) -> None:
        """What people ask of a VM that runs."""
        instance = self.books.objects[kinds.VMI].get((SPACE, name))
        if instance is not None:
            with contextlib.suppress(Conflict):
                wanted = vmi_actions.with_action_request(action, instance, rfc3339(self.clock.now()))
                await self.backend.patch(
                    kinds.VMI, name, {"status": {vmi_actions.FIELD: wanted}}, SPACE, subresource="status"
                )

    async def delete(self, kind: Kind, name: str, grace: int | None = None) -> None:
        with contextlib.suppress(NotFound):
            await self.backend.delete(kind, name, SPACE, grace=grace)

    async def clear(self) -> None:
        """Users go, and take everything with them."""
        await self.serve(HOSTS)
        await self.let_go()
        for kind in OURS:
            for obj in self.books.all(kind):
                await self.delete(kind, obj["metadata"]["name"])
        await self.rest()
        for kind in OURS:
            self.backend.broken += [f"left: {obj}" for obj in self.books.all(kind)]
        self.backend.broken += [f"left: {booking}" for booking in self.books.bookings]
        self.backend.broken += [f"left: {domain.name}" for domains in self.books.domains.values() for domain in domains]

    def pods_of(self, name: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.books.all(kinds.POD)
                if (pod["metadata"].get("labels") or {}).get("vm.kubevirt.io/name") == name]

    def plug(self, host: str, vfs: int) -> None:
        """So many VFs from now on; the keepers look."""
        self.vfs[host] = vfs
        for life in self.lives:
            if host in life.product.host_audit.hosts:
                life.product.host_audit.queue.add(host)

    async def relieve(self) -> None:
        """What kept devices away is undone, one thing after the other; each time a pod may have waited for just that."""
        for host in HOSTS:
            await self.cordon(host, False)
        await self.rest()
        for host in HOSTS:
            self.plug(host, MOST)
        await self.rest()
        for host in HOSTS:
            await self.tell(host, True)
        await self.rest()

    async def edit(self, page: str, how: str, which: int) -> None:
        """A user edits a page by hand."""
        def work(transaction: Transaction) -> None:
            if how == "delete":
                transaction.delete(kinds.LEDGER_PAGE, page)
                return
            obj = transaction.require(kinds.LEDGER_PAGE, page, "").object()
            bookings = obj["spec"].get("bookings") or []
            one = bookings[which % len(bookings)] if bookings else {}
            if how == "remove" and bookings:
                bookings.remove(one)
            elif how == "empty":
                bookings.clear()
            elif how in ("booked", "prepared", "released"):
                one["state"] = how
            elif how == "hardware":
                one["hardware"] = []
            elif how in ("second", "second prepared") and bookings:
                claims = sorted(self.books.all(kinds.RESOURCE_CLAIM), key=lambda claim: str(claim["metadata"]["name"]))
                for claim in claims[which % len(claims):][:1] if claims else ():
                    holder = {"kind": "ResourceClaim", **{key: claim["metadata"][key] for key in ("namespace", "name", "uid")}}
                    bookings.append({**one, "holder": holder, "state": how.removeprefix("second").strip() or "booked"})
            transaction.replace(kinds.LEDGER_PAGE, obj)

        with contextlib.suppress(OutfitterError):
            await self.backend.write(work, by=write_request.Writer("admin"))

    async def cordon(self, host: str, yes: bool) -> None:
        with contextlib.suppress(NotFound):
            await self.backend.patch(kinds.NODE, host, {"spec": {"unschedulable": yes or None}})

    def picture(self) -> str:
        lines = [f"{booking.device.short} {booking.state} by {booking.holder}" for booking in self.books.bookings]
        lines += [f"{record.device.short} {state}" for page in self.books.pages for state in OUT_OF_SERVICE_STATES
                  for record in page.records(state)]
        lines += [f"domain {domain.name} {domain.devices}" for those in self.books.domains.values() for domain in those]
        for kind in (kinds.NODE, *OURS):
            lines += [f"{kind.singular} {obj['metadata']['name']} {obj['metadata'].get('deletionTimestamp', '')} "
                      f"{obj.get('spec', {}).get('nodeName', '')} {obj.get('status')}" for obj in self.books.all(kind)]
        return "\n".join(lines)


def claim_spec(kind: str, count: int) -> Object:
    return {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": kind, "count": count}}]}}


def source(word: str) -> Object:
    """A template ("vf-2") or a claim ("claim-a") that a pod uses."""
    return {"name": "network", "resourceClaimName" if word.startswith("claim") else "resourceClaimTemplateName": word}


def pod_spec(word: str) -> Object:
    return {"containers": [{"name": "main", "image": "main"}], "resourceClaims": [source(word)]}


def vm_spec(word: str, strategy: str, *, own: bool) -> Object:
    """A VirtualMachine; its claim is its own, or that of each of its instances."""
    body = machine_spec(word)
    if own:
        kind, _, count = word.partition("-")
        body.pop("resourceClaims")
        return {"runStrategy": strategy, "template": {"spec": body}, "resourceClaimTemplates": [
            {"name": "network", "spec": {"spec": claim_spec(kind, int(count))}}]}
    return {"runStrategy": strategy, "template": {"spec": body}}


def machine_spec(word: str) -> Object:
    return {"resourceClaims": [source(word)], "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [
        {"name": "nic0", "claimName": "network", "requestName": "nic"}]}}}

