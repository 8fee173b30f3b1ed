"""The manners of the store, the same in each home: deleting, patches, dry runs, and several objects at once."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter import errors
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE, RESOURCE_CLAIM, Object
from outfitter.store.base import Check, Create, Delete, PatchType, Propagation, Replace, Write
from tests.store.backends import DEPLOYMENT, FINALIZER, Home, absent, names, revision

# -- deleting


async def test_delete_gives_what_was_there(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", {"k": "v"}))
    gone = await home.store.delete(CONFIG_MAP, "a", home.namespace)
    assert gone["metadata"]["uid"] == made["metadata"]["uid"]
    assert gone["data"] == {"k": "v"}
    assert await absent(home.store, CONFIG_MAP, "a", home.namespace)


async def test_delete_preconditions(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", {"n": "0"}))
    newer = await home.store.patch(CONFIG_MAP, "a", {"data": {"n": "1"}}, home.namespace)
    with pytest.raises(errors.Conflict, match=r"UID in (the )?precondition"):
        await home.store.delete(CONFIG_MAP, "a", home.namespace, uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises(errors.Conflict, match=r"ResourceVersion in (the )?precondition"):
        await home.store.delete(CONFIG_MAP, "a", home.namespace, revision=revision(made))
    await home.store.delete(CONFIG_MAP, "a", home.namespace, uid=made["metadata"]["uid"], revision=revision(newer))
    assert await absent(home.store, CONFIG_MAP, "a", home.namespace)


async def test_finalizers_hold_a_deleted_object(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", finalizers=[FINALIZER, "outfitter.dev/second"]))
    lingering = await home.store.delete(CONFIG_MAP, "a", home.namespace)
    since = lingering["metadata"]["deletionTimestamp"]
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace))["metadata"]["deletionTimestamp"] == since
    again = await home.store.delete(CONFIG_MAP, "a", home.namespace)
    assert again["metadata"]["deletionTimestamp"] == since
    assert revision(again) == revision(lingering)
    with pytest.raises(errors.AlreadyExists):
        await home.store.create(CONFIG_MAP, home.config("a"))
    more = {"metadata": {"finalizers": [FINALIZER, "outfitter.dev/late"]}}
    with pytest.raises(errors.Invalid, match="no new finalizers can be added"):
        await home.store.patch(CONFIG_MAP, "a", more, home.namespace)
    still = await home.store.patch(CONFIG_MAP, "a", {"metadata": {"finalizers": [FINALIZER]}}, home.namespace)
    assert still["metadata"]["deletionTimestamp"] == since
    await home.store.patch(CONFIG_MAP, "a", {"metadata": {"finalizers": None}}, home.namespace)
    assert await absent(home.store, CONFIG_MAP, "a", home.namespace)
    events = await home.events(3, CONFIG_MAP, since=revision(made))
    assert [event.type for event in events] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert events[2].object["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(revision(events[2].object)) > int(revision(still))


async def test_deletion_marks_cannot_be_taken_back(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("a", finalizers=[FINALIZER]))
    lingering = await home.store.delete(CONFIG_MAP, "a", home.namespace)
    change = {"metadata": {"deletionTimestamp": None, "labels": {"x": "y"}}}
    after = await home.store.patch(CONFIG_MAP, "a", change, home.namespace)
    assert after["metadata"]["deletionTimestamp"] == lingering["metadata"]["deletionTimestamp"]


PROPAGATION: dict[str, tuple[Propagation, list[str] | None]] = {
    "Background goes at once": ("Background", None),
    "Foreground waits for the dependents": ("Foreground", ["foregroundDeletion"]),
    "Orphan waits for the dependents to be let go": ("Orphan", ["orphan"]),
}


@pytest.mark.parametrize("case", PROPAGATION)
async def test_propagation(home: Home, case: str) -> None:
    policy, finalizers = PROPAGATION[case]
    await home.store.create(CONFIG_MAP, home.config("a"))
    gone = await home.store.delete(CONFIG_MAP, "a", home.namespace, propagation=policy)
    if finalizers is None:
        assert await absent(home.store, CONFIG_MAP, "a", home.namespace)
        return
    assert gone["metadata"]["finalizers"] == finalizers
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace))["metadata"]["finalizers"] == finalizers
    await home.store.delete(CONFIG_MAP, "a", home.namespace, propagation="Background")  # the last word counts
    assert await absent(home.store, CONFIG_MAP, "a", home.namespace)


async def test_owner_references_are_kept(home: Home) -> None:
    owner = await home.store.create(CONFIG_MAP, home.config("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
                 "controller": True, "blockOwnerDeletion": True}
    await home.store.create(CONFIG_MAP, home.config("a", ownerReferences=[reference]))
    await home.store.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, home.namespace)
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace))["metadata"]["ownerReferences"] == [reference]


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
async def test_patch(home: Home, case: str) -> None:
    how, change, wanted = PATCHES[case]
    made = await home.store.create(CONFIG_MAP, home.config("a", {"a": "1", "b": "1"}))
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            await home.store.patch(CONFIG_MAP, "a", change, home.namespace, how=how)
        assert await home.store.get(CONFIG_MAP, "a", home.namespace) == made
        return
    after = await home.store.patch(CONFIG_MAP, "a", change, home.namespace, how=how)
    assert after["data"] == wanted
    assert await home.store.get(CONFIG_MAP, "a", home.namespace) == after


async def test_a_revision_in_a_patch_is_a_precondition(home: Home) -> None:
    made = await home.store.create(CONFIG_MAP, home.config("a", {"n": "0"}))
    change = {"metadata": {"resourceVersion": revision(made)}, "data": {"n": "1"}}
    await home.store.patch(CONFIG_MAP, "a", change, home.namespace)
    with pytest.raises(errors.Conflict):
        await home.store.patch(CONFIG_MAP, "a", change | {"data": {"n": "2"}}, home.namespace)
    assert (await home.store.get(CONFIG_MAP, "a", home.namespace))["data"] == {"n": "1"}


async def test_our_kinds_take_no_strategic_patch(home: Home) -> None:
    name = home.unique("page")
    await home.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": {"n": 0}})
    with pytest.raises(errors.Unsupported):
        await home.store.patch(LEDGER_PAGE, name, {"spec": {"n": 1}}, how="strategic")


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
async def test_strategic_patches_of_lists(home: Home, case: str) -> None:
    change, wanted = STRATEGIC[case]
    containers = [container("a"), container("b", env=[{"name": "X", "value": "1"}]), container("c")]
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    await home.store.create(DEPLOYMENT, {"metadata": {"name": "web", "namespace": home.namespace}, "spec": spec})
    patch = {"spec": {"template": {"spec": change}}}
    after = await home.store.patch(DEPLOYMENT, "web", patch, home.namespace, how="strategic")
    got = after["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: [f"{entry['name']}={entry['value']}" for entry in one.get("env", [])] for one in got}
    assert list(variables.items()) == list(wanted.items())


# -- dry run


async def test_dry_run_tells_and_does_nothing(home: Home) -> None:
    store, namespace = home.store, home.namespace
    made = await store.create(CONFIG_MAP, home.config("a", {"n": "0"}))
    told = await store.create(CONFIG_MAP, home.config("b"), dry_run=True)
    assert told["metadata"]["uid"]
    assert "resourceVersion" not in told["metadata"]  # it has none
    with pytest.raises(errors.AlreadyExists):
        await store.create(CONFIG_MAP, home.config("a"), dry_run=True)
    replaced = await store.replace(CONFIG_MAP, made | {"data": {"n": "1"}}, dry_run=True)
    assert (replaced["data"], revision(replaced)) == ({"n": "1"}, revision(made))
    patched = await store.patch(CONFIG_MAP, "a", {"data": {"n": "2"}}, namespace, dry_run=True)
    assert (patched["data"], revision(patched)) == ({"n": "2"}, revision(made))
    await store.delete(CONFIG_MAP, "a", namespace, dry_run=True)
    with pytest.raises(errors.Conflict):
        await store.delete(CONFIG_MAP, "a", namespace, revision=str(int(revision(made)) + 9), dry_run=True)
    listing = await store.list(CONFIG_MAP, namespace)
    assert listing.items == [made]
    await store.create(CONFIG_MAP, home.config("c"))
    seen = await home.events(1, CONFIG_MAP, since=revision(made))
    assert [event.object["metadata"]["name"] for event in seen] == ["c"]


# -- several objects at once

ATOMIC = pytest.mark.parametrize("home", ["memory", "sqlite"], indirect=True)  # the homes that can


async def test_commit_writes_all_or_nothing(home: Home) -> None:
    if not home.store.atomic:
        with pytest.raises(errors.MethodNotAllowed, match="one object at a time"):
            await home.store.commit([Create(CONFIG_MAP, home.config("a"))])
        assert await absent(home.store, CONFIG_MAP, "a", home.namespace)
        return
    page = await home.store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {"n": 0}})
    claim = await home.store.create(RESOURCE_CLAIM, home.claim("c"))
    old = await home.store.create(CONFIG_MAP, home.config("old"))
    since = (await home.store.list(CONFIG_MAP, home.namespace)).revision
    writes: list[Write] = [
        Replace(LEDGER_PAGE, page | {"spec": {"n": 1}}),
        Replace(RESOURCE_CLAIM, claim | {"status": {"reservedFor": []}}, "status"),
        Create(CONFIG_MAP, home.config("new")),
        Delete(CONFIG_MAP, "old", home.namespace, revision(old), old["metadata"]["uid"]),
        Check(CONFIG_MAP, "none", home.namespace, ""),
        Check(CONFIG_MAP, "old", home.namespace, ""),
    ]
    stale = [*writes, Check(RESOURCE_CLAIM, "c", home.namespace, revision(claim))]  # the commit itself has changed it
    with pytest.raises(errors.Conflict, match="was expected at revision"):
        await home.store.commit(stale)
    assert names(await home.store.list(CONFIG_MAP, home.namespace)) == ["old"]
    assert (await home.store.get(LEDGER_PAGE, "n1")) == page
    await home.store.commit(writes, dry_run=True)
    assert (await home.store.get(LEDGER_PAGE, "n1")) == page
    done = await home.store.commit(writes)
    assert [one and one["metadata"]["name"] for one in done] == ["n1", "c", "new", None, None, None]
    assert names(await home.store.list(CONFIG_MAP, home.namespace)) == ["new"]
    assert (await home.store.get(LEDGER_PAGE, "n1"))["spec"] == {"n": 1}
    assert [event.type for event in await home.events(2, CONFIG_MAP, since=since)] == ["ADDED", "DELETED"]


@ATOMIC
async def test_a_check_holds_what_was_read(home: Home) -> None:
    page = await home.store.create(LEDGER_PAGE, {"metadata": {"name": "n1"}, "spec": {"n": 0}})
    check = Check(LEDGER_PAGE, "n1", "", revision(page))
    await home.store.commit([check, Create(CONFIG_MAP, home.config("a"))])
    await home.store.patch(LEDGER_PAGE, "n1", {"spec": {"n": 1}})
    with pytest.raises(errors.Conflict):
        await home.store.commit([check, Create(CONFIG_MAP, home.config("b"))])
    with pytest.raises(errors.Conflict, match="expected at revision none"):
        await home.store.commit([Check(LEDGER_PAGE, "n1", "", ""), Create(CONFIG_MAP, home.config("b"))])
    assert names(await home.store.list(CONFIG_MAP, home.namespace)) == ["a"]


@ATOMIC
async def test_writes_of_one_object_in_one_commit_are_one_change(home: Home) -> None:
    """Nobody could see it in between, so nobody is told of it."""
    claim = await home.store.create(RESOURCE_CLAIM, home.claim("c"))
    kept = {**claim, "metadata": {**claim["metadata"], "finalizers": ["example.com/kept"]}}
    unread = {key: value for key, value in kept["metadata"].items() if key != "resourceVersion"}
    status = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}
    *_, last = await home.store.commit([
        Replace(RESOURCE_CLAIM, kept), Create(CONFIG_MAP, home.config("a")),
        Replace(RESOURCE_CLAIM, {**claim, "metadata": unread, "status": status}, "status")])
    await home.store.patch(RESOURCE_CLAIM, "c", {"metadata": {"labels": {"x": "y"}}}, home.namespace)
    first, second = await home.events(2, RESOURCE_CLAIM, since=revision(claim))
    assert first.object == last
    assert (first.object["metadata"]["finalizers"], first.object["status"]) == (["example.com/kept"], status)
    assert second.object["metadata"]["labels"] == {"x": "y"}


@ATOMIC
async def test_writes_of_one_commit_build_on_each_other(home: Home) -> None:
    await home.store.commit([
        Create(CONFIG_MAP, home.config("a", {"n": "0"})),
        Replace(CONFIG_MAP, home.config("a", {"n": "1"})),
        Create(CONFIG_MAP, home.config("b")),
        Delete(CONFIG_MAP, "b", home.namespace),
    ])
    assert [item["data"] for item in (await home.store.list(CONFIG_MAP, home.namespace)).items] == [{"n": "1"}]
    with pytest.raises(errors.AlreadyExists):
        await home.store.commit([Create(CONFIG_MAP, home.config("z")), Create(CONFIG_MAP, home.config("z"))])
    assert await absent(home.store, CONFIG_MAP, "z", home.namespace)
