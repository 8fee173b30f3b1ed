"""What virtctl asks of VMs and their instances: start, stop, restart, pause, unpause, reset, soft reboot; where it finds
that it may, and the message when it may not."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client

PLACE = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/blue"


@pytest.fixture
def store(ruled: Memory) -> Memory:
    return ruled


class Case(NamedTuple):
    action: str
    how: Object  # what the VM says of itself
    phase: str | None  # of its instance; None: there is none
    spec: Object | None = None
    noted: list[str] | None = None
    refused: str = ""
    body: Object | None = None
    grace: int | None = None  # seconds that the instance gets to shut down afterwards; None: it does not say


CASES = {
    "a halted VM is meant to run": Case("start", {"runStrategy": "Halted"}, None, {"runStrategy": "Always"}),
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
    "one that stops is not stopped": Case(
        "stop", {"runStrategy": "Halted"}, "Running",
        refused="Halted only supports manual stop requests with a shorter graceperiod"),
    "one that runs is restarted": Case("restart", {"runStrategy": "Always"}, "Running", noted=["Stop", "Start"]),
    "one that does not run is not restarted": Case("restart", {"runStrategy": "Always"}, None, refused="VM is not running"),
    "one that stops is forced": Case("stop", {"runStrategy": "Halted"}, "Running", body={"gracePeriod": 0}, grace=0),
    "one that stops is not given longer": Case(
        "stop", {"runStrategy": "Halted"}, "Running", body={"gracePeriod": 30},
        refused="Halted only supports manual stop requests with a shorter graceperiod"),
    "one that always runs is halted by force": Case(
        "stop", {"running": True}, "Running", {"running": False}, body={"gracePeriod": 0}, grace=0),
    "one of people is stopped by force": Case(
        "stop", {"runStrategy": "Manual"}, "Running", noted=["Stop"], body={"gracePeriod": 5}, grace=5),
    "one that runs is restarted by force": Case(
        "restart", {"runStrategy": "Always"}, "Running", noted=["Stop", "Start"], body={"gracePeriodSeconds": 0}, grace=0),
    "a halted one is started paused": Case(
        "start", {"runStrategy": "Halted"}, None, {"runStrategy": "Always"}, ["Start paused"], body={"paused": True}),
    "one of people is started paused": Case(
        "start", {"runStrategy": "Manual"}, None, noted=["Start paused"], body={"paused": True}),
    "a halted one is not restarted": Case(
        "restart", {"runStrategy": "Halted"}, "Running", refused="Halted does not support manual restart requests"),
    "a halted one that is off is reported as off": Case(
        "restart", {"runStrategy": "Halted"}, None, refused="Halted does not support manual restart requests"),
    "one that ran once is not started": Case(
        "start", {"runStrategy": "Once"}, "Succeeded", refused="Once does not support manual start requests"),
    "one that is being halted is taken for running": Case(
        "start", {"runStrategy": "Halted"}, "Running", refused="VM is already running"),
    "but outfit lets it run": Case(
        "start", {"runStrategy": "Halted"}, "Running", {"runStrategy": "Always"}, body={"outfit": True}),
    "but outfit starts it": Case("start", {"runStrategy": "Once"}, "Succeeded", noted=["Stop", "Start"], body={"outfit": True}),
    "one that failed and is to run again is not stopped": Case(
        "stop", {"runStrategy": "RerunOnFailure"}, "Failed", refused="VM is not running"),
    "but outfit stops it": Case("stop", {"runStrategy": "RerunOnFailure"}, "Failed", noted=["Stop"], body={"outfit": True}),
    "outfit does not stop one that has ended": Case(
        "stop", {"runStrategy": "RerunOnFailure"}, "Succeeded", refused="VM is not running", body={"outfit": True}),
}


async def machine(store: Memory, how: Object, phase: str | None) -> Object:
    meta = {"name": "blue", "namespace": "default"}
    made = await store.create(kinds.VM, {"metadata": meta, "spec": {**how, "template": {"spec": {"domain": {}}}}})
    if phase is not None:
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "blue", "uid": made["metadata"]["uid"],
                 "controller": True}
        await store.create(kinds.VMI, {"metadata": {**meta, "ownerReferences": [owner]}, "spec": {"domain": {}}})
        await store.patch(kinds.VMI, "blue", {"status": {"phase": phase}}, "default", subresource="status")
    return made


@pytest.mark.parametrize("name", CASES)
async def test_actions(client: Client, store: Memory, name: str) -> None:
    case = CASES[name]
    made = await machine(store, case.how, case.phase)
    answer = await client.put(f"{PLACE}/{case.action}", case.body or {})
    now = await store.get(kinds.VM, "blue", "default")
    noted: Any = (now.get("status") or {}).get("stateChangeRequests")
    if case.refused:
        assert (answer.status, answer.json["reason"]) == (409, "Conflict")
        assert answer.json["message"] == f'Operation cannot be fulfilled on virtualmachine.kubevirt.io "blue": {case.refused}'
        assert now == made
        return
    assert (answer.status, answer.data) == (202, b"")
    assert now["spec"] == {**made["spec"], **(case.spec or {})}
    assert (noted and [" ".join([each["action"], *(each.get("data") or {})]) for each in noted]) == case.noted
    if case.phase is not None:
        instance = await store.get(kinds.VMI, "blue", "default")
        assert instance["spec"].get("terminationGracePeriodSeconds") == case.grace
    for each in noted or ():
        if each["action"] == "Stop":
            assert each["uid"] == (await store.get(kinds.VMI, "blue", "default"))["metadata"]["uid"]


async def test_one_action_request_at_a_time(client: Client, store: Memory) -> None:
    await machine(store, {"runStrategy": "Manual"}, None)
    assert (await client.put(f"{PLACE}/start", {"dryRun": ["All"]})).status == 202
    assert (await client.put(f"{PLACE}/start", None)).status == 202, "the first was a dry run"
    answer = await client.put(f"{PLACE}/start", {})
    assert (answer.status, "Start already underway" in answer.json["message"]) == (409, True)


async def test_a_stop_that_is_done_is_in_nobodys_way(client: Client, store: Memory) -> None:
    """The VM's controller crosses it out a moment after the instance is gone."""
    await machine(store, {"runStrategy": "Manual"}, None)
    done = {"status": {"stateChangeRequests": [{"action": "Stop", "uid": "gone"}]}}
    await store.patch(kinds.VM, "blue", done, "default", subresource="status")
    assert (await client.put(f"{PLACE}/start", {})).status == 202
    now = await store.get(kinds.VM, "blue", "default")
    assert now["status"]["stateChangeRequests"] == [{"action": "Start"}]


async def test_one_that_stops_is_started_again_by_outfit_alone(client: Client, store: Memory) -> None:
    await machine(store, {"runStrategy": "Manual"}, "Running")
    assert (await client.put(f"{PLACE}/stop", {})).status == 202
    answer = await client.put(f"{PLACE}/start", {})
    assert (answer.status, "VM is already running" in answer.json["message"]) == (409, True)
    assert (await client.put(f"{PLACE}/start", {"outfit": True})).status == 202
    noted = (await store.get(kinds.VM, "blue", "default"))["status"]["stateChangeRequests"]
    assert [each["action"] for each in noted] == ["Stop", "Start"]
    assert (await client.put(f"{PLACE}/start", {"outfit": True})).status == 409, "it will start, and once is enough"


async def test_terminated_vmi_that_is_being_deleted_can_be_started(client: Client, store: Memory) -> None:
    await machine(store, {"runStrategy": "Manual"}, "Running")
    assert (await client.put(f"{PLACE}/stop", {})).status == 202
    await store.patch(kinds.VMI, "blue", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    assert (await client.put(f"{PLACE}/start", {})).status == 202
    assert (await client.put(f"{PLACE}/start", {})).status == 409


async def test_pending_start_is_cancelled_by_outfit_only(client: Client, store: Memory) -> None:
    await machine(store, {"runStrategy": "Manual"}, None)
    assert (await client.put(f"{PLACE}/start", {})).status == 202
    assert (await client.put(f"{PLACE}/stop", {})).status == 409
    assert (await client.put(f"{PLACE}/stop", {"outfit": True})).status == 202
    now = await store.get(kinds.VM, "blue", "default")
    assert not now["status"].get("stateChangeRequests")


async def test_a_stop_takes_the_place_of_what_was_to_come(client: Client, store: Memory) -> None:
    await machine(store, {"runStrategy": "Manual"}, "Running")
    assert (await client.put(f"{PLACE}/restart", {})).status == 202
    assert (await client.put(f"{PLACE}/stop", {})).status == 202
    now = await store.get(kinds.VM, "blue", "default")
    assert [each["action"] for each in now["status"]["stateChangeRequests"]] == ["Stop"]


async def test_vmi_of_another_owner_is_not_the_vms(client: Client, store: Memory) -> None:
    meta = {"name": "blue", "namespace": "default"}
    await store.create(kinds.VMI, {"metadata": meta, "spec": {"domain": {}}})
    await store.patch(kinds.VMI, "blue", {"status": {"phase": "Running"}}, "default", subresource="status")
    await machine(store, {"runStrategy": "Manual"}, None)
    answer = await client.put(f"{PLACE}/stop", {"gracePeriod": 0})
    assert (answer.status, "VM is not running" in answer.json["message"]) == (409, True)
    assert "terminationGracePeriodSeconds" not in (await store.get(kinds.VMI, "blue", "default"))["spec"]


class Asked(NamedTuple):
    action: str
    status: Object
    noted: list[str] | None = None
    refused: str = ""
    features: Object | None = None


RUNS: Object = {"phase": "Running"}
STANDS: Object = {**RUNS, "conditions": [{"type": "Paused", "status": "True", "reason": "PausedByUser"}]}


def noting(*actions: str, status: Object = RUNS) -> Object:
    return {**status, "stateChangeRequests": [{"action": action, "requestedAt": "2025-12-31T00:00:00Z"} for action in actions]}


ASKED = {
    "one that runs is paused": Asked("pause", RUNS, ["Pause"]),
    "one that is paused is not paused": Asked("pause", STANDS, refused="VMI is already paused"),
    "one that will be paused is not paused": Asked("pause", noting("Pause"), refused="VMI is already paused"),
    "one that will go on is paused after all": Asked("pause", noting("Unpause", status=STANDS), ["Pause"]),
    "one that starts is not paused": Asked("pause", {"phase": "Scheduled"}, refused="VM is not running"),
    "one that ended is not paused": Asked("pause", {"phase": "Succeeded"}, refused="VM is not running"),
    "one that is paused goes on": Asked("unpause", STANDS, ["Unpause"]),
    "one that runs does not go on": Asked("unpause", RUNS, refused="VMI is not paused"),
    "one that will be paused goes on instead": Asked("unpause", noting("Pause"), ["Unpause"]),
    "one that ended does not go on": Asked("unpause", {"phase": "Failed"}, refused="VMI is not running"),
    "one that runs is reset": Asked("reset", RUNS, ["Reset"]),
    "one that is paused is reset": Asked("reset", STANDS, ["Reset"]),
    "twice is once": Asked("reset", noting("Reset", "Pause"), ["Pause", "Reset"]),
    "one that waits is not reset": Asked("reset", {"phase": "Scheduling"}, refused="VMI is not running"),
    "one that runs is rebooted": Asked("softreboot", RUNS, ["SoftReboot"]),
    "one that is paused cannot hear that": Asked("softreboot", STANDS, refused="VMI is paused"),
    "nor can one without a power button": Asked(
        "softreboot", RUNS, features={"acpi": {"enabled": False}},
        refused="VMI neither have the agent connected nor the ACPI feature enabled"),
    "unless an agent hears it": Asked(
        "softreboot", {**RUNS, "conditions": [{"type": "AgentConnected", "status": "True"}]}, ["SoftReboot"],
        features={"acpi": {"enabled": False}}),
    "one that has the button": Asked("softreboot", RUNS, ["SoftReboot"], features={"acpi": {}}),
    "it can be reset all the same": Asked("reset", RUNS, ["Reset"], features={"acpi": {"enabled": False}}),
}
INSTANCE = "/apis/subresources.kubevirt.io/{}/namespaces/default/virtualmachineinstances/blue"


@pytest.mark.parametrize("version", ["v1", "v1alpha3"])
@pytest.mark.parametrize("name", ASKED)
async def test_what_is_asked_of_an_instance(client: Client, store: Memory, name: str, version: str) -> None:
    case, place = ASKED[name], INSTANCE.format(version)
    spec: Object = {"domain": {"devices": {}, **({"features": case.features} if case.features else {})}}
    await store.create(kinds.VMI, {"metadata": {"name": "blue", "namespace": "default"}, "spec": spec})
    before = await store.patch(kinds.VMI, "blue", {"status": case.status}, "default", subresource="status")
    dry = await client.put(f"{place}/{case.action}", {"dryRun": ["All"]})
    assert await store.get(kinds.VMI, "blue", "default") == before, "a dry run"
    answer = await client.put(f"{place}/{case.action}", None)
    now = await store.get(kinds.VMI, "blue", "default")
    assert answer.status == dry.status
    if case.refused:
        assert (answer.status, answer.json["reason"]) == (409, "Conflict")
        assert answer.json["message"] == (
            f'Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io "blue": {case.refused}')
        assert now == before
        return
    assert (answer.status, answer.data) == (200, b"")
    assert [note["action"] for note in now["status"]["stateChangeRequests"]] == case.noted
    assert (now["spec"], now["status"].get("conditions")) == (spec, case.status.get("conditions"))


BAD: dict[str, tuple[str, Any, str]] = {
    "no object": ("start", [], "the body of start must be an object of options"),
    "a negative time": ("stop", {"gracePeriod": -1}, "gracePeriod: Invalid value: -1"),
    "a time in words": ("restart", {"gracePeriodSeconds": "now"}, "gracePeriodSeconds: Invalid value: 'now'"),
    "half a dry run": ("stop", {"dryRun": ["Some"]}, "dryRun: Unsupported value: ['Some']"),
    "half paused": ("start", {"paused": "yes"}, "paused: Invalid value: 'yes'"),
}


@pytest.mark.parametrize("name", BAD)
async def test_options_that_mean_nothing(client: Client, store: Memory, name: str) -> None:
    action, body, said = BAD[name]
    made = await machine(store, {"runStrategy": "Manual"}, "Running")
    answer = await client.put(f"{PLACE}/{action}", body)
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")
    assert answer.json["message"].startswith(said)
    assert await store.get(kinds.VM, "blue", "default") == made


UNSERVED = {
    "virtualmachineinstances/blue/evacuate": "virtualmachineinstances/evacuate is not served: VMs are not moved away",
    "virtualmachineinstances/blue/console": "virtualmachineinstances/console is not served: outfitter does not open a",
    "virtualmachineinstances/blue/portforward/22/tcp": "virtualmachineinstances/portforward is not served: outfitter does",
    "virtualmachineinstances/blue/sev/fetchcertchain": "virtualmachineinstances/sev is not served: VMs with encrypted",
    "virtualmachines/blue/memorydump": "virtualmachines/memorydump is not served: outfitter does not keep disks",
    "virtualmachines/blue/dance": "the server could not find the requested resource",
    "virtualmachines/blue/pause": "the server could not find the requested resource",
}


@pytest.mark.parametrize("path", UNSERVED)
async def test_unserved_subresource_has_a_reason(client: Client, path: str) -> None:
    for call in (client.put(f"/apis/subresources.kubevirt.io/v1/namespaces/default/{path}", {}),
                 client.get(f"/apis/subresources.kubevirt.io/v1/namespaces/default/{path}")):
        answer = await call
        assert (answer.status, answer.json["message"].startswith(UNSERVED[path])) == (404, True)


OF_KUBECTL = {
    "/api/v1/namespaces/default/pods/p/log": "pods/log is not served: outfitter runs VMs, not containers",
    "/api/v1/namespaces/default/pods/p/exec": "pods/exec is not served: outfitter runs VMs, not containers",
    "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/blue/scale": "virtualmachines/scale is not served: a VM is",
    "/api/v1/namespaces/default/configmaps/c/log": "the server could not find the requested resource",
}


@pytest.mark.parametrize("path", OF_KUBECTL)
async def test_unsupported_kubectl_request_has_a_reason(client: Client, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status, answer.json["reason"]) == (404, "NotFound")
    assert answer.json["message"].startswith(OF_KUBECTL[path])


async def test_where_nothing_is(client: Client, store: Memory) -> None:
    for path, what in ((f"{PLACE}/start", "virtualmachine"), (f"{INSTANCE.format('v1')}/pause", "virtualmachineinstance")):
        answer = await client.put(path, {})
        assert (answer.status, answer.json["message"]) == (404, f'{what}.kubevirt.io "blue" not found')
    await machine(store, {"runStrategy": "Halted"}, None)
    assert (await client.get(f"{PLACE}/start")).status == 405
    assert (await client.put(PLACE.replace("/v1/", "/v9/") + "/start", {})).status == 404


async def test_who_may_not(client: Client) -> None:
    """By the names that a role for it has to have."""
    client.token = "bob"
    answer = await client.put(f"{PLACE}/start", {})
    assert (answer.status, answer.json["message"]) == (403, (
        'virtualmachines.subresources.kubevirt.io "blue" is forbidden: User "bob" cannot update resource '
        '"virtualmachines/start" in API group "subresources.kubevirt.io" in the namespace "default"'))


ALL = {"virtualmachines/start", "virtualmachines/stop", "virtualmachines/restart", "virtualmachines/migrate",
       "virtualmachineinstances/pause",
       "virtualmachineinstances/unpause", "virtualmachineinstances/reset", "virtualmachineinstances/softreboot"}


async def test_they_are_found(client: Client) -> None:
    group = (await client.get("/apis/subresources.kubevirt.io")).json
    assert [each["version"] for each in group["versions"]] == ["v1", "v1alpha3"]
    assert group in [{"kind": "APIGroup", "apiVersion": "v1", **each} for each in (await client.get("/apis")).json["groups"]]
    for version in ("v1", "v1alpha3"):
        found = (await client.get(f"/apis/subresources.kubevirt.io/{version}")).json
        assert found["groupVersion"] == f"subresources.kubevirt.io/{version}"
        assert {each["name"] for each in found["resources"]} == ALL
        assert {(tuple(each["verbs"]), each["namespaced"]) for each in found["resources"]} == {(("update",), True)}
    assert (await client.get("/apis/subresources.kubevirt.io/v9")).status == 404
    whole = (await client.get("/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")).json
    [ours] = [each for each in whole["items"] if each["metadata"]["name"] == "subresources.kubevirt.io"]
    assert {f"{each['resource']}/{inner['subresource']}" for each in ours["versions"][0]["resources"]
            for inner in each["subresources"] if inner["verbs"] == ["update"]} == ALL


async def test_the_version_that_virtctl_asks_for(client: Client) -> None:
    answer = (await client.get("/apis/subresources.kubevirt.io/v1/version")).json
    assert answer["gitVersion"].startswith("v1.8.0+outfitter")  # virtctl 1.8 compares major and minor with its own
    assert (await client.put("/apis/subresources.kubevirt.io/v1/version", {})).status == 405
