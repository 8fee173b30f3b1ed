"""Random use of a backend against a model that is a dict: every answer, every list cut into parts, every watch."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP, Object
from outfitter.store.base import Check, Create, Delete, Write
from outfitter.store.memory import Memory
from outfitter.store.sqlite import SQLite
from outfitter.store.watch_cache import Selection, Watcher

T = TypeVar("T")
NAMES = st.sampled_from(["a", "a-b", "a.b", "b", "c", "d"])
SPACES = st.sampled_from(["n", "n-2", "o"])
VALUES = st.sampled_from(["0", "1", "2"])
COLOURS = st.sampled_from([None, "red", "blue"])
SELECTORS = st.sampled_from(["", "colour=red", "colour!=red", "!colour"])
Place = tuple[str, str]
Things = dict[Place, Object]


def chosen(things: Things, namespace: str, selector: str) -> list[Object]:
    """What a list must give."""
    match: dict[str, Callable[[str | None], bool]] = {
        "": lambda colour: True, "colour=red": lambda colour: colour == "red",
        "colour!=red": lambda colour: colour != "red", "!colour": lambda colour: colour is None,
    }
    return [obj for place, obj in sorted(things.items()) if (not namespace or place[0] == namespace)
            and match[selector]((obj["metadata"].get("labels") or {}).get("colour"))]


@dataclass
class Page:
    """A list that has not been read to its end."""

    rest: list[Object]  # what the model had when it began
    token: str
    revision: str
    namespace: str
    selector: str


@dataclass
class Follower:
    """A watch, and what it must have seen."""

    watcher: Watcher
    namespace: str
    selector: str
    things: Things = field(default_factory=dict)  # as put together from what was seen


class Machine(stateful.RuleBasedStateMachine):
    """The model: a dict from place to object. What changes it is done to the store first, and must be answered alike."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.things: Things = {}
        self.pages: list[Page] = []
        self.followers: list[Follower] = []
        self.last = 0  # the highest revision given so far
        self.store = self.open()

    def open(self) -> Memory:
        return Memory()

    def run(self, work: Coroutine[Any, Any, T]) -> T | type[errors.OutfitterError]:
        """What it gives, or how it fails."""
        try:
            return self.loop.run_until_complete(work)
        except errors.OutfitterError as error:
            return type(error)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()

    def stored(self, place: Place, obj: Object) -> None:
        revision = int(obj["metadata"]["resourceVersion"])
        assert revision > self.last
        self.last = revision
        self.things[place] = obj

    def make(self, space: str, name: str, value: str, colour: str | None) -> Object:
        labels = {"labels": {"colour": colour}} if colour else {}
        return {"metadata": {"name": name, "namespace": space, **labels}, "data": {"v": value}}

    @stateful.rule(space=SPACES, name=NAMES, value=VALUES, colour=COLOURS)
    def create(self, space: str, name: str, value: str, colour: str | None) -> None:
        got = self.run(self.store.create(CONFIG_MAP, self.make(space, name, value, colour)))
        if (space, name) in self.things:
            assert got is errors.AlreadyExists
        else:
            assert isinstance(got, dict)
            self.stored((space, name), got)

    @stateful.rule(space=SPACES, name=NAMES, value=VALUES, colour=COLOURS, age=st.sampled_from(["now", "stale", "any"]))
    def replace(self, space: str, name: str, value: str, colour: str | None, age: str) -> None:
        old, obj = self.things.get((space, name)), self.make(space, name, value, colour)
        if age != "any":
            now = int(old["metadata"]["resourceVersion"]) if old else self.last + 1
            obj["metadata"]["resourceVersion"] = str(now if age == "now" else now + 1)
        got = self.run(self.store.replace(CONFIG_MAP, obj))
        if old is None:
            assert got is errors.NotFound
        elif age == "stale":
            assert got is errors.Conflict
        elif old["data"] == obj["data"] and old["metadata"].get("labels") == obj["metadata"].get("labels"):
            assert got == old
        else:
            assert isinstance(got, dict)
            assert (got["data"], got["metadata"]["uid"]) == (obj["data"], old["metadata"]["uid"])
            self.stored((space, name), got)

    @stateful.rule(space=SPACES, name=NAMES, key=st.sampled_from(["v", "w"]), value=st.none() | VALUES, dry=st.booleans())
    def patch(self, space: str, name: str, key: str, value: str | None, dry: bool) -> None:
        old = self.things.get((space, name))
        got = self.run(self.store.patch(CONFIG_MAP, name, {"data": {key: value}}, space, dry_run=dry))
        if old is None:
            assert got is errors.NotFound
            return
        wanted = {k: v for k, v in {**old["data"], key: value}.items() if v is not None}
        assert isinstance(got, dict)
        assert got["data"] == wanted
        if wanted == old["data"]:
            assert got == old
        elif not dry:
            self.stored((space, name), got)

    @stateful.rule(space=SPACES, name=NAMES, stale=st.booleans())
    def delete(self, space: str, name: str, stale: bool) -> None:
        old = self.things.get((space, name))
        revision = str(int(old["metadata"]["resourceVersion"]) + stale) if old else None
        got = self.run(self.store.delete(CONFIG_MAP, name, space, revision=revision))
        if old is None:
            assert got is errors.NotFound
        elif stale:
            assert got is errors.Conflict
        else:
            assert isinstance(got, dict)
            self.last = int(got["metadata"]["resourceVersion"])
            del self.things[space, name]

    @stateful.rule(places=st.lists(st.tuples(SPACES, NAMES), min_size=1, max_size=4, unique=True), check=st.booleans())
    def swap(self, places: list[Place], check: bool) -> None:
        """In one commit: what is there goes, what is not comes; with a check that fails, nothing happens."""
        writes: list[Write] = [
            Delete(CONFIG_MAP, name, space) if (space, name) in self.things
            else Create(CONFIG_MAP, self.make(space, name, "swapped", None))
            for space, name in places
        ]
        if check:
            writes.append(Check(CONFIG_MAP, "a", "n", "999999"))
        got = self.run(self.store.commit(writes))
        if check:
            assert got is errors.Conflict
            return
        assert not isinstance(got, type)
        for place, obj in zip(places, got, strict=True):
            if obj is None:
                del self.things[place]
            else:
                self.things[place] = dict(obj)
        self.last += len(writes)
        assert self.store.revision == self.last

    @stateful.rule(space=st.just("") | SPACES, selector=SELECTORS, limit=st.integers(0, 4))
    def list_things(self, space: str, selector: str, limit: int) -> None:
        got = self.run(self.store.list(CONFIG_MAP, space, labels=selector, limit=limit))
        assert not isinstance(got, type)
        wanted = chosen(self.things, space, selector)
        assert got.items == (wanted[:limit] if limit else wanted)
        assert bool(got.continue_) == bool(limit and len(wanted) > limit)
        if got.continue_:
            assert got.remaining == len(wanted) - limit
            self.pages.append(Page(copy.deepcopy(wanted[limit:]), got.continue_, got.revision, space, selector))

    @stateful.precondition(lambda self: self.pages)
    @stateful.rule(data=st.data(), limit=st.integers(0, 3))
    def read_on(self, data: st.DataObject, limit: int) -> None:
        page = self.pages.pop(data.draw(st.integers(0, len(self.pages) - 1)))
        got = self.run(self.store.list(CONFIG_MAP, page.namespace, labels=page.selector, limit=limit, continue_=page.token))
        assert not isinstance(got, type)
        assert got.items == (page.rest[:limit] if limit else page.rest)
        assert got.revision == page.revision
        if got.continue_:
            self.pages.append(Page(page.rest[limit:], got.continue_, got.revision, page.namespace, page.selector))
        else:
            assert not limit or len(page.rest) <= limit

    @stateful.rule(space=st.just("") | SPACES, selector=SELECTORS)
    def follow(self, space: str, selector: str) -> None:
        watcher = self.store.open_watch(CONFIG_MAP, Selection(CONFIG_MAP, space, selector), self.store.revision)
        start = {(obj["metadata"]["namespace"], obj["metadata"]["name"]): obj for obj in chosen(self.things, space, selector)}
        self.followers.append(Follower(watcher, space, selector, copy.deepcopy(start)))

    @stateful.precondition(lambda self: self.followers)
    @stateful.rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        """What was listed once, with every change that was seen since, is what there is now."""
        follower = data.draw(st.sampled_from(self.followers))
        follower.watcher.wake()
        before = follower.watcher.revision

        async def taken() -> Any:
            waiting = asyncio.ensure_future(follower.watcher.next())
            await asyncio.sleep(0)
            follower.watcher.wake()
            return await waiting

        for type_, step in self.loop.run_until_complete(taken()):
            assert step.revision > before
            before = step.revision
            space, name = step.key
            assert ((space, name) in follower.things) == (type_ in ("MODIFIED", "DELETED"))
            if type_ == "DELETED":
                del follower.things[space, name]
            else:
                follower.things[space, name] = step.next.object()
        assert list_of(follower.things) == chosen(self.things, follower.namespace, follower.selector)

    @stateful.invariant()
    def everything_is_there(self) -> None:
        assert self.store.revision == self.last
        got = self.loop.run_until_complete(self.store.list(CONFIG_MAP))
        assert got.items == list_of(self.things)


def list_of(things: Things) -> list[Object]:
    return [obj for _, obj in sorted(things.items())]


class Reopened(Machine):
    """On disk, closed and opened again at any moment."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="outfitter-model-")
        super().__init__()

    def open(self) -> Memory:
        return SQLite(Path(self.folder.name), kinds.ALL, synchronous="OFF")

    @stateful.rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.store = self.open()
        self.followers.clear()  # their log is gone
        if self.pages:
            page = self.pages.pop()
            got = self.run(self.store.list(CONFIG_MAP, page.namespace, labels=page.selector, continue_=page.token))
            assert got is errors.Expired or int(page.revision) == self.store.revision
        self.pages.clear()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


BRIEF = hypothesis.settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True,
                            suppress_health_check=list(hypothesis.HealthCheck))
TestMemory = Machine.TestCase
TestMemory.settings = BRIEF
TestReopened = Reopened.TestCase
TestReopened.settings = hypothesis.settings(BRIEF, max_examples=15)
