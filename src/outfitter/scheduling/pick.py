"""Choose devices on one host. Values in, a choice or a refusal out; touches nothing.

First fit in the order in which the devices were published, as Kubernetes does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from outfitter import cel
from outfitter.api.device import DeviceId
from outfitter.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """One published device that a host could give."""

    id: DeviceId
    device: cel.Device | None  # None: what was published of it cannot be read
    broken: str = ""  # and why
    taints: tuple[str, ...] = ()  # keys of those that keep everybody new away
    takes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # counter set -> counter -> how much


@dataclass(frozen=True, slots=True)
class Choice:
    """Which device answers which request, in the order of the requests."""

    devices: tuple[tuple[str, DeviceId], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a host cannot serve a request: a sentence, and one more for each device that was looked at."""

    summary: str
    details: tuple[str, ...] = ()


# Why a device is not to be had, or None; given those that go away in the same decision.
Blocked = Callable[[Candidate, Collection[DeviceId]], str | None]


def pick(
    requests: Sequence[Request], candidates: Sequence[Candidate], blocked: Blocked,
    elsewhere: Mapping[DeviceId, str] | None = None,
) -> Choice | Refusal:
    """Everything that the requests ask for, or the reason why not. `elsewhere`: devices that are already given away in the same
    decision, and to whom."""
    chosen: list[tuple[str, DeviceId]] = []
    taken = dict(elsewhere or {})
    for request in requests:
        verdicts: dict[DeviceId, _No | None] = {}
        free = 0
        for candidate in candidates:
            verdicts[candidate.id] = verdict = _verdict(request, candidate, blocked, taken)
            if verdict is None:
                free += 1
                if free <= request.count:
                    chosen.append((request.name, candidate.id))
                    taken[candidate.id] = "another request of the same claim"
        if free < request.count:
            return _refusal(request, verdicts, free)
    return Choice(tuple(chosen))


@dataclass(frozen=True, slots=True)
class _No:
    why: str
    matches: bool  # it is what was asked for, but not to be had


def _verdict(request: Request, candidate: Candidate, blocked: Blocked, taken: Mapping[DeviceId, str]) -> _No | None:
    if candidate.device is None:
        return _No(f"cannot be read: {candidate.broken}", matches=False)
    try:
        if not request.wants(candidate.device):
            return _No(f"is not what request {request.name} asks for", matches=False)
    except cel.EvaluationError as error:
        return _No(f"request {request.name} cannot be told of it: {error}", matches=False)
    if candidate.id in taken:
        return _No(f"goes to {taken[candidate.id]}", matches=True)
    if why := blocked(candidate, taken):
        return _No(why, matches=True)
    return None


def _refusal(request: Request, verdicts: Mapping[DeviceId, _No | None], free: int) -> Refusal:
    matching = [(device, no) for device, no in verdicts.items() if no is not None and no.matches]
    if not matching and not free:
        summary = (f"none of its {len(verdicts)} devices is what request {request.name} ({request.class_name}) asks for"
                   if verdicts else "it publishes no devices")
    else:
        summary = f"request {request.name} wants {request.count}: {len(matching) + free} match, {free} free"
    details = [f"{device.device}: {no.why}" for device, no in verdicts.items() if no is not None]
    ordered = sorted(details, key=lambda text: "held by" not in text)
    return Refusal(summary, tuple(ordered))
