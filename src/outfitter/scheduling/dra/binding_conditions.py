"""Devices that must be made ready before a pod may go to its node: what their conditions say by now. A driver writes them into
`status.devices` of the claim; which ones are waited for was published with the device and stands in the allocation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode

Object = Mapping[str, Any]
TIMEOUT = 600.0  # seconds, as in Kubernetes
SKIPPED_HOSTS = "outfitter.dev/skipped-hosts"  # annotation of a pod: hosts it does not go to for a while


@dataclass(frozen=True, slots=True)
class Readiness:
    state: Literal["ready", "waiting", "failed"]
    rejections: tuple[Rejection, ...] = ()  # what is not ready, or the one that failed
    left: float = 0.0  # seconds until it fails because its driver did not make it ready


def binds(allocation: Object) -> bool:
    """A driver must make one of its devices ready first."""
    return any(result.get("bindingConditions") for result in (allocation.get("devices") or {}).get("results") or ())


def readiness(claims: Iterable[Object], now: datetime, timeout: float = TIMEOUT) -> Readiness:
    """Of all claims of a pod together. One that has failed, or that was not made ready in time, decides for all."""
    waits: list[Rejection] = []
    left = timeout
    for claim in claims:
        status = claim.get("status") or {}
        given = status.get("allocation") or {}
        if not binds(given):
            continue
        for rejection in _open(status):
            if rejection.code is RejectionCode.DEVICE_FAILED:
                return Readiness("failed", (rejection,))
            waits.append(rejection)
        since = given.get("allocationTimestamp")
        spent = (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0
        left = min(left, timeout - spent)
    if not waits:
        return Readiness("ready")
    if left <= 0:
        late = Rejection(RejectionCode.DEVICE_READY_TIMEOUT, detail={"seconds": round(timeout)}, causes=tuple(waits))
        return Readiness("failed", (late,))
    return Readiness("waiting", tuple(waits), left)


def skipped_hosts(pod: Object, now: datetime) -> dict[str, tuple[datetime, str]]:
    """Hosts on which a pod's devices were not made ready, and that it does not go to for a while: until when, and why.
    An annotation of the pod, so that a scheduler that is restarted knows it too."""
    try:
        entries = json.loads((pod["metadata"].get("annotations") or {}).get(SKIPPED_HOSTS) or "{}")
        hosts = {str(host): (datetime.fromisoformat(until), str(why)) for host, (until, why) in entries.items()}
        return {host: (until, why) for host, (until, why) in hosts.items() if until > now}
    except (ValueError, TypeError, AttributeError):  # another writer's annotation
        return {}


def skipped_host_rejections(hosts: Mapping[str, tuple[datetime, str]]) -> dict[str, Rejection]:
    """Hosts of `skipped_hosts`, as rejections."""
    return {host: Rejection.of(RejectionCode.HOST_EXCLUDED, message=why, until=until.isoformat())
            for host, (until, why) in hosts.items()}


def skipping(pod: Object, host: str, why: str, now: datetime, seconds: float) -> dict[str, str]:
    """The annotation with one host more."""
    more = {host: (now + timedelta(seconds=seconds), why)} if host else {}
    return skipped_hosts_annotation({**skipped_hosts(pod, now), **more})


def skipped_hosts_annotation(hosts: Mapping[str, tuple[datetime, str]]) -> dict[str, str]:
    """The annotation that excludes these hosts, each until a moment and for a reason."""
    entries = {host: [until.isoformat(), why] for host, (until, why) in hosts.items()}
    return {SKIPPED_HOSTS: json.dumps(entries, sort_keys=True)}


def waits_for(claims: Iterable[Object]) -> tuple[Rejection, ...]:
    """What has to be made ready."""
    return tuple(rejection for claim in claims if binds(claim["status"]["allocation"]) for rejection in _open(claim["status"]))


def _open(status: Object) -> Iterator[Rejection]:
    """The conditions of devices that are not as they must be: DEVICE_FAILED is final, DEVICE_NOT_READY is waited for."""
    reported = {_place(entry): {one.get("type"): one for one in entry.get("conditions") or ()}
            for entry in status.get("devices") or ()}
    for result in status["allocation"]["devices"]["results"]:
        if not result.get("bindingConditions"):
            continue
        have, device = reported.get(_place(result), {}), DeviceId(result["driver"], result["pool"], result["device"])
        for type_ in result.get("bindingFailureConditions") or ():
            if (have.get(type_) or {}).get("status") == "True":
                yield _rejection(RejectionCode.DEVICE_FAILED, device, type_, have[type_])
        for type_ in result["bindingConditions"]:
            if (have.get(type_) or {}).get("status") != "True":
                yield _rejection(RejectionCode.DEVICE_NOT_READY, device, type_, have.get(type_) or {})


def _place(entry: Object) -> tuple[str, str, str, str]:
    return entry["driver"], entry["pool"], entry["device"], entry.get("shareID") or ""


def _rejection(code: RejectionCode, device: DeviceId, type_: str, condition: Object) -> Rejection:
    message = condition.get("message") or condition.get("reason")
    return Rejection(code, device, detail={"condition": type_, **({"message": message} if message else {})})
