"""Events: a repeated event increments the count, a different one is another object, and recording never raises."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outfitter import errors
from outfitter.api.kinds import CONFIG_MAP, EVENT, LEDGER_PAGE, Kind, Object
from outfitter.store.clock import ManualClock
from outfitter.store.events import event_correlator
from outfitter.store.events.event_recorder import EventRecorder
from outfitter.store.memory import Memory
from tests.store.backends import Backend


@pytest.fixture
def recorder(memory: Memory, clock: ManualClock) -> EventRecorder:
    return EventRecorder(memory, EVENT, "outfitter-test", clock=clock)


async def about(store: Memory, name: str = "a") -> Object:
    return await store.create(CONFIG_MAP, {"metadata": {"name": name, "namespace": "here"}})


async def recorded(store: Memory) -> list[Object]:
    return (await store.list(EVENT)).items


async def test_event_names_object_and_reason(memory: Memory, recorder: EventRecorder) -> None:
    obj = await about(memory)
    await recorder.warning(obj, "Waiting", "no card is free")
    event, = await recorded(memory)
    assert event["metadata"]["namespace"] == "here"
    assert event["metadata"]["name"].startswith("a.")
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "a", "namespace": "here", "uid": obj["metadata"]["uid"],
        "resourceVersion": obj["metadata"]["resourceVersion"],
    }
    said = {key: event[key] for key in ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp")}
    assert said == {"type": "Warning", "reason": "Waiting", "message": "no card is free", "count": 1,
                    "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"}
    assert event["source"] == {"component": "outfitter-test"}


async def test_repeated_event_is_counted(memory: Memory, recorder: EventRecorder, clock: ManualClock) -> None:
    obj = await about(memory)
    for _ in range(3):
        await recorder.normal(obj, "Booked", "vf0")
        clock.advance(10)
    event, = await recorded(memory)
    assert event["count"] == 3
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:20Z")


OTHER_NEWS: dict[str, tuple[str, str, str, str]] = {
    "another type": ("warning", "a", "Booked", "vf0"),
    "another reason": ("normal", "a", "Released", "vf0"),
    "another message": ("normal", "a", "Booked", "vf1"),
    "another object": ("normal", "b", "Booked", "vf0"),
}


@pytest.mark.parametrize("case", OTHER_NEWS)
async def test_different_message_is_another_event(memory: Memory, recorder: EventRecorder, case: str) -> None:
    type_, name, reason, message = OTHER_NEWS[case]
    objects = {letter: await about(memory, letter) for letter in "ab"}
    await recorder.normal(objects["a"], "Booked", "vf0")
    await getattr(recorder, type_)(objects[name], reason, message)
    assert [event["count"] for event in await recorded(memory)] == [1, 1]


async def test_deleted_event_is_recreated(memory: Memory, recorder: EventRecorder) -> None:
    obj = await about(memory)
    await recorder.normal(obj, "Booked", "vf0")
    await recorder.normal(obj, "Booked", "vf0")
    old, = await recorded(memory)
    await memory.delete(EVENT, old["metadata"]["name"], "here")
    await recorder.normal(obj, "Booked", "vf0")
    await recorder.normal(obj, "Booked", "vf0")
    new, = await recorded(memory)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["count"] == 2


async def test_event_of_a_cluster_scoped_object_is_in_default(memory: Memory, recorder: EventRecorder) -> None:
    page = await memory.create(LEDGER_PAGE, {"metadata": {"name": "n" * 250}})
    await recorder.normal(page, "Healed", "x" * 5000)
    event, = await recorded(memory)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    assert len(event["metadata"]["name"]) <= 253
    assert len(event["message"]) == 1024


async def test_recording_never_fails_the_work(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Memory):
        async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
            raise errors.Forbidden("not here")

        async def patch(self, *args: Any, **kwargs: Any) -> Object:
            raise errors.Unavailable("no")

    recorder = EventRecorder(Failing(), EVENT, "outfitter-test", clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await recorder.normal({"metadata": {"name": "a"}}, "Booked", "vf0")
    assert caplog.text.count("event Booked on a was not recorded: not here") == 2


@pytest.mark.parametrize("error", [errors.Terminating("going"), errors.NotFound("gone")], ids=["going", "gone"])
async def test_events_of_a_terminating_namespace_are_dropped(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, error: errors.OutfitterError
) -> None:
    class Going(Memory):
        async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
            raise error

    with caplog.at_level(logging.INFO):
        await EventRecorder(Going(), EVENT, "outfitter-test", clock=clock).normal({"metadata": {"name": "a"}}, "Booked", "vf0")
    assert not caplog.text


async def test_on_every_backend(backend: Backend) -> None:
    recorder = EventRecorder(backend.store, EVENT, "outfitter-test", clock=ManualClock())
    obj = await backend.store.create(CONFIG_MAP, backend.config("a"))
    for _ in range(2):
        await recorder.warning(obj, "Waiting", "no card is free")
    page = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": backend.unique("page")}})
    await recorder.normal(page, "Healed", "all is well")
    await backend.store.create(CONFIG_MAP, backend.config("b"))  # a durable write makes earlier unsynced ones durable
    events = (await backend.store.list(EVENT, backend.namespace, fields=f"involvedObject.uid={obj['metadata']['uid']}")).items
    assert [(event["reason"], event["count"]) for event in events] == [("Waiting", 2)]
    fields = f"involvedObject.name={page['metadata']['name']},reason=Healed"
    assert len((await backend.store.list(EVENT, "default", fields=fields)).items) == 1


async def test_old_events_are_forgotten(memory: Memory, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_correlator, "MAX_REMEMBERED", 2)
    objects = [await about(memory, letter) for letter in "abc"]
    for obj in [*objects, objects[0], objects[2]]:
        await recorder.normal(obj, "Booked", "vf0")
    counts = [(event["involvedObject"]["name"], event["count"]) for event in await recorded(memory)]
    assert sorted(counts) == [("a", 1), ("a", 1), ("b", 1), ("c", 2)]


async def test_similar_events_are_combined(memory: Memory, recorder: EventRecorder, clock: ManualClock) -> None:
    obj = await about(memory)
    for number in range(12):
        await recorder.warning(obj, "Waiting", f"attempt {number}")
    combined = [event for event in await recorded(memory) if event["message"].startswith("(combined from similar events): ")]
    assert len(await recorded(memory)) == 10
    assert [(event["message"], event["count"]) for event in combined] == [("(combined from similar events): attempt 11", 3)]
    await recorder.warning(obj, "Waiting", "attempt 3")
    assert len(await recorded(memory)) == 10
    clock.advance(3000)  # the messages of ten minutes count
    await recorder.warning(obj, "Waiting", "attempt 12")
    assert [event["count"] for event in await recorded(memory) if event["message"] == "attempt 12"] == [1]


async def test_events_about_one_object_are_limited(memory: Memory, recorder: EventRecorder, clock: ManualClock) -> None:
    noisy, quiet = await about(memory, "a"), await about(memory, "b")

    async def written(obj: Object) -> int:
        uid = obj["metadata"]["uid"]
        return sum(event["count"] for event in await recorded(memory) if event["involvedObject"]["uid"] == uid)

    for number in range(40):
        await recorder.normal(noisy, f"Reason{number}", "text")
    assert await written(noisy) == 25
    await recorder.normal(quiet, "Booked", "vf0")
    assert await written(quiet) == 1
    clock.advance(301)
    for number in range(40, 42):
        await recorder.normal(noisy, f"Reason{number}", "text")
    assert await written(noisy) == 26


async def test_a_count_includes_events_that_were_not_written(
    memory: Memory, recorder: EventRecorder, clock: ManualClock
) -> None:
    obj = await about(memory)
    for _ in range(40):
        await recorder.normal(obj, "Booked", "vf0")
    clock.advance(301)
    await recorder.normal(obj, "Booked", "vf0")
    event, = await recorded(memory)
    assert event["count"] == 41
