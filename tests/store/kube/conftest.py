"""The Kubernetes home on a server that is played."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter.store import kube
from tests.store.kube.simulated_server import Impatient, Played, access_to


@pytest.fixture
def clock() -> Impatient:
    return Impatient()


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    server = Played()
    async with server.serving():
        yield server


@pytest.fixture
async def home(played: Played, clock: Impatient, tmp_path: Path) -> AsyncIterator[kube.Kube]:
    store = kube.Kube(access_to(played.url, tmp_path), clock=clock)
    yield store
    await store.close()
