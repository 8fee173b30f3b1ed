"""The admission webhook as an API server calls it: the same rules, causes and warnings as in embedded mode."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm
from outfitter.api.ledger_page.page import Page
from outfitter.api.write_request import Writer, WriteRequest
from outfitter.errors import Invalid, Unavailable
from outfitter.roles.webhook_app import WebhookApp
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from outfitter.webhook.admission_webhook import AdmissionWebhook
from tests.apiserver.asgi import Client
from tests.webhook import reviews
from tests.webhook.reviews import CONTROLLER, NAMESPACE, Webhook, kubevirt, review, running


@pytest.fixture
async def webhook(clock: ManualClock) -> AsyncIterator[Webhook]:
    async with running(clock) as started:
        yield started


def vmi(name: str = "blue", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "here"}, "spec": {
        "domain": {"memory": {"guest": "1Gi"}, "devices": {}}, **spec}}


def embedded(kind: Kind, obj: Object, *given: Object) -> list[tuple[str, str, str]]:
    """The causes that admission gives in embedded mode, with these KubeVirt objects."""
    whole = json.loads(json.dumps({"apiVersion": kind.api_version, "kind": kind.kind, **obj}))
    try:
        admission.AdmissionRules().admit(WriteRequest(
            "create", kind, whole, None, look=lambda kind, namespace, name: {"metadata": {"name": name}},
            every=lambda kind: given, by=Writer("admin")))
    except Invalid as error:
        return [(cause.field, cause.reason, cause.message) for cause in error.causes]
    return []


@pytest.mark.parametrize("gates", [False, True], ids=["no gates", "gates"])
async def test_every_case_is_decided_as_in_embedded_mode(clock: ManualClock, gates: bool) -> None:
    refused = 0
    async with running(clock, (kinds.KUBEVIRT, kubevirt(gates))) as webhook:
        config = await webhook.store.get(kinds.KUBEVIRT, "kubevirt", "kubevirt")
        for name, (kind, obj) in reviews.case_objects().items():
            verdict = await webhook.ask("CREATE", kind, obj)
            assert verdict.causes == embedded(kind, obj, config), name
            assert verdict.allowed == (not verdict.causes), name
            refused += not verdict.allowed
            if not verdict.allowed:
                assert (verdict.status["code"], verdict.status["reason"]) == (422, "Invalid")
                assert verdict.status["details"]["name"] == obj["metadata"]["name"]
    assert refused > 50


async def test_defaults_become_a_json_patch(webhook: Webhook) -> None:
    obj = vmi()
    assert (await webhook.mutated(kinds.VMI, obj))["metadata"]["finalizers"] == [vm.FINALIZER]
    kept = {**vmi(), "metadata": {"name": "a", "namespace": "here", "finalizers": ["example.com/mine"]}}
    assert (await webhook.mutated(kinds.VMI, kept))["metadata"]["finalizers"] == ["example.com/mine", vm.FINALIZER]
    again = await webhook.mutated(kinds.VMI, kept)
    assert (await webhook.ask("CREATE", kinds.VMI, again, path="/mutate")).patch == []


async def test_defaults_are_filled_in_before_the_name_is_generated(webhook: Webhook) -> None:
    unnamed = {**vmi(), "metadata": {"generateName": "blue-", "namespace": "here"}}
    assert (await webhook.mutated(kinds.VMI, unnamed))["metadata"]["finalizers"] == [vm.FINALIZER]


MALFORMED: dict[str, Object] = {
    "finalizers are text": {**vmi(), "metadata": {"name": "a", "namespace": "here", "finalizers": "x"}},
    "metadata is a list": {**vmi(), "metadata": []},
    "no metadata": {"spec": {}},
    "a wrong spec": vmi(domain="x"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_object_is_left_to_the_validation(webhook: Webhook, name: str) -> None:
    assert (await webhook.ask("CREATE", kinds.VMI, MALFORMED[name], path="/mutate")).patch == []
    assert (await webhook.ask("CREATE", kinds.VMI, MALFORMED[name])).status["code"] == 422


async def test_warnings_are_passed_on_and_not_to_our_own_controllers(webhook: Webhook) -> None:
    obj = vmi(resourceClaims=[{"name": "net", "resourceClaimName": "c"}, {"name": "acc", "resourceClaimTemplateName": "t"}])
    verdict = await webhook.ask("CREATE", kinds.VMI, obj)
    assert verdict.allowed
    assert [warning.partition(":")[0] for warning in verdict.warnings] == [
        "spec.resourceClaims[0].resourceClaimName", "spec.resourceClaims[1].resourceClaimTemplateName"]
    assert (await webhook.ask("CREATE", kinds.VMI, obj, user=CONTROLLER)).warnings == []
    await webhook.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "c", "namespace": "here"}, "spec": {}})
    assert len((await webhook.ask("CREATE", kinds.VMI, obj)).warnings) == 1


async def test_secrets_are_not_read(webhook: Webhook) -> None:
    """The webhook has no right to."""
    obj = vmi(volumes=[{"name": "init", "cloudInitNoCloud": {"secretRef": {"name": "s"}}}])
    obj["spec"]["domain"]["devices"] = {"disks": [{"name": "init", "disk": {}}]}
    verdict = await webhook.ask("CREATE", kinds.VMI, obj)
    assert (verdict.allowed, verdict.warnings) == (True, [])


async def test_only_our_components_change_the_spec_of_a_vmi(webhook: Webhook) -> None:
    new = vmi(terminationGracePeriodSeconds=5)
    by_user = await webhook.ask("UPDATE", kinds.VMI, new, vmi())
    assert (by_user.allowed, by_user.causes[0][0]) == (False, "spec.terminationGracePeriodSeconds")
    assert (await webhook.ask("UPDATE", kinds.VMI, new, vmi(), user=CONTROLLER)).allowed
    other = CONTROLLER.replace(NAMESPACE, "somewhere")
    assert not (await webhook.ask("UPDATE", kinds.VMI, new, vmi(), user=other)).allowed
    assert not (await webhook.ask("UPDATE", kinds.VMI, new, vmi(), user="")).allowed


async def test_a_write_of_status_is_checked_for_status(webhook: Webhook) -> None:
    wrong = {**vmi(), "status": {"phase": "Dreaming"}}
    verdict = await webhook.ask("UPDATE", kinds.VMI, wrong, vmi(), subresource="status")
    assert [field for field, _, _ in verdict.causes] == ["status.phase"]
    right = {**vmi(), "status": {"phase": "Running"}}
    assert (await webhook.ask("UPDATE", kinds.VMI, right, vmi(), subresource="status")).allowed


async def test_only_one_kubevirt(webhook: Webhook) -> None:
    """Read from the store, not from a cache that may lag."""
    assert (await webhook.ask("CREATE", kinds.KUBEVIRT, kubevirt())).allowed
    await webhook.store.create(kinds.KUBEVIRT, {**kubevirt(), "metadata": {"name": "first", "namespace": "kubevirt"}})
    verdict = await webhook.ask("CREATE", kinds.KUBEVIRT, kubevirt())
    assert [field for field, _, _ in verdict.causes] == ["metadata.name"]


# -- pages: rules that need other objects

DEVICE = {"driver": "d.example.com", "pool": "node-0", "device": "vf0"}


def booked(claim: Object, **fields: Any) -> Object:
    return {"device": DEVICE, "request": "nic", "state": "booked", "since": "2026-01-01T00:00:00Z", "amount": {"whole": True},
            "holder": {"kind": "ResourceClaim", "namespace": "here", "name": claim["metadata"]["name"],
                       "uid": claim["metadata"]["uid"]}, **fields}


def page(*bookings: Object) -> Object:
    return {**Page.blank("node-0"), "spec": {"bookings": list(bookings)}}


async def stored_claim(store: Memory) -> Object:
    return await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "here"}, "spec": {}})


async def test_a_booking_leaves_its_page_when_its_claim_is_gone(webhook: Webhook) -> None:
    held = page(booked(await stored_claim(webhook.store)))
    refused = await webhook.ask("UPDATE", kinds.LEDGER_PAGE, page(), held)
    assert refused.causes[0][0] == "spec.bookings"
    assert "kubectl delete resourceclaim mine -n here" in refused.text
    kept = await webhook.ask("DELETE", kinds.LEDGER_PAGE, None, held)
    assert kept.status["code"] == 403
    assert 'ledgerpages.outfitter.dev "node-0" is forbidden' in kept.text
    assert kept.status["details"] == {"name": "node-0", "group": "outfitter.dev", "kind": "ledgerpages"}
    await webhook.store.delete(kinds.RESOURCE_CLAIM, "mine", "here")
    assert (await webhook.ask("UPDATE", kinds.LEDGER_PAGE, page(), held)).allowed
    assert (await webhook.ask("DELETE", kinds.LEDGER_PAGE, None, held)).allowed


async def test_what_is_prepared_stays_until_its_node_and_its_pods_are_gone(webhook: Webhook) -> None:
    store = webhook.store
    held = page(booked(await stored_claim(store), state="prepared"))
    await store.create(kinds.NODE, {"metadata": {"name": "node-0"}})
    await store.create(kinds.POD, {"metadata": {"name": "p", "namespace": "here"}, "spec": {"nodeName": "node-0"}})
    await store.create(kinds.POD, {"metadata": {"name": "q", "namespace": "here"}, "spec": {"nodeName": "node-1"}})
    assert "kubectl delete node node-0" in (await webhook.ask("DELETE", kinds.LEDGER_PAGE, None, held)).text
    await store.delete(kinds.NODE, "node-0")
    assert "pods of node-0 have not ended: p;" in (await webhook.ask("DELETE", kinds.LEDGER_PAGE, None, held)).text
    await store.delete(kinds.POD, "p", "here")
    assert (await webhook.ask("DELETE", kinds.LEDGER_PAGE, None, held)).allowed


async def test_only_what_is_published_and_free_is_booked_by_hand(webhook: Webhook) -> None:
    store, claim = webhook.store, await stored_claim(webhook.store)
    added = page(booked(claim))
    missing = await webhook.ask("UPDATE", kinds.LEDGER_PAGE, added, page())
    assert [field for field, _, _ in missing.causes] == ["spec.bookings[0].device"]
    assert "is not published" in missing.text
    await store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "s"}, "spec": {
        "driver": DEVICE["driver"], "nodeName": "node-0", "devices": [{"name": "vf0"}],
        "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1}}})
    assert (await webhook.ask("UPDATE", kinds.LEDGER_PAGE, added, page())).allowed
    nobody = booked({"metadata": {"name": "no", "uid": "u"}})
    unknown = await webhook.ask("UPDATE", kinds.LEDGER_PAGE, page(nobody), page())
    assert [field for field, _, _ in unknown.causes] == ["spec.bookings[0].holder"]
    twice = await webhook.ask("UPDATE", kinds.LEDGER_PAGE, page(booked(claim), booked(claim)), page())
    assert "is booked twice" in twice.text


async def test_a_dry_run_is_decided_alike_and_nothing_is_ever_written(webhook: Webhook) -> None:
    held = page(booked(await stored_claim(webhook.store)))
    before = webhook.store.watch_cache(kinds.LEDGER_PAGE).revision
    for dry_run in (True, False):
        assert not (await webhook.ask("UPDATE", kinds.LEDGER_PAGE, page(), held, dry_run=dry_run)).allowed
        assert (await webhook.ask("CREATE", kinds.VMI, vmi(), dry_run=dry_run)).allowed
    assert webhook.store.watch_cache(kinds.LEDGER_PAGE).revision == before


# -- what is no review, or cannot be decided

NO_REVIEW: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "is not JSON"),
    "not UTF-8": (b'{"a": "\xff"}', "is not JSON"),
    "deeply nested": (b"[" * 100_000, "is not JSON"),
    "a list": ([], "must be an AdmissionReview of admission.k8s.io/v1"),
    "another version": ({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}, "must be an AdmissionReview"),
    "no request": ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "has no request with a uid"),
    "an object that is text": (
        {**review("CREATE", kinds.VMI), "request": {**review("CREATE", kinds.VMI)["request"], "object": "x"}},
        "request.object of the AdmissionReview must be an object"),
}


@pytest.mark.parametrize("name", NO_REVIEW)
async def test_what_is_no_review_is_refused(webhook: Webhook, name: str) -> None:
    body, words = NO_REVIEW[name]
    answer = await webhook.post(body)
    assert (answer.status, answer.json["kind"]) == (400, "Status")
    assert words in answer.json["message"]


async def test_a_review_without_its_object_is_refused(webhook: Webhook) -> None:
    for operation in ("CREATE", "UPDATE", "DELETE"):
        assert (await webhook.ask(operation, kinds.VMI)).status["code"] == 400


async def test_other_methods_and_large_bodies_are_refused(webhook: Webhook) -> None:
    assert (await webhook.client.get("/validate")).status == 405
    answer = await webhook.client.call("POST", "/validate", b"{}", headers={"content-length": str(9 << 20)})
    assert (answer.status, answer.header("connection")) == (413, ["close"])


async def test_two_large_objects_fit_into_a_review(webhook: Webhook) -> None:
    large = vmi()
    large["metadata"]["annotations"] = {"note": "x" * (250 << 10)}
    large["metadata"]["labels"] = {f"label-{number}": "x" for number in range(100)}
    assert (await webhook.ask("UPDATE", kinds.VMI, large, {**large, "padding": "y" * (3 << 20)})).allowed


async def test_what_we_have_no_rules_for_is_not_held_up(webhook: Webhook) -> None:
    """Someone added pods to the webhook configuration, or an operation."""
    for operation, kind in (("CREATE", kinds.POD), ("CONNECT", kinds.VMI)):
        verdict = await webhook.ask(operation, kind, {"metadata": {"name": "p"}})
        assert verdict.allowed
        assert "has no rules for" in verdict.warnings[0]


async def test_a_store_that_does_not_answer_is_reported(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> Object:
        raise Unavailable("the API server does not answer")

    held = page(booked(await stored_claim(webhook.store)))
    monkeypatch.setattr(webhook.store, "get", away)
    verdict = await webhook.ask("UPDATE", kinds.LEDGER_PAGE, page(), held)
    assert (verdict.allowed, verdict.text) == (False, "503 the API server does not answer")


async def test_nothing_is_decided_before_the_configuration_is_read(clock: ManualClock) -> None:
    webhook = Webhook(Memory(clock=clock), AdmissionWebhook(
        Memory(clock=clock), admission=admission.AdmissionRules(), clock=clock, namespace=NAMESPACE))
    verdict = await webhook.ask("CREATE", kinds.VMI, vmi())
    assert (verdict.allowed, verdict.status["code"]) == (False, 503)


async def test_an_error_of_our_own_is_an_error_of_the_call(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server then acts by the failure policy."""
    def broken(*_: Any) -> Object:
        raise KeyError("x")

    monkeypatch.setattr(admission.AdmissionRules, "admit", broken)
    answer = await webhook.post(review("CREATE", kinds.VMI, vmi()))
    assert (answer.status, answer.json["reason"]) == (500, "InternalError")


async def test_other_paths_are_those_of_the_aggregated_api(webhook: Webhook) -> None:
    assert (await webhook.client.get("/version")).status == 200
    alone = Client(WebhookApp(webhook.webhook), token="")
    assert (await alone.get("/version")).status == 404
    assert (await alone.post("/validate", review("CREATE", kinds.VMI, vmi()))).json["response"]["allowed"]
