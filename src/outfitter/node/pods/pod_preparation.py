"""Prepares what is allocated to a pod's claims on its host, or says why it is not prepared, and when to give up on the host.
Called by the agent, which holds the host's lock and reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outfitter.api import rejection
from outfitter.api.device import hardware_key
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, pod_claims, vm
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import AlreadyHeld, BindFailed, NotReady, StartFailed
from outfitter.node import claim_bookings
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_bookings import ClaimBookings
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.dra_manager.dra_manager import DraManager, InProgress
from outfitter.store.clock import Clock

# Why a host cannot prepare a device until an operator changes it: another host is tried at once.
IMPOSSIBLE = frozenset({RejectionCode.VFS_PRESENT, RejectionCode.IOMMU_GROUP_SHARED})
BOOKING_PATIENCE = 2.0  # seconds for which a device may not be booked yet, before that is reported
DRIVER_PATIENCE = 10.0  # seconds for which a DRA driver may not have answered, before that is reported
PREPARE_PATIENCE = 60.0  # seconds for which a host may fail to prepare a VMI's devices before another host is tried


@dataclass(frozen=True, slots=True)
class Unprepared:
    """Why a pod's devices are not prepared."""

    rejection: Rejection
    host_failed: bool = False  # the host could not do it; else something is still to be written for the pod
    final: bool = False  # no host could
    at_start: bool = False  # they are prepared, and others have them all the same


class PodPreparation:
    def __init__(
        self, bookings: ClaimBookings, preparation: ClaimPreparation, claim: device_refs.Claims, *, clock: Clock,
        audit: Callable[[str], None],
    ) -> None:
        """`audit` has a host audited soon."""
        self._bookings, self._preparation, self._claim = bookings, preparation, claim
        self._monotonic, self._audit = clock.monotonic, audit
        self._prepared: set[str] = set()  # pods; a new process checks again
        self._unbooked: dict[str, float] = {}  # pod -> since when a device of its is not booked, monotonic
        self._failing: dict[tuple[str, bool], float] = {}  # pod, and whether at its start -> since when, monotonic

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._prepared.discard(uid)
        self._unbooked.pop(uid, None)
        self.started(uid)

    def started(self, uid: str) -> None:
        """The host has not failed a pod."""
        for at_start in (False, True):
            self._failing.pop((uid, at_start), None)

    async def prepare(self, host: AgentHost, pod: Object) -> Unprepared | None:
        """Why a pod's devices are not prepared yet; None once they are."""
        uid = pod["metadata"]["uid"]
        if uid in self._prepared:
            return None
        start = self._monotonic()
        if (missing := await self._prepare(host, pod) or self._prepare_by_drivers(host.dra_manager, pod)) is None:
            self._prepared.add(uid)
            if host.readers is not None and any(True for _ in pod_claims.claim_names(pod)):
                host.readers.prepares.add(self._monotonic() - start)
            self._failing.pop((uid, False), None)
            self._unbooked.pop(uid, None)
        return missing

    def _prepare_by_drivers(self, manager: DraManager | None, pod: Object) -> Unprepared | None:
        """Drivers of others are called once everything else is done."""
        if manager is None:
            return None
        result = manager.prepare(pod, self.claims(pod))
        if isinstance(result, InProgress):
            return Unprepared(self.pending(result))
        return Unprepared(result, host_failed=True) if result is not None else None

    def claims(self, pod: Object) -> list[Object]:
        """Those of a pod that are known and allocated, each once: a pod may refer to a claim under several names."""
        names = dict.fromkeys(name for _, name in pod_claims.claim_names(pod) if name)
        claims = [self._claim(pod["metadata"]["namespace"], name) for name in names]
        return [claim for claim in claims if claim is not None and (claim.get("status") or {}).get("allocation")]

    def pending(self, call: InProgress) -> Rejection:
        """For how long drivers have not answered."""
        return Rejection.of(RejectionCode.DRIVER_CALL_PENDING, seconds=int(self._monotonic() - call.since))

    def passes_soon(self, pod: Object, missing: Unprepared) -> bool:
        """Whether a reason is not worth a report yet: in a cluster a pod is bound before the ledger mirror has booked its
        devices, and the change of the page wakes it."""
        if missing.rejection.code is RejectionCode.DRIVER_CALL_PENDING:
            return bool(missing.rejection["seconds"] < DRIVER_PATIENCE)
        if missing.rejection.code is not RejectionCode.NOT_BOOKED:
            return False
        now = self._monotonic()
        return now - self._unbooked.setdefault(pod["metadata"]["uid"], now) < BOOKING_PATIENCE

    async def at_fault(self, host: AgentHost, pod: Object, error: StartFailed) -> Unprepared | None:
        """Whether no domain can be built because of the devices that are allocated here, and not because of the VMI: their
        drivers publish something else by now, or published one function under two names of them and withdrew the address."""
        if missing := await self._prepare_again(host, pod):
            return missing
        why: Rejection | None = error.rejection
        if why is None or why.code is not RejectionCode.HARDWARE_HELD:
            return None
        return Unprepared(why, host_failed=True, at_start=True)

    async def _prepare_again(self, host: AgentHost, pod: Object) -> Unprepared | None:
        """As `prepare`, with what is published of the devices now."""
        self._prepared.discard(pod["metadata"]["uid"])
        return await self.prepare(host, pod)

    async def _prepare(self, host: AgentHost, pod: Object) -> Unprepared | None:
        for name, claim_name in pod_claims.claim_names(pod):
            claim = self._claim(pod["metadata"]["namespace"], claim_name) if claim_name else None
            if claim is None:
                return Unprepared(Rejection.of(RejectionCode.CLAIM_MISSING, claim=claim_name or name, entry=name))
            if not (claim.get("status") or {}).get("allocation"):
                return Unprepared(Rejection.of(RejectionCode.CLAIM_NOT_ALLOCATED, claim=claim_name))
            users = [user for user in claim["status"].get("reservedFor") or () if user.get("resource", "pods") == "pods"]
            if users and users[0]["uid"] != pod["metadata"]["uid"] and (
                    vm.launches(pod) or attachment_pods.held(pod)):
                return Unprepared(Rejection.of(RejectionCode.CLAIM_IN_USE, claim=claim_name, pods=(users[0]["name"],)))
            if (unnamed := pod_claims.missing_request(pod, name, claim)) is not None:
                return Unprepared(unnamed, final=True)
            results = pod_claims.allocation_results(claim)
            try:
                if unbooked := await self._bookings.prepare(host, claim, results):
                    return Unprepared(Rejection.of(RejectionCode.NOT_BOOKED, devices=tuple(sorted(unbooked)), claim=claim_name,
                                                   host=host.name))
                await self._preparation.prepare(host, claim, claim_bookings.ours(host, results))
            except AlreadyHeld as error:
                return Unprepared(rejection.of_error(error, RejectionCode.PAGE_CONFLICT), host_failed=True)
            except BindFailed as error:
                return Unprepared(rejection.of_error(error, RejectionCode.DRIVER_NOT_BOUND), host_failed=True)
            except NotReady as error:
                return Unprepared(rejection.of_error(error, RejectionCode.PREPARE_FAILED), host_failed=True)
        return None

    async def clash(self, host: AgentHost, pod: Object, domain: Domain) -> Unprepared | None:
        """Why a domain must not have what it is about to get: another domain has it, or another claim. A driver may have
        published an address after its device was prepared: then it is recorded now, and checked as at prepare."""
        names = [name for _, name in pod_claims.claim_names(pod) if name]
        claims = [claim for name in names if (claim := self._claim(pod["metadata"]["namespace"], name)) is not None]
        unrecorded = self._bookings.unrecorded(host, claims, domain.devices)
        by_plugins = await self._bookings.hardware_of(host, pod["metadata"]["uid"]) if unrecorded else set()
        if unrecorded - by_plugins:
            if missing := await self._prepare_again(host, pod):
                return missing
            try:
                await self._bookings.record(
                    host, claims, self._bookings.unrecorded(host, claims, domain.devices) - by_plugins)
            except AlreadyHeld as error:
                return Unprepared(rejection.of_error(error, RejectionCode.PAGE_CONFLICT), host_failed=True, at_start=True)
        sources = set(map(hardware_key, domain.devices))
        for other in (await host.hypervisor.domains()).values() if sources else ():
            if other.uid != domain.uid and (common := sources & set(map(hardware_key, other.devices))):
                message = f"{', '.join(sorted(common))} is in use by the domain {other.name} on {host.name}"
                return Unprepared(Rejection.of(RejectionCode.DEVICE_IN_USE, message=message), host_failed=True, at_start=True)
        return None

    def gives_up(self, host: str, pod: Object, missing: Unprepared) -> bool:
        """Whether the host has failed the pod for long enough, or cannot prepare its devices at all. A new process begins to
        count again."""
        key = (pod["metadata"]["uid"], missing.at_start)
        if not missing.host_failed:
            self._failing.pop(key, None)
            return False
        if missing.rejection.code in IMPOSSIBLE:
            self._audit(host)  # which withholds the device
            return True
        now = self._monotonic()
        return now - self._failing.setdefault(key, now) >= PREPARE_PATIENCE
