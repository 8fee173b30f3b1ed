"""Churn for an hour: VMs, instances, claims, pods and events come and go, and the server's memory and database level off.

Prints a row a minute (`pytest -s`); `--minutes 60` (`make soak MINUTES=60`) sets how long it runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.store.disk.database_file import FILE
from outfitter.store.kube import Kube
from outfitter.store.watch_cache import encode
from tests.e2e.process import EXAMPLE, Up

CLIENTS = 6
PACE = 0.2  # seconds between two looks at whether a VM runs or is gone: the pace of the whole
SETTLED = 10  # minutes after which memory may only grow by MOST_GROWTH
MOST_GROWTH, MOST_DATABASE = 1.2, 3.0
CLAIM = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "virtual-function"}}]}}
DEVICES = {"devices": {"hostDevices": [{"name": "nic0", "claimName": "network", "requestName": "nic"}]}}


class Sample(NamedTuple):
    minute: float
    resident: int  # bytes of the server
    database: int  # bytes of its files
    live: int  # bytes of all objects
    events: int
    history: int
    rounds: int


def _instance(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {
        "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}], "domain": DEVICES}}


def _vm(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {
        "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": CLAIM}}],
        "template": {"spec": {"domain": DEVICES}}}}


class Churn:
    """Clients that create and delete objects until they are stopped."""

    def __init__(self, store: Kube, number: Iterator[int]) -> None:
        self._store, self._number = store, number
        self.rounds, self.stopping = 0, False

    async def run(self) -> None:
        while not self.stopping:
            name = f"churn-{next(self._number)}"
            kind, obj = (kinds.VM, _vm(name)) if self.rounds % 2 else (kinds.VMI, _instance(name))
            await self._store.create(kind, obj)
            await self._until(kinds.VMI, name, "Running")
            await self._store.patch(kind, name, {"metadata": {"annotations": {"round": str(self.rounds)}}}, "default")
            await self._store.create(kinds.EVENT, {
                "metadata": {"generateName": "churn-", "namespace": "default"}, "reason": "Churn", "message": name,
                "involvedObject": {"kind": kind.kind, "name": name, "namespace": "default"}})
            await self._store.delete(kind, name, "default", propagation="Background")
            await self._until(kinds.VMI, name, "")
            self.rounds += 1

    async def _until(self, kind: Kind, name: str, phase: str) -> None:
        """Until the object has a phase; "": until it is gone."""
        while True:
            await asyncio.sleep(PACE)
            try:
                obj = await self._store.get(kind, name, "default")
            except errors.NotFound:
                if not phase:
                    return
            else:
                if phase and (obj.get("status") or {}).get("phase") == phase:
                    return


def _sizes(up: Up) -> tuple[int, int]:
    """Bytes of memory and of the files of the database."""
    status = Path(f"/proc/{up.process.pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    return resident, sum(path.stat().st_size for path in up.data.glob(f"{FILE}*"))


async def _sample(up: Up, store: Kube, minute: float, rounds: int) -> Sample:
    resident, database = await asyncio.to_thread(_sizes, up)
    live, counts = 0, dict.fromkeys(kinds.ALL, 0)
    for kind in kinds.ALL:
        continue_ = ""
        while True:
            with contextlib.suppress(errors.Expired):
                part = await store.list(kind, limit=500, continue_=continue_)
                live += sum(len(encode(obj)) for obj in part.items)
                counts[kind] += len(part.items)
                continue_ = part.continue_
                if continue_:
                    continue
            break
    return Sample(minute, resident, database, live, counts[kinds.EVENT], counts[kinds.PAST_BOOKING], rounds)


async def _churn(up: Up, minutes: float) -> list[Sample]:
    samples = []
    async with up.store() as store:
        number = itertools.count()
        clients = [Churn(store, number) for _ in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        begin = time.monotonic()
        while (minute := (time.monotonic() - begin) / 60) < minutes:
            await asyncio.wait(tasks, timeout=min(60.0, 60 * (minutes - minute)), return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
            minute = (time.monotonic() - begin) / 60
            samples.append(await _sample(up, store, minute, sum(client.rounds for client in clients)))
            one = samples[-1]
            print(f"{one.minute:6.1f} min  {one.resident / 1e6:7.1f} MB resident  {one.database / 1e6:6.1f} MB database  "
                  f"{one.live / 1e6:6.1f} MB live  {one.events:6} events  {one.history:6} past bookings  {one.rounds:6} VMs",
                  flush=True)
        for client in clients:
            client.stopping = True
        await asyncio.gather(*tasks)
    return samples


@pytest.mark.long
@pytest.mark.time_limit(6 * 3600)
def test_memory_and_database_level_off(tmp_path: Path, churn_minutes: float) -> None:
    with Up(tmp_path / "data", simulate="2x8") as up:
        up.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"))
        samples = asyncio.run(_churn(up, churn_minutes))
    last = samples[-1]
    settled = next((sample for sample in samples if sample.minute >= SETTLED), last)  # caches fill until then
    assert last.rounds > 0
    assert last.resident <= MOST_GROWTH * settled.resident, f"memory grows: {settled} -> {last}"
    assert last.database <= MOST_DATABASE * last.live, f"the database is larger than what is in it: {last}"
