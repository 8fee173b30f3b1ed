"""A small scenario: hosts with virtual functions, a namespace, and the product running on them, either embedded
or on a real control plane. The scenarios are the same; only how one waits differs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.hypervisor import Domain, Paused
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.controllers.manager import ControllerContext, ControllerManager
from outfitter.errors import Forbidden, NotFound
from outfitter.inventory.config import Config, SchedulingSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher import domain as domain_files
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.placement import Waiting
from outfitter.store.base import Event, Store
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.controllers import resync

T = TypeVar("T")
PATIENCE = 300.0  # seconds, on a real control plane
ROUNDS = 40  # of one second each, embedded
NORMAL = Config().scheduling
CLUSTER_OBJECTS = {"instances": kinds.VMI, "pods": kinds.POD, "claims": kinds.RESOURCE_CLAIM, "classes": kinds.DEVICE_CLASS,
         "slices": kinds.RESOURCE_SLICE, "pages": kinds.LEDGER_PAGE, "nodes": kinds.NODE, "rules": kinds.DEVICE_TAINT_RULE,
         "trees": kinds.PROVIDER_TREE, "inventories": kinds.HOST_INVENTORY}  # of ClusterObjects, by their names there


def hosts_text(word: str, vfs: int, count: int = 1) -> str:
    """A hosts file: hosts with one network card each, named and published after a word that is unique."""
    return f"""
publisher: {word}.example.com
hosts:
- name: {word}
  count: {count}
  numa: [{{id: 0, cpus: 0-15, memory: 64Gi}}]
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0,
     vfs: {{count: {vfs}, product: 1889}}}}
"""


def hosts_of(word: str, vfs: int, count: int = 1) -> list[AgentHost]:
    return app.simulated_hosts(hosts_file.parse(hosts_text(word, vfs, count), word).hosts)


@dataclass
class Scene:
    product: app.Product
    namespace: str
    clock: ManualClock | None  # None: time passes by itself

    @property
    def store(self) -> Store:
        return self.product.store

    @property
    def driver(self) -> str:
        return self.product.hosts[0].driver

    @property
    def host(self) -> AgentHost:
        return self.product.hosts[0]

    @property
    def embedded(self) -> bool:
        return self.clock is not None

    # -- setting up

    async def create(self, kind: Kind, name: str, spec: Mapping[str, Any], **meta: Any) -> Object:
        place = {"namespace": self.namespace} if kind.namespaced else {}
        return await self.store.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "spec": dict(spec),
                                              "metadata": {"name": name, **place, **meta}})

    async def classes(self) -> None:
        """The class of this scene's virtual functions; cluster-wide, so named after the scene."""
        await self.create(kinds.DEVICE_CLASS, self.namespace, {"selectors": [{"cel": {
            "expression": f'device.driver == "{self.driver}" && device.attributes["{self.driver}"].kind == "VF"'}}]})

    def claim_spec(self, *requests: str, **exactly: Any) -> Object:
        return {"devices": {"requests": [{"name": request, "exactly": {"deviceClassName": self.namespace, **exactly}}
                                         for request in requests or ("nic",)]}}

    async def template(self, name: str = "one-vf", *requests: str, **exactly: Any) -> None:
        await self.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": self.claim_spec(*requests, **exactly)})

    async def claim(self, name: str, *requests: str) -> Object:
        return await self.create(kinds.RESOURCE_CLAIM, name, self.claim_spec(*requests))

    async def machine(self, name: str, *devices: Object, template: str = "one-vf", claim: str = "", **spec: Any) -> Object:
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
        return await self.create(kinds.VMI, name, {
            "resourceClaims": [{"name": "network", **source}], **spec,
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": list(devices) or [device()]}}})

    async def delete(self, kind: Kind, name: str, **how: Any) -> None:
        await self.store.delete(kind, name, self.namespace if kind.namespaced else "", **how)

    # -- looking

    async def find(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.store.get(kind, name, self.namespace if kind.namespaced else "")
        except NotFound:
            return None

    async def all(self, kind: Kind) -> list[Object]:
        return (await self.store.list(kind, self.namespace if kind.namespaced else "")).items

    async def pod(self, machine: str) -> Object:
        return next(
            pod for pod in await self.all(kinds.POD) if pod["metadata"].get("labels", {}).get("vm.kubevirt.io/name") == machine
        )

    async def bookings(self) -> list[Booking]:
        return [booking for host in self.product.hosts for booking in (await book.read(self.store, host.name)).bookings]

    async def domains(self) -> list[Domain]:
        return [domain for host in self.product.hosts for domain in (await host.hypervisor.domains()).values()]

    async def events(self, reason: str) -> list[str]:
        return [event["message"] for event in await self.all(kinds.EVENT) if event["reason"] == reason]

    async def condition(self, machine: str, type_: str) -> Mapping[str, Any] | None:
        found = await self.find(kinds.VMI, machine)
        return conditions.find(found, type_) if found else None

    async def cluster_objects(self) -> ClusterObjects:
        """All that the scheduler of the embedded product goes by."""
        assert isinstance(self.product, app.Embedded)
        found: dict[str, Any] = {name: (await self.store.list(kind)).items for name, kind in CLUSTER_OBJECTS.items()}
        configured = [obj for obj in (await self.store.list(kinds.CONFIG_MAP, flavor_claim.ALIASES_NAMESPACE)).items
                      if obj["metadata"]["name"] == flavor_claim.ALIASES_CONFIG_MAP]
        aliases = flavor_claim.read_aliases(configured[0]) if configured else None
        settings = self.product.settings
        return ClusterObjects(**found, aliases=aliases, policy=settings.policy, features=settings.features)

    # -- waiting

    async def settle(self) -> None:
        """Until all controllers are idle."""
        assert isinstance(self.product, app.Embedded)
        await self.product.settle()

    async def nothing_missed(self) -> None:
        """However a scenario ends, a resync finds nothing to do."""
        await self.settle()
        before = await self._versions()
        resync.look(self.product)
        await self.settle()
        assert not (missed := resync.missed(before, await self._versions())), f"{missed[0]}\n{await self.picture()}"

    async def _versions(self) -> resync.Versions:
        return resync.versions([(kind, obj) for kind in kinds.ALL for obj in (await self.store.list(kind)).items])

    async def reach(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Until the check gives something that is true; what it gave."""
        if self.clock is None:
            return await self._watch(check, what)
        for _ in range(ROUNDS):
            await self.settle()
            if found := await check():
                return found
            self.clock.advance(1)
        raise AssertionError(f"not reached: {what}\n{await self.picture()}")

    async def _watch(self, check: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Looks again whenever the product's informers see a change."""
        news, loop = asyncio.Event(), asyncio.get_running_loop()
        for informer in self.product.context.informers.values():
            informer.on_change(lambda old, new: news.set())
        end = loop.time() + PATIENCE
        while True:
            news.clear()
            if found := await check():
                return found
            try:
                async with asyncio.timeout_at(min(end, loop.time() + 1)):  # hypervisors and nodes send no event
                    await news.wait()
            except TimeoutError:
                if loop.time() >= end:
                    raise AssertionError(f"not reached: {what}\n{await self.picture()}") from None

    async def phase(self, machine: str, phase: str) -> Object:
        async def check() -> Object | None:
            found = await self.find(kinds.VMI, machine)
            return found if found and (found.get("status") or {}).get("phase") == phase else None

        return await self.reach(check, f"{machine} is {phase}")

    async def running(self, machine: str) -> Object:
        return await self.phase(machine, "Running")

    async def waits(self, machine: str, type_: str, *words: str) -> str:
        """The message of a condition that is false, once it has all of these words."""
        async def check() -> str | None:
            found = await self.condition(machine, type_)
            message = str((found or {}).get("message", ""))
            return message if found and found["status"] == "False" and all(word in message for word in words) else None

        return await self.reach(check, f"{machine} waits, {type_} says {' and '.join(words)}")

    async def rejected(self, machine: str, code: RejectionCode, **detail: Any) -> list[Rejection]:
        """Once a VMI and its pod carry a code: the rejections of its pod, hosts and devices with that code and this detail."""
        async def check() -> bool:
            return code in rejection_conditions.of(await self.find(kinds.VMI, machine) or {})

        await self.reach(check, f"{machine} is rejected for {code}")
        pod = await self.pod(machine)
        assert code in rejection_conditions.of(pod)
        verdict = (await self.cluster_objects()).choose(pod)
        assert isinstance(verdict, Waiting), verdict
        every = [*verdict.rejections, *(each for _, host in verdict.hosts for each in (*host.rejections, *host.obstacles))]
        found = [each for each in every if each.code is code and {**each.detail, **detail} == each.detail]
        assert found, every
        return found

    async def gone(self, *machines: str) -> None:
        async def check() -> bool:
            return not any([await self.find(kinds.VMI, machine) for machine in machines])

        await self.reach(check, f"{', '.join(machines)} gone")

    async def empty(self) -> None:
        """Nothing is left of any VM: no pods, no bookings, no domains, no claims but named ones, and those are free."""
        async def check() -> bool:
            claims = await self.all(kinds.RESOURCE_CLAIM)
            return not (await self.all(kinds.VMI) or await self.all(kinds.POD) or await self.bookings()
                        or await self.domains() or [claim for claim in claims if claim["metadata"].get("ownerReferences")]
                        or [claim for claim in claims if (claim.get("status") or {}).get("allocation")])

        await self.reach(check, "nothing is left")

    async def picture(self) -> str:
        """What there is, for whoever reads a failure."""
        lines = [f"{booking.device.short} {booking.state} by {booking.holder}" for booking in await self.bookings()]
        lines += [f"domain {domain.name}" for domain in await self.domains()]
        for kind in (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM):
            lines += [f"{kind.singular} {obj['metadata']['name']} {obj['metadata'].get('deletionTimestamp', '')} "
                      f"{obj.get('status')}" for obj in await self.all(kind)]
        lines += [f"event {event['reason']}: {event['message']}" for event in await self.all(kinds.EVENT)]
        return "\n".join(lines)

    async def check_books(self) -> None:
        """The promise: no device is held twice, and bookings, claims and domains tell the same."""
        bookings = await self.bookings()
        devices = [booking.device for booking in bookings]
        assert len(devices) == len(set(devices)), await self.picture()
        promised = [(claim["metadata"]["uid"], result["pool"], result["device"])
                    for claim in await self.all(kinds.RESOURCE_CLAIM) if (claim.get("status") or {}).get("allocation")
                    for result in claim["status"]["allocation"]["devices"]["results"]]
        booked = [(booking.holder.uid, booking.device.pool, booking.device.device) for booking in bookings]
        assert sorted(promised) == sorted(booked), await self.picture()
        instances = {obj["metadata"]["uid"]: obj for obj in await self.all(kinds.VMI)}
        for host in self.product.hosts:
            given: list[str] = []
            for uid in await host.hypervisor.domains():
                assert uid in instances, await self.picture()
                given += addresses(instances[uid])
            assert len(given) == len(set(given)), await self.picture()
            prepared = [booking for booking in bookings if booking.state == "prepared" and booking.device.pool == host.name]
            assert len(given) <= len(prepared), await self.picture()


def device(name: str = "nic0", request: str = "nic", claim: str = "network") -> Object:
    return {"name": name, "claimName": claim, "requestName": request}


def addresses(instance: Object) -> list[str]:
    """The PCI addresses that a VM's status says it got."""
    status = (instance.get("status") or {}).get("deviceStatus") or {}
    return [entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"] for entries in status.values() for entry in entries]


def logged(product: app.Product, kind: Kind, namespace: str) -> list[tuple[Object | None, Object | None]]:
    """Every change of a kind from now on, as it happens."""
    seen: list[tuple[Object | None, Object | None]] = []

    def note(old: Object | None, new: Object | None) -> None:
        if ((new or old) or {})["metadata"].get("namespace", namespace) == namespace:
            seen.append((old, new))

    product.context.informer(kind).on_change(note)
    return seen


Watch = Callable[..., AsyncIterator[Event]]


def late_news(patch: pytest.MonkeyPatch, kind: Kind, turns: int) -> Watch:
    """News of a kind take so many turns of the loop, and all else is known before; but for who watches by what this gives."""
    watch: Watch = Memory.watch

    async def late(self: Memory, which: Kind, *arguments: Any, **more: Any) -> AsyncIterator[Event]:
        async for event in watch(self, which, *arguments, **more):
            for _ in range(turns if which == kind else 0):
                await asyncio.sleep(0)
            yield event

    patch.setattr(Memory, "watch", late)
    return watch


@contextlib.asynccontextmanager
async def embedded(vfs: int, count: int = 1, *, scheduling: SchedulingSettings = NORMAL) -> AsyncIterator[Scene]:
    clock = ManualClock()
    hosts, config = hosts_of("node", vfs, count), Config(scheduling=scheduling)
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1)), config=config) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        yield scene
        await scene.nothing_missed()


@contextlib.asynccontextmanager
async def on_cluster(control_plane: kubernetes.Cluster, word: str, vfs: int, count: int = 1) -> AsyncIterator[Scene]:
    """In a namespace and on hosts of its own; all of it is taken away again."""
    async with app.cluster(control_plane.access(), hosts=hosts_of(word, vfs, count)) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": word}})
        scene = Scene(product, word, None)
        try:
            yield scene
        finally:
            await clear(scene)
    await connections_closed()


class StoredDomains(Simulated):
    """The VMs of a host whose agent is another process: what it has written, at each look."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._written = folder

    async def domains(self) -> Mapping[str, Domain]:
        found = {}
        for path in sorted(self._written.glob("*.xml")):
            with contextlib.suppress(FileNotFoundError):  # it ended meanwhile
                uid = path.stem.partition("_")[0]
                if not path.with_suffix(".xml.ended").exists():
                    found[uid] = replace(domain_files.read(path.read_text(), uid), paused=self._pause(path))
        return found

    def _pause(self, path: Path) -> Paused | None:
        try:
            return Paused(*path.with_suffix(".xml.paused").read_text().split("\n", 1))
        except FileNotFoundError:
            return None


class RemoteProduct(app.Product):
    """What a scenario sees of a product whose controllers and agent are processes of their own: the store, what changes in it,
    and the VMs of simulated hosts."""

    def __init__(self, store: Kube, hosts: Sequence[AgentHost]) -> None:
        self.store, self.hosts = store, list(hosts)
        self.context = ControllerContext(store, clock=SystemClock())
        for kind in (kinds.VM, kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE):
            self.context.informer(kind)
        self.runner = ControllerManager(self.context, [])

    async def start(self) -> None:
        await self.runner.start()

    async def stop(self) -> None:
        await self.runner.stop()
        await self.store.close()


@contextlib.asynccontextmanager
async def on_roles(roles: ClusterRoles, word: str, text: str, *flags: str) -> AsyncIterator[Scene]:
    """The same where the controllers are a running process and the agent of the hosts of a hosts file is another, each with
    the rights of an installation; all of it is taken away again. `flags` are the agent's."""
    file = roles.folder / f"{word}.yaml"
    file.write_text(text)
    agent = roles.start("node", "--simulate", str(file), *flags, name=word)
    data = roles.folder / f"{word}-data"
    hosts = [replace(host, hypervisor=StoredDomains(data / "domains" / host.name))
             for host in app.simulated_hosts(hosts_file.parse(text, word).hosts)]
    product = RemoteProduct(Kube(roles.cluster.access(), clock=SystemClock()), hosts)
    try:
        await asyncio.to_thread(agent.ready)
        await product.start()
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": word}})
        scene = Scene(product, word, None)
        try:
            yield scene
        finally:
            await asyncio.to_thread(agent.stop)
            await clear(scene)
    finally:
        await product.stop()
    await connections_closed()


async def connections_closed() -> None:
    """Wait for the sockets of this loop: TLS shuts down in the background, and the loop must run until it is done."""
    loop: Any = asyncio.get_running_loop()
    while any(transport.get_extra_info("socket").fileno() >= 0 for transport in loop._transports.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def clear(scene: Scene) -> None:
    """Nothing of it is left on the cluster."""
    for kind, names in await _rest(scene):
        for name in names:
            with contextlib.suppress(NotFound):
                await scene.delete(kind, name)


async def _rest(scene: Scene) -> Iterable[tuple[Kind, list[str]]]:
    slices = [part["metadata"]["name"] for part in (await scene.store.list(kinds.RESOURCE_SLICE)).items
              if part["spec"]["driver"] == scene.driver]
    hosts = [host.name for host in scene.product.hosts]
    return [(kinds.RESOURCE_SLICE, slices), (kinds.NODE, hosts), (kinds.DEVICE_CLASS, [scene.namespace]),
            (kinds.LEDGER_PAGE, hosts), (kinds.NAMESPACE, [scene.namespace])]



@contextlib.contextmanager
def forbidden(store: Store, kind: Kind, verb: Literal["create", "patch", "delete"] = "create") -> Iterator[None]:
    """Writes of a kind are rejected (create, change or delete), as by an exhausted quota."""
    allowed = getattr(store, verb)

    async def refuse(which: Kind, *arguments: Any, **more: Any) -> Any:
        if which == kind:
            raise Forbidden(f"{kind.plural} are forbidden: exceeded quota: small")
        return await allowed(which, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, verb, refuse)
        yield
