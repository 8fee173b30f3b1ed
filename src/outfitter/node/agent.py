"""The agent of one host or, in embedded mode, of all simulated ones: runs the pods that were given to its hosts.

A launcher pod: prepare its devices (the page is the fence), say that the pod runs, wait until the instance's status says which
devices it got, start the domain, say that the machine runs. The end is the same backwards: stop, release, let the pod go.
Every step may be repeated; a step that was done before a crash is found done."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

from outfitter.api import conditions, environment, kinds, machine
from outfitter.api.conditions import Condition
from outfitter.api.hypervisor import Builder
from outfitter.api.kinds import Object
from outfitter.api.page import Page, is_pool_page, pool_page
from outfitter.errors import AlreadyHeld, HypervisorAway, NotFound, Refused
from outfitter.ledger import book
from outfitter.node import tell
from outfitter.node.handover import Handover
from outfitter.node.host import Host
from outfitter.node.keep import Keeper
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events import Recorder
from outfitter.store.informer import Informer, key_of
from outfitter.store.queue import Queue

log = logging.getLogger(__name__)
UNPREPARED = "FailedPrepareDevices"
AWAY = "HypervisorAway"
SWEEP = "host|"  # a key of this form asks for a host's leftovers


class Agent:
    name = "node"

    def __init__(
        self,
        store: Store,
        hosts: Iterable[Host],
        *,
        build: Builder,
        keeper: Keeper,
        handover: Handover,
        pods: Informer[Object],
        instances: Informer[Object],
        claims: Informer[Object],
        pages: Informer[Object],
        clock: Clock,
        events: Recorder,
    ) -> None:
        self._store, self._clock, self._events, self._build, self._keeper = store, clock, events, build, keeper
        self._handover = handover
        self.hosts = {host.name: host for host in hosts}
        self.queue = Queue(clock)
        self._pods, self._instances, self._claims, self._pages = pods, instances, claims, pages
        self._prepared: set[str] = set()  # pods whose devices are in their hands; a new process looks again
        self._pooled: dict[str, set[str]] = {}  # claim -> the pages of pools on which we prepared something for it
        pods.add_index("node", lambda pod: [pod["spec"].get("nodeName") or ""])
        pods.add_index("instance", lambda pod: [_instance_key(pod) or ""])
        pods.add_index("claim", machine.claim_keys)
        pages.add_index("pools", lambda page: [""] if is_pool_page(page["metadata"]["name"]) else [])
        self._locks = keeper.locks  # a host's leftovers are told from what is just starting
        pods.on_change(self._pod_changed)
        instances.on_change(self._instance_changed)
        claims.on_change(self._claim_changed)
        pages.on_change(self._page_changed)
        for name, host in self.hosts.items():
            host.hypervisor.on_change(functools.partial(self._machine_changed, name))
            self.queue.add(SWEEP + name)

    # -- who is woken by what

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        node = pod["spec"].get("nodeName")
        if new is None:
            self._prepared.discard(pod["metadata"]["uid"])
        if node in self.hosts:
            self.queue.add(key_of(pod) if new is not None else SWEEP + node)

    def _instance_changed(self, old: Object | None, new: Object | None) -> None:
        for pod in self._pods.by("instance", key_of(new or old or {})):
            if pod["spec"].get("nodeName") in self.hosts:
                self.queue.add(key_of(pod))

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        """A claim that was seen after the pod that it is for."""
        self._try_again(self._pods.by("claim", key_of(new or old or {})))

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """A page that was written late: pods of that host that are not prepared yet try again."""
        page = new or old
        assert page is not None
        name = page["metadata"]["name"]
        if name in self.hosts:
            self._try_again(self._pods.by("node", name))

    def _machine_changed(self, name: str, uid: str) -> None:
        """A machine that started or ended; without a uid, the hypervisor was away and any of them may have."""
        for pod in self._pods.by("node", name):
            if (reference := machine.owner(pod, kinds.INSTANCE.kind)) is not None and uid in ("", reference["uid"]):
                self.queue.add(key_of(pod))
        if not uid:
            self.queue.add(SWEEP + name)

    def _try_again(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if pod["spec"].get("nodeName") in self.hosts and (pod.get("status") or {}).get("phase") == "Pending":
                self.queue.add(key_of(pod))

    async def reconcile(self, key: str) -> float | None:
        if key.startswith(SWEEP):
            name = key.removeprefix(SWEEP)
            async with self._locks[name]:
                await self._sweep(self.hosts[name])
            return None
        name = (self._pods.get(key) or {}).get("spec", {}).get("nodeName")
        if name not in self.hosts:
            return None
        async with self._locks[name]:
            pod = self._pods.get(key)
            if pod is None or pod["spec"].get("nodeName") != name:
                return None
            try:
                return await self._bring(self.hosts[name], pod)
            except HypervisorAway as error:
                await self._say_waiting(pod, f"{name}: {error.message}", AWAY)
                return error.retry_after

    async def _bring(self, host: Host, pod: Object) -> float | None:
        """A pod nearer to where it should be."""
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp") or phase in machine.FINAL:
            return await self._end(host, pod)
        return await self._run(host, pod)

    # -- running

    async def _run(self, host: Host, pod: Object) -> float | None:
        instance_key = _instance_key(pod)
        if instance_key is None and not host.simulated:
            await self._fail(pod, "NotAMachine", f"outfitter runs machines only: other pods need a kubelet on {host.name}")
            return None
        if pod["metadata"]["uid"] not in self._prepared:
            if missing := await self._prepare(host, pod):
                await self._say_waiting(pod, missing)
                return 1.0
            self._prepared.add(pod["metadata"]["uid"])
        pod = await self._say_running(pod)
        instance = self._instances.get(instance_key) if instance_key else None
        if instance is None or (reference := machine.owner(pod, kinds.INSTANCE.kind)) is None:
            return None
        if instance["metadata"]["uid"] != reference["uid"] or instance["metadata"].get("deletionTimestamp"):
            return None
        phase = (instance.get("status") or {}).get("phase")
        if phase == "Scheduled":
            await self._start(host, pod, instance)
        elif phase == "Running" and instance["metadata"]["uid"] not in await host.hypervisor.domains():
            await self._say_ended(host, pod, instance["metadata"]["uid"])
        elif phase == "Running" and pod["status"].get("reason") == AWAY:  # it answers again
            await self._store.patch(kinds.POD, pod["metadata"]["name"], {"status": {"reason": None, "message": None}},
                                    pod["metadata"]["namespace"], subresource="status")
        return None

    async def _say_ended(self, host: Host, pod: Object, uid: str) -> None:
        how = (await host.hypervisor.ended()).get(uid)
        if how is None:
            await self._finish(pod, "Failed", "DomainGone", f"the machine no longer runs on {host.name}")
        elif how.failed:
            await self._finish(pod, "Failed", "DomainFailed", f"{host.name}: {how.reason}")
        else:
            await self._finish(pod, "Succeeded", "Stopped", f"{host.name}: {how.reason}")

    async def _prepare(self, host: Host, pod: Object) -> str | None:
        """Everything that the pod's claims hold here is prepared; else what is missing."""
        for name, claim_name in machine.claim_names(pod):
            claim = self._claim(pod["metadata"]["namespace"], claim_name) if claim_name else None
            if claim is None:
                return f"claim {claim_name or name} does not exist yet"
            given = (claim.get("status") or {}).get("allocation")
            results = ((given or {}).get("devices") or {}).get("results") or ()
            wanted = {result["device"] for result in results if result["driver"] == host.driver and result["pool"] == host.name}
            if not given:
                return f"claim {claim_name} has no devices"
            users = [user for user in claim["status"].get("reservedFor") or () if user.get("resource", "pods") == "pods"]
            if users and users[0]["uid"] != pod["metadata"]["uid"] and _instance_key(pod):
                return f"claim {claim_name} is in use by pod/{users[0]['name']}: a machine's devices are its own"
            try:
                held = await self._mark(host, claim["metadata"]["uid"], wanted)
            except AlreadyHeld as error:
                return str(error)
            await self._mark_pools(host, claim, results)
            if lacking := wanted - held:
                return f"{', '.join(sorted(lacking))}: not booked for claim {claim_name} on {host.name} yet"
            ours = [result for result in results if result["device"] in wanted and (result["driver"], result["pool"]) == (
                host.driver, host.name)]
            try:
                await self._handover.prepare(host, claim, ours)
            except Refused as error:
                return error.message
        return None

    async def _mark(self, host: Host, uid: str, wanted: set[str]) -> set[str]:
        """The devices that a claim has prepared on this host, once all that are wanted are booked for it; until then those that
        are booked. AlreadyHeld: another has one of them."""
        page = await book.read(self._store, host.name)
        bookings = page.of(uid)
        names = {booking.device.device for booking in bookings}
        for booking in page.bookings:
            device = booking.device
            if (device.driver, device.pool) == (host.driver, host.name) and device.device in wanted - names:
                raise AlreadyHeld(device.short, by=str(booking.holder), since=booking.since)
        if wanted <= names and any(booking.state != "prepared" for booking in bookings):
            used = [host.device(name) for name in sorted(wanted & self._keeper.once[host.name])]
            held = await book.mark(self._store, host.name, uid, "prepared", now=rfc3339(self._clock.now()), unclean=used)
            names = {booking.device.device for booking in held}
        return names

    async def _mark_pools(self, host: Host, claim: Object, results: Iterable[Object]) -> None:
        """What a claim has of pools that no host owns is prepared too, so that nobody gets it while it is used here. Where it
        is not booked there is nothing to fence: that is for whoever drives it."""
        for name in sorted({pool_page(one["driver"], one["pool"]) for one in results
                            if (one["driver"], one["pool"]) != (host.driver, host.name)}):
            mine = (await book.read(self._store, name)).of(claim["metadata"]["uid"])
            if mine:
                self._pooled.setdefault(key_of(claim), set()).add(name)
            if any(booking.state != "prepared" for booking in mine):
                await book.mark(self._store, name, claim["metadata"]["uid"], "prepared", now=rfc3339(self._clock.now()))

    async def _say_waiting(self, pod: Object, why: str, reason: str = UNPREPARED) -> None:
        """Why it does not run yet, or does not end, on the pod, once."""
        if pod["status"].get("message") == why:
            return
        await self._store.patch(kinds.POD, pod["metadata"]["name"], {"status": {"reason": reason, "message": why}},
                                pod["metadata"]["namespace"], subresource="status")
        await self._events.warning(pod, reason, why)

    async def _say_running(self, pod: Object) -> Object:
        if pod["status"].get("phase") == "Running":
            return pod
        now = rfc3339(self._clock.now())
        have = pod["status"].get("conditions") or []
        for type_ in ("Initialized", "ContainersReady", "Ready"):
            have = conditions.with_condition(have, Condition(type_, True), now)
        containers = [{"name": container["name"], "ready": True, "started": True, "restartCount": 0, "imageID": "",
                       "image": container.get("image", ""), "state": {"running": {"startedAt": now}}}
                      for container in pod["spec"]["containers"]]
        status = {"phase": "Running", "startTime": now, "conditions": have, "containerStatuses": containers,
                  "reason": None, "message": None}
        # At the revision that was read: whoever wrote conditions since does not lose them.
        return await self._store.patch(kinds.POD, pod["metadata"]["name"], {
            "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]}, "status": status,
        }, pod["metadata"]["namespace"], subresource="status")

    async def _start(self, host: Host, pod: Object, instance: Object) -> None:
        if machine.unsettled_devices(instance, pod, self._claim):
            return  # the status is on its way and wakes us
        try:
            told = self._handover.told(host, pod, self._claim)
            env = tell.combined(await self._published(host, pod), told.env)
            domain = self._build(instance, env, told.files, await host.hypervisor.abilities())
            await host.hypervisor.start(domain)
        except Refused as error:
            await self._events.warning(instance, "SyncFailed", error.message)
            await self._fail(pod, "SyncFailed", error.message)
            return
        meta, now = instance["metadata"], rfc3339(self._clock.now())
        have = conditions.with_condition(instance["status"].get("conditions"), Condition("Ready", True), now)
        await self._store.patch(kinds.INSTANCE, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"phase": "Running", "nodeName": host.name, "conditions": have},
        }, meta["namespace"], subresource="status")
        await self._events.normal(instance, "Started", "VirtualMachineInstance started.")

    async def _published(self, host: Host, pod: Object) -> dict[str, str]:
        """What the pod got by the names of resources, as the drivers of this host publish it."""
        made = dict(machine.claim_names(pod)).get(machine.EXTENDED)
        if made is None or (claim := self._claim(pod["metadata"]["namespace"], made)) is None:
            return {}
        slices = await self._store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host.name}")
        return environment.of_resources(pod, claim, slices.items)

    # -- ending

    async def _end(self, host: Host, pod: Object) -> float | None:
        """Stop what runs, release what was prepared, then let the pod object go if it was deleted. The guest has the pod's
        grace period to shut down; the hypervisor's news, or the time that is left, brings us back."""
        self._prepared.discard(pod["metadata"]["uid"])
        reference = machine.owner(pod, kinds.INSTANCE.kind)
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0.0
        if reference is not None and (left := await host.hypervisor.stop(reference["uid"], grace)) is not None:
            return left
        others = self._claims_in_use(other for other in self._alive(host) if other["metadata"]["uid"] != pod["metadata"]["uid"])
        for _, claim_name in machine.claim_names(pod):
            place = (pod["metadata"]["namespace"], claim_name or "")
            if place not in others:
                await self._release(host, *place)
        if pod["metadata"].get("deletionTimestamp"):
            try:
                await self._store.delete(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"],
                                         uid=pod["metadata"]["uid"], grace=0)
            except NotFound:
                pass
        return None

    async def _release(self, host: Host, namespace: str, claim_name: str) -> None:
        for name in [host.name, *sorted({*self._pooled.pop(f"{namespace}/{claim_name}", ()), *self._pool_pages()})]:
            page = await book.read(self._store, name)
            for uid in {booking.holder.uid for booking in page.bookings if booking.state == "prepared" and (
                    booking.holder.kind, booking.holder.namespace, booking.holder.name) == (
                    kinds.RESOURCE_CLAIM.kind, namespace, claim_name) and booking.node in ("", host.name)}:
                if name == host.name:
                    await self._handover.release(host, uid)
                else:
                    await book.mark(self._store, name, uid, "released")

    def _pool_pages(self) -> list[str]:
        return [page["metadata"]["name"] for page in self._pages.by("pools", "")]

    async def _sweep(self, host: Host) -> None:
        """What runs or is prepared here for a pod that is no longer there: it went while we were not looking."""
        pods = self._alive(host)
        owners = [machine.owner(pod, kinds.INSTANCE.kind) for pod in pods]
        alive = {owner["uid"] for owner in owners if owner is not None}
        for uid, domain in (await host.hypervisor.domains()).items():
            if uid not in alive and not domain.foreign:
                log.warning("%s: %s runs without a pod; stopping it", host.name, domain.name)
                await host.hypervisor.stop(uid)
        for uid in (await host.hypervisor.ended()).keys() - alive:
            await host.hypervisor.stop(uid)
        used = self._claims_in_use(pods)
        pages = [await book.read(self._store, host.name), *map(Page, self._pages.by("pools", ""))]
        for booking in [booking for page in pages for booking in page.bookings if booking.node in ("", host.name)]:
            place = (booking.holder.namespace, booking.holder.name)
            if booking.holder.kind == kinds.RESOURCE_CLAIM.kind and booking.state == "prepared" and place not in used:
                await self._release(host, *place)
        await self._handover.leftovers(host)

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")

    def _alive(self, host: Host) -> list[Object]:
        return [pod for pod in self._pods.by("node", host.name) if (pod.get("status") or {}).get("phase") not in machine.FINAL]

    def _claims_in_use(self, pods: Iterable[Object]) -> set[tuple[str, str]]:
        return {(pod["metadata"]["namespace"], name) for pod in pods for _, name in machine.claim_names(pod) if name}

    async def _fail(self, pod: Object, reason: str, message: str) -> None:
        await self._finish(pod, "Failed", reason, message)

    async def _finish(self, pod: Object, phase: str, reason: str, message: str) -> None:
        change = {"status": {"phase": phase, "reason": reason, "message": message}}
        await self._store.patch(kinds.POD, pod["metadata"]["name"], change, pod["metadata"]["namespace"], subresource="status")
        await (self._events.warning if phase == "Failed" else self._events.normal)(pod, reason, message)


def _instance_key(pod: Object) -> str | None:
    """The key of the instance, when the pod is one in which a machine runs."""
    reference = machine.owner(pod, kinds.INSTANCE.kind)
    if reference is None or (pod["metadata"].get("labels") or {}).get(machine.LAUNCHER_LABEL) != machine.LAUNCHER:
        return None
    return f"{pod['metadata']['namespace']}/{reference['name']}"
