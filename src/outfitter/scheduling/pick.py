"""Choose devices on one host. Values in, a choice or a refusal out; touches nothing.

First fit in the order in which the devices were published, as Kubernetes does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outfitter import cel
from outfitter.api.device import DeviceId
from outfitter.api.page import Booking
from outfitter.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """One published device that a host could give."""

    id: DeviceId
    device: cel.Device | None  # None: what was published of it cannot be read
    broken: str = ""  # and why


@dataclass(frozen=True, slots=True)
class Choice:
    """Which device answers which request, in the order of the requests."""

    devices: tuple[tuple[str, DeviceId], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a host cannot serve a request: a sentence, and one more for each device that was looked at."""

    summary: str
    details: tuple[str, ...] = ()


Held = Callable[[DeviceId], Booking | None]


def pick(
    requests: Sequence[Request], candidates: Sequence[Candidate], held: Held, elsewhere: Mapping[DeviceId, str] | None = None
) -> Choice | Refusal:
    """Everything that the requests ask for, or the reason why not. `elsewhere`: devices that are already given away in the same
    decision, and to whom."""
    chosen: list[tuple[str, DeviceId]] = []
    taken = dict(elsewhere or {})
    for request in requests:
        verdicts = {candidate.id: _verdict(request, candidate, held, taken) for candidate in candidates}
        fits = [device for device, verdict in verdicts.items() if verdict is None]
        if len(fits) < request.count:
            return _refusal(request, verdicts, len(fits))
        for device in fits[: request.count]:
            chosen.append((request.name, device))
            taken[device] = "another request of the same claim"
    return Choice(tuple(chosen))


@dataclass(frozen=True, slots=True)
class _No:
    why: str
    matches: bool  # it is what was asked for, but not to be had


def _verdict(request: Request, candidate: Candidate, held: Held, taken: Mapping[DeviceId, str]) -> _No | None:
    if candidate.device is None:
        return _No(f"cannot be read: {candidate.broken}", matches=False)
    try:
        if not request.wants(candidate.device):
            return _No(f"is not what request {request.name} asks for", matches=False)
    except cel.EvaluationError as error:
        return _No(f"request {request.name} cannot be told of it: {error}", matches=False)
    if candidate.id in taken:
        return _No(f"goes to {taken[candidate.id]}", matches=True)
    if booking := held(candidate.id):
        return _No(f"held by {booking.holder} since {booking.since}", matches=True)
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
