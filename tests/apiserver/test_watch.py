"""Watches: what is sent, in which order, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from outfitter.api import kinds
from outfitter.apiserver import watch
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import CLAIMS, CONFIG_MAPS, PATIENCE, TABLE, A, Client, Stream, brief, claim, config_map

END = "k8s.io/initial-events-end"


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def advance(clock: ManualClock, seconds: float) -> None:
    await settled()
    clock.advance(seconds)
    await settled()


async def following(store: Memory, count: int = 1) -> None:
    """Wait until this many watches stand in the store."""
    async with asyncio.timeout(PATIENCE):
        while len(store.watch_cache(kinds.CONFIG_MAP).watchers) != count:  # noqa: ASYNC110  # the store tells nobody
            await asyncio.sleep(0)


@pytest.mark.parametrize("since", ["", "0"])
async def test_without_a_revision_all_objects_come_first(client: Client, since: str) -> None:
    await client.post(CONFIG_MAPS, config_map("b"))
    await client.post(CONFIG_MAPS, config_map("a"))
    async with client.watch(CONFIG_MAPS, resourceVersion=since) as stream:
        assert [brief(await stream.next()) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
        await client.patch(A, {"data": {"k": "w"}})
        event = await stream.next()
        assert (brief(event), event["object"]["data"]) == (("MODIFIED", "a"), {"k": "w"})
        await client.delete(A)
        event = await stream.next()
        assert brief(event) == ("DELETED", "a")
        assert int(event["object"]["metadata"]["resourceVersion"]) == 4
    assert stream.status == 200


async def test_from_a_revision_only_later_changes_come(client: Client) -> None:
    first = (await client.post(CONFIG_MAPS, config_map("a"))).json["metadata"]["resourceVersion"]
    await client.post(CONFIG_MAPS, config_map("b"))
    async with client.watch(CONFIG_MAPS, resourceVersion=first) as stream:
        assert brief(await stream.next()) == ("ADDED", "b")


async def test_initial_events_bookmark_is_sent_on_request(client: Client, store: Memory) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with client.watch(CONFIG_MAPS, **options) as stream:
        assert brief(await stream.next()) == ("ADDED", "a")
        mark = await stream.next()
        assert mark["type"] == "BOOKMARK"
        assert mark["object"]["metadata"] == {"resourceVersion": str(store.revision), "annotations": {END: "true"}}
    async with client.watch(CONFIG_MAPS, **{**options, "sendInitialEvents": "false"}) as stream:
        await following(store)
        await client.patch(A, {"data": {"k": "w"}})
        assert brief(await stream.next()) == ("MODIFIED", "a")


REFUSED = {
    "first objects of no known age": ({"sendInitialEvents": "true"}, 422, "NotOlderThan"),
    "an age without first objects": ({"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"}, 422, "forbidden for"),
    "a bad timeout": ({"timeoutSeconds": "abc"}, 400, "timeoutSeconds"),
    "a bad revision": ({"resourceVersion": "abc"}, 400, "resourceVersion"),
    "a bad selector": ({"labelSelector": "a==b==c"}, 400, "labelSelector"),
}


@pytest.mark.parametrize(("query", "status", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_refusals_come_before_the_stream(client: Client, query: dict[str, str], status: int, says: str) -> None:
    reply = await client.get(CONFIG_MAPS, watch="1", **query)
    assert reply.status == status
    assert says in reply.json["message"]


async def test_yaml_cannot_be_streamed(client: Client) -> None:
    assert (await client.get(CONFIG_MAPS, watch="1", accept="application/yaml")).status == 406


async def test_objects_enter_and_leave_a_selection(client: Client, store: Memory) -> None:
    async with client.watch(CONFIG_MAPS, labelSelector="tier=x") as stream:
        await following(store)
        await client.post(CONFIG_MAPS, config_map("a"))
        await client.patch(A, {"metadata": {"labels": {"tier": "x"}}})
        await client.patch(A, {"data": {"k": "w"}})
        left = (await client.patch(A, {"metadata": {"labels": {"tier": "y"}}})).json["metadata"]["resourceVersion"]
        await client.delete(A)
        await client.post(CONFIG_MAPS, config_map("z", labels={"tier": "x"}))
        events = [await stream.next() for _ in range(4)]
    assert [brief(event) for event in events] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "z")]
    assert events[2]["object"]["metadata"]["resourceVersion"] == left


async def test_one_object_is_watched_by_its_name(client: Client, store: Memory) -> None:
    async with client.watch(CONFIG_MAPS, fieldSelector="metadata.name=b") as stream:
        await following(store)
        await client.post(CONFIG_MAPS, config_map("a"))
        await client.post(CONFIG_MAPS, config_map("b"))
        assert brief(await stream.next()) == ("ADDED", "b")


async def test_a_bookmark_comes_every_minute_and_before_the_end(client: Client, store: Memory, clock: ManualClock) -> None:
    async with client.watch(CONFIG_MAPS, allowWatchBookmarks="1", timeoutSeconds="100", resourceVersion="0") as stream:
        await following(store)
        await client.post("/api/v1/namespaces", {"metadata": {"name": "x"}})  # moves the revision, not this watch
        await advance(clock, 60)
        event = await stream.next()
        assert (event["type"], event["object"]["metadata"]) == ("BOOKMARK", {"resourceVersion": "1"})
        await client.post(CONFIG_MAPS, config_map("a"))
        assert brief(await stream.next()) == ("ADDED", "a")
        await advance(clock, 38)
        event = await stream.next()
        assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", "2")
        await asyncio.sleep(watch.GATHER)
        await advance(clock, 2)
        assert await stream.rest() == []


async def test_a_bookmark_never_runs_ahead_of_events(client: Client, store: Memory, clock: ManualClock) -> None:
    async with client.watch(CONFIG_MAPS, allowWatchBookmarks="1", resourceVersion="0") as stream:
        await following(store)
        stream.stall()
        await client.post(CONFIG_MAPS, config_map("a"))
        await settled()  # "a" is on its way when "b" is made and a bookmark falls due
        await client.post(CONFIG_MAPS, config_map("b"))
        await advance(clock, 60)
        stream.resume()
        assert [brief(await stream.next()) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
        event = await stream.next()
        assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", "2")


async def test_without_asking_there_are_no_bookmarks(client: Client, store: Memory, clock: ManualClock) -> None:
    async with client.watch(CONFIG_MAPS, timeoutSeconds="100") as stream:
        await following(store)
        await advance(clock, 70)
        await advance(clock, 30)
        assert await stream.rest() == []


async def test_expired_revision_is_an_error_in_the_stream(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    for number in range(200):
        await client.patch(A, {"data": {"k": str(number)}})
    async with client.watch(CONFIG_MAPS, resourceVersion="1") as stream:
        events = await stream.rest()
    assert stream.status == 200
    assert [(event["type"], event["object"]["code"], event["object"]["reason"]) for event in events] == [
        ("ERROR", 410, "Expired")]


async def test_slow_client_is_disconnected_and_uses_no_memory(client: Client, store: Memory) -> None:
    async with client.watch(CONFIG_MAPS) as stream:
        await following(store)
        stream.stall()
        await client.post(CONFIG_MAPS, config_map("a"))
        await settled()
        for number in range(200):  # more than the log keeps
            await client.patch(A, {"data": {"k": str(number)}})
        stream.resume()
        events = await stream.rest()
    assert events[-1]["type"] == "ERROR"
    assert events[-1]["object"]["code"] == 410
    assert len(events) < 100


async def test_changes_in_quick_succession_travel_together(
    client: Client, store: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GATHER", 0.5)  # so long that they are quick on a slow machine too
    async with client.watch(CONFIG_MAPS) as stream:
        await following(store)
        for number in range(50):
            await store.create(kinds.CONFIG_MAP, {"metadata": {"name": f"n{number:02}", "namespace": "default"}})
            await settled()
        names = [brief(await stream.next())[1] for _ in range(50)]
    assert names == [f"n{number:02}" for number in range(50)]
    assert len([size for size in stream.sizes if size]) < 25


async def test_a_client_that_goes_leaves_nothing_behind(client: Client, store: Memory) -> None:
    async with client.watch(CONFIG_MAPS):
        await following(store)
    assert not store.watch_cache(kinds.CONFIG_MAP).watchers


async def test_stopping_the_server_ends_watches_and_refuses_new_ones(client: Client, store: Memory) -> None:
    async with client.watch(CONFIG_MAPS) as stream:
        await following(store)
        client.app.stop()
        assert await stream.rest() == []
    assert (await client.get(CONFIG_MAPS, watch="1")).status == 503


async def test_closing_the_store_ends_watches(client: Client, store: Memory) -> None:
    async with client.watch(CONFIG_MAPS) as stream:
        await following(store)
        await store.close()
        assert await stream.rest() == []


async def test_older_versions_are_converted_on_their_way(client: Client) -> None:
    path = CLAIMS.replace("/v1/", "/v1beta1/")
    async with client.watch(path) as stream:
        await client.post(CLAIMS, claim("c"))
        event = await stream.next()
    assert event["object"]["apiVersion"] == "resource.k8s.io/v1beta1"
    assert event["object"]["spec"]["devices"]["requests"] == [{"name": "gpu", "deviceClassName": "gpu"}]


async def test_a_table_is_streamed_row_by_row_with_its_heads_once(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    async with client.watch(CONFIG_MAPS, accept=TABLE) as stream:
        first = await stream.next()
        await client.patch(A, {"data": {"x": "y"}})
        second = await stream.next()
    assert [head["name"] for head in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert second["object"]["columnDefinitions"] is None
    assert [each["object"]["rows"][0]["cells"][:2] for each in (first, second)] == [["a", 1], ["a", 2]]
    assert second["object"]["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_a_long_list_at_the_start_comes_in_bounded_pieces(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PIECE", 1000)
    for number in range(30):
        await client.post(CONFIG_MAPS, config_map(f"n{number:02}"))
    stream: Stream
    async with client.watch(CONFIG_MAPS) as stream:
        for _ in range(30):
            await stream.next()
    assert len([size for size in stream.sizes if size]) > 5
