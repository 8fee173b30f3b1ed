"""A host's Node object: what others wrote to it meanwhile stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.errors import Conflict
from outfitter.inventory.simulation import hosts_file
from outfitter.node import node_status
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory

NOW = "2026-01-01T00:00:00Z"
OS = "kubernetes.io/os"
NOT_READY: Object = {"key": node_status.NOT_READY, "effect": "NoSchedule"}
DRAIN: Object = {"key": "maintenance", "effect": "NoExecute"}
PRESSURE: Object = {"type": "MemoryPressure", "status": "True", "lastTransitionTime": NOW}
Write = Callable[[Memory], Awaitable[object]]


async def add_taint(store: Memory) -> None:
    node = await Memory.get(store, kinds.NODE, "node-0")
    taints = [*(node.get("spec") or {}).get("taints", ()), DRAIN]
    await Memory.patch(store, kinds.NODE, "node-0", {"spec": {"taints": taints}})


async def add_condition(store: Memory) -> None:
    node = await Memory.get(store, kinds.NODE, "node-0")
    await Memory.patch(store, kinds.NODE, "node-0", {"status": {"conditions": [*node["status"]["conditions"], PRESSURE]}},
                       subresource="status")


class Crowded(Memory):
    """Another client writes after the n-th thing that was done with a node."""

    def __init__(self, write: Write, after: int, times: int = 1) -> None:
        super().__init__(clock=ManualClock(), names=IdGenerator())
        self._other, self._after, self._times, self._done = write, after, times, 0
        self.open = False

    async def _step(self) -> None:
        if self.open:
            self._done += 1
            if self._done >= self._after and self._times:
                self._times -= 1
                await self._other(self)

    async def get(self, *words: Any, **more: Any) -> Object:
        found = await super().get(*words, **more)
        await self._step()
        return found

    async def patch(self, *words: Any, **more: Any) -> Object:
        made = await super().patch(*words, **more)
        await self._step()
        return made


async def registered(store: Crowded) -> Object:
    """A node of an earlier run that is not ready, tainted as a cluster taints it, and lacks a label; then the host comes up."""
    [host] = app.simulated_hosts(hosts_file.parse_shorthand("1x1").hosts)
    await node_status.node(store, host, (), NOW)
    not_ready = conditions.Condition("Ready", False, "NotServed", "gone")
    await store.patch(kinds.NODE, "node-0", {"status": {"conditions": conditions.with_condition((), not_ready, NOW)}},
                      subresource="status")
    await store.patch(kinds.NODE, "node-0", {"spec": {"taints": [NOT_READY]}, "metadata": {"labels": {OS: None}}})
    store.open = True
    node = await node_status.node(store, host, (), NOW)
    store.open = False
    assert node == await store.get(kinds.NODE, "node-0")
    assert conditions.is_true(node, "Ready")
    assert node["metadata"]["labels"][OS] == "linux"
    return node


@pytest.mark.parametrize("after", [1, 2], ids=["before its status is written", "before its taints are written"])
async def test_a_taint_that_another_writer_adds_meanwhile_stays(after: int) -> None:
    node = await registered(Crowded(add_taint, after))
    assert node["spec"]["taints"] == [DRAIN]


async def test_a_condition_that_another_writer_sets_meanwhile_stays() -> None:
    node = await registered(Crowded(add_condition, 1))
    assert conditions.is_true(node, "MemoryPressure")


async def test_endless_conflicts_are_raised() -> None:
    """The caller retries later."""
    with pytest.raises(Conflict):
        await registered(Crowded(add_condition, 1, times=1000))


async def test_labels_alone_do_not_touch_the_taints() -> None:
    [host] = app.simulated_hosts(hosts_file.parse_shorthand("1x1").hosts)
    store = Memory(clock=ManualClock(), names=IdGenerator())
    await node_status.node(store, host, (), NOW)
    await store.patch(kinds.NODE, "node-0", {"spec": {"taints": [DRAIN]}, "metadata": {"labels": {OS: "other"}}})
    node = await node_status.node(store, host, (), NOW)
    assert node["spec"]["taints"] == [DRAIN]
    assert node["metadata"]["labels"][OS] == "linux"
