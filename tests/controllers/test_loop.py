"""When everybody has come to rest, and when they never do."""

from __future__ import annotations

import pytest

from outfitter.controllers.loop import Context, Runner, settle
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory


@pytest.fixture
def context() -> Context:
    clock = ManualClock()
    return Context(Memory(clock=clock), clock=clock)


async def test_a_disk_takes_as_long_as_it_takes(context: Context) -> None:
    looks = iter([True] * 50)
    await settle(lambda kind: 0, context, [], busy=lambda: next(looks, False), most=20)
    assert next(looks, None) is None


async def test_who_never_rests_is_not_waited_for(context: Context) -> None:
    class Restless(Runner):
        @property
        def idle(self) -> bool:
            return False

    with pytest.raises(TimeoutError, match="do not come to rest"):
        await settle(lambda kind: 0, context, [Restless(context, [])], most=20)
