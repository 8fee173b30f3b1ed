"""When all controllers are idle, and when they never are; which failures are worth a word in the log."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from outfitter import errors
from outfitter.api.kinds import CONFIG_MAP, EVENT, Kind
from outfitter.controllers.manager import ControllerContext, ControllerManager, enqueue_on_change, settle
from outfitter.errors import OutfitterError
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from outfitter.store.workqueue import WorkQueue
from tests.controllers import scenario as scenes


@pytest.fixture
def context() -> ControllerContext:
    clock = ManualClock()
    return ControllerContext(Memory(clock=clock), clock=clock)


async def test_a_disk_takes_as_long_as_it_takes(context: ControllerContext) -> None:
    looks = iter([True] * 50)
    await settle(lambda kind: 0, context, [], busy=lambda: next(looks, False), most=20)
    assert next(looks, None) is None


async def test_who_never_rests_is_not_waited_for(context: ControllerContext) -> None:
    class Restless(ControllerManager):
        @property
        def idle(self) -> bool:
            return False

    with pytest.raises(TimeoutError, match="do not come to rest"):
        await settle(lambda kind: 0, context, [Restless(context, [])], most=20)


class Refused:
    name = "refused"

    def __init__(self, context: ControllerContext, error: OutfitterError) -> None:
        self.queue, self._error = WorkQueue(context.clock), error

    async def reconcile(self, key: str) -> float | None:
        raise self._error


@pytest.mark.parametrize(("error", "said"), [
    (errors.Terminating("its namespace goes"), False), (errors.Conflict("somebody was faster"), False),
    (errors.Forbidden("we may not"), True)], ids=["going", "late", "forbidden"])
async def test_which_errors_are_logged(
    context: ControllerContext, caplog: pytest.LogCaptureFixture, error: OutfitterError, said: bool
) -> None:
    loop = Refused(context, error)
    runner = ControllerManager(context, [loop], workers=1)
    await runner.start()
    loop.queue.add("here/blue")
    await settle(lambda kind: 0, context, [runner])
    await runner.stop()
    assert runner.errors.total() == 1
    assert (error.message in caplog.text) == said


async def test_one_watch_for_each_kind_serves_all_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduler, device status and all the others share their informers: a controller more is no watch more."""
    watched: Counter[str] = Counter()
    watch: Any = Memory.watch

    def counted(self: Memory, kind: Kind, *arguments: Any, **more: Any) -> Any:
        watched[kind.kind] += 1
        return watch(self, kind, *arguments, **more)

    monkeypatch.setattr(Memory, "watch", counted)
    async with scenes.embedded(vfs=1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
    assert {"Pod", "ResourceClaim", "ResourceSlice", "VirtualMachineInstance"} <= set(watched)
    assert {kind: count for kind, count in watched.items() if count > 1} == {}


class Faulty:
    """Fails on one object."""

    name, kind = "faulty", CONFIG_MAP

    def __init__(self, context: ControllerContext) -> None:
        self.queue, self.seen = WorkQueue(context.clock), set[str]()
        enqueue_on_change(context.informer(CONFIG_MAP), self.queue)

    async def reconcile(self, key: str) -> float | None:
        self.seen.add(key)
        if key == "here/bad":
            raise KeyError("spec")
        return None


async def test_a_fault_is_reported_on_the_object_and_stops_no_other() -> None:
    store, clock = Memory(clock=ManualClock()), ManualClock()
    context = ControllerContext(store, clock=clock)
    faulty = Faulty(context)
    runner = ControllerManager(context, [faulty], workers=1)
    await runner.start()
    for name in ("bad", "good"):
        await store.create(CONFIG_MAP, {"metadata": {"name": name, "namespace": "here"}})
    await settle(lambda kind: store.watch_cache(kind).revision, context, [runner])
    await runner.stop()
    assert faulty.seen == {"here/bad", "here/good"}
    [event] = (await store.list(EVENT)).items
    assert (event["reason"], event["involvedObject"]["name"]) == ("ReconcileFailed", "bad")
    assert event["message"].startswith("faulty failed and tries again: KeyError('spec')")
    assert runner.errors["faulty", "fault"] == 1
