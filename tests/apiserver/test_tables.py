"""What people see after `kubectl get`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import printer_columns
from outfitter.apiserver import tables
from outfitter.store.clock import ManualClock, rfc3339
from tests.apiserver.asgi import CONFIG_MAPS, INSTANCES, TABLE, Client, config_map, instance

NOW = ManualClock().now()
BORN = rfc3339(NOW - timedelta(minutes=5))

AGES = {
    0: "0s", 119: "119s", 120: "2m", 125: "2m5s", 599: "9m59s", 600: "10m", 10_799: "179m", 10_800: "3h", 11_000: "3h3m",
    28_800: "8h", 29_000: "8h", 172_799: "47h", 172_800: "2d", 190_000: "2d4h", 691_200: "8d", 63_071_999: "729d",
    63_072_000: "2y", 70_000_000: "2y80d", 252_288_000: "8y", -1: "0s", -5: "<invalid>",
}


@pytest.mark.parametrize(("seconds", "text"), AGES.items())
def test_ages_are_formatted_as_in_kubectl(seconds: int, text: str) -> None:
    assert printer_columns.duration(seconds) == text


class Case(NamedTuple):
    kind: Kind
    object: Object
    row: dict[str, Any]
    wide: dict[str, Any] = {}  # noqa: RUF012  # never changed


def condition(type_: str, status: str, message: str = "") -> Object:
    return {"type": type_, "status": status, "message": message}


CASES = {
    "a pod at work": Case(kinds.POD, {
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}, {"name": "b"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [
            {"ready": True, "restartCount": 2}, {"ready": False, "restartCount": 1}]}},
        {"Ready": "1/2", "Status": "Running", "Restarts": 3, "Age": "5m"}, {"IP": "10.0.0.7", "Node": "n1"}),
    "an unscheduled pod": Case(kinds.POD, {"spec": {"containers": [{"name": "a"}]}},
                              {"Ready": "0/1", "Status": "Pending", "Restarts": 0}, {"IP": "<none>", "Node": "<none>"}),
    "a pod whose container waits": Case(kinds.POD, {"status": {"phase": "Pending", "containerStatuses": [
        {"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}, {"Status": "ImagePullBackOff"}),
    "a pod going away": Case(kinds.POD, {"metadata": {"deletionTimestamp": BORN}, "status": {"phase": "Running"}},
                             {"Status": "Terminating"}),
    "a node": Case(kinds.NODE, {
        "metadata": {"labels": {"node-role.kubernetes.io/compute": ""}}, "spec": {"unschedulable": True},
        "status": {"conditions": [condition("Ready", "True")], "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
                   "nodeInfo": {"kubeletVersion": "v1"}}},
        {"Status": "Ready,SchedulingDisabled", "Roles": "compute", "Version": "v1"},
        {"Internal-IP": "10.1.1.1", "External-IP": "<none>"}),
    "a node that reports nothing": Case(kinds.NODE, {}, {"Status": "Unknown", "Roles": "<none>"}),
    "a namespace": Case(kinds.NAMESPACE, {"status": {"phase": "Active"}}, {"Status": "Active", "Age": "5m"}),
    "an event": Case(kinds.EVENT, {
        "involvedObject": {"kind": "Pod", "name": "p"}, "type": "Warning", "reason": "Failed", "message": "no",
        "lastTimestamp": BORN, "count": 3},
        {"Last Seen": "5m", "Type": "Warning", "Reason": "Failed", "Object": "pod/p", "Message": "no"}, {"Count": 3}),
    "a secret": Case(kinds.SECRET, {"type": "Opaque", "data": {"a": "", "b": ""}}, {"Type": "Opaque", "Data": 2}),
    "a lease": Case(kinds.LEASE, {"spec": {"holderIdentity": "me"}}, {"Holder": "me"}),
    "a claim that waits": Case(kinds.RESOURCE_CLAIM, {}, {"State": "pending"}),
    "a claim in use": Case(kinds.RESOURCE_CLAIM, {"status": {"allocation": {"devices": {}}, "reservedFor": [{"name": "p"}]}},
                           {"State": "allocated,reserved"}),
    "a slice": Case(kinds.RESOURCE_SLICE, {"spec": {"nodeName": "n1", "driver": "pci.outfitter.dev", "pool": {"name": "p"}}},
                    {"Node": "n1", "Driver": "pci.outfitter.dev", "Pool": "p"}),
    "a VM that runs": Case(kinds.VMI, {"status": {
        "phase": "Running", "nodeName": "n1", "interfaces": [{}, {"ipAddress": "10.0.0.9"}],
        "conditions": [condition("Ready", "True"), condition("LiveMigratable", "False")],
        "deviceStatus": {"gpuStatuses": [{}], "hostDeviceStatuses": [{}, {}]}}},
        {"Age": "5m", "Phase": "Running", "IP": "10.0.0.9", "NodeName": "n1", "Ready": "True", "Devices": 3, "Waiting": ""},
        {"Live-Migratable": "False", "Paused": ""}),
    "a VM that waits": Case(kinds.VMI, {"status": {"conditions": [
        condition("Ready", "False", "not running"),
        {**condition("Synchronized", "False", "Error creating pod: too many"), "reason": "FailedCreate"}]}},
        {"Devices": 0, "Waiting": "FailedCreate: it could not be created"}),
    "a VM that has one device of two": Case(kinds.VMI, {"status": {"deviceStatus": {"gpuStatuses": [
        {"name": "a", "deviceResourceClaimStatus": {"name": "gpu-0", "resourceClaimName": "c"}},
        {"name": "b", "deviceResourceClaimStatus": {"resourceClaimName": "d"}}]}}}, {"Devices": 1}),
    "a VM that has ended released what its status reports": Case(kinds.VMI, {"status": {
        "phase": "Failed", "deviceStatus": {"gpuStatuses": [{}]}}}, {"Phase": "Failed", "Devices": 0}),
    "a page": Case(kinds.LEDGER_PAGE, {"spec": {"bookings": [{"state": "booked"}, {"state": "prepared"}, {"state": "booked"}]}},
                   {"Booked": 2, "Prepared": 1, "Age": "5m"}),
    "a kind without columns of its own": Case(kinds.DEVICE_CLASS, {}, {"Age": "5m"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_columns(case: Case) -> None:
    metadata = {"name": "it", "creationTimestamp": BORN, **case.object.get("metadata", {})}
    table = tables.table(case.kind, [{**case.object, "metadata": metadata}], {}, now=NOW, include="None", version="v1")
    heads = table["columnDefinitions"]
    shown = dict(zip([head["name"] for head in heads], table["rows"][0]["cells"], strict=True))
    assert shown["Name"] == "it"
    assert {name: shown[name] for name in case.row | case.wide} == case.row | case.wide
    wide = {head["name"] for head in heads if head["priority"]}
    assert wide >= set(case.wide)
    assert not wide & set(case.row)


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("junk", [None, 5, "x", [], [5], {"a": 5}])
def test_odd_objects_still_have_a_row(kind: Kind, junk: Any) -> None:
    status = dict.fromkeys(("conditions", "containerStatuses", "interfaces", "deviceStatus", "addresses", "reservedFor"), junk)
    spec = dict.fromkeys(("bookings", "containers", "nodeName"), junk)
    obj = {"metadata": {"name": "it", "creationTimestamp": junk}, "spec": spec, "status": status, "data": junk,
           "involvedObject": junk}
    table = tables.table(kind, [obj, {"metadata": {}, "spec": junk, "status": junk}], {}, now=NOW, include="None", version="v1")
    assert len(table["rows"]) == 2


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_the_rows_carry_what_was_asked_for(client: Client, version: str) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    accept = TABLE.replace("v=v1;", f"v={version};")
    for path in (CONFIG_MAPS, f"{CONFIG_MAPS}/a"):
        table = (await client.get(path, accept=accept)).json
        assert (table["kind"], table["apiVersion"]) == ("Table", f"meta.k8s.io/{version}")
        assert table["metadata"]["resourceVersion"] == "1"
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        assert (await client.get(path, accept=accept, includeObject="None")).json["rows"][0]["object"] is None
        assert (await client.get(path, accept=accept, includeObject="Object")).json["rows"][0]["object"]["data"] == {"k": "v"}
    assert (await client.get(CONFIG_MAPS, accept=accept, includeObject="Some")).status == 422


async def test_ages_come_from_the_stores_clock(client: Client, clock: ManualClock) -> None:
    await client.post(INSTANCES, instance("vm"))
    clock.advance(130)
    assert (await client.get(INSTANCES, accept=TABLE)).json["rows"][0]["cells"][1] == "2m10s"
