"""Devices that the kubelet gives to pods by Allocate: booked on the host's page, prepared, and released when the kubelet shows
that no pod has them any more. The kubelet names no pod when it allocates, and never says that a device is free: its
pod-resources API shows both.

    Allocate   a booking for a pod that is not known yet, with the exclusive check at prepare; the devices are prepared
    sync       the kubelet's list names the pod of each booking; what is in no pod of the list is released

A device that a claim, a consumer or a domain holds is refused. Every step may be repeated, and after a crash the page and the
checkpoint say what was done. Called by the gRPC service and by `plugin_sockets`; knows no gRPC."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.ledger_page.page import Booking, Holder, Page
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import HypervisorError, NotReady, OutfitterError
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.device_manager.plugin_resource import ContainerAllocation, PluginDevice
from outfitter.node.device_plugin.plugin_resources import by_resource
from outfitter.node.devices import cdi, metadata, prepare
from outfitter.node.devices.metadata import PreparedDevice
from outfitter.node.kubelet.health_service import own_health
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339

log = logging.getLogger(__name__)
NOT_KNOWN = "(not known yet)"  # the name of the pod of an allocation that the kubelet does not list yet
UNLISTED_FOR = timedelta(seconds=60)  # after which an allocation that no pod got is released: its pod was rejected
NAMESPACE = "device-plugin"  # of allocations in the checkpoint, where claims have theirs
REQUEST = "device"


@dataclass(frozen=True, slots=True)
class PodList:
    """What the kubelet shows of its pods."""

    pods: frozenset[tuple[str, str]]  # namespace and name of each
    users: Mapping[tuple[str, str], tuple[str, str]]  # resource and device id -> the pod that has it


class PodAllocations:
    def __init__(
        self, store: Store, host: AgentHost, preparation: ClaimPreparation, *, clock: Clock,
        pod: Callable[[str, str], Object | None], page: Callable[[], Object | None],
        listed: Callable[[], Awaitable[PodList]],
    ) -> None:
        """`pod`: by namespace and name, `page`: the host's, both as informers have them. `listed`: the kubelet's answer;
        OutfitterError: it does not answer."""
        self.host, self._store, self._preparation, self._clock = host, store, preparation, clock
        self._pod, self._page, self._listed = pod, page, listed

    # -- what is offered

    def resources(self) -> Mapping[str, tuple[str, ...]]:
        return by_resource(self.host.plugin_selectors, self.host.devices)

    def devices(self, resource: str) -> tuple[PluginDevice, ...]:
        """Unhealthy is also what a claim or a VM without a pod of ours holds, or what is out of service: the kubelet does not
        choose it then."""
        page, health = self._page(), own_health(self.host, self._page())
        taken = _unavailable(self.host, Page(page)) if page is not None else frozenset()
        return tuple(PluginDevice(name, health[name].status == "HEALTHY" and name not in taken, _nodes(self.host, name))
                     for name in self.resources().get(resource, ()))

    def numa(self) -> dict[str, int | None]:
        return {name: device.numa for name, device in self.host.devices.items()}

    # -- Allocate

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """The devices of one container, prepared. An error says why they are not: nothing is booked then, and the kubelet
        rejects the pod."""
        async with self.host.lock:
            if self.host.refusal is not None:
                raise carrying(NotReady(self.host.refusal.message), RejectionCode.NODE_NOT_READY)
            if unknown := sorted(set(ids) - set(self.resources().get(resource, ()))):
                raise carrying(NotReady(f"{', '.join(unknown)} of {self.host.name} is no device of {resource}"),
                               RejectionCode.DEVICE_MISSING)
            page = await book.read(self._store, self.host.name)
            if any(_by_plugin(booking, self.host) and booking.device.device in ids for booking in page.bookings):
                await self._release_unlisted(await self._listed(), ids)  # the kubelet allocates it: no pod has it
            uid = str(uuid.uuid4())
            try:
                await self._book(uid, resource, ids)
                await self._prepare(uid, ids)
            except OutfitterError:
                await self._release(uid)
                raise
        return self._answer(uid, resource, ids)

    async def _book(self, uid: str, resource: str, ids: Sequence[str]) -> None:
        """AlreadyHeld names the holder, OutOfService the reason."""
        now = rfc3339(self._clock.now())
        holder = Holder(kinds.POD.kind, "", NOT_KNOWN, uid)
        devices = [self.host.device(name) for name in ids]
        await book.book(self._store, self.host.name, [Booking(device, holder, resource, "booked", now) for device in devices])
        once = [device for device in devices if device.device in self.host.single_use]
        await book.set_state(self._store, self.host.name, uid, "prepared", now=now, unclean=once, hardware={
            device: tuple(sorted(self.host.hardware_of(device.device))) for device in devices})

    async def _prepare(self, uid: str, ids: Sequence[str]) -> None:
        results = [{"device": name, "request": REQUEST} for name in ids]
        await self._preparation.prepare(self.host, _as_claim(uid), results)

    def _answer(self, uid: str, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Device nodes and the environment as KubeVirt's launchers read it, and the same as CDI devices."""
        env, driver = self.host.env, self.host.driver
        assert env is not None
        targets = [self.host.devices[name] for name in ids]
        prepared = [PreparedDevice(REQUEST, driver, self.host.name, target.name, target.address, target.uuid,
                                   functions=target.functions) for target in targets]
        nodes = [cdi.CONTROL, *(node for target in targets for node in prepare.device_nodes(env, target))]
        return ContainerAllocation(
            frozenset(ids), metadata.by_resource([(resource, REQUEST)], prepared),
            tuple((f"/dev/{node}", f"{env.dev}/{node}", "mrw") for node in dict.fromkeys(nodes)),
            cdi_ids=tuple(f"{cdi.kind(driver)}={cdi.device_name(uid, name)}" for name in ids))

    # -- which pod has what

    async def sync(self) -> None:
        """Record the pods of allocations, and release what no pod has. OutfitterError: the kubelet does not answer."""
        listed = await self._listed()
        async with self.host.lock:
            await self._name_pods(listed)
            await self._adopt(listed)
            await self._release_unlisted(listed)

    async def _name_pods(self, listed: PodList) -> None:
        def change(page: Page) -> Object:
            for booking in page.bookings:
                user = listed.users.get((booking.request, booking.device.device))
                if not _by_plugin(booking, self.host) or user is None:
                    continue
                holder = replace(booking.holder, namespace=user[0], name=user[1])
                if holder != booking.holder:
                    page = Page(page.turning(booking.key, replace(booking, holder=holder)))
            return page.object

        await book.change_page(self._store, self.host.name, change)

    async def _adopt(self, listed: PodList) -> None:
        """Book what a pod has and the page does not: the page was lost, or the agent was stopped in Allocate."""
        resources = self.resources()
        booked = {booking.device.device for booking in (await book.read(self._store, self.host.name)).bookings
                  if _by_plugin(booking, self.host)}
        for (resource, name), (namespace, pod) in sorted(listed.users.items()):
            if name in booked or name not in resources.get(resource, ()):
                continue
            uid = str(uuid.uuid4())
            try:
                await self._book(uid, resource, [name])
                await self._prepare(uid, [name])
                log.warning("%s: %s is in use by pod %s/%s and was not booked for it: it is now",
                            self.host.name, name, namespace, pod)
            except OutfitterError as error:
                log.error("%s: pod %s/%s has %s by %s, and it cannot be booked: %s", self.host.name, namespace, pod, name,
                          resource, error.message)
        await self._name_pods(listed)

    async def _release_unlisted(self, listed: PodList, asked: Collection[str] = ()) -> None:
        """`asked`: devices that the kubelet allocates now, so that an allocation without a pod is over at once."""
        page = await book.read(self._store, self.host.name)
        by_uid: dict[str, list[Booking]] = {}
        for booking in page.bookings:
            if _by_plugin(booking, self.host):
                by_uid.setdefault(booking.holder.uid, []).append(booking)
        for uid, bookings in by_uid.items():
            used = any((booking.request, booking.device.device) in listed.users for booking in bookings)
            at_once = any(booking.device.device in asked for booking in bookings)
            if not used and self._is_over(bookings[0], listed, at_once=at_once):
                try:
                    await self._release(uid)
                except (NotReady, HypervisorError) as error:  # a VM still has it
                    log.warning("%s: what %s had is not released yet: %s", self.host.name, bookings[0].holder, error.message)

    def _is_over(self, booking: Booking, listed: PodList, *, at_once: bool) -> bool:
        """Whether an allocation that no pod of the list has is of no use. While the kubelet starts, its list is not complete: a
        pod that is not in it and exists counts as running."""
        pod = booking.holder.namespace, booking.holder.name
        if booking.holder.name == NOT_KNOWN:
            return at_once or datetime.fromisoformat(booking.since) + UNLISTED_FOR <= self._clock.now()
        found = self._pod(*pod)
        return pod in listed.pods or found is None or (found.get("status") or {}).get("phase") in vm.FINAL

    async def _release(self, uid: str) -> None:
        await self._preparation.unprepare(self.host, uid)
        await book.release(self._store, self.host.name, uid)


def _by_plugin(booking: Booking, host: AgentHost) -> bool:
    """Whether a pod holds a device of this host by the device plugin."""
    own = (booking.device.driver, booking.device.pool) == (host.driver, host.name)
    return booking.holder.kind == kinds.POD.kind and own


def _unavailable(host: AgentHost, page: Page) -> frozenset[str]:
    """Devices that the kubelet must not choose: held otherwise, under whichever name, or out of service."""
    held = {name for booking in page.bookings if booking.counted and not _by_plugin(booking, host)
            for name in host.devices
            if booking.device == host.device(name) or not host.hardware_of(name).isdisjoint(booking.hardware)}
    used = {booking.device for booking in page.bookings if _by_plugin(booking, host)}  # its records tell of this use
    return frozenset(held | {record.device.device for record in (*page.reserved, *page.quarantined, *page.unclean)
                             if record.device.driver == host.driver and record.device not in used})


def _nodes(host: AgentHost, name: str) -> tuple[int, ...]:
    numa = host.devices[name].numa
    return () if numa is None else (numa,)


def _as_claim(uid: str) -> Object:
    """An allocation as the preparation of claims takes it."""
    return {"metadata": {"uid": uid, "namespace": NAMESPACE, "name": uid}}
