"""Which of several hosts that fit. Numbers in, a number and a sentence out.

A policy compares hosts point by point, and a later point only speaks where all earlier ones are equal:

    pack     near, then as little as possible left: on the PCIe roots that are used, on their NUMA nodes, on the host; then the
             fuller host. So a small claim leaves the roomy place whole for a claim that needs it.
    spread   near, then as much as possible left: on the host, on the NUMA nodes, on the roots; then the emptier host.

Near means that the devices of one pod share a NUMA node and a PCIe root. Hosts that are equal in all of this are taken by
name, so that the same question always has the same answer.

Before the policy come the alternatives of requests (`firstAvailable`), counted as in Kubernetes: the first is 8, the second 7
and so on, summed over all requests. A host loses `STEP` points, more than a policy can give, for each that it has less than the
best one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Policy = Literal["pack", "spread"]
POLICIES: tuple[Policy, ...] = ("pack", "spread")
NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"
BEST = 100.0
MANY = 1023  # of free devices in one place; more are not distinguished
STEPS = 64  # how finely nearness and shares are distinguished
STEP = 100.0  # points between two alternatives of a request: a policy's scores differ by less, a plug-in can make up for it
MOST_ALTERNATIVES = 8  # that Kubernetes takes for one request


class Spot(NamedTuple):
    """Where on a host a device sits."""

    numa: int | None  # None: the host does not say. All that it does not say of are taken to be in one place
    root: str | None  # "pci0000:80"


class Alternative(NamedTuple):
    """The alternative that a request with `firstAvailable` would get."""

    request: str
    name: str
    place: int  # 0: the first choice
    total: int  # alternatives that the request has

    def __str__(self) -> str:
        return f"request {self.request} gets {self.name}, choice {self.place + 1} of {self.total}"


@dataclass(frozen=True, slots=True)
class HostCandidate:
    """A host on which a pod fits, and what it would get there."""

    host: str
    given: tuple[Spot, ...] = ()  # the devices that its claims get
    # How many devices are free, those in `given` among them, that could have served the pod's requests. For a pod that
    # asks for none: of all kinds, because it had better not stand in the way of those who do.
    free: Mapping[Spot, int] = field(default_factory=dict)
    cpu: float = 0.0  # which share of it is left, 0 to 1, with the pod there
    memory: float = 0.0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def preference(self) -> int:
        """How good its alternatives are, more is better; 0 for a pod that has none."""
        return sum(MOST_ALTERNATIVES - one.place for one in self.alternatives)


class RemainingDevices(NamedTuple):
    """Free devices that would be left, with the pod there."""

    roots: int  # on those that its devices are on
    numas: int
    host: int


@dataclass(frozen=True, slots=True)
class Score:
    value: float  # 0 to 100, more is better
    offer: HostCandidate
    policy: Policy
    left: RemainingDevices

    @property
    def why(self) -> str:
        """A sentence. Made when it is read: of thousands of hosts one is taken."""
        given, left = self.offer.given, self.left
        share = f"{round(_idle(self.offer) * 100)}% of cpu and memory left"
        if not given:
            return f"{self.policy}: {_count(left.host, 'free device')} on the host, {share}"
        return (f"{self.policy}: {_count(len(given), 'device')} on {_count(len({one.numa for one in given}), 'NUMA node')} and "
                f"{_count(len(set(given)), 'PCIe root')}; then free on these roots: {left.roots}, NUMA nodes: {left.numas}, "
                f"host: {left.host}; {share}")


@dataclass(frozen=True, slots=True)
class Ranked:
    host: str
    total: float  # the score, what plug-ins add, and what worse alternatives cost
    score: Score
    texts: tuple[str, ...] = ()  # of plug-ins

    @property
    def why(self) -> str:
        return "; ".join([*map(str, self.score.offer.alternatives), self.score.why, *self.texts])


def spot(device: Mapping[str, Any]) -> Spot:
    """Where a device is attached, from its slice."""
    attributes = device.get("attributes") or {}
    numa, root = attributes.get(NUMA) or {}, attributes.get(ROOT) or {}
    return Spot(numa.get("int"), root.get("string"))


def score(offer: HostCandidate, policy: Policy = "pack", *, near: bool = True) -> Score:
    """How good a host is. `near=False`: it does not matter how far a pod's devices are from each other."""
    numas, roots, count = {one.numa for one in offer.given}, set(offer.given), len(offer.given)
    closeness = (1 / len(numas) + 1 / len(roots)) / 2 if count and near else 1.0
    left = RemainingDevices(sum(offer.free.get(one, 0) for one in roots) - count,
                sum(free for one, free in offer.free.items() if one.numa in numas) - count,
                sum(offer.free.values()) - count)
    points = [(int(closeness * STEPS), STEPS)]
    if policy == "pack":
        points += [(MANY - min(max(free, 0), MANY), MANY) for free in left]
        points.append((int((1 - _idle(offer)) * STEPS), STEPS))
    else:
        points += [(min(max(free, 0), MANY), MANY) for free in reversed(left)]
        points.append((int(_idle(offer) * STEPS), STEPS))
    return Score(_fold(points), offer, policy, left)


def _idle(offer: HostCandidate) -> float:
    return min(max((offer.cpu + offer.memory) / 2, 0.0), 1.0)


def _fold(points: Sequence[tuple[int, int]]) -> float:
    """Points (each with the most it can be) as the digits of one number, so that the first that differs decides. There are
    fewer than 2**43 such numbers, which a float tells apart."""
    number, most = 0, 0
    for point, limit in points:
        number, most = number * (limit + 1) + point, most * (limit + 1) + limit
    return BEST * number / most


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rank(offers: Iterable[HostCandidate], policy: Policy = "pack", *, near: bool = True,
         extra: Mapping[str, tuple[float, Sequence[str]]] | None = None) -> list[Ranked]:
    """All hosts, the best first, equal ones by name. `extra`: points of plug-ins for hosts, and what they say."""
    out, candidates = [], list(offers)
    best = max((offer.preference for offer in candidates), default=0)
    for offer in candidates:
        own = score(offer, policy, near=near)
        points, texts = (extra or {}).get(offer.host, (0.0, ()))
        out.append(Ranked(offer.host, own.value + points - STEP * (best - offer.preference), own, tuple(texts)))
    return sorted(out, key=lambda one: (-one.total, one.host))
