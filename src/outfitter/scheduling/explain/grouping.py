"""The rejections of many hosts in few lines: hosts that reject for the same reason and are equally near stand together, the
nearest to fitting first. Their golden file is tests/scheduling/explain/golden/grouping.txt. Pure; called by explanations and by
the summary."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfitter.api.natural_order import natural
from outfitter.api.rejection import UNLIKE, Rejection, RejectionCode
from outfitter.api.rejection_text import EXACT, Wording, render_all, request_name, sentence
from outfitter.scheduling.placement import HostRejection

NAMED = 3  # hosts or devices that are named of many
SHORT = 4  # lines of the short answer
LONG = 20  # hosts that the long answer shows one by one
DEVICES = 12  # lines for the devices of one host
MANY = 1000  # more than a device can fail
NUMA = frozenset({RejectionCode.NUMA_TOO_FEW_CPUS, RejectionCode.NUMA_TOO_FAR})
OWN = frozenset({"has", "rooms", "cells", "counter", "pool", "until"})  # details in which hosts differ that reject alike
HOLDERS = 2  # of devices, that the short line of a host names
CAUSES = 5  # kinds of causes that it names
NEAREST = 2  # requests for which the short answer names the nearest device


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
        if (why := causes(self.nearest, wording)):
            text += f"; on {first}: {why}"
        counted = all(rejection.code is RejectionCode.NO_MATCH for rejection in self.nearest.rejections)
        return f"{many} ({few(self.hosts)}): {text}" if self.alike or counted else f"{many} such as {first}: {text}"


def with_causes(host: HostRejection, wording: Wording) -> str:
    """Why a host rejects a pod, and why devices that match are not free."""
    apart = [sentence(one, wording) for one in host.blocking if one.code is RejectionCode.CONSTRAINT_UNMET]
    why = causes(host, wording)
    return (apart or [render_all(host.rejections, wording)])[0] + (f" ({why})" if why else "")


def causes(host: HostRejection, wording: Wording) -> str:
    """Why devices that match are not free: each cause with its devices. Of many, one of each code and DeviceTaintRule."""
    same: dict[str, dict[str, None]] = {}
    firsts: dict[Hashable, str] = {}  # code and rules -> text
    for one in host.not_free:
        text = sentence(one, wording)
        same.setdefault(text, {})[one.device.device if one.device is not None else ""] = None
        firsts.setdefault(_cause(one), text)
    shown = set(list(firsts.values())[:CAUSES])
    shown.update([text for text in same if text not in shown][:max(0, HOLDERS - len(shown))])
    out = [f"{few(sorted(names, key=natural))}: {text}" for text, names in same.items() if text in shown]
    return "; ".join([*out, *(["..."] if len(shown) < len(same) else [])])


def _cause(rejection: Rejection) -> Hashable:
    """What makes two causes of one kind."""
    return rejection.code, rejection.detail.get("rules")


def by_distance(hosts: Sequence[tuple[str, HostRejection]]) -> list[tuple[str, HostRejection]]:
    return sorted(hosts, key=lambda one: (one[1].far, natural(one[0])))


def groups(hosts: Sequence[tuple[str, HostRejection]]) -> list[HostGroup]:
    """The nearest first; of those that are equally near the larger ones."""
    same: dict[Hashable, list[tuple[str, HostRejection]]] = {}
    few_hosts = len(hosts) <= LONG
    for host, rejected in by_distance(hosts):
        # How many devices no device matches makes hosts unlike; how many are not free does not.
        lacks = rejected.far[:2] if rejected.far[0] == 2 else rejected.far[:1]
        near = _nearness(rejected) if few_hosts else None
        same.setdefault((lacks, near, *map(_kind, rejected.rejections)), []).append((host, rejected))
    found = [HostGroup(tuple(host for host, _ in those), those[0][1], all(
        rejected.rejections == those[0][1].rejections for _, rejected in those)) for those in same.values()]
    return sorted(found, key=lambda group: (
        group.nearest.far, -_nearness(group.nearest)[0] if few_hosts else 0, -len(group.hosts)))


def _nearness(rejected: HostRejection) -> tuple[int, frozenset[Hashable]]:
    """How near the nearest device of a host is where none matches, and why those that match are not free. Looks at every
    device, so it is for few hosts."""
    if rejected.seek is None:
        return 0, frozenset()
    if rejected.far[0] < 2:
        return 0, frozenset(map(_cause, rejected.not_free))
    return max((_passed(one) for one in _near_misses(rejected)), default=-MANY), frozenset()


def _kind(rejection: Rejection) -> Hashable:
    """What two rejections have in common that differ in amounts, times and what is the host's own. A host that could never
    have as much is unlike one that others use."""
    device = None if rejection.code is RejectionCode.SELECTOR_ERROR else rejection.device
    wanted, total = rejection.detail.get("wanted"), rejection.detail.get("total")
    never = isinstance(wanted, int) and isinstance(total, int) and total < wanted
    return (rejection.code, device, rejection.holder, never, _frozen(rejection.detail),
            tuple(map(_kind, rejection.causes)))


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
    out = [f"{group.hosts[0]}: {with_causes(group.nearest, wording)}" if len(group.hosts) == 1 else group.text(wording)
           for group in found[:SHORT]]
    if len(found) > SHORT:
        out.append(f"{sum(len(group.hosts) for group in found[SHORT:])} more hosts, for other reasons")
    for host, one in nearest_devices(hosts)[:NEAREST]:
        name = one.device.device if one.device is not None else ""
        out.append(f"nearest device for {request_name(one.detail)}: {name} of {host}: "
                   f"{sentence(one, replace(wording, requests=False))}")
    return out


def headline(hosts: Sequence[tuple[str, HostRejection]]) -> str:
    """What is wrong, seen from the nearest host."""
    nearest = min((rejected for _, rejected in hosts), key=lambda rejected: rejected.far)
    match nearest.far[0]:
        case 0 if any(one.code is RejectionCode.SELECTOR_ERROR for one in nearest.rejections):
            return "a selector has no result for a device"
        case 1 if nearest.seek is not None:
            if any(rejection.code in NUMA for rejection in nearest.rejections):
                return "no NUMA cell has both the CPUs and the devices that it asks for"
            some = any(rejection.detail.get("free") for rejection in nearest.rejections)
            return f"matching devices exist but {'too few are' if some else 'none is'} free"
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
    """A line for each device and what rejects it: a request, alias or resource; equal ones share a line."""
    same: dict[tuple[str, str], dict[str, None]] = {}
    plain = replace(wording, requests=False)
    for one in obstacles:
        line = (request_name(one.detail), sentence(one, plain)) if one.device is not None else ("", sentence(one, wording))
        same.setdefault(line, {})[one.device.device if one.device is not None else ""] = None
    for (request, text), names in list(same.items())[:DEVICES]:
        those = sorted(filter(None, names), key=natural)
        yield f"{few(those)}{f' for {request}' if request else ''}: {text}" if those else text
    if len(same) > DEVICES:
        yield f"and {len(same) - DEVICES} more"


def nearest_devices(hosts: Sequence[tuple[str, HostRejection]]) -> list[tuple[str, Rejection]]:
    """Where nothing matches: the device that fails the least of what a request asks for, and its host. For each request that no
    host matches, else for those of the nearest host. Only the first hosts are looked at."""
    ordered = [one for one in by_distance(hosts)[:LONG] if one[1].far[0] <= 2]
    if not ordered or ordered[0][1].far[0] < 2:
        return []
    lacking = [set(_unmatched(rejected.rejections)) for _, rejected in ordered]
    requests = set.intersection(*lacking) or lacking[0]
    best: dict[str, tuple[str, Rejection]] = {}
    for host, rejected in ordered:
        for one in _near_misses(rejected):
            request = request_name(one.detail)
            if request in requests and (request not in best or _passed(one) > _passed(best[request][1])):
                best[request] = host, one
    return list(best.values())


def _near_misses(rejected: HostRejection) -> Iterator[Rejection]:
    """The devices of a host that are not what is asked for, of those requests and aliases alone that too few devices match."""
    lacking = set(_unmatched(rejected.rejections))
    return (one for one in rejected.obstacles if one.code in UNLIKE and request_name(one.detail) in lacking)


def _unmatched(rejections: Sequence[Rejection]) -> Iterator[str]:
    for rejection in rejections:
        if rejection.code is RejectionCode.NO_MATCH:
            yield from map(request_name, rejection.detail.get("alternatives") or (rejection.detail,))
        elif rejection.code is RejectionCode.TOO_FEW_FREE and rejection["match"] < rejection.detail.get("wanted", 0):
            yield request_name(rejection.detail)


def _passed(miss: Rejection) -> int:
    """How much of what is asked for is true of a device: comparable among devices for the same request."""
    passed: int = miss.detail["passed"] if "passed" in miss.detail else -miss.detail["failed"]
    return passed


def few(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED] if more > 1 else names) + (f" and {more} more" if more > 1 else "")
