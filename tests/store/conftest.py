"""The backends that run the shared suite, each test in a namespace of its own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.store.base import Store
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from outfitter.store.sqlite import SQLite
from tests.store.backends import Backend


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def memory(clock: ManualClock) -> AsyncIterator[Memory]:
    store = Memory(clock=clock)
    yield store
    await store.close()


@pytest.fixture
async def sqlite(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SQLite]:
    store = SQLite(tmp_path / "data", kinds.ALL, clock=clock)
    yield store
    await store.close()


@pytest.fixture(params=["memory", "sqlite", pytest.param("kube", marks=pytest.mark.cluster)])
async def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Backend]:
    namespace = f"t{uuid.uuid4().hex[:10]}"
    store: Store
    if request.param == "kube":
        access = request.getfixturevalue("cluster").access()
        store = Kube(access, clock=SystemClock())
        await store.create(kinds.NAMESPACE, {"metadata": {"name": namespace}})
        here = Backend(store, None, namespace)
    elif request.param == "sqlite":
        store = SQLite(tmp_path / "data", kinds.ALL, clock=clock)
        here = Backend(store, clock, namespace)
    else:
        store = Memory(clock=clock)
        here = Backend(store, clock, namespace)
    yield here
    await store.close()
