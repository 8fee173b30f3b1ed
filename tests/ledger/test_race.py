"""Several processes book the same device at the same moment, over HTTPS: one gets it. In every round all have read the page
before any of them writes, so that nothing but the revision stands between them; the companion takes it away and sees the device
given to every process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.page import Page, pool_page
from outfitter.errors import NotFound
from outfitter.ledger import book
from tests import kubernetes, worker_processes
from tests.ledger.bookings import booking, consumer
from tests.worker_processes import ROOT, Crew

WORKER, SERVED = Path(__file__).with_name("race_worker.py"), ROOT / "tests" / "e2e" / "served.py"
RACERS, ROUNDS, MANY = 4, 5, 250


@pytest.fixture(scope="module", params=["embedded", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a server in a process of its own."""
    if request.param == "kubernetes":
        cluster: kubernetes.Cluster = request.getfixturevalue("cluster")
        yield cluster.kubeconfig
        return
    data = tmp_path_factory.mktemp("race") / "data"
    with subprocess.Popen([sys.executable, str(SERVED), str(data), "OFF"], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield data / "kubeconfig"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def racers(config: Path, manner: str) -> AsyncIterator[Crew]:
    async with worker_processes.crew(WORKER, [[str(config), f"racer-{number}", manner] for number in range(RACERS)]) as those:
        assert await those.hear() == ["ready"] * RACERS
        yield those


async def race(those: Crew, host: str, device: str) -> list[str]:
    """How it ended for each, when all read before any wrote."""
    those.tell(f"{host} {device}")
    assert await those.hear() == ["read"] * RACERS
    those.tell("go")
    return await those.hear()


async def page(config: Path, host: str) -> Page:
    async with worker_processes.reader(config) as store:
        return Page(await store.get(kinds.LEDGER_PAGE, host))


async def run(those: Crew, config: Path, rounds: int, host: str = "", device: str = "vf") -> None:
    """The first round makes the page, the others replace it."""
    host = host or f"race-{uuid.uuid4().hex[:8]}"
    for number in range(rounds):
        ends = await race(those, host, f"{device}{number}")
        assert ends.count("won") == 1, f"round {number}: {ends}"
        winner = f"racer-{ends.index('won')}"
        assert set(ends) == {"won", f"lost {winner}"}, "the others learn who has it"
    held = [(one.device.device, one.holder.name) for one in (await page(config, host)).bookings]
    assert len(held) == len({device for device, _ in held}) == rounds


async def test_of_several_processes_one_gets_it(config: Path) -> None:
    """A device of a host, one of a pool without a host, a CPU."""
    async with racers(config, "fenced") as those:
        await run(those, config, ROUNDS)
        await run(those, config, 2, pool_page("rack.example.com", f"rack/{uuid.uuid4().hex[:8]}"))
        await run(those, config, 2, device="1")


@pytest.mark.long
async def test_of_several_processes_one_gets_the_device_many_times(config: Path, soak_rounds: int) -> None:
    async with racers(config, "fenced") as those:
        await run(those, config, MANY * soak_rounds)


async def test_without_the_revision_every_process_would_book_it(config: Path) -> None:
    """So that the tests above can fail."""
    host = f"race-{uuid.uuid4().hex[:8]}"
    async with worker_processes.reader(config) as store:
        with pytest.raises(NotFound):
            await store.get(kinds.LEDGER_PAGE, host)
        await book.book(store, host, [booking("other", consumer("somebody"), host=host)])
    async with racers(config, "careless") as those:
        for number in range(2):
            assert await race(those, host, f"vf{number}") == ["won"] * RACERS, "each believes that the device is its own"
    held = [one.holder.name for one in (await page(config, host)).bookings if one.device.device == "vf1"]
    assert len(held) == 1, "and the page knows of one"
