"""Which devices on which host, and what is said when there are none: pick, place and explain as tables of reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from outfitter.api import machine
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Mark, Marks, Page, State
from outfitter.scheduling import crowd, explain
from outfitter.scheduling.answer import Answer
from outfitter.scheduling.facts import Facts
from outfitter.scheduling.fit import Used
from outfitter.scheduling.index import Index
from outfitter.scheduling.place import Placement, Refusal, Waiting, place, results
from outfitter.scheduling.plugins import GivenDevice, Plugins

DRIVER = "pci.example.com"
SINCE = "2026-01-01T12:04:00Z"
HELD = f"held by vmi/train (claim train) in here since {SINCE}"
NONE = "0/1 hosts are available: a: "


def dev(name: str, **attributes: Any) -> Object:
    kinds = {bool: "bool", int: "int", str: "string"}
    return {"name": name, "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()}}


def part(node: str, *devices: Object, generation: int = 1, count: int = 1, name: str = "") -> Object:
    return {"metadata": {"name": name or f"{node}-{generation}"}, "spec": {
        "driver": DRIVER, "nodeName": node, "devices": list(devices),
        "pool": {"name": node, "generation": generation, "resourceSliceCount": count}}}


def node(name: str, ready: bool | None = True, cordoned: bool = False, **labels: str) -> Object:
    status: Object = {} if ready is None else {"conditions": [
        {"type": "Ready", "status": str(ready), "message": "" if ready else "the kubelet stopped posting"}]}
    status["allocatable"] = {"pods": "110", "cpu": "16", "memory": "64Gi"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": cordoned}, "status": status}


def page(host: str, *held: tuple[str, str], state: State = "booked") -> Page:
    bookings = [Booking(DeviceId(DRIVER, host, device), Holder("ResourceClaim", "here", claim, f"uid-{claim}", f"vmi/{claim}"),
                        "nic", state, SINCE).to_object() for device, claim in held]
    return Page({"metadata": {"name": host}, "spec": {"host": host, "bookings": bookings}})


def claim(name: str, *requests: Object, **status: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "here", "uid": f"uid-{name}"}, "status": status,
            "spec": {"devices": {"requests": list(requests) or [ask("nic")]}}}


def ask(name: str, expression: str = "", **exactly: Any) -> Object:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {"name": name, "exactly": {"deviceClassName": "vf", "selectors": selectors, **exactly}}


def allocated(host: str, *devices: str, users: Sequence[str] = ()) -> Object:
    return {"allocation": {"devices": {"results": [
        {"request": "nic", "driver": DRIVER, "pool": host, "device": device} for device in devices]}},
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]}


def pod(*claims: str, **spec: Any) -> Object:
    return {"metadata": {"name": "pod", "namespace": "here", "uid": "uid-pod"}, "spec": {
        "resourceClaims": [{"name": f"entry-{name}", "resourceClaimName": name} for name in claims], **spec}}


CLASSES: dict[str, Object] = {"vf": {"metadata": {"name": "vf"}, "spec": {"selectors": [{"cel": {
    "expression": f'device.attributes["{DRIVER}"].kind == "VF"'}}]}},
    "any": {"metadata": {"name": "any"}, "spec": {}}}


# -- pick: one host


@dataclass(frozen=True)
class Pick:
    requests: Sequence[Object]
    devices: Sequence[Object]
    gives: Sequence[tuple[str, str]] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, Marks] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    says: str = ""
    details: Sequence[str] = ()


VF, PF = {"kind": "VF"}, {"kind": "PF"}


def tainted(device: Object, *effects: str) -> Object:
    return {**device, "taints": [{"key": f"a.test/{effect.lower()}", "effect": effect} for effect in effects]}


def taking(device: Object, amount: int) -> Object:
    return {**device, "consumesCounters": [{"counterSet": "card", "counters": {"functions": {"value": str(amount)}}}]}


CARD = [taking(dev("pf", **PF), 2), taking(dev("vf0", **VF), 1), taking(dev("vf1", **VF), 1)]
SHORT = f"the devices share functions of card ({DRIVER}/n), of which too little is left"
NO_VF, NO_PF = 'class vf wants kind == "VF"; it says kind PF', 'request card wants kind == "PF"; it says kind VF'
WHOLE = ask("card", deviceClassName="any", expression=f'device.attributes["{DRIVER}"].kind == "PF"')
PICKS = {
    "the first that fits, in the order of publishing": Pick(
        [ask("nic")], [dev("c", **PF), dev("b", **VF), dev("a", **VF)], gives=[("nic", "b")]),
    "what is held is passed over": Pick(
        [ask("nic")], [dev("a", **VF), dev("b", **VF)], gives=[("nic", "b")], held={"a": "train"}),
    "as many as asked": Pick([ask("nic", count=2)], [dev(name, **VF) for name in "abc"], gives=[("nic", "a"), ("nic", "b")]),
    "two requests get different devices": Pick(
        [ask("x"), ask("y")], [dev("a", **VF), dev("b", **VF)], gives=[("x", "a"), ("y", "b")]),
    "a request's own selector narrows the class": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')],
        [dev("a", kind="VF", speed=10), dev("b", kind="VF", speed=25)], gives=[("nic", "b")]),
    "one held": Pick([ask("nic")], [dev("a", **VF)], held={"a": "train"}, says="request nic wants 1: 1 match, 0 free",
                     details=[f"a: {HELD}"]),
    "too few": Pick([ask("nic", count=3)], [dev("a", **VF), dev("b", **VF), dev("c", **PF)], held={"b": "train"},
                    says="request nic wants 3: 2 match, 1 free",
                    details=[f"b: {HELD}", f"c: {NO_VF}"]),
    "too few, and all are free": Pick([ask("nic", count=2)], [dev("a", **VF), dev("b", **PF)],
                                      says="request nic wants 2: 1 match, 1 free", details=[f"b: {NO_VF}"]),
    "what is held is told first, the rest as it was published": Pick(
        [ask("nic")], [dev("c", **PF), dev("a", **PF), dev("z", **VF), dev("b", **VF)], held={"z": "train", "b": "train"},
        says="request nic wants 1: 2 match, 0 free", details=[f"z: {HELD}", f"b: {HELD}", f"c: {NO_VF}", f"a: {NO_VF}"]),
    "none is of the kind": Pick([ask("nic")], [dev("a", **PF), dev("b", **PF)],
                                says="none of its 2 devices is what request nic (vf) asks for",
                                details=[f"a: {NO_VF}", f"b: {NO_VF}"]),
    "nothing published": Pick([ask("nic")], [], says="it publishes no devices"),
    "the second request gets nothing": Pick(
        [ask("x"), ask("y")], [dev("a", **VF)], says="the requests want 2 devices together, and 1 free ones match"),
    "a selector that cannot be told of a device": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')], [dev("a", **VF)],
        says=f"claim here/c, request nic: selector #0: CEL runtime error on device {DRIVER}/n/a: no such key: speed"),
    "a selector that has no answer for one is an error, as in Kubernetes": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')], [dev("a", **VF), dev("b", kind="VF", speed=25)],
        says=f"claim here/c, request nic: selector #0: CEL runtime error on device {DRIVER}/n/a: no such key: speed"),
    "a device that is not reached does no harm": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')], [dev("b", kind="VF", speed=25), dev("a", **VF)],
        gives=[("nic", "b")]),
    "no requests, nothing needed": Pick([], [dev("a", **VF)]),
    "what is tainted is passed over": Pick(
        [ask("nic")], [tainted(dev("a", **VF), "NoSchedule"), tainted(dev("b", **VF), "NoExecute"),
                       tainted(dev("c", **VF), "None")], gives=[("nic", "c")]),
    "a taint is named": Pick([ask("nic")], [tainted(dev("a", **VF), "NoSchedule", "NoExecute")],
                             says="request nic wants 1: 1 match, 0 free",
                             details=["a: tainted a.test/noschedule=:NoSchedule, which request nic does not tolerate"]),
    "what is out of service is passed over": Pick(
        [ask("nic")], [dev(name, **VF) for name in "abcd"], gives=[("nic", "d")],
        marks={"a": "reserved", "b": "quarantined", "c": "unclean"}),
    "what was done to a device is told": Pick(
        [ask("nic")], [dev("a", **VF)], marks={"a": "quarantined"}, says="request nic wants 1: 1 match, 0 free",
        details=[f"a: quarantined since {SINCE}: it smells"]),
    "a card is whole while none of its functions is held": Pick(
        [WHOLE], CARD, gives=[("card", "pf")], counters={"functions": 2}),
    "a held function keeps the card from being given whole": Pick(
        [WHOLE], CARD, counters={"functions": 2}, held={"vf1": "train"}, says=SHORT,
        details=[f"pf: excluded by vf1 ({HELD}), with which it shares card", f"vf0: {NO_PF}", f"vf1: {NO_PF}"]),
    "the whole card keeps its functions from being given": Pick(
        [ask("nic")], CARD, counters={"functions": 2}, held={"pf": "train"}, says=SHORT,
        details=[f"vf0: excluded by pf ({HELD})", f"vf1: excluded by pf ({HELD})", f"pf: {NO_VF}"]),
    "one function beside another": Pick([ask("nic")], CARD, gives=[("nic", "vf1")], counters={"functions": 2},
                                        held={"vf0": "train"}),
    "the card and its functions exclude each other in one claim": Pick(
        [ask("nic"), WHOLE], CARD, counters={"functions": 2}, says=SHORT,
        details=[f"pf: {NO_VF}", f"vf0: {NO_PF}", f"vf1: {NO_PF}"]),
    "a counter that is no number": Pick(
        [ask("nic")], [taking(dev("vf0", **VF), "many")], counters={"functions": 2},  # type: ignore[arg-type]
        says=f"pool {DRIVER}/n is being updated",
        details=[f"pool {DRIVER}/n is being updated: not all of its slices are there"]),
    "a counter that nobody published": Pick(
        [ask("nic")], CARD, says=f"invalid resource pools were encountered: {DRIVER}/n: device pf uses counter set card, "
                                 "which is not there"),
}


@pytest.mark.parametrize("name", PICKS)
def test_pick(name: str) -> None:
    case = PICKS[name]
    held = page("n", *case.held.items())
    for device, which in case.marks.items():
        held = Page(held.with_marks(which, [Mark(DeviceId(DRIVER, "n", device), "it smells", "admin", SINCE)]))
    parts = [part("n", *case.devices, count=2 if case.counters else 1)]
    if case.counters:
        parts.append(part("n", count=2, name="counters"))
        parts[1]["spec"]["sharedCounters"] = [{"name": "card", "counters": {
            name: {"value": str(amount)} for name, amount in case.counters.items()}}]
    verdict = served(case.requests, parts, held)
    if not case.says:
        assert verdict == list(case.gives)
        return
    assert isinstance(verdict, Refusal), verdict
    assert verdict.summary == case.says
    assert len(verdict.details) == len(case.details), verdict.details
    assert all(detail.startswith(wanted) for detail, wanted in zip(verdict.details, case.details, strict=True)), verdict.details


def served(requests: Sequence[Object], parts: Sequence[Object], held: Page) -> list[tuple[str, str]] | Refusal:
    """Request and device, for a pod with one claim of these requests; or why not."""
    wanted = claim("c")
    wanted["spec"]["devices"]["requests"] = list(requests)
    verdict = place(pod("c"), lambda namespace, name: wanted, CLASSES.get, Index.of(parts, [held], [node("n")]), Used())
    if isinstance(verdict, Waiting):
        return verdict.hosts[0][1] if verdict.hosts else Refusal(verdict.summary)
    [(_, given)] = verdict.claims
    return [(result["request"], device.device) for device, result in results(given)]


def counted(node: str, amount: int, *devices: Object, limit: str = "", name: str = "card") -> list[Object]:
    """Slices of a host whose devices share a counter."""
    sets = part(node, count=2, name=f"{node}-counters")
    sets["spec"]["sharedCounters"] = [{"name": name, "counters": {"functions": {"value": limit or str(amount)}}}]
    return [part(node, *devices, count=2), sets]


@pytest.mark.parametrize(("held", "who"), {
    1: f"vf0 (held by vmi/c0 (claim c0) in here since {SINCE})",
    4: ", ".join(f"vf{n} (held by vmi/c{n} (claim c{n}) in here since {SINCE})" for n in range(3)) + " and more",
}.items())
def test_at_most_three_that_exclude_a_device_are_named(held: int, who: str) -> None:
    devices = [taking(dev("pf", **PF), 5), *(taking(dev(f"vf{n}", **VF), 1) for n in range(5))]
    parts, taken = counted("n", 5, *devices), page("n", *((f"vf{n}", f"c{n}") for n in range(held)))
    refusal = served([WHOLE], parts, taken)
    assert isinstance(refusal, Refusal)
    assert f"pf: excluded by {who}, with which it shares card" in refusal.details
    assert served([ask("nic")], parts, taken) == [("nic", f"vf{held}")]


def test_cards_of_the_same_name_on_two_hosts_are_two() -> None:
    slices = [*counted("a", 2, *CARD), *counted("b", 2, *CARD)]
    found = placed(pod("c"), [claim("c", WHOLE)], Index.of(slices, [page("a", ("vf0", "train"))], NODES))
    assert isinstance(found, Placement)
    assert found.host == "b"


def test_a_device_that_takes_of_another_counter_is_not_in_the_way() -> None:
    light: Object = {**dev("light", **VF), "consumesCounters": [
        {"counterSet": "card", "counters": {"lamps": {"value": "9"}}}]}
    slices = counted("n", 2, *CARD, light)
    slices[1]["spec"]["sharedCounters"][0]["counters"]["lamps"] = {"value": "9"}
    assert served([WHOLE], slices, page("n", ("light", "train"))) == [("card", "pf")]


def test_all_pages_count_and_a_mark_says_what_is_known() -> None:
    marked = Page(page("b").with_marks("reserved", [Mark(DeviceId(DRIVER, "b", "b0"), "", "admin", SINCE)]))
    other = Page(page("c").with_marks("unclean", [Mark(DeviceId(DRIVER, "c", "c0"), "used", "admin", SINCE)]))
    slices = [part(host, dev(f"{host}0", **VF)) for host in "abcd"]
    pages = [page("a", ("a0", "train")), marked, other, page("d", ("d0", "train"))]
    found = placed(pod("x"), [claim("x")], Index.of(slices, pages, [node(host) for host in "abcd"]), everybody=True)
    assert isinstance(found, Waiting)
    assert {host: refusal.details for host, refusal in found.hosts} == {
        "a": (f"a0: {HELD}",), "b": (f"b0: reserved since {SINCE}",), "c": (f"c0: unclean since {SINCE}: used",),
        "d": (f"d0: {HELD}",)}


@pytest.mark.parametrize("amount", [{"resources": {"VCPU": 1}}, {"adminAccess": True}], ids=["a host's own", "looking on"])
def test_what_holds_no_device(amount: Object) -> None:
    resources = Booking(DeviceId(DRIVER, "n", "a"), Holder("Consumer", "", "s", "uid-s"), "", "booked", SINCE, amount)
    assert served([ask("nic")], [part("n", dev("a", **VF))], Page(page("n").adding(resources))) == [("nic", "a")]


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


A, B = part("a", dev("a0", **VF)), part("b", dev("b0", **VF), dev("b1", **VF))
NODES = [node("a"), node("b")]
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
    by_name = {entry["metadata"]["name"]: entry for entry in case.claims}
    verdict = place(case.pod, lambda namespace, name: by_name.get(name), CLASSES.get,
                    Index.of(case.slices, case.pages, case.nodes), Used())
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


def placed(wanted: Object, claims: Sequence[Object], index: Index, *, everybody: bool = False) -> Placement | Waiting:
    by_name = {entry["metadata"]["name"]: entry for entry in claims}
    return place(wanted, lambda namespace, name: by_name.get(name), CLASSES.get, index, Used(), everybody=everybody)


def test_how_much_a_device_takes_and_of_how_much() -> None:
    index = Index.of(counted("a", 2, *CARD, dev("plain", **VF)), [], [node("a")])
    index.candidates([])
    assert index.uses(DeviceId(DRIVER, "a", "vf0"), "a") == {"card": {"functions": "1"}}
    assert index.uses(DeviceId(DRIVER, "a", "plain"), "a") == {}
    assert index.uses(DeviceId(DRIVER, "a", "nobody"), "a") == {}
    assert index.limits("a").counters == {(DRIVER, "a", "card"): {"functions": "2"}}


def test_claims_of_one_pod_do_not_share_a_card() -> None:
    found = placed(pod("c", "d"), [claim("c"), claim("d", WHOLE)], Index.of(counted("a", 2, *CARD), [], [node("a")]))
    assert isinstance(found, Waiting)


def test_many_hosts_in_few_lines() -> None:
    names = [f"n{number}" for number in range(40)]
    slices = [part(name, dev("x", kind="VF" if number < 5 else "PF")) for number, name in enumerate(names)]
    nodes = [node(name, cordoned=name == "n4") for name in names]
    found = placed(pod("c"), [claim("c")], Index.of(slices, [page(name, ("x", "train")) for name in names[:4]], nodes),
                   everybody=True)
    assert isinstance(found, Waiting)
    assert crowd.short(found.hosts) == [
        "4 hosts (n0, n1, n2, n3): request nic wants 1: 1 match, 0 free",
        "n4: it takes no new pods (cordoned)",
        "35 hosts (n5, n6, n7 and 32 more): none of their devices is what request nic (vf) asks for"]
    long = crowd.long(found.hosts)
    assert long[:3] == ["n0: request nic wants 1: 1 match, 0 free", f"  x: {HELD}", "n1: request nic wants 1: 1 match, 0 free"]
    assert long[-1] == "20 hosts (n20, n21, n22 and 17 more): none of their devices is what request nic (vf) asks for"
    assert f"  x: {NO_VF}" in long


def test_counting_says_what_a_search_would_say() -> None:
    """Of a host that counting can judge the sentence is the same, and the search is made when its devices are asked for."""
    for devices, held in (([dev("a", **VF)], ["a"]), ([dev("a", **PF)], []), ([dev("a", **VF), dev("b", **VF)], ["a"])):
        index = Index.of([part("n", *devices)], [page("n", *((name, "train") for name in held))], [node("n")])
        found = placed(pod("c"), [claim("c", ask("nic", count=2))], index, everybody=True)
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
    found = placed(pod("c"), [claim("c")], Index.of([A], [], [sick]))
    assert isinstance(found, Waiting)
    assert found.summary == f"{NONE}it is not ready: {says}"


def test_pools_are_looked_at_in_the_order_of_their_drivers() -> None:
    """Whatever the order in which slices arrive, so that two looks choose alike."""
    first, second = part("a", dev("x", **VF)), part("a", dev("y", **VF), name="second")
    first["spec"]["driver"], second["spec"]["driver"] = "b.example.com", "a.example.com"
    found = placed(pod("c"), [claim("c", ask("nic", deviceClassName="any"))], Index.of([first, second], [], [node("a")]))
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


def with_plugins(plugins: Plugins, **more: Any) -> Placement | Waiting:
    return place(pod("c"), lambda namespace, name: claim("c"), CLASSES.get, Index.of([A, B], [], NODES), Used(),
                 plugins=plugins, **more)


def test_the_tighter_host_is_taken_and_said_why() -> None:
    slices = [part("a", dev("a0", **VF), dev("a1", **VF)), part("b", dev("b0", **VF))]
    found = placed(pod("c"), [claim("c")], Index.of(slices, [], NODES))
    assert isinstance(found, Placement)
    assert (found.host, found.why[:50]) == ("b", "pack: 1 device on 1 NUMA node and 1 PCIe root; the")


def test_filters_of_others_are_asked_and_their_reason_is_told() -> None:
    found = with_plugins(Plugins(filters=(Picky(),)))
    assert isinstance(found, Placement)
    assert found.host == "b"
    alone = place(pod("c"), lambda namespace, name: claim("c"), CLASSES.get, Index.of([A], [], [node("a")]), Used(),
                  plugins=Plugins(filters=(Picky(),)))
    assert isinstance(alone, Waiting)
    assert alone.summary == NONE + "plug-in picky: a0 is not for everybody"


def test_scorers_of_others_count() -> None:
    found = with_plugins(Plugins(scorers=(Fan(),)))
    assert isinstance(found, Placement)
    assert (found.host, found.why.rpartition("; ")[2]) == ("b", "plug-in fan: 100")


def test_a_host_without_room_is_passed_over() -> None:
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "1"
    wanted = pod("c", containers=[{"name": "main", "resources": {"requests": {"cpu": "2"}}}])
    found = placed(wanted, [claim("c")], Index.of([A, B], [], [small, node("b")]))
    assert isinstance(found, Placement)
    assert found.host == "b"
    alone = placed(wanted, [claim("c")], Index.of([A], [], [small]))
    assert isinstance(alone, Waiting)
    assert alone.summary == NONE + "1 of 1 cpu free, 2 wanted"


# -- explain: what a person reads


def instance(**status: Any) -> Object:
    return {"metadata": {"name": "blue", "namespace": "here", "uid": "uid-blue"}, "status": status, "spec": {
        "resourceClaims": [{"name": "entry-c", "resourceClaimName": "c"}],
        "domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "entry-c", "requestName": "nic"}]}}}}


def facts(*pods: Object, claims: Sequence[Object] = (), pages: Sequence[Page] = ()) -> Facts:
    return Facts([], pods, claims, list(CLASSES.values()), [A], [entry.object for entry in pages], [node("a")])


def launcher(**more: Any) -> Object:
    made = pod("c", **more.pop("spec", {}))
    made["metadata"]["ownerReferences"] = [
        {"kind": "VirtualMachineInstance", "uid": "uid-blue", "name": "blue", "controller": True}]
    return {**made, **more}


GIVEN = {"hostDeviceStatuses": [{"name": "nic0", "deviceResourceClaimStatus": {
    "name": "a0", "resourceClaimName": "c", "attributes": {"pciAddress": "0000:3b:01.0"}}}]}
ANSWERS: dict[str, tuple[Answer, str, list[str]]] = {
    "a machine that runs": (
        explain.instance(facts(), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)), "Running",
        ["vmi/blue runs on a: nothing is wrong", "  nic0: a0 at 0000:3b:01.0 (claim c)"]),
    "a machine without a pod": (
        explain.instance(facts(), instance(conditions=[{"type": "Synchronized", "status": "False", "message": "no room"}])),
        "Waiting pod", ["vmi/blue has no pod yet: no room"]),
    "a machine that failed": (
        explain.instance(facts(), instance(phase="Failed", conditions=[{"type": "Ready", "message": "gone"}])), "Failed",
        ["vmi/blue has failed: gone"]),
    "a machine that waits for a device": (
        explain.instance(facts(launcher(), claims=[claim("c")], pages=[page("a", ("a0", "train"))]),
                         instance(phase="Scheduling")), "Waiting devices",
        ["vmi/blue waits: 0/1 hosts are available: the devices that it asks for are there, but not to be had now",
         f"  a: request nic wants 1: 1 match, 0 free (a0: held by vmi/train since {SINCE})",
         "  -> a could take it once vmi/train ends"]),
    "a machine whose node says why": (
        explain.instance(facts(launcher(spec={"nodeName": "a"}, status={"phase": "Pending", "message": "a0 is held by x"}),
                               claims=[claim("c")], pages=[page("a", ("a0", "c"))]), instance(phase="Scheduling")),
        "Waiting node",
        ["vmi/blue is Scheduling: pod/pod is on a and Pending: a0 is held by x",
         f"  a0 on a for request nic: booked since {SINCE}, by vmi/c", "  devices not known yet: nic0"]),
    "a machine whose node prepares its device": (
        explain.instance(facts(launcher(spec={"nodeName": "a"}, status={"phase": "Pending"}), claims=[claim("c")],
                               pages=[page("a", ("a0", "c"))]), instance(phase="Scheduled", deviceStatus=GIVEN)),
        "Waiting node",
        ["vmi/blue is Scheduled: pod/pod is on a and Pending: the node agent there prepares a0",
         f"  a0 on a for request nic: booked since {SINCE}, by vmi/c"]),
    "a pod on a node that went": (
        explain.pod(facts(), pod(nodeName="z")), "Waiting node", ["pod/pod is on z and Pending: there is no such node"]),
    "a pod with scheduling gates": (
        explain.pod(facts(), pod(schedulingGates=[{"name": "a.test/quota"}])), "Waiting gates",
        ["pod/pod waits until its scheduling gates are taken away: a.test/quota",
         "  -> whoever set them takes them out of spec.schedulingGates"]),
    "a pod of somebody else's scheduler": (
        explain.pod(facts(claims=[claim("c")]), pod("c", schedulerName="volcano")), "Waiting scheduler",
        ["pod/pod waits for scheduler volcano, which is not ours", "  by what is published and held it fits on a",
         "  -> see whether volcano runs, or take spec.schedulerName out"]),
    "a pod that fits, and kube-scheduler says no": (
        explain.pod(facts(claims=[claim("c")]), {**pod("c"), "status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 too sunny."}]}}),
        "Waiting scheduler",
        ["pod/pod waits for default-scheduler; by what is published and held it fits on a",
         "  default-scheduler says: 0/1 nodes are available: 1 too sunny."]),
    "what a claim of another driver holds counts without a page": (
        explain.pod(facts(claims=[claim("c"), claim("d", **allocated("a", "a0", users=["web"]))]), pod("c")), "Waiting devices",
        ["pod/pod waits: 0/1 hosts are available: the devices that it asks for are there, but not to be had now",
         "  a: request nic wants 1: 1 match, 0 free (a0: held by pod/web in here)"]),
    "a machine that is going": (
        explain.instance(facts(), {**instance(), "metadata": {**instance()["metadata"], "deletionTimestamp": SINCE,
                                                              "finalizers": [machine.FINALIZER]}}), "Deleting end",
        [f"vmi/blue is being deleted since {SINCE}; it waits for foregroundDeleteVirtualMachine"]),
    "a pod that fits": (
        explain.pod(facts(claims=[claim("c")]), launcher()), "Fits scheduler",
        ["pod/pod fits on a and is about to be given it"]),
    "a pod whose claim is not there": (
        explain.pod(facts(claims=[claim("cc")]), pod("c")), "Waiting claim",
        ["pod/pod waits: claim c (resourceClaims entry entry-c) does not exist",
         "  -> apply a ResourceClaim c in namespace here; did you mean cc?"]),
    "a claim that holds": (
        explain.claim(facts(pages=[page("a", ("a0", "c"), state="prepared")]), claim("c")), "Holding",
        ["claim/c holds 1 device: nothing is wrong", f"  a0 on a for request nic: prepared since {SINCE}, by vmi/c"]),
    "a claim of another driver that holds": (
        explain.claim(facts(), claim("c", **allocated("a", "a0", users=["web"]))), "Holding",
        ["claim/c holds 1 device for pod/web in here: nothing is wrong", f"  a0 of pool a ({DRIVER}) for request nic"]),
    "a claim that is going": (
        explain.claim(facts(), {**claim("c", **allocated("a", "a0", users=["web"])), "metadata": {
            **claim("c")["metadata"], "deletionTimestamp": SINCE}}), "Deleting end",
        [f"claim/c is being deleted since {SINCE}; it waits for pod/web to end"]),
    "a claim that nobody uses": (
        explain.claim(facts(), claim("c")), "Unused",
        ["claim/c has no devices: no pod uses it, and devices are given when one does"]),
    "a claim whose pod waits": (
        explain.claim(facts(launcher(spec={"nodeSelector": {"zone": "east"}}), claims=[claim("c")]), claim("c")),
        "Waiting devices",
        ["claim/c has no devices: pod/pod waits: 0/1 hosts are available: no host takes it",
         "  a: nodeSelector wants zone=east; it has no such label"]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_explain(name: str) -> None:
    answer, state, wanted = ANSWERS[name]
    assert answer.text() == wanted
    assert f"{answer.state} {answer.waits_for}".strip() == state


def test_an_answer_for_programs() -> None:
    answer = explain.pod(facts(claims=[claim("c")], pages=[page("a", ("a0", "train"))]), pod("c"))
    short, long = answer.to_object(), answer.to_object(long=True)
    assert (short["state"], short["waitsFor"]) == ("Waiting", "devices")
    assert short["reasons"] == [{"reason": "request nic wants 1: 1 match, 0 free", "hosts": ["a"]}]
    assert "hosts" not in short
    assert long["hosts"][0]["devices"] == [{"device": "a0", "request": "nic", "code": "held", "why": HELD}]


def test_who_may_not_read_the_hosts_is_told_what_the_scheduler_said() -> None:
    known = replace(facts(claims=[claim("c")]), unread=("nodes",))
    told = {**pod("c"), "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}}
    assert explain.pod(known, told).text() == [
        "pod/pod waits: no room", "  you may not read nodes, without which nobody can tell more; ask somebody who may"]


RELIEF = {
    "one of two": (1, {"a0": "red", "a1": "blue"}, {}, ["a could take it once vmi/red in here or vmi/blue in here ends"]),
    "two together": (2, {"a0": "red", "a1": "blue"}, {}, ["a could take it once vmi/red in here and vmi/blue in here end"]),
    "a mark": (2, {"a0": "red"}, {"a1": "reserved"}, []),
    "a mark alone": (1, {"a0": "red"}, {"a1": "quarantined"}, [
        "a could take it after: outfit device restore a/a1", "a could take it once vmi/red in here ends"]),
}


@pytest.mark.parametrize("name", RELIEF)
def test_what_would_help_is_tried_out(name: str) -> None:
    count, held, marks, wanted = RELIEF[name]
    taken = page("a", *held.items())
    for device, which in marks.items():
        taken = Page(taken.with_marks(which, [Mark(DeviceId(DRIVER, "a", device), "", "admin", SINCE)]))  # type: ignore[arg-type]
    known = replace(facts(claims=[claim("c", ask("nic", count=count))], pages=[taken]),
                    slices=[part("a", dev("a0", **VF), dev("a1", **VF))])
    assert list(explain.pod(known, pod("c")).todo) == wanted


def test_what_can_never_be_is_told() -> None:
    near = {**claim("c"), "spec": {"devices": {"requests": [ask("nic", count=2)],
                                               "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}}}
    known = replace(facts(claims=[near]), slices=[part("a", *(dev(f"a{n}", kind="VF", numa=n) for n in range(2)))])
    assert explain.pod(known, pod("c")).todo == ("a could not take it even if nobody held anything there: ask for less",)


def test_a_cordoned_host_that_would_do_is_told() -> None:
    known = replace(facts(claims=[claim("c")]), nodes=[node("a", cordoned=True)])
    assert explain.pod(known, pod("c")).todo == ("a could take it after: kubectl uncordon a",)
    full = replace(known, pages=[page("a", ("a0", "train")).object])
    assert explain.pod(full, pod("c")).todo == ()
