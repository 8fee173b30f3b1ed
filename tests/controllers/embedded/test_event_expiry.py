"""Events expire an hour after they were last written, whatever times they state, and their number is bounded."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.inventory.config import Config, EventSettings
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator

HOUR = 3600


class Stored:
    """Events in the store of a running product."""

    def __init__(self, product: app.Embedded, clock: ManualClock) -> None:
        self.store, self._product, self._clock = product.store, product, clock

    async def create(self, name: str, **fields: object) -> Object:
        return await self.store.create(kinds.EVENT, {
            "metadata": {"name": name, "namespace": "default"}, "involvedObject": {"name": "x"}, "reason": "Test", **fields})

    async def after(self, seconds: int) -> list[str]:
        """The names of the events that are left so many seconds later."""
        await self._product.settle()
        for step in (seconds - 2, 1, 1):  # timers of the last second run in steps of their own
            self._clock.advance(step)
            await self._product.settle()
        return [event["metadata"]["name"] for event in (await self.store.list(kinds.EVENT)).items]


@contextlib.asynccontextmanager
async def events(clock: ManualClock, data: Path | None = None, **settings: int) -> AsyncIterator[Stored]:
    bounds = EventSettings(timedelta(seconds=HOUR), **settings)
    async with app.embedded(data=data, clock=clock, names=IdGenerator(random.Random(1)), synchronous="OFF",
                            config=Config(events=bounds)) as product:
        yield Stored(product, clock)


STATED = {
    "the past": "2020-01-01T00:00:00Z", "the future": "2036-01-01T00:00:00Z", "nothing": None,
}


@pytest.mark.parametrize("stated", STATED)
async def test_an_event_is_kept_an_hour_from_its_last_write(stated: str) -> None:
    async with events(ManualClock()) as stored:
        await stored.create("a", lastTimestamp=STATED[stated])
        assert await stored.after(HOUR - 60) == ["a"]
        await stored.store.patch(kinds.EVENT, "a", {"count": 2}, "default")
        assert await stored.after(HOUR - 60) == ["a"]
        assert await stored.after(120) == []


@pytest.mark.parametrize("stated", STATED)
async def test_after_a_restart(stated: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with events(clock, tmp_path) as stored:
        await stored.create("a", lastTimestamp=STATED[stated])
        assert await stored.after(HOUR // 2) == ["a"]
    async with events(clock, tmp_path) as stored:
        assert await stored.after(HOUR // 2 - 60) == ["a"]
        assert await stored.after(120) == ([] if stated != "the future" else ["a"])
        assert await stored.after(HOUR // 2 + 60) == []  # a time in the future counts as that of the restart


async def test_the_oldest_events_are_deleted_when_there_are_too_many() -> None:
    async with events(ManualClock(), most=100) as stored:
        for number in range(100):
            await stored.create(f"e{number:03}")
        assert len(await stored.after(10)) == 100
        await stored.store.patch(kinds.EVENT, "e000", {"count": 2}, "default")  # now it is the newest
        await stored.create("e100")
        assert await stored.after(10) == ["e000", *(f"e{number:03}" for number in range(12, 101))]
