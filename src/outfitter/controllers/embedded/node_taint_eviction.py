"""Pods on a host with a taint NoExecute go, unless they tolerate it, in embedded mode (a cluster has its own controller for
this): at once, or when its tolerationSeconds have passed. Pods of every kind: a VM whose pod goes has ended there, and its run
strategy decides whether it starts elsewhere. Taints of devices are in `device_taint_eviction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.controllers.embedded import device_taint_eviction
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.scheduling.filter import taints
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

REASON = "DeletionByTaintManager"  # of the condition DisruptionTarget, as in Kubernetes
EVENT = "TaintManagerEviction"
# What every pod of a cluster tolerates for a while unless its tolerations differ.
USUAL: Sequence[Object] = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable"))
NEVER = float("inf")
Taint = tuple[str, str]  # its key and value


class NodeTaintEviction:
    name = "node_taint_eviction"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = WorkQueue(context.clock)
        self._pods = context.informer(kinds.POD)
        self._pods.add_index("node", lambda pod: [pod["spec"].get("nodeName") or ""])
        self._since: dict[str, dict[Taint, datetime]] = {}  # of each host that has such taints, since when
        enqueue_on_change(self._pods, self.queue, lambda pod: [key_of(pod)] if self._concerns(pod) else [])
        context.informer(kinds.NODE).on_change(self._node_changed)

    def _concerns(self, pod: Object) -> bool:
        return bool(pod["spec"].get("nodeName") in self._since and not pod["metadata"].get("deletionTimestamp")
                    and (pod.get("status") or {}).get("phase") not in vm.FINAL)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        """A taint that was taken away and comes again is a new one."""
        name, now = (new or old or {})["metadata"]["name"], self._context.clock.now()
        had, has = self._since.pop(name, {}), {}
        for taint in ((new or {}).get("spec") or {}).get("taints") or ():
            if taint.get("effect") == "NoExecute":
                what = (str(taint.get("key") or ""), str(taint.get("value") or ""))
                has[what] = taints.moment(taint.get("timeAdded")) or had.get(what, now)
        if has:
            self._since[name] = has
        if had != has:
            for pod in self._pods.by("node", name):
                self.queue.add(key_of(pod))

    async def reconcile(self, key: str) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not self._concerns(pod):
            return None
        node = pod["spec"]["nodeName"]
        now = self._context.clock.now()
        left, why = min((_left(pod, taint, since, now), taint) for taint, since in self._since[node].items())
        if left > 0:
            return None if left == NEVER else left
        taint = f"host {node} has the taint {why[0]}{f'={why[1]}' if why[1] else ''}:NoExecute"
        await device_taint_eviction.send_away(self._context, pod, reason=REASON, event=EVENT, why=taint,
                              sentence=f"Taint manager: deleting due to NoExecute taint: {taint}")
        return None


def _left(pod: Object, taint: Taint, since: datetime, now: datetime) -> float:
    """Seconds until a pod no longer tolerates a taint. It counts from when both were there, and the first of the pod's
    tolerations that fits is the one that counts, as in Kubernetes."""
    whole: Mapping[str, Any] = {"key": taint[0], "value": taint[1], "effect": "NoExecute"}
    own = pod["spec"].get("tolerations") or ()
    fits = next((one for one in (*own, *USUAL) if taints.untolerated_taint([whole], [one]) is None), None)
    if fits is None:
        return 0.0
    if fits.get("tolerationSeconds") is None:
        return NEVER
    bound = (conditions.find(pod, "PodScheduled") or {}).get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    begin = max(since, taints.moment(bound) or since)
    return max(0.0, float(fits["tolerationSeconds"]) - (now - begin).total_seconds())
