"""Several processes book the same device at the same moment, over HTTPS: one gets it. In every round all have read the page
before any of them writes, so that nothing but the revision stands between them; the companion takes it away and sees the device
given to everybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.page import Page
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store import kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.ledger.words import booking, consumer

ROOT = Path(__file__).parent.parent.parent
WORKER, SERVED = Path(__file__).with_name("race_worker.py"), ROOT / "tests" / "e2e" / "served.py"
PATIENCE = 60.0  # seconds until a process that says nothing has failed
RACERS, ROUNDS, MANY = 4, 5, 250


@pytest.fixture(params=["embedded", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a server in a process of its own."""
    if request.param == "kubernetes":
        cluster: kubernetes.Cluster = request.getfixturevalue("cluster")
        yield cluster.kubeconfig
        return
    with subprocess.Popen([sys.executable, str(SERVED), str(tmp_path / "data"), "OFF"], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield tmp_path / "data" / "kubeconfig"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def racers(config: Path, manner: str) -> AsyncIterator[list[Process]]:
    started: list[Process] = []
    try:
        for number in range(RACERS):
            started.append(await asyncio.create_subprocess_exec(
                sys.executable, str(WORKER), str(config), f"racer-{number}", manner, stdin=PIPE, stdout=PIPE, cwd=ROOT))
        assert await gather(started) == ["ready"] * RACERS
        yield started
    finally:
        for each in started:
            assert each.stdin is not None
            each.stdin.close()
            try:
                await asyncio.wait_for(each.wait(), PATIENCE)
            except TimeoutError:
                each.kill()
                await each.wait()


async def gather(those: list[Process]) -> list[str]:
    """A line of each."""

    async def line(each: Process) -> str:
        assert each.stdout is not None
        return (await asyncio.wait_for(each.stdout.readline(), PATIENCE)).decode().strip()

    return list(await asyncio.gather(*map(line, those)))


def tell(those: list[Process], line: str) -> None:
    for each in those:
        assert each.stdin is not None
        each.stdin.write(f"{line}\n".encode())


async def race(those: list[Process], host: str, device: str) -> list[str]:
    """How it ended for each, when all read before any wrote."""
    tell(those, f"{host} {device}")
    assert await gather(those) == ["read"] * len(those)
    tell(those, "go")
    return await gather(those)


@contextlib.asynccontextmanager
async def reader(config: Path) -> AsyncIterator[Kube]:
    clock = SystemClock()
    store = Kube(kubeconfig.load(config, clock=clock), clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def page(config: Path, host: str) -> Page:
    async with reader(config) as store:
        return Page(await store.get(kinds.LEDGER_PAGE, host))


async def run(config: Path, rounds: int) -> None:
    host = f"race-{uuid.uuid4().hex[:8]}"
    async with racers(config, "fenced") as those:
        for number in range(rounds):
            ends = await race(those, host, f"vf{number}")
            assert ends.count("won") == 1, f"round {number}: {ends}"
            winner = f"racer-{ends.index('won')}"
            assert set(ends) == {"won", f"lost {winner}"}, "the others are told who has it"
    held = [(one.device.device, one.holder.name) for one in (await page(config, host)).bookings]
    assert len(held) == len({device for device, _ in held}) == rounds


async def test_of_several_processes_one_gets_the_device(config: Path) -> None:
    """The first round makes the page, the others replace it."""
    await run(config, ROUNDS)


@pytest.mark.long
async def test_of_several_processes_one_gets_the_device_many_times(config: Path) -> None:
    await run(config, MANY)


async def test_without_the_revision_everybody_would_get_it(config: Path) -> None:
    """So that the tests above can fail."""
    host = f"race-{uuid.uuid4().hex[:8]}"
    async with reader(config) as store:
        with pytest.raises(NotFound):
            await store.get(kinds.LEDGER_PAGE, host)
        await book.book(store, host, [booking("other", consumer("somebody"), host=host)])
    async with racers(config, "careless") as those:
        for number in range(2):
            assert await race(those, host, f"vf{number}") == ["won"] * RACERS, "each believes that the device is its own"
    held = [one.holder.name for one in (await page(config, host)).bookings if one.device.device == "vf1"]
    assert len(held) == 1, "and the page knows of one"
