"""The semantics of every backend: delete, patch, dry run, and commits of several objects."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter import errors
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE, RESOURCE_CLAIM, Object
from outfitter.store.base import Check, Create, Delete, PatchType, Propagation, Replace, Write
from tests.store.backends import DEPLOYMENT, FINALIZER, Backend, absent, names, revision

# -- deleting


async def test_delete_gives_what_was_there(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"k": "v"}))
    gone = await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
    assert gone["metadata"]["uid"] == made["metadata"]["uid"]
    assert gone["data"] == {"k": "v"}
    assert await absent(backend.store, CONFIG_MAP, "a", backend.namespace)


async def test_delete_preconditions(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"n": "0"}))
    newer = await backend.store.patch(CONFIG_MAP, "a", {"data": {"n": "1"}}, backend.namespace)
    with pytest.raises(errors.Conflict, match=r"UID in (the )?precondition"):
        await backend.store.delete(CONFIG_MAP, "a", backend.namespace, uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises(errors.Conflict, match=r"ResourceVersion in (the )?precondition"):
        await backend.store.delete(CONFIG_MAP, "a", backend.namespace, revision=revision(made))
    await backend.store.delete(CONFIG_MAP, "a", backend.namespace, uid=made["metadata"]["uid"], revision=revision(newer))
    assert await absent(backend.store, CONFIG_MAP, "a", backend.namespace)


async def test_finalizers_hold_a_deleted_object(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", finalizers=[FINALIZER, "outfitter.dev/second"]))
    lingering = await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
    since = lingering["metadata"]["deletionTimestamp"]
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["metadata"]["deletionTimestamp"] == since
    again = await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
    assert again["metadata"]["deletionTimestamp"] == since
    assert revision(again) == revision(lingering)
    with pytest.raises(errors.AlreadyExists):
        await backend.store.create(CONFIG_MAP, backend.config("a"))
    more = {"metadata": {"finalizers": [FINALIZER, "outfitter.dev/late"]}}
    with pytest.raises(errors.Invalid, match="no new finalizers can be added"):
        await backend.store.patch(CONFIG_MAP, "a", more, backend.namespace)
    still = await backend.store.patch(CONFIG_MAP, "a", {"metadata": {"finalizers": [FINALIZER]}}, backend.namespace)
    assert still["metadata"]["deletionTimestamp"] == since
    await backend.store.patch(CONFIG_MAP, "a", {"metadata": {"finalizers": None}}, backend.namespace)
    assert await absent(backend.store, CONFIG_MAP, "a", backend.namespace)
    events = await backend.events(3, CONFIG_MAP, since=revision(made))
    assert [event.type for event in events] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert events[2].object["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(revision(events[2].object)) > int(revision(still))


async def test_a_deletion_cannot_be_undone(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("a", finalizers=[FINALIZER]))
    lingering = await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
    change = {"metadata": {"deletionTimestamp": None, "labels": {"x": "y"}}}
    after = await backend.store.patch(CONFIG_MAP, "a", change, backend.namespace)
    assert after["metadata"]["deletionTimestamp"] == lingering["metadata"]["deletionTimestamp"]


PROPAGATION: dict[str, tuple[Propagation, list[str] | None]] = {
    "Background goes at once": ("Background", None),
    "Foreground waits for the dependents": ("Foreground", ["foregroundDeletion"]),
    "Orphan waits for the dependents to be let go": ("Orphan", ["orphan"]),
}


@pytest.mark.parametrize("case", PROPAGATION)
async def test_propagation(backend: Backend, case: str) -> None:
    policy, finalizers = PROPAGATION[case]
    await backend.store.create(CONFIG_MAP, backend.config("a"))
    gone = await backend.store.delete(CONFIG_MAP, "a", backend.namespace, propagation=policy)
    if finalizers is None:
        assert await absent(backend.store, CONFIG_MAP, "a", backend.namespace)
        return
    assert gone["metadata"]["finalizers"] == finalizers
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["metadata"]["finalizers"] == finalizers
    await backend.store.delete(CONFIG_MAP, "a", backend.namespace, propagation="Background")  # the last word counts
    assert await absent(backend.store, CONFIG_MAP, "a", backend.namespace)


async def test_owner_references_are_kept(backend: Backend) -> None:
    owner = await backend.store.create(CONFIG_MAP, backend.config("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
                 "controller": True, "blockOwnerDeletion": True}
    await backend.store.create(CONFIG_MAP, backend.config("a", ownerReferences=[reference]))
    await backend.store.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, backend.namespace)
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["metadata"]["ownerReferences"] == [reference]


# -- patches

PATCHES: dict[str, tuple[PatchType, Any, Any]] = {
    "merge sets, changes and removes": ("merge", {"data": {"a": "2", "b": None, "c": "3"}}, {"a": "2", "c": "3"}),
    "json sets, changes and removes": (
        "json",
        [
            {"op": "test", "path": "/data/a", "value": "1"},
            {"op": "replace", "path": "/data/a", "value": "2"},
            {"op": "remove", "path": "/data/b"},
            {"op": "add", "path": "/data/c", "value": "3"},
            {"op": "copy", "from": "/data/c", "path": "/data/d"},
            {"op": "move", "from": "/data/d", "path": "/data/e"},
        ],
        {"a": "2", "c": "3", "e": "3"},
    ),
    "json that fails a test": ("json", [{"op": "test", "path": "/data/a", "value": "9"}], errors.Invalid),
    "json that removes what is not there": ("json", [{"op": "remove", "path": "/data/nope"}], errors.Invalid),
    "json that fails half way writes nothing": (
        "json", [{"op": "remove", "path": "/data/a"}, {"op": "remove", "path": "/data/nope"}], errors.Invalid),
    "json that is no list": ("json", {"op": "add"}, errors.BadRequest),
    "merge that is no object": ("merge", ["a"], errors.BadRequest),
    "strategic sets, changes and removes": ("strategic", {"data": {"a": "2", "b": None, "c": "3"}}, {"a": "2", "c": "3"}),
    "strategic replaces a map": ("strategic", {"data": {"$patch": "replace", "c": "3"}}, {"c": "3"}),
}


@pytest.mark.parametrize("case", PATCHES)
async def test_patch(backend: Backend, case: str) -> None:
    how, change, wanted = PATCHES[case]
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"a": "1", "b": "1"}))
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            await backend.store.patch(CONFIG_MAP, "a", change, backend.namespace, how=how)
        assert await backend.store.get(CONFIG_MAP, "a", backend.namespace) == made
        return
    after = await backend.store.patch(CONFIG_MAP, "a", change, backend.namespace, how=how)
    assert after["data"] == wanted
    assert await backend.store.get(CONFIG_MAP, "a", backend.namespace) == after


async def test_a_revision_in_a_patch_is_a_precondition(backend: Backend) -> None:
    made = await backend.store.create(CONFIG_MAP, backend.config("a", {"n": "0"}))
    change = {"metadata": {"resourceVersion": revision(made)}, "data": {"n": "1"}}
    await backend.store.patch(CONFIG_MAP, "a", change, backend.namespace)
    with pytest.raises(errors.Conflict):
        await backend.store.patch(CONFIG_MAP, "a", change | {"data": {"n": "2"}}, backend.namespace)
    assert (await backend.store.get(CONFIG_MAP, "a", backend.namespace))["data"] == {"n": "1"}


async def test_our_kinds_take_no_strategic_patch(backend: Backend) -> None:
    name = backend.unique("page")
    await backend.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"n": 0}})
    with pytest.raises(errors.Unsupported):
        await backend.store.patch(LEDGER_PAGE, name, {"spec": {"n": 1}}, how="strategic")


def container(name: str, **fields: Any) -> Object:
    return {"name": name, "image": f"example.org/{name}:1", **fields}


# Each takes the containers a, b and c to those named, in this order, with these variables.
STRATEGIC: dict[str, tuple[Object, dict[str, list[str]]]] = {
    "an item is merged by its key": (
        {"containers": [{"name": "b", "env": [{"name": "Y", "value": "2"}]}]}, {"a": [], "b": ["Y=2", "X=1"], "c": []}),
    "a value inside is changed": (
        {"containers": [{"name": "b", "env": [{"name": "X", "value": "9"}]}]}, {"a": [], "b": ["X=9"], "c": []}),
    "an item goes": ({"containers": [{"name": "b", "$patch": "delete"}]}, {"a": [], "c": []}),
    "an item that comes stands first": ({"containers": [container("d")]}, {"d": [], "a": [], "b": ["X=1"], "c": []}),
    "an item comes in its place": (
        {"$setElementOrder/containers": [{"name": "a"}, {"name": "d"}, {"name": "b"}, {"name": "c"}],
         "containers": [container("d")]},
        {"a": [], "d": [], "b": ["X=1"], "c": []}),
    "all are put in order": (
        {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}, {"name": "b"}]}, {"c": [], "a": [], "b": ["X=1"]}),
    "those not named stand before whom they stood before": (
        {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}, {"b": ["X=1"], "c": [], "a": []}),
    "a newcomer that is named comes before those who are not": (
        {"$setElementOrder/containers": [{"name": "d"}], "containers": [container("d")]},
        {"d": [], "a": [], "b": ["X=1"], "c": []}),
    "the list is replaced": ({"containers": [{"$patch": "replace"}, container("z")]}, {"z": []}),
}


@pytest.mark.parametrize("case", STRATEGIC)
async def test_strategic_patches_of_lists(backend: Backend, case: str) -> None:
    change, wanted = STRATEGIC[case]
    containers = [container("a"), container("b", env=[{"name": "X", "value": "1"}]), container("c")]
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    await backend.store.create(DEPLOYMENT, {"metadata": {"name": "web", "namespace": backend.namespace}, "spec": spec})
    patch = {"spec": {"template": {"spec": change}}}
    after = await backend.store.patch(DEPLOYMENT, "web", patch, backend.namespace, how="strategic")
    got = after["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: [f"{entry['name']}={entry['value']}" for entry in one.get("env", [])] for one in got}
    assert list(variables.items()) == list(wanted.items())


# -- dry run


async def test_dry_run_returns_the_object_and_writes_nothing(backend: Backend) -> None:
    store, namespace = backend.store, backend.namespace
    made = await store.create(CONFIG_MAP, backend.config("a", {"n": "0"}))
    answer = await store.create(CONFIG_MAP, backend.config("b"), dry_run=True)
    assert answer["metadata"]["uid"]
    assert "resourceVersion" not in answer["metadata"]  # it has none
    with pytest.raises(errors.AlreadyExists):
        await store.create(CONFIG_MAP, backend.config("a"), dry_run=True)
    replaced = await store.replace(CONFIG_MAP, made | {"data": {"n": "1"}}, dry_run=True)
    assert (replaced["data"], revision(replaced)) == ({"n": "1"}, revision(made))
    patched = await store.patch(CONFIG_MAP, "a", {"data": {"n": "2"}}, namespace, dry_run=True)
    assert (patched["data"], revision(patched)) == ({"n": "2"}, revision(made))
    await store.delete(CONFIG_MAP, "a", namespace, dry_run=True)
    with pytest.raises(errors.Conflict):
        await store.delete(CONFIG_MAP, "a", namespace, revision=str(int(revision(made)) + 9), dry_run=True)
    listing = await store.list(CONFIG_MAP, namespace)
    assert listing.items == [made]
    await store.create(CONFIG_MAP, backend.config("c"))
    seen = await backend.events(1, CONFIG_MAP, since=revision(made))
    assert [event.object["metadata"]["name"] for event in seen] == ["c"]


# -- several objects at once

ATOMIC = pytest.mark.parametrize("backend", ["memory", "sqlite"], indirect=True)  # the backends that support commit


async def test_commit_writes_all_or_nothing(backend: Backend) -> None:
    if not backend.store.atomic:
        with pytest.raises(errors.MethodNotAllowed, match="one object at a time"):
            await backend.store.commit([Create(CONFIG_MAP, backend.config("a"))])
        assert await absent(backend.store, CONFIG_MAP, "a", backend.namespace)
        return
    page = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {"n": 0}})
    claim = await backend.store.create(RESOURCE_CLAIM, backend.claim("c"))
    old = await backend.store.create(CONFIG_MAP, backend.config("old"))
    since = (await backend.store.list(CONFIG_MAP, backend.namespace)).revision
    writes: list[Write] = [
        Replace(LEDGER_PAGE, page | {"spec": {"n": 1}}),
        Replace(RESOURCE_CLAIM, claim | {"status": {"reservedFor": []}}, "status"),
        Create(CONFIG_MAP, backend.config("new")),
        Delete(CONFIG_MAP, "old", backend.namespace, revision(old), old["metadata"]["uid"]),
        Check(CONFIG_MAP, "none", backend.namespace, ""),
        Check(CONFIG_MAP, "old", backend.namespace, ""),
    ]
    stale = [*writes, Check(RESOURCE_CLAIM, "c", backend.namespace, revision(claim))]  # the commit itself has changed it
    with pytest.raises(errors.Conflict, match="was expected at revision"):
        await backend.store.commit(stale)
    assert names(await backend.store.list(CONFIG_MAP, backend.namespace)) == ["old"]
    assert (await backend.store.get(LEDGER_PAGE, "n1")) == page
    await backend.store.commit(writes, dry_run=True)
    assert (await backend.store.get(LEDGER_PAGE, "n1")) == page
    done = await backend.store.commit(writes)
    assert [one and one["metadata"]["name"] for one in done] == ["n1", "c", "new", None, None, None]
    assert names(await backend.store.list(CONFIG_MAP, backend.namespace)) == ["new"]
    assert (await backend.store.get(LEDGER_PAGE, "n1"))["spec"] == {"n": 1}
    assert [event.type for event in await backend.events(2, CONFIG_MAP, since=since)] == ["ADDED", "DELETED"]


@ATOMIC
async def test_a_check_holds_what_was_read(backend: Backend) -> None:
    page = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {"n": 0}})
    check = Check(LEDGER_PAGE, "n1", "", revision(page))
    await backend.store.commit([check, Create(CONFIG_MAP, backend.config("a"))])
    await backend.store.patch(LEDGER_PAGE, "n1", {"spec": {"n": 1}})
    with pytest.raises(errors.Conflict):
        await backend.store.commit([check, Create(CONFIG_MAP, backend.config("b"))])
    with pytest.raises(errors.Conflict, match="expected at revision none"):
        await backend.store.commit([Check(LEDGER_PAGE, "n1", "", ""), Create(CONFIG_MAP, backend.config("b"))])
    assert names(await backend.store.list(CONFIG_MAP, backend.namespace)) == ["a"]


@ATOMIC
async def test_writes_of_one_object_in_one_commit_are_one_change(backend: Backend) -> None:
    """No reader can see the state in between, so there is one event."""
    claim = await backend.store.create(RESOURCE_CLAIM, backend.claim("c"))
    kept = {**claim, "metadata": {**claim["metadata"], "finalizers": ["example.com/kept"]}}
    unread = {key: value for key, value in kept["metadata"].items() if key != "resourceVersion"}
    status = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}
    *_, last = await backend.store.commit([
        Replace(RESOURCE_CLAIM, kept), Create(CONFIG_MAP, backend.config("a")),
        Replace(RESOURCE_CLAIM, {**claim, "metadata": unread, "status": status}, "status")])
    await backend.store.patch(RESOURCE_CLAIM, "c", {"metadata": {"labels": {"x": "y"}}}, backend.namespace)
    first, second = await backend.events(2, RESOURCE_CLAIM, since=revision(claim))
    assert first.object == last
    assert (first.object["metadata"]["finalizers"], first.object["status"]) == (["example.com/kept"], status)
    assert second.object["metadata"]["labels"] == {"x": "y"}


@ATOMIC
async def test_an_object_that_a_commit_changes_and_deletes_has_one_event(backend: Backend) -> None:
    claim = await backend.store.create(RESOURCE_CLAIM, {**backend.claim("c"), "metadata": {
        **backend.claim("c")["metadata"], "finalizers": ["example.com/kept"]}})
    bare = {key: value for key, value in claim["metadata"].items() if key != "finalizers"}
    await backend.store.commit([Replace(RESOURCE_CLAIM, {**claim, "metadata": bare}),
                                Delete(RESOURCE_CLAIM, "c", backend.namespace)])
    await backend.store.create(RESOURCE_CLAIM, backend.claim("d"))
    events = await backend.events(2, RESOURCE_CLAIM, since=revision(claim))
    assert [(event.type, event.object["metadata"]["name"]) for event in events] == [("DELETED", "c"), ("ADDED", "d")]


@ATOMIC
async def test_the_second_write_of_an_object_in_a_commit_needs_no_revision(backend: Backend) -> None:
    """Of a kind that cannot be replaced without one."""
    page = await backend.store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {}})
    unread = {"metadata": {"name": "n1", "labels": {"second": "yes"}}, "spec": {}}
    with pytest.raises(errors.Invalid):
        await backend.store.commit([Replace(LEDGER_PAGE, unread)])
    first = {**page, "metadata": {**page["metadata"], "labels": {"first": "yes"}}}
    await backend.store.commit([Replace(LEDGER_PAGE, first), Replace(LEDGER_PAGE, unread)])
    assert (await backend.store.get(LEDGER_PAGE, "n1"))["metadata"]["labels"] == {"second": "yes"}


@ATOMIC
async def test_writes_of_one_commit_build_on_each_other(backend: Backend) -> None:
    await backend.store.commit([
        Create(CONFIG_MAP, backend.config("a", {"n": "0"})),
        Replace(CONFIG_MAP, backend.config("a", {"n": "1"})),
        Create(CONFIG_MAP, backend.config("b")),
        Delete(CONFIG_MAP, "b", backend.namespace),
    ])
    assert [item["data"] for item in (await backend.store.list(CONFIG_MAP, backend.namespace)).items] == [{"n": "1"}]
    with pytest.raises(errors.AlreadyExists):
        await backend.store.commit([Create(CONFIG_MAP, backend.config("z")), Create(CONFIG_MAP, backend.config("z"))])
    assert await absent(backend.store, CONFIG_MAP, "z", backend.namespace)
