"""May a pod run on a node? As Kubernetes decides it, devices aside: where the pod wants to be, whom the node keeps away, and
whether there is enough of everything that is counted.

    used = NodeUsage(pods)                                     # kept by its owner as pods come and go
    room, need = NodeInfo.of(node), PodRequirements.of(pod)    # each read once
    rejections = need.unfit(room, used)                        # () if it fits

`fit` is all of it in one call, for those who ask once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import Cause, Invalid
from outfitter.scheduling.filter import node_affinity, taints
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.filter.pod_requests import key, requests
from outfitter.scheduling.filter.resource_amounts import Amounts, Object, nano_units, whole_units

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CORDONED = "node.kubernetes.io/unschedulable"
# What a condition of a node means to new pods: the taint that a cluster's node controller sets for it. There is none here.
CONDITIONS = {
    ("Ready", "False"): ("node.kubernetes.io/not-ready", RejectionCode.NODE_NOT_READY, ""),
    ("Ready", "Unknown"): ("node.kubernetes.io/unreachable", RejectionCode.NODE_NOT_READY, ""),
    ("MemoryPressure", "True"): ("node.kubernetes.io/memory-pressure", RejectionCode.NODE_PRESSURE, "memory"),
    ("DiskPressure", "True"): ("node.kubernetes.io/disk-pressure", RejectionCode.NODE_PRESSURE, "disk"),
    ("PIDPressure", "True"): ("node.kubernetes.io/pid-pressure", RejectionCode.NODE_PRESSURE, "process ids"),
    ("NetworkUnavailable", "True"): (
        "node.kubernetes.io/network-unavailable", RejectionCode.NODE_NETWORK_UNAVAILABLE, ""),
}


# -- a node, read once


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node offers to pods and whom it keeps away."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    amounts: Amounts = field(default_factory=dict)  # allocatable
    taints: tuple[tuple[Object, Rejection], ...] = ()  # those that keep new pods away, each with what it is rejected for
    broken: Mapping[str, Rejection] = field(default_factory=dict)  # amounts that cannot be read: there is nothing of these

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
                broken[name] = Rejection.of(RejectionCode.RESOURCE_UNREADABLE, resource=name, error=str(error))
        return cls(meta["name"], meta.get("labels") or {}, amounts, tuple(_taints(node)), broken)

    def share(self, used: NodeUsage, name: str, more: int = 0) -> float:
        """How much of a resource is left, 0 to 1, after `more` of it is taken too. 0 of what it does not offer."""
        total = self.amounts.get(name, 0)
        return max(0.0, 1 - (used.at(self.name).get(name, 0) + more) / total) if total > 0 else 0.0


def _taints(node: Object) -> Iterator[tuple[Object, Rejection]]:
    """What keeps new pods away: being cordoned, conditions, and taints, where one of these does not say the same again."""
    rejected = set()
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        rejected.add(CORDONED)
        yield {"key": CORDONED, "effect": "NoSchedule"}, Rejection(RejectionCode.NODE_CORDONED)
    for condition in (node.get("status") or {}).get("conditions") or ():
        known = CONDITIONS.get((condition.get("type", ""), condition.get("status", "")))
        if known is not None:
            taint, code, short = known
            rejected.add(taint)
            detail = {"message": condition.get("message") or condition.get("reason") or "no reason given"}
            yield {"key": taint, "effect": "NoSchedule"}, Rejection(
                code, detail={**detail, "condition": condition["type"], "short": short} if short else detail)
    for taint in spec.get("taints") or ():
        name, value, effect = taint.get("key", ""), taint.get("value") or "", taint.get("effect")
        if effect in taints.KEEPS_AWAY and not (name in rejected and effect == "NoSchedule" and not value):
            yield taint, Rejection.of(RejectionCode.NODE_TAINTED, taint=taints.text(taint))


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
    node: str = ""  # the pod names it
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

    def unfit(self, room: NodeInfo, used: NodeUsage) -> tuple[Rejection, ...]:
        """Every reason why the pod cannot run there; empty if it can."""
        if self.node and self.node != room.name:
            return (Rejection.of(RejectionCode.NODE_NAME, node=self.node),)
        out: list[Rejection] = []
        for taint, rejection in room.taints:
            # A pod that came with its node passes by the scheduler: the node itself refuses it for NoExecute only.
            if not (self.node and taint["effect"] == "NoSchedule") and taints.untolerated_taint([taint], self.tolerations):
                out.append(rejection)
        labels = room.labels
        for name, value in self.selector:
            if labels.get(name) != value:
                out.append(Rejection.of(RejectionCode.NODE_SELECTOR, label=name, wanted=value, has=labels.get(name)))
        if self.affinity is not None and not node_affinity.matches(self.affinity, room.name, labels):
            out.append(Rejection.of(RejectionCode.NODE_AFFINITY, terms=tuple(_failing_terms(self.affinity, room))))
        offered, taken = room.amounts, used.at(room.name)
        for name, wanted in self.amounts:
            if wanted > offered.get(name, 0) - taken.get(name, 0):
                out += self._short(room, taken, used.by(self.pod, room.name))
                break
        return tuple(out)

    def _short(self, room: NodeInfo, taken: Amounts, mine: Amounts) -> Iterator[Rejection]:
        """What there is too little of. What the pod itself takes already does not stand in its way."""
        for name, wanted in self.amounts:
            total = room.amounts.get(name, 0)
            free = total - taken.get(name, 0) + mine.get(name, 0)
            if wanted <= free or (not total and name in self.from_devices):
                continue
            if name in room.broken:
                yield room.broken[name]
            elif name not in room.amounts:
                yield Rejection.of(RejectionCode.RESOURCE_NOT_OFFERED, resource=name, wanted=wanted)
            else:
                yield Rejection.of(RejectionCode.INSUFFICIENT_RESOURCE, resource=name, wanted=wanted, free=max(free, 0),
                                   total=total)


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


def _failing_terms(selector: Object, room: NodeInfo) -> Iterator[Object]:
    """Of each term the first requirement that does not hold, with what the node has; {} for an empty term."""
    for term in selector.get("nodeSelectorTerms") or ():
        for part, requirement, _ in _requirements({"nodeSelectorTerms": [term]}):
            if not _holds(part, requirement, room.name, room.labels):
                have = room.labels.get(requirement["key"]) if part == "matchExpressions" else room.name
                yield {"key": requirement["key"], "operator": requirement["operator"],
                       "values": tuple(requirement.get("values") or ()), "has": have}
                break
        else:
            yield {}
