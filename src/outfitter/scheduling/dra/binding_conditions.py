"""Devices that must be made ready before a pod may go to its node: what their conditions say by now. A driver writes them into
`status.devices` of the claim; which ones are waited for was published with the device and stands in the allocation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

Object = Mapping[str, Any]
TIMEOUT = 600.0  # seconds, as in Kubernetes
LEFT_OUT = "outfitter.dev/left-out"  # the annotation of a pod that says which hosts it does not go to for a while


@dataclass(frozen=True, slots=True)
class Readiness:
    state: Literal["ready", "waiting", "failed"]
    why: str = ""
    left: float = 0.0  # seconds until it fails because nobody made it ready


def binds(allocation: Object) -> bool:
    """Somebody must make one of its devices ready."""
    return any(result.get("bindingConditions") for result in (allocation.get("devices") or {}).get("results") or ())


def readiness(claims: Iterable[Object], now: datetime, timeout: float = TIMEOUT) -> Readiness:
    """Of all claims of a pod together. One that has failed, or that was not made ready in time, decides for all."""
    waits: list[str] = []
    left = timeout
    for claim in claims:
        status = claim.get("status") or {}
        given = status.get("allocation") or {}
        if not binds(given):
            continue
        for word, failed in _open(status):
            if failed:
                return Readiness("failed", word)
            waits.append(word)
        since = given.get("allocationTimestamp")
        spent = (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0
        left = min(left, timeout - spent)
    if not waits:
        return Readiness("ready")
    words = "; ".join(waits[:3]) + (f"; and {len(waits) - 3} more" if len(waits) > 3 else "")
    if left <= 0:
        return Readiness("failed", f"not made ready within {timeout:.0f} s: {words}")
    return Readiness("waiting", words, left)


def left_out(pod: Object, now: datetime) -> dict[str, tuple[datetime, str]]:
    """Hosts on which a pod's devices were not made ready, and that it does not go to for a while: until when, and why. It
    stands on the pod, so that every scheduler knows, also one that was started since."""
    try:
        said = json.loads((pod["metadata"].get("annotations") or {}).get(LEFT_OUT) or "{}")
        found = {str(host): (datetime.fromisoformat(until), str(why)) for host, (until, why) in said.items()}
        return {host: (until, why) for host, (until, why) in found.items() if until > now}
    except (ValueError, TypeError, AttributeError):  # somebody else wrote it
        return {}


def leaving_out(pod: Object, host: str, why: str, now: datetime, seconds: float) -> dict[str, str]:
    """The annotation with one host more."""
    more = {host: (now + timedelta(seconds=seconds), why)} if host else {}
    return exclusion({**left_out(pod, now), **more})


def exclusion(hosts: Mapping[str, tuple[datetime, str]]) -> dict[str, str]:
    """The annotation that excludes these hosts, each until a moment and for a reason."""
    said = {host: [until.isoformat(), why] for host, (until, why) in hosts.items()}
    return {LEFT_OUT: json.dumps(said, sort_keys=True)}


def waits_for(claims: Iterable[Object]) -> str:
    """What has to be made ready, for people."""
    return "; ".join(word for claim in claims if binds(claim["status"]["allocation"]) for word, _ in _open(claim["status"]))


def _open(status: Object) -> Iterator[tuple[str, bool]]:
    """What is not as it must be, and whether that is final."""
    told = {_place(entry): {one.get("type"): one for one in entry.get("conditions") or ()}
            for entry in status.get("devices") or ()}
    for result in status["allocation"]["devices"]["results"]:
        if not result.get("bindingConditions"):
            continue
        have, name = told.get(_place(result), {}), f"{result['pool']}/{result['device']}"
        for type_ in result.get("bindingFailureConditions") or ():
            if (have.get(type_) or {}).get("status") == "True":
                yield f"{name}: {type_}{_message(have[type_])}", True
        for type_ in result["bindingConditions"]:
            if (have.get(type_) or {}).get("status") != "True":
                yield f"{name} is not {type_} yet{_message(have.get(type_) or {})}", False


def _place(entry: Object) -> tuple[str, str, str, str]:
    return entry["driver"], entry["pool"], entry["device"], entry.get("shareID") or ""


def _message(condition: Object) -> str:
    text = condition.get("message") or condition.get("reason")
    return f" ({text})" if text else ""
