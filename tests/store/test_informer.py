"""An informer holds what the store holds, through expiry, failures and lists in many parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter import errors
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE, Kind, Object
from outfitter.store import informer as informers
from outfitter.store.base import Event, Listing
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.informer import Informer, key_of, split_key
from outfitter.store.memory import Memory
from tests.store.backends import Backend, closing, config, settle, soon


def value(obj: Object | None) -> str | None:
    return None if obj is None else obj["data"]["v"]


def key(obj: Object | None) -> str | None:
    return None if obj is None else key_of(obj)


class Flaky(Memory):
    """Raises the queued errors, in their order."""

    def __init__(self, clock: ManualClock, keep: int = 8192) -> None:
        super().__init__(clock=clock, keep=keep)
        self.lists: list[errors.OutfitterError] = []  # for the lists to come
        self.watches: list[errors.OutfitterError] = []  # for the watches to come, at once
        self.cut: list[errors.OutfitterError | None] = []  # ends a running watch after its next event; None: without a word
        self.slow: Listing | None = None  # what the next list says, which was under way for long
        self.listed = self.watched = 0

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> Listing:
        self.listed += 1
        if self.lists:
            raise self.lists.pop(0)
        if self.slow is not None:
            slow, self.slow = self.slow, None
            return slow
        return await super().list(kind, namespace, labels=labels, fields=fields, limit=limit, continue_=continue_)

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[Event]:
        self.watched += 1
        if self.watches:
            raise self.watches.pop(0)
        stream = super().watch(kind, namespace, since=since, labels=labels, fields=fields, bookmarks=bookmarks)
        async with closing(stream):
            async for event in stream:
                yield event
                if self.cut:
                    if (error := self.cut.pop(0)) is not None:
                        raise error
                    return


@pytest.fixture
def store(clock: ManualClock) -> Flaky:
    return Flaky(clock)


@contextlib.asynccontextmanager
async def running(informer: Informer[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    await settle()
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def same(informer: Informer[Object], store: Memory, kind: Kind = CONFIG_MAP) -> bool:
    """Whether the informer holds what the store holds."""
    there = {key_of(item): item for item in (await Memory.list(store, kind)).items}
    return {key: informer.get(key) for key in informer.keys()} == there  # noqa: SIM118  # not a dict


async def test_lists_then_follows(store: Flaky, clock: ManualClock) -> None:
    await store.create(CONFIG_MAP, config("a"))
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    waiting = asyncio.create_task(informer.synced())
    await settle()
    assert not waiting.done()
    async with running(informer):
        await waiting
        assert list(informer.keys()) == ["default/a"]
        await store.create(CONFIG_MAP, config("b"))
        await store.patch(CONFIG_MAP, "a", {"data": {"v": "1"}}, "default")
        last = await store.delete(CONFIG_MAP, "b", "default")
        await settle()
        assert await same(informer, store)
        assert informer.revision == last["metadata"]["resourceVersion"]
        assert [item["data"]["v"] for item in informer.items()] == ["1"]


async def test_handlers_hear_every_change_in_order(store: Flaky, clock: ManualClock) -> None:
    await store.create(CONFIG_MAP, config("a", "0"))
    heard: list[tuple[str, str | None, str | None]] = []

    def listen(who: str) -> None:
        informer.on_change(lambda old, new: heard.append((who, value(old), value(new))))

    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    listen("first")
    listen("second")
    async with running(informer):
        await store.patch(CONFIG_MAP, "a", {"data": {"v": "1"}}, "default")
        await store.delete(CONFIG_MAP, "a", "default")
        await store.create(CONFIG_MAP, config("a", "2"))
        await settle()
    changes = [(None, "0"), ("0", "1"), ("1", None), (None, "2")]
    assert heard == [(who, *change) for change in changes for who in ("first", "second")]


async def test_handlers_find_the_informer_as_it_is_after_the_change(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    seen: list[bool] = []
    informer.on_change(lambda _, new: seen.append(informer.get("default/a") is new))
    async with running(informer):
        await store.create(CONFIG_MAP, config("a"))
        await store.delete(CONFIG_MAP, "a", "default")
        await settle()
    assert seen == [True, True]


async def test_own_write_is_visible_before_its_watch_event(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, indexes={"v": lambda obj: [value(obj) or ""]})
    heard: list[str | None] = []
    informer.on_change(lambda _, new: heard.append(value(new)))
    async with running(informer):
        await store.create(CONFIG_MAP, config("a", "0"))
        await settle()
        await store.patch(CONFIG_MAP, "a", {"data": {"v": "1"}}, "default")  # by another writer
        ours = await store.patch(CONFIG_MAP, "a", {"data": {"v": "2"}}, "default")
        assert value(informer.get("default/a")) == "0"
        informer.put(ours)
        assert informer.get("default/a") == ours
        assert [list(informer.items()), informer.by("v", "2"), informer.by("v", "0")] == [[ours], [ours], []]
        await settle()  # now the events of both arrive
        assert heard == ["0", "2"]
        await store.patch(CONFIG_MAP, "a", {"data": {"v": "3"}}, "default")
        await settle()
        informer.put(ours)  # it comes late
        assert value(informer.get("default/a")) == "3"
        assert heard == ["0", "2", "3"]
        assert await same(informer, store)


async def test_what_we_wrote_stays_when_an_older_list_comes_in(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    await store.create(CONFIG_MAP, config("a", "0"))
    store.slow = await store.list(CONFIG_MAP)
    changed = await store.patch(CONFIG_MAP, "a", {"data": {"v": "1"}}, "default")
    made = await store.create(CONFIG_MAP, config("b"))
    informer.put(changed)
    informer.put(made)
    async with running(informer):
        assert sorted(informer.items(), key=key_of) == [changed, made]
        await settle()
        assert await same(informer, store)


async def test_own_write_does_not_restore_a_deleted_object(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    async with running(informer):
        ours = await store.create(CONFIG_MAP, config("a"))
        informer.put(ours)
        assert informer.get("default/a") == ours
        await store.delete(CONFIG_MAP, "a", "default")
        await settle()
        informer.put(ours)
        assert informer.get("default/a") is None


async def test_what_we_wrote_may_be_the_end_of_it(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    async with running(informer):
        await store.create(CONFIG_MAP, config("a", finalizers=["example.com/wait"]))
        await store.delete(CONFIG_MAP, "a", "default")
        informer.put(await store.patch(CONFIG_MAP, "a", {"metadata": {"finalizers": []}}, "default"))
        await settle()
        assert informer.get("default/a") is None
        assert await same(informer, store)


async def test_own_write_is_forgotten_when_the_object_was_deleted_unseen(clock: ManualClock) -> None:
    store = Flaky(clock, keep=4)
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    async with running(informer):
        informer.put(await store.create(CONFIG_MAP, config("a")))
        await store.delete(CONFIG_MAP, "a", "default")
        for number in range(20):  # more than the store remembers: the informer lists again
            await store.create(CONFIG_MAP, config(f"b{number}"))
        await settle()
        assert informer.get("default/a") is None
        assert await same(informer, store)


async def test_one_that_went_and_another_of_its_name_are_two(clock: ManualClock) -> None:
    """Handlers see the deletion and the new object, whether it was put before the DELETED event or came by a list."""
    store = Flaky(clock, keep=4)
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    heard: list[tuple[str | None, str | None]] = []
    informer.on_change(lambda old, new: heard.append((value(old), value(new))))
    async with running(informer):
        await store.create(CONFIG_MAP, config("b", "b"))
        await store.create(CONFIG_MAP, config("a", "0"))
        await settle()
        await store.delete(CONFIG_MAP, "a", "default")
        informer.put(await store.create(CONFIG_MAP, config("a", "1")))
        await settle()
        assert heard[2:] == [("0", None), (None, "1")]
        await store.delete(CONFIG_MAP, "a", "default")
        await store.create(CONFIG_MAP, config("a", "2"))
        for number in range(20):  # more than the store remembers: the informer lists again
            await store.patch(CONFIG_MAP, "b", {"data": {"v": str(number)}}, "default")
        await settle()
        assert heard[4:] == [("1", None), (None, "2"), ("b", "19")]
        assert informer.age("default/b") < informer.age("default/a")
        assert await same(informer, store)


@pytest.mark.parametrize("seconds", [0, 1])
async def test_who_came_first_is_oldest(store: Flaky, clock: ManualClock, seconds: int) -> None:
    for name in ("z", "y"):
        await store.create(CONFIG_MAP, config(name))
        clock.advance(seconds)
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    async with running(informer):
        for name in ("x", "w"):
            await store.create(CONFIG_MAP, config(name))
        await store.patch(CONFIG_MAP, "z", {"data": {"v": "1"}}, "default")
        await settle()
        assert sorted("zyxw", key=lambda name: informer.age(f"default/{name}")) == ["z", "y", "x", "w"]
        assert informer.age("default/none") < informer.age("default/z")


async def test_indexes(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, indexes={"value": lambda obj: [obj["data"]["v"]]})
    informer.add_index("letters", lambda obj: obj["metadata"]["name"])

    def by(index: str, value: str) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in informer.by(index, value))

    await store.create(CONFIG_MAP, config("ab", "1"))
    async with running(informer):
        await store.create(CONFIG_MAP, config("bc", "1"))
        await settle()
        assert by("value", "1") == ["ab", "bc"]
        assert by("letters", "b") == ["ab", "bc"]
        assert by("letters", "a") == ["ab"]
        await store.patch(CONFIG_MAP, "ab", {"data": {"v": "2"}}, "default")
        await store.delete(CONFIG_MAP, "bc", "default")
        await settle()
        assert (by("value", "1"), by("value", "2"), by("letters", "c")) == ([], ["ab"], [])


async def test_one_object_that_cannot_be_read_does_not_take_the_others_with_it(store: Flaky, clock: ManualClock) -> None:
    heard: list[str | None] = []

    def stumble(old: Object | None, new: Object | None) -> None:
        heard.append(key(new))
        raise ValueError("a reader's fault")

    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, indexes={"v": lambda obj: [obj["data"]["v"]]})
    informer.on_change(stumble)
    async with running(informer):
        await store.create(CONFIG_MAP, {"metadata": {"name": "bad", "namespace": "default"}})
        await store.create(CONFIG_MAP, config("good", "x"))
        await settle()
        assert informer.get("default/good") is not None
        with pytest.raises(errors.Unreadable, match="default/bad"):  # it exists, and must not be taken for deleted
            informer.get("default/bad")
        assert informer.readable("default/bad") is None
        assert list(informer.unreadable) == ["default/bad"]
        await store.patch(CONFIG_MAP, "bad", {"data": {"v": "x"}}, "default")
        await settle()
        assert len(informer.by("v", "x")) == 2
        await store.patch(CONFIG_MAP, "bad", {"data": None}, "default")
        await settle()
        assert len(informer.by("v", "x")) == 1
    assert heard == ["default/good", "default/bad", None]


async def test_a_view_is_made_once_for_each_change(store: Flaky, clock: ManualClock) -> None:
    informer = Informer(store, CONFIG_MAP, clock=clock, view=lambda obj: str(obj["data"]["v"]).upper())
    await store.create(CONFIG_MAP, config("a", "x"))
    async with running(informer):
        assert list(informer.items()) == ["X"]


async def test_a_selection(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, namespace="here", labels="app=web")
    await store.create(CONFIG_MAP, config("a", namespace="here", labels={"app": "web"}))
    async with running(informer):
        await store.create(CONFIG_MAP, config("b", namespace="there", labels={"app": "web"}))
        await store.create(CONFIG_MAP, config("c", namespace="here"))
        await store.create(CONFIG_MAP, config("d", namespace="here", labels={"app": "web"}))
        await store.patch(CONFIG_MAP, "a", {"metadata": {"labels": None}}, "here")
        await settle()
        assert list(informer.keys()) == ["here/d"]


async def test_a_long_list_comes_in_parts(store: Flaky, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "PAGE", 3)
    for number in range(8):
        await store.create(CONFIG_MAP, config(f"m{number}"))
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    async with running(informer):
        assert store.listed == 3
        assert await same(informer, store)


async def test_expiry_is_mended_by_listing_again(clock: ManualClock) -> None:
    store = Flaky(clock, keep=10)
    for name in ("stays", "changes", "goes"):
        await store.create(CONFIG_MAP, config(name, "old"))
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, indexes={"value": lambda obj: [obj["data"]["v"]]})
    heard: list[tuple[str | None, str | None]] = []
    informer.on_change(lambda old, new: heard.append((key(old), key(new))))
    async with running(informer):
        heard.clear()
        await store.delete(CONFIG_MAP, "goes", "default")
        await store.create(CONFIG_MAP, config("comes", "new"))
        for number in range(40):  # in one go, so that the watcher is left behind
            await store.patch(CONFIG_MAP, "changes", {"data": {"v": f"new{number}"}}, "default")
        await settle()
        assert store.listed == 2
        assert await same(informer, store)
        assert heard == [("default/goes", None), ("default/changes", "default/changes"), (None, "default/comes")]
        assert [key_of(obj) for obj in informer.by("value", "old")] == ["default/stays"]


async def test_what_fails_is_tried_again_later_and_later(store: Flaky, clock: ManualClock) -> None:
    await store.create(CONFIG_MAP, config("a"))
    store.lists += [errors.Unavailable("no"), errors.Unavailable("no"), errors.Forbidden("not you")]
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, jitter=lambda: 0.0)
    async with running(informer):
        for wait, listed in ((0.2, 1), (0.4, 2), (0.8, 3)):
            assert store.listed == listed
            clock.advance(wait - 0.01)
            await settle()
            assert store.listed == listed
            clock.advance(0.02)
            await settle()
        assert store.listed == 4
        assert await same(informer, store)


@pytest.mark.parametrize("error", [errors.Unavailable("broke off"), errors.Expired("too old"), None], ids=str)
async def test_a_watch_that_breaks_loses_nothing(store: Flaky, clock: ManualClock, error: errors.OutfitterError | None) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, jitter=lambda: 0.0)
    async with running(informer):
        store.cut.append(error)
        await store.create(CONFIG_MAP, config("a"))
        await store.create(CONFIG_MAP, config("b"))
        await store.delete(CONFIG_MAP, "a", "default")
        await settle()
        clock.advance(1)
        await settle()
        assert await same(informer, store)
        assert store.listed == (2 if isinstance(error, errors.Expired) else 1), "only an expired watch lists again"
        await store.create(CONFIG_MAP, config("c"))
        await settle()
        assert await same(informer, store)


async def test_silent_watch_is_not_restarted_in_a_loop(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock, jitter=lambda: 0.0)
    await store.create(CONFIG_MAP, config("a"))
    async with running(informer):
        for watcher in list(store.watch_cache(CONFIG_MAP).watchers):
            watcher.end()  # as a server does that shuts down
        await settle(200)
        assert store.watched == 1
        clock.advance(informers.REWATCH_DELAY)
        await settle()
        assert store.watched == 2


async def test_a_deletion_between_watches_is_handled(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    gone: list[str] = []
    informer.on_change(lambda old, new: gone.append(key_of(old)) if old and not new else None)
    await store.create(CONFIG_MAP, config("a"))
    await store.create(CONFIG_MAP, config("b"))
    async with running(informer):
        store.cut.append(errors.Expired("too old"))
        store.lists += [errors.Unavailable("still")] * 2
        await store.create(CONFIG_MAP, config("c"))
        await settle()
        await store.delete(CONFIG_MAP, "a", "default")
        for _ in range(4):
            clock.advance(2)
            await settle()
        assert gone == ["default/a"]
        assert await same(informer, store)


async def test_bookmarks_carry_the_revision_on(store: Flaky, clock: ManualClock) -> None:
    informer: Informer[Object] = Informer(store, CONFIG_MAP, clock=clock)
    async with running(informer):
        await store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}})
        clock.advance(60)
        await settle()
        assert informer.revision == str(store.revision)
        assert list(informer.items()) == []


async def test_on_every_backend(backend: Backend) -> None:
    clock = backend.clock or SystemClock()
    informer: Informer[Object] = Informer(backend.store, CONFIG_MAP, clock=clock, namespace=backend.namespace)
    changes: asyncio.Queue[tuple[str | None, str | None]] = asyncio.Queue()
    informer.on_change(lambda old, new: changes.put_nowait((value(old), value(new))))
    await backend.store.create(CONFIG_MAP, backend.config("a", {"v": "0"}))
    async with running(informer):
        await soon(informer.synced())
        await backend.store.patch(CONFIG_MAP, "a", {"data": {"v": "1"}}, backend.namespace)
        await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
        assert [await soon(changes.get()) for _ in range(3)] == [(None, "0"), ("0", "1"), ("1", None)]


def test_keys() -> None:
    assert key_of(config("a")) == "default/a"
    assert key_of({"metadata": {"name": "n1"}}) == "n1"
    assert split_key("default/a") == ("default", "a")
    assert split_key("n1") == ("", "n1")
