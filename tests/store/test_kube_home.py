"""The Kubernetes home. What a real server does not do on demand (break off, refuse, stutter) is played by a small one;
the rest is tried against a real one. The suite that all homes share is elsewhere."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from outfitter import errors
from outfitter.api import kinds
from outfitter.store import base, kube, kubeconfig, pki
from outfitter.store.access import Access
from outfitter.store.clock import ManualClock, SystemClock
from tests import kubernetes

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
POD = {"metadata": {"name": "a", "namespace": "n"}, "spec": {"futureField": {"deep": [1]}}}
BIG = {"metadata": {"name": "big"}, "data": "x" * 3_000_000}


class Impatient(ManualClock):
    """Sleeps no real time, and remembers how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)


class Played:
    """A server that gives the answers it was told, one after another (the last one again and again)."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        runner = web.AppRunner(web.Application(client_max_size=1 << 30), handle_signals=False, shutdown_timeout=0.1)
        runner.app.router.add_route("*", "/{path:.*}", self.handle)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


def says(status: int, body: Any, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return web.Response(status=status, text=text, headers=named)

    return answer


def status(code: int, reason: str, message: str = "the server's words", **details: Any) -> Answer:
    return says(code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message,
                       "details": details})


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def streams(*parts: bytes, cut: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def event(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


@pytest.fixture
def clock() -> Impatient:
    return Impatient()


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    server = Played()
    async with server.serving():
        yield server


def access_to(server: str, tmp_path: Path, user: dict[str, Any] | None = None) -> Access:
    content = pki.kubeconfig(server)
    content["users"][0]["user"] = user or {}
    (tmp_path / "config").write_text(json.dumps(content))
    return kubeconfig.load(tmp_path / "config", clock=ManualClock(), env={})


@pytest.fixture
async def home(played: Played, clock: Impatient, tmp_path: Path) -> AsyncIterator[kube.Kube]:
    store = kube.Kube(access_to(played.url, tmp_path), clock=clock)
    yield store
    await store.close()


async def changes(store: base.Store, **kwargs: Any) -> list[base.Event]:
    return [change async for change in store.watch(kinds.POD, "n", since="1", **kwargs)]


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
async def test_what_is_asked(home: kube.Kube, played: Played, name: str) -> None:
    call, method, path, query, body = CALLS[name]
    played.answers = [streams(b"") if name.startswith("watch") else says(200, {"kind": "Thing"})]
    await call(is_a_store(home))
    request = played.seen[-1]
    assert (request.method, request.raw_path) == (method, path + (f"?{query}" if query else ""))
    assert request.headers["User-Agent"] == "outfitter/0.1.0"
    assert request.headers["Accept"] == "application/json"
    assert (json.loads(played.bodies[-1]) if played.bodies[-1] else None) == body
    assert len(played.seen) == (2 if method == "DELETE" else 1)


@pytest.mark.parametrize(("how", "content"), kube.PATCHES.items())
async def test_patch_types(home: kube.Kube, played: Played, how: base.PatchType, content: str) -> None:
    played.answers = [says(200, {})]
    await home.patch(kinds.POD, "a", {}, "n", how=how)
    assert played.seen[0].headers["Content-Type"] == content


MISSING: dict[str, tuple[Callable[[base.Store], Awaitable[Any]], str]] = {
    "create in no namespace": (lambda s: s.create(kinds.POD, {"metadata": {"name": "a"}}), "metadata.namespace"),
    "get in no namespace": (lambda s: s.get(kinds.POD, "a"), "metadata.namespace"),
    "replace without a name": (lambda s: s.replace(kinds.POD, {"metadata": {"namespace": "n"}}), "metadata.name"),
}


@pytest.mark.parametrize("name", MISSING)
async def test_what_cannot_be_asked(home: kube.Kube, played: Played, name: str) -> None:
    call, field = MISSING[name]
    with pytest.raises(errors.Invalid, match=field) as caught:
        await call(home)
    assert [cause.field for cause in caught.value.causes] == [field]
    assert not played.seen


# What is answered


async def test_list_items_say_what_they_are(home: kube.Kube, played: Played) -> None:
    played.answers = [says(200, {"metadata": {"resourceVersion": "9", "continue": "more", "remainingItemCount": 3},
                                 "items": [POD, {"kind": "Own", "apiVersion": "own/v1"}]}),
                      says(200, {"metadata": {"resourceVersion": "9"}, "items": None})]
    listing = await home.list(kinds.POD, "n")
    assert listing.items == [{**POD, "apiVersion": "v1", "kind": "Pod"}, {"kind": "Own", "apiVersion": "own/v1"}]
    assert (listing.revision, listing.continue_, listing.remaining) == ("9", "more", 3)
    assert await home.list(kinds.POD, "n") == base.Listing([], "9")


async def test_delete_shows_what_was_last_seen(home: kube.Kube, played: Played) -> None:
    played.answers = [says(200, POD), says(200, {"kind": "Status", "status": "Success"})]
    assert await home.delete(kinds.POD, "a", "n") == POD
    lingering = {**POD, "kind": "Pod"}
    played.answers = [says(200, POD), says(200, lingering)]
    assert await home.delete(kinds.POD, "a", "n") == lingering


@pytest.mark.parametrize(("answer", "error"), [
    (status(400, "BadRequest"), errors.BadRequest),
    (status(401, "Unauthorized"), errors.Unauthorized),
    (status(403, "Forbidden"), errors.Forbidden),
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
async def test_errors(home: kube.Kube, played: Played, answer: Answer, error: type[errors.OutfitterError]) -> None:
    played.answers = [answer]
    with pytest.raises(errors.OutfitterError, match="the server's words") as caught:
        await home.replace(kinds.POD, POD)
    assert type(caught.value) is error
    assert len(played.seen) == 1


async def test_invalid_carries_its_causes(home: kube.Kube, played: Played) -> None:
    played.answers = [status(422, "Invalid", causes=[{"reason": "FieldValueRequired", "message": "m", "field": "spec.x"},
                                                    {"message": "only"}])]
    with pytest.raises(errors.Invalid) as caught:
        await home.create(kinds.POD, POD)
    assert caught.value.causes == (errors.Cause("spec.x", "m", "FieldValueRequired"), errors.Cause("", "only"))


async def test_who_is_no_kubernetes_is_named(home: kube.Kube, played: Played) -> None:
    played.answers = [says(502, "<html>Bad gateway</html>")]
    with pytest.raises(errors.Unavailable, match=f"{played.url} answered 502: <html>Bad gateway"):
        await home.get(kinds.POD, "a", "n")
    played.answers = [says(200, "<html>Welcome</html>")]
    with pytest.raises(errors.Unavailable, match=r"not a Kubernetes object .*Welcome"):
        await home.get(kinds.POD, "a", "n")
    played.answers = [says(302, "", Location="/login")]
    with pytest.raises(errors.BadRequest, match="answered 302"):
        await home.get(kinds.POD, "a", "n")
    assert len(played.seen) == 3, "a redirect is not followed"


async def test_commit_is_refused(home: kube.Kube) -> None:
    assert not home.atomic
    with pytest.raises(errors.Refused, match="cannot write 1 objects in one step"):
        await home.commit([base.Create(kinds.POD, POD)])


async def test_raw_gives_whatever_is_answered(home: kube.Kube, played: Played) -> None:
    played.answers = [status(404, "NotFound")]
    code, headers, body = await home.raw(
        "POST", "/version", query={"limit": 1}, body=b"{}", headers={"Accept": "text/plain", "X-Own": "1"})
    assert (code, json.loads(body)["reason"]) == (404, "NotFound")
    assert headers["content-type"].startswith("text/plain")
    assert played.seen[0].raw_path == "/version?limit=1"
    assert (played.seen[0].headers["Accept"], played.seen[0].headers["X-Own"]) == ("text/plain", "1")
    assert played.bodies == [b"{}"]


async def test_a_large_body_arrives_whole_and_again(home: kube.Kube, played: Played) -> None:
    played.answers = [says(429, "busy"), says(201, POD)]
    await home.create(kinds.POD, BIG | {"metadata": {"name": "big", "namespace": "n"}})
    assert [len(body) > 3_000_000 for body in played.bodies] == [True, True]
    assert played.bodies[0] == played.bodies[1]
    assert played.seen[0].headers["Content-Type"] == "application/json"


# Trying again


async def test_a_read_that_is_cut_off_is_tried_again(home: kube.Kube, played: Played, clock: Impatient) -> None:
    played.answers = [hang_up, hang_up, says(200, POD)]
    assert await home.get(kinds.POD, "a", "n") == POD
    assert clock.slept == [0.1, 0.4]


async def test_a_read_whose_answer_is_cut_off_is_tried_again(home: kube.Kube, played: Played) -> None:
    played.answers = [streams(b'{"half":', cut=True), says(200, POD)]
    assert await home.get(kinds.POD, "a", "n") == POD


async def test_a_read_is_given_up_in_the_end(home: kube.Kube, played: Played, clock: Impatient) -> None:
    played.answers = [hang_up]
    with pytest.raises(errors.Unavailable, match=f"{played.url} cannot be reached or broke off"):
        await home.get(kinds.POD, "a", "n")
    assert (len(played.seen), clock.slept) == (4, [0.1, 0.4, 1.6])


WRITES: dict[str, Callable[[kube.Kube], Awaitable[Any]]] = {
    "create": lambda home: home.create(kinds.POD, POD),
    "replace": lambda home: home.replace(kinds.POD, POD),
    "patch": lambda home: home.patch(kinds.POD, "a", {}, "n"),
    "delete": lambda home: home.delete(kinds.POD, "a", "n"),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_is_cut_off_is_not_repeated(home: kube.Kube, played: Played, name: str) -> None:
    """It may have been carried out: the second would report a Conflict with the first."""
    played.answers = [says(200, POD), says(200, POD), hang_up]
    await home.get(kinds.POD, "a", "n")  # so that the write travels on a connection that was good before
    if name != "delete":
        await home.get(kinds.POD, "a", "n")
    with pytest.raises(errors.Unavailable):
        await WRITES[name](home)
    assert len(played.seen) == 3


async def test_a_server_that_is_not_there(tmp_path: Path, clock: Impatient) -> None:
    port = kubernetes.free_ports(1)[0]
    store = kube.Kube(access_to(f"http://127.0.0.1:{port}", tmp_path), clock=clock)
    with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}"):
        await store.create(kinds.POD, POD)
    await store.close()


async def test_put_off_as_long_as_the_server_asks(home: kube.Kube, played: Played, clock: Impatient) -> None:
    played.answers = [says(429, "busy", Retry_After="7"), status(429, "TooManyRequests", retryAfterSeconds=2),
                      says(429, "busy"), says(201, POD)]
    assert await home.create(kinds.POD, POD) == POD
    assert clock.slept == [7, 2, 1.6]
    assert played.bodies[0] == played.bodies[3] != b""


async def test_put_off_for_too_long_or_too_often(home: kube.Kube, played: Played, clock: Impatient) -> None:
    played.answers = [says(429, "busy", Retry_After="3600")]
    with pytest.raises(errors.Unavailable, match="answered 429: busy") as caught:
        await home.get(kinds.POD, "a", "n")
    assert (caught.value.retry_after, clock.slept) == (3600, [])
    played.answers = [says(429, "busy", Retry_After="5")]
    with pytest.raises(errors.Unavailable) as caught:
        await home.get(kinds.POD, "a", "n")
    assert (caught.value.retry_after, clock.slept) == (5, [5, 5, 5])


async def test_a_server_that_is_down_for_now(home: kube.Kube, played: Played, clock: Impatient) -> None:
    played.answers = [says(503, "starting", Retry_After="3"), says(200, POD)]
    assert await home.get(kinds.POD, "a", "n") == POD
    assert clock.slept == [3]
    played.answers = [says(503, "starting", Retry_After="3"), says(200, POD)]
    with pytest.raises(errors.Unavailable, match="starting") as caught:
        await home.replace(kinds.POD, POD)
    assert caught.value.retry_after == 3, "a write may have passed the proxy that said so"


# Who asks


def knows(token: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        known = request.headers.get("Authorization") == f"Bearer {token}"
        return await (says(200, POD) if known else status(401, "Unauthorized"))(request)

    return answer


async def test_an_unknown_token_is_renewed_once(played: Played, tmp_path: Path, clock: Impatient) -> None:
    script = tmp_path / "plugin"
    script.write_text(
        f"#!{sys.executable}\nimport json, pathlib\nfile = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "runs = int(file.read_text()) + 1 if file.exists() else 1\nfile.write_text(str(runs))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': f't{runs}'}}))\n")
    script.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}}
    store = kube.Kube(access_to(played.url, tmp_path, user), clock=clock)
    played.answers = [knows("t2")]
    assert await store.create(kinds.POD, POD) == POD
    assert [request.headers["Authorization"] for request in played.seen] == ["Bearer t1", "Bearer t2"]
    assert played.bodies[0] == played.bodies[1]
    played.answers = [knows("another")]
    with pytest.raises(errors.Unauthorized):
        await store.get(kinds.POD, "a", "n")
    assert len(played.seen) == 4
    await store.close()


async def test_an_unknown_token_that_stays_is_not_tried_again(played: Played, tmp_path: Path, clock: Impatient) -> None:
    store = kube.Kube(access_to(played.url, tmp_path, {"token": "t"}), clock=clock)
    played.answers = [knows("another")]
    with pytest.raises(errors.Unauthorized, match="the server's words"):
        await store.get(kinds.POD, "a", "n")
    assert len(played.seen) == 1
    await store.close()


async def test_groups_are_one_header_each(played: Played, tmp_path: Path, clock: Impatient) -> None:
    user = {"as": "bob", "as-groups": ["x", "y"]}
    store = kube.Kube(access_to(played.url, tmp_path, user), clock=clock, user_agent="mine/1")
    played.answers = [says(200, POD)]
    await store.get(kinds.POD, "a", "n")
    assert played.seen[0].headers.getall("Impersonate-Group") == ["x", "y"]
    assert played.seen[0].headers["User-Agent"] == "mine/1"
    await store.close()


async def test_a_proxy_is_asked_instead(played: Played, tmp_path: Path, clock: Impatient) -> None:
    content = pki.kubeconfig("http://api.invalid:8080/prefix/")
    content["clusters"][0]["cluster"]["proxy-url"] = played.url
    (tmp_path / "config").write_text(json.dumps(content))
    store = kube.Kube(kubeconfig.load(tmp_path / "config", clock=clock, env={}), clock=clock)
    played.answers = [says(200, POD)]
    await store.get(kinds.POD, "a", "n")
    assert played.seen[0].raw_path == "http://api.invalid:8080/prefix/api/v1/namespaces/n/pods/a"
    await store.close()


# Watching


async def test_lines_of_any_length_cut_anywhere(home: kube.Kube, played: Played) -> None:
    text = event("ADDED", POD) + event("MODIFIED", BIG) + b"\n" + event("DELETED", POD)
    text += event("BOOKMARK", {"metadata": {"resourceVersion": "8"}})
    for size in (7, 100_000, len(text)):
        small = text if size > 7 else event("ADDED", POD) + event("DELETED", POD)
        played.answers = [streams(*(small[at : at + size] for at in range(0, len(small), size)))]
        seen = [(change.type, change.object) for change in await changes(home)]
        if size == 7:
            assert seen == [("ADDED", POD), ("DELETED", POD)]
        else:
            assert seen == [("ADDED", POD), ("MODIFIED", BIG), ("DELETED", POD),
                            ("BOOKMARK", {"metadata": {"resourceVersion": "8"}})]


WATCH_ERRORS: dict[str, tuple[Answer, type[errors.OutfitterError], str]] = {
    "expired in the stream": (
        streams(event("ADDED", POD), event("ERROR", {"kind": "Status", "code": 410, "message": "too old: 1 (9)"})),
        errors.Expired, "too old"),
    "expired before the stream": (status(410, "Expired"), errors.Expired, "words"),
    "another error in the stream": (
        streams(event("ERROR", {"kind": "Status", "code": 500, "message": "etcd is gone"})), errors.Unavailable, "etcd"),
    "cut off": (streams(event("ADDED", POD), b'{"type": "ADD', cut=True), errors.Unavailable, "broke off"),
    "ended in the middle": (streams(event("ADDED", POD), b'{"type": "ADD'), errors.Unavailable, "in the middle"),
    "not allowed": (status(403, "Forbidden"), errors.Forbidden, "words"),
    "not JSON": (streams(b"<html>\n"), errors.Unavailable, "not a Kubernetes object"),
    "an unknown type": (streams(event("EXPLODED", POD)), errors.Unavailable, "'EXPLODED'"),
}


@pytest.mark.parametrize("name", WATCH_ERRORS)
async def test_watches_that_fail(home: kube.Kube, played: Played, name: str) -> None:
    answer, error, text = WATCH_ERRORS[name]
    played.answers = [answer]
    with pytest.raises(error, match=text):
        await changes(home)


async def test_a_watch_that_cannot_begin_is_tried_again(home: kube.Kube, played: Played, clock: Impatient) -> None:
    played.answers = [hang_up, says(429, "busy", Retry_After="4"), streams(event("ADDED", POD))]
    assert [change.type for change in await changes(home)] == ["ADDED"]
    assert clock.slept == [0.1, 4]


async def test_leaving_a_watch_closes_it(home: kube.Kube, played: Played) -> None:
    gone = asyncio.Event()

    async def forever(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(event("ADDED", POD))
                await asyncio.sleep(0)
        gone.set()
        return response

    played.answers = [forever]
    async with contextlib.aclosing(home.watch(kinds.POD, "n", since="1")) as watching:
        async for change in watching:
            assert change.type == "ADDED"
            break
    await asyncio.wait_for(gone.wait(), 5)


async def test_watches_do_not_take_the_places_of_calls(home: kube.Kube, played: Played) -> None:
    release, all_there = asyncio.Event(), asyncio.Event()
    count = kube.CALLS + 5

    async def waiting(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return await says(200, POD)(request)
        if len(played.seen) == count:
            all_there.set()
        await release.wait()  # before the first byte: a server may be slow to grant a watch
        return web.Response()

    played.answers = [waiting]
    watches = [asyncio.ensure_future(changes(home)) for _ in range(count)]
    await asyncio.wait_for(all_there.wait(), 10)
    assert await asyncio.wait_for(home.get(kinds.POD, "a", "n"), 10) == POD
    release.set()
    assert await asyncio.gather(*watches) == [[]] * len(watches)


# A real server


@pytest.fixture
async def real(cluster: kubernetes.Cluster) -> AsyncIterator[kube.Kube]:
    store = kube.Kube(cluster.access(), clock=SystemClock())
    yield store
    await store.close()


@pytest.fixture
async def space(real: kube.Kube) -> str:
    """A namespace of the test's own."""
    made = await real.create(kinds.NAMESPACE, {"metadata": {"generateName": "smoke-"}})
    return str(made["metadata"]["name"])


def config_map(space: str, name: str, **data: str) -> kinds.Object:
    return {"metadata": {"name": name, "namespace": space, "labels": {"app": "smoke"}}, "data": data}


@pytest.mark.cluster
async def test_the_life_of_an_object(real: kube.Kube, space: str) -> None:
    made = await real.create(kinds.CONFIG_MAP, config_map(space, "life", a="1"))
    with pytest.raises(errors.AlreadyExists, match='configmaps "life" already exists'):
        await real.create(kinds.CONFIG_MAP, config_map(space, "life"))
    assert await real.get(kinds.CONFIG_MAP, "life", space) == made
    changed = await real.replace(kinds.CONFIG_MAP, {**made, "data": {"a": "2"}})
    with pytest.raises(errors.Conflict, match="the object has been modified"):
        await real.replace(kinds.CONFIG_MAP, made)
    dry = await real.patch(kinds.CONFIG_MAP, "life", {"data": {"b": "3"}}, space, dry_run=True)
    assert dry["data"] == {"a": "2", "b": "3"}
    merged = await real.patch(kinds.CONFIG_MAP, "life", {"data": {"b": "4"}}, space)
    assert merged["data"] == {"a": "2", "b": "4"}
    change = [{"op": "remove", "path": "/data/a"}]
    assert (await real.patch(kinds.CONFIG_MAP, "life", change, space, how="json"))["data"] == {"b": "4"}
    await real.patch(kinds.CONFIG_MAP, "life", {"data": {"c": "5"}}, space, how="strategic")
    with pytest.raises(errors.Conflict, match="ResourceVersion in the precondition"):
        await real.delete(kinds.CONFIG_MAP, "life", space, revision=changed["metadata"]["resourceVersion"])
    await real.delete(kinds.CONFIG_MAP, "life", space, dry_run=True)
    last = await real.delete(kinds.CONFIG_MAP, "life", space, uid=made["metadata"]["uid"])
    assert last["data"] == {"b": "4", "c": "5"}
    with pytest.raises(errors.NotFound, match='configmaps "life" not found'):
        await real.get(kinds.CONFIG_MAP, "life", space)


@pytest.mark.cluster
async def test_pages_and_changes(real: kube.Kube, space: str) -> None:
    before = await real.list(kinds.CONFIG_MAP, space, labels="app=smoke")
    assert before.items == []
    for name in ("a", "b", "c"):
        await real.create(kinds.CONFIG_MAP, config_map(space, name))
    first = await real.list(kinds.CONFIG_MAP, space, labels="app=smoke", limit=2)
    await real.create(kinds.CONFIG_MAP, config_map(space, "a1"))
    rest = await real.list(kinds.CONFIG_MAP, space, labels="app=smoke", limit=2, continue_=first.continue_)
    assert [item["metadata"]["name"] for item in (*first.items, *rest.items)] == ["a", "b", "c"]
    assert {(item["apiVersion"], item["kind"]) for item in first.items} == {("v1", "ConfigMap")}
    assert (first.revision, rest.continue_) == (rest.revision, "")
    await real.delete(kinds.CONFIG_MAP, "b", space)
    seen: list[tuple[str, str]] = []
    watched = real.watch(kinds.CONFIG_MAP, space, since=before.revision, labels="app=smoke", bookmarks=True)
    async with asyncio.timeout(10), contextlib.aclosing(watched) as watching:
        async for change in watching:
            if change.type != "BOOKMARK":
                seen.append((change.type, change.object["metadata"]["name"]))
            if len(seen) >= 5:
                break
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("ADDED", "a1"), ("DELETED", "b")]


@pytest.mark.cluster
async def test_a_revision_of_long_ago(real: kube.Kube) -> None:
    watched = real.watch(kinds.LEDGER_PAGE, since="1")  # the kind is younger than that
    with pytest.raises(errors.Expired, match="too old"):
        await asyncio.wait_for(anext(watched), 10)
    with pytest.raises(errors.BadRequest, match="continue key is not valid"):
        await real.list(kinds.CONFIG_MAP, limit=1, continue_="nonsense")


@pytest.mark.cluster
async def test_our_kinds_keep_unknown_fields(real: kube.Kube, space: str) -> None:
    spec = {"domain": {"devices": {}}, "fieldOfTomorrow": {"x": [1, None, 2.5]}}
    vmi = {"metadata": {"name": "vm", "namespace": space}, "spec": spec, "status": {"phase": "Made up"}}
    made = await real.create(kinds.INSTANCE, vmi)
    assert made["spec"] == {**spec, "fieldOfTomorrow": {"x": [1, None, 2.5]}}
    assert "status" not in made
    running = await real.replace(
        kinds.INSTANCE, {**made, "spec": {}, "status": {"phase": "Running", "soon": 1}}, subresource="status")
    assert (running["spec"], running["status"]) == (spec, {"phase": "Running", "soon": 1})
    patched = await real.patch(kinds.INSTANCE, "vm", {"status": {"phase": "Failed"}}, space, subresource="status")
    assert patched["status"] == {"phase": "Failed", "soon": 1}
    with pytest.raises(errors.Unsupported):
        await real.patch(kinds.INSTANCE, "vm", {}, space, how="strategic")
    assert (await real.delete(kinds.INSTANCE, "vm", space))["metadata"]["uid"] == made["metadata"]["uid"]
    page = await real.create(kinds.LEDGER_PAGE, {"metadata": {"name": space}, "spec": {"bookings": []}})
    assert page in (await real.list(kinds.LEDGER_PAGE)).items
    assert await real.delete(kinds.LEDGER_PAGE, space) == page


@pytest.mark.cluster
async def test_what_the_server_refuses(real: kube.Kube, space: str) -> None:
    with pytest.raises(errors.Invalid, match="is invalid") as caught:
        await real.create(kinds.CONFIG_MAP, {"metadata": {"name": "Not_Valid", "namespace": space}})
    assert [(cause.field, cause.reason) for cause in caught.value.causes] == [("metadata.name", "FieldValueInvalid")]
    with pytest.raises(errors.NotFound, match='namespaces "nowhere" not found'):
        await real.create(kinds.CONFIG_MAP, {"metadata": {"name": "a", "namespace": "nowhere"}})
    with pytest.raises(errors.TooLarge):
        await real.create(kinds.CONFIG_MAP, config_map(space, "huge", x="x" * 3_200_000))


@pytest.mark.cluster
async def test_the_ways_to_log_in(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    async def who(access: Access) -> str:
        store = kube.Kube(access, clock=SystemClock())
        review = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode()
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        code, _, body = await store.raw("POST", path, body=review, headers={"Content-Type": "application/json"})
        await store.close()
        assert code == 201, body
        return str(json.loads(body)["status"]["userInfo"]["username"])

    def changed(**user: Any) -> Access:
        content = json.loads(cluster.kubeconfig.read_text())
        content["users"][0]["user"] |= user
        (tmp_path / "config").write_text(json.dumps(content))
        return kubeconfig.load(tmp_path / "config", clock=SystemClock())

    assert await who(cluster.access()) == "admin"
    assert await who(kubeconfig.load(cluster.kubeconfig_token, clock=SystemClock())) == "admin-token"
    assert await who(changed(**{"as": "bob"})) == "bob"
    nobody = kube.Kube(changed(**{"as": "bob", "as-groups": ["dev"]}), clock=SystemClock())
    with pytest.raises(errors.Forbidden, match='User "bob" cannot list resource "pods"'):
        await nobody.list(kinds.POD)
    await nobody.close()
    content = json.loads(cluster.kubeconfig_token.read_text())
    content["users"][0]["user"]["token"] = "wrong"
    (tmp_path / "config").write_text(json.dumps(content))
    stranger = kube.Kube(kubeconfig.load(tmp_path / "config", clock=SystemClock()), clock=SystemClock())
    with pytest.raises(errors.Unauthorized):
        await stranger.list(kinds.POD)
    await stranger.close()


@pytest.mark.cluster
async def test_a_plugin_may_bring_the_certificate(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    content = json.loads(cluster.kubeconfig.read_text())
    given = {key: base64.b64decode(content["users"][0]["user"][key]).decode()
             for key in ("client-certificate-data", "client-key-data")}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {
        "clientCertificateData": given["client-certificate-data"], "clientKeyData": given["client-key-data"]}}
    (tmp_path / "answer").write_text(json.dumps(answer))
    content["users"][0]["user"] = {"exec": {"apiVersion": answer["apiVersion"], "command": "cat",
                                            "args": [str(tmp_path / "answer")], "interactiveMode": "Never"}}
    (tmp_path / "config").write_text(json.dumps(content))
    store = kube.Kube(kubeconfig.load(tmp_path / "config", clock=SystemClock()), clock=SystemClock())
    assert (await store.get(kinds.NAMESPACE, "default"))["kind"] == "Namespace"
    await store.close()


@pytest.mark.cluster
async def test_a_server_that_is_not_trusted(cluster: kubernetes.Cluster, tmp_path: Path) -> None:
    content = json.loads(cluster.kubeconfig_token.read_text())
    where = content["clusters"][0]["cluster"]

    async def names(**changes: Any) -> list[str]:
        content["clusters"][0]["cluster"] = {key: value for key, value in {**where, **changes}.items() if value}
        (tmp_path / "config").write_text(json.dumps(content))
        store = kube.Kube(kubeconfig.load(tmp_path / "config", clock=SystemClock()), clock=Impatient())
        try:
            return [item["metadata"]["name"] for item in (await store.list(kinds.NAMESPACE)).items]
        finally:
            await store.close()

    with pytest.raises(errors.Unavailable, match="certificate verify failed"):
        await names(**{"certificate-authority-data": None})
    with pytest.raises(errors.Unavailable, match=r"not valid for 'other\.host'"):
        await names(**{"tls-server-name": "other.host"})
    assert "default" in await names(**{"tls-server-name": "kubernetes.default.svc"})
    assert "default" in await names(**{"certificate-authority-data": None, "insecure-skip-tls-verify": True})


@pytest.mark.cluster
@pytest.mark.kubectl
def test_kubectl_reads_our_kubeconfigs(cluster: kubernetes.Cluster) -> None:
    def run(*args: str, stdin: str = "") -> str:
        done: subprocess.CompletedProcess[str] = cluster.kubectl(*args, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "admin" in run("auth", "whoami")
    assert "admin-token" in run("auth", "whoami", f"--kubeconfig={cluster.kubeconfig_token}")
    vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "typed"}, "spec": {}}
    assert "created" in run("apply", "-f", "-", stdin=json.dumps(vmi))
    assert "typed" in run("get", "vmi")
    run("delete", "vmi", "typed")


@pytest.mark.cluster
def test_a_stopped_cluster_leaves_nothing_running(tmp_path: Path) -> None:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path / "whole", scheduler=True, controllers=True) as whole:
        pids = [whole.pid(name) for name in ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        accounts = json.loads(whole.request("GET", "/api/v1/namespaces/kube-system/serviceaccounts"))
        assert accounts["kind"] == "ServiceAccountList"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.cluster
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    broken = kubernetes.Cluster(tmp_path / "broken", apiserver_flags=["--no-such-flag"])
    with pytest.raises(RuntimeError, match=r"kube-apiserver ended with 1:\n(.|\n)*unknown flag: --no-such-flag"):
        broken.start()
    with pytest.raises(KeyError):
        broken.pid("etcd")
