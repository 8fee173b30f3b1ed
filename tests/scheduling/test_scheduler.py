"""Which host, and what is said when there is none: place as a table of reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Page
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.plugins import GivenDevice, SchedulerPlugins
from outfitter.scheduling.scheduler import Placement, Waiting, results
from tests.scheduling.builders import (
    CARD,
    DRIVER,
    HELD,
    NO_VF,
    NODES,
    NONE,
    PF,
    SINCE,
    VF,
    WHOLE,
    A,
    B,
    allocated,
    ask,
    claim,
    counted,
    dev,
    node,
    page,
    part,
    placed,
    pod,
)

# -- place: all hosts


@dataclass(frozen=True)
class Place:
    pod: Object
    claims: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    nodes: Sequence[Object] = ()
    pages: Sequence[Page] = ()
    host: str = ""
    gives: Mapping[str, Sequence[str]] = field(default_factory=dict)
    says: str = ""


PLACES = {
    "the first host that can": Place(pod("c"), [claim("c")], [A, B], NODES, host="a", gives={"c": ["a0"]}),
    "a pod without claims": Place(pod(), nodes=NODES, host="a"),
    "the next host when the first is full": Place(
        pod("c"), [claim("c")], [A, B], NODES, [page("a", ("a0", "train"))], host="b", gives={"c": ["b0"]}),
    "what was released but not yet given back is still held": Place(
        pod("c"), [claim("c")], [A], [node("a")], [page("a", ("a0", "train"), state="released")],
        says=f"{NONE}request nic wants 1: 1 match, 0 free (a0: {HELD})"),
    "two claims on one host": Place(
        pod("c", "d"), [claim("c"), claim("d")], [A, B], NODES, host="b", gives={"c": ["b0"], "d": ["b1"]}),
    "two claims and no host with two devices": Place(
        pod("c", "d"), [claim("c"), claim("d")], [A], [node("a")],
        says=NONE + "the requests want 2 devices together, and 1 free ones match"),
    "two entries that name one claim": Place(pod("c", "c"), [claim("c")], [A], [node("a")], host="a", gives={"c": ["a0"]}),
    "no host at all": Place(pod("c"), [claim("c")], says="0/0 hosts are available: there is no host"),
    "nodeSelector picks": Place(
        pod("c", nodeSelector={"zone": "east"}), [claim("c")], [A, B], [node("a"), node("b", zone="east")], host="b",
        gives={"c": ["b0"]}),
    "nodeSelector fits nobody": Place(
        pod("c", nodeSelector={"zone": "east"}), [claim("c")], [A, B], [node("a"), node("b", zone="west")],
        says="0/2 hosts are available: a: nodeSelector wants zone=east; it has no such label; "
             "b: nodeSelector wants zone=east; it has west"),
    "cordoned": Place(pod("c"), [claim("c")], [A], [node("a", cordoned=True)],
                      says=NONE + "it takes no new pods (cordoned)"),
    "not ready": Place(pod("c"), [claim("c")], [A], [node("a", ready=False)],
                       says=NONE + "it is not ready: the kubelet stopped posting"),
    "a node that says nothing of itself is taken": Place(
        pod("c"), [claim("c")], [A], [node("a", ready=None)], host="a", gives={"c": ["a0"]}),
    "many hosts, a short sentence": Place(
        pod("c"), [claim("c")], [], [node(name) for name in "abcde"],
        says="0/5 hosts are available: a, b, c: it publishes no devices; and 2 more"),
    "hosts with such devices are told of first": Place(
        pod("c"), [claim("c")], [part("d", dev("d0", **VF))], [node(name) for name in "abcdef"],
        [page("d", ("d0", "train"))],
        says=f"0/6 hosts are available: d: request nic wants 1: 1 match, 0 free (d0: {HELD}); 5 have no such devices"),
    "those that would take the pod first": Place(
        pod("c"), [claim("c")], [part(name, dev("x", **VF)) for name in "abcdef"],
        [node(name, cordoned=name in "abcd") for name in "abcdef"], [page("e", ("x", "train")), page("f", ("x", "train"))],
        says="0/6 hosts are available: a: it takes no new pods (cordoned); e, f: request nic wants 1: 1 match, 0 free "
             f"(x: {HELD}); and 3 more"),
    "never longer than a condition": Place(
        pod("c"), [claim("c")], [part(name * 200, dev("d" * 60 + str(n), **VF)) for n, name in enumerate("abcd")],
        [node(name * 200) for name in "abcd"],
        [page(name * 200, ("d" * 60 + str(n), "t" * 200)) for n, name in enumerate("abcd")], says="LONG"),
    "too few on one NUMA node": Place(
        pod("c"), [{**claim("c", ask("nic", count=2)), "spec": {"devices": {
            "requests": [ask("nic", count=2)], "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}}}],
        [part("a", *(dev(f"a{n}", kind="VF", numa=n // 2) for n in range(4)))], [node("a")],
        [page("a", ("a0", "train"), ("a3", "train"))],
        says=f"{NONE}numa 0 has 1 free, numa 1 has 1 free; 2 wanted together (matchAttribute numa) (a0: {HELD}; a3: {HELD})"),
    "a claim that does not exist": Place(
        pod("c"), [], [A], NODES, says='claim "c" (resourceClaims entry entry-c) does not exist'),
    "a claim that is not made yet": Place(
        pod(resourceClaims=[{"name": "net", "resourceClaimTemplateName": "one-vf"}]), [], [A], NODES,
        says='claim net has not been made yet: is there a ResourceClaimTemplate "one-vf"?'),
    "a claim that is being deleted": Place(
        pod("c"), [{**claim("c"), "metadata": {**claim("c")["metadata"], "deletionTimestamp": SINCE}}], [A], NODES,
        says="claim c is being deleted"),
    "a claim that cannot be served": Place(
        pod("c"), [claim("c", ask("nic", deviceClassName="gone"))], [A], NODES,
        says="claim here/c, request nic: there is no DeviceClass gone"),
    "a claim in use by another pod": Place(
        pod("c"), [claim("c", **allocated("a", "a0", users=["other"]))], [A], NODES, says="claim c is in use by pod/other"),
    "a claim that this pod has already": Place(
        pod("c"), [claim("c", **allocated("b", "b0", users=["pod"]))], [A, B], NODES, [page("b", ("b0", "c"))], host="b"),
    "a claim whose pool is not named after the host": Place(
        pod("c"), [claim("c", allocation={
            "devices": {"results": [{"request": "nic", "driver": DRIVER, "pool": "rack-7", "device": "x"}]},
            "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}})], [A, B], NODES, host="b"),
    "a claim that was allocated on a host that is not asked": Place(
        pod("c", "d"), [claim("c", **allocated("b", "b0")), claim("d")], [A, B], [node("a")], [page("b", ("b0", "c"))],
        says=NONE + "the devices that the pod's claims hold are on b"),
    "claims that were allocated on different hosts": Place(
        pod("c", "d"), [claim("c", **allocated("a", "a0")), claim("d", **allocated("b", "b0"))], [A, B], [node("a")],
        says=NONE + "the devices that the pod's claims hold are on no common host"),
    "an old generation is not looked at": Place(
        pod("c"), [claim("c")], [part("a", dev("old", **VF)), part("a", dev("new", **VF), generation=2)], [node("a")], host="a",
        gives={"c": ["new"]}),
    "a pool of which a part is missing is not used": Place(
        pod("c"), [claim("c")], [part("a", dev("a0", **VF), count=2)], [node("a")],
        says=f"{NONE}pool {DRIVER}/a is being updated"),
    "at most two holders are named": Place(
        pod("c"), [claim("c")], [part("a", *(dev(f"a{n}", **VF) for n in range(4)))], [node("a")],
        [page("a", *((f"a{n}", f"c{n}") for n in range(4)))],
        says=f"{NONE}request nic wants 1: 4 match, 0 free (a0: held by vmi/c0 (claim c0) in here since {SINCE}; "
             f"a1: held by vmi/c1 (claim c1) in here since {SINCE}; ...)"),
}


@pytest.mark.parametrize("name", PLACES)
def test_place(name: str) -> None:
    case = PLACES[name]
    verdict = placed(case.pod, case.claims, DeviceIndex.of(case.slices, case.pages, case.nodes))
    if case.says:
        assert isinstance(verdict, Waiting)
        assert len(verdict.summary) <= 1000
        if case.says == "LONG":
            assert verdict.summary.endswith("...; and 1 more")
        else:
            assert verdict.summary == case.says
        return
    assert isinstance(verdict, Placement), verdict
    assert verdict.host == case.host
    assert {entry["metadata"]["name"]: [device.device for device, _ in results(given)] for entry, given in verdict.claims} == {
        name: list(devices) for name, devices in case.gives.items()}


def test_how_much_a_device_takes_and_of_how_much() -> None:
    index = DeviceIndex.of(counted("a", 2, *CARD, dev("plain", **VF)), [], [node("a")])
    index.candidates([])
    assert index.uses(DeviceId(DRIVER, "a", "vf0"), "a") == {"card": {"functions": "1"}}
    assert index.uses(DeviceId(DRIVER, "a", "plain"), "a") == {}
    assert index.uses(DeviceId(DRIVER, "a", "nobody"), "a") == {}
    assert index.limits("a").counters == {(DRIVER, "a", "card"): {"functions": "2"}}


def test_claims_of_one_pod_do_not_share_a_card() -> None:
    found = placed(pod("c", "d"), [claim("c"), claim("d", WHOLE)], DeviceIndex.of(counted("a", 2, *CARD), [], [node("a")]))
    assert isinstance(found, Waiting)


def test_many_hosts_in_few_lines() -> None:
    names = [f"n{number}" for number in range(40)]
    slices = [part(name, dev("x", kind="VF" if number < 5 else "PF")) for number, name in enumerate(names)]
    nodes = [node(name, cordoned=name == "n4") for name in names]
    found = placed(pod("c"), [claim("c")], DeviceIndex.of(slices, [page(name, ("x", "train")) for name in names[:4]], nodes),
                   every_host=True)
    assert isinstance(found, Waiting)
    assert grouping.short(found.hosts) == [
        "4 hosts (n0, n1, n2, n3): request nic wants 1: 1 match, 0 free",
        "n4: it takes no new pods (cordoned)",
        "35 hosts (n5, n6, n7 and 32 more): none of their devices is what request nic (vf) asks for"]
    long = grouping.long(found.hosts)
    assert long[:3] == ["n0: request nic wants 1: 1 match, 0 free", f"  x: {HELD}", "n1: request nic wants 1: 1 match, 0 free"]
    assert long[-1] == "20 hosts (n20, n21, n22 and 17 more): none of their devices is what request nic (vf) asks for"
    assert f"  x: {NO_VF}" in long


def test_counting_says_what_a_search_would_say() -> None:
    """Of a host that counting can judge the sentence is the same, and the search is made when its devices are asked for."""
    for devices, held in (([dev("a", **VF)], ["a"]), ([dev("a", **PF)], []), ([dev("a", **VF), dev("b", **VF)], ["a"])):
        index = DeviceIndex.of([part("n", *devices)], [page("n", *((name, "train") for name in held))], [node("n")])
        found = placed(pod("c"), [claim("c", ask("nic", count=2))], index, every_host=True)
        assert isinstance(found, Waiting)
        refusal = found.hosts[0][1]
        assert refusal.found is not None
        assert refusal.summary == refusal.found.summary


@pytest.mark.parametrize(("condition", "says"), {
    "a message": ({"message": "gone", "reason": "Gone"}, "gone"), "a reason": ({"reason": "Gone"}, "Gone"),
    "nothing": ({}, "no reason given")}.values(), ids=["a message", "a reason", "nothing"])
def test_why_a_host_is_not_ready(condition: Object, says: str) -> None:
    sick = node("a")
    sick["status"]["conditions"] = [{"type": "Sunny", "status": "True"},
                                    {"type": "Ready", "status": "Unknown", **condition}]
    found = placed(pod("c"), [claim("c")], DeviceIndex.of([A], [], [sick]))
    assert isinstance(found, Waiting)
    assert found.summary == f"{NONE}it is not ready: {says}"


def test_pools_are_looked_at_in_the_order_of_their_drivers() -> None:
    """Whatever the order in which slices arrive, so that two looks choose alike."""
    first, second = part("a", dev("x", **VF)), part("a", dev("y", **VF), name="second")
    first["spec"]["driver"], second["spec"]["driver"] = "b.example.com", "a.example.com"
    found = placed(pod("c"), [claim("c", ask("nic", deviceClassName="any"))], DeviceIndex.of([first, second], [], [node("a")]))
    assert isinstance(found, Placement)
    assert [device.device for device, _ in results(found.claims[0][1])] == ["y"]


class Picky:
    name = "picky"

    def filter(self, pod: Mapping[str, Any], node: Mapping[str, Any], devices: Sequence[GivenDevice]) -> str | None:
        return f"{devices[0].name} is not for everybody" if node["metadata"]["name"] == "a" else None


class Fan:
    name = "fan"

    def score(self, pod: Mapping[str, Any], node: Mapping[str, Any], devices: Sequence[GivenDevice]) -> float:
        return 100.0 if node["metadata"]["name"] == "b" else 0.0


def with_plugins(plugins: SchedulerPlugins, **more: Any) -> Placement | Waiting:
    return placed(pod("c"), [claim("c")], DeviceIndex.of([A, B], [], NODES), plugins=plugins, **more)


def test_the_tighter_host_is_taken_and_said_why() -> None:
    slices = [part("a", dev("a0", **VF), dev("a1", **VF)), part("b", dev("b0", **VF))]
    found = placed(pod("c"), [claim("c")], DeviceIndex.of(slices, [], NODES))
    assert isinstance(found, Placement)
    assert (found.host, found.why[:50]) == ("b", "pack: 1 device on 1 NUMA node and 1 PCIe root; the")


def test_filters_of_others_are_asked_and_their_reason_is_told() -> None:
    found = with_plugins(SchedulerPlugins(filters=(Picky(),)))
    assert isinstance(found, Placement)
    assert found.host == "b"
    alone = placed(pod("c"), [claim("c")], DeviceIndex.of([A], [], [node("a")]), plugins=SchedulerPlugins(filters=(Picky(),)))
    assert isinstance(alone, Waiting)
    assert alone.summary == NONE + "plug-in picky: a0 is not for everybody"


def test_scorers_of_others_count() -> None:
    found = with_plugins(SchedulerPlugins(scorers=(Fan(),)))
    assert isinstance(found, Placement)
    assert (found.host, found.why.rpartition("; ")[2]) == ("b", "plug-in fan: 100")


def test_a_host_without_room_is_passed_over() -> None:
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "1"
    wanted = pod("c", containers=[{"name": "main", "resources": {"requests": {"cpu": "2"}}}])
    found = placed(wanted, [claim("c")], DeviceIndex.of([A, B], [], [small, node("b")]))
    assert isinstance(found, Placement)
    assert found.host == "b"
    alone = placed(wanted, [claim("c")], DeviceIndex.of([A], [], [small]))
    assert isinstance(alone, Waiting)
    assert alone.summary == NONE + "1 of 1 cpu free, 2 wanted"
