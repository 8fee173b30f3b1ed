"""Ends pods of nodes that do not exist any more, in embedded mode (a cluster has its own controller for this): no agent is
there to run or to stop them, so they end here, and their VMs with them.

A node that is not ready keeps its pods: its host may come back. A node is gone when the store has none, after a
while in which a running agent can create it again. Prepared devices stay on the host's page for as long as it exists: a host
that comes back unprepares them, and deleting the page states that it will not."""

from __future__ import annotations

from datetime import datetime

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import NotFound
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

REASON = "DeletionByPodGC"  # of the condition DisruptionTarget, as in Kubernetes
EVENT = "NodeGone"
WHILE = 40.0  # seconds, as in Kubernetes


class PodGc:
    name = "pod_gc"
    kind = kinds.POD  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self.queue = WorkQueue(context.clock)
        self._pods, self._nodes = context.informer(kinds.POD), context.informer(kinds.NODE)
        self._missed: dict[str, datetime] = {}  # node -> since when it is not there
        self._pods.add_index("node", lambda pod: [pod["spec"].get("nodeName") or ""])
        self._pods.on_change(self._pod_changed)
        self._nodes.on_change(self._node_changed)

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        node = (new or {}).get("spec", {}).get("nodeName")
        if new is not None and node and self._nodes.readable(node) is None:
            self.queue.add(key_of(new))

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        if new is not None:
            self._missed.pop(name, None)
            return
        for pod in self._pods.by("node", name):
            self.queue.add(key_of(pod))

    async def reconcile(self, key: str) -> float | None:
        pod = self._pods.get(key)
        node = pod["spec"].get("nodeName") if pod is not None else None
        if pod is None or not node or self._nodes.get(node) is not None:
            return None
        now = self._context.clock.now()
        left = WHILE - (now - self._missed.setdefault(node, now)).total_seconds()
        if left > 0:
            return left
        if not await self._is_there(node):
            await self._end(pod, node)
        return None

    async def _is_there(self, node: str) -> bool:
        try:
            await self._store.get(kinds.NODE, node)
        except NotFound:
            return False
        return True  # its watch update is on the way

    async def _end(self, pod: Object, node: str) -> None:
        """First the phase and reason, for its owner; the watch update of that brings the key back, and then the pod is
        deleted."""
        meta, status = pod["metadata"], pod.get("status") or {}
        if status.get("phase") in vm.FINAL:
            await self._store.delete(kinds.POD, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
            return
        why = f"node {node} does not exist any more"
        have = conditions.with_condition(status.get("conditions"), Condition("DisruptionTarget", True, REASON, why),
                                         self._context.now())
        await self._context.patch_status(
            kinds.POD, pod, {"phase": "Failed", "reason": EVENT, "message": why, "conditions": have})
        await self._context.events.warning(pod, EVENT, why)
