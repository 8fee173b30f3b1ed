"""The KubeVirt object: that it was read, and which running VMs its feature gates would no longer admit."""

from __future__ import annotations

from outfitter.api import conditions, kinds
from outfitter.api.conditions import GATES_IN_USE, Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import gates_in_use, kubevirt_config
from outfitter.api.kubevirt.gates_in_use import EITHER, ended, gates_of
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

NAMED = 5  # VMIs that a condition names; the others are counted


class KubeVirtController:
    name = "kubevirt"

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self.queue = WorkQueue(context.clock)
        self._all = context.informer(kinds.KUBEVIRT)
        self._instances = context.informer(kinds.VMI)
        self._instances.add_index("gates", gates_of)
        enqueue_on_change(self._all, self.queue)
        self._instances.on_change(self._machine_changed)

    def _machine_changed(self, old: Object | None, new: Object | None) -> None:
        if old and new and old["spec"] == new["spec"] and ended(old) == ended(new):
            return  # most updates of a VMI are of its status
        if (gates_of(old) if old else []) != (gates_of(new) if new else []):
            for kubevirt in self._all.items():
                self.queue.add(key_of(kubevirt))

    async def reconcile(self, key: str) -> float | None:
        kubevirt = self._all.get(key)
        if kubevirt is None:
            return None
        meta, status = kubevirt["metadata"], kubevirt.get("status") or {}
        counts = kubevirt_config.active_kubevirt(self._all.items())
        if counts is not None and counts["metadata"]["uid"] == meta["uid"]:
            in_use = self._in_use(kubevirt_config.read_config(kubevirt))
        else:
            in_use = Condition(GATES_IN_USE, False, "NotInForce", "another KubeVirt object is older, and is in force")
        new = {"phase": "Deployed", "observedGeneration": meta.get("generation"),
               "conditions": conditions.with_condition(status.get("conditions"), in_use, self._context.now())}
        if any(status.get(field) != value for field, value in new.items()):
            await self._context.patch_status(kinds.KUBEVIRT, kubevirt, new)
        return None

    def _in_use(self, now: kubevirt_config.KubeVirtConfig) -> Condition:
        words = []
        for gate, users in gates_in_use.closed_in_use(now.gates, self._users):
            more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
            used = "are off and one is needed by claims of" if gate == EITHER else "is off and is used by"
            words.append(f"{gate} {used} {', '.join(users[:NAMED])}{more}")
        if not words:
            return Condition(GATES_IN_USE, False, "NoneInUse", "every running VM would be admitted again")
        return Condition(GATES_IN_USE, True, "MachinesKeepRunning",
                         f"{'; '.join(words)}: they keep what they have, new ones are refused")

    def _users(self, gate: str) -> list[str]:
        return sorted(key_of(instance) for instance in self._instances.by("gates", gate))
