"""`/pods` on the API server's port: the pods of its hosts with their devices, for administrators."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from outfitter.apiserver import auth
from outfitter.apiserver.app import App
from outfitter.node.readers.node_pods import NodePods
from outfitter.node.readers.pods_page import PodsPage
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client
from tests.node.readers.shown_pods import GivenSources, changed, pod


@pytest.fixture
def nodes() -> dict[str, NodePods]:
    return {name: NodePods(name, GivenSources(), ManualClock()) for name in ("n1", "n2")}


@pytest.fixture
def client(nodes: dict[str, NodePods]) -> Client:
    users = {"admin": auth.User("root", (auth.MASTERS,)), "monitor": auth.User("monitor", (auth.MONITORING,))}
    return Client(App(Memory(clock=ManualClock()), tokens=users, pods=PodsPage(list(nodes.values()))))


def names(listed: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


async def test_pods_of_all_hosts_and_of_one(client: Client, nodes: dict[str, NodePods]) -> None:
    nodes["n1"].admit(pod("p", {"c": {"a.io/gpu": ("g0",)}}))
    q = pod("q", {"c": {}})
    nodes["n2"].admit({**q, "spec": {**q["spec"], "nodeName": "n2"}})
    answer = await client.get("/pods")
    assert (answer.status, answer.json["kind"], names(answer.json)) == (200, "PodList", ["p", "q"])
    assert names((await client.get("/pods?node=n2")).json) == ["q"]
    missing = await client.get("/pods?node=n3")
    assert (missing.status, missing.json["reason"]) == (404, "NotFound")
    assert (await client.get("/pods?node=n3&watch=true")).status == 404
    assert (await client.call("DELETE", "/pods")).status in (404, 405)


@pytest.mark.parametrize(("token", "status"), [("monitor", 403), ("wrong", 401)])
async def test_only_administrators_may_read(client: Client, token: str, status: int) -> None:
    client.token = token
    assert (await client.get("/pods")).status == status
    assert (await client.get("/pods?watch=true")).status == status


async def test_a_watch_has_what_is_there_and_every_change(client: Client, nodes: dict[str, NodePods]) -> None:
    p = pod("p", {"c": {}})
    nodes["n1"].admit(p)
    app = client.app
    lines: list[dict[str, Any]] = []
    seen = asyncio.Event()

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        body = message.get("body", b"")
        assert isinstance(body, bytes)
        lines.extend(json.loads(line) for line in body.splitlines())
        seen.set()

    async def until(count: int) -> None:
        while len(lines) < count:
            seen.clear()
            await asyncio.wait_for(seen.wait(), 30)

    answering = asyncio.create_task(app(client.scope("GET", "/pods?watch=true", {}, {}), receive, send))
    await until(2)
    nodes["n1"].changed(p, changed(p, phase="Running"))
    await until(3)
    assert [line["type"] for line in lines] == ["ADDED", "BOOKMARK", "MODIFIED"]
    app.stop()
    await asyncio.wait_for(answering, 30)
    assert (await client.get("/pods?watch=true")).status == 503
