"""Objects without managedFields, as roles read them: nothing else of them is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.validate.shapes import SHAPES
from outfitter.store import kube
from outfitter.store.http import object_decoder
from tests.store.kube.simulated_server import (
    Impatient,
    SimulatedServer,
    access_to,
    answers_with,
    changes,
    event,
    status,
    streams,
)

METADATA: Object = {
    "name": "a", "generateName": "a-", "namespace": "n", "selfLink": "/a", "uid": "u", "resourceVersion": "7", "generation": 2,
    "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3,
    "labels": {"l": "1"}, "annotations": {"managedFields": "[]"}, "finalizers": ["f"],
    "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "ou", "controller": True}]}
MANAGED = [{"manager": "x", "operation": "Update", "fieldsV1": {"f:spec": {'k:{"managedFields":"]}"}': {".": {}}}}}]
READ: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": METADATA, "status": {"managedFields": [1], "deep": None},
                "spec": {"futureField": {"deep": [1, 2.5, "x", {"managedFields": True}]}}}
STORED: Object = {**READ, "metadata": {**METADATA, "managedFields": MANAGED}}


@pytest.fixture
async def role(simulated: SimulatedServer, clock: Impatient, tmp_path: Path) -> AsyncIterator[kube.Kube]:
    store = kube.Kube(access_to(simulated.url, tmp_path), clock=clock, managed_fields=False)
    yield store
    await store.close()


async def test_answers_have_all_but_managed_fields(role: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(200, STORED)]
    assert await role.get(kinds.POD, "a", "n") == READ
    assert await role.create(kinds.POD, READ) == READ
    assert await role.replace(kinds.POD, READ) == READ
    assert await role.patch(kinds.POD, "a", {}, "n") == READ


async def test_watch_events_have_all_but_managed_fields(role: kube.Kube, simulated: SimulatedServer) -> None:
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}
    simulated.answers = [streams(event("ADDED", STORED), event("DELETED", STORED), event("BOOKMARK", bookmark))]
    assert [(each.type, each.object) for each in await changes(role)] == [
        ("ADDED", READ), ("DELETED", READ), ("BOOKMARK", bookmark)]


async def test_other_kinds_and_other_readers_get_them(
    role: kube.Kube, backend: kube.Kube, simulated: SimulatedServer
) -> None:
    with_data = {**STORED, "data": {"a": "b"}}
    simulated.answers = [answers_with(200, with_data)]
    assert await role.get(kinds.CONFIG_MAP, "a", "n") == with_data
    assert await backend.get(kinds.POD, "a", "n") == with_data


async def test_errors_are_read_whole(role: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [streams(event("ERROR", {"kind": "Status", "code": 410, "message": "too old: 1 (9)"}))]
    with pytest.raises(errors.Expired, match="too old"):
        await changes(role)
    simulated.answers = [status(409, "AlreadyExists")]
    with pytest.raises(errors.AlreadyExists, match="the server's words"):
        await role.create(kinds.POD, READ)


@pytest.mark.parametrize("payload", [b"[]", b"<html>", b'{"metadata": ', b'"text"'])
async def test_what_is_no_object(role: kube.Kube, simulated: SimulatedServer, payload: bytes) -> None:
    simulated.answers = [answers_with(200, payload.decode())]
    with pytest.raises(errors.Unavailable, match="not a Kubernetes object"):
        await role.get(kinds.POD, "a", "n")


async def test_metadata_that_is_none_is_for_its_readers_to_see(role: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(200, {"metadata": "x", "spec": {}})]
    assert await role.get(kinds.POD, "a", "n") == {"metadata": "x", "spec": {}}


def test_the_kinds_have_nothing_else_at_their_top() -> None:
    for kind in object_decoder.KINDS:
        assert {name.rstrip("!") for name in SHAPES[kind.kind]} <= {"spec", "status"}, kind.kind
