"""Start, stop and restart of a machine, as virtctl asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from outfitter.api import admit, kinds
from outfitter.api.kinds import Object
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.kube.asgi import Client

PLACE = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/blue"


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Memory]:
    home = Memory(clock=clock, rules=admit.Rules())
    await home.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    yield home
    await home.close()


class Case(NamedTuple):
    action: str
    how: Object  # what the machine says of itself
    phase: str | None  # of its instance; None: there is none
    spec: Object | None = None
    noted: list[str] | None = None
    refused: str = ""


CASES = {
    "a halted machine is meant to run": Case("start", {"runStrategy": "Halted"}, None, {"runStrategy": "Always"}),
    "in the older word": Case("start", {"running": False}, None, {"running": True}),
    "one that does not say": Case("start", {}, None, {"runStrategy": "Always"}),
    "one of people is started by a note": Case("start", {"runStrategy": "Manual"}, None, noted=["Start"]),
    "one that failed is cleared first": Case("start", {"runStrategy": "RerunOnFailure"}, "Failed", noted=["Stop", "Start"]),
    "one that runs is not started": Case("start", {"runStrategy": "Manual"}, "Running", refused="VM is already running"),
    "one that always runs is not started": Case(
        "start", {"runStrategy": "Always"}, None, refused="Always does not support manual start requests"),
    "one that always runs is halted": Case("stop", {"runStrategy": "Always"}, "Running", {"runStrategy": "Halted"}),
    "halted before it ran": Case("stop", {"running": True}, None, {"running": False}),
    "one of people is stopped by a note": Case("stop", {"runStrategy": "Manual"}, "Running", noted=["Stop"]),
    "one that does not run is not stopped": Case("stop", {"runStrategy": "Manual"}, "Succeeded", refused="VM is not running"),
    "one that stops is not stopped": Case("stop", {"runStrategy": "Halted"}, "Running", refused="VM is stopping already"),
    "one that runs is restarted": Case("restart", {"runStrategy": "Always"}, "Running", noted=["Stop", "Start"]),
    "one that does not run is not restarted": Case("restart", {"runStrategy": "Always"}, None, refused="VM is not running"),
    "a halted one is not restarted": Case(
        "restart", {"runStrategy": "Halted"}, "Running", refused="Halted does not support manual restart requests"),
}


async def machine(store: Memory, how: Object, phase: str | None) -> Object:
    meta = {"name": "blue", "namespace": "default"}
    made = await store.create(kinds.MACHINE, {"metadata": meta, "spec": {**how, "template": {"spec": {"domain": {}}}}})
    if phase is not None:
        await store.create(kinds.INSTANCE, {"metadata": meta, "spec": {"domain": {}}})
        await store.patch(kinds.INSTANCE, "blue", {"status": {"phase": phase}}, "default", subresource="status")
    return made


@pytest.mark.parametrize("name", CASES)
async def test_actions(client: Client, store: Memory, name: str) -> None:
    case = CASES[name]
    made = await machine(store, case.how, case.phase)
    answer = await client.put(f"{PLACE}/{case.action}", {})
    now = await store.get(kinds.MACHINE, "blue", "default")
    noted: Any = (now.get("status") or {}).get("stateChangeRequests")
    if case.refused:
        assert (answer.status, answer.json["reason"]) == (409, "Conflict")
        assert answer.json["message"] == f'Operation cannot be fulfilled on virtualmachines.kubevirt.io "blue": {case.refused}'
        assert now == made
        return
    assert (answer.status, answer.data) == (202, b"")
    assert now["spec"] == {**made["spec"], **(case.spec or {})}
    assert (noted and [each["action"] for each in noted]) == case.noted
    for each in noted or ():
        if each["action"] == "Stop":
            assert each["uid"] == (await store.get(kinds.INSTANCE, "blue", "default"))["metadata"]["uid"]


async def test_one_wish_at_a_time(client: Client, store: Memory) -> None:
    await machine(store, {"runStrategy": "Manual"}, None)
    assert (await client.put(f"{PLACE}/start", {"dryRun": ["All"]})).status == 202
    assert (await client.put(f"{PLACE}/start", None)).status == 202, "the first was a dry run"
    answer = await client.put(f"{PLACE}/start", {})
    assert (answer.status, "Start already underway" in answer.json["message"]) == (409, True)


async def test_what_is_not_served(client: Client, store: Memory) -> None:
    assert (await client.put(f"{PLACE}/start", {})).status == 404, "no such machine"
    await machine(store, {"runStrategy": "Halted"}, None)
    assert (await client.put(f"{PLACE}/start", {"paused": True})).status == 400
    assert (await client.put(f"{PLACE}/migrate", {})).status == 404
    assert (await client.get(f"{PLACE}/start")).status == 405
    assert (await client.put(f"{PLACE}/start", [])).status == 400
    assert (await client.put(PLACE.replace("/v1/", "/v9/") + "/start", {})).status == 404
