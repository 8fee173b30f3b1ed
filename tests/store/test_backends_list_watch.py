"""The manners of the store, the same in each backend: lists and watches."""

from __future__ import annotations

import asyncio

import pytest

from outfitter import errors
from outfitter.api.kinds import CONFIG_MAP, NAMESPACE, POD, Object
from tests.store.backends import Backend, names, revision, settle

# -- lists


async def test_list_is_in_order_and_knows_its_revision(backend: Backend) -> None:
    for name in ("b", "a-2", "a", "c.d", "a.1"):
        await backend.store.create(CONFIG_MAP, backend.config(name))
    listing = await backend.store.list(CONFIG_MAP, backend.namespace)
    assert names(listing) == ["a", "a-2", "a.1", "b", "c.d"]
    assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for item in listing.items)
    assert int(listing.revision) >= max(int(revision(item)) for item in listing.items)
    assert listing.items[0] == await backend.store.get(CONFIG_MAP, "a", backend.namespace)


async def test_list_of_nothing(backend: Backend) -> None:
    listing = await backend.store.list(CONFIG_MAP, backend.namespace)
    assert (listing.items, listing.continue_) == ([], "")
    assert listing.revision.isdigit()


async def test_list_in_all_namespaces(backend: Backend) -> None:
    other = backend.unique("other")
    await backend.store.create(NAMESPACE, {"metadata": {"name": other}})
    labels = {"suite": backend.namespace}
    await backend.store.create(CONFIG_MAP, backend.config("z", labels=labels))
    await backend.store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": other, "labels": labels}})
    listing = await backend.store.list(CONFIG_MAP, labels=f"suite={backend.namespace}")
    assert sorted(names(listing)) == ["a", "z"]
    spaces = [item["metadata"]["namespace"] for item in listing.items]
    assert spaces == sorted(spaces)
    assert names(await backend.store.list(CONFIG_MAP, other, labels=f"suite={backend.namespace}")) == ["a"]


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
async def test_label_selectors(backend: Backend, selector: str) -> None:
    for name, labels in {
        "web": {"app": "web"}, "mail": {"app": "mail"}, "both": {"app": "web", "tier": "db"}, "none": {}
    }.items():
        await backend.store.create(CONFIG_MAP, backend.config(name, labels=labels))
    assert names(await backend.store.list(CONFIG_MAP, backend.namespace, labels=selector)) == LABELS[selector]


FIELDS = {
    "spec.nodeName=n1": ["a", "b"],
    "spec.nodeName!=n1": ["c"],
    "spec.nodeName=": ["c"],
    "metadata.name=b": ["b"],
    "spec.nodeName=n1,metadata.name!=a": ["b"],
    "status.phase=Running": ["b"],
}


@pytest.mark.parametrize("selector", FIELDS)
async def test_field_selectors(backend: Backend, selector: str) -> None:
    for name, node in {"a": "n1", "b": "n1", "c": ""}.items():
        await backend.store.create(POD, backend.pod(name, node=node))
    await backend.store.patch(POD, "b", {"status": {"phase": "Running"}}, backend.namespace, subresource="status")
    assert names(await backend.store.list(POD, backend.namespace, fields=selector)) == FIELDS[selector]


@pytest.mark.parametrize("bad", [{"labels": "app=(web"}, {"labels": "a==b==c"}, {"fields": "spec.image=x"}, {"fields": "x"}])
async def test_selectors_that_cannot_be_read(backend: Backend, bad: dict[str, str]) -> None:
    with pytest.raises(errors.BadRequest):
        await backend.store.list(POD, backend.namespace, **bad)  # type: ignore[arg-type]  # labels or fields


async def test_pages_of_one_list_agree_while_others_write(backend: Backend) -> None:
    for name in "abcdef":
        await backend.store.create(CONFIG_MAP, backend.config(name, {"n": "0"}))
    first = await backend.store.list(CONFIG_MAP, backend.namespace, limit=2)
    assert names(first) == ["a", "b"]
    assert first.remaining in (4, None)
    await backend.store.create(CONFIG_MAP, backend.config("cc"))
    await backend.store.patch(CONFIG_MAP, "d", {"data": {"n": "1"}}, backend.namespace)
    await backend.store.delete(CONFIG_MAP, "e", backend.namespace)
    await backend.store.delete(CONFIG_MAP, "c", backend.namespace)
    await backend.store.create(CONFIG_MAP, backend.config("c", {"n": "another"}))
    second = await backend.store.list(CONFIG_MAP, backend.namespace, limit=2, continue_=first.continue_)
    await backend.store.delete(CONFIG_MAP, "f", backend.namespace)
    third = await backend.store.list(CONFIG_MAP, backend.namespace, limit=2, continue_=second.continue_)
    assert (names(second), names(third), third.continue_) == (["c", "d"], ["e", "f"], "")
    assert [item["data"]["n"] for item in second.items + third.items] == ["0"] * 4
    assert first.revision == second.revision == third.revision
    assert names(await backend.store.list(CONFIG_MAP, backend.namespace)) == ["a", "b", "c", "cc", "d"]
    missed = await backend.events(6, CONFIG_MAP, since=third.revision)
    assert [event.type for event in missed] == ["ADDED", "MODIFIED", "DELETED", "DELETED", "ADDED", "DELETED"]


async def test_pages_with_a_selector(backend: Backend) -> None:
    for number in range(7):
        await backend.store.create(CONFIG_MAP, backend.config(f"m{number}", labels={"odd": str(number % 2)}))
    found: list[str] = []
    continue_, pages = "", 0
    while True:
        part = await backend.store.list(CONFIG_MAP, backend.namespace, labels="odd=0", limit=3, continue_=continue_)
        found, continue_, pages = found + names(part), part.continue_, pages + 1
        if not continue_:
            break
    assert (found, pages) == (["m0", "m2", "m4", "m6"], 2)


@pytest.mark.parametrize("token", ["nonsense", "AAAA", "e30=", "W10="])
async def test_a_token_that_no_list_gave(backend: Backend, token: str) -> None:
    with pytest.raises(errors.BadRequest, match="continue key is not valid"):
        await backend.store.list(CONFIG_MAP, backend.namespace, limit=1, continue_=token)


# -- watches


async def test_watch_sees_everything_after_a_revision_in_order(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("before"))
    since = (await backend.store.list(CONFIG_MAP, backend.namespace)).revision
    wanted = []
    for number in range(8):
        name = f"m{number % 3}"
        if number < 3:
            obj = await backend.store.create(CONFIG_MAP, backend.config(name, {"n": str(number)}))
        else:
            obj = await backend.store.patch(CONFIG_MAP, name, {"data": {"n": str(number)}}, backend.namespace)
        wanted.append(("ADDED" if number < 3 else "MODIFIED", obj))
    last = await backend.store.delete(CONFIG_MAP, "m1", backend.namespace)
    got = await backend.events(9, CONFIG_MAP, since=since)
    assert [(event.type, event.object) for event in got[:8]] == wanted
    assert (got[8].type, got[8].object["metadata"]["uid"]) == ("DELETED", last["metadata"]["uid"])
    revisions = [int(revision(event.object)) for event in got]
    assert revisions == sorted(set(revisions))
    half = await backend.events(5, CONFIG_MAP, since=revision(got[3].object))
    assert half == got[4:]


async def test_watch_hears_what_comes_later(backend: Backend) -> None:
    since = (await backend.store.list(CONFIG_MAP, backend.namespace)).revision
    listening = asyncio.create_task(backend.events(2, CONFIG_MAP, since=since))
    await settle()
    for name in ("a", "b"):
        await backend.store.create(CONFIG_MAP, backend.config(name))
    assert [event.object["metadata"]["name"] for event in await listening] == ["a", "b"]


async def test_watch_of_a_namespace_and_of_all(backend: Backend) -> None:
    other = backend.unique("other")
    await backend.store.create(NAMESPACE, {"metadata": {"name": other}})
    since = (await backend.store.list(CONFIG_MAP, backend.namespace)).revision
    labels = {"suite": backend.namespace}
    await backend.store.create(CONFIG_MAP, {"metadata": {"name": "there", "namespace": other, "labels": labels}})
    await backend.store.create(CONFIG_MAP, backend.config("here", labels=labels))
    here = await backend.events(1, CONFIG_MAP, since=since)
    assert [event.object["metadata"]["name"] for event in here] == ["here"]
    both = await backend.events(2, CONFIG_MAP, since=since, labels=f"suite={backend.namespace}", everywhere=True)
    assert [event.object["metadata"]["name"] for event in both] == ["there", "here"]


async def test_watch_sees_objects_enter_and_leave_a_label(backend: Backend) -> None:
    since = (await backend.store.list(CONFIG_MAP, backend.namespace)).revision

    async def label(value: str | None) -> Object:
        return await backend.store.patch(CONFIG_MAP, "a", {"metadata": {"labels": {"app": value}}}, backend.namespace)

    await backend.store.create(CONFIG_MAP, backend.config("a"))
    entered = await label("web")
    changed = await backend.store.patch(CONFIG_MAP, "a", {"data": {"k": "v"}}, backend.namespace)
    left = await label(None)
    await backend.store.patch(CONFIG_MAP, "a", {"data": {"k": "w"}}, backend.namespace)
    back = await label("web")
    await backend.store.delete(CONFIG_MAP, "a", backend.namespace)
    got = await backend.events(5, CONFIG_MAP, since=since, labels="app=web")
    assert [event.type for event in got] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    assert [got[0].object, got[1].object, got[3].object] == [entered, changed, back]
    assert got[2].object["metadata"]["labels"] == {"app": "web"}  # as it was when it still matched
    assert revision(got[2].object) == revision(left)


async def test_watch_sees_pods_enter_and_leave_a_field(backend: Backend) -> None:
    since = (await backend.store.list(POD, backend.namespace)).revision
    await backend.store.create(POD, backend.pod("elsewhere", node="n2"))
    await backend.store.create(POD, backend.pod("a", node="n1"))
    for phase in ("Running", "Succeeded"):
        await backend.store.patch(POD, "a", {"status": {"phase": phase}}, backend.namespace, subresource="status")
    running = await backend.events(2, POD, since=since, fields="spec.nodeName=n1,status.phase=Running")
    assert [event.type for event in running] == ["ADDED", "DELETED"]
    bound = await backend.events(3, POD, since=since, fields="spec.nodeName=n1")
    assert [event.type for event in bound] == ["ADDED", "MODIFIED", "MODIFIED"]


async def test_watch_from_an_old_revision_is_complete_or_expired(backend: Backend) -> None:
    await backend.store.create(CONFIG_MAP, backend.config("a"))
    await backend.store.create(CONFIG_MAP, backend.config("b"))
    try:
        seen = await backend.events(1, CONFIG_MAP, since="1", fields="metadata.name=b")
    except errors.Expired:
        return
    assert [event.type for event in seen] == ["ADDED"]
