"""The manners of the store, the same in memory, on SQLite and on a Kubernetes API server."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP, LEDGER_PAGE, NAMESPACE, POD, RESOURCE_CLAIM, Kind, Object
from outfitter.store.base import Check, Create, Delete, Listing, PatchType, Propagation, Replace, Store, Write
from tests.store.homes import Home, settle

FINALIZER = "outfitter.dev/test"
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")


def revision(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def names(listing: Listing) -> list[str]:
    return [item["metadata"]["name"] for item in listing.items]


async def absent(store: Store, kind: Kind, name: str, namespace: str = "") -> bool:
    try:
        await store.get(kind, name, namespace)
    except errors.NotFound:
        return True
    return False


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


async def test_objects_without_a_namespace(home: Home) -> None:
    page, space = home.unique("page"), home.unique("space")
    made = await home.store.create(LEDGER_PAGE, {"metadata": {"name": page}, "spec": {"bookings": [1]}})
    assert "namespace" not in made["metadata"]
    assert (await home.store.get(LEDGER_PAGE, page))["spec"] == {"bookings": [1]}
    await home.store.create(NAMESPACE, {"metadata": {"name": space, "labels": {"team": space}}})
    assert names(await home.store.list(NAMESPACE, labels=f"team={space}")) == [space]


async def test_unknown_fields_survive(home: Home) -> None:
    name = home.unique("page")
    spec = {"bookings": [{"device": "a", "ünïcode": "✓", "deep": {"list": [1, 2.5, None, True, {"x": []}]}}], "big": 2**53}
    await home.store.create(LEDGER_PAGE, {"metadata": {"name": name}, "spec": spec})
    assert (await home.store.get(LEDGER_PAGE, name))["spec"] == spec


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


# -- lists


async def test_list_is_in_order_and_knows_its_revision(home: Home) -> None:
    for name in ("b", "a-2", "a", "c.d", "a.1"):
        await home.store.create(CONFIG_MAP, home.config(name))
    listing = await home.store.list(CONFIG_MAP, home.namespace)
    assert names(listing) == ["a", "a-2", "a.1", "b", "c.d"]
    assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for item in listing.items)
    assert int(listing.revision) >= max(int(revision(item)) for item in listing.items)
    assert listing.items[0] == await home.store.get(CONFIG_MAP, "a", home.namespace)


async def test_list_of_nothing(home: Home) -> None:
    listing = await home.store.list(CONFIG_MAP, home.namespace)
    assert (listing.items, listing.continue_) == ([], "")
    assert listing.revision.isdigit()


async def test_list_over_all_namespaces(home: Home) -> None:
    other = home.unique("other")
    await home.store.create(NAMESPACE, {"metadata": {"name": other}})
    labels = {"suite": home.namespace}
    await home.store.create(CONFIG_MAP, home.config("z", labels=labels))
    await home.store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": other, "labels": labels}})
    listing = await home.store.list(CONFIG_MAP, labels=f"suite={home.namespace}")
    assert sorted(names(listing)) == ["a", "z"]
    spaces = [item["metadata"]["namespace"] for item in listing.items]
    assert spaces == sorted(spaces)
    assert names(await home.store.list(CONFIG_MAP, other, labels=f"suite={home.namespace}")) == ["a"]


LABELS = {
    "app=web": ["both", "web"],
    "app==web,tier!=db": ["web"],
    "app in (web, mail)": ["both", "mail", "web"],
    "app notin (web)": ["mail", "none"],
    "app": ["both", "mail", "web"],
    "!app": ["none"],
    "tier=db": ["both"],
    "app=nobody": [],
}


@pytest.mark.parametrize("selector", LABELS)
async def test_label_selectors(home: Home, selector: str) -> None:
    for name, labels in {
        "web": {"app": "web"}, "mail": {"app": "mail"}, "both": {"app": "web", "tier": "db"}, "none": {}
    }.items():
        await home.store.create(CONFIG_MAP, home.config(name, labels=labels))
    assert names(await home.store.list(CONFIG_MAP, home.namespace, labels=selector)) == LABELS[selector]


FIELDS = {
    "spec.nodeName=n1": ["a", "b"],
    "spec.nodeName!=n1": ["c"],
    "spec.nodeName=": ["c"],
    "metadata.name=b": ["b"],
    "spec.nodeName=n1,metadata.name!=a": ["b"],
    "status.phase=Running": ["b"],
}


@pytest.mark.parametrize("selector", FIELDS)
async def test_field_selectors(home: Home, selector: str) -> None:
    for name, node in {"a": "n1", "b": "n1", "c": ""}.items():
        await home.store.create(POD, home.pod(name, node=node))
    await home.store.patch(POD, "b", {"status": {"phase": "Running"}}, home.namespace, subresource="status")
    assert names(await home.store.list(POD, home.namespace, fields=selector)) == FIELDS[selector]


@pytest.mark.parametrize("bad", [{"labels": "app=(web"}, {"labels": "a==b==c"}, {"fields": "spec.image=x"}, {"fields": "x"}])
async def test_selectors_that_cannot_be_read(home: Home, bad: dict[str, str]) -> None:
    with pytest.raises(errors.BadRequest):
        await home.store.list(POD, home.namespace, **bad)  # type: ignore[arg-type]  # labels or fields


async def test_pages_of_one_list_agree_while_others_write(home: Home) -> None:
    for name in "abcdef":
        await home.store.create(CONFIG_MAP, home.config(name, {"n": "0"}))
    first = await home.store.list(CONFIG_MAP, home.namespace, limit=2)
    assert names(first) == ["a", "b"]
    assert first.remaining in (4, None)
    await home.store.create(CONFIG_MAP, home.config("cc"))
    await home.store.patch(CONFIG_MAP, "d", {"data": {"n": "1"}}, home.namespace)
    await home.store.delete(CONFIG_MAP, "e", home.namespace)
    await home.store.delete(CONFIG_MAP, "c", home.namespace)
    await home.store.create(CONFIG_MAP, home.config("c", {"n": "another"}))
    second = await home.store.list(CONFIG_MAP, home.namespace, limit=2, continue_=first.continue_)
    await home.store.delete(CONFIG_MAP, "f", home.namespace)
    third = await home.store.list(CONFIG_MAP, home.namespace, limit=2, continue_=second.continue_)
    assert (names(second), names(third), third.continue_) == (["c", "d"], ["e", "f"], "")
    assert [item["data"]["n"] for item in second.items + third.items] == ["0"] * 4
    assert first.revision == second.revision == third.revision
    assert names(await home.store.list(CONFIG_MAP, home.namespace)) == ["a", "b", "c", "cc", "d"]
    missed = await home.events(6, CONFIG_MAP, since=third.revision)
    assert [event.type for event in missed] == ["ADDED", "MODIFIED", "DELETED", "DELETED", "ADDED", "DELETED"]


async def test_pages_with_a_selector(home: Home) -> None:
    for number in range(7):
        await home.store.create(CONFIG_MAP, home.config(f"m{number}", labels={"odd": str(number % 2)}))
    found: list[str] = []
    continue_, pages = "", 0
    while True:
        part = await home.store.list(CONFIG_MAP, home.namespace, labels="odd=0", limit=3, continue_=continue_)
        found, continue_, pages = found + names(part), part.continue_, pages + 1
        if not continue_:
            break
    assert (found, pages) == (["m0", "m2", "m4", "m6"], 2)


@pytest.mark.parametrize("token", ["nonsense", "AAAA", "e30=", "W10="])
async def test_a_token_that_no_list_gave(home: Home, token: str) -> None:
    with pytest.raises(errors.BadRequest, match="continue key is not valid"):
        await home.store.list(CONFIG_MAP, home.namespace, limit=1, continue_=token)


# -- watches


async def test_watch_sees_everything_after_a_revision_in_order(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("before"))
    since = (await home.store.list(CONFIG_MAP, home.namespace)).revision
    wanted = []
    for number in range(8):
        name = f"m{number % 3}"
        if number < 3:
            obj = await home.store.create(CONFIG_MAP, home.config(name, {"n": str(number)}))
        else:
            obj = await home.store.patch(CONFIG_MAP, name, {"data": {"n": str(number)}}, home.namespace)
        wanted.append(("ADDED" if number < 3 else "MODIFIED", obj))
    last = await home.store.delete(CONFIG_MAP, "m1", home.namespace)
    got = await home.events(9, CONFIG_MAP, since=since)
    assert [(event.type, event.object) for event in got[:8]] == wanted
    assert (got[8].type, got[8].object["metadata"]["uid"]) == ("DELETED", last["metadata"]["uid"])
    revisions = [int(revision(event.object)) for event in got]
    assert revisions == sorted(set(revisions))
    half = await home.events(5, CONFIG_MAP, since=revision(got[3].object))
    assert half == got[4:]


async def test_watch_hears_what_comes_later(home: Home) -> None:
    since = (await home.store.list(CONFIG_MAP, home.namespace)).revision
    listening = asyncio.create_task(home.events(2, CONFIG_MAP, since=since))
    await settle()
    for name in ("a", "b"):
        await home.store.create(CONFIG_MAP, home.config(name))
    assert [event.object["metadata"]["name"] for event in await listening] == ["a", "b"]


async def test_watch_of_a_namespace_and_of_all(home: Home) -> None:
    other = home.unique("other")
    await home.store.create(NAMESPACE, {"metadata": {"name": other}})
    since = (await home.store.list(CONFIG_MAP, home.namespace)).revision
    labels = {"suite": home.namespace}
    await home.store.create(CONFIG_MAP, {"metadata": {"name": "there", "namespace": other, "labels": labels}})
    await home.store.create(CONFIG_MAP, home.config("here", labels=labels))
    here = await home.events(1, CONFIG_MAP, since=since)
    assert [event.object["metadata"]["name"] for event in here] == ["here"]
    both = await home.events(2, CONFIG_MAP, since=since, labels=f"suite={home.namespace}", everywhere=True)
    assert [event.object["metadata"]["name"] for event in both] == ["there", "here"]


async def test_watch_sees_objects_enter_and_leave_a_label(home: Home) -> None:
    since = (await home.store.list(CONFIG_MAP, home.namespace)).revision

    async def label(value: str | None) -> Object:
        return await home.store.patch(CONFIG_MAP, "a", {"metadata": {"labels": {"app": value}}}, home.namespace)

    await home.store.create(CONFIG_MAP, home.config("a"))
    entered = await label("web")
    changed = await home.store.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, home.namespace)
    left = await label(None)
    await home.store.patch(CONFIG_MAP, "a", {"data": {"k": "w"}}, home.namespace)
    back = await label("web")
    await home.store.delete(CONFIG_MAP, "a", home.namespace)
    got = await home.events(5, CONFIG_MAP, since=since, labels="app=web")
    assert [event.type for event in got] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert [got[0].object, got[1].object, got[3].object] == [entered, changed, back]
    assert got[2].object["metadata"]["labels"] == {"app": "web"}  # as it was when it still matched
    assert revision(got[2].object) == revision(left)


async def test_watch_sees_pods_enter_and_leave_a_field(home: Home) -> None:
    since = (await home.store.list(POD, home.namespace)).revision
    await home.store.create(POD, home.pod("elsewhere", node="n2"))
    await home.store.create(POD, home.pod("a", node="n1"))
    for phase in ("Running", "Succeeded"):
        await home.store.patch(POD, "a", {"status": {"phase": phase}}, home.namespace, subresource="status")
    running = await home.events(2, POD, since=since, fields="spec.nodeName=n1,status.phase=Running")
    assert [event.type for event in running] == ["ADDED", "DELETED"]
    bound = await home.events(3, POD, since=since, fields="spec.nodeName=n1")
    assert [event.type for event in bound] == ["ADDED", "MODIFIED", "MODIFIED"]


async def test_watch_from_long_ago_misses_nothing_or_says_so(home: Home) -> None:
    await home.store.create(CONFIG_MAP, home.config("a"))
    await home.store.create(CONFIG_MAP, home.config("b"))
    try:
        seen = await home.events(1, CONFIG_MAP, since="1", fields="metadata.name=b")
    except errors.Expired:
        return
    assert [event.type for event in seen] == ["ADDED"]


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
        with pytest.raises(errors.Refused, match="one object at a time"):
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


def test_every_kind_is_known_by_its_words() -> None:
    for kind in kinds.ALL:
        assert kinds.named(kind.plural) is kind
        assert kinds.of_object({"apiVersion": kind.api_version, "kind": kind.kind}) is kind
