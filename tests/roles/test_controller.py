"""Replicas of the controller on one store: one works at a time, also when its way to the store fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from outfitter.api import admission, kinds
from outfitter.errors import StartupRefused, Unavailable
from outfitter.inventory.config import DEFAULT
from outfitter.roles import ROLES
from outfitter.roles.controller import Replica
from outfitter.roles.process import RoleProcess
from outfitter.roles.settings import Settings
from outfitter.store.clock import ManualClock
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from tests.store.backends import settle

SPACE = "outfitter-system"


class StoreConnection:
    """One replica's way to the store, which can break. The watches that are open stay."""

    def __init__(self, store: Memory) -> None:
        self._store, self.broken = store, False
        self.limiter = None  # it is not one of HTTP

    def __getattr__(self, name: str) -> Any:
        if self.broken:
            raise Unavailable("the network is away")
        return getattr(self._store, name)


class RunningReplica:
    def __init__(self, store: Memory, clock: ManualClock, **settings: Any) -> None:
        self.connection = StoreConnection(store)
        self.process = RoleProcess(ROLES["controller"], Settings(**settings), DEFAULT, 0.0, clock=clock)
        self.replica = Replica(self.process, cast(Kube, self.connection), cast(Kube, self.connection))
        self.task = asyncio.create_task(self.replica.run())

    @property
    def leads(self) -> bool:
        return self.replica.leading

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Memory]:
    made = Memory(clock=clock)
    await made.create(kinds.NAMESPACE, {"metadata": {"name": SPACE}})
    yield made
    await made.close()


async def tick(clock: ManualClock, seconds: int, *replicas: RunningReplica) -> None:
    for _ in range(seconds):
        clock.advance(1)
        await settle(100)
        assert sum(replica.leads for replica in replicas) <= 1


async def test_a_leader_that_loses_the_lease_stops_before_another_begins(store: Memory, clock: ManualClock) -> None:
    first = RunningReplica(store, clock)
    await settle(100)
    second = RunningReplica(store, clock)
    await tick(clock, 30, first, second)
    assert (first.leads, second.leads) == (True, False)
    first.connection.broken = True
    await tick(clock, 11, first, second)
    assert (first.leads, second.leads) == (False, False)
    await tick(clock, 8, first, second)
    assert (first.leads, second.leads) == (False, True)
    first.connection.broken = False
    await tick(clock, 30, first, second)
    assert (first.leads, second.leads) == (False, True)
    await second.stop()  # gives the lease back
    await tick(clock, 3, first, second)
    assert first.leads
    await first.stop()


async def test_the_leader_does_the_work_once(store: Memory, clock: ManualClock) -> None:
    replicas = [RunningReplica(store, clock) for _ in range(3)]
    await settle(200)
    await store.create(kinds.VM, {"metadata": {"name": "blue", "namespace": "default"}, "spec": {
        "runStrategy": "Always", "template": {"spec": {"domain": {"devices": {}}}}}})
    await tick(clock, 3, *replicas)
    assert [vmi["metadata"]["name"] for vmi in (await store.list(kinds.VMI)).items] == ["blue"]
    for replica in replicas:
        await replica.stop()


async def test_one_without_leader_election_is_refused_while_another_renews(store: Memory, clock: ManualClock) -> None:
    first = RunningReplica(store, clock)
    await settle(100)
    second = RunningReplica(store, clock, leader_elect=False)
    await tick(clock, 6, first, second)
    with pytest.raises(StartupRefused, match="--leader-elect"):
        await second.task
    await first.stop()


async def test_one_without_leader_election_follows_one_that_was_killed(store: Memory, clock: ManualClock) -> None:
    first = RunningReplica(store, clock)
    await settle(100)
    first.connection.broken = True  # as after a kill: it does not give the lease back
    await first.stop()
    second = RunningReplica(store, clock, leader_elect=False)
    await tick(clock, 20, second)
    assert second.leads
    await second.stop()


async def test_one_without_leader_election_ends_when_it_loses_the_lease(store: Memory, clock: ManualClock) -> None:
    only = RunningReplica(store, clock, leader_elect=False)
    await settle(100)
    only.connection.broken = True
    await tick(clock, 12, only)
    with pytest.raises(StartupRefused, match="was lost"):
        await only.task


async def test_a_missing_namespace_is_reported_with_the_remedy(clock: ManualClock) -> None:
    store = Memory(clock=clock, rules=admission.AdmissionRules())
    with pytest.raises(StartupRefused, match=f"no namespace {SPACE}: outfit install --apply"):
        await RunningReplica(store, clock).task
    await store.close()
