"""Which devices of one host: pick as a table of reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, OutOfServiceState, Page
from outfitter.api.rejection import Rejection
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.placement import HostRejection, Placement, Waiting, results
from tests.rejected import Code, no
from tests.scheduling.builders import (
    CARD,
    DRAINED,
    DRIVER,
    NODES,
    PF,
    SINCE,
    VF,
    WHOLE,
    ask,
    claim,
    counted,
    dev,
    held,
    no_match,
    no_pf,
    no_vf,
    node,
    page,
    part,
    placed,
    pod,
    taking,
    too_few,
)

# -- pick: one host


@dataclass(frozen=True)
class Pick:
    requests: Sequence[Object]
    devices: Sequence[Object]
    gives: Sequence[tuple[str, str]] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, OutOfServiceState] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    rejects: Rejection | None = None
    devices_rejected: Sequence[Rejection] = ()


def device(name: str) -> DeviceId:
    return DeviceId(DRIVER, "n", name)


def excluded(name: str, request: str, *causes: Rejection) -> Rejection:
    return Rejection(Code.COUNTER_EXHAUSTED, device(name), detail={"request": request, "sets": ("card",)}, causes=causes)


def held_of(name: str, by: str = "train") -> Rejection:
    """As the page says it, of no request."""
    return replace(held(name, by=by), detail={})


NO_SPEED = no(Code.SELECTOR_ERROR, device("a"), where="claim here/c, request nic: selector #0",
              error="CEL runtime error: no such key: speed", missing="speed",
              optional=f'device.attributes["{DRIVER}"].?speed.orValue(0)')


def tainted(device: Object, *effects: str) -> Object:
    return {**device, "taints": [{"key": f"a.test/{effect.lower()}", "effect": effect} for effect in effects]}


PICKS = {
    "the first that fits, in the order of publishing": Pick(
        [ask("nic")], [dev("c", **PF), dev("b", **VF), dev("a", **VF)], gives=[("nic", "b")]
    ),
    "what is held is passed over": Pick(
        [ask("nic")], [dev("a", **VF), dev("b", **VF)], gives=[("nic", "b")], held={"a": "train"}
    ),
    "as many as asked": Pick([ask("nic", count=2)], [dev(name, **VF) for name in "abc"], gives=[("nic", "a"), ("nic", "b")]),
    "two requests get different devices": Pick(
        [ask("x"), ask("y")], [dev("a", **VF), dev("b", **VF)], gives=[("x", "a"), ("y", "b")]
    ),
    "a request's own selector narrows the class": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')],
        [dev("a", kind="VF", speed=10), dev("b", kind="VF", speed=25)],
        gives=[("nic", "b")],
    ),
    "one held": Pick(
        [ask("nic")], [dev("a", **VF)], held={"a": "train"}, rejects=too_few(1, 1, 0), devices_rejected=[held("a")]
    ),
    "too few": Pick(
        [ask("nic", count=3)],
        [dev("a", **VF), dev("b", **VF), dev("c", **PF)],
        held={"b": "train"},
        rejects=too_few(3, 2, 1),
        devices_rejected=[held("b"), no_vf("c")],
    ),
    "too few, and all are free": Pick(
        [ask("nic", count=2)], [dev("a", **VF), dev("b", **PF)], rejects=too_few(2, 1, 1), devices_rejected=[no_vf("b")]
    ),
    "what is held is reported first, the rest as it was published": Pick(
        [ask("nic")],
        [dev("c", **PF), dev("a", **PF), dev("z", **VF), dev("b", **VF)],
        held={"z": "train", "b": "train"},
        rejects=too_few(1, 2, 0),
        devices_rejected=[held("z"), held("b"), no_vf("c"), no_vf("a")],
    ),
    "none is of the kind": Pick(
        [ask("nic")], [dev("a", **PF), dev("b", **PF)], rejects=no_match(2), devices_rejected=[no_vf("a"), no_vf("b")]
    ),
    "nothing published": Pick([ask("nic")], [], rejects=no(Code.NO_DEVICES)),
    "the second request gets nothing": Pick(
        [ask("x"), ask("y")], [dev("a", **VF)], rejects=no(Code.TOO_FEW_TOGETHER, wanted=2, free=1)
    ),
    "a selector that cannot be evaluated": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')], [dev("a", **VF)], rejects=NO_SPEED,
        devices_rejected=(NO_SPEED.with_detail(request="nic"),),
    ),
    "a selector that has no answer for one is an error, as in Kubernetes": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')],
        [dev("a", **VF), dev("b", kind="VF", speed=25)],
        rejects=NO_SPEED,
        devices_rejected=(NO_SPEED.with_detail(request="nic"),),
    ),
    "a device that is not reached does no harm": Pick(
        [ask("nic", f'device.attributes["{DRIVER}"].speed > 10')],
        [dev("b", kind="VF", speed=25), dev("a", **VF)],
        gives=[("nic", "b")],
    ),
    "no requests, nothing needed": Pick([], [dev("a", **VF)]),
    "what is tainted is passed over": Pick(
        [ask("nic")],
        [tainted(dev("a", **VF), "NoSchedule"), tainted(dev("b", **VF), "NoExecute"), tainted(dev("c", **VF), "None")],
        gives=[("nic", "c")],
    ),
    "a taint is named": Pick(
        [ask("nic")],
        [tainted(dev("a", **VF), "NoSchedule", "NoExecute")],
        rejects=too_few(1, 1, 0),
        devices_rejected=[no(Code.TAINTED, device("a"), request="nic", taint="a.test/noschedule:NoSchedule", expired=False)],
    ),
    "what is out of service is passed over": Pick(
        [ask("nic")],
        [dev(name, **VF) for name in "abcd"],
        gives=[("nic", "d")],
        marks={"a": "reserved", "b": "quarantined", "c": "unclean"},
    ),
    "what was done to a device is reported": Pick(
        [ask("nic")],
        [dev("a", **VF)],
        marks={"a": "quarantined"},
        rejects=too_few(1, 1, 0),
        devices_rejected=[
            Rejection(Code.QUARANTINED, device("a"), None, SINCE, {"reason": "it smells", "by": "admin", "request": "nic"})
        ],
    ),
    "a card is whole while none of its functions is held": Pick(
        [WHOLE], CARD, gives=[("card", "pf")], counters={"functions": 2}
    ),
    "a held function keeps the card from being given whole": Pick(
        [WHOLE],
        CARD,
        counters={"functions": 2},
        held={"vf1": "train"},
        rejects=DRAINED,
        devices_rejected=[excluded("pf", "card", held_of("vf1")), no_pf("vf0"), no_pf("vf1")],
    ),
    "the whole card keeps its functions from being given": Pick(
        [ask("nic")],
        CARD,
        counters={"functions": 2},
        held={"pf": "train"},
        rejects=DRAINED,
        devices_rejected=[excluded("vf0", "nic", held_of("pf")), excluded("vf1", "nic", held_of("pf")), no_vf("pf")],
    ),
    "one function beside another": Pick(
        [ask("nic")], CARD, gives=[("nic", "vf1")], counters={"functions": 2}, held={"vf0": "train"}
    ),
    "the card and its functions exclude each other in one claim": Pick(
        [ask("nic"), WHOLE],
        CARD,
        counters={"functions": 2},
        rejects=DRAINED,
        devices_rejected=[no_vf("pf"), no_pf("vf0"), no_pf("vf1")],
    ),
    "a counter that is no number": Pick(
        [ask("nic")],
        [taking(dev("vf0", **VF), "many")],  # type: ignore[arg-type]
        counters={"functions": 2},
        rejects=no(Code.POOL_UPDATING, pool=f"{DRIVER}/n"),
        devices_rejected=[no(Code.POOL_UPDATING, pool=f"{DRIVER}/n")],
    ),
    "a counter that was not published": Pick(
        [ask("nic")],
        CARD,
        rejects=no(Code.POOL_INVALID, pool=f"{DRIVER}/n", message="device pf uses counter set card, which is not there"),
    ),
}


@pytest.mark.parametrize("case", PICKS.values(), ids=PICKS)
def test_pick(case: Pick) -> None:
    taken = page("n", *case.held.items())
    for name, which in case.marks.items():
        taken = Page(taken.with_records(which, [OutOfServiceRecord(device(name), "it smells", "admin", SINCE)]))
    parts = [part("n", *case.devices, count=2 if case.counters else 1)]
    if case.counters:
        parts.append(part("n", count=2, name="counters"))
        parts[1]["spec"]["sharedCounters"] = [{"name": "card", "counters": {
            name: {"value": str(amount)} for name, amount in case.counters.items()}}]
    verdict = served(case.requests, parts, taken)
    if case.rejects is None:
        assert verdict == list(case.gives)
        return
    assert isinstance(verdict, HostRejection), verdict
    assert verdict.rejections == (case.rejects,)
    assert verdict.obstacles == tuple(case.devices_rejected)


def served(requests: Sequence[Object], parts: Sequence[Object], held: Page) -> list[tuple[str, str]] | HostRejection:
    """Request and device, for a pod with one claim of these requests; or why not."""
    wanted = claim("c")
    wanted["spec"]["devices"]["requests"] = list(requests)
    verdict = placed(pod("c"), [wanted], DeviceIndex.of(parts, [held], [node("n")]))
    if isinstance(verdict, Waiting):
        return verdict.hosts[0][1] if verdict.hosts else HostRejection(verdict.rejections)
    [(_, given)] = verdict.claims
    return [(result["request"], device.device) for device, result in results(given)]


@pytest.mark.parametrize("count", [1, 4])
def test_the_devices_that_exclude_a_device_are_its_causes(count: int) -> None:
    devices = [taking(dev("pf", **PF), 5), *(taking(dev(f"vf{n}", **VF), 1) for n in range(5))]
    parts, taken = counted("n", 5, *devices), page("n", *((f"vf{n}", f"c{n}") for n in range(count)))
    refusal = served([WHOLE], parts, taken)
    assert isinstance(refusal, HostRejection)
    assert excluded("pf", "card", *(held_of(f"vf{n}", f"c{n}") for n in range(count))) in refusal.obstacles
    assert served([ask("nic")], parts, taken) == [("nic", f"vf{count}")]


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


def test_all_pages_count_and_records_have_details() -> None:
    marked = Page(page("b").with_records("reserved", [OutOfServiceRecord(DeviceId(DRIVER, "b", "b0"), "", "admin", SINCE)]))
    other = Page(page("c").with_records("unclean", [OutOfServiceRecord(DeviceId(DRIVER, "c", "c0"), "used", "admin", SINCE)]))
    slices = [part(host, dev(f"{host}0", **VF)) for host in "abcd"]
    pages = [page("a", ("a0", "train")), marked, other, page("d", ("d0", "train"))]
    found = placed(pod("x"), [claim("x")], DeviceIndex.of(slices, pages, [node(host) for host in "abcd"]), every_host=True)
    assert isinstance(found, Waiting)
    assert {host: refusal.obstacles for host, refusal in found.hosts} == {
        "a": (held("a0", "a"),), "d": (held("d0", "d"),),
        "b": (Rejection(Code.RESERVED, DeviceId(DRIVER, "b", "b0"), None, SINCE, {"by": "admin", "request": "nic"}),),
        "c": (Rejection(Code.UNCLEAN, DeviceId(DRIVER, "c", "c0"), None, SINCE, {
            "reason": "used", "by": "admin", "request": "nic"}),)}


@pytest.mark.parametrize("amount", [{"resources": {"VCPU": 1}}, {"adminAccess": True}], ids=["a host's own", "looking on"])
def test_what_holds_no_device(amount: Object) -> None:
    resources = Booking(DeviceId(DRIVER, "n", "a"), Holder("Consumer", "", "s", "uid-s"), "", "booked", SINCE, amount)
    assert served([ask("nic")], [part("n", dev("a", **VF))], Page(page("n").adding(resources))) == [("nic", "a")]
