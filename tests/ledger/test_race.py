"""Several processes book the same device at the same moment, over HTTPS: one gets it. In every round all have read the page
before any of them writes, so that nothing but the revision stands between them; the companion takes it away. On an API server
the device is then given to every process; the embedded server's rules of pages refuse all but one."""

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
from outfitter.api.ledger_page.page import Page, pool_page
from outfitter.api.validate.bounds import SLICE_DEVICES
from tests import kubernetes, worker_processes
from tests.worker_processes import ROOT, Crew

WORKER, SERVED = Path(__file__).with_name("race_worker.py"), ROOT / "tests" / "e2e" / "served.py"
RACERS, ROUNDS, MANY = 4, 5, 250
DRIVER = "pci.example.com"


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
async def racers(config: Path) -> AsyncIterator[Crew]:
    """Each with a claim, for which it books."""
    names = [f"racer-{number}-{uuid.uuid4().hex[:8]}" for number in range(RACERS)]
    spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}
    async with worker_processes.reader(config) as store:
        claims = [await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
                  for name in names]
    words = [[str(config), name, claim["metadata"]["uid"]] for name, claim in zip(names, claims, strict=True)]
    async with worker_processes.crew(WORKER, words) as those:
        assert await those.hear() == ["ready"] * RACERS
        yield those


async def publish(config: Path, pool: str, devices: int, **where: object) -> None:
    """Devices vf0, vf1 and so on of a pool, in as many slices as they need."""
    starts = range(0, devices, SLICE_DEVICES)
    async with worker_processes.reader(config) as store:
        for start in starts:
            spec = {"driver": DRIVER, "pool": {"name": pool, "generation": 1, "resourceSliceCount": len(starts)}, "devices": [
                {"name": f"vf{number}"} for number in range(start, min(start + SLICE_DEVICES, devices))], **where}
            await store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": f"slice-{uuid.uuid4().hex[:8]}"}, "spec": spec})


async def race(those: Crew, page: str, pool: str, device: str, manner: str = "fenced") -> list[str]:
    """How it ended for each, when all read before any wrote."""
    those.tell(f"{page} {pool} {device} {manner}")
    assert await those.hear() == ["read"] * RACERS
    those.tell("go")
    return await those.hear()


async def page(config: Path, host: str) -> Page:
    async with worker_processes.reader(config) as store:
        return Page(await store.get(kinds.LEDGER_PAGE, host))


async def run(those: Crew, config: Path, rounds: int, home: str = "", pool: str = "", *, device: str = "vf") -> None:
    """The first round makes the page, the others replace it. A page of a host, if there is no other."""
    if not home:
        home = pool = f"race-{uuid.uuid4().hex[:8]}"
        await publish(config, pool, rounds, nodeName=home)
    for number in range(rounds):
        ends = await race(those, home, pool, f"{device}{number}")
        assert ends.count("won") == 1, f"round {number}: {ends}"
        booked = (await page(config, home)).bookings
        winner = next(one.holder.name for one in booked if one.device.device == f"{device}{number}")
        assert winner.startswith(f"racer-{ends.index('won')}-")
        assert set(ends) == {"won", f"lost {winner}"}, "the others learn who has it"
    held = [(one.device.device, one.holder.name) for one in (await page(config, home)).bookings]
    assert len(held) == len({device for device, _ in held}) == rounds


async def test_of_several_processes_one_gets_it(config: Path) -> None:
    """A device of a host, one of a pool without a host, a CPU."""
    async with racers(config) as those:
        await run(those, config, ROUNDS)
        pool = f"rack/{uuid.uuid4().hex[:8]}"
        await publish(config, pool, 2, allNodes=True)
        await run(those, config, 2, pool_page(DRIVER, pool), pool)
        await run(those, config, 2, device="1")


@pytest.mark.long
async def test_of_several_processes_one_gets_the_device_many_times(config: Path, soak_rounds: int) -> None:
    async with racers(config) as those:
        await run(those, config, MANY * soak_rounds)


async def test_without_the_revision(config: Path, request: pytest.FixtureRequest) -> None:
    """On an API server every process would believe that the device is its own: so the tests above can fail. The embedded
    server refuses a page on which another one's booking is missing, whatever its revision."""
    host = f"race-{uuid.uuid4().hex[:8]}"
    await publish(config, host, 3, nodeName=host)
    embedded = request.node.callspec.params["config"] == "embedded"
    async with racers(config) as those:
        assert (await race(those, host, host, "vf0")).count("won") == 1  # there is a page
        for number in (1, 2):
            ends = await race(those, host, host, f"vf{number}", "careless")
            assert sorted(ends) == (["refused"] * (RACERS - 1) + ["won"] if embedded else ["won"] * RACERS)
    held = [one.device.device for one in (await page(config, host)).bookings]
    assert held.count("vf2") == 1
    assert not embedded or sorted(held) == ["vf0", "vf1", "vf2"]
