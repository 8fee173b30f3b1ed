"""The SQLite backend: when a write is durable, what a failing disk leaves behind, and what is loaded when it is opened
again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE
from outfitter.store.base import Create, Delete
from outfitter.store.clock import ManualClock
from outfitter.store.disk import database
from outfitter.store.sqlite import Batch, SQLite
from tests.store import backends
from tests.store.backends import PATIENCE, config, settle, soon


class Disk:
    """Stands between a store and its transactions: counts them, holds them up, fails them."""

    def __init__(self, store: SQLite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transactions: list[int] = []  # how many writes each carried
        self.failures: list[Exception] = []  # for the transactions to come
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Event()  # a transaction has begun
        self._transact: Callable[[Sequence[Batch]], None] = store._transact
        monkeypatch.setattr(store, "_transact", self)

    def __call__(self, batches: Sequence[Batch]) -> None:
        self.busy.set()
        assert self.open.wait(PATIENCE)
        if self.failures:
            raise self.failures.pop(0)
        self._transact(batches)
        self.transactions.append(len(batches))

    def hold(self) -> None:
        self.open.clear()
        self.busy.clear()

    async def until_busy(self) -> None:
        assert await asyncio.to_thread(self.busy.wait, PATIENCE)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLite]:
    made = SQLite(tmp_path, kinds.ALL, clock=ManualClock())
    yield made
    await made.close()


@pytest.fixture
def disk(store: SQLite, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(store, monkeypatch)


async def names(store: SQLite) -> list[str]:
    return backends.names(await store.list(CONFIG_MAP))


# -- when a write is safe


async def test_writers_share_transactions(store: SQLite, disk: Disk) -> None:
    disk.hold()
    first = asyncio.create_task(store.create(CONFIG_MAP, config("first")))
    await disk.until_busy()
    others = [asyncio.create_task(store.create(CONFIG_MAP, config(f"m{number:02}"))) for number in range(60)]
    await settle()
    disk.open.set()
    await asyncio.gather(first, *others)
    assert disk.transactions == [1, 60]
    assert len(await names(store)) == 61


async def test_who_is_answered_writes_into_the_next_transaction(store: SQLite, disk: Disk) -> None:
    """It begins after they have gone on, and so takes all of them along."""
    async def two_steps(number: int) -> None:
        await store.create(CONFIG_MAP, config(f"a{number}"))
        await store.create(CONFIG_MAP, config(f"b{number}"))

    await asyncio.gather(*map(two_steps, range(20)))
    assert disk.transactions == [20, 20]


async def test_what_is_jotted_down_is_not_waited_for(store: SQLite, disk: Disk) -> None:
    disk.hold()
    await soon(store.create_unsynced(CONFIG_MAP, config("jotted")))
    assert store.busy
    assert await names(store) == []
    await disk.until_busy()
    with pytest.raises(errors.AlreadyExists):
        await store.create_unsynced(CONFIG_MAP, config("jotted"))
    waited = asyncio.create_task(store.create(CONFIG_MAP, config("waited")))
    await settle()
    disk.open.set()
    await waited
    assert await names(store) == ["jotted", "waited"]
    assert not store.busy


async def test_what_was_jotted_down_is_there_after_a_close(tmp_path: Path) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    await store.create_unsynced(CONFIG_MAP, config("a"))
    await store.close()
    again = SQLite(tmp_path, kinds.ALL)
    assert await names(again) == ["a"]
    await again.close()


async def test_a_write_is_visible_only_when_it_is_durable(store: SQLite, disk: Disk) -> None:
    made = await store.create(CONFIG_MAP, config("a", "old"))
    since, heard = store.revision, []

    async def listen() -> None:
        async for event in store.watch(CONFIG_MAP, since=str(since)):
            heard.append(event.type)

    listening = asyncio.create_task(listen())
    disk.hold()
    writes = [
        asyncio.create_task(store.create(CONFIG_MAP, config("b"))),
        asyncio.create_task(store.patch(CONFIG_MAP, "a", {"data": {"v": "new"}}, "default")),
    ]
    await disk.until_busy()
    await settle()
    assert not any(write.done() for write in writes)
    assert await store.get(CONFIG_MAP, "a", "default") == made
    assert await names(store) == ["a"]
    assert (heard, store.revision) == ([], since)
    disk.open.set()
    await asyncio.gather(*writes)
    await settle()
    assert (await store.get(CONFIG_MAP, "a", "default"))["data"] == {"v": "new"}
    assert await names(store) == ["a", "b"]
    assert heard == ["ADDED", "MODIFIED"]
    listening.cancel()


async def test_a_write_builds_on_those_on_their_way(store: SQLite, disk: Disk) -> None:
    made = await store.create(CONFIG_MAP, config("a", "0"))
    disk.hold()
    first = asyncio.create_task(store.replace(CONFIG_MAP, made | {"data": {"v": "1"}}))
    await settle()
    late = asyncio.create_task(store.replace(CONFIG_MAP, made | {"data": {"v": "2"}}))
    patch = asyncio.create_task(store.patch(CONFIG_MAP, "a", {"data": {"w": "3"}}, "default"))
    await settle()
    disk.open.set()
    await first
    with pytest.raises(errors.Conflict):
        await late
    assert (await patch)["data"] == {"v": "1", "w": "3"}


@pytest.mark.parametrize("answer", ["AlreadyExists", "NotFound", "the same", "a dry run"])
async def test_no_answer_stands_on_a_write_that_is_not_safe(store: SQLite, disk: Disk, answer: str) -> None:
    await store.create(CONFIG_MAP, config("there", "0"))
    disk.hold()
    disk.failures.append(sqlite3.OperationalError("disk I/O error"))
    on_its_way = asyncio.create_task(store.commit([
        Create(CONFIG_MAP, config("new", "1")), Delete(CONFIG_MAP, "there", "default"),
    ]))
    await settle()
    asked = asyncio.create_task({
        "AlreadyExists": lambda: store.create(CONFIG_MAP, config("new")),
        "NotFound": lambda: store.patch(CONFIG_MAP, "there", {"data": {}}, "default"),
        "the same": lambda: store.patch(CONFIG_MAP, "new", {"data": {"v": "1"}}, "default"),
        "a dry run": lambda: store.patch(CONFIG_MAP, "new", {"data": {"v": "2"}}, "default", dry_run=True),
    }[answer]())
    await settle()
    assert not asked.done()
    disk.open.set()
    for task in (on_its_way, asked):
        with pytest.raises(errors.Unavailable):
            await task


async def test_a_cancelled_caller_does_not_stop_the_write(store: SQLite, disk: Disk) -> None:
    disk.hold()
    write = asyncio.create_task(store.create(CONFIG_MAP, config("a")))
    await disk.until_busy()
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    disk.open.set()
    await store.create(CONFIG_MAP, config("b"))
    assert await names(store) == ["a", "b"]


async def test_close_waits_for_what_is_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    disk = Disk(store, monkeypatch)
    disk.hold()
    write = asyncio.create_task(store.create(CONFIG_MAP, config("a")))
    await disk.until_busy()
    closing = asyncio.create_task(store.close())
    await settle()
    assert not closing.done()
    with pytest.raises(errors.Unavailable, match="closing"):
        await store.create(CONFIG_MAP, config("late"))
    disk.open.set()
    await closing
    assert (await write)["metadata"]["name"] == "a"
    again = SQLite(tmp_path, kinds.ALL)
    assert await names(again) == ["a"]
    await again.close()


# -- a disk that fails


@pytest.mark.parametrize("failure", [sqlite3.OperationalError("disk I/O error"), ValueError("whatever")], ids=["disk", "bug"])
async def test_a_failing_disk_undoes_everything_on_its_way(
    store: SQLite, disk: Disk, tmp_path: Path, failure: Exception
) -> None:
    made = await store.create(CONFIG_MAP, config("a", "0"))
    since = store.revision
    disk.hold()
    disk.failures.append(failure)
    first = asyncio.create_task(store.replace(CONFIG_MAP, made | {"data": {"v": "lost"}}))
    await disk.until_busy()
    built_on_it = [  # these wait for the next transaction, which would go well
        asyncio.create_task(store.patch(CONFIG_MAP, "a", {"data": {"w": "built on it"}}, "default")),
        asyncio.create_task(store.create(CONFIG_MAP, config("b"))),
    ]
    await settle()
    disk.open.set()
    for write in (first, *built_on_it):
        with pytest.raises(errors.Unavailable, match="was not stored") as caught:
            await write
        assert caught.value.retry_after > 0
    assert await store.get(CONFIG_MAP, "a", "default") == made
    assert await names(store) == ["a"]
    after = await store.patch(CONFIG_MAP, "a", {"data": {"x": "later"}}, "default")
    assert after["data"] == {"v": "0", "x": "later"}
    assert int(after["metadata"]["resourceVersion"]) > since
    await store.close()
    again = SQLite(tmp_path, kinds.ALL)
    assert await again.get(CONFIG_MAP, "a", "default") == after
    assert await names(again) == ["a"]
    await again.close()


async def test_failure_after_failure(store: SQLite, disk: Disk) -> None:
    disk.failures += [sqlite3.OperationalError("database or disk is full")] * 3
    for _ in range(3):
        with pytest.raises(errors.Unavailable, match="full"):
            await store.create(CONFIG_MAP, config("a"))
    await store.create(CONFIG_MAP, config("a"))
    assert await names(store) == ["a"]


async def test_a_watch_outlives_a_failure_and_misses_nothing(store: SQLite, disk: Disk) -> None:
    await store.create(CONFIG_MAP, config("a"))
    stream = store.watch(CONFIG_MAP, since=str(store.revision))
    disk.failures.append(sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(errors.Unavailable):
        await store.create(CONFIG_MAP, config("lost"))
    await store.create(CONFIG_MAP, config("kept"))
    event = await soon(anext(stream))
    assert event.object["metadata"]["name"] == "kept"
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator


async def test_a_transaction_that_fails_half_way_is_rolled_back(store: SQLite) -> None:
    await store.create(CONFIG_MAP, config("a"))
    db = store._disk.connection
    db.execute("create trigger no before insert on objects when new.name = 'bad' begin select raise(abort, 'no'); end")
    with pytest.raises(errors.Unavailable):
        await store.commit([Create(CONFIG_MAP, config("good")), Create(CONFIG_MAP, config("bad"))])
    assert db.execute("select name from objects").fetchall() == [("a",)]
    db.execute("drop trigger no")
    await store.create(CONFIG_MAP, config("good"))
    assert await names(store) == ["a", "good"]


# -- opening again


async def test_reopening_gives_the_same(tmp_path: Path) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    await store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {"x": [1, 2.5, None, "ü"]}})
    for name in ("c", "a", "b", "a-1"):
        await store.create(CONFIG_MAP, config(name, finalizers=["x/y"] if name == "b" else []))
    await store.delete(CONFIG_MAP, "c", "default")
    await store.delete(CONFIG_MAP, "b", "default")
    before = [(await store.list(kind)).items for kind in (CONFIG_MAP, LEDGER_PAGE)]
    await store.close()
    again = SQLite(tmp_path, kinds.ALL)
    assert [(await again.list(kind)).items for kind in (CONFIG_MAP, LEDGER_PAGE)] == before
    assert await names(again) == ["a", "a-1", "b"]
    await again.close()


async def test_one_transaction_with_several_lives_of_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each the last is found again, among more rows than one statement takes."""
    store = SQLite(tmp_path, kinds.ALL)
    disk = Disk(store, monkeypatch)
    disk.hold()
    tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(store.create(CONFIG_MAP, config("first")))]
    await disk.until_busy()
    works: dict[str, Callable[[str], Awaitable[object]]] = {
        "create": lambda name: store.create(CONFIG_MAP, config(name, "created")),
        "change": lambda name: store.patch(CONFIG_MAP, name, {"data": {"v": "changed"}}, "default"),
        "delete": lambda name: store.delete(CONFIG_MAP, name, "default"),
        "again": lambda name: store.create(CONFIG_MAP, config(name, "created again"))}
    lives = {"changed": ("create", "change"), "gone": ("create", "change", "delete"), "back": ("create", "delete", "again")}
    for name, life in {**lives, **{f"other-{number}": ("create",) for number in range(database.ROWS + 3)}}.items():
        for work in life:
            tasks.append(asyncio.ensure_future(works[work](name)))
            await settle(3)
    disk.open.set()
    await asyncio.gather(*tasks)
    assert len(disk.transactions) == 2, "all but the first share one"
    await store.close()
    store = SQLite(tmp_path, kinds.ALL)
    found = {obj["metadata"]["name"]: obj["data"]["v"] for obj in (await store.list(CONFIG_MAP, "default")).items}
    await store.close()
    assert {name: text for name, text in found.items() if not name.startswith("other")} == {
        "first": "", "changed": "changed", "back": "created again"}
    assert len(found) == 3 + database.ROWS + 3


async def test_the_revision_never_goes_back(tmp_path: Path) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    made = await store.create(CONFIG_MAP, config("a"))
    await store.delete(CONFIG_MAP, "a", "default")
    last = store.revision
    await store.close()
    again = SQLite(tmp_path, kinds.ALL)
    assert again.revision == last
    with pytest.raises(errors.Expired):  # what happened before is not known any more
        await soon(anext(again.watch(CONFIG_MAP, since=made["metadata"]["resourceVersion"])))
    new = await again.create(CONFIG_MAP, config("a"))
    assert int(new["metadata"]["resourceVersion"]) > last
    event = await soon(anext(stream := again.watch(CONFIG_MAP, since=str(last))))
    assert event.object == new
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator
    await again.close()


async def test_the_revision_is_that_of_the_last_change(tmp_path: Path) -> None:
    for number in range(2):  # also of a file that is opened again
        store = SQLite(tmp_path, kinds.ALL)
        await store.commit([Create(CONFIG_MAP, config(f"{name}{number}")) for name in "abc"])
        await store.delete(CONFIG_MAP, f"b{number}", "default")
        deleted = store.revision
        await store.close()
        store = SQLite(tmp_path, kinds.ALL)
        assert store.revision == deleted
        await store.patch(CONFIG_MAP, f"a{number}", {"data": {"v": "new"}}, "default")
        await store.close()
        store = SQLite(tmp_path, kinds.ALL)
        assert store.revision == deleted + 1
        await store.close()


async def test_kinds_that_are_not_known_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SQLite(tmp_path, kinds.ALL)
    page = await store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {}})
    await store.close()
    older = SQLite(tmp_path, [CONFIG_MAP])
    assert "ledgerpages.outfitter.dev /n1 is of a kind that this program does not know" in caplog.text
    await older.create(CONFIG_MAP, config("a"))
    await older.close()
    newer = SQLite(tmp_path, kinds.ALL)
    assert await newer.get(LEDGER_PAGE, "n1") == page
    await newer.close()
