"""Prepares and unprepares claims of one host for the kubelet: reads the claim, records it on the page as prepared, and only
then has the hardware prepared. What a claim's status contains is not enough: a device that is prepared for another claim is
refused until that one is unprepared, also when kube-scheduler allocated it again meanwhile.

Called by the gRPC services, one claim at a time; every call may be repeated. Knows no gRPC."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.rejection import Rejection, RejectionCode, carrying
from outfitter.errors import AlreadyHeld, NotFound, NotReady, OutfitterError
from outfitter.ledger import book
from outfitter.ledger.allocation_bookings import AllocationBookings, results_by_pool
from outfitter.node import pool_slices
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.devices import cdi
from outfitter.node.kubelet.claim_reference import ClaimReference
from outfitter.node.status_reporter import FAILED_PREPARE
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events.event_recorder import EventRecorder

log = logging.getLogger(__name__)
TRIES = 4  # attempts to record a claim: each removes an outdated booking that is in the way, or books what is not booked


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """A prepared device as the kubelet gets it."""

    request: str  # without the alternative that was chosen, as containers name it
    pool: str
    device: str
    cdi_id: str  # "pci.outfitter.dev/device=..."
    share_id: str = ""


class ClaimDriver:
    def __init__(
        self, store: Store, host: AgentHost, bookings: ClaimBookings, preparation: ClaimPreparation, *, clock: Clock,
        events: EventRecorder,
    ) -> None:
        self.host = host
        self._store, self._bookings, self._preparation = store, bookings, preparation
        self._clock, self._events = clock, events

    async def prepare(self, reference: ClaimReference) -> list[CdiDevice]:
        """The devices of a claim, prepared. An error says why they are not; the kubelet retries."""
        async with self.host.lock:
            if self.host.refusal is not None:
                raise carrying(NotReady(self.host.refusal.message), RejectionCode.NODE_NOT_READY)
            claim = await self._claim(reference)
            results = self._own_results(claim)
            try:
                await self._record(claim)
            except AlreadyHeld as error:
                await self._report_held(claim, error)
                raise
            await self._preparation.prepare(self.host, claim, results)
        return [CdiDevice(str(result["request"]).partition("/")[0], result["pool"], result["device"],
                          f"{cdi.kind(self.host.driver)}={cdi.device_name(reference.uid, result['device'])}",
                          result.get("shareID") or "") for result in results]

    async def unprepare(self, reference: ClaimReference) -> None:
        """Restore what was prepared for a claim, and release it on the page; nothing, if nothing is. The claim may be gone."""
        async with self.host.lock:
            await self._bookings.release_uid(self.host, reference.namespace, reference.name, reference.uid)

    # -- the claim

    async def _claim(self, reference: ClaimReference) -> Object:
        """As it is now: a watch may be late."""
        try:
            claim = await self._store.get(kinds.RESOURCE_CLAIM, reference.name, reference.namespace)
        except NotFound:
            raise _refusal(RejectionCode.CLAIM_MISSING, f"claim {reference} does not exist") from None
        if claim["metadata"]["uid"] != reference.uid:
            raise _refusal(RejectionCode.CLAIM_MISSING, f"claim {reference} was deleted and created again: it has the uid "
                           f"{claim['metadata']['uid']}, and the kubelet asks for {reference.uid}")
        status = claim.get("status") or {}
        if not status.get("allocation"):
            raise _refusal(RejectionCode.CLAIM_NOT_ALLOCATED, f"claim {reference} is not allocated")
        if not status.get("reservedFor"):
            raise _refusal(RejectionCode.CLAIM_NOT_ALLOCATED, f"claim {reference} is not reserved for any pod")
        return claim

    def _own_results(self, claim: Object) -> list[Mapping[str, Any]]:
        """What of the allocation is a device of this host."""
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        ours = [result for result in pod_claims.allocation_results(claim) if result["driver"] == self.host.driver]
        if not ours:
            raise _refusal(RejectionCode.CLAIM_NOT_ALLOCATED, f"claim {name} has no device of {self.host.driver}")
        elsewhere = [result for result in ours if result["pool"] != self.host.name]
        if elsewhere:
            device, pool = elsewhere[0]["device"], elsewhere[0]["pool"]
            raise _refusal(RejectionCode.CLAIM_ELSEWHERE, f"claim {name} has {device} of {pool}, and this is {self.host.name}")
        return ours

    # -- the page

    async def _record(self, claim: Object) -> None:
        """Have all devices of the claim recorded as prepared. AlreadyHeld: another holder has one of them."""
        results = pod_claims.allocation_results(claim)
        missing: set[str] = set()
        for _ in range(TRIES):
            try:
                if not (missing := await self._bookings.prepare(self.host, claim, results)):
                    return
                await self._book(claim)
            except AlreadyHeld as error:
                if not await self._drop_outdated(error):
                    raise
        raise _refusal(RejectionCode.NOT_BOOKED, f"{', '.join(sorted(missing))} of claim {claim['metadata']['name']} is not "
                       f"booked on the page of {self.host.name}")

    async def _book(self, claim: Object) -> None:
        """Book the allocation as the ledger mirror does, which is late or does not run."""
        pools = {pool for pool, _ in results_by_pool(claim)}
        slices: dict[str, list[Object]] = defaultdict(list)
        known = {(result["driver"], result["pool"]) for result in pod_claims.allocation_results(claim)}
        for part in await pool_slices.slices_of(self._store, self.host.name, known):
            if (pool := f"{part['spec']['driver']}/{part['spec']['pool']['name']}") in pools:
                slices[pool].append(part)
        allocated = AllocationBookings(lambda pool: slices[pool], lambda _claim, _device: None)
        bookings = allocated.bookings(claim, await self._pods(claim), rfc3339(self._clock.now()))
        for page, wanted in bookings.items():
            await book.book(self._store, page, wanted, limits=allocated.limits(wanted))

    async def _pods(self, claim: Object) -> list[Object]:
        """The pods that a claim is reserved for."""
        pods = []
        for user in claim["status"]["reservedFor"]:
            if user.get("resource") == "pods":
                try:
                    pods.append(await self._store.get(kinds.POD, user["name"], claim["metadata"]["namespace"]))
                except NotFound:
                    continue
        return pods

    async def _drop_outdated(self, error: AlreadyHeld) -> bool:
        """Remove a booking that is in the way and neither prepared nor allocated any more: the ledger mirror will do so, and
        may not run. Whether it was one."""
        why: Rejection | None = error.rejection
        if why is None or why.holder is None or why.holder.kind != kinds.RESOURCE_CLAIM.kind:
            return False
        bookings = (await book.read(self._store, self.host.name)).of(why.holder.uid)
        if any(booking.state == "prepared" for booking in bookings):
            return False
        try:
            claim = await self._store.get(kinds.RESOURCE_CLAIM, why.holder.name, why.holder.namespace)
        except NotFound:
            claim = {"metadata": {"uid": ""}}
        results = pod_claims.allocation_results(claim) if claim["metadata"]["uid"] == why.holder.uid else ()
        allocated = {DeviceId(result["driver"], result["pool"], result["device"]) for result in results}
        outdated = [booking.device for booking in bookings if booking.device not in allocated]
        for device in outdated:
            await book.release(self._store, self.host.name, why.holder.uid, device=device)
        return bool(outdated)

    async def _report_held(self, claim: Object, error: AlreadyHeld) -> None:
        """Have what is held tainted until its holder is unprepared, and record an event on the claim and its pods."""
        why: Rejection | None = error.rejection
        wanted = {self.host.device(result["device"]): self.host.device(result["device"]) for result in self._own_results(claim)}
        for booking in (await book.read(self._store, self.host.name)).bookings:
            if why is not None and why.device is not None and str(booking.device) == why.detail.get("other"):
                wanted[booking.device] = why.device  # the same hardware under another name
        await book.contest(self._store, self.host.name, claim["metadata"]["uid"], wanted)
        message = f"{error.message}: claim {claim['metadata']['name']} gets it when that holder is unprepared"
        log.warning("%s: %s", self.host.name, message)
        namespace = claim["metadata"]["namespace"]
        pods = [{"apiVersion": kinds.POD.api_version, "kind": kinds.POD.kind,
                 "metadata": {"name": user["name"], "namespace": namespace, "uid": user["uid"]}}
                for user in claim["status"]["reservedFor"] if user.get("resource") == "pods"]
        for about in (claim, *pods):
            await self._events.warning(about, FAILED_PREPARE, message)


def describe(error: OutfitterError, code: RejectionCode) -> str:
    """An error as the kubelet shows it: a code and what is wrong."""
    why: Rejection | None = error.rejection
    return f"{why.code if why is not None else code}: {error.message}"


def _refusal(code: RejectionCode, message: str) -> NotReady:
    return carrying(NotReady(message), code)
