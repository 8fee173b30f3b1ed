"""Compares the version of each node agent, which it writes into its HostInventory, with that of this controller, and warns of a
skew that is not supported: an event about the node with the code, and a log line. Nothing is refused for it: VMs that run are
not to be lost by an upgrade in the wrong order. In a cluster only; embedded, both are one process."""

from __future__ import annotations

import logging

import outfitter
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.version_skew import SkewCode, agent_skew
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
REMEDY = {
    SkewCode.AGENT_NEWER: "update definitions and controllers before the node agents (outfit install --apply)",
    SkewCode.AGENT_TOO_OLD: "update the agent, one minor version at a time (outfit install --apply)",
}


class AgentVersions:
    name = "agent_versions"
    kind = kinds.HOST_INVENTORY  # of its keys

    def __init__(self, context: ControllerContext, *, version: str = outfitter.__version__) -> None:
        self._context, self._version = context, version
        self.queue = WorkQueue(context.clock)
        self._inventories = context.informer(kinds.HOST_INVENTORY, view=_brief)
        self._nodes = context.informer(kinds.NODE)
        self._reported: dict[str, str] = {}  # node -> the version of its agent that was warned of
        enqueue_on_change(self._inventories, self.queue)

    async def reconcile(self, key: str) -> float | None:
        inventory = self._inventories.get(key)
        agent = inventory["spec"]["agentVersion"] if inventory is not None else ""
        code = agent_skew(self._version, agent)
        if code is None:
            self._reported.pop(key, None)
            return None
        if self._reported.get(key) == agent:
            return None
        message = f"the agent of node {key} has version {agent}, and the controllers {self._version}: {REMEDY[code]}"
        log.warning("%s: %s", code.value, message)
        about = self._nodes.get(key) or inventory
        assert about is not None
        await self._context.events.warning(about, code.value, message)
        self._reported[key] = agent
        return None


def _brief(inventory: Object) -> Object:
    """Without the list of devices, which this controller has no use for."""
    meta = {field: inventory["metadata"].get(field) for field in ("name", "uid", "creationTimestamp", "resourceVersion")}
    kind = kinds.HOST_INVENTORY
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta,
            "spec": {"agentVersion": str(inventory["spec"].get("agentVersion") or "")}}
