"""May a pod run on a node? As Kubernetes decides it, devices aside: where the pod wants to be, whom the node keeps away, and
whether there is enough of everything that is counted.

    used = Used(pods)                          # kept by its owner as pods come and go
    room, need = Room.of(node), Need.of(pod)   # each read once
    reasons = need.unfit(room, used)           # () if it fits

`fit` is all of it in one call, for those who ask once."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from outfitter.api.kubevirt import device_refs
from outfitter.cel.library import quantity
from outfitter.errors import Cause, Invalid
from outfitter.scheduling.filter import node_affinity, taints

Object = Mapping[str, Any]
Amounts = Mapping[str, int]  # resource -> how much: cpu in thousandths, everything else in units (bytes, pages, pieces)
NOTHING: Amounts = MappingProxyType({})
POD_LEVEL = ("cpu", "memory")  # and huge pages: what a pod may ask for as a whole
HUGE_PAGES = "hugepages-"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
CORDONED = "node.kubernetes.io/unschedulable"
# What a condition of a node means to new pods: the taint that a cluster's node controller sets for it. There is none here.
CONDITIONS = {
    ("Ready", "False"): ("node.kubernetes.io/not-ready", "it is not ready"),
    ("Ready", "Unknown"): ("node.kubernetes.io/unreachable", "it is not ready"),
    ("MemoryPressure", "True"): ("node.kubernetes.io/memory-pressure", "it is short of memory"),
    ("DiskPressure", "True"): ("node.kubernetes.io/disk-pressure", "it is short of disk"),
    ("PIDPressure", "True"): ("node.kubernetes.io/pid-pressure", "it is short of process ids"),
    ("NetworkUnavailable", "True"): ("node.kubernetes.io/network-unavailable", "its network is not set up"),
}


def fit(node: Object, pod: Object, used: NodeUsage) -> tuple[str, ...]:
    """Why a pod cannot run on a node; empty if it can. The name of the node is not in the sentences."""
    return PodRequirements.of(pod).unfit(NodeInfo.of(node), used)


# -- amounts


@functools.lru_cache(maxsize=4096)
def _nano(text: str) -> int:
    return quantity.parse(text).nano


def _list(raw: Object, path: str) -> dict[str, int]:
    """A ResourceList in nano-units."""
    out = {}
    for name, value in raw.items():
        try:
            out[name] = _nano(str(value))
        except ValueError as error:
            raise Invalid(f"{path}[{name}]: {error}", [Cause(f"{path}[{name}]", str(error))]) from error
        if out[name] < 0:
            message = f"{value} is below zero: write 0 or more"
            raise Invalid(f"{path}[{name}]: {message}", [Cause(f"{path}[{name}]", message)])
    return out


def _whole(name: str, nano: int) -> int:
    """In the units that are counted, rounded up as Kubernetes does."""
    return -(-nano // (quantity.NANO // 1000 if name == "cpu" else quantity.NANO))


def _requests(resources: Object, path: str) -> dict[str, int]:
    """What is asked for; a limit without a request is one."""
    limits = _list(resources.get("limits") or {}, f"{path}.limits")
    return limits | _list(resources.get("requests") or {}, f"{path}.requests")


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def requests(pod: Object) -> dict[str, int]:
    """What a pod takes of a node, with its place among the pods. Invalid for an amount that cannot be read.

    All containers at once, or the neediest moment of the start if that is more: there each init container runs beside the
    sidecars before it. What the pod asks for as a whole stands instead of its containers; overhead comes on top. Extended
    resources that it has by a claim are counted as devices, and not here."""
    spec = pod.get("spec") or {}
    by_claim = {mapping["resourceName"] for mapping in (
        (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()}
    total: dict[str, int] = {}
    for index, container in enumerate(spec.get("containers") or ()):
        _add(total, _requests(container.get("resources") or {}, f"spec.containers[{index}].resources"))
    sidecars: dict[str, int] = {}
    start: dict[str, int] = {}
    for index, container in enumerate(spec.get("initContainers") or ()):
        asked = _requests(container.get("resources") or {}, f"spec.initContainers[{index}].resources")
        if container.get("restartPolicy") == "Always":
            _add(total, asked)
            _add(sidecars, asked)
            moment = sidecars
        else:
            _add(asked, sidecars)
            moment = asked
        for name, amount in moment.items():
            start[name] = max(start.get(name, 0), amount)
    for name, amount in start.items():
        total[name] = max(total.get(name, 0), amount)
    total |= _as_a_whole(spec.get("resources") or {}, total)
    _add(total, _list(spec.get("overhead") or {}, "spec.overhead"))
    return {"pods": 1} | {name: _whole(name, nano) for name, nano in total.items()
                          if nano and name != "pods" and name not in by_claim}


def _as_a_whole(resources: Object, containers: Mapping[str, int]) -> dict[str, int]:
    """What the pod itself asks for. Of cpu and memory a limit alone counts only where no container asks for any."""
    asked = _list(resources.get("requests") or {}, "spec.resources.requests")
    for name, limit in _list(resources.get("limits") or {}, "spec.resources.limits").items():
        if name.startswith(HUGE_PAGES) or name not in containers:
            asked.setdefault(name, limit)
    return {name: amount for name, amount in asked.items() if name in POD_LEVEL or name.startswith(HUGE_PAGES)}


class NodeUsage:
    """What the pods of each node take: a running total, so that asking costs the same however many pods there are."""

    def __init__(self, pods: Iterable[Object] = ()) -> None:
        self._pods: dict[str, tuple[str, Amounts]] = {}  # key of a pod -> its node and what it takes there
        self._totals: dict[str, dict[str, int]] = {}
        for pod in pods:
            self.add(pod)

    def add(self, pod: Object) -> None:
        """Know a pod as it is now, whatever was known of it. One that has ended takes nothing. One whose devices are being made
        ready takes of the node that it is to go to. One without a node changes nothing: no pod ever leaves its node, so such
        news is older than what is known. Invalid for an amount that cannot be read; then nothing changes either."""
        node: str = (pod.get("spec") or {}).get("nodeName") or nominated(pod)
        if not node:
            return
        ended = (pod.get("status") or {}).get("phase") in device_refs.FINAL
        takes = NOTHING if ended else requests(pod)
        self.remove(pod)
        if takes:
            self._pods[key(pod)] = (node, takes)
            _add(self._totals.setdefault(node, {}), takes)

    def remove(self, pod: Object) -> None:
        """Forget a pod. Nothing happens if it is not known."""
        node, takes = self._pods.pop(key(pod), ("", NOTHING))
        for name, amount in takes.items():
            total = self._totals[node]
            total[name] -= amount
            if not total[name]:
                del total[name]
        if node and not self._totals[node]:
            del self._totals[node]

    def at(self, node: str) -> Amounts:
        """What is taken of a node."""
        return self._totals.get(node, NOTHING)

    def by(self, pod: str, node: str) -> Amounts:
        """The part of it that one pod (its key) takes."""
        where, takes = self._pods.get(pod, ("", NOTHING))
        return takes if where == node else NOTHING

    def __eq__(self, other: object) -> bool:
        return (self._pods, self._totals) == (other._pods, other._totals) if isinstance(other, NodeUsage) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes


def nominated(pod: Object) -> str:
    """The node that a pod goes to when its devices there are ready; "" for any other pod."""
    return (pod.get("status") or {}).get("nominatedNodeName") or ""


def key(pod: Object) -> str:
    meta = pod["metadata"]
    return meta.get("uid") or f"{meta.get('namespace', '')}/{meta['name']}"


# -- a node, read once


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node offers to pods and whom it keeps away."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    amounts: Amounts = field(default_factory=dict)  # allocatable
    taints: tuple[tuple[Object, str], ...] = ()  # those that keep new pods away, each with its sentence
    broken: Mapping[str, str] = field(default_factory=dict)  # amounts that cannot be read, and why: there is nothing of these

    @classmethod
    def of(cls, node: Object) -> NodeInfo:
        """Kubernetes' rules: without `allocatable` the capacity counts, and what is in neither is not there."""
        meta, status = node["metadata"], node.get("status") or {}
        amounts, broken = {}, {}
        offered = status.get("allocatable")
        for name, value in ((status.get("capacity") if offered is None else offered) or {}).items():
            try:
                amounts[name] = _whole(name, _nano(str(value)))
            except ValueError as error:
                broken[name] = f"its status.allocatable[{name}] cannot be read: {error}"
        return cls(meta["name"], meta.get("labels") or {}, amounts, tuple(_taints(node)), broken)

    def share(self, used: NodeUsage, name: str, more: int = 0) -> float:
        """How much of a resource is left, 0 to 1, after `more` of it is taken too. 0 of what it does not offer."""
        total = self.amounts.get(name, 0)
        return max(0.0, 1 - (used.at(self.name).get(name, 0) + more) / total) if total > 0 else 0.0


def _taints(node: Object) -> Iterator[tuple[Object, str]]:
    """What keeps new pods away: being cordoned, conditions, and taints, where one of these does not say the same again."""
    said = set()
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        said.add(CORDONED)
        yield {"key": CORDONED, "effect": "NoSchedule"}, "it takes no new pods (cordoned)"
    for condition in (node.get("status") or {}).get("conditions") or ():
        taint, sentence = CONDITIONS.get((condition.get("type", ""), condition.get("status", "")), ("", ""))
        if taint:
            said.add(taint)
            why = condition.get("message") or condition.get("reason") or "no reason given"
            yield {"key": taint, "effect": "NoSchedule"}, f"{sentence}: {why}"
    for taint in spec.get("taints") or ():
        name, value, effect = taint.get("key", ""), taint.get("value") or "", taint.get("effect")
        if effect in taints.KEEPS_AWAY and not (name in said and effect == "NoSchedule" and not value):
            yield taint, f"taint {name}{f'={value}' if value else ''}:{effect} is not tolerated"


class NodeInfoCache:
    """Nodes that were read already. A node that is the same object is not read again, which is how informers keep them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Object, NodeInfo]] = {}

    def at(self, node: Object) -> NodeInfo:
        name = node["metadata"]["name"]
        known = self._known.get(name)
        if known is None or known[0] is not node:
            known = self._known[name] = (node, NodeInfo.of(node))
        return known[1]

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self._known = {name: known for name, known in self._known.items() if name in names}


# -- a pod, read once


@dataclass(frozen=True, slots=True)
class PodRequirements:
    """What a pod asks of a node."""

    pod: str  # its key
    node: str = ""  # somebody chose already
    selector: tuple[tuple[str, str], ...] = ()
    affinity: Object | None = None  # a NodeSelector
    tolerations: Sequence[Object] = ()
    amounts: tuple[tuple[str, int], ...] = ()
    from_devices: frozenset[str] = frozenset()  # extended resources that a claim gives where the node itself offers none

    @classmethod
    def of(cls, pod: Object, from_devices: Collection[str] = ()) -> PodRequirements:
        """Invalid, with the field, for a pod that cannot be understood. `from_devices`: the extendedResourceName of each
        DeviceClass that has one."""
        spec = pod.get("spec") or {}
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
        for _, requirement, path in _requirements(required or {}):
            _check(requirement, path)
        amounts = requests(pod)
        return cls(key(pod), spec.get("nodeName") or "", tuple((spec.get("nodeSelector") or {}).items()), required,
                   spec.get("tolerations") or (), tuple(amounts.items()), frozenset(from_devices) & amounts.keys())

    def unfit(self, room: NodeInfo, used: NodeUsage) -> tuple[str, ...]:
        """Every reason why the pod cannot run there; empty if it can."""
        if self.node and self.node != room.name:
            return (f"the pod is for {self.node} alone (spec.nodeName)",)
        out: list[str] = []
        for taint, sentence in room.taints:
            # A pod that came with its node passes by the scheduler: the node itself refuses it for NoExecute only.
            if not (self.node and taint["effect"] == "NoSchedule") and taints.untolerated_taint([taint], self.tolerations):
                out.append(sentence)
        labels = room.labels
        for name, value in self.selector:
            if labels.get(name) != value:
                out.append(f"nodeSelector wants {name}={value}; it has {labels.get(name, 'no such label')}")
        if self.affinity is not None and not node_affinity.matches(self.affinity, room.name, labels):
            out.append(_far(self.affinity, room))
        offered, taken = room.amounts, used.at(room.name)
        for name, wanted in self.amounts:
            if wanted > offered.get(name, 0) - taken.get(name, 0):
                out += self._short(room, taken, used.by(self.pod, room.name))
                break
        return tuple(out)

    def _short(self, room: NodeInfo, taken: Amounts, mine: Amounts) -> Iterator[str]:
        """What there is too little of. What the pod itself takes already does not stand in its way."""
        for name, wanted in self.amounts:
            total = room.amounts.get(name, 0)
            free = total - taken.get(name, 0) + mine.get(name, 0)
            if wanted <= free or (not total and name in self.from_devices):
                continue
            if name in room.broken:
                yield room.broken[name]
            elif name not in room.amounts:
                yield f"it offers no {name}, {_words(name, wanted, up=True)} wanted"
            else:
                yield (f"{_words(name, max(free, 0))} of {_words(name, total)} {name} free, "
                       f"{_words(name, wanted, up=True)} wanted")


def _requirements(selector: Object) -> Iterator[tuple[str, Object, str]]:
    path = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    for index, term in enumerate(selector.get("nodeSelectorTerms") or ()):
        for part in ("matchExpressions", "matchFields"):
            for position, requirement in enumerate(term.get(part) or ()):
                yield part, requirement, f"{path}[{index}].{part}[{position}]"


def _check(requirement: Object, path: str) -> None:
    if not requirement.get("key"):
        message = "Required value: the label that is looked at"
        raise Invalid(f"{path}.key: {message}", [Cause(f"{path}.key", message, "FieldValueRequired")])
    try:
        _holds("matchExpressions", requirement, "", {})
    except Invalid as error:
        message = error.causes[0].message
        raise Invalid(f"{path}.operator: {message}", [Cause(f"{path}.operator", message)]) from error


def _holds(part: str, requirement: Object, name: str, labels: Mapping[str, str]) -> bool:
    return node_affinity.matches({"nodeSelectorTerms": [{part: [requirement]}]}, name, labels)


def _far(selector: Object, room: NodeInfo) -> str:
    """Of each term the first thing that does not hold; any term would do."""
    out: dict[str, None] = {}
    for term in selector.get("nodeSelectorTerms") or ():
        for part, requirement, _ in _requirements({"nodeSelectorTerms": [term]}):
            if not _holds(part, requirement, room.name, room.labels):
                have = room.labels.get(requirement["key"], "no such label") if part == "matchExpressions" else room.name
                out[f"{_asked(requirement)}; it has {have}"] = None
                break
        else:
            out["nothing, which no node has (an empty term)"] = None
    if not out:
        return "nodeAffinity has no nodeSelectorTerms, so no node matches"
    more = f", or one of {len(out) - 3} more" if len(out) > 3 else ""
    return f"nodeAffinity wants {', or '.join(list(out)[:3])}{more}"


def _asked(requirement: Object) -> str:
    name, values = requirement["key"], ", ".join(requirement.get("values") or ())
    match requirement["operator"]:
        case "Exists":
            return f"{name} to be there"
        case "DoesNotExist":
            return f"{name} not to be there"
        case "In":
            return f"{name} in ({values})"
        case "NotIn":
            return f"{name} not in ({values})"
    return f"{name} {'>' if requirement['operator'] == 'Gt' else '<'} {values}"


def _words(name: str, amount: int, *, up: bool = False) -> str:
    """For people, with at most one digit after the point: what is free is rounded down and what is wanted up, so that the
    one never looks like the other."""
    if name == "cpu":
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if name not in ("memory", "ephemeral-storage") and not name.startswith(HUGE_PAGES):
        return str(amount)
    power = min(max(amount.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    tenths = -(-amount * 10 // 1024**power) if up else amount * 10 // 1024**power
    return f"{tenths / 10:.1f}".removesuffix(".0") + UNITS[power]
