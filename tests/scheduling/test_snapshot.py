"""What-if snapshots: each answers as one that is built from the objects that it assumes, and leaves the original as it was."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Holder, OutOfServiceRecord, Page
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.placement import Placement
from outfitter.scheduling.scheduler import place
from outfitter.scheduling.snapshot import SchedulingSnapshot
from tests.scheduling.builders import DRIVER, PF, SINCE, VF, ask, claim, counted, dev, node, page, part, pod, snapshot, taking

RACK: Object = {"metadata": {"name": "rack"}, "spec": {
    "driver": DRIVER, "allNodes": True, "devices": [dev("r0", **VF)],
    "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 1}}}
CARD = [taking(dev("pf", **PF), 2), taking(dev("vf0", **VF), 1)]
SLICES = [part("a", dev("a0", **VF), dev("a1", **VF)), *counted("b", 2, *CARD), RACK]
NODES = [node("a"), node("b"), node("c")]
PAGES = [page("a", ("a0", "one"), ("a1", "two")), page("b", ("vf0", "one"))]
ALL = {"uid-one", "uid-two"}


def wanted(count: int) -> Object:
    return claim("c", ask("nic", count=count))


def of(pages: Sequence[Page], nodes: Sequence[Object] = NODES, count: int = 1) -> SchedulingSnapshot:
    return snapshot(DeviceIndex.of(SLICES, pages, nodes), [wanted(count)])


def answers(given: SchedulingSnapshot, count: int) -> Any:
    """The host and devices, or the reason of each host."""
    verdict = place(given, pod("c"), every_host=True)
    if isinstance(verdict, Placement):
        return verdict.host, [allocation for _, allocation in verdict.claims]
    return [(host, rejection.rejections, rejection.obstacles) for host, rejection in verdict.hosts]


def without(uids: set[str]) -> list[Page]:
    return [Page(each.leaving(booking.key for booking in each.bookings if booking.holder.uid in uids)) for each in PAGES]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("hosts", [each for size in range(4) for each in itertools.combinations("abc", size)], ids=str)
def test_restricted_to(hosts: tuple[str, ...], count: int) -> None:
    original = of(PAGES, count=count)
    before = answers(original, count)
    some = [each for each in NODES if each["metadata"]["name"] in hosts]
    assert answers(original.restricted_to(hosts), count) == answers(of(PAGES, some, count), count)
    assert answers(original, count) == before


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("uids", [set(), {"uid-one"}, {"uid-two"}, ALL], ids=sorted)
def test_without(uids: set[str], count: int) -> None:
    original = of(PAGES, count=count)
    before = answers(original, count)
    assert answers(original.without(uids), count) == answers(of(without(uids), count=count), count)
    assert answers(original.restricted_to("a").without(uids), count) == answers(of(without(uids), NODES[:1], count), count)
    assert answers(original, count) == before


def test_a_device_of_another_driver_is_held_until_its_claim_releases_it() -> None:
    result = {"request": "r", "driver": DRIVER, "pool": "rack", "device": "r0"}
    given = of(PAGES)
    far = Holder("ResourceClaim", "here", "far", "uid-far")
    given.devices.hold(result, Rejection(RejectionCode.HELD, DeviceId(DRIVER, "rack", "r0"), far))
    assert not isinstance(place(given.restricted_to("c"), pod("c")), Placement)
    found = place(given.restricted_to("c").without({"uid-far"}), pod("c"))
    assert isinstance(found, Placement)
    assert not isinstance(place(given.restricted_to("c"), pod("c")), Placement)


def test_a_pool_that_is_booked_on_the_page_of_another_host() -> None:
    """It was that host's before it was shared."""
    booked = page("b", ("r0", "old"))
    [booking] = booked.object["spec"]["bookings"]
    booking["device"]["pool"] = "rack"
    given = of([Page(booked.object)])
    assert not isinstance(place(given.restricted_to("c"), pod("c")), Placement)
    assert isinstance(place(given.restricted_to("c").without({"uid-old"}), pod("c")), Placement)


def test_a_taint_that_repeats_a_page_goes_with_its_record() -> None:
    """Of several marks one is taken away: the published taints of all of them count no longer, the other marks do."""
    device = dev("a0", **VF)
    device["taints"] = [{"key": "outfitter.dev/reserved", "effect": "NoSchedule"}]
    record = OutOfServiceRecord(DeviceId(DRIVER, "a", "a0"), "", "admin", SINCE)
    marked = Page(page("a").with_records("reserved", [record]))
    given = snapshot(DeviceIndex.of([part("a", device)], [marked], NODES[:1]), [wanted(1)])
    assert not isinstance(place(given, pod("c")), Placement)
    assert isinstance(place(given.with_page(page("a")), pod("c")), Placement)
    assert isinstance(place(given.emptied(), pod("c")), Placement)
    assert not isinstance(place(given.without(ALL), pod("c")), Placement)


def test_another_node_in_its_place() -> None:
    given = snapshot(DeviceIndex.of(SLICES, [], [node("a", cordoned=True)]), [wanted(1)])
    assert not isinstance(place(given, pod("c")), Placement)
    assert isinstance(place(given.with_node(node("a")), pod("c")), Placement)
    assert not isinstance(place(given, pod("c")), Placement)
