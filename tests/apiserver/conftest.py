"""An API server over a store in memory, called directly."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outfitter.api import admission, kinds
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Memory]:
    home = Memory(clock=clock, keep=64)
    yield home
    await home.close()


@pytest.fixture
async def ruled(clock: ManualClock) -> AsyncIterator[Memory]:
    """One that asks the product's rules of whatever comes in; it has the namespace default."""
    home = Memory(clock=clock, rules=admission.AdmissionRules())
    await home.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    yield home
    await home.close()


@pytest.fixture
def client(store: Memory) -> Client:
    return Client(App(store, tokens={"admin": User("admin", (MASTERS,)), "bob": User("bob", ("people",))}))
