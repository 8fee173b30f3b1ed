"""What many hosts say, in few lines: those that say the same stand together, the nearest to fitting first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outfitter.api.natural_order import natural
from outfitter.scheduling.explain.rejections import DeviceObstacle
from outfitter.scheduling.scheduler import HostRejection

NAMED = 3  # hosts or devices that are named of many
SHORT = 4  # lines of the short answer
LONG = 20  # hosts that the long answer tells of one by one
DEVICES = 12  # lines for the devices of one host
_NUMBER = re.compile(r"\d[\d.]*")
_COUNTED = re.compile(r"^none of its \d+ devices")


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts that refuse for the same reason, be it with other numbers."""

    hosts: tuple[str, ...]
    nearest: HostRejection  # of the first of them
    alike: bool  # they say the very same

    def __str__(self) -> str:
        many, first = f"{len(self.hosts)} hosts", self.hosts[0]
        if len(self.hosts) == 1:
            return f"{first}: {self.nearest.summary}"
        said = _COUNTED.sub("none of their devices", self.nearest.summary)
        plain = self.alike or said != self.nearest.summary
        return f"{many} ({few(self.hosts)}): {said}" if plain else f"{many} such as {first}: {said}"


def by_distance(hosts: Sequence[tuple[str, HostRejection]]) -> list[tuple[str, HostRejection]]:
    return sorted(hosts, key=lambda one: (one[1].far, natural(one[0])))


def groups(hosts: Sequence[tuple[str, HostRejection]]) -> list[HostGroup]:
    """The nearest first; of those that are equally near the larger ones."""
    same: dict[str, list[tuple[str, HostRejection]]] = {}
    for host, refusal in by_distance(hosts):
        same.setdefault(_NUMBER.sub("#", refusal.summary), []).append((host, refusal))
    found = [HostGroup(tuple(host for host, _ in those), those[0][1], len({refusal.summary for _, refusal in those}) == 1)
             for those in same.values()]
    return sorted(found, key=lambda group: (group.nearest.far, -len(group.hosts)))


def short(hosts: Sequence[tuple[str, HostRejection]]) -> list[str]:
    """A handful of lines."""
    found = groups(hosts)
    out = [f"{group.hosts[0]}: {group.nearest.short}" if len(group.hosts) == 1 else str(group) for group in found[:SHORT]]
    if len(found) > SHORT:
        out.append(f"{sum(len(group.hosts) for group in found[SHORT:])} more hosts, for other reasons")
    if found and (near := nearest_device(hosts)):
        host, one = near
        out.append(f"nearest device: {one.device} of {host}: {one.text}")
    return out


def headline(hosts: Sequence[tuple[str, HostRejection]]) -> str:
    """What is wrong, seen from the nearest host."""
    nearest = min((refusal for _, refusal in hosts), key=lambda refusal: refusal.far)
    match nearest.far[0]:
        case 1 if nearest.seek is not None:
            return "the devices that it asks for are there, but not to be had now"
        case 2:
            return "no host has the devices that it asks for"
    return "no host takes it"


def long(hosts: Sequence[tuple[str, HostRejection]]) -> list[str]:
    """Host by host and device by device, as far as it fits a screen or two."""
    ordered = by_distance(hosts)
    out = []
    for host, refusal in ordered[:LONG]:
        out += [f"{host}: {refusal.summary}", *(f"  {line}" for line in devices(refusal.obstacles))]
    return [*out, *map(str, groups(ordered[LONG:])[:LONG])]


def devices(obstacles: Sequence[DeviceObstacle]) -> Iterator[str]:
    """A line for each device; those with the same obstacle share one."""
    same: dict[str, dict[str, None]] = {}
    for one in obstacles:
        same.setdefault(one.text, {})[one.device] = None
    for text, names in list(same.items())[:DEVICES]:
        those = sorted(filter(None, names), key=natural)
        yield f"{few(those)}: {text}" if those else text
    if len(same) > DEVICES:
        yield f"and {len(same) - DEVICES} more"


def nearest_device(hosts: Sequence[tuple[str, HostRejection]]) -> tuple[str, DeviceObstacle] | None:
    """Where nothing matches: the device that fails the last of what is asked for. Only the first hosts are looked at."""
    ordered = by_distance(hosts)
    if not ordered or ordered[0][1].far[0] < 2:
        return None
    found = [(host, one) for host, refusal in ordered[:LONG] for one in refusal.obstacles if one.code == "selector"]
    return max(found, key=lambda one: one[1].passed, default=None)


def few(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED] if more > 1 else names) + (f" and {more} more" if more > 1 else "")
