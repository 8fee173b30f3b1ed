"""May a pod run on a node? As Kubernetes decides it, devices aside: where the pod wants to be, whom the node keeps away, and
whether there is enough of everything that is counted.

    used = Used(pods)                          # kept by its owner as pods come and go
    room, need = Room.of(node), Need.of(pod)   # each read once
    reasons = need.unfit(room, used)           # () if it fits

`fit` is all of it in one call, for those who ask once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from outfitter.errors import Cause, Invalid
from outfitter.scheduling.filter import node_affinity, taints
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.filter.pod_requests import HUGE_PAGES, key, requests
from outfitter.scheduling.filter.resource_amounts import Amounts, Object, nano_units, whole_units

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
                amounts[name] = whole_units(name, nano_units(str(value)))
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
