"""Which host, and the rejections where there is none: place as a table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import Rejection
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.placement import Placement, Waiting, results
from outfitter.scheduling.plugins import GivenDevice, SchedulerPlugins
from tests.rejected import Code, no
from tests.scheduling.builders import (
    CARD,
    DRIVER,
    NODES,
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
    held,
    no_match,
    no_vf,
    node,
    page,
    part,
    placed,
    pod,
    too_few,
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
    rejects: Sequence[Rejection] = ()  # of the pod or its claims
    hosts: Mapping[str, Sequence[Rejection]] = field(default_factory=dict)  # what each host that was asked rejects it for
    unlike: int = 0  # hosts without such devices


PLACES = {
    "the first host that can": Place(pod("c"), [claim("c")], [A, B], NODES, host="a", gives={"c": ["a0"]}),
    "a pod without claims": Place(pod(), nodes=NODES, host="a"),
    "the next host when the first is full": Place(
        pod("c"), [claim("c")], [A, B], NODES, [page("a", ("a0", "train"))], host="b", gives={"c": ["b0"]}),
    "what was released but not yet released is still held": Place(
        pod("c"), [claim("c")], [A], [node("a")], [page("a", ("a0", "train"), state="released")],
        hosts={"a": [too_few(1, 1, 0)]}),
    "two claims on one host": Place(
        pod("c", "d"), [claim("c"), claim("d")], [A, B], NODES, host="b", gives={"c": ["b0"], "d": ["b1"]}),
    "two claims and no host with two devices": Place(
        pod("c", "d"), [claim("c"), claim("d")], [A], [node("a")],
        hosts={"a": [no(Code.TOO_FEW_TOGETHER, wanted=2, free=1)]}),
    "two entries that name one claim": Place(pod("c", "c"), [claim("c")], [A], [node("a")], host="a", gives={"c": ["a0"]}),
    "no host at all": Place(pod("c"), [claim("c")], rejects=[no(Code.NO_HOST)]),
    "nodeSelector picks": Place(
        pod("c", nodeSelector={"zone": "east"}), [claim("c")], [A, B], [node("a"), node("b", zone="east")], host="b",
        gives={"c": ["b0"]}),
    "nodeSelector matches no node": Place(
        pod("c", nodeSelector={"zone": "east"}), [claim("c")], [A, B], [node("a"), node("b", zone="west")],
        hosts={"a": [no(Code.NODE_SELECTOR, label="zone", wanted="east", has=None)],
               "b": [no(Code.NODE_SELECTOR, label="zone", wanted="east", has="west")]}),
    "cordoned": Place(pod("c"), [claim("c")], [A], [node("a", cordoned=True)],
                      hosts={"a": [no(Code.NODE_CORDONED)]}),
    "not ready": Place(pod("c"), [claim("c")], [A], [node("a", ready=False)],
                       hosts={"a": [no(Code.NODE_NOT_READY, message="the kubelet stopped posting")]}),
    "a node that reports nothing of itself is taken": Place(
        pod("c"), [claim("c")], [A], [node("a", ready=None)], host="a", gives={"c": ["a0"]}),
    "many hosts, some of which are asked": Place(
        pod("c"), [claim("c")], [], [node(name) for name in "abcde"],
        hosts={name: [no(Code.NO_DEVICES)] for name in "abc"}),
    "hosts with such devices are asked first": Place(
        pod("c"), [claim("c")], [part("d", dev("d0", **VF))], [node(name) for name in "abcdef"],
        [page("d", ("d0", "train"))],
        hosts={"d": [too_few(1, 1, 0)]}, unlike=5),
    "those that would take the pod first": Place(
        pod("c"), [claim("c")], [part(name, dev("x", **VF)) for name in "abcdef"],
        [node(name, cordoned=name in "abcd") for name in "abcdef"], [page("e", ("x", "train")), page("f", ("x", "train"))],
        hosts={"a": [no(Code.NODE_CORDONED)], "e": [too_few(1, 1, 0)], "f": [too_few(1, 1, 0)]}),
    "too few on one NUMA node": Place(
        pod("c"), [{**claim("c", ask("nic", count=2)), "spec": {"devices": {
            "requests": [ask("nic", count=2)], "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}}}],
        [part("a", *(dev(f"a{n}", kind="VF", numa=n // 2) for n in range(4)))], [node("a")],
        [page("a", ("a0", "train"), ("a3", "train"))],
        hosts={"a": [no(Code.CONSTRAINT_UNMET, wanted=2, attribute=f"{DRIVER}/numa", distinct=False)]}),
    "a claim that does not exist": Place(
        pod("c"), [], [A], NODES, rejects=[no(Code.CLAIM_MISSING, claim="c", entry="entry-c")]),
    "a claim that is not made yet": Place(
        pod(resourceClaims=[{"name": "net", "resourceClaimTemplateName": "one-vf"}]), [], [A], NODES,
        rejects=[no(Code.CLAIM_NOT_CREATED, entry="net", template="one-vf")]),
    "a claim that is being deleted": Place(
        pod("c"), [{**claim("c"), "metadata": {**claim("c")["metadata"], "deletionTimestamp": SINCE}}], [A], NODES,
        rejects=[no(Code.CLAIM_DELETING, claim="c")]),
    "a claim that cannot be served": Place(
        pod("c"), [claim("c", ask("nic", deviceClassName="gone"))], [A], NODES,
        rejects=[no(Code.CLASS_MISSING, **{"where": "claim here/c, request nic", "class": "gone"})]),
    "a claim in use by another pod": Place(
        pod("c"), [claim("c", **allocated("a", "a0", users=["other"]))], [A], NODES,
        rejects=[no(Code.CLAIM_IN_USE, claim="c", pods=("other",))]),
    "a claim that this pod has already": Place(
        pod("c"), [claim("c", **allocated("b", "b0", users=["pod"]))], [A, B], NODES, [page("b", ("b0", "c"))], host="b"),
    "a claim whose pool is not named after the host": Place(
        pod("c"), [claim("c", allocation={
            "devices": {"results": [{"request": "nic", "driver": DRIVER, "pool": "rack-7", "device": "x"}]},
            "nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}})], [A, B], NODES, host="b"),
    "a claim that was allocated on a host that is not asked": Place(
        pod("c", "d"), [claim("c", **allocated("b", "b0")), claim("d")], [A, B], [node("a")], [page("b", ("b0", "c"))],
        hosts={"a": [no(Code.CLAIM_ELSEWHERE, hosts=("b",))]}),
    "claims that were allocated on different hosts": Place(
        pod("c", "d"), [claim("c", **allocated("a", "a0")), claim("d", **allocated("b", "b0"))], [A, B], [node("a")],
        hosts={"a": [no(Code.CLAIM_ELSEWHERE, hosts=())]}),
    "an old generation is not looked at": Place(
        pod("c"), [claim("c")], [part("a", dev("old", **VF)), part("a", dev("new", **VF), generation=2)], [node("a")], host="a",
        gives={"c": ["new"]}),
    "a pool of which a part is missing is not used": Place(
        pod("c"), [claim("c")], [part("a", dev("a0", **VF), count=2)], [node("a")],
        hosts={"a": [no(Code.POOL_UPDATING, pool=f"{DRIVER}/a")]}),
}


@pytest.mark.parametrize("name", PLACES)
def test_place(name: str) -> None:
    case = PLACES[name]
    verdict = placed(case.pod, case.claims, DeviceIndex.of(case.slices, case.pages, case.nodes))
    if not case.host:
        assert isinstance(verdict, Waiting)
        assert verdict.rejections == tuple(case.rejects)
        assert {host: list(rejected.rejections) for host, rejected in verdict.hosts} == case.hosts
        assert (verdict.unlike, verdict.total) == (case.unlike, len(case.nodes) if case.hosts else 0)
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
    assert [(group.hosts, group.nearest.rejections, group.alike) for group in grouping.groups(found.hosts)] == [
        (("n0", "n1", "n2", "n3"), (too_few(1, 1, 0),), True), (("n4",), (no(Code.NODE_CORDONED),), True),
        (tuple(f"n{number}" for number in range(5, 40)), (no_match(1),), True)]
    by_host = dict(found.hosts)
    assert by_host["n0"].obstacles == (held("x", "n0"),)
    assert by_host["n5"].obstacles == (no_vf("x", "n5"),)
    assert found.codes == (Code.TOO_FEW_FREE, Code.NODE_CORDONED, Code.NO_MATCH)


def test_counting_agrees_with_the_search() -> None:
    """Of a host that counting can judge the rejection is the same, and the search is made when its devices are asked for."""
    for devices, taken in (([dev("a", **VF)], ["a"]), ([dev("a", **PF)], []), ([dev("a", **VF), dev("b", **VF)], ["a"])):
        index = DeviceIndex.of([part("n", *devices)], [page("n", *((name, "train") for name in taken))], [node("n")])
        found = placed(pod("c"), [claim("c", ask("nic", count=2))], index, every_host=True)
        assert isinstance(found, Waiting)
        refusal = found.hosts[0][1]
        assert refusal.found is not None
        assert refusal.rejections == refusal.found.rejections


@pytest.mark.parametrize(("condition", "message"), {
    "a message": ({"message": "gone", "reason": "Gone"}, "gone"), "a reason": ({"reason": "Gone"}, "Gone"),
    "nothing": ({}, "no reason given")}.values(), ids=["a message", "a reason", "nothing"])
def test_why_a_host_is_not_ready(condition: Object, message: str) -> None:
    sick = node("a")
    sick["status"]["conditions"] = [{"type": "Sunny", "status": "True"},
                                    {"type": "Ready", "status": "Unknown", **condition}]
    found = placed(pod("c"), [claim("c")], DeviceIndex.of([A], [], [sick]))
    assert isinstance(found, Waiting)
    assert found.hosts[0][1].rejections == (no(Code.NODE_NOT_READY, message=message),)


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


def test_tighter_host_is_chosen_with_the_reason() -> None:
    slices = [part("a", dev("a0", **VF), dev("a1", **VF)), part("b", dev("b0", **VF))]
    found = placed(pod("c"), [claim("c")], DeviceIndex.of(slices, [], NODES))
    assert isinstance(found, Placement)
    assert (found.host, found.why[:50]) == ("b", "pack: 1 device on 1 NUMA node and 1 PCIe root; the")


EITHER = claim("c", {"name": "nic", "firstAvailable": [
    {"name": "big", "deviceClassName": "vf", "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].big'}}]},
    {"name": "any", "deviceClassName": "vf"}]})


def either(hosts: Mapping[str, bool], *, pages: Sequence[Page] = (), constraints: Sequence[Object] = (), **more: Any
           ) -> tuple[str, str]:
    """Where a claim with alternatives goes, and which it gets. `hosts`: whether the device of each is a big one."""
    wanted = {**EITHER, "spec": {"devices": {**EITHER["spec"]["devices"], "constraints": list(constraints)}}}
    slices = [part(name, dev("d", kind="VF", big=big)) for name, big in hosts.items()]
    found = placed(pod("c"), [wanted], DeviceIndex.of(slices, pages, [node(name) for name in hosts]), **more)
    assert isinstance(found, Placement)
    return found.host, found.claims[0][1]["devices"]["results"][0]["request"]


MANY_SMALL = {f"a{number:03}": False for number in range(150)}


def test_a_better_alternative_on_another_host_is_preferred() -> None:
    assert either({"a": False, "b": True}) == ("b", "nic/big")
    assert either({"a": False, "b": True}, policy="spread") == ("b", "nic/big")
    assert either({**MANY_SMALL, "z": True}) == ("z", "nic/big"), "however many hosts have the second choice"
    assert either({"a": False, "b": True}, pages=[page("b", ("d", "other"))]) == ("a", "nic/any"), "the first choice is held"


def test_the_search_for_a_better_alternative_ends() -> None:
    """Counting does not see that a constraint rules the first choice out everywhere."""
    hidden = [{"requests": ["nic/big"], "matchAttribute": f"{DRIVER}/nothing"}]
    assert either(dict.fromkeys(MANY_SMALL, True), constraints=hidden)[1] == "nic/any"


def test_plugin_filters_are_called_and_their_reason_is_reported() -> None:
    found = with_plugins(SchedulerPlugins(filters=(Picky(),)))
    assert isinstance(found, Placement)
    assert found.host == "b"
    alone = placed(pod("c"), [claim("c")], DeviceIndex.of([A], [], [node("a")]), plugins=SchedulerPlugins(filters=(Picky(),)))
    assert isinstance(alone, Waiting)
    assert alone.hosts[0][1].rejections == (no(Code.PLUGIN_REJECTED, plugin="picky", message="a0 is not for everybody"),)


def test_scorers_of_others_count() -> None:
    found = with_plugins(SchedulerPlugins(scorers=(Fan(),)))
    assert isinstance(found, Placement)
    assert (found.host, found.why.rpartition("; ")[2]) == ("b", "plug-in fan: 100")


def test_host_without_capacity_is_skipped() -> None:
    small = node("a")
    small["status"]["allocatable"]["cpu"] = "1"
    wanted = pod("c", containers=[{"name": "main", "resources": {"requests": {"cpu": "2"}}}])
    found = placed(wanted, [claim("c")], DeviceIndex.of([A, B], [], [small, node("b")]))
    assert isinstance(found, Placement)
    assert found.host == "b"
    alone = placed(wanted, [claim("c")], DeviceIndex.of([A], [], [small]))
    assert isinstance(alone, Waiting)
    assert alone.hosts[0][1].rejections == (
        no(Code.INSUFFICIENT_RESOURCE, resource="cpu", wanted=2000, free=1000, total=1000),)


# -- claims that take long


def puzzle(number: int) -> list[Object]:
    """64 devices of a host, of which no choice serves `PUZZLE`, which takes long to find out."""
    chance = random.Random(number)
    return [dev(f"d{at:02}", **VF, **{name: chance.randrange(5) for name in "abcdef"}) for at in range(64)]


def _puzzle_claim() -> Object:
    chance, asks = random.Random(4), [ask(f"r{at}") for at in range(12)]
    wanted = claim("c", *asks)
    wanted["spec"]["devices"]["constraints"] = [
        {"requests": [f"r{at}" for at in chance.sample(range(12), 3)], "matchAttribute": f"{DRIVER}/{chance.choice('abcdef')}"}
        for _ in range(32)]
    return wanted


def test_a_search_that_takes_long_goes_on_with_the_next_hosts() -> None:
    """Each attempt ends after some work. The next begins where it ended, until a host is found."""
    easy = [dev(f"d{at:02}", **VF, **dict.fromkeys("abcdef", 1)) for at in range(12)]
    names = [f"n{at}" for at in range(6)]
    index = DeviceIndex.of([*(part(name, *puzzle(at)) for at, name in enumerate(names[:-1])), part(names[-1], *easy)], (),
                           [node(name) for name in names])
    resume: dict[str, str] = {}
    begun = []
    for _ in range(6):
        verdict = placed(pod("c"), [_puzzle_claim()], index, resume=resume)
        if isinstance(verdict, Placement):
            break
        assert Code.SEARCH_LIMIT in verdict.codes
        begun.append(resume["uid-pod"])
    assert isinstance(verdict, Placement)
    assert (verdict.host, resume) == ("n5", {})
    assert begun == sorted(set(begun))
    assert len(begun) > 1


LOOPS = "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, a + b + c > {})))"


def test_selectors_that_cost_too_much_together() -> None:
    """Each alone is cheap enough: it is the sum over requests and devices that is not."""
    index = DeviceIndex.of([part("a", *(dev(f"d{at:02}", **VF, at=at) for at in range(8)))], (), [node("a")])
    asks = [ask(f"r{at}", f'{LOOPS.format(-at)} && device.attributes["{DRIVER}"].at >= 0') for at in range(8)]
    for one in asks:
        assert isinstance(placed(pod("c"), [claim("c", one)], index), Placement)
    verdict = placed(pod("c"), [claim("c", *asks)], index)
    assert isinstance(verdict, Waiting)
    [rejection] = verdict.rejections
    assert rejection.code is Code.SELECTOR_BUDGET
    assert rejection["where"].startswith("claim here/c, request r")
    assert isinstance(placed(pod("c"), [claim("c", *asks[:2])], index), Placement)
