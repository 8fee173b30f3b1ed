"""Which claims are prepared on a host for which pods, and with which devices of which drivers: the kubelet's DRA manager. Every
claim is recorded in `dra_manager_state` before a driver is called for it, and until every driver has unprepared it.

Called by the agent, which holds the host's lock: no method waits for a driver. A call runs beside it, and wakes the pod when it
has ended; a claim is in one call at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import OutfitterError
from outfitter.node.atomic_files import Files
from outfitter.node.device_manager import dra_checkpoint
from outfitter.node.device_manager.checkpoint import CheckpointProblem, DamagedCheckpoint
from outfitter.node.device_manager.dra_checkpoint import ClaimInfoState
from outfitter.node.dra_manager import claim_calls, claim_status
from outfitter.node.dra_manager.claim_calls import Allocated, Batches, PreparePlan
from outfitter.node.dra_manager.device_health import KnownHealth
from outfitter.node.dra_manager.driver_registry import DriverRegistry
from outfitter.node.kubelet.claim_reference import ClaimReference
from outfitter.store.clock import Clock
from outfitter.store.informer import key_of

log = logging.getLogger(__name__)
RETRY_FIRST, RETRY_MOST = 1.0, 30.0  # seconds until a driver that failed is called again; doubled each time
SWEEP_AGAIN = 5.0  # seconds until claims of pods that are gone are tried again
PREPARE, UNPREPARE = "prepare", "unprepare"


@dataclass(frozen=True, slots=True)
class InProgress:
    """A driver has not answered yet."""

    since: float  # monotonic


@dataclass(frozen=True, slots=True)
class _Call:
    task: asyncio.Task[Rejection | None]
    since: float
    stage: str


@dataclass(frozen=True, slots=True)
class _Failure:
    rejection: Rejection
    until: float  # monotonic: no call before
    delay: float


class DraManager:
    def __init__(
        self, host: str, own: str, files: Files, drivers: DriverRegistry, *, clock: Clock,
        expected: Callable[[str], bool] = lambda driver: True, whole: bool = True,
    ) -> None:
        """`own`: our driver on this host, which is not called. `files`: of the kubelet's folder. `expected`: whether a driver
        that has not registered is waited for; the devices of others need no prepare. `whole`: claims of which no driver is
        called are recorded too."""
        self.host, self.drivers, self._expected, self._whole = host, drivers, expected, whole
        self._own, self._clock = own, clock
        self.files = files
        self.wake: Callable[[str], None] = lambda key: None  # set by the agent: has a pod looked at again
        self._claims: dict[str, ClaimInfoState] = {}  # by uid
        self._prepared: set[str] = set()  # claims of which every driver has answered this process, or that are in use
        self._rebuilt: set[str] = set()  # claims whose record was lost while they were in use
        self._calls: dict[str, _Call] = {}  # by pod
        self._called: set[str] = set()  # claims that are in a call
        self._failed: dict[tuple[str, str], _Failure] = {}  # by pod and stage
        self._keys: dict[str, str] = {}  # pod -> its key
        self._waiting: set[str] = set()  # keys of pods that wait for a driver
        self._background: set[asyncio.Task[Rejection | None]] = set()
        self._lost = False  # there was no usable record when this process began
        self._unprepared: set[str] = set()  # pods of which this process has unprepared everything
        drivers.on_driver.append(self._driver_changed)
        drivers.on_health.append(self._health_changed)

    def load(self) -> None:
        """What earlier processes recorded. A file that cannot be used is rebuilt from the API, pod by pod."""
        try:
            text = self.files.read(dra_checkpoint.FILE)
            found = dra_checkpoint.decode(text) if text is not None else ()
        except (OSError, UnicodeDecodeError) as error:
            found = DamagedCheckpoint(CheckpointProblem.UNREADABLE, f"{dra_checkpoint.FILE} cannot be read: {error}")
        if isinstance(found, DamagedCheckpoint):
            log.warning("%s: %s; it is written again from the claims of the pods that run", self.host, found.message)
            found = ()
        self._lost = not found
        self._claims = {claim.uid: claim for claim in found}

    async def stop(self) -> None:
        tasks = [*(call.task for call in self._calls.values()), *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.drivers.stop()

    # -- what others read

    def claims_of(self, pod_uid: str) -> Mapping[str, ClaimInfoState]:
        """The claims of a pod by name, as far as they are recorded."""
        return {claim.name: claim for claim in self._claims.values() if pod_uid in claim.pod_uids}

    def cdi_ids(self, claim_uid: str, result: Mapping[str, Any]) -> tuple[str, ...]:
        """Of one device of a claim's allocation; empty while it is not prepared."""
        claim = self._claims.get(claim_uid)
        devices = claim.drivers.get(result["driver"], ()) if claim is not None else ()
        return tuple(cdi for each in devices for cdi in each.cdi_ids if (each.pool, each.device, each.share_id or "") == (
            result["pool"], result["device"], result.get("shareID") or ""))

    def recorded(self) -> set[tuple[str, str]]:
        """Namespace and name of all claims that are recorded."""
        return {(claim.namespace, claim.name) for claim in self._claims.values()}

    def statuses(
        self, pod: Object, own: Callable[[DeviceId], KnownHealth | None] = lambda device: None
    ) -> Mapping[str, Sequence[Object]]:
        """Container -> entries of its allocatedResourcesStatus for claims. `own`: the health of our own devices, None of those
        of others."""
        return claim_status.statuses(pod, self.claims_of(pod["metadata"]["uid"]),
                                     lambda device: own(device) or self.drivers.health.of(device))

    def unhealthy(self, pod: Object) -> Mapping[DeviceId, str]:
        """The unhealthy devices that a pod has, and what their drivers say."""
        unhealthy = self.drivers.health.unhealthy()
        return {device: unhealthy[device].message for claim in self.claims_of(pod["metadata"]["uid"]).values()
                for device in claim_status.devices_of(claim) if device in unhealthy}

    # -- prepare

    def prepare(self, pod: Object, claims: Sequence[Object]) -> Rejection | InProgress | None:
        """None once all claims of a pod are prepared by every driver. `claims`: all of them, allocated."""
        meta = pod["metadata"]
        if not self._concerned(claims):
            return None
        self._keys[meta["uid"]] = key_of(pod)
        if (pod.get("status") or {}).get("phase") == "Running":
            if self._adopt(meta["uid"], claims):
                self._refresh()
            return None
        result = self._result(meta["uid"], PREPARE) or self._begin_prepare(pod, claims)
        self._await(meta["uid"], result)
        return result

    def _begin_prepare(self, pod: Object, claims: Sequence[Object]) -> Rejection | InProgress | None:
        uid = pod["metadata"]["uid"]
        plan = claim_calls.plan_prepare(pod, claims, self._claims, self._prepared,
                                        registered=self._is_registered, called=self._is_called, own=self._own)
        if isinstance(plan, Rejection):
            return plan
        if any(claim.uid in self._called for claim in plan.claims):
            return InProgress(self._clock.monotonic())  # another pod's call prepares or unprepares it
        changed = [claim for claim in plan.claims if self._claims.get(claim.uid) != claim]
        self._claims.update((claim.uid, claim) for claim in changed)
        if not plan.calls:
            return self._save() if changed else None
        return self._begin(uid, PREPARE, plan.calls, self._prepare(plan))

    async def _prepare(self, plan: PreparePlan) -> Rejection | None:
        if (unsaved := self._save()) is not None:
            return unsaved
        for driver, claims in plan.calls.items():
            if (why := await self._call_prepare(driver, claims, plan.allocated)) is not None:
                return why
        self._prepared.update(claim.uid for claims in plan.calls.values() for claim in claims)
        return self._save()

    async def _call_prepare(
        self, name: str, claims: Sequence[ClaimReference], allocated: Allocated
    ) -> Rejection | None:
        driver = self.drivers.get(name)
        if driver is None:
            return Rejection.of(RejectionCode.DRIVER_NOT_REGISTERED, driver=name, claim=claims[0].name)
        try:
            answer = await driver.prepare(claims)
        except OutfitterError as error:
            return claim_calls.failed_call(name, error.message)
        if (why := claim_calls.check_prepared(name, claims, answer, allocated)) is not None:
            return why
        for claim in claims:
            if (known := self._claims.get(claim.uid)) is not None:
                self._claims[claim.uid] = claim_calls.with_devices(known, name, answer[claim.uid].devices)
        return None

    def _adopt(self, pod_uid: str, claims: Sequence[Object]) -> bool:
        """A pod that runs has its claims: they are not prepared again. If their record was lost, it is written again from the
        allocation; their CDI ids are not in the API. Whether anything is new."""
        changed = False
        for claim in claims:
            uid = claim["metadata"]["uid"]
            known = self._claims.get(uid)
            if known is None:
                known = claim_calls.allocated_info(claim, self._own)
                self._rebuilt.add(uid)
            self._prepared.add(uid)
            if pod_uid not in known.pod_uids:
                self._claims[uid], changed = claim_calls.with_pod(known, pod_uid), True
        if changed:
            self._save()
        return changed

    def _refresh(self) -> None:
        """Call the drivers of rebuilt claims again, where they are registered: only they know the CDI ids."""
        claims = [claim for uid in self._rebuilt - self._called if (claim := self._claims.get(uid)) is not None]
        ready = [claim for claim in claims if all(map(self._is_registered, filter(self._is_called, claim.drivers)))]
        if not ready:
            return
        plan = claim_calls.plan_again(ready, self._is_called)
        self._rebuilt -= {claim.uid for claim in ready}
        task = asyncio.create_task(self._prepare(plan))
        self._hold(task, plan.calls)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda done: self._refreshed(done, ready))

    def _refreshed(self, task: asyncio.Task[Rejection | None], claims: Sequence[ClaimInfoState]) -> None:
        if not task.cancelled() and (task.exception() is not None or task.result() is not None):
            self._rebuilt |= {claim.uid for claim in claims}  # when a driver registers again
            log.warning("%s: the CDI ids of claims in use are not known: %s", self.host, task.exception() or task.result())

    # -- unprepare

    def unprepare_pod(self, pod: Object, claims: Sequence[Object]) -> Rejection | InProgress | None:
        """`unprepare` of a pod that ends. If the record was lost, the claims of one that was started count as prepared."""
        uid, started = pod["metadata"]["uid"], (pod.get("status") or {}).get("phase", "Pending") != "Pending"
        known = bool(self.claims_of(uid)) or uid in self._unprepared or uid in self._calls
        if self._lost and started and not known and self._concerned(claims):
            self._adopt(uid, [claim for claim in claims if claim_calls.reserved(claim, uid)])
        self._keys[uid] = key_of(pod)
        return self.unprepare(uid)

    def unprepare(self, pod_uid: str) -> Rejection | InProgress | None:
        """None once what a pod had prepared is unprepared, but for claims that other pods use."""
        result = self._result(pod_uid, UNPREPARE) or self._begin_unprepare(pod_uid)
        self._await(pod_uid, result)
        if result is None:
            self._unprepared.add(pod_uid)
            self._forget(pod_uid)
        return result

    def _begin_unprepare(self, pod_uid: str) -> Rejection | InProgress | None:
        used = list(self.claims_of(pod_uid).values())
        if not used:
            return None
        if any(claim.uid in self._called for claim in used):
            return InProgress(self._clock.monotonic())
        last = [claim for claim in used if claim.pod_uids == {pod_uid}]
        calls = claim_calls.batches(last, self._is_called)
        for driver, claims in calls.items():
            if not self._is_registered(driver):
                return Rejection.of(RejectionCode.DRIVER_NOT_REGISTERED, driver=driver, claim=claims[0].name)
        self._claims.update((claim.uid, claim_calls.without_pod(claim, pod_uid)) for claim in used if claim not in last)
        if not calls:
            return self._remove(last)
        return self._begin(pod_uid, UNPREPARE, calls, self._unprepare(last, calls))

    async def _unprepare(self, claims: Sequence[ClaimInfoState], calls: Batches) -> Rejection | None:
        for name, references in calls.items():
            driver = self.drivers.get(name)
            if driver is None:
                return Rejection.of(RejectionCode.DRIVER_NOT_REGISTERED, driver=name, claim=references[0].name)
            try:
                answer = await driver.unprepare(references)
            except OutfitterError as error:
                return claim_calls.failed_call(name, error.message)
            if (why := claim_calls.check_unprepared(name, references, answer)) is not None:
                return why
        return self._remove(claims)

    def _remove(self, claims: Sequence[ClaimInfoState]) -> Rejection | None:
        for claim in claims:
            self._claims.pop(claim.uid, None)
            self._prepared.discard(claim.uid)
            self._rebuilt.discard(claim.uid)
        return self._save()

    def sweep(self, alive: Collection[str]) -> float | None:
        """Unprepare what is recorded for pods that are gone: they were deleted while no agent was running, or by force. A
        number: look again after so many seconds."""
        users = {pod for claim in self._claims.values() for pod in claim.pod_uids}
        for pod in self._keys.keys() - users - set(alive) - self._calls.keys():
            self._forget(pod)
        self._unprepared.intersection_update(alive)
        gone = users - set(alive)
        results = [result for pod in sorted(gone) if (result := self.unprepare(pod)) is not None]
        return SWEEP_AGAIN if results else None

    # -- calls

    def _result(self, pod_uid: str, stage: str) -> Rejection | InProgress | None:
        """How the last call for a pod ended. None: there is none, or it succeeded, or it may be tried again."""
        call = self._calls.get(pod_uid)
        if call is not None:
            if not call.task.done():
                return InProgress(call.since)
            del self._calls[pod_uid]
            self._ended(pod_uid, call)
        failure = self._failed.get((pod_uid, stage))
        return failure.rejection if failure is not None and self._clock.monotonic() < failure.until else None

    def _ended(self, pod_uid: str, call: _Call) -> None:
        why = None if call.task.cancelled() else call.task.result()
        if why is None:
            self._failed.pop((pod_uid, call.stage), None)
            return
        before = self._failed.get((pod_uid, call.stage))
        delay = min(before.delay * 2, RETRY_MOST) if before is not None else RETRY_FIRST
        self._failed[pod_uid, call.stage] = _Failure(why, self._clock.monotonic() + delay, delay)

    def _begin(
        self, pod_uid: str, stage: str, calls: Batches, work: Coroutine[Any, Any, Rejection | None]
    ) -> InProgress:
        now, task = self._clock.monotonic(), asyncio.create_task(work)
        self._calls[pod_uid] = _Call(task, now, stage)
        self._hold(task, calls)
        return InProgress(now)

    def _hold(self, task: asyncio.Task[Rejection | None], calls: Batches) -> None:
        """These claims are in no other call until the task has ended."""
        held = {claim.uid for claims in calls.values() for claim in claims}
        self._called |= held

        def ended(done: asyncio.Task[Rejection | None]) -> None:
            self._called.difference_update(held)
            if not done.cancelled():
                self._wake_waiting()

        task.add_done_callback(ended)

    def _await(self, pod_uid: str, result: Rejection | InProgress | None) -> None:
        if (key := self._keys.get(pod_uid)) is not None:
            (self._waiting.discard if result is None else self._waiting.add)(key)

    def _forget(self, pod_uid: str) -> None:
        if (key := self._keys.pop(pod_uid, None)) is not None:
            self._waiting.discard(key)
        for stage in (PREPARE, UNPREPARE):
            self._failed.pop((pod_uid, stage), None)

    # -- what drivers do

    def _is_registered(self, driver: str) -> bool:
        return self.drivers.get(driver) is not None

    def _concerned(self, claims: Sequence[Object]) -> bool:
        """Whether claims are recorded."""
        return self._whole or any(self._is_called(driver) for claim in claims for driver in claim_calls.drivers_of(claim))

    def _is_called(self, driver: str) -> bool:
        """Whether the devices of a driver are prepared by it."""
        return driver != self._own and (self._is_registered(driver) or self._expected(driver))

    def _driver_changed(self, name: str) -> None:
        if self._is_registered(name):
            self._failed = {key: _Failure(each.rejection, 0.0, RETRY_FIRST) for key, each in self._failed.items()}
            self._refresh()
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        for key in sorted(self._waiting):
            self.wake(key)

    def _health_changed(self, devices: Collection[DeviceId]) -> None:
        changed = set(devices)
        pods = {pod for claim in self._claims.values() if not changed.isdisjoint(claim_status.devices_of(claim))
                for pod in claim.pod_uids}
        for key in sorted(self._keys[pod] for pod in pods if pod in self._keys):
            self.wake(key)

    def _save(self) -> Rejection | None:
        try:
            self.files.write(dra_checkpoint.FILE, dra_checkpoint.encode(tuple(self._claims.values())))
        except OSError as error:
            message = f"{self.files.at(dra_checkpoint.FILE)} cannot be written: {error}"
            return Rejection.of(RejectionCode.PREPARE_FAILED, message=message)
        return None
