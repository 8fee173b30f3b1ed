"""A server that answers 429: informers and writers of one process back off together, and never spin."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from aiohttp import web

from outfitter.api import kinds
from outfitter.store import kube
from outfitter.store.informer import Informer
from tests.store.kube.simulated_server import POD, Impatient, SimulatedServer, status, streams, until

KINDS = (kinds.POD, kinds.VMI, kinds.LEDGER_PAGE)
ENOUGH = 30  # requests


class Busy:
    """Refuses everything until `ends`, and knows when each request came."""

    def __init__(self, clock: Impatient, ends: float = float("inf")) -> None:
        self.clock, self.ends = clock, ends
        self.moments: list[float] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.moments.append(self.clock.monotonic())
        if self.clock.monotonic() < self.ends:
            return await status(429, "TooManyRequests", retryAfterSeconds=2)(request)
        return web.json_response(POD)

    def gaps(self) -> list[float]:
        """Seconds between requests that were not sent together."""
        return [after - before for before, after in pairwise(sorted(set(self.moments)))]


@pytest.mark.parametrize("lists", [True, False], ids=["lists are refused", "watches are refused"])
async def test_a_busy_server_is_asked_seldom_by_all_informers_together(
    backend: kube.Kube, simulated: SimulatedServer, clock: Impatient, lists: bool
) -> None:
    """Each of three informers alone would ask every few hundred milliseconds at first."""
    busy = Busy(clock)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not lists and request.query.get("watch") and not request.query.get("sendInitialEvents"):
            return await busy(request)
        if not lists:
            return await first_list(request)
        return await busy(request)

    first_list = streams(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5","annotations":'
                         b'{"k8s.io/initial-events-end":"true"}}}}\n')
    simulated.answers = [answer]
    tasks = [asyncio.ensure_future(Informer[kinds.Object](backend, kind, clock=clock).run()) for kind in KINDS]
    await until(lambda: backend.limiter.requests["429", "GET"] >= ENOUGH)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(gap >= 2 for gap in busy.gaps()), "no request before the server wants one"
    assert max(busy.gaps()) > 10, "and later and later"
    assert clock.monotonic() > 5 * ENOUGH
    assert backend.limiter.limit == 1
    if not lists:
        assert backend.limiter.requests["200", "GET"] <= 2 * len(KINDS), "a watch that is refused does not list again"


async def test_writes_that_were_refused_are_sent_again(
    backend: kube.Kube, simulated: SimulatedServer, clock: Impatient
) -> None:
    busy = Busy(clock, ends=5)
    simulated.answers = [busy]
    writes = await asyncio.gather(*(backend.patch(kinds.POD, "a", {"n": number}, "n") for number in range(8)))
    assert writes == [POD] * 8
    assert all(gap >= 2 for gap in busy.gaps())
    assert backend.limiter.requests["200", "PATCH"] == 8
    assert backend.limiter.held_back > 0


async def test_503_without_a_delay_is_of_a_server_behind_it(
    backend: kube.Kube, simulated: SimulatedServer, clock: Impatient
) -> None:
    """An aggregated API that is away must not stop all else."""
    simulated.answers = [status(503, "ServiceUnavailable"), status(503, "ServiceUnavailable"), Busy(clock, ends=0)]
    assert await backend.get(kinds.POD, "a", "n") == POD
    assert (backend.limiter.delay, backend.limiter.held_back) == (0, 0)
