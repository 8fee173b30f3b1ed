"""Which devices of one host: pick as a table of reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, OutOfServiceRecord, OutOfServiceRecords, Page
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.scheduler import HostRejection, Placement, Waiting, results
from tests.scheduling.builders import (
    CARD,
    DRIVER,
    HELD,
    NO_PF,
    NO_VF,
    NODES,
    PF,
    SHORT,
    SINCE,
    VF,
    WHOLE,
    ask,
    claim,
    counted,
    dev,
    node,
    page,
    part,
    placed,
    pod,
    taking,
)

# -- pick: one host


@dataclass(frozen=True)
class Pick:
    requests: Sequence[Object]
    devices: Sequence[Object]
    gives: Sequence[tuple[str, str]] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, OutOfServiceRecords] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    says: str = ""
    details: Sequence[str] = ()


def tainted(device: Object, *effects: str) -> Object:
    return {**device, "taints": [{"key": f"a.test/{effect.lower()}", "effect": effect} for effect in effects]}


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
        held = Page(held.with_marks(which, [OutOfServiceRecord(DeviceId(DRIVER, "n", device), "it smells", "admin", SINCE)]))
    parts = [part("n", *case.devices, count=2 if case.counters else 1)]
    if case.counters:
        parts.append(part("n", count=2, name="counters"))
        parts[1]["spec"]["sharedCounters"] = [{"name": "card", "counters": {
            name: {"value": str(amount)} for name, amount in case.counters.items()}}]
    verdict = served(case.requests, parts, held)
    if not case.says:
        assert verdict == list(case.gives)
        return
    assert isinstance(verdict, HostRejection), verdict
    assert verdict.summary == case.says
    assert len(verdict.details) == len(case.details), verdict.details
    assert all(detail.startswith(wanted) for detail, wanted in zip(verdict.details, case.details, strict=True)), verdict.details


def served(requests: Sequence[Object], parts: Sequence[Object], held: Page) -> list[tuple[str, str]] | HostRejection:
    """Request and device, for a pod with one claim of these requests; or why not."""
    wanted = claim("c")
    wanted["spec"]["devices"]["requests"] = list(requests)
    verdict = placed(pod("c"), [wanted], DeviceIndex.of(parts, [held], [node("n")]))
    if isinstance(verdict, Waiting):
        return verdict.hosts[0][1] if verdict.hosts else HostRejection(verdict.summary)
    [(_, given)] = verdict.claims
    return [(result["request"], device.device) for device, result in results(given)]


@pytest.mark.parametrize(("held", "who"), {
    1: f"vf0 (held by vmi/c0 (claim c0) in here since {SINCE})",
    4: ", ".join(f"vf{n} (held by vmi/c{n} (claim c{n}) in here since {SINCE})" for n in range(3)) + " and more",
}.items())
def test_at_most_three_that_exclude_a_device_are_named(held: int, who: str) -> None:
    devices = [taking(dev("pf", **PF), 5), *(taking(dev(f"vf{n}", **VF), 1) for n in range(5))]
    parts, taken = counted("n", 5, *devices), page("n", *((f"vf{n}", f"c{n}") for n in range(held)))
    refusal = served([WHOLE], parts, taken)
    assert isinstance(refusal, HostRejection)
    assert f"pf: excluded by {who}, with which it shares card" in refusal.details
    assert served([ask("nic")], parts, taken) == [("nic", f"vf{held}")]


def test_cards_of_the_same_name_on_two_hosts_are_two() -> None:
    slices = [*counted("a", 2, *CARD), *counted("b", 2, *CARD)]
    found = placed(pod("c"), [claim("c", WHOLE)], DeviceIndex.of(slices, [page("a", ("vf0", "train"))], NODES))
    assert isinstance(found, Placement)
    assert found.host == "b"


def test_a_device_that_takes_of_another_counter_is_not_in_the_way() -> None:
    light: Object = {**dev("light", **VF), "consumesCounters": [
        {"counterSet": "card", "counters": {"lamps": {"value": "9"}}}]}
    slices = counted("n", 2, *CARD, light)
    slices[1]["spec"]["sharedCounters"][0]["counters"]["lamps"] = {"value": "9"}
    assert served([WHOLE], slices, page("n", ("light", "train"))) == [("card", "pf")]


def test_all_pages_count_and_a_mark_says_what_is_known() -> None:
    marked = Page(page("b").with_marks("reserved", [OutOfServiceRecord(DeviceId(DRIVER, "b", "b0"), "", "admin", SINCE)]))
    other = Page(page("c").with_marks("unclean", [OutOfServiceRecord(DeviceId(DRIVER, "c", "c0"), "used", "admin", SINCE)]))
    slices = [part(host, dev(f"{host}0", **VF)) for host in "abcd"]
    pages = [page("a", ("a0", "train")), marked, other, page("d", ("d0", "train"))]
    found = placed(pod("x"), [claim("x")], DeviceIndex.of(slices, pages, [node(host) for host in "abcd"]), every_host=True)
    assert isinstance(found, Waiting)
    assert {host: refusal.details for host, refusal in found.hosts} == {
        "a": (f"a0: {HELD}",), "b": (f"b0: reserved since {SINCE}",), "c": (f"c0: unclean since {SINCE}: used",),
        "d": (f"d0: {HELD}",)}


@pytest.mark.parametrize("amount", [{"resources": {"VCPU": 1}}, {"adminAccess": True}], ids=["a host's own", "looking on"])
def test_what_holds_no_device(amount: Object) -> None:
    resources = Booking(DeviceId(DRIVER, "n", "a"), Holder("Consumer", "", "s", "uid-s"), "", "booked", SINCE, amount)
    assert served([ask("nic")], [part("n", dev("a", **VF))], Page(page("n").adding(resources))) == [("nic", "a")]
