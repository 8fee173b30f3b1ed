"""The Kubernetes backend and a server that breaks off, puts off, or does not know who asks."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from outfitter import errors
from outfitter.api import kinds
from outfitter.store import kube, kubeconfig, pki
from outfitter.store.request_limiter import LONGEST_WAIT
from tests.store.kube.simulated_server import (
    POD,
    Answer,
    Impatient,
    SimulatedServer,
    access_to,
    answers_with,
    hang_up,
    status,
    streams,
)


async def test_a_read_that_is_cut_off_is_tried_again(backend: kube.Kube, simulated: SimulatedServer, clock: Impatient) -> None:
    simulated.answers = [hang_up, hang_up, answers_with(200, POD)]
    assert await backend.get(kinds.POD, "a", "n") == POD
    assert clock.slept == [0.1, 0.4]


async def test_a_read_whose_answer_is_cut_off_is_tried_again(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [streams(b'{"half":', cut=True), answers_with(200, POD)]
    assert await backend.get(kinds.POD, "a", "n") == POD


async def test_read_is_retried_a_few_times(backend: kube.Kube, simulated: SimulatedServer, clock: Impatient) -> None:
    simulated.answers = [hang_up]
    with pytest.raises(errors.Unavailable, match=f"{simulated.url} cannot be reached or broke off"):
        await backend.get(kinds.POD, "a", "n")
    assert (len(simulated.seen), clock.slept) == (4, [0.1, 0.4, 1.6])


WRITES: dict[str, Callable[[kube.Kube], Awaitable[Any]]] = {
    "create": lambda backend: backend.create(kinds.POD, POD),
    "replace": lambda backend: backend.replace(kinds.POD, POD),
    "patch": lambda backend: backend.patch(kinds.POD, "a", {}, "n"),
    "delete": lambda backend: backend.delete(kinds.POD, "a", "n"),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_is_cut_off_is_not_repeated(backend: kube.Kube, simulated: SimulatedServer, name: str) -> None:
    """It may have been carried out: the second would report a Conflict with the first."""
    simulated.answers = [answers_with(200, POD), answers_with(200, POD), hang_up]
    await backend.get(kinds.POD, "a", "n")  # so that the write travels on a connection that was good before
    if name != "delete":
        await backend.get(kinds.POD, "a", "n")
    with pytest.raises(errors.Unavailable):
        await WRITES[name](backend)
    assert len(simulated.seen) == 3


async def test_a_server_that_is_not_there(tmp_path: Path, clock: Impatient) -> None:
    with socket.socket() as ours:  # so that no other process listens there meanwhile
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        store = kube.Kube(access_to(f"http://127.0.0.1:{port}", tmp_path), clock=clock)
        with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}"):
            await store.create(kinds.POD, POD)
        await store.close()


async def test_a_group_that_the_server_does_not_have(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(404, "404 page not found\n")]
    with pytest.raises(errors.NotFound, match=r"does not serve kubevirt\.io/v1: outfit doctor says what"):
        await backend.list(kinds.VM)


async def test_put_off_as_long_as_the_server_asks(backend: kube.Kube, simulated: SimulatedServer, clock: Impatient) -> None:
    simulated.answers = [answers_with(429, "busy", Retry_After="7"), status(429, "TooManyRequests", retryAfterSeconds=2),
                      answers_with(429, "busy"), answers_with(201, POD)]
    assert await backend.create(kinds.POD, POD) == POD
    assert clock.slept == pytest.approx([7, 2, 1.6])
    assert simulated.bodies[0] == simulated.bodies[3] != b""


async def test_put_off_for_too_long_or_too_often(backend: kube.Kube, simulated: SimulatedServer, clock: Impatient) -> None:
    simulated.answers = [answers_with(429, "busy", Retry_After="3600")]
    with pytest.raises(errors.Unavailable, match="answered 429: busy") as caught:
        await backend.get(kinds.POD, "a", "n")
    assert (caught.value.retry_after, clock.slept) == (3600, [])
    simulated.answers = [answers_with(429, "busy", Retry_After="5")]
    with pytest.raises(errors.Unavailable) as caught:
        await backend.get(kinds.POD, "a", "n")
    assert caught.value.retry_after == 5
    assert clock.slept == pytest.approx([LONGEST_WAIT, 5, 5, 6.4]), "no one waits for an hour"


async def test_a_server_that_is_down_for_now(backend: kube.Kube, simulated: SimulatedServer, clock: Impatient) -> None:
    simulated.answers = [answers_with(503, "starting", Retry_After="3"), answers_with(200, POD)]
    assert await backend.get(kinds.POD, "a", "n") == POD
    assert clock.slept == [3]
    simulated.answers = [answers_with(503, "starting", Retry_After="3"), answers_with(200, POD)]
    with pytest.raises(errors.Unavailable, match="starting") as caught:
        await backend.replace(kinds.POD, POD)
    assert caught.value.retry_after == 3, "a write may have passed the proxy that said so"


# Who asks


def knows(token: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        known = request.headers.get("Authorization") == f"Bearer {token}"
        return await (answers_with(200, POD) if known else status(401, "Unauthorized"))(request)

    return answer


async def test_an_unknown_token_is_renewed_once(simulated: SimulatedServer, tmp_path: Path, clock: Impatient) -> None:
    script = tmp_path / "plugin"
    script.write_text(
        f"#!{sys.executable}\nimport json, pathlib\nfile = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "runs = int(file.read_text()) + 1 if file.exists() else 1\nfile.write_text(str(runs))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': f't{runs}'}}))\n")
    script.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}}
    store = kube.Kube(access_to(simulated.url, tmp_path, user), clock=clock)
    simulated.answers = [knows("t2")]
    assert await store.create(kinds.POD, POD) == POD
    assert [request.headers["Authorization"] for request in simulated.seen] == ["Bearer t1", "Bearer t2"]
    assert simulated.bodies[0] == simulated.bodies[1]
    simulated.answers = [knows("another")]
    with pytest.raises(errors.Unauthorized):
        await store.get(kinds.POD, "a", "n")
    assert len(simulated.seen) == 4
    await store.close()


async def test_an_unknown_token_that_stays_is_not_tried_again(
    simulated: SimulatedServer, tmp_path: Path, clock: Impatient
) -> None:
    store = kube.Kube(access_to(simulated.url, tmp_path, {"token": "t"}), clock=clock)
    simulated.answers = [knows("another")]
    with pytest.raises(errors.Unauthorized, match="the server's words"):
        await store.get(kinds.POD, "a", "n")
    assert len(simulated.seen) == 1
    await store.close()


async def test_groups_are_one_header_each(simulated: SimulatedServer, tmp_path: Path, clock: Impatient) -> None:
    user = {"as": "bob", "as-groups": ["x", "y"]}
    store = kube.Kube(access_to(simulated.url, tmp_path, user), clock=clock, user_agent="mine/1")
    simulated.answers = [answers_with(200, POD)]
    await store.get(kinds.POD, "a", "n")
    assert simulated.seen[0].headers.getall("Impersonate-Group") == ["x", "y"]
    assert simulated.seen[0].headers["User-Agent"] == "mine/1"
    await store.close()


async def test_a_proxy_is_asked_instead(simulated: SimulatedServer, tmp_path: Path, clock: Impatient) -> None:
    content = pki.kubeconfig("http://api.invalid:8080/prefix/")
    content["clusters"][0]["cluster"]["proxy-url"] = simulated.url
    (tmp_path / "config").write_text(json.dumps(content))
    store = kube.Kube(kubeconfig.load(tmp_path / "config", clock=clock, env={}), clock=clock)
    simulated.answers = [answers_with(200, POD)]
    await store.get(kinds.POD, "a", "n")
    assert simulated.seen[0].raw_path == "http://api.invalid:8080/prefix/api/v1/namespaces/n/pods/a"
    await store.close()


# Watching
