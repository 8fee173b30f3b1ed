"""The aggregated API over a store in memory, called directly as kube-apiserver's front proxy does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from outfitter.api import admission, kinds
from outfitter.apiserver.aggregated.app import AggregatedApi
from outfitter.store.clock import ManualClock
from tests.apiserver.aggregated.proxied import ProxiedClient, Reviews, SeamStore, config_map


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


@pytest.fixture
async def ruled(clock: ManualClock) -> AsyncIterator[SeamStore]:
    """In place of kube-apiserver with our admission webhook."""
    store = SeamStore(clock=clock, rules=admission.AdmissionRules())
    for name in ("default", "kube-system"):
        await store.create(kinds.NAMESPACE, {"metadata": {"name": name}})
    yield store
    await store.close()


@pytest.fixture
async def api(ruled: SeamStore, clock: ManualClock, reviews: Reviews) -> AsyncIterator[AggregatedApi]:
    """It runs, and has not read the front proxy's configuration: there is none."""
    made = AggregatedApi(ruled, clock=clock, review=reviews)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.fixture
async def proxied(api: AggregatedApi, ruled: SeamStore) -> ProxiedClient:
    known = asyncio.Event()
    api.front_proxy.on_client_ca(lambda _: known.set())
    await ruled.create(kinds.CONFIG_MAP, config_map())
    await known.wait()
    return ProxiedClient(api)
