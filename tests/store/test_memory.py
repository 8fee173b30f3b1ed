"""What the backends that keep the objects themselves promise beyond the shared suite: how far back they remember, when they
send bookmarks, and that the rules are asked."""

from __future__ import annotations

import asyncio
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds, write_request
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE, NAMESPACE, POD, Kind, Object
from outfitter.store import base
from outfitter.store.base import Event
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from outfitter.store.sqlite import SQLite
from outfitter.store.watch_cache import Selection
from tests.store.backends import closing, config, settle, soon

Make = Callable[[int], Memory]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Make:
    """A backend whose log keeps `keep` changes of each kind."""
    if request.param == "memory":
        return lambda keep: Memory(clock=clock, keep=keep)
    return lambda keep: SQLite(tmp_path / "data", kinds.ALL, clock=clock, keep=keep)


async def test_a_list_that_is_not_kept_has_expired(make: Make) -> None:
    store = make(10)
    for number in range(4):
        await store.create(CONFIG_MAP, config(f"m{number}"))
    first = await store.list(CONFIG_MAP, limit=2)
    for number in range(30):
        await store.patch(CONFIG_MAP, "m0", {"data": {"v": str(number)}}, "default")
    with pytest.raises(errors.Expired, match="list again without it"):
        await store.list(CONFIG_MAP, limit=2, continue_=first.continue_)
    await store.close()


async def test_a_watch_from_a_revision_that_is_not_kept_has_expired(make: Make) -> None:
    store = make(10)
    first = await store.create(CONFIG_MAP, config("a"))
    for number in range(30):
        last = await store.patch(CONFIG_MAP, "a", {"data": {"v": str(number)}}, "default")
    with pytest.raises(errors.Expired, match="too old resource version"):
        await soon(anext(store.watch(CONFIG_MAP, since=first["metadata"]["resourceVersion"])))
    with pytest.raises(errors.Expired):  # from the future: the data is older than what the caller saw
        await soon(anext(store.watch(CONFIG_MAP, since=str(store.revision + 1))))
    before_last = str(int(last["metadata"]["resourceVersion"]) - 1)
    stream = store.watch(CONFIG_MAP, since=before_last)
    async with closing(stream):
        assert (await soon(anext(stream))).object == last
    await store.close()


async def test_another_kinds_changes_push_nothing_out(make: Make) -> None:
    store = make(10)
    first = await store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}})
    await store.create(CONFIG_MAP, config("a"))
    for number in range(30):
        await store.patch(CONFIG_MAP, "a", {"data": {"v": str(number)}}, "default")
    second = await store.create(LEDGER_PAGE, {"metadata": {"name": "n2"}})
    stream = store.watch(LEDGER_PAGE, since=first["metadata"]["resourceVersion"])
    async with closing(stream):
        assert (await soon(anext(stream))).object == second
    await store.close()


async def test_slow_watcher_gets_an_error(make: Make) -> None:
    store = make(10)
    await store.create(CONFIG_MAP, config("a"))
    stream = store.watch(CONFIG_MAP, since="0")
    async with closing(stream):
        await soon(anext(stream))
        for number in range(30):
            await store.patch(CONFIG_MAP, "a", {"data": {"v": str(number)}}, "default")
        with pytest.raises(errors.Expired, match="position was compacted"):
            await soon(anext(stream))
    await store.close()


async def test_big_changes_are_kept_by_their_bytes() -> None:
    store = Memory(keep_bytes=100_000)
    await store.create(CONFIG_MAP, config("a", "x" * 10_000))
    for number in range(30):
        await store.patch(CONFIG_MAP, "a", {"data": {"n": str(number)}}, "default")
    cache = store.watch_cache(CONFIG_MAP)
    assert len(cache.log) <= 11
    assert cache.compacted > 15


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "²", "9" * 30, ""])
async def test_watch_from_what_is_no_revision(memory: Memory, since: str) -> None:
    with pytest.raises(errors.BadRequest, match="must be the number from an earlier answer"):
        await soon(anext(memory.watch(CONFIG_MAP, since=since)))


# -- bookmarks


async def test_bookmarks_come_by_the_clock_and_hide_nothing(make: Make, clock: ManualClock) -> None:
    store = make(1000)
    heard: list[Event] = []

    async def listen(labels: str, *, bookmarks: bool) -> None:
        stream = store.watch(CONFIG_MAP, since="0", labels=labels, bookmarks=bookmarks)
        async with closing(stream):
            async for event in stream:
                heard.append(event)

    listening = asyncio.create_task(listen("app=web", bookmarks=True))
    await settle()
    for number in range(3):  # others' changes are no reason for a word
        await store.create(CONFIG_MAP, config(f"m{number}"))
    await settle()
    assert heard == []
    clock.advance(60)
    await settle()
    assert [event.type for event in heard] == ["BOOKMARK"]
    mark = heard[0].object
    assert mark["metadata"]["resourceVersion"] == str(store.revision)
    assert (mark["kind"], mark["apiVersion"]) == ("ConfigMap", "v1")
    made = await store.create(CONFIG_MAP, config("web", labels={"app": "web"}))
    await settle()
    clock.advance(60)
    await settle()
    assert [event.type for event in heard] == ["BOOKMARK", "ADDED", "BOOKMARK"]
    assert heard[2].object["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    heard.clear()
    silent = asyncio.create_task(listen("app=nobody", bookmarks=False))
    await settle()
    clock.advance(600)
    await settle()
    assert heard == []
    silent.cancel()
    await asyncio.gather(silent, return_exceptions=True)
    await store.close()


async def test_a_bookmark_is_no_newer_than_what_was_sent(memory: Memory, clock: ManualClock) -> None:
    await memory.create(CONFIG_MAP, config("a"))
    stream = memory.watch(CONFIG_MAP, since="0", bookmarks=True)
    async with closing(stream):
        first = await soon(anext(stream))
        await settle()
        clock.advance(60)
        await settle()
        await memory.create(CONFIG_MAP, config("b"))  # comes while the first is being handled, with a bookmark due
        rest = [await soon(anext(stream)), await soon(anext(stream))]
        seen = first.object["metadata"]["resourceVersion"]
        for event in rest:
            if event.type == "BOOKMARK":
                assert event.object["metadata"]["resourceVersion"] == seen
            seen = event.object["metadata"]["resourceVersion"]


async def test_closing_ends_watches(make: Make) -> None:
    store = make(10)
    await store.create(CONFIG_MAP, config("a"))

    async def listen() -> list[str]:
        return [event.type async for event in store.watch(CONFIG_MAP, since="0", bookmarks=True)]

    listening = asyncio.create_task(listen())
    await settle()
    await store.close()
    assert await asyncio.wait_for(listening, 60) == ["ADDED"]


async def test_a_watch_that_ends_leaves_nothing_behind(memory: Memory) -> None:
    await memory.create(CONFIG_MAP, config("a"))
    stream = memory.watch(CONFIG_MAP, since="0")
    async with closing(stream):
        await soon(anext(stream))
        assert len(memory.watch_cache(CONFIG_MAP).watchers) == 1
    assert not memory.watch_cache(CONFIG_MAP).watchers


async def test_a_watcher_takes_what_happened_in_one_go(memory: Memory) -> None:
    watcher = memory.open_watch(CONFIG_MAP, Selection(CONFIG_MAP, "default"), 0)
    for name in "abc":
        await memory.create(CONFIG_MAP, config(name))
    assert [type_ for type_, _ in await watcher.next()] == ["ADDED"] * 3
    lines = {step.line("ADDED") for _, step in await memory.open_watch(CONFIG_MAP, Selection(CONFIG_MAP), 0).next()}
    assert len(lines) == 3
    assert all(line.startswith(b'{"type":"ADDED","object":{') and line.endswith(b"}\n") for line in lines)


# -- the rules


class Strict:
    """Fills in a default, forbids a word, lets pods linger, and looks at what else is there."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def admit(self, change: write_request.WriteRequest) -> Object:
        self.asked.append((change.verb, change.subresource))
        if (change.new.get("data") or {}).get("v") == "bad":
            raise errors.Invalid("bad is not good", [errors.Cause("data.v", "say good")])
        if change.verb == "create" and change.kind is POD and not change.look(CONFIG_MAP, "default", "needed"):
            raise errors.NotFound("the config map is missing")
        if (change.new.get("data") or {}).get("v") == "mark":
            change.new["spec"]["entries"][0]["filled"] = True
        return change.new | {"filled": True} if change.verb != "delete" else change.new

    def fills_in(self, kind: Kind) -> bool:
        return True

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        return (30 if asked is None else asked) if kind is POD else 0

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        return kind is NAMESPACE and bool(obj.get("spec", {}).get("finalizers"))


@pytest.fixture
def strict() -> Strict:
    return Strict()


async def test_rules_see_every_write(strict: Strict) -> None:
    store = Memory(rules=strict)
    made = await store.create(CONFIG_MAP, config("a"))
    assert made["filled"] is True
    for write in (
        store.create(CONFIG_MAP, config("b", "bad")),
        store.replace(CONFIG_MAP, config("a", "bad")),
        store.patch(CONFIG_MAP, "a", {"data": {"v": "bad"}}, "default"),
        store.commit([base.Create(CONFIG_MAP, config("c")), base.Create(CONFIG_MAP, config("d", "bad"))]),
    ):
        with pytest.raises(errors.Invalid, match="bad is not good"):
            await write
    assert [item["metadata"]["name"] for item in (await store.list(CONFIG_MAP)).items] == ["a"]
    await store.delete(CONFIG_MAP, "a", "default")
    assert strict.asked[-1] == ("delete", "")


async def test_rules_that_fill_in_change_nothing_that_readers_have(strict: Strict) -> None:
    store = Memory(rules=strict)
    await store.create(CONFIG_MAP, {**config("a"), "spec": {"entries": [{} for _ in range(20)]}})
    events = store.watch(CONFIG_MAP, since="0")
    async with closing(events):
        seen = (await soon(anext(events))).object
        await store.replace(CONFIG_MAP, {**seen, "data": {"v": "mark"}})
        later = (await soon(anext(events))).object
    assert later["spec"]["entries"][0] == {"filled": True}
    assert seen["spec"]["entries"][0] == {}
    await store.close()


async def test_rules_see_the_writes_of_their_own_commit(strict: Strict) -> None:
    store = Memory(rules=strict)
    pod = {"metadata": {"name": "p", "namespace": "default"}}
    with pytest.raises(errors.NotFound):
        await store.create(POD, pod)
    await store.commit([base.Create(CONFIG_MAP, config("needed")), base.Create(POD, pod)])


async def test_grace_keeps_a_pod_until_it_is_released(strict: Strict, clock: ManualClock) -> None:
    store = Memory(rules=strict, clock=clock)
    await store.create(CONFIG_MAP, config("needed"))
    await store.create(POD, {"metadata": {"name": "p", "namespace": "default", "finalizers": ["x/y"]}})
    lingering = await store.delete(POD, "p", "default")
    assert lingering["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert lingering["metadata"]["deletionGracePeriodSeconds"] == 30
    assert lingering["metadata"]["generation"] == 2
    longer = await store.delete(POD, "p", "default", grace=60)  # only a shorter grace is a change
    assert longer == lingering
    shorter = await store.delete(POD, "p", "default", grace=5)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    await store.patch(POD, "p", {"metadata": {"finalizers": None}}, "default")
    assert store.committed_record(POD, "p", "default")  # the grace still holds it
    await store.delete(POD, "p", "default", grace=0)
    assert store.committed_record(POD, "p", "default") is None


async def test_rules_may_hold_a_deleted_object(strict: Strict) -> None:
    store = Memory(rules=strict)
    await store.create(NAMESPACE, {"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}})
    assert (await store.delete(NAMESPACE, "n"))["metadata"]["deletionTimestamp"]
    assert store.committed_record(NAMESPACE, "n")
    await store.patch(NAMESPACE, "n", {"spec": {"finalizers": []}}, subresource="finalize")
    assert store.committed_record(NAMESPACE, "n") is None


async def test_rules_may_change_the_new_object_in_place() -> None:
    class Stamp(Strict):
        def admit(self, change: write_request.WriteRequest) -> Object:
            if change.verb == "update":
                change.new["metadata"].setdefault("annotations", {})["stamp"] = change.subresource or "spec"
                change.new.setdefault("status", {})["stamp"] = change.subresource or "spec"
            return change.new

    store = Memory(rules=Stamp())
    await store.create(NAMESPACE, {"metadata": {"name": "n"}})
    after = await store.patch(NAMESPACE, "n", {"status": {}}, subresource="status")
    assert (after["metadata"]["annotations"]["stamp"], after["status"]["stamp"]) == ("status", "status")
    again = await store.patch(NAMESPACE, "n", {"spec": {}})
    assert (again["metadata"]["annotations"]["stamp"], again["status"]["stamp"]) == ("spec", "spec")
    assert again["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]


# -- names and small mistakes


async def test_names_and_uids_come_from_the_id_generator() -> None:
    async def uids(seed: int) -> list[tuple[str, str]]:
        store = Memory(names=IdGenerator(random.Random(seed)))
        made = [await store.create(CONFIG_MAP, {"metadata": {"generateName": "a-", "namespace": "x"}}) for _ in range(3)]
        return [(one["metadata"]["name"], one["metadata"]["uid"]) for one in made]

    assert await uids(1) == await uids(1) != await uids(2)


async def test_a_generated_name_fits(memory: Memory) -> None:
    made = await memory.create(CONFIG_MAP, {"metadata": {"generateName": "x" * 80, "namespace": "default"}})
    assert len(made["metadata"]["name"]) == 63


BAD_PATCHES: dict[str, tuple[object, base.PatchType]] = {
    "metadata that is a word": ({"metadata": "x"}, "merge"),
    "metadata that is a list": ([{"op": "replace", "path": "/metadata", "value": []}], "json"),
    "the whole object replaced by a number": ([{"op": "replace", "path": "", "value": 1}], "json"),
}


@pytest.mark.parametrize("case", BAD_PATCHES)
async def test_patches_that_leave_no_object(memory: Memory, case: str) -> None:
    patch, how = BAD_PATCHES[case]
    made = await memory.create(CONFIG_MAP, config("a"))
    with pytest.raises(errors.BadRequest):
        await memory.patch(CONFIG_MAP, "a", patch, "default", how=how)
    assert await memory.get(CONFIG_MAP, "a", "default") == made


async def test_replace_of_no_name(memory: Memory) -> None:
    with pytest.raises(errors.BadRequest, match=r"metadata\.name"):
        await memory.replace(CONFIG_MAP, {"metadata": {"namespace": "default"}})


@pytest.mark.parametrize("field", ["name", "namespace", "creationTimestamp"])
async def test_fields_that_stay_as_they_are(memory: Memory, field: str) -> None:
    await memory.create(CONFIG_MAP, config("a"))
    with pytest.raises(errors.Invalid, match=f"metadata.{field}: .*field is immutable"):
        await memory.patch(CONFIG_MAP, "a", {"metadata": {field: "other"}}, "default")


async def test_watchers_share_one_object_of_each_version(make: Make) -> None:
    """And what is theirs is not what a writer or a reader of the store got, who may change it."""
    store = make(100)
    written = await store.create(POD, pod := {"metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "a"}})
    one, other = store.watch(POD, since="0"), store.watch(POD, since="0")
    async with closing(one), closing(other):
        first, second = [(await soon(anext(watch))).object for watch in (one, other)]
        assert first is second
        for copied in (written, await store.get(POD, "p", "default"), (await store.list(POD)).items[0], pod):
            copied["spec"]["nodeName"] = "changed"
        patched = await store.patch(POD, "p", {"metadata": {"labels": {"a": "b"}}}, "default")
        patched["spec"]["nodeName"] = "changed"
        later, same = [(await soon(anext(watch))).object for watch in (one, other)]
    assert later is same
    assert (later["metadata"]["labels"], later["spec"]) == ({"a": "b"}, {"nodeName": "a"})
    assert later["spec"] is first["spec"], "what did not change needs no memory of its own"
    await store.close()


def page(*names: str, **more: Any) -> Object:
    return {"metadata": {"name": "node-a"}, "spec": {"host": "node-a", "bookings": [{"name": each} for each in names], **more}}


async def test_a_writer_may_write_what_readers_share(make: Make) -> None:
    """What readers have is not copied, and what the writer added is the store's own."""
    store, names = make(100), [f"b{number}" for number in range(20)]
    await store.create(LEDGER_PAGE, page(*names))
    events = store.watch(LEDGER_PAGE, since="0")
    async with closing(events):
        seen = (await soon(anext(events))).object
        added: Object = {"name": "new"}
        mine = {**seen, "spec": {**seen["spec"], "bookings": [*seen["spec"]["bookings"][1:], added], "more": {"a": 1}}}
        answer = await store.replace(LEDGER_PAGE, mine)
        added["name"] = mine["spec"]["more"]["a"] = answer["spec"]["bookings"][0]["name"] = "changed"
        later = (await soon(anext(events))).object
        assert [each["name"] for each in later["spec"]["bookings"]] == [*names[1:], "new"]
        assert later["spec"]["more"] == {"a": 1}
        assert all(map(operator.is_, later["spec"]["bookings"], seen["spec"]["bookings"][1:]))
        assert later["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]
        assert [each["name"] for each in seen["spec"]["bookings"]] == names
        await store.replace(LEDGER_PAGE, {**later, "metadata": {**later["metadata"], "labels": {"a": "b"}}})
        assert (await soon(anext(events))).object["spec"] is later["spec"]
        with pytest.raises(errors.Conflict):
            await store.replace(LEDGER_PAGE, {**mine, "spec": {}})
        other = await store.get(LEDGER_PAGE, "node-a")
        await store.replace(LEDGER_PAGE, {**other, "spec": page("other")["spec"]}, dry_run=True)
        await store.replace(LEDGER_PAGE, {**other, "spec": page(*names)["spec"]})
        assert [each["name"] for each in (await soon(anext(events))).object["spec"]["bookings"]] == names
    await store.close()


async def test_a_slow_watcher_gets_each_version_as_it_was(make: Make) -> None:
    store = make(100)
    first = await store.create(CONFIG_MAP, config("a"))
    fast, slow = (store.watch(CONFIG_MAP, since=first["metadata"]["resourceVersion"]) for _ in range(2))
    async with closing(fast), closing(slow):
        for number in range(5):
            await store.patch(CONFIG_MAP, "a", {"data": {"v": str(number)}}, "default")
            assert (await soon(anext(fast))).object["data"]["v"] == str(number)
        assert [(await soon(anext(slow))).object["data"]["v"] for _ in range(5)] == list("01234")
    await store.close()
