"""The words of every rejection code, as a golden file; and that codes, words and documentation are complete."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.booking import Holder
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import Wording, amount_text, error, render, render_all, to_object
from outfitter.errors import Unsatisfiable
from tests import golden

GPU = DeviceId("gpu.example.com", "node-1", "gpu-7f3c")
BLUE = Holder("ResourceClaim", "lab", "train-0", "uid-1", "vmi/blue")
SINCE = "2026-01-31T12:04:00Z"
Code = RejectionCode
HELD = Rejection(Code.HELD, GPU, BLUE, SINCE)
NOT_READY = Rejection.of(Code.DEVICE_NOT_READY, GPU, condition="Attached")
REQUEST = {"request": "gpu"}
TERM = {"owner": "request gpu", "selector": 1, "selectors": 1, "term": 'model == "A100"', "has": {"model": "A40"}, "lacks": (),
        "passed": 1}


def of(code: RejectionCode, device: DeviceId | None = None, /, **detail: Any) -> Rejection:
    return Rejection(code, device, detail=detail)


def alias(**detail: Any) -> Rejection:
    return of(Code.ALIAS_MISMATCH, GPU, alias="gpu", **detail)


HARDWARE = {"hardware": ("0000:65:00.0",), "other": "pci.outfitter.dev/node-1/pci-0000-65-00-0"}
EXAMPLES: dict[str, Rejection] = {
    "hardware that is held under another name": Rejection(Code.HARDWARE_HELD, GPU, BLUE, SINCE, HARDWARE),
    "hardware that is held, by whom is not known": of(Code.HARDWARE_HELD, GPU, **HARDWARE),
    "hardware that is reserved under another name": Rejection(
        Code.HARDWARE_HELD, GPU, detail=HARDWARE, causes=(Rejection(Code.RESERVED, GPU, since=SINCE, detail={"by": "admin"}),)),
    "two names of one function": of(Code.SAME_HARDWARE, hardware={"0000:65:00.0": ("a.example.com/node-1/x", "b/node-1/y")}),
    "no host": of(Code.NO_HOST),
    "a pod that cannot be understood": of(Code.POD_INVALID, message="spec.affinity: wrong"),
    "an object that cannot be read": of(
        Code.OBJECT_UNREADABLE, kind="ResourceSlice", name="net-a", field="spec.nodeSelector",
        message="ResourceSlice net-a cannot be read: spec.nodeSelector: must be an object"),
    "no claim": of(Code.CLAIM_MISSING, claim="c", entry="gpu"),
    "no claim from a template yet": of(Code.CLAIM_NOT_CREATED, entry="gpu", template="one-gpu"),
    "a claim of another owner": of(Code.CLAIM_NAME_TAKEN, claim="c", owners=("Pod web",), pod="blue"),
    "a claim of no owner": of(Code.CLAIM_NAME_TAKEN, claim="c", owners=(), pod="blue"),
    "a claim that is deleted": of(Code.CLAIM_DELETING, claim="c"),
    "a claim in use": of(Code.CLAIM_IN_USE, claim="c", pods=("web", "api")),
    "a claim in use, users by name": of(Code.CLAIM_IN_USE, claim="c", pods=("virt-launcher-blue-x",), users=("vmi/blue",)),
    "a claim whose device is tainted": of(Code.CLAIM_DEVICE_TAINTED, GPU, claim="c", taint="hot:NoExecute"),
    "a device whose user is evicted": of(Code.CLAIM_DEVICE_TAINTED, GPU, taint="hot:NoExecute"),
    "a claim that cannot be understood": of(Code.CLAIM_INVALID, where="claim lab/c, request gpu", message="unsupported"),
    "a pod group that is incomplete": of(Code.POD_GROUP_INCOMPLETE, group="training", members=2, wanted=4),
    "a pod group that does not fit": of(Code.POD_GROUP_TOO_FEW_HOSTS, group="training", placed=3, wanted=4),
    "no such request": of(Code.REQUEST_MISSING, claim="c", entry="gpu", request="gpus", requests=("gpu", "nic")),
    "no request at all": of(Code.REQUEST_MISSING, claim="c", entry="gpu", request="gpus", requests=()),
    "no class": of(Code.CLASS_MISSING, **{"where": "claim lab/c, request gpu", "class": "gpus"}),
    "a feature that a claim needs": of(
        Code.FEATURE_DISABLED, where="claim lab/c", what="has subrequests", feature="DRAPrioritizedList"
    ),
    "a feature that a claim needs, and what else would do": of(
        Code.FEATURE_DISABLED, where="claim lab/c", what="has subrequests", feature="DRAPrioritizedList", instead="use exactly"
    ),
    "a feature that a device needs": of(
        Code.FEATURE_DISABLED, GPU, what="shares counters", feature="DRAPartitionableDevices", **REQUEST
    ),
    "a pre-assigned device that is not there": of(Code.ASSIGNED_DEVICE_MISSING, id="node-1/x", resource="example.com/gpu"),
    "a pre-assigned device of which there are several": of(
        Code.ASSIGNED_DEVICE_AMBIGUOUS, id="x", resource="example.com/gpu", devices=("a/x", "b/x")
    ),
    "a pre-assigned device elsewhere": of(Code.ASSIGNED_DEVICE_ELSEWHERE, id="a/x", hosts=("a",)),
    "a pre-assigned device nowhere": of(Code.ASSIGNED_DEVICE_ELSEWHERE, id="a/x", hosts=()),
    "pre-assigned devices that are not here": of(Code.ASSIGNED_DEVICE_ELSEWHERE),
    "a pre-assigned device that is held": Rejection(Code.HELD, None, BLUE, SINCE, {"id": "a/x"}),
    "a pre-assigned device that is held, by whom is not known": of(Code.HELD, id="a/x"),
    "a pre-assigned device that is reserved": Rejection(Code.RESERVED, None, None, SINCE, {"id": "a/x"}),
    "another node was chosen": of(Code.NODE_NAME, node="node-2"),
    "cordoned": of(Code.NODE_CORDONED),
    "not ready": of(Code.NODE_NOT_READY, message="the kubelet stopped posting"),
    "pressure": of(Code.NODE_PRESSURE, condition="PIDPressure", short="process ids", message="too many"),
    "no network": of(Code.NODE_NETWORK_UNAVAILABLE, message="no route"),
    "a taint of a node": of(Code.NODE_TAINTED, taint="gpu=only:NoSchedule"),
    "a label with another value": of(Code.NODE_SELECTOR, label="zone", wanted="east", has="west"),
    "no such label": of(Code.NODE_SELECTOR, label="zone", wanted="east", has=None),
    "the name of another host": of(Code.NODE_SELECTOR, label="kubernetes.io/hostname", wanted="oak", has="elm"),
    "not this host": of(Code.NODE_AFFINITY, terms=(
        {"key": "metadata.name", "operator": "NotIn", "values": ("elm",), "has": "elm"},)),
    "affinity": of(
        Code.NODE_AFFINITY,
        terms=(
            {"key": "rack", "operator": "In", "values": ("r1", "r3"), "has": "r2"},
            {"key": "zone", "operator": "Exists", "values": (), "has": None},
            {},
        ),
    ),
    "affinity, other operators": of(
        Code.NODE_AFFINITY,
        terms=(
            {"key": "rack", "operator": "NotIn", "values": ("r2",), "has": "r2"},
            {"key": "rack", "operator": "DoesNotExist", "values": (), "has": "r2"},
            {"key": "slots", "operator": "Gt", "values": ("8",), "has": "8"},
        ),
    ),
    "affinity, many terms": of(
        Code.NODE_AFFINITY,
        terms=tuple({"key": "slots", "operator": "Lt", "values": (str(number),), "has": "8"} for number in range(5)),
    ),
    "affinity without terms": of(Code.NODE_AFFINITY, terms=()),
    "too little memory": of(
        Code.INSUFFICIENT_RESOURCE, resource="memory", wanted=(3 << 30) + 1, free=(1 << 30) - 1, total=4 << 30
    ),
    "too little cpu": of(Code.INSUFFICIENT_RESOURCE, resource="cpu", wanted=2000, free=500, total=16000),
    "a resource that is not offered": of(Code.RESOURCE_NOT_OFFERED, resource="example.com/gpu", wanted=1),
    "an amount that cannot be read": of(Code.RESOURCE_UNREADABLE, resource="cpu", error="'many' is no number"),
    "an excluded host": of(Code.HOST_EXCLUDED, message="devices on node-1 were given back: x", until=SINCE),
    "devices elsewhere": of(Code.CLAIM_ELSEWHERE, hosts=("a", "b")),
    "devices on no common host": of(Code.CLAIM_ELSEWHERE, hosts=()),
    "a resource that the host offers itself": of(Code.ASSIGNED_RESOURCE_OFFERED, resources=("example.com/gpu",)),
    "a plug-in": of(Code.PLUGIN_REJECTED, plugin="picky", message="gpu-7f3c is not for everybody"),
    "a plug-in that failed": of(Code.PLUGIN_FAILED, plugin="picky", error="ValueError: x"),
    "fits by now": of(Code.FITS_NOW),
    "no devices": of(Code.NO_DEVICES),
    "a pool that is updated": of(Code.POOL_UPDATING, pool="gpu.example.com/node-1"),
    "a pool that is updated, for all devices": of(
        Code.POOL_UPDATING, pool="gpu.example.com/node-1", where="claim lab/c, request gpu"
    ),
    "a pool that is invalid": of(Code.POOL_INVALID, pool="gpu.example.com/node-1", message="device x is there twice"),
    "a pool that is invalid, for all devices": of(
        Code.POOL_INVALID, pool="gpu.example.com/node-1", message="device x is there twice", where="claim lab/c, request gpu"
    ),
    "no match": of(Code.NO_MATCH, devices=4, alternatives=({**REQUEST, "class": "gpu"},)),
    "no match, alternatives": of(
        Code.NO_MATCH,
        devices=4,
        alternatives=({"request": "gpu/large", "class": "a100"}, {"resource": "example.com/gpu", "class": "gpu"}),
    ),
    "no match, an alias": of(Code.NO_MATCH, devices=4, alias="gpu"),
    "too few free": of(Code.TOO_FEW_FREE, wanted=2, match=4, free=1, **REQUEST),
    "too few free, all of them": of(Code.TOO_FEW_FREE, all=True, match=4, free=1, **REQUEST),
    "too few free, a resource": of(Code.TOO_FEW_FREE, wanted=2, match=4, free=1, resource="example.com/gpu"),
    "too few free, an alias": of(Code.TOO_FEW_FREE, wanted=2, match=4, free=1, alias="gpu"),
    "too few together": of(Code.TOO_FEW_TOGETHER, wanted=2, free=1),
    "too few together, aliases": of(Code.TOO_FEW_TOGETHER, wanted=2, aliases=("gpu:1", "nic:1"), isolate=False, rooms={"x": 1}),
    "too few together, isolated": of(Code.TOO_FEW_TOGETHER, wanted=2, aliases=("gpu:2",), isolate=True, rooms={"x": 1, "y": 0}),
    "too many devices": of(Code.TOO_MANY_DEVICES, where="claim lab/c", wanted=40, limit=32),
    "a constraint": of(Code.CONSTRAINT_UNMET, wanted=2, attribute="example.com/numa", distinct=False),
    "a distinct constraint": of(Code.CONSTRAINT_UNMET, wanted=2, attribute="example.com/numa", distinct=True),
    "a constraint, value by value": of(
        Code.CONSTRAINT_UNMET,
        wanted=2,
        attribute="example.com/numa",
        distinct=False,
        free={"0": 1, "1": 1},
        more=True,
        **REQUEST,
    ),
    "a constraint that a device breaks": of(
        Code.CONSTRAINT_UNMET, GPU, where="claim lab/c, request gpu", attribute="example.com/numa", distinct=False
    ),
    "a counter": of(Code.COUNTER_EXHAUSTED, counter="functions of card (gpu.example.com/node-1)"),
    "the counters of a request": of(Code.COUNTER_EXHAUSTED, wanted=2, **REQUEST),
    "the counter of a device": Rejection(
        Code.COUNTER_EXHAUSTED,
        GPU,
        detail={"sets": ("card",)},
        causes=(
            HELD,
            of(Code.HELD, DeviceId("d", "p", "vf1")),
            of(Code.HELD, DeviceId("d", "p", "vf2")),
            of(Code.HELD, DeviceId("d", "p", "vf3")),
        ),
    ),
    "the counter of a device, by whom is not known": of(Code.COUNTER_EXHAUSTED, GPU, sets=("card", "memory")),
    "the counter of a PCI device": of(Code.COUNTER_EXHAUSTED, GPU, amount="2", counter="functions", set="card", left="1"),
    "no combination": of(Code.NO_COMBINATION),
    "selectors that cost too much": of(Code.SELECTOR_BUDGET, where="claim lab/c", limit=400000),
    "a search that took too long": of(Code.SEARCH_LIMIT, where="claim lab/c", node="node-1", attempts=200000),
    "a selector": of(Code.SELECTOR_FALSE, GPU, **REQUEST, **TERM),
    "one of several selectors": of(
        Code.SELECTOR_FALSE, GPU, **REQUEST, **{**TERM, "selector": 2, "selectors": 3, "has": {}, "lacks": ("model", "memory")}
    ),
    "a selector, has and lacks": of(Code.SELECTOR_FALSE, GPU, **REQUEST, **{**TERM, "lacks": ("memory",)}),
    "a selector without a result": of(
        Code.SELECTOR_ERROR, GPU, where="class gpu: selector #0", error="CEL runtime error: no such key: model",
        missing="model", optional='device.attributes["gpu.example.com"].?model.orValue("")'
    ),
    "an alias, no provider": alias(field="provider"),
    "an alias, class": alias(field="resource_class", has=("CUSTOM_A",), wanted="CUSTOM_B"),
    "an alias, traits": alias(field="traits", lacks=("lacks CUSTOM_X", "has CUSTOM_Y")),
    "an alias, ids": alias(field="ids", has="10de:2204", wanted="10de:*"),
    "an alias, for ports alone": alias(field="ports", has="a vdpa device"),
    "an alias, a physical function": alias(field="device_type", has="type-PF", wanted=None),
    "an alias, type": alias(field="device_type", has="type-VF", wanted="type-PF"),
    "an alias, can migrate": alias(field="live_migratable", has=True, wanted=False),
    "an alias, cannot migrate": alias(field="live_migratable", has=False, wanted=True),
    "an alias, migration unknown": alias(field="live_migratable", has=None, wanted=True),
    "an alias with several specs": Rejection(
        Code.ALIAS_MISMATCH, GPU, causes=(alias(field="provider"), alias(field="ids", has="10de:2204", wanted="8086:*"))
    ),
    "held": HELD,
    "held by a claim alone": Rejection(Code.HELD, GPU, dataclasses.replace(BLUE, purpose=""), SINCE),
    "held, since when is not known": Rejection(Code.HELD, GPU, BLUE),
    "held, by whom is not known": of(Code.HELD, GPU),
    "held by the same VM": of(Code.HELD, GPU, same="the flavor"),
    "reserved": Rejection(Code.RESERVED, GPU, None, SINCE, {"reason": "maintenance"}),
    "quarantined": Rejection(Code.QUARANTINED, GPU, None, SINCE, {"reason": "too hot"}),
    "unclean": Rejection(Code.UNCLEAN, GPU, None, SINCE),
    "pre-assigned to another pod": of(Code.ASSIGNED_TO_OTHER, GPU, pod="web", namespace="lab"),
    "tainted": of(Code.TAINTED, GPU, taint="hot=very:NoSchedule", **REQUEST),
    "tainted, tolerated until now": of(Code.TAINTED, GPU, taint="hot:NoExecute", expired=True, **REQUEST),
    "tainted by a rule": of(Code.TAINTED, GPU, taint="hot:NoSchedule", rules=("cooling",), **REQUEST),
    "tainted by two rules, for a flavor": of(
        Code.TAINTED, GPU, taint="hot:NoExecute, old:NoSchedule", rules=("cooling", "aged")),
    "a claim whose device is tainted by a rule": of(
        Code.CLAIM_DEVICE_TAINTED, GPU, claim="c", taint="hot:NoExecute", rules=("cooling",)),
    "tainted, for a flavor": of(Code.TAINTED, GPU, taint="hot:NoExecute"),
    "too small": of(Code.CAPACITY_TOO_SMALL, GPU, **REQUEST),
    "too little left": of(Code.CAPACITY_USED, GPU, **REQUEST),
    "an attribute that a constraint needs": of(Code.ATTRIBUTE_MISSING, GPU, attribute="example.com/numa", **REQUEST),
    "not reachable": of(Code.NOT_REACHABLE, GPU, **REQUEST),
    "too few CPUs on a NUMA cell": of(Code.NUMA_TOO_FEW_CPUS, parts=(2, 2), pinned=True, wanted=2, cells={0: 1, 1: 4}),
    "too few CPUs, shared": of(Code.NUMA_TOO_FEW_CPUS, parts=(4,), pinned=False, wanted=1, cells={0: 1}),
    "NUMA cells too far": of(Code.NUMA_TOO_FAR, policies=("gpu required",), cells={0: 1}),
    "NUMA cells too far, cells not known": of(Code.NUMA_TOO_FAR, policies=("gpu required",), cells={}),
    "a device on a NUMA cell": of(Code.NUMA_TOO_FAR, GPU, numa=1),
    "a device on an unknown NUMA cell": of(Code.NUMA_TOO_FAR, GPU, numa=None),
    "excluded": Rejection(Code.EXCLUDED, GPU, BLUE, SINCE, {"other": "gpu-7f3c-vf0"}),
    "a CPU": Rejection(Code.CPU_HELD, None, BLUE, SINCE, {"cpu": 4, "host": "node-1"}),
    "a page": of(Code.PAGE_CONFLICT, message="memory of gpu-7f3c: 4Gi wanted"),
    "a device that is not ready": NOT_READY,
    "a device that is not ready, and why": of(Code.DEVICE_NOT_READY, GPU, condition="Attached", message="no port"),
    "a device that failed": of(Code.DEVICE_FAILED, GPU, condition="AttachFailed", message="no port"),
    "devices that were not made ready in time": Rejection(
        Code.DEVICE_READY_TIMEOUT, None, None, "", {"seconds": 600}, (NOT_READY,) * 5
    ),
    "a claim that is not allocated": of(Code.CLAIM_NOT_ALLOCATED, claim="c"),
    "a claim that is reserved for others": of(Code.CLAIM_NOT_RESERVED, claim="c", pod="p"),
    "a DRA driver that is not registered": of(Code.DRIVER_NOT_REGISTERED, driver="net.example.com", claim="c"),
    "a DRA driver that failed": of(Code.DRIVER_CALL_FAILED, driver="net.example.com", message="no firmware"),
    "a DRA driver that is not accepted": of(Code.DRIVER_REFUSED, driver="net.example.com", message="its socket is a file"),
    "DRA drivers that do not answer": of(Code.DRIVER_CALL_PENDING, seconds=12),
    "devices that are not booked": of(Code.NOT_BOOKED, devices=("gpu-0", "gpu-1"), claim="c", host="node-1"),
    **{f"a message of the node: {code}": of(code, message="0000:65:00.0 is no longer on the bus") for code in (
        Code.DEVICE_MISSING, Code.DEVICE_IN_USE, Code.DRIVER_NOT_BOUND, Code.IOMMU_GROUP_SHARED, Code.VFS_PRESENT,
        Code.PREPARE_FAILED, Code.RELEASE_FAILED, Code.NETWORK_NOT_READY, Code.SECRET_MISSING, Code.SOURCES_DISAGREE,
        Code.NO_PCI_PORT, Code.NIC_KEPT_BY_GUEST, Code.NIC_NOT_PLUGGED, Code.VF_NOT_BOOKED, Code.VM_MIGRATES,
        Code.DEVICE_KEPT_BY_GUEST, Code.DEVICE_NOT_PLUGGED, Code.DEVICE_NOT_BOOKED, Code.NO_FREE_DEVICE_ON_HOST,
        Code.VM_PAUSED, Code.VM_STOPS, Code.PLUG_NOT_IN_PLACE, Code.FLAVOR_DEVICE,
        Code.DOMAIN_INVALID, Code.HYPERVISOR_REFUSED, Code.HYPERVISOR_AWAY, Code.LAUNCHER_AWAY, Code.LAUNCHER_VERSION)},
    "a pre-assigned device that is not on the pod's node": of(
        Code.ASSIGNED_DEVICE_MISSING, id="gpu-9", resource="example.com/gpu", host="node-1"),
    "a device plugin that was refused": of(
        Code.DEVICE_PLUGIN_MISSING, resources=("example.com/gpu",), host="node-1",
        problems=("device plugin of example.com/gpu: it lists too much",)),
    "a device plugin that is not there": of(Code.DEVICE_PLUGIN_MISSING, resources=("example.com/gpu",), host="node-1"),
    "too few devices of a plugin": of(Code.DEVICES_UNAVAILABLE, resource="example.com/gpu", wanted=2, free=1),
    "no healthy device of a plugin": of(Code.NO_HEALTHY_DEVICE, resource="example.com/gpu"),
    "an assigned device that is not healthy": of(Code.DEVICE_UNHEALTHY, id="gpu-0", resource="example.com/gpu"),
    "an unhealthy device of a pod that runs": of(
        Code.DEVICE_UNHEALTHY, message="example.com/gpu/node-1/gpu-0 is unhealthy: its device plugin reports it as unhealthy"),
    "more devices than requested": of(Code.TOO_MANY_ASSIGNED, container="c", resource="example.com/gpu", assigned=2, wanted=1),
    "one device for two containers": of(Code.ASSIGNED_TWICE, id="gpu-0", resource="example.com/gpu", containers=("a", "b")),
    "devices that are not aligned": of(Code.TOPOLOGY_AFFINITY),
    "a plugin that is not accepted": of(Code.DEVICE_PLUGIN_REFUSED, resource="example.com/gpu", message="it lists too much"),
    "a plugin that failed": of(Code.PLUGIN_CALL_FAILED, message="the card is on fire"),
    "a plugin that names no device": of(Code.PLUGIN_ANSWER_INVALID, message="PCI_RESOURCE_A_IO_GPU lists none"),
    "a running VM's device that left the bus": of(Code.DEVICE_VANISHED, GPU, host="node-1"),
    "a running VM's device that its driver withdrew": of(Code.DEVICE_NOT_PUBLISHED, GPU),
    "a claim that cannot follow a migration": of(Code.CLAIM_BY_NAME, claim="my-gpu"),
    "a device that cannot travel": of(Code.DEVICE_NOT_MIGRATABLE, GPU, name="g0"),
    "a device by resource name cannot travel": of(Code.DEVICE_BY_RESOURCE, name="g0"),
    "one of several mediated devices cannot travel": of(Code.SEVERAL_MEDIATED_DEVICES, GPU, name="g0"),
    "an alias whose devices may not travel": of(Code.ALIAS_NOT_MIGRATABLE, alias="a100", name="a100-0"),
    "no other host has a twin": of(Code.NO_FREE_TWIN, name="g0", wanted=1, match=0, free=0),
    "the twins are held": Rejection(
        Code.NO_FREE_TWIN, detail={"name": "g0", "wanted": 2, "match": 3, "free": 1}, causes=(HELD,)),
    "devices that were released": Rejection(Code.DEVICES_GIVEN_BACK, None, None, "", {"host": "node-1"}, (NOT_READY,)),
    "devices that were released, from where is not known": Rejection(
        Code.DEVICES_GIVEN_BACK, None, None, "", {"host": ""}, (NOT_READY,)
    ),
}


def test_words() -> None:
    wordings = {
        "in the reader's namespace": render(HELD, Wording("lab")), "elsewhere": render(HELD, Wording("other")),
        "without claims": render(HELD, Wording("lab", claims=False)),
        "pre-assigned in the reader's namespace": render(EXAMPLES["pre-assigned to another pod"], Wording("lab")),
        "many hosts": render(EXAMPLES["no match"], Wording(many=True)),
        "several, each once": render_all([HELD, HELD, EXAMPLES["cordoned"]]),
    }
    golden.check(__file__, "rejection_text", {name: render(one) for name, one in EXAMPLES.items()} | wordings)


def test_every_code_has_an_example() -> None:
    assert {rejection.code for rejection in EXAMPLES.values()} == set(Code)


def test_for_programs() -> None:
    found = to_object(Rejection(Code.HELD, GPU, BLUE, SINCE, REQUEST))
    assert {key: value for key, value in found.items() if key != "message"} == {
        "code": "Held", "device": {"driver": "gpu.example.com", "pool": "node-1", "name": "gpu-7f3c"}, "since": SINCE,
        "holder": {"kind": "ResourceClaim", "namespace": "lab", "name": "train-0", "uid": "uid-1", "purpose": "vmi/blue"},
        "detail": {"request": "gpu"}}
    assert found["message"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_rejection_can_be_written_as_json(name: str) -> None:
    found = to_object(EXAMPLES[name])
    assert json.loads(json.dumps(found))["code"] == EXAMPLES[name].code
    assert set(found) <= {"code", "message", "device", "holder", "since", "detail"}


def test_an_error_carries_the_rejection() -> None:
    made = error(Unsatisfiable, HELD)
    assert (made.rejection, made.message) == (HELD, render(HELD))


def test_rejections_are_values() -> None:
    same = Rejection(Code.HELD, GPU, BLUE, SINCE, {})
    assert same == HELD
    assert hash(same) == hash(HELD)
    assert same != HELD.with_detail(request="gpu")
    with pytest.raises(dataclasses.FrozenInstanceError):
        same.code = Code.TAINTED  # type: ignore[misc]


@pytest.mark.parametrize(("name", "amount", "up", "text"), [
    ("cpu", 1500, False, "1.5"), ("cpu", 2000, True, "2"), ("memory", 1023, False, "1023"), ("memory", 1 << 30, False, "1Gi"),
    ("memory", (1 << 30) - 1, False, "1023.9Mi"), ("memory", (1 << 30) + 1, True, "1.1Gi"), ("pods", 3, True, "3"),
    ("hugepages-2Mi", 1 << 31, False, "2Gi")])
def test_amounts(name: str, amount: int, up: bool, text: str) -> None:
    assert amount_text(name, amount, up=up) == text


def test_the_documented_codes_are_the_codes() -> None:
    """Code, meaning and what helps, in the order of the enumeration."""
    text = (Path(__file__).parents[2] / "docs" / "rejection-codes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert [code for code, _, _ in rows] == [str(code) for code in Code]
