"""Actions on VMs and VMIs through the aggregated API: by the rules of the embedded API server, patch by patch."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from tests.apiserver.aggregated.proxied import ProxiedClient, SeamStore
from tests.apiserver.test_subresources import ASKED, BAD, CASES, INSTANCE, PLACE, UNSERVED, machine


@pytest.mark.parametrize("name", CASES)
async def test_actions_on_a_vm(proxied: ProxiedClient, ruled: SeamStore, name: str) -> None:
    case = CASES[name]
    made = await machine(ruled, case.how, case.phase)
    dry = await proxied.put(f"{PLACE}/{case.action}", {**(case.body or {}), "dryRun": ["All"]})
    assert await ruled.get(kinds.VM, "blue", "default") == made, "a dry run"
    answer = await proxied.put(f"{PLACE}/{case.action}", case.body or {})
    now = await ruled.get(kinds.VM, "blue", "default")
    assert answer.status == dry.status
    if case.refused:
        assert answer.json["message"] == f'Operation cannot be fulfilled on virtualmachine.kubevirt.io "blue": {case.refused}'
        assert (answer.status, now) == (409, made)
        return
    assert (answer.status, answer.data) == (202, b"")
    assert now["spec"] == {**made["spec"], **(case.spec or {})}
    requests: Any = (now.get("status") or {}).get("stateChangeRequests")
    assert (requests and [" ".join([each["action"], *(each.get("data") or {})]) for each in requests]) == case.noted
    if case.phase is not None:
        assert (await ruled.get(kinds.VMI, "blue", "default"))["spec"].get("terminationGracePeriodSeconds") == case.grace


@pytest.mark.parametrize("name", ASKED)
async def test_actions_on_a_vmi(proxied: ProxiedClient, ruled: SeamStore, name: str) -> None:
    case = ASKED[name]
    spec: Object = {"domain": {"devices": {}, **({"features": case.features} if case.features else {})}}
    await ruled.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "default"}, "spec": spec})
    before = await ruled.patch(kinds.VMI, "blue", {"status": case.status}, "default", subresource="status")
    answer = await proxied.put(f"{INSTANCE.format('v1alpha3')}/{case.action}", None)
    now = await ruled.get(kinds.VMI, "blue", "default")
    if case.refused:
        assert answer.json["message"].endswith(f'virtualmachineinstance.kubevirt.io "blue": {case.refused}')
        assert (answer.status, now) == (409, before)
        return
    assert (answer.status, answer.data) == (200, b"")
    assert [request["action"] for request in now["status"]["stateChangeRequests"]] == case.noted


@pytest.mark.parametrize("name", BAD)
async def test_bad_options(proxied: ProxiedClient, ruled: SeamStore, name: str) -> None:
    action, body, says = BAD[name]
    await machine(ruled, {"runStrategy": "Manual"}, "Running")
    answer = await proxied.put(f"{PLACE}/{action}", body)
    assert (answer.status, answer.json["message"].startswith(says)) == (400, True)


@pytest.mark.parametrize("path", UNSERVED)
async def test_unserved_subresource_has_a_reason(proxied: ProxiedClient, path: str) -> None:
    answer = await proxied.get(f"/apis/subresources.kubevirt.io/v1/namespaces/default/{path}")
    assert (answer.status, answer.json["message"].startswith(UNSERVED[path])) == (404, True)


async def test_unknown_objects_methods_and_kinds(proxied: ProxiedClient) -> None:
    answer = await proxied.put(f"{PLACE}/start", {})
    assert (answer.status, answer.json["message"]) == (404, 'virtualmachine.kubevirt.io "blue" not found')
    assert (await proxied.get(f"{PLACE}/start")).status == 405
    for path in ("/apis/kubevirt.io/v1/namespaces/default/virtualmachines/blue", "/api/v1/secrets", "/api"):
        assert (await proxied.get(path)).status == 404, path


async def test_a_vm_that_cannot_be_read_is_reported(proxied: ProxiedClient, ruled: SeamStore) -> None:
    await machine(ruled, {"runStrategy": "Manual"}, None)
    ruled.as_read = lambda kind, obj: {**obj, "spec": "none"} if kind == kinds.VM else obj
    answer = await proxied.put(f"{PLACE}/start", {})
    assert (answer.status, "VirtualMachine default/blue cannot be read: spec" in answer.json["message"]) == (500, True)


async def test_the_user_of_an_action_is_logged(
    proxied: ProxiedClient, ruled: SeamStore, caplog: pytest.LogCaptureFixture
) -> None:
    await machine(ruled, {"runStrategy": "Manual"}, None)
    with caplog.at_level(logging.INFO, "outfitter"):
        assert (await proxied.put(f"{PLACE}/start", {})).status == 202
    assert "user 'bob' requested start of virtualmachine default/blue" in caplog.text


async def test_a_request_is_decided_again_when_the_vm_changed(proxied: ProxiedClient, ruled: SeamStore) -> None:
    """Also between the two writes of a start with paused vCPUs: it would start without the request."""
    await machine(ruled, {"runStrategy": "Halted"}, None)
    writes = 0

    async def change() -> None:
        nonlocal writes
        writes += 1
        if writes in (1, 3):
            change = {"status": {"stateChangeRequests": None, "printableStatus": f"{writes}"}}
            await ruled.patch(kinds.VM, "blue", change, "default", subresource="status")

    ruled.before_write = change
    assert (await proxied.put(f"{PLACE}/start", {"paused": True})).status == 202
    now = await ruled.get(kinds.VM, "blue", "default")
    assert (now["spec"]["runStrategy"], now["status"]["printableStatus"], writes) == ("Always", "3", 5)
    assert now["status"]["stateChangeRequests"] == [{"action": "Start", "data": {"paused": "true"}}]


async def test_a_vm_that_always_changes_is_a_conflict(proxied: ProxiedClient, ruled: SeamStore) -> None:
    await machine(ruled, {"runStrategy": "Halted"}, None)
    numbers = itertools.count()

    async def change() -> None:
        await ruled.patch(kinds.VM, "blue", {"metadata": {"labels": {"changed": str(next(numbers))}}}, "default")

    ruled.before_write = change
    answer = await proxied.put(f"{PLACE}/start", {})
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert (await ruled.get(kinds.VM, "blue", "default"))["spec"]["runStrategy"] == "Halted"
