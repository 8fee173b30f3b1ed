"""Who may use the aggregated API: users whom kube-apiserver's front proxy names, if a SubjectAccessReview allows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.apiserver.aggregated.access_review import KEPT
from outfitter.apiserver.aggregated.app import AggregatedApi
from outfitter.errors import Forbidden, Unavailable
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.aggregated.proxied import ProxiedClient, Reviews, certificate, config_map
from tests.apiserver.test_subresources import PLACE, machine

DISCOVERY = "/apis/subresources.kubevirt.io/v1"


async def test_a_user_named_by_the_front_proxy_is_reviewed(proxied: ProxiedClient, ruled: Memory, reviews: Reviews) -> None:
    await machine(ruled, {"runStrategy": "Manual"}, None)
    proxied.user = [*proxied.user, ("X-Remote-Uid", "7"), ("X-Remote-Extra-Scopes", "a"), ("X-Remote-Extra-Scopes", "b"),
                    ("X-Remote-Extra-Acme.com%2fproject", "x")]
    assert (await proxied.put(f"{PLACE}/start", {})).status == 202
    assert reviews.asked == [{
        "user": "bob", "uid": "7", "groups": ["people", "system:all"],
        "extra": {"acme.com/project": ["x"], "scopes": ["a", "b"]},
        "resourceAttributes": {"namespace": "default", "verb": "update", "group": "subresources.kubevirt.io", "version": "v1",
                               "resource": "virtualmachines", "subresource": "start", "name": "blue"}}]


async def test_a_refused_user_gets_kubernetes_words(proxied: ProxiedClient, ruled: Memory, reviews: Reviews) -> None:
    made = await machine(ruled, {"runStrategy": "Manual"}, None)
    reviews.allowed, reviews.reason = False, "RBAC: no role"
    answer = await proxied.put(f"{PLACE}/start", {})
    assert (answer.status, answer.json["reason"], answer.json["message"]) == (403, "Forbidden", (
        'virtualmachines.subresources.kubevirt.io "blue" is forbidden: User "bob" cannot update resource '
        '"virtualmachines/start" in API group "subresources.kubevirt.io" in the namespace "default": RBAC: no role'))
    assert await ruled.get(kinds.VM, "blue", "default") == made


async def test_a_decision_is_kept_for_seconds_and_for_its_request_only(
    proxied: ProxiedClient, ruled: Memory, reviews: Reviews, clock: ManualClock
) -> None:
    await machine(ruled, {"runStrategy": "Manual"}, None)
    for _ in range(2):
        await proxied.put(f"{PLACE}/start", {})
    assert len(reviews.asked) == 1
    await proxied.put(f"{PLACE}/stop", {})
    await proxied.put(f"{PLACE.replace('default', 'other')}/start", {})
    proxied.user = [*proxied.user, ("X-Remote-Group", "more")]
    await proxied.put(f"{PLACE}/start", {})
    assert len(reviews.asked) == 4
    reviews.allowed = False
    assert (await proxied.put(f"{PLACE}/start", {})).status == 409, "as decided before"
    clock.advance(KEPT)
    assert (await proxied.put(f"{PLACE}/start", {})).status == 403


async def test_without_a_decision_nothing_is_done(proxied: ProxiedClient, ruled: Memory, reviews: Reviews) -> None:
    made = await machine(ruled, {"runStrategy": "Manual"}, None)
    reviews.fails = Unavailable("kube-apiserver cannot be reached")
    answer = await proxied.put(f"{PLACE}/start", {})
    assert (answer.status, answer.json["message"], len(reviews.asked)) == (503, "kube-apiserver cannot be reached", 2)
    assert await ruled.get(kinds.VM, "blue", "default") == made


async def test_rights_that_this_process_lacks_are_not_refused_to_the_user(proxied: ProxiedClient, reviews: Reviews) -> None:
    reviews.fails = Forbidden('User "outfitter-webhook" cannot create resource "subjectaccessreviews"')
    answer = await proxied.put(f"{PLACE}/start", {})
    assert (answer.status, answer.json["message"]) == (503, (
        'outfit webhook lacks a right: User "outfitter-webhook" cannot create resource "subjectaccessreviews"; '
        "outfit install --apply grants it"))


FORGED: dict[str, tuple[Object, list[tuple[str, str]], str]] = {
    "headers without a certificate": ({}, [("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")],
                                      "this server is asked through kube-apiserver"),
    "a user's certificate": (certificate("admin"), [("X-Remote-User", "admin")],
                             'the client certificate is of "admin", and not of kube-apiserver\'s front proxy'),
    "no user": (certificate("front-proxy"), [("X-Remote-Group", "system:masters")], "no user in x-remote-user"),
    "an empty user": (certificate("front-proxy"), [("X-Remote-User", "")], "no user in x-remote-user"),
    "another header": (certificate("front-proxy"), [("X-Forwarded-User", "admin")], "no user in x-remote-user"),
}


@pytest.mark.parametrize("name", FORGED)
async def test_forged_requests_are_refused(proxied: ProxiedClient, ruled: Memory, reviews: Reviews, name: str) -> None:
    made = await machine(ruled, {"runStrategy": "Manual"}, None)
    proxied.extensions, proxied.user, says = FORGED[name]
    for answer in (await proxied.put(f"{PLACE}/start", {}), await proxied.get(DISCOVERY), await proxied.get("/apis"),
                   await proxied.get("/openapi/v2"), await proxied.get("/nothing")):
        assert (answer.status, answer.json["reason"]) == (401, "Unauthorized")
        assert says in answer.json["message"]
    assert reviews.asked == []
    assert await ruled.get(kinds.VM, "blue", "default") == made
    assert (await proxied.get("/healthz")).status == 200, "for kubelets, which have no certificate"


async def test_impersonation_that_kube_apiserver_has_not_done_is_refused(proxied: ProxiedClient) -> None:
    proxied.user = [*proxied.user, ("Impersonate-User", "admin")]
    assert (await proxied.put(f"{PLACE}/start", {})).status == 403


@pytest.fixture
def logged() -> Iterator[asyncio.Event]:
    """Set when the front proxy logs something."""
    done = asyncio.Event()

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            done.set()

    log, handler = logging.getLogger("outfitter.apiserver.aggregated.front_proxy"), Waiting()
    log.addHandler(handler)
    yield done
    log.removeHandler(handler)


async def test_before_the_configuration_is_read_nothing_is_believed(
    api: AggregatedApi, ruled: Memory, logged: asyncio.Event
) -> None:
    client, heard = ProxiedClient(api), asyncio.Queue[str]()
    api.front_proxy.on_client_ca(heard.put_nowait)
    answer = await client.get(DISCOVERY)
    assert (answer.status, "has not been read yet" in answer.json["message"]) == (503, True)
    assert ((await client.get("/readyz")).status, (await client.get("/healthz")).status) == (500, 200)
    await ruled.create(kinds.CONFIG_MAP, config_map(client_ca_file=None))
    await logged.wait()
    assert "--requestheader-client-ca-file" in (await client.get(DISCOVERY)).json["message"]
    await ruled.replace(kinds.CONFIG_MAP, config_map())
    assert await heard.get() == "CA of the front proxy"
    assert ((await client.get(DISCOVERY)).status, (await client.get("/readyz")).status) == (200, 200)


async def test_the_configuration_may_change(proxied: ProxiedClient, api: AggregatedApi, ruled: Memory) -> None:
    heard = asyncio.Queue[str]()
    api.front_proxy.on_client_ca(heard.put_nowait)
    changed = config_map(client_ca_file="new CA", allowed_names="[]", username_headers='["X-User", "X-Remote-User"]')
    await ruled.replace(kinds.CONFIG_MAP, changed)
    assert [await heard.get(), await heard.get()] == ["CA of the front proxy", "new CA"]
    proxied.extensions, proxied.user = certificate("any"), [("X-User", "eve")]
    assert (await proxied.get(DISCOVERY)).status == 200, "all that the new authority has signed"


@pytest.mark.parametrize("broken", [{"client_ca_file": ""}, {"allowed_names": "front-proxy"}, {"allowed_names": '"a"'},
                                    {"username_headers": "[]"}])
async def test_a_configuration_that_cannot_be_read_does_not_replace_the_last(
    proxied: ProxiedClient, ruled: Memory, broken: dict[str, str], logged: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    await ruled.replace(kinds.CONFIG_MAP, config_map(**broken))
    await logged.wait()
    assert "the last one that was read stays in use" in caplog.text
    assert (await proxied.get(DISCOVERY)).status == 200
    proxied.extensions = certificate("other")
    assert (await proxied.get(DISCOVERY)).status == 401
    await ruled.delete(kinds.CONFIG_MAP, "extension-apiserver-authentication", "kube-system")
    proxied.extensions = certificate("front-proxy")
    assert (await proxied.get(DISCOVERY)).status == 200
