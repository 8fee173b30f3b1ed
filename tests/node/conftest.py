"""A store without controllers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from outfitter import app
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.node.audited_hosts import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with app.embedded(clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.runner.stop()
        yield Bench(product, clock)
