"""Many VMs at once: who came first is finished first, and each costs few writes."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.store.base import EventType
from outfitter.store.memory import Memory
from outfitter.store.watch_cache import Selection
from tests.controllers import scenario as scenes

MACHINES = 80
WATCHED = (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE, kinds.EVENT)
WRITES: dict[Kind, dict[str, float]] = {  # the most that a VM may cost, its creation included
    kinds.VMI: {"made": 1, "phase": 3, "devices": 1},
    kinds.POD: {"made": 1, "claims": 1, "host": 1, "runs": 1},
    kinds.RESOURCE_CLAIM: {"made": 1, "given": 1},
    kinds.LEDGER_PAGE: {"booked": 1, "prepared": 1},
    kinds.EVENT: {"pod": 1, "host": 1, "prepared": 1, "started": 1},
}


async def _burst(scene: scenes.Scene) -> dict[Kind, list[tuple[EventType, Object]]]:
    """Every change that it took until all run, by kind."""
    product = scene.product
    assert isinstance(product, app.Embedded)
    await scene.classes()
    await scene.template()
    await product.settle()
    store: Memory = product.store
    watchers = {kind: store.open_watch(kind, Selection(kind), store.revision) for kind in WATCHED}
    for number in range(MACHINES):
        await scene.machine(f"m{number:03}")
    await product.settle()
    seen = {kind: [(type_, step.object(type_)) for type_, step in await watcher.next()] for kind, watcher in watchers.items()}
    assert Counter(one["status"]["phase"] for one in await scene.all(kinds.VMI)) == {"Running": MACHINES}
    return seen


async def test_who_came_first_is_finished_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="outfitter.controllers.manager")
    async with scenes.embedded(8, 12) as scene:
        seen = await _burst(scene)
        ran: dict[str, int] = {}
        for _, one in seen[kinds.VMI]:
            if (one.get("status") or {}).get("phase") == "Running":
                ran.setdefault(one["metadata"]["name"], int(one["metadata"]["resourceVersion"]))
        order = sorted(ran, key=lambda name: ran[name])
        late = max(abs(order.index(name) - place) for place, name in enumerate(sorted(ran)))
        assert late <= MACHINES // 3  # stages work on several at a time, and now and then on one out of its turn
        begun = {one["metadata"]["labels"]["vm.kubevirt.io/name"]: int(one["metadata"]["resourceVersion"])
                 for type_, one in seen[kinds.POD] if type_ == "ADDED"}
        assert ran[order[0]] < begun[f"m{MACHINES - 1:03}"]  # the first runs before the last has a pod
        assert caplog.records == []  # nothing acted on what another test in this process had changed


async def test_vmi_needs_few_writes() -> None:
    async with scenes.embedded(8, 12) as scene:
        seen = await _burst(scene)
        most = {kind.kind: sum(each.values()) for kind, each in WRITES.items()}
        assert {kind.kind: len(changes) / MACHINES for kind, changes in seen.items()
                if len(changes) / MACHINES > most[kind.kind]} == {}
        told: dict[str, set[str]] = defaultdict(set)
        for _, one in seen[kinds.VMI]:
            if devices := (one.get("status") or {}).get("deviceStatus"):
                told[one["metadata"]["name"]].add(str(devices))
        assert {len(each) for each in told.values()} == {1}
        for one in await scene.all(kinds.VMI):
            pod = await scene.pod(one["metadata"]["name"])
            assert one["status"]["activePods"] == {pod["metadata"]["uid"]: one["status"]["nodeName"]}
