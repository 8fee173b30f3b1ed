"""May a pod run on a node: tables of what Kubernetes decides, and the rejections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api.rejection import Rejection
from outfitter.cel.library import quantity
from outfitter.errors import Invalid
from outfitter.scheduling.filter.node_fit import NodeInfo, NodeInfoCache, PodRequirements
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.filter.pod_requests import requests
from tests.rejected import Code, no

Object = dict[str, Any]
ROOMY = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
GI = 1 << 30


def fit(node: Object, pod: Object, used: NodeUsage) -> tuple[Rejection, ...]:
    """Why a pod cannot run on a node; empty if it can."""
    return PodRequirements.of(pod).unfit(NodeInfo.of(node), used)


def node(*, name: str = "a", allocatable: Mapping[str, Any] | None = None, taints: Any = (), cordoned: bool = False,
         ready: str = "True", labels: Mapping[str, str] | None = None, **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": ready, "message": "" if ready == "True" else "the agent stopped posting"}]
    return {"metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {"unschedulable": cordoned, "taints": list(taints)},
            "status": {"conditions": conditions, "allocatable": dict(ROOMY if allocatable is None else allocatable), **status}}


def pod(name: str = "p", *, on: str | None = None, phase: str = "Pending", requests: Mapping[str, Any] | None = None,
        **spec: Any) -> Object:
    containers = [{"name": "main", "resources": {"requests": dict(requests or {})}}]
    where = {"nodeName": on} if on else {}
    return {"metadata": {"name": name, "namespace": "here", "uid": f"uid-{name}"}, "status": {"phase": phase},
            "spec": {"containers": containers, **where, **spec}}


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Object:
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def wants(*terms: Any) -> Object:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def term(key: str, operator: str, *values: str, part: str = "matchExpressions") -> Object:
    return {part: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def failing(key: str, operator: str, *values: str, has: str | None) -> Object:
    return {"key": key, "operator": operator, "values": values, "has": has}


def affinity(*terms: Object) -> Rejection:
    return no(Code.NODE_AFFINITY, terms=terms)


def selected(label: str, wanted: str, has: str | None) -> Rejection:
    return no(Code.NODE_SELECTOR, label=label, wanted=wanted, has=has)


def unreadable(amount: str) -> str:
    with pytest.raises(ValueError, match="quantity") as caught:
        quantity.parse(amount)
    return str(caught.value)


def short(resource: str, free: int, total: int, wanted: int) -> Rejection:
    return no(Code.INSUFFICIENT_RESOURCE, resource=resource, free=free, total=total, wanted=wanted)


@dataclass(frozen=True)
class Case:
    node: Object
    pod: Object
    rejects: tuple[Rejection, ...] = ()
    others: tuple[Object, ...] = field(default_factory=tuple)


R2 = node(labels={"rack": "r2", "slots": "8", "odd": "x"})
GPU = node(taints=[taint("gpu", "only")])
NOT_GPU = no(Code.NODE_TAINTED, taint="gpu=only:NoSchedule")
CORDON = no(Code.NODE_CORDONED)
NOT_READY = no(Code.NODE_NOT_READY, message="the agent stopped posting")
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

PLACES = {
    "an empty pod on an empty node": Case(node(), pod()),
    "its node was chosen by a user": Case(node(), pod(on="a")),
    "another node was chosen": Case(
        node(), pod(on="b", nodeSelector={"no": "no"}), (no(Code.NODE_NAME, node="b"),)),
    "a chosen node may be cordoned, tainted NoSchedule and not ready: the scheduler is passed by": Case(
        node(cordoned=True, taints=[taint("gpu")], ready="False"), pod(on="a")),
    "a chosen node with NoExecute refuses all the same": Case(
        node(taints=[taint("gpu", effect="NoExecute")]), pod(on="a"), (no(Code.NODE_TAINTED, taint="gpu:NoExecute"),)),
    "a chosen node must have the label": Case(
        node(), pod(on="a", nodeSelector={"rack": "r1"}), (selected("rack", "r1", None),)),
    "nodeSelector holds": Case(R2, pod(nodeSelector={"rack": "r2", "slots": "8"})),
    "nodeSelector with another value": Case(R2, pod(nodeSelector={"rack": "r1"}), (selected("rack", "r1", "r2"),)),
    "nodeSelector, each label by itself": Case(
        R2, pod(nodeSelector={"rack": "r1", "zone": "z"}),
        (selected("rack", "r1", "r2"), selected("zone", "z", None))),
    "nodeSelector and affinity must both hold": Case(
        R2, pod(nodeSelector={"rack": "r2"}, affinity=wants(term("rack", "In", "r1"))),
        (affinity(failing("rack", "In", "r1", has="r2")),)),
}

AFFINITY: dict[str, tuple[Object, list[Object] | None]] = {
    "In": (wants(term("rack", "In", "r1", "r2")), None),
    "In, another": (wants(term("rack", "In", "r1", "r3")), [failing("rack", "In", "r1", "r3", has="r2")]),
    "In, no such label": (wants(term("zone", "In", "z")), [failing("zone", "In", "z", has=None)]),
    "NotIn": (wants(term("rack", "NotIn", "r1")), None),
    "NotIn, the very one": (wants(term("rack", "NotIn", "r2")), [failing("rack", "NotIn", "r2", has="r2")]),
    "NotIn holds where there is no label": (wants(term("zone", "NotIn", "z")), None),
    "Exists": (wants(term("rack", "Exists")), None),
    "Exists, no such label": (wants(term("zone", "Exists")), [failing("zone", "Exists", has=None)]),
    "DoesNotExist": (wants(term("zone", "DoesNotExist")), None),
    "DoesNotExist, but it does": (wants(term("rack", "DoesNotExist")), [failing("rack", "DoesNotExist", has="r2")]),
    "Gt": (wants(term("slots", "Gt", "7")), None),
    "Gt is not at least": (wants(term("slots", "Gt", "8")), [failing("slots", "Gt", "8", has="8")]),
    "Gt compares numbers, not texts": (wants(term("slots", "Gt", "10")), [failing("slots", "Gt", "10", has="8")]),
    "Lt": (wants(term("slots", "Lt", "10")), None),
    "Lt of what is no number": (wants(term("odd", "Lt", "10")), [failing("odd", "Lt", "10", has="x")]),
    "Gt of no label": (wants(term("zone", "Gt", "0")), [failing("zone", "Gt", "0", has=None)]),
    "by name": (wants(term("metadata.name", "In", "a", part="matchFields")), None),
    "by another name": (
        wants(term("metadata.name", "In", "b", part="matchFields")), [failing("metadata.name", "In", "b", has="a")]),
    "not by this name": (
        wants(term("metadata.name", "NotIn", "a", part="matchFields")), [failing("metadata.name", "NotIn", "a", has="a")]),
    "all of a term": (
        wants({"matchExpressions": [one for each in (term("rack", "Exists"), term("slots", "Lt", "5"))
                                    for one in each["matchExpressions"]]}),
        [failing("slots", "Lt", "5", has="8")]),
    "expressions and fields of a term": (
        wants({**term("rack", "Exists"), **term("metadata.name", "In", "b", part="matchFields")}),
        [failing("metadata.name", "In", "b", has="a")]),
    "one of the terms is enough": (wants(term("rack", "In", "r1"), term("slots", "In", "8")), None),
    "none of the terms": (wants(term("rack", "In", "r1"), term("zone", "Exists")),
                          [failing("rack", "In", "r1", has="r2"), failing("zone", "Exists", has=None)]),
    "an empty term matches nothing": (wants({}), [{}]),
    "an empty term beside one that holds": (wants({}, term("rack", "Exists")), None),
    "many terms": (wants(*(term("rack", "In", f"x{number}") for number in range(5))),
                           [failing("rack", "In", f"x{number}", has="r2") for number in range(5)]),
}

TAINTS = {
    "not tolerated": Case(GPU, pod(), (NOT_GPU,)),
    "Equal is the operator that is meant": Case(GPU, pod(tolerations=[{"key": "gpu", "value": "only"}])),
    "Equal with another value": Case(GPU, pod(tolerations=[{"key": "gpu", "operator": "Equal", "value": "no"}]), (NOT_GPU,)),
    "Equal without a value": Case(GPU, pod(tolerations=[{"key": "gpu", "operator": "Equal"}]), (NOT_GPU,)),
    "Exists": Case(GPU, pod(tolerations=[{"key": "gpu", "operator": "Exists"}])),
    "Exists, another key": Case(GPU, pod(tolerations=[{"key": "cpu", "operator": "Exists"}]), (NOT_GPU,)),
    "an empty key with Exists is for all": Case(
        node(taints=[taint("gpu", "only"), taint("x", effect="NoExecute")]), pod(tolerations=[{"operator": "Exists"}])),
    "an empty key for one effect": Case(
        node(taints=[taint("gpu", "only"), taint("x", effect="NoExecute")]),
        pod(tolerations=[{"operator": "Exists", "effect": "NoExecute"}]), (NOT_GPU,)),
    "another effect": Case(
        GPU, pod(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]), (NOT_GPU,)),
    "an operator unknown that tolerates nothing": Case(
        GPU, pod(tolerations=[{"key": "gpu", "operator": "Like", "value": "only"}]), (NOT_GPU,)),
    "tolerated for a while is tolerated": Case(
        node(taints=[taint("gpu", effect="NoExecute")]),
        pod(tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}])),
    "PreferNoSchedule rejects no pod": Case(node(taints=[taint("gpu", effect="PreferNoSchedule")]), pod()),
    "each taint needs its toleration": Case(
        node(taints=[taint("gpu", "only"), taint("x")]), pod(tolerations=[{"key": "gpu", "operator": "Exists"}]),
        (no(Code.NODE_TAINTED, taint="x:NoSchedule"),)),
    "cordoned": Case(node(cordoned=True), pod(), (CORDON,)),
    "cordoned, said once": Case(node(cordoned=True, taints=[taint(UNSCHEDULABLE)]), pod(), (CORDON,)),
    "cordoned and tolerated": Case(node(cordoned=True, taints=[taint(UNSCHEDULABLE)]), pod(
        tolerations=[{"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}])),
    "not ready": Case(node(ready="False"), pod(), (NOT_READY,)),
    "not heard of": Case(node(ready="Unknown"), pod(), (NOT_READY,)),
    "not ready and tolerated": Case(node(ready="False"), pod(
        tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}])),
    "the toleration that every pod gets is for NoExecute only": Case(node(ready="False"), pod(tolerations=[
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]),
        (NOT_READY,)),
    "not ready is not unreachable": Case(node(ready="Unknown"), pod(
        tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]), (NOT_READY,)),
    "a node that does not say whether it is ready": Case(node(conditions=[]), pod()),
    "short of memory": Case(node(conditions=[{"type": "MemoryPressure", "status": "True", "reason": "Low"}]), pod(),
                            (no(Code.NODE_PRESSURE, condition="MemoryPressure", short="memory", message="Low"),)),
}

ROOM = {
    "all of it": Case(node(), pod(requests=ROOMY | {"pods": 0})),
    "too much of everything": Case(
        node(),
        pod(requests={"cpu": "17", "memory": "65Gi", "ephemeral-storage": "1Ti"}),
        (
            short("cpu", 16000, 16000, 17000),
            short("memory", 64 * GI, 64 * GI, 65 * GI),
            short("ephemeral-storage", 100 * GI, 100 * GI, 1024 * GI),
        ),
    ),
    "what others left": Case(
        node(), pod(requests={"cpu": "4"}), (short("cpu", 2000, 16000, 4000),), (pod("x", on="a", requests={"cpu": 14}),)
    ),
    "exactly what others left": Case(node(), pod(requests={"cpu": "2"}), (), (pod("x", on="a", requests={"cpu": 14}),)),
    "thousandths of a cpu": Case(
        node(), pod(requests={"cpu": "2001m"}), (short("cpu", 2000, 16000, 2001),), (pod("x", on="a", requests={"cpu": 14}),)
    ),
    "others elsewhere do not count": Case(node(), pod(requests={"cpu": "16"}), (), (pod("x", on="b", requests={"cpu": 16}),)),
    "others that have ended do not count": Case(
        node(),
        pod(requests={"cpu": "16"}),
        (),
        (pod("x", on="a", phase="Succeeded", requests={"cpu": 9}), pod("y", on="a", phase="Failed", requests={"cpu": 9})),
    ),
    "it does not stand in its own way": Case(
        node(), pod(on="a", requests={"cpu": "16"}), (), (pod(on="a", requests={"cpu": "16"}),)
    ),
    "beyond capacity, a pod without requests fits": Case(node(), pod(), (), (pod("x", on="a", requests={"cpu": 20}),)),
    "beyond what there is, nothing is free": Case(
        node(), pod(requests={"cpu": "1m"}), (short("cpu", 0, 16000, 1),), (pod("x", on="a", requests={"cpu": 20}),)
    ),
    "too many pods": Case(node(allocatable={"pods": "1"}), pod(), (short("pods", 0, 1, 1),), (pod("x", on="a"),)),
    "a node that offers nothing takes no pod": Case(
        node(allocatable={}), pod(), (no(Code.RESOURCE_NOT_OFFERED, resource="pods", wanted=1),)
    ),
    "without allocatable the capacity counts": Case(
        node() | {"status": {"capacity": {"cpu": "1", "pods": "5"}}},
        pod(requests={"cpu": 2}),
        (short("cpu", 1000, 1000, 2000),),
    ),
    "one byte too many never looks like enough": Case(
        node(allocatable={"memory": "2Gi", "pods": 5}),
        pod(requests={"memory": str(2 * GI + 1)}),
        (short("memory", 2 * GI, 2 * GI, 2 * GI + 1),),
    ),
    "an extended resource": Case(
        node(allocatable={"pods": 5, "example.com/gpu": "4"}),
        pod(requests={"example.com/gpu": 2}),
        (short("example.com/gpu", 1, 4, 2),),
        (pod("x", on="a", requests={"example.com/gpu": "3"}),),
    ),
    "an extended resource that it has none of": Case(
        node(), pod(requests={"example.com/gpu": 1}), (no(Code.RESOURCE_NOT_OFFERED, resource="example.com/gpu", wanted=1),)
    ),
    "nothing of what it has none of": Case(node(), pod(requests={"example.com/gpu": 0})),
    "huge pages": Case(
        node(allocatable={"pods": 5, "hugepages-1Gi": "4Gi"}),
        pod(requests={"hugepages-1Gi": "5Gi"}),
        (short("hugepages-1Gi", 4 * GI, 4 * GI, 5 * GI),),
    ),
    "huge pages of another size": Case(
        node(allocatable={"pods": 5, "hugepages-1Gi": "4Gi"}),
        pod(requests={"hugepages-2Mi": "2Mi"}),
        (no(Code.RESOURCE_NOT_OFFERED, resource="hugepages-2Mi", wanted=2 << 20),),
    ),
    "an amount of the node that cannot be read": Case(
        node(allocatable={"pods": 5, "cpu": "many"}),
        pod(requests={"cpu": 1}),
        (no(Code.RESOURCE_UNREADABLE, resource="cpu", error=unreadable("many")),),
    ),
    "and that does not matter": Case(node(allocatable={"pods": 5, "cpu": "many"}), pod(requests={"memory": 0})),
    "everything that is wrong at once": Case(
        node(cordoned=True, taints=[taint("x")]),
        pod(requests={"cpu": "17"}, nodeSelector={"rack": "r1"}),
        (CORDON, no(Code.NODE_TAINTED, taint="x:NoSchedule"), selected("rack", "r1", None), short("cpu", 16000, 16000, 17000)),
    ),
}


CASES = PLACES | TAINTS | ROOM


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fit(case: Case) -> None:
    assert fit(case.node, case.pod, NodeUsage(case.others)) == case.rejects


@pytest.mark.parametrize("name", AFFINITY)
def test_affinity(name: str) -> None:
    wanted, terms = AFFINITY[name]
    assert fit(R2, pod(affinity=wanted), NodeUsage()) == (() if terms is None else (affinity(*terms),))


def test_affinity_without_terms_matches_nothing() -> None:
    assert fit(R2, pod(affinity=wants()), NodeUsage()) == (affinity(),)
    assert fit(R2, pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}), NodeUsage()) == ()


def part(restart: str = "", limits: Mapping[str, Any] | None = None, **asked: Any) -> Object:
    resources = {"requests": asked, **({"limits": dict(limits)} if limits else {})}
    return {"resources": resources, **({"restartPolicy": restart} if restart else {})}


SUMS: dict[str, tuple[Object, dict[str, int]]] = {
    "nothing": ({"containers": [{}]}, {}),
    "containers are added": ({"containers": [part(cpu="500m", memory="1Gi"), part(cpu=1)]}, {"cpu": 1500, "memory": GI}),
    "init containers: the largest": (
        {"containers": [part(cpu=1)], "initContainers": [part(cpu=3), part(cpu=2, memory="1Gi")]}, {"cpu": 3000, "memory": GI}),
    "init containers: the rest is more": (
        {"containers": [part(cpu=2), part(cpu=2)], "initContainers": [part(cpu=3)]}, {"cpu": 4000}),
    "a sidecar stays beside the containers": (
        {"containers": [part(cpu=1)], "initContainers": [part("Always", cpu=2)]}, {"cpu": 3000}),
    "an init container after a sidecar runs beside it": (
        {"containers": [part(cpu=1)], "initContainers": [part("Always", cpu=2), part(cpu=5)]}, {"cpu": 7000}),
    "an init container before a sidecar does not": (
        {"containers": [part(cpu=1)], "initContainers": [part(cpu=5), part("Always", cpu=2)]}, {"cpu": 5000}),
    "another restartPolicy is no sidecar": (
        {"containers": [part(cpu=1)], "initContainers": [part("OnFailure", cpu=2)]}, {"cpu": 2000}),
    "overhead comes on top": (
        {"containers": [part(cpu=1)], "initContainers": [part(cpu=3)], "overhead": {"cpu": "250m", "memory": "10"}},
        {"cpu": 3250, "memory": 10}),
    "a limit is a request where there is none": (
        {"containers": [part(limits={"cpu": 2, "memory": "1Gi"}, memory="512Mi")]}, {"cpu": 2000, "memory": GI // 2}),
    "a request of nothing is a request": ({"containers": [part(limits={"cpu": 2}, cpu=0)]}, {}),
    "the pod as a whole, instead of its containers": (
        {"containers": [part(cpu=1, memory="1Gi")], "resources": {"requests": {"cpu": 3}}}, {"cpu": 3000, "memory": GI}),
    "the pod as a whole, and overhead": (
        {"containers": [part(cpu=1)], "resources": {"requests": {"cpu": 3}}, "overhead": {"cpu": 1}}, {"cpu": 4000}),
    "a limit of the pod counts where no container asks": (
        {"containers": [part(cpu=1)], "resources": {"limits": {"cpu": 3, "memory": "1Gi"}}}, {"cpu": 1000, "memory": GI}),
    "huge pages of the pod": (
        {"containers": [{"resources": {"requests": {"hugepages-2Mi": "2Mi"}}}],
         "resources": {"limits": {"hugepages-2Mi": "8Mi"}}}, {"hugepages-2Mi": 8 << 20}),
    "no pod asks for extended resources as a whole": (
        {"containers": [{"resources": {"requests": {"a.b/c": 1}}}], "resources": {"requests": {"a.b/c": 5}}}, {"a.b/c": 1}),
    "a pod is one pod, whatever it asks": ({"containers": [part(pods=5)]}, {}),
    "parts of a thousandth are rounded up, once": ({"containers": [part(cpu="100u"), part(cpu="100u")]}, {"cpu": 1}),
    "parts of a byte are rounded up": ({"containers": [part(memory="100m")]}, {"memory": 1}),
}


@pytest.mark.parametrize("name", SUMS)
def test_requests(name: str) -> None:
    spec, sums = SUMS[name]
    assert requests({"metadata": {"name": "p"}, "spec": spec}) == {"pods": 1, **sums}


MISTAKES = {
    "an amount": (pod(requests={"cpu": "many"}),
                  r"spec\.containers\[0\]\.resources\.requests\[cpu\]: 'many' is not a quantity"),
    "below zero": (pod(requests={"cpu": "-1"}), r"requests\[cpu\]: -1 is below zero: write 0 or more"),
    "of an init container": (pod(initContainers=[{}, {"resources": {"limits": {"cpu": "x"}}}]),
                             r"spec\.initContainers\[1\]\.resources\.limits\[cpu\]"),
    "overhead": (pod(overhead={"cpu": "x"}), r"spec\.overhead\[cpu\]"),
    "as a whole": (pod(resources={"requests": {"cpu": "x"}}), r"spec\.resources\.requests\[cpu\]"),
    "a requirement of nothing": (pod(affinity=wants({"matchFields": [{"operator": "Exists"}]})),
                                 r"nodeSelectorTerms\[0\]\.matchFields\[0\]\.key: Required value"),
    "an operator, in a term that is not reached": (
        pod(affinity=wants(term("a", "Exists"), term("rack", "Like", "r1"))),
        r"nodeSelectorTerms\[1\]\.matchExpressions\[0\]\.operator: 'Like' is not an operator: use In,"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_pod_that_cannot_be_understood(name: str) -> None:
    bad, message = MISTAKES[name]
    with pytest.raises(Invalid, match=message) as caught:
        PodRequirements.of(bad)
    assert caught.value.causes[0].field in str(caught.value)


def test_what_a_device_class_gives_is_not_asked_of_the_node() -> None:
    asks = PodRequirements.of(pod(requests={"example.com/gpu": 2}), from_devices=["example.com/gpu", "example.com/other"])
    assert asks.unfit(NodeInfo.of(node()), NodeUsage()) == ()
    assert asks.unfit(NodeInfo.of(node(allocatable=ROOMY | {"example.com/gpu": "0"})), NodeUsage()) == ()
    offered = NodeInfo.of(node(allocatable=ROOMY | {"example.com/gpu": "1"}))
    assert asks.unfit(offered, NodeUsage()) == (short("example.com/gpu", 1, 1, 2),)
    assert PodRequirements.of(pod(requests={"cpu": 17}), from_devices=["cpu2"]).unfit(NodeInfo.of(node()), NodeUsage()) == (
        short("cpu", 16000, 16000, 17000),)


def test_shares_that_are_left() -> None:
    room, used = NodeInfo.of(node()), NodeUsage([pod("x", on="a", requests={"cpu": 4})])
    assert (room.share(used, "cpu"), room.share(used, "cpu", 4000), room.share(used, "memory")) == (0.75, 0.5, 1.0)
    assert (room.share(used, "cpu", 99000), room.share(used, "example.com/gpu")) == (0.0, 0.0)


def test_a_node_is_read_again_when_it_is_another_object() -> None:
    rooms, first = NodeInfoCache(), node()
    room = rooms.at(first)
    assert rooms.at(first) is room
    assert rooms.at(node(cordoned=True)).taints
    kept = rooms.at(first)
    rooms.keep({"a"})
    assert rooms.at(first) is kept
    rooms.keep(())
    assert rooms.at(first) is not kept


# -- running totals

AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "example.com/gpu"]), st.sampled_from(["0", "1", "100m", "3", "1Gi"]))
PODS = st.builds(
    lambda name, on, phase, asked: pod(name, on=on, phase=phase, requests=asked),
    st.sampled_from("pqrst"), st.sampled_from([None, "a", "b"]), st.sampled_from(["Pending", "Running", "Succeeded"]), AMOUNTS)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), PODS), max_size=30))
def test_a_running_total_is_what_counting_again_gives(steps: list[tuple[str, Object]]) -> None:
    used, there = NodeUsage(), dict[str, Object]()
    for verb, one in steps:
        if verb == "add":
            used.add(one)
            if one["spec"].get("nodeName"):
                there[one["metadata"]["name"]] = one
        else:
            used.remove(one)
            there.pop(one["metadata"]["name"], None)
    again = NodeUsage(reversed(there.values()))
    assert used == again
    for name in ("a", "b"):
        counted: dict[str, int] = {}
        for one in there.values():
            if one["spec"].get("nodeName") == name and one["status"]["phase"] != "Succeeded":
                for resource, amount in requests(one).items():
                    counted[resource] = counted.get(resource, 0) + amount
        assert used.at(name) == counted


@settings(deadline=None)
@given(st.lists(PODS, max_size=8, unique_by=lambda one: one["metadata"]["name"]), st.randoms())
def test_the_order_of_coming_and_going_does_not_matter(pods: list[Object], chance: Any) -> None:
    used = NodeUsage(pods)
    chance.shuffle(pods)
    assert NodeUsage(pods) == used
    for one in pods:
        used.remove(one)
    assert used == NodeUsage()


def test_stale_pod_event_does_not_change_node_usage() -> None:
    used = NodeUsage([pod(on="a", requests={"cpu": 1})])
    used.add(pod(requests={"cpu": 1}))
    assert used.at("a") == {"pods": 1, "cpu": 1000}


def test_a_pod_that_cannot_be_read_changes_no_total() -> None:
    used = NodeUsage([pod(on="a", requests={"cpu": 1})])
    with pytest.raises(Invalid):
        used.add(pod(on="a", requests={"cpu": "x"}))
    assert used.at("a") == {"pods": 1, "cpu": 1000}


def test_pods_without_uid_are_distinguished_by_namespace() -> None:
    one, other = pod(on="a"), pod(on="a")
    del one["metadata"]["uid"], other["metadata"]["uid"]
    other["metadata"]["namespace"] = "there"
    assert NodeUsage([one, other]).at("a") == {"pods": 2}
