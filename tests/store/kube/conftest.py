"""The Kubernetes backend on a server that is simulated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter.store import kube
from outfitter.store.request_limiter import RequestLimiter
from tests.store.kube.simulated_server import Impatient, SimulatedServer, access_to


@pytest.fixture
def clock() -> Impatient:
    return Impatient()


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedServer]:
    server = SimulatedServer()
    async with server.serving():
        yield server


@pytest.fixture
async def backend(simulated: SimulatedServer, clock: Impatient, tmp_path: Path) -> AsyncIterator[kube.Kube]:
    store = kube.Kube(access_to(simulated.url, tmp_path), clock=clock, limiter=RequestLimiter(clock, jitter=lambda: 0.0))
    yield store
    await store.close()
