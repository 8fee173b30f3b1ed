"""What the pods on each node take: running totals, kept up to date pod by pod, so that a lookup costs the same however many
pods there are."""

from __future__ import annotations

from collections.abc import Iterable

from outfitter.api.kubevirt import vm
from outfitter.scheduling.filter.pod_requests import key, requests
from outfitter.scheduling.filter.resource_amounts import NOTHING, Amounts, Object, add


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
        the event is older than what is known. Invalid for an amount that cannot be read; then nothing changes either."""
        node: str = (pod.get("spec") or {}).get("nodeName") or nominated(pod)
        if not node:
            return
        ended = (pod.get("status") or {}).get("phase") in vm.FINAL
        takes = NOTHING if ended else requests(pod)
        self.remove(pod)
        if takes:
            self._pods[key(pod)] = (node, takes)
            add(self._totals.setdefault(node, {}), takes)

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
