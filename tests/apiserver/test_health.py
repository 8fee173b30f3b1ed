"""/healthz, /livez and /readyz, as kube-apiserver answers them."""

from __future__ import annotations

import pytest

from outfitter.apiserver.app import App
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client

LIVE = "[+]ping ok\n[+]store ok\n"
TEXTS = {
    "/healthz": "ok",
    "/livez?verbose": f"{LIVE}livez check passed\n",
    "/healthz?verbose=true": f"{LIVE}healthz check passed\n",
    "/readyz?verbose": f"{LIVE}[+]controllers ok\n[+]shutdown ok\nreadyz check passed\n",
    "/livez?verbose&exclude=store": "[+]ping ok\n[+]store excluded: ok\nlivez check passed\n",
    "/livez?verbose&exclude=moon": f'{LIVE}warn: some health checks cannot be excluded: no matches for "moon"\n'
                                   "livez check passed\n",
    "/livez?exclude=moon": "ok",
    "/readyz/store": "ok",
    "/healthz/ping": "ok",
}


@pytest.mark.parametrize("path", TEXTS)
async def test_a_healthy_server(client: Client, path: str) -> None:
    reply = await client.get(path)
    assert (reply.status, reply.data.decode()) == (200, TEXTS[path])
    assert reply.header("content-type") == ["text/plain; charset=utf-8"]


async def test_a_server_that_is_not_ready(store: Memory) -> None:
    client = Client(App(store, ready=lambda: False), token="")
    failed = await client.get("/readyz")
    assert (failed.status, failed.data.decode()) == (
        500, f"{LIVE}[-]controllers failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n")
    assert (await client.get("/readyz?exclude=controllers")).data == b"ok"
    assert (await client.get("/livez")).data == b"ok"


async def test_a_server_that_stops(client: Client, store: Memory) -> None:
    client.app.stop()
    assert b"[-]shutdown failed" in (await client.get("/readyz")).data
    assert (await client.get("/livez")).data == b"ok"
    await store.close()
    assert (await client.get("/livez")).status == 500
    assert (await client.get("/livez/store")).status == 500


@pytest.mark.parametrize("path", ["/readyz/moon", "/livez/ping/x", "/livez/controllers"])
async def test_there_is_no_such_check(client: Client, path: str) -> None:
    assert (await client.get(path)).status == 404


async def test_single_checks_need_authentication(client: Client) -> None:
    anonymous = Client(client.app, token="")
    assert (await anonymous.get("/readyz?verbose")).status == 200
    assert (await anonymous.get("/readyz/store")).status == 401
