"""The manners of the store, the same in memory, on SQLite and on a Kubernetes API server: one object, its revisions and its
status."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE, NAMESPACE, POD, RESOURCE_CLAIM, Kind
from tests.store.backends import Backend, names, revision

# -- one object


async def test_create_gives_an_identity_and_get_the_same_object(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"k": "v"}, labels={"app": "web"}))
    assert made["kind"] == "ConfigMap"
    assert made["apiVersion"] == "v1"
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert int(revision(made)) > 0
    assert await backend.store.get(CONFIG_MAP, "a", backend.namespace) == made


async def test_get_returns_a_copy(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("a", {"k": "v"}))
    (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["data"]["k"] = "scribbled"
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["data"] == {"k": "v"}


async def test_argument_is_not_changed(backend: Backend) -> None:
    given = backend.config("a", {"k": "v"})
    before = copy.deepcopy(given)
    await backend.store.create(CONFIG_MAP, given)
    assert given == before


async def test_name_is_unique(backend: Backend) -> None:
    first = await backend.store.create(CONFIG_MAP, backend.config("a"))
    with pytest.raises(errors.AlreadyExists, match='configmaps "a" already exists'):
        await backend.store.create(CONFIG_MAP, backend.config("a", {"other": "one"}))
    assert await backend.store.get(CONFIG_MAP, "a", backend.namespace) == first


async def test_deleted_name_can_be_created_with_another_uid(backend: Backend) -> None:
    first = await backend.store.create(CONFIG_MAP, backend.config("a"))
    await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
    second = await backend.store.create(CONFIG_MAP, backend.config("a"))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert int(revision(second)) > int(revision(first))


Errors = type[errors.OutfitterError] | tuple[type[errors.OutfitterError], ...]
BAD_CREATES: dict[str, tuple[dict[str, Any], Errors, str]] = {
    "no name": ({"name": None}, errors.Invalid, "name or generateName is required"),
    # An API server answers 500 to this one.
    "a resourceVersion": ({"resourceVersion": "5"}, (errors.BadRequest, errors.Unavailable), "should not be set"),
    "no namespace": ({"namespace": None}, errors.Invalid, "metadata.namespace"),
}


@pytest.mark.parametrize("case", BAD_CREATES)
async def test_create_refuses(backend: Backend, case: str) -> None:
    change, error, words = BAD_CREATES[case]
    obj = backend.config("a")
    obj["metadata"] = {key: value for key, value in (obj["metadata"] | change).items() if value is not None}
    with pytest.raises(error, match=words):
        await backend.store.create(CONFIG_MAP, obj)


async def test_generate_name_adds_five_letters(backend: Backend) -> None:
    obj = {"metadata": {"generateName": "web-", "namespace": backend.namespace}}
    made = [(await backend.store.create(CONFIG_MAP, obj))["metadata"]["name"] for _ in range(5)]
    assert len(set(made)) == 5
    assert all(name.startswith("web-") and len(name) == 9 for name in made)


@pytest.mark.parametrize("verb", ["get", "replace", "patch", "delete"])
async def test_what_is_not_there_is_not_found(backend: Backend, verb: str) -> None:
    calls = {
        "get": lambda: backend.store.get(CONFIG_MAP, "a", backend.namespace),
        "replace": lambda: backend.store.replace(RESOURCE_CLAIM, backend.claim("a")),
        "patch": lambda: backend.store.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, backend.namespace),
        "delete": lambda: backend.store.delete(CONFIG_MAP, "a", backend.namespace),
    }
    with pytest.raises(errors.NotFound, match='"a" not found'):
        await calls[verb]()


@pytest.mark.parametrize("name", ["", ".", ".."])
@pytest.mark.parametrize("verb", ["get", "patch", "delete"])
async def test_a_name_that_cannot_exist_never_means_all(backend: Backend, verb: str, name: str) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("a", {"k": "v"}))
    calls = {
        "get": lambda: backend.store.get(CONFIG_MAP, name, backend.namespace),
        "patch": lambda: backend.store.patch(CONFIG_MAP, name, {"data": {"k": "w"}}, backend.namespace),
        "delete": lambda: backend.store.delete(CONFIG_MAP, name, backend.namespace),
    }
    with pytest.raises(errors.NotFound, match=f'"{re.escape(name)}" not found'):
        await calls[verb]()
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["data"] == {"k": "v"}


async def test_objects_without_a_namespace(backend: Backend) -> None:
    page, space = backend.unique("page"), backend.unique("space")
    made = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": page}, "spec": {"host": page, "bookings": []}})
    assert "namespace" not in made["metadata"]
    assert (await backend.store.get(LEDGER_PAGE, page))["spec"] == {"host": page, "bookings": []}
    await backend.store.delete(LEDGER_PAGE, page)
    await backend.store.create(NAMESPACE, {"metadata": {"name": space, "labels": {"team": space}}})
    assert names(await backend.store.list(NAMESPACE, labels=f"team={space}")) == [space]


async def test_unknown_fields_survive(backend: Backend) -> None:
    name = backend.unique("page")
    spec = {"bookings": [{"device": "a", "ünïcode": "✓", "deep": {"list": [1, 2.5, None, True, {"x": []}]}}], "big": 2**53}
    await backend.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": spec})
    assert (await backend.store.get(LEDGER_PAGE, name))["spec"] == spec
    await backend.store.delete(LEDGER_PAGE, name)  # other tests on the same cluster read all pages


# -- revisions


async def test_replace_at_the_revision_that_was_read(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"n": "0"}))
    made["data"]["n"] = "1"
    after = await backend.store.replace(CONFIG_MAP, made)
    assert int(revision(after)) > int(revision(made))
    assert after["metadata"]["uid"] == made["metadata"]["uid"]
    assert after["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    made["data"]["n"] = "2"
    with pytest.raises(errors.Conflict, match="the object has been modified"):
        await backend.store.replace(CONFIG_MAP, made)
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace)) == after


async def test_replace_without_a_revision_wins_where_kubernetes_lets_it(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("a", {"n": "0"}))
    after = await backend.store.replace(CONFIG_MAP, backend.config("a", {"n": "1"}))
    assert after["data"] == {"n": "1"}


async def test_replace_without_a_revision_is_refused_for_our_kinds(backend: Backend) -> None:
    name = backend.unique("page")
    made = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"n": 0}})
    with pytest.raises(errors.Invalid, match=r"metadata.resourceVersion.*must be specified for an update"):
        await backend.store.replace(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"n": 1}})
    after = await backend.store.replace(LEDGER_PAGE, made | {"spec": {"n": 1}})
    assert after["spec"] == {"n": 1}
    with pytest.raises(errors.Conflict):
        await backend.store.replace(LEDGER_PAGE, made | {"spec": {"n": 2}})


async def test_an_update_that_changes_nothing_keeps_the_revision(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"k": "v"}))
    assert revision(await backend.store.replace(CONFIG_MAP, made)) == revision(made)
    patched = await backend.store.patch(CONFIG_MAP, "a", {"data": {"k": "v", "gone": None}}, backend.namespace)
    assert revision(patched) == revision(made)


async def test_one_and_true_differ(backend: Backend) -> None:
    name = backend.unique("page")
    made = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"flag": 1}})
    after = await backend.store.patch(LEDGER_PAGE, name, {"spec": {"flag": True}})
    assert after["spec"]["flag"] is True
    assert revision(after) != revision(made)


async def test_replace_of_another_objects_uid_is_a_conflict(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a"))
    other = backend.config("a", {"k": "v"}, uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises(errors.Conflict, match=r"UID in (the )?precondition.*" + made["metadata"]["uid"]):
        await backend.store.replace(CONFIG_MAP, other)


async def test_what_the_store_gave_cannot_be_changed(backend: Backend) -> None:
    made = await backend.store.create(POD, backend.pod("a"))
    change = {"metadata": {"generation": 77, "labels": {"x": "y"}}}
    after = await backend.store.patch(POD, "a", change, backend.namespace)
    kept = {key: made["metadata"].get(key) for key in ("name", "namespace", "uid", "creationTimestamp", "generation")}
    assert {key: after["metadata"].get(key) for key in kept} == kept
    assert after["metadata"]["labels"] == {"x": "y"}


@pytest.mark.parametrize("kind", [POD, LEDGER_PAGE], ids=lambda kind: kind.kind)
async def test_generation_rises_with_the_spec_alone(backend: Backend, kind: Kind) -> None:
    name = backend.unique("g") if kind is LEDGER_PAGE else "a"
    namespace = backend.namespace if kind.namespaced else ""
    obj = backend.pod(name) if kind is POD else {"metadata": {"name": name}, "spec": {"n": 0}}
    new_spec = {"activeDeadlineSeconds": 600} if kind is POD else {"n": 1}
    assert (await backend.store.create(kind, obj))["metadata"]["generation"] == 1
    labelled = await backend.store.patch(kind, name, {"metadata": {"labels": {"a": "b"}}}, namespace)
    assert labelled["metadata"]["generation"] == 1
    if kind.has_status:
        status = await backend.store.patch(kind, name, {"status": {"message": "hm"}}, namespace, subresource="status")
        assert status["metadata"]["generation"] == 1
    changed = await backend.store.patch(kind, name, {"spec": new_spec}, namespace)
    assert changed["metadata"]["generation"] == 2


async def test_sixteen_writers_count_to_the_exact_sum(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("counter", {"n": "0"}))
    conflicts = 0

    async def add() -> None:
        nonlocal conflicts
        while True:
            seen = await backend.store.get(CONFIG_MAP, "counter", backend.namespace)
            seen["data"]["n"] = str(int(seen["data"]["n"]) + 1)
            await asyncio.sleep(0)  # let others read the same
            try:
                await backend.store.replace(CONFIG_MAP, seen)
            except errors.Conflict:
                conflicts += 1
            else:
                return

    async def writer() -> None:
        for _ in range(10):
            await add()

    await asyncio.gather(*(writer() for _ in range(16)))
    assert (await backend.store.get(CONFIG_MAP, "counter", backend.namespace))["data"]["n"] == "160"
    assert conflicts  # otherwise there was no contention and this proved nothing


# -- status apart from the rest


async def test_status_and_spec_are_written_apart(backend: Backend) -> None:
    obj = backend.claim("a") | {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}}
    made = await backend.store.create(RESOURCE_CLAIM, obj)
    assert not made.get("status")  # who creates it does not say what became of it
    allocation = {"devices": {"results": [{"request": "nic", "driver": "pci.outfitter.dev", "pool": "n1", "device": "vf0"}]}}
    full = await backend.store.replace(RESOURCE_CLAIM, made | {"status": {"allocation": allocation}}, subresource="status")
    assert full["status"]["allocation"]["devices"]["results"][0]["device"] == "vf0"
    labelled = full | {"status": {}, "metadata": full["metadata"] | {"labels": {"a": "b"}}}
    kept = await backend.store.replace(RESOURCE_CLAIM, labelled)
    assert kept["status"] == full["status"]
    assert kept["metadata"]["labels"] == {"a": "b"}
    again = await backend.store.patch(
        RESOURCE_CLAIM, "a", {"status": {"allocation": None}, "spec": None}, backend.namespace, subresource="status"
    )
    assert again["spec"] == made["spec"]
    assert "allocation" not in again.get("status", {})


async def test_a_kind_without_status_has_none_to_write(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("a"))
    with pytest.raises(errors.NotFound):
        await backend.store.patch(CONFIG_MAP, "a", {"status": {"x": "y"}}, backend.namespace, subresource="status")


async def test_status_at_a_stale_revision_is_a_conflict(backend: Backend) -> None:
    made = await backend.store.create(POD, backend.pod("a"))
    await backend.store.patch(POD, "a", {"metadata": {"labels": {"x": "y"}}}, backend.namespace)
    with pytest.raises(errors.Conflict):
        await backend.store.replace(POD, made | {"status": {"phase": "Running"}}, subresource="status")


def test_every_kind_has_its_short_names() -> None:
    for kind in kinds.ALL:
        assert kinds.named(kind.plural) is kind
        assert kinds.of_object({"apiVersion": kind.api_version, "kind": kind.kind}) is kind
