"""Watches of the Kubernetes backend, cut anywhere."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from outfitter import errors
from outfitter.api import kinds
from outfitter.store import kube, request_limiter
from tests.store.kube.simulated_server import (
    BIG,
    POD,
    Answer,
    Impatient,
    SimulatedServer,
    answers_with,
    changes,
    event,
    hang_up,
    status,
    streams,
)


async def test_lines_of_any_length_cut_anywhere(backend: kube.Kube, simulated: SimulatedServer) -> None:
    text = event("ADDED", POD) + event("MODIFIED", BIG) + b"\n" + event("DELETED", POD)
    text += event("BOOKMARK", {"metadata": {"resourceVersion": "8"}})
    for size in (7, 100_000, len(text)):
        small = text if size > 7 else event("ADDED", POD) + event("DELETED", POD)
        simulated.answers = [streams(*(small[at : at + size] for at in range(0, len(small), size)))]
        seen = [(change.type, change.object) for change in await changes(backend)]
        if size == 7:
            assert seen == [("ADDED", POD), ("DELETED", POD)]
        else:
            assert seen == [("ADDED", POD), ("MODIFIED", BIG), ("DELETED", POD),
                            ("BOOKMARK", {"metadata": {"resourceVersion": "8"}})]


WATCH_ERRORS: dict[str, tuple[Answer, type[errors.OutfitterError], str]] = {
    "expired in the stream": (
        streams(event("ADDED", POD), event("ERROR", {"kind": "Status", "code": 410, "message": "too old: 1 (9)"})),
        errors.Expired, "too old"),
    "expired before the stream": (status(410, "Expired"), errors.Expired, "words"),
    "another error in the stream": (
        streams(event("ERROR", {"kind": "Status", "code": 500, "message": "etcd is gone"})), errors.Unavailable, "etcd"),
    "cut off": (streams(event("ADDED", POD), b'{"type": "ADD', cut=True), errors.Unavailable, "broke off"),
    "ended in the middle": (streams(event("ADDED", POD), b'{"type": "ADD'), errors.Unavailable, "in the middle"),
    "not allowed": (status(403, "Forbidden"), errors.Forbidden, "words"),
    "not JSON": (streams(b"<html>\n"), errors.Unavailable, "not a Kubernetes object"),
    "an unknown type": (streams(event("EXPLODED", POD)), errors.Unavailable, "'EXPLODED'"),
}


@pytest.mark.parametrize("name", WATCH_ERRORS)
async def test_watches_that_fail(backend: kube.Kube, simulated: SimulatedServer, name: str) -> None:
    answer, error, text = WATCH_ERRORS[name]
    simulated.answers = [answer]
    with pytest.raises(error, match=text):
        await changes(backend)


async def test_a_watch_that_cannot_begin_is_tried_again(
    backend: kube.Kube, simulated: SimulatedServer, clock: Impatient
) -> None:
    simulated.answers = [hang_up, answers_with(429, "busy", Retry_After="4"), streams(event("ADDED", POD))]
    assert [change.type for change in await changes(backend)] == ["ADDED"]
    assert clock.slept == pytest.approx([0.1, 4])


async def test_leaving_a_watch_closes_it(backend: kube.Kube, simulated: SimulatedServer) -> None:
    gone = asyncio.Event()

    async def forever(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(event("ADDED", POD))
                await asyncio.sleep(0)
        gone.set()
        return response

    simulated.answers = [forever]
    async with contextlib.aclosing(backend.watch(kinds.POD, "n", since="1")) as watching:
        async for change in watching:
            assert change.type == "ADDED"
            break
    await asyncio.wait_for(gone.wait(), 60)


async def test_watches_do_not_take_the_places_of_calls(backend: kube.Kube, simulated: SimulatedServer) -> None:
    release, all_there = asyncio.Event(), asyncio.Event()
    count = request_limiter.MAX_CALLS + 5

    async def waiting(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return await answers_with(200, POD)(request)
        if len(simulated.seen) == count:
            all_there.set()
        await release.wait()  # before the first byte: a server may be slow to grant a watch
        return web.Response()

    simulated.answers = [waiting]
    watches = [asyncio.ensure_future(changes(backend)) for _ in range(count)]
    await asyncio.wait_for(all_there.wait(), 60)
    assert await asyncio.wait_for(backend.get(kinds.POD, "a", "n"), 60) == POD
    release.set()
    assert await asyncio.gather(*watches) == [[]] * len(watches)


# A real server
