"""Requests that the Kubernetes backend sends, and how it reads the answers. tests/store has the suite of all backends."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outfitter import errors
from outfitter.api import kinds
from outfitter.store import base, kube
from tests.store.kube.simulated_server import BIG, POD, Answer, SimulatedServer, answers_with, changes, status, streams


def is_a_store(store: kube.Kube) -> base.Store:
    return store  # for the type checker


# What is asked


CALLS: dict[str, tuple[Callable[[base.Store], Awaitable[Any]], str, str, str, Any]] = {
    "get": (lambda s: s.get(kinds.POD, "a", "n"), "GET", "/api/v1/namespaces/n/pods/a", "", None),
    "get of another group": (
        lambda s: s.get(kinds.RESOURCE_CLAIM, "a", "n"), "GET",
        "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/a", "", None),
    "get in no namespace": (lambda s: s.get(kinds.NODE, "a", "ignored"), "GET", "/api/v1/nodes/a", "", None),
    "a name with signs": (lambda s: s.get(kinds.NODE, "a/b?c"), "GET", "/api/v1/nodes/a%2Fb%3Fc", "", None),
    "list": (lambda s: s.list(kinds.POD), "GET", "/api/v1/pods", "", None),
    "list with all": (
        lambda s: s.list(kinds.POD, "n", labels="a in (b,c),d!=e", fields="spec.nodeName=x", limit=5, continue_="t=&"),
        "GET", "/api/v1/namespaces/n/pods",
        "labelSelector=a%20in%20%28b%2Cc%29%2Cd%21%3De&fieldSelector=spec.nodeName%3Dx&limit=5&continue=t%3D%26", None),
    "create": (
        lambda s: s.create(kinds.POD, POD), "POST", "/api/v1/namespaces/n/pods", "",
        {"apiVersion": "v1", "kind": "Pod", **POD}),
    "create, dry": (
        lambda s: s.create(kinds.NODE, {"metadata": {"name": "a"}}, dry_run=True), "POST", "/api/v1/nodes", "dryRun=All",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}),
    "replace": (
        lambda s: s.replace(kinds.POD, POD), "PUT", "/api/v1/namespaces/n/pods/a", "",
        {"apiVersion": "v1", "kind": "Pod", **POD}),
    "replace status": (
        lambda s: s.replace(kinds.POD, POD, subresource="status", dry_run=True), "PUT",
        "/api/v1/namespaces/n/pods/a/status", "dryRun=All", {"apiVersion": "v1", "kind": "Pod", **POD}),
    "patch": (
        lambda s: s.patch(kinds.POD, "a", {"x": None}, "n"), "PATCH", "/api/v1/namespaces/n/pods/a", "", {"x": None}),
    "patch status": (
        lambda s: s.patch(kinds.POD, "a", [], "n", how="json", subresource="status", dry_run=True), "PATCH",
        "/api/v1/namespaces/n/pods/a/status", "dryRun=All", []),
    "delete": (
        lambda s: s.delete(kinds.POD, "a", "n"), "DELETE", "/api/v1/namespaces/n/pods/a", "",
        {"apiVersion": "v1", "kind": "DeleteOptions"}),
    "delete with all": (
        lambda s: s.delete(kinds.POD, "a", "n", uid="u", revision="7", propagation="Orphan", grace=0, dry_run=True),
        "DELETE", "/api/v1/namespaces/n/pods/a", "",
        {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u", "resourceVersion": "7"},
         "propagationPolicy": "Orphan", "gracePeriodSeconds": 0, "dryRun": ["All"]}),
    "watch": (
        changes, "GET", "/api/v1/namespaces/n/pods", "watch=true&resourceVersion=1", None),
    "watch with all": (
        lambda s: changes(s, labels="a", fields="b=c", bookmarks=True), "GET", "/api/v1/namespaces/n/pods",
        "watch=true&resourceVersion=1&labelSelector=a&fieldSelector=b%3Dc&allowWatchBookmarks=true", None),
}


@pytest.mark.parametrize("name", CALLS)
async def test_what_is_asked(backend: kube.Kube, simulated: SimulatedServer, name: str) -> None:
    call, method, path, query, body = CALLS[name]
    simulated.answers = [streams(b"") if name.startswith("watch") else answers_with(200, {"kind": "Thing"})]
    await call(is_a_store(backend))
    request = simulated.seen[-1]
    assert (request.method, request.raw_path) == (method, path + (f"?{query}" if query else ""))
    assert request.headers["User-Agent"] == "outfitter/0.1.0"
    assert request.headers["Accept"] == "application/json"
    assert (json.loads(simulated.bodies[-1]) if simulated.bodies[-1] else None) == body
    known = name == "delete with all"  # by its uid: it need not be read
    assert len(simulated.seen) == (2 if method == "DELETE" and not known else 1)


@pytest.mark.parametrize(("how", "content"), kube.PATCHES.items())
async def test_patch_types(backend: kube.Kube, simulated: SimulatedServer, how: base.PatchType, content: str) -> None:
    simulated.answers = [answers_with(200, {})]
    await backend.patch(kinds.POD, "a", {}, "n", how=how)
    assert simulated.seen[0].headers["Content-Type"] == content


MISSING: dict[str, tuple[Callable[[base.Store], Awaitable[Any]], str]] = {
    "create in no namespace": (lambda s: s.create(kinds.POD, {"metadata": {"name": "a"}}), "metadata.namespace"),
    "get in no namespace": (lambda s: s.get(kinds.POD, "a"), "metadata.namespace"),
    "replace without a name": (lambda s: s.replace(kinds.POD, {"metadata": {"namespace": "n"}}), "metadata.name"),
}


@pytest.mark.parametrize("name", MISSING)
async def test_what_cannot_be_asked(backend: kube.Kube, simulated: SimulatedServer, name: str) -> None:
    call, field = MISSING[name]
    with pytest.raises(errors.Invalid, match=field) as caught:
        await call(backend)
    assert [cause.field for cause in caught.value.causes] == [field]
    assert not simulated.seen


NAMED: dict[str, Callable[[kube.Kube, str], Awaitable[Any]]] = {
    "get": lambda s, name: s.get(kinds.POD, name, "n"),
    "table": lambda s, name: s.table(kinds.POD, "n", name),
    "patch": lambda s, name: s.patch(kinds.POD, name, {}, "n"),
    "act": lambda s, name: s.call_subresource(kinds.POD, name, "eviction", {}, "n"),
    "delete": lambda s, name: s.delete(kinds.POD, name, "n"),
    "delete in no namespace": lambda s, name: s.delete(kinds.NODE, name),
}


@pytest.mark.parametrize("name", ["", ".", ".."])
@pytest.mark.parametrize("verb", NAMED)
async def test_a_name_that_would_lead_to_all_of_a_kind_is_not_sent(
    backend: kube.Kube, simulated: SimulatedServer, verb: str, name: str
) -> None:
    with pytest.raises(errors.NotFound, match="not found"):
        await NAMED[verb](backend, name)
    assert not simulated.seen


# What is answered


async def test_list_items_have_kind_and_version(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(200, {"metadata": {"resourceVersion": "9", "continue": "more", "remainingItemCount": 3},
                                 "items": [POD, {"kind": "Own", "apiVersion": "own/v1"}]}),
                      answers_with(200, {"metadata": {"resourceVersion": "9"}, "items": None})]
    listing = await backend.list(kinds.POD, "n")
    assert listing.items == [{**POD, "apiVersion": "v1", "kind": "Pod"}, {"kind": "Own", "apiVersion": "own/v1"}]
    assert (listing.revision, listing.continue_, listing.remaining) == ("9", "more", 3)
    assert await backend.list(kinds.POD, "n") == base.Listing([], "9")


async def test_delete_shows_what_was_last_seen(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(200, POD), answers_with(200, {"kind": "Status", "status": "Success"})]
    assert await backend.delete(kinds.POD, "a", "n") == POD
    lingering = {**POD, "kind": "Pod"}
    simulated.answers = [answers_with(200, POD), answers_with(200, lingering)]
    assert await backend.delete(kinds.POD, "a", "n") == lingering


@pytest.mark.parametrize(("answer", "error"), [
    (status(400, "BadRequest"), errors.BadRequest),
    (status(401, "Unauthorized"), errors.Unauthorized),
    (status(403, "Forbidden"), errors.Forbidden),
    (status(403, "Forbidden", causes=[{"reason": "NamespaceTerminating"}]), errors.Terminating),
    (status(404, "NotFound"), errors.NotFound),
    (status(405, "MethodNotAllowed"), errors.BadRequest),
    (status(409, "AlreadyExists"), errors.AlreadyExists),
    (status(409, "Conflict"), errors.Conflict),
    (status(410, "Expired"), errors.Expired),
    (status(413, "RequestEntityTooLarge"), errors.TooLarge),
    (status(415, "UnsupportedMediaType"), errors.Unsupported),
    (status(422, "Invalid"), errors.Invalid),
    (status(500, "InternalError"), errors.Unavailable),
    (status(504, "Timeout"), errors.Unavailable),
], ids=lambda value: getattr(value, "__name__", ""))
async def test_errors(
    backend: kube.Kube, simulated: SimulatedServer, answer: Answer, error: type[errors.OutfitterError]
) -> None:
    simulated.answers = [answer]
    with pytest.raises(errors.OutfitterError, match="the server's words") as caught:
        await backend.replace(kinds.POD, POD)
    assert type(caught.value) is error
    assert len(simulated.seen) == 1


async def test_invalid_carries_its_causes(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [status(422, "Invalid", causes=[{"reason": "FieldValueRequired", "message": "m", "field": "spec.x"},
                                                    {"message": "only"}])]
    with pytest.raises(errors.Invalid) as caught:
        await backend.create(kinds.POD, POD)
    assert caught.value.causes == (errors.Cause("spec.x", "m", "FieldValueRequired"), errors.Cause("", "only"))


async def test_who_is_no_kubernetes_is_named(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(502, "<html>Bad gateway</html>")]
    with pytest.raises(errors.Unavailable, match=f"{simulated.url} answered 502: <html>Bad gateway"):
        await backend.get(kinds.POD, "a", "n")
    simulated.answers = [answers_with(200, "<html>Welcome</html>")]
    with pytest.raises(errors.Unavailable, match=r"not a Kubernetes object .*Welcome"):
        await backend.get(kinds.POD, "a", "n")
    simulated.answers = [answers_with(302, "", Location="/login")]
    with pytest.raises(errors.BadRequest, match="answered 302"):
        await backend.get(kinds.POD, "a", "n")
    assert len(simulated.seen) == 3, "a redirect is not followed"


async def test_commit_is_refused(backend: kube.Kube) -> None:
    assert not backend.atomic
    with pytest.raises(errors.MethodNotAllowed, match="cannot write 1 objects in one step"):
        await backend.commit([base.Create(kinds.POD, POD)])


async def test_raw_returns_the_response(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [status(404, "NotFound")]
    code, headers, body = await backend.raw(
        "POST", "/version", query={"limit": 1}, body=b"{}", headers={"Accept": "text/plain", "X-Own": "1"})
    assert (code, json.loads(body)["reason"]) == (404, "NotFound")
    assert headers["content-type"].startswith("text/plain")
    assert simulated.seen[0].raw_path == "/version?limit=1"
    assert (simulated.seen[0].headers["Accept"], simulated.seen[0].headers["X-Own"]) == ("text/plain", "1")
    assert simulated.bodies == [b"{}"]


async def test_a_large_body_arrives_whole_and_again(backend: kube.Kube, simulated: SimulatedServer) -> None:
    simulated.answers = [answers_with(429, "busy"), answers_with(201, POD)]
    await backend.create(kinds.POD, BIG | {"metadata": {"name": "big", "namespace": "n"}})
    assert [len(body) > 3_000_000 for body in simulated.bodies] == [True, True]
    assert simulated.bodies[0] == simulated.bodies[1]
    assert simulated.seen[0].headers["Content-Type"] == "application/json"


# Trying again
