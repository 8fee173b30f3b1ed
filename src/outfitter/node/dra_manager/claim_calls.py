"""Which driver is called for which claims of a pod, and what its answers mean. Pure; `dra_manager` makes the calls.

    plan_prepare(pod, claims, known, drivers)  -> PreparePlan | Rejection     # before anything is recorded or called
    check_prepared("net.example.com", asked, answer, plan.allocated) -> None | Rejection"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.node.device_manager.dra_checkpoint import ClaimDeviceState, ClaimInfoState
from outfitter.node.devices import cdi
from outfitter.node.dra_manager.dra_driver import ClaimAnswer
from outfitter.node.kubelet.claim_reference import ClaimReference

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"
LONGEST_MESSAGE = 1024  # characters of what a driver says
MOST_ENTRIES = 1024  # devices, and CDI ids, in the answer for one claim; an allocation has at most 32 devices
_CDI_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*=[A-Za-z0-9][A-Za-z0-9_.:-]*")
LONGEST_CDI_ID = 512
Batches = Mapping[str, tuple[ClaimReference, ...]]  # driver -> the claims of one call
Allocated = Mapping[str, Collection[tuple[str, str, str]]]  # claim's uid -> driver, pool and name of its devices


@dataclass(frozen=True, slots=True)
class PreparePlan:
    claims: tuple[ClaimInfoState, ...]  # of the pod, with the pod among their users, as they are to be recorded first
    calls: Batches
    allocated: Allocated


def plan_prepare(
    pod: Object, claims: Sequence[Object], known: Mapping[str, ClaimInfoState], prepared: Collection[str], *,
    registered: Callable[[str], bool], called: Callable[[str], bool], own: str,
) -> PreparePlan | Rejection:
    """`claims`: those of the pod, allocated. `known`: by uid what is recorded; `prepared`: the claims of which every driver has
    answered. `called`: drivers that prepare their devices themselves; `own`: ours, which is none of them. A Rejection: nothing
    is recorded, so that the pod can be deleted without any call."""
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    for claim in claims:
        meta = claim["metadata"]
        if not reserved(claim, uid):
            return Rejection.of(RejectionCode.CLAIM_NOT_RESERVED, claim=meta["name"], pod=name)
        for driver in drivers_of(claim):
            if called(driver) and not registered(driver):
                return Rejection.of(RejectionCode.DRIVER_NOT_REGISTERED, driver=driver, claim=meta["name"])
    infos = tuple(with_pod(known.get(claim["metadata"]["uid"]) or new_info(claim, own), uid) for claim in claims)
    waiting = [info for info in infos if info.uid not in prepared]
    allocated = {claim["metadata"]["uid"]: {(result["driver"], result["pool"], result["device"])
                                            for result in pod_claims.allocation_results(claim)} for claim in claims}
    return PreparePlan(infos, batches(waiting, called), allocated)


def plan_again(infos: Sequence[ClaimInfoState], called: Callable[[str], bool]) -> PreparePlan:
    """For claims that are in use, as `allocated_info` describes them."""
    return PreparePlan(tuple(infos), batches(infos, called), {
        info.uid: {(driver, device.pool, device.device) for driver, devices in info.drivers.items() for device in devices}
        for info in infos})


def reserved(claim: Object, pod_uid: str) -> bool:
    return any(user.get("uid") == pod_uid for user in (claim.get("status") or {}).get("reservedFor") or ())


def batches(claims: Sequence[ClaimInfoState], called: Callable[[str], bool]) -> Batches:
    """One call per driver, with all claims."""
    drivers = sorted(filter(called, {driver for info in claims for driver in info.drivers}))
    return {driver: tuple(reference(info) for info in claims if driver in info.drivers) for driver in drivers}


def drivers_of(claim: Object) -> list[str]:
    return list(dict.fromkeys(result["driver"] for result in pod_claims.allocation_results(claim)))


def new_info(claim: Object, own: str) -> ClaimInfoState:
    """A claim of which only our own driver's devices are prepared."""
    meta, drivers = claim["metadata"], {}
    for driver in drivers_of(claim):
        results = [result for result in pod_claims.allocation_results(claim) if result["driver"] == driver == own]
        drivers[driver] = tuple(ClaimDeviceState(
            result["pool"], result["device"], (str(result["request"]).partition("/")[0],),
            (f"{cdi.kind(own)}={cdi.device_name(meta['uid'], result['device'])}",), result.get("shareID"))
            for result in results)
    return ClaimInfoState(meta["uid"], meta["name"], meta["namespace"], frozenset(), drivers)


def allocated_info(claim: Object, own: str) -> ClaimInfoState:
    """A claim that is in use, of which nothing is recorded any more: its devices are those of the allocation, and their CDI ids
    are not known until the drivers are called again."""
    info = new_info(claim, own)
    drivers = {driver: devices or tuple(
        ClaimDeviceState(result["pool"], result["device"], (str(result["request"]).partition("/")[0],), (),
                         result.get("shareID"))
        for result in pod_claims.allocation_results(claim) if result["driver"] == driver)
        for driver, devices in info.drivers.items()}
    return replace(info, drivers=drivers)


def reference(info: ClaimInfoState) -> ClaimReference:
    return ClaimReference(info.namespace, info.name, info.uid)


def check_prepared(
    driver: str, asked: Sequence[ClaimReference], answer: Mapping[str, ClaimAnswer], allocated: Allocated
) -> Rejection | None:
    """None: every claim is prepared, with devices of its own."""
    if (why := _check(PREPARE, driver, asked, {uid: result.error for uid, result in answer.items()})) is not None:
        return why
    for claim in asked:
        if wrong := _wrong_devices(driver, answer[claim.uid].devices, allocated.get(claim.uid, ())):
            return failed_call(driver, f"{PREPARE} answered for ResourceClaim {claim.name} with {wrong}")
    return None


def _wrong_devices(
    driver: str, devices: Sequence[ClaimDeviceState], allocated: Collection[tuple[str, str, str]]
) -> str:
    """What of an answer for a claim cannot be used; "" if all can. Devices may be missing in it, and so may CDI ids."""
    if max(len(devices), sum(len(device.cdi_ids) for device in devices)) > MOST_ENTRIES:
        return f"more than {MOST_ENTRIES} devices or CDI ids"
    for device in devices:
        if (driver, device.pool, device.device) not in allocated:
            return f"device {_short(f'{device.pool}/{device.device}')}, which is not allocated to it"
        for cdi_id in device.cdi_ids:
            if len(cdi_id) > LONGEST_CDI_ID or not _CDI_ID.fullmatch(cdi_id):
                return f"the CDI id {_short(repr(cdi_id))} of {device.device}; a CDI id is vendor/class=device"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= 128 else f"{text[:128]}..."


def check_unprepared(driver: str, asked: Sequence[ClaimReference], answer: Mapping[str, str]) -> Rejection | None:
    return _check(UNPREPARE, driver, asked, answer)


def _check(method: str, driver: str, asked: Sequence[ClaimReference], errors: Mapping[str, str]) -> Rejection | None:
    by_uid = {claim.uid: claim for claim in asked}
    failed = [f"{by_uid[uid].name}: {error}" for uid, error in errors.items() if error and uid in by_uid]
    if failed:
        return failed_call(driver, f"{method} failed for ResourceClaim {'; '.join(failed)}")
    if unknown := sorted(errors.keys() - by_uid.keys()):
        return failed_call(driver, f"{method} answered for a claim that was not asked for: {unknown[0]}")
    if skipped := [claim.name for claim in asked if claim.uid not in errors]:
        return failed_call(driver, f"{method} skipped {len(skipped)} ResourceClaims: {', '.join(skipped)}")
    return None


def failed_call(driver: str, message: str) -> Rejection:
    shown = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
    return Rejection.of(RejectionCode.DRIVER_CALL_FAILED, driver=driver, message=shown)


def with_devices(
    info: ClaimInfoState, driver: str, devices: tuple[ClaimDeviceState, ...]
) -> ClaimInfoState:
    return replace(info, drivers={**info.drivers, driver: devices})


def without_pod(info: ClaimInfoState, pod: str) -> ClaimInfoState:
    return replace(info, pod_uids=info.pod_uids - {pod})


def with_pod(info: ClaimInfoState, pod: str) -> ClaimInfoState:
    return replace(info, pod_uids=info.pod_uids | {pod})
