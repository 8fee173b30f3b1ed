"""The rejections of many hosts in few lines: hosts that reject for the same reason stand together, the nearest to fitting
first. Their golden file is tests/scheduling/explain/golden/grouping.txt. Pure; called by explanations and by the summary."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfitter.api.natural_order import natural
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import EXACT, Wording, render, render_all, sentence
from outfitter.scheduling.scheduler import HostRejection

NAMED = 3  # hosts or devices that are named of many
SHORT = 4  # lines of the short answer
LONG = 20  # hosts that the long answer shows one by one
DEVICES = 12  # lines for the devices of one host
OWN = frozenset({"has", "rooms", "cells", "counter", "pool", "until"})  # details in which hosts differ that reject alike
HOLDERS = 2  # of devices, that the short line of a host names


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts that reject a pod for the same reason, be it with other amounts."""

    hosts: tuple[str, ...]
    nearest: HostRejection  # of the first of them
    alike: bool  # they reject it with the same amounts

    def text(self, wording: Wording) -> str:
        many, first = f"{len(self.hosts)} hosts", self.hosts[0]
        if len(self.hosts) == 1:
            return f"{first}: {render_all(self.nearest.rejections, wording)}"
        text = render_all(self.nearest.rejections, replace(wording, many=True))
        counted = all(rejection.code is RejectionCode.NO_MATCH for rejection in self.nearest.rejections)
        return f"{many} ({few(self.hosts)}): {text}" if self.alike or counted else f"{many} such as {first}: {text}"


def with_holders(host: HostRejection, wording: Wording) -> str:
    """Why a host rejects a pod, with the holders of the first devices that it asks for."""
    apart = [sentence(one, wording) for one in host.blocking if one.code is RejectionCode.CONSTRAINT_UNMET]
    taken = [render(one, wording) for one in host.taken]
    holders = [*taken[:HOLDERS], *(["..."] if len(taken) > HOLDERS else [])]
    return (apart or [render_all(host.rejections, wording)])[0] + (f" ({'; '.join(holders)})" if holders else "")


def by_distance(hosts: Sequence[tuple[str, HostRejection]]) -> list[tuple[str, HostRejection]]:
    return sorted(hosts, key=lambda one: (one[1].far, natural(one[0])))


def groups(hosts: Sequence[tuple[str, HostRejection]]) -> list[HostGroup]:
    """The nearest first; of those that are equally near the larger ones."""
    same: dict[Hashable, list[tuple[str, HostRejection]]] = {}
    for host, rejected in by_distance(hosts):
        same.setdefault(tuple(map(_kind, rejected.rejections)), []).append((host, rejected))
    found = [HostGroup(tuple(host for host, _ in those), those[0][1], all(
        rejected.rejections == those[0][1].rejections for _, rejected in those)) for those in same.values()]
    return sorted(found, key=lambda group: (group.nearest.far, -len(group.hosts)))


def _kind(rejection: Rejection) -> Hashable:
    """What two rejections have in common that differ in amounts, times and what is the host's own."""
    device = None if rejection.code is RejectionCode.SELECTOR_ERROR else rejection.device
    return rejection.code, device, rejection.holder, _frozen(rejection.detail), tuple(map(_kind, rejection.causes))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((key, _frozen(each)) for key, each in sorted(value.items(), key=lambda item: str(item[0]))
                     if key not in OWN)
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return None if isinstance(value, int) and not isinstance(value, bool) else str(value)


def short(hosts: Sequence[tuple[str, HostRejection]], wording: Wording = EXACT) -> list[str]:
    """A handful of lines."""
    found = groups(hosts)
    out = [f"{group.hosts[0]}: {with_holders(group.nearest, wording)}" if len(group.hosts) == 1 else group.text(wording)
           for group in found[:SHORT]]
    if len(found) > SHORT:
        out.append(f"{sum(len(group.hosts) for group in found[SHORT:])} more hosts, for other reasons")
    if found and (near := nearest_device(hosts)):
        host, one = near
        out.append(f"nearest device: {one.device.device if one.device else ''} of {host}: {sentence(one, wording)}")
    return out


def headline(hosts: Sequence[tuple[str, HostRejection]]) -> str:
    """What is wrong, seen from the nearest host."""
    nearest = min((rejected for _, rejected in hosts), key=lambda rejected: rejected.far)
    match nearest.far[0]:
        case 0 if any(one.code is RejectionCode.SELECTOR_ERROR for one in nearest.rejections):
            return "a selector has no result for a device"
        case 1 if nearest.seek is not None:
            return "matching devices exist but none is free"
        case 2:
            return "no host has the devices that it asks for"
    return "no host takes it"


def long(hosts: Sequence[tuple[str, HostRejection]], wording: Wording = EXACT) -> list[str]:
    """Host by host and device by device, as far as it fits a screen or two."""
    ordered = by_distance(hosts)
    out = []
    for host, rejected in ordered[:LONG]:
        out += [f"{host}: {render_all(rejected.rejections, wording)}",
                *(f"  {line}" for line in devices(rejected.obstacles, wording))]
    return [*out, *(group.text(wording) for group in groups(ordered[LONG:])[:LONG])]


def devices(obstacles: Sequence[Rejection], wording: Wording = EXACT) -> Iterator[str]:
    """A line for each device; those that are rejected with the same words share one."""
    same: dict[str, dict[str, None]] = {}
    for one in obstacles:
        same.setdefault(sentence(one, wording), {})[one.device.device if one.device is not None else ""] = None
    for text, names in list(same.items())[:DEVICES]:
        those = sorted(filter(None, names), key=natural)
        yield f"{few(those)}: {text}" if those else text
    if len(same) > DEVICES:
        yield f"and {len(same) - DEVICES} more"


def nearest_device(hosts: Sequence[tuple[str, HostRejection]]) -> tuple[str, Rejection] | None:
    """Where nothing matches: the device that fails the last of what is asked for. Only the first hosts are looked at."""
    ordered = by_distance(hosts)
    if not ordered or ordered[0][1].far[0] < 2:
        return None
    found = [(host, one) for host, rejected in ordered[:LONG] for one in rejected.obstacles
             if one.code is RejectionCode.SELECTOR_FALSE]
    return max(found, key=lambda one: int(one[1]["passed"]), default=None)


def few(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED] if more > 1 else names) + (f" and {more} more" if more > 1 else "")
