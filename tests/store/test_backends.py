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
from tests.store.backends import Home, names, revision

# -- one object


async def test_create_gives_an_identity_and_get_the_same_object(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", {"k": "v"}, labels={"app": "web"}))
    assert made["kind"] == "ConfigMap"
    assert made["apiVersion"] == "v1"
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert int(revision(made)) > 0
    assert await home.store.get(CONFIG_MAP, "a", home.namespace) == made


async def test_what_get_gives_is_the_callers_own(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("a", {"k": "v"}))
    (await home.store.get(CONFIG_MAP, "a", home.namespace))["data"]["k"] = "scribbled"
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace))["data"] == {"k": "v"}


async def test_what_is_handed_in_stays_as_it_is(home: Home) -> None:
    given = home.config("a", {"k": "v"})
    before = copy.deepcopy(given)
    await home.store.create(CONFIG_MAP, given)
    assert given == before


async def test_a_name_is_given_once(home: Home) -> None:
    first = await home.store.create(CONFIG_MAP, home.config("a"))
    with pytest.raises(errors.AlreadyExists, match='configmaps "a" already exists'):
        await home.store.create(CONFIG_MAP, home.config("a", {"other": "one"}))
    assert await home.store.get(CONFIG_MAP, "a", home.namespace) == first


async def test_a_deleted_name_comes_back_as_another_object(home: Home) -> None:
    first = await home.store.create(CONFIG_MAP, home.config("a"))
    await home.store.delete(CONFIG_MAP, "a", home.namespace)
    second = await home.store.create(CONFIG_MAP, home.config("a"))
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
async def test_create_refuses(home: Home, case: str) -> None:
    change, error, words = BAD_CREATES[case]
    obj = home.config("a")
    obj["metadata"] = {key: value for key, value in (obj["metadata"] | change).items() if value is not None}
    with pytest.raises(error, match=words):
        await home.store.create(CONFIG_MAP, obj)


async def test_generate_name_adds_five_letters(home: Home) -> None:
    obj = {"metadata": {"generateName": "web-", "namespace": home.namespace}}
    made = [(await home.store.create(CONFIG_MAP, obj))["metadata"]["name"] for _ in range(5)]
    assert len(set(made)) == 5
    assert all(name.startswith("web-") and len(name) == 9 for name in made)


@pytest.mark.parametrize("verb", ["get", "replace", "patch", "delete"])
async def test_what_is_not_there_is_not_found(home: Home, verb: str) -> None:
    calls = {
        "get": lambda: home.store.get(CONFIG_MAP, "a", home.namespace),
        "replace": lambda: home.store.replace(RESOURCE_CLAIM, home.claim("a")),
        "patch": lambda: home.store.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, home.namespace),
        "delete": lambda: home.store.delete(CONFIG_MAP, "a", home.namespace),
    }
    with pytest.raises(errors.NotFound, match='"a" not found'):
        await calls[verb]()


@pytest.mark.parametrize("name", ["", ".", ".."])
@pytest.mark.parametrize("verb", ["get", "patch", "delete"])
async def test_a_name_that_nobody_has_never_means_all(home: Home, verb: str, name: str) -> None:
    await home.store.create(CONFIG_MAP, home.config("a", {"k": "v"}))
    calls = {
        "get": lambda: home.store.get(CONFIG_MAP, name, home.namespace),
        "patch": lambda: home.store.patch(CONFIG_MAP, name, {"data": {"k": "w"}}, home.namespace),
        "delete": lambda: home.store.delete(CONFIG_MAP, name, home.namespace),
    }
    with pytest.raises(errors.NotFound, match=f'"{re.escape(name)}" not found'):
        await calls[verb]()
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace))["data"] == {"k": "v"}


async def test_objects_without_a_namespace(home: Home) -> None:
    page, space = home.unique("page"), home.unique("space")
    made = await home.store.create(LEDGER_PAGE, {"metadata": {"name": page}, "spec": {"host": page, "bookings": []}})
    assert "namespace" not in made["metadata"]
    assert (await home.store.get(LEDGER_PAGE, page))["spec"] == {"host": page, "bookings": []}
    await home.store.delete(LEDGER_PAGE, page)
    await home.store.create(NAMESPACE, {"metadata": {"name": space, "labels": {"team": space}}})
    assert names(await home.store.list(NAMESPACE, labels=f"team={space}")) == [space]


async def test_unknown_fields_survive(home: Home) -> None:
    name = home.unique("page")
    spec = {"bookings": [{"device": "a", "ünïcode": "✓", "deep": {"list": [1, 2.5, None, True, {"x": []}]}}], "big": 2**53}
    await home.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": spec})
    assert (await home.store.get(LEDGER_PAGE, name))["spec"] == spec
    await home.store.delete(LEDGER_PAGE, name)  # other tests on the same cluster read all pages


# -- revisions


async def test_replace_at_the_revision_that_was_read(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", {"n": "0"}))
    made["data"]["n"] = "1"
    after = await home.store.replace(CONFIG_MAP, made)
    assert int(revision(after)) > int(revision(made))
    assert after["metadata"]["uid"] == made["metadata"]["uid"]
    assert after["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
    made["data"]["n"] = "2"
    with pytest.raises(errors.Conflict, match="the object has been modified"):
        await home.store.replace(CONFIG_MAP, made)
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace)) == after


async def test_replace_without_a_revision_wins_where_kubernetes_lets_it(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("a", {"n": "0"}))
    after = await home.store.replace(CONFIG_MAP, home.config("a", {"n": "1"}))
    assert after["data"] == {"n": "1"}


async def test_replace_without_a_revision_is_refused_for_our_kinds(home: Home) -> None:
    name = home.unique("page")
    made = await home.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"n": 0}})
    with pytest.raises(errors.Invalid, match=r"metadata.resourceVersion.*must be specified for an update"):
        await home.store.replace(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"n": 1}})
    after = await home.store.replace(LEDGER_PAGE, made | {"spec": {"n": 1}})
    assert after["spec"] == {"n": 1}
    with pytest.raises(errors.Conflict):
        await home.store.replace(LEDGER_PAGE, made | {"spec": {"n": 2}})


async def test_an_update_that_changes_nothing_keeps_the_revision(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", {"k": "v"}))
    assert revision(await home.store.replace(CONFIG_MAP, made)) == revision(made)
    patched = await home.store.patch(CONFIG_MAP, "a", {"data": {"k": "v", "gone": None}}, home.namespace)
    assert revision(patched) == revision(made)


async def test_one_and_true_differ(home: Home) -> None:
    name = home.unique("page")
    made = await home.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"flag": 1}})
    after = await home.store.patch(LEDGER_PAGE, name, {"spec": {"flag": True}})
    assert after["spec"]["flag"] is True
    assert revision(after) != revision(made)


async def test_replace_of_another_objects_uid_is_a_conflict(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a"))
    other = home.config("a", {"k": "v"}, uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises(errors.Conflict, match=r"UID in (the )?precondition.*" + made["metadata"]["uid"]):
        await home.store.replace(CONFIG_MAP, other)


async def test_what_the_store_gave_cannot_be_changed(home: Home) -> None:
    made = await home.store.create(POD, home.pod("a"))
    change = {"metadata": {"generation": 77, "labels": {"x": "y"}}}
    after = await home.store.patch(POD, "a", change, home.namespace)
    kept = {key: made["metadata"].get(key) for key in ("name", "namespace", "uid", "creationTimestamp", "generation")}
    assert {key: after["metadata"].get(key) for key in kept} == kept
    assert after["metadata"]["labels"] == {"x": "y"}


@pytest.mark.parametrize("kind", [POD, LEDGER_PAGE], ids=lambda kind: kind.kind)
async def test_generation_rises_with_the_spec_alone(home: Home, kind: Kind) -> None:
    name = home.unique("g") if kind is LEDGER_PAGE else "a"
    namespace = home.namespace if kind.namespaced else ""
    obj = home.pod(name) if kind is POD else {"metadata": {"name": name}, "spec": {"n": 0}}
    new_spec = {"activeDeadlineSeconds": 600} if kind is POD else {"n": 1}
    assert (await home.store.create(kind, obj))["metadata"]["generation"] == 1
    labelled = await home.store.patch(kind, name, {"metadata": {"labels": {"a": "b"}}}, namespace)
    assert labelled["metadata"]["generation"] == 1
    if kind.has_status:
        status = await home.store.patch(kind, name, {"status": {"message": "hm"}}, namespace, subresource="status")
        assert status["metadata"]["generation"] == 1
    changed = await home.store.patch(kind, name, {"spec": new_spec}, namespace)
    assert changed["metadata"]["generation"] == 2


async def test_sixteen_writers_count_to_the_exact_sum(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("counter", {"n": "0"}))
    conflicts = 0

    async def add() -> None:
        nonlocal conflicts
        while True:
            seen = await home.store.get(CONFIG_MAP, "counter", home.namespace)
            seen["data"]["n"] = str(int(seen["data"]["n"]) + 1)
            await asyncio.sleep(0)  # let others read the same
            try:
                await home.store.replace(CONFIG_MAP, seen)
            except errors.Conflict:
                conflicts += 1
            else:
                return

    async def writer() -> None:
        for _ in range(10):
            await add()

    await asyncio.gather(*(writer() for _ in range(16)))
    assert (await home.store.get(CONFIG_MAP, "counter", home.namespace))["data"]["n"] == "160"
    assert conflicts  # else nobody was in anybody's way and this proved nothing


# -- status apart from the rest


async def test_status_and_spec_are_written_apart(home: Home) -> None:
    obj = home.claim("a") | {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}}
    made = await home.store.create(RESOURCE_CLAIM, obj)
    assert not made.get("status")  # who creates it does not say what became of it
    allocation = {"devices": {"results": [{"request": "nic", "driver": "pci.outfitter.dev", "pool": "n1", "device": "vf0"}]}}
    full = await home.store.replace(RESOURCE_CLAIM, made | {"status": {"allocation": allocation}}, subresource="status")
    assert full["status"]["allocation"]["devices"]["results"][0]["device"] == "vf0"
    labelled = full | {"status": {}, "metadata": full["metadata"] | {"labels": {"a": "b"}}}
    kept = await home.store.replace(RESOURCE_CLAIM, labelled)
    assert kept["status"] == full["status"]
    assert kept["metadata"]["labels"] == {"a": "b"}
    again = await home.store.patch(
        RESOURCE_CLAIM, "a", {"status": {"allocation": None}, "spec": None}, home.namespace, subresource="status"
    )
    assert again["spec"] == made["spec"]
    assert "allocation" not in again.get("status", {})


async def test_a_kind_without_status_has_none_to_write(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("a"))
    with pytest.raises(errors.NotFound):
        await home.store.patch(CONFIG_MAP, "a", {"status": {"x": "y"}}, home.namespace, subresource="status")


async def test_status_at_a_stale_revision_is_a_conflict(home: Home) -> None:
    made = await home.store.create(POD, home.pod("a"))
    await home.store.patch(POD, "a", {"metadata": {"labels": {"x": "y"}}}, home.namespace)
    with pytest.raises(errors.Conflict):
        await home.store.replace(POD, made | {"status": {"phase": "Running"}}, subresource="status")


def test_every_kind_is_known_by_its_words() -> None:
    for kind in kinds.ALL:
        assert kinds.named(kind.plural) is kind
        assert kinds.of_object({"apiVersion": kind.api_version, "kind": kind.kind}) is kind
