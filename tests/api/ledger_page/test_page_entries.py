"""Pages that contain anything: what is malformed is reported with its field, still holds its device, and is kept by changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.booking import Booking, Holder, booking_of
from outfitter.api.ledger_page.page import Page
from outfitter.api.ledger_page.page_entries import UNKNOWN, changed_bookings, changed_claims, claim_keys, unchanged, well_formed
from outfitter.errors import AlreadyHeld

DEVICE = {"driver": "pci.example.com", "pool": "node-a", "device": "vf0"}
HOLDER = {"kind": "ResourceClaim", "namespace": "here", "name": "c", "uid": "u"}
SINCE = "2026-01-01T00:00:00Z"
GOOD: dict[str, Any] = {"device": {**DEVICE, "device": "vf9"}, "holder": HOLDER, "state": "booked", "since": SINCE}
BAD: dict[str, Any] = {**GOOD, "device": DEVICE}
CASES: dict[str, tuple[Any, str, bool]] = {  # the booking, the field that is named, whether vf0 is held all the same
    "no object": ("vf0", "spec.bookings[1]", False),
    "null": (None, "spec.bookings[1]", False),
    "no device": ({key: value for key, value in BAD.items() if key != "device"}, "spec.bookings[1].device", False),
    "a device that is null": ({**BAD, "device": None}, "spec.bookings[1].device", False),
    "a device without a pool": ({**BAD, "device": {**DEVICE, "pool": None}}, "spec.bookings[1].device", False),
    "no holder": ({key: value for key, value in BAD.items() if key != "holder"}, "spec.bookings[1].holder", True),
    "a holder that is a text": ({**BAD, "holder": "blue"}, "spec.bookings[1].holder", True),
    "a holder without a uid": ({**BAD, "holder": {"kind": "Consumer", "name": "x"}}, "spec.bookings[1].holder", True),
    "no state": ({key: value for key, value in BAD.items() if key != "state"}, "spec.bookings[1].state", True),
    "a time that is a number": ({**BAD, "since": 7}, "spec.bookings[1].since", True),
    "an amount that is a text": ({**BAD, "amount": "whole"}, "spec.bookings[1].amount", True),
    "counters that are a list": (
        {**BAD, "amount": {"whole": True, "counters": ["x"]}}, "spec.bookings[1].amount.counters", True),
    "CPUs that are a list": ({**BAD, "amount": {"resources": {}, "cpus": [1]}}, "spec.bookings[1].amount.cpus", True),
}


def page(booking: Any, **spec: Any) -> Page:
    return Page({"metadata": {"name": "node-a"}, "spec": {"host": "node-a", "bookings": [GOOD, booking], **spec}})


@pytest.mark.parametrize("name", CASES)
def test_malformed_booking_costs_nothing_else(name: str) -> None:
    raw, field, held = CASES[name]
    read = page(raw)
    assert [(entry.page, entry.field) for entry in read.malformed] == [("node-a", field)]
    assert read.bookings[0].device.device == "vf9"
    unknown = read.on(DeviceId(**DEVICE))
    assert [booking.holder.kind for booking in unknown] == ([UNKNOWN] if held else [])
    assert claim_keys(read.object) == ["here/c"]
    new = Booking(DeviceId(**DEVICE), Holder("ResourceClaim", "here", "d", "v"), "nic", "booked", SINCE)
    if held:
        with pytest.raises(AlreadyHeld):
            read.holding([new])
    else:
        assert len(Page(read.holding([new])).bookings) == 2
    for change in (read.without("u"), read.with_state("u", "prepared", "2026-01-02T00:00:00Z")):
        assert raw in change["spec"]["bookings"], "nothing that is not understood is dropped"


@pytest.mark.parametrize("name", CASES)
def test_long_list_is_read_as_a_short_one(name: str) -> None:
    """Versions of long lists are kept: also then it counts what the list contains now."""
    raw = CASES[name][0]
    others = [{**GOOD, "device": {**DEVICE, "device": f"other{number}"}} for number in range(50)]
    short, long = page(raw), page(raw, bookings=[GOOD, raw, *others])
    assert long.malformed == short.malformed
    assert long.bookings[:len(short.bookings)] == short.bookings
    assert len(long.bookings) == len(short.bookings) + 50
    others[0]["state"] = "prepared"
    again = Page(long.object)
    assert [booking.device.device for booking in again.bookings if booking.state == "prepared"][-1] == "other0"
    assert [booking.holder.name for booking in again.bookings].count("c") == 51


LONG_LIST = [{**GOOD, "device": {**DEVICE, "device": f"vf{number}"}, "holder": {**HOLDER, "uid": f"u{number}"}}
             for number in range(60)]
VERSIONS: dict[str, tuple[list[Any], int]] = {  # of the list, and how many of its first bookings are the same
    "one more": ([*LONG_LIST, GOOD], 60),
    "the last one left": (LONG_LIST[:-1], 59),
    "one left in the middle": ([*LONG_LIST[:30], *LONG_LIST[31:]], 30),
    "another state": ([*LONG_LIST[:40], {**LONG_LIST[40], "state": "prepared"}, *LONG_LIST[41:]], 40),
    "a longer name": ([*LONG_LIST[:59], {**LONG_LIST[59], "request": "more"}], 59),
    "another one first": ([GOOD, *LONG_LIST], 0),
    "a number that begins as another one": ([*LONG_LIST[:50], 123, *LONG_LIST[51:]], 50),
    "the same": (LONG_LIST, 60),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_version_of_a_long_list_is_read_as_if_it_were_the_first(name: str) -> None:
    """What is known of an earlier version is used for as long as both are the same, to the letter."""
    for first in (LONG_LIST, [*LONG_LIST[:50], 12, *LONG_LIST[51:]]):
        Page({"metadata": {"name": "node-a"}, "spec": {"bookings": first}})
        entries, same = VERSIONS[name]
        assert unchanged(first, entries) == (same if first is LONG_LIST else min(same, 50))
        read = Page({"metadata": {"name": "node-a"}, "spec": {"bookings": entries}})
        known = [booking_of(entry) for entry in entries if isinstance(entry, dict)]
        assert list(read.bookings) == known
        assert [booking for bookings in well_formed(read.object) for booking in bookings] == known


@pytest.mark.parametrize(("spec", "fields"), [
    ({"bookings": {"a": 1}}, ["spec.bookings"]),
    ({"reserved": [{"reason": "x"}], "quarantined": "all"}, ["spec.reserved[0].device", "spec.quarantined"]),
    ({"unclean": [None, {"device": DEVICE}]}, ["spec.unclean[0]"]),
])
def test_malformed_lists_and_records(spec: dict[str, Any], fields: list[str]) -> None:
    read = page(GOOD, **spec)
    assert [entry.field for entry in read.malformed] == fields
    freed = Page(read.without_records("unclean", {DeviceId(**DEVICE)}))
    assert (len(freed.unclean), [entry.field for entry in freed.malformed]) == (0, fields)


def test_spec_that_is_no_object() -> None:
    read = Page({"metadata": {"name": "node-a"}, "spec": ["x"]})
    assert ([entry.field for entry in read.malformed], read.bookings) == (["spec"], ())


# -- what a container has of a device plugin is one entry

POD_HOLDER = Holder("Pod", "here", "train", "u-train")
GPUS = [DeviceId("example.com/gpu", "node-a", f"g{number}") for number in range(4)]


def of_pod(device: DeviceId, container: str = "main", holder: Holder = POD_HOLDER) -> Booking:
    return Booking(device, holder, container, "prepared", SINCE, prepared=SINCE)


def stored(page: Page) -> list[tuple[str, list[str]]]:
    """The entries of a page: container, and the devices."""
    return [(raw["request"], [raw["device"]["device"], *raw.get("furtherDevices", ())])
            for raw in page.object["spec"]["bookings"]]


BLANK = Page(Page.blank("node-a"))
OTHER = Holder("Pod", "here", "serve", "u-serve")
GROUPS: dict[str, tuple[list[Booking], list[tuple[str, list[str]]]]] = {
    "of one container": ([of_pod(each) for each in GPUS], [("main", ["g0", "g1", "g2", "g3"])]),
    "one device": ([of_pod(GPUS[0])], [("main", ["g0"])]),
    "of two containers": ([of_pod(GPUS[0]), of_pod(GPUS[1]), of_pod(GPUS[2], "side"), of_pod(GPUS[3], "side")],
                          [("main", ["g0", "g1"]), ("side", ["g2", "g3"])]),
    "of two pods": ([of_pod(GPUS[0]), of_pod(GPUS[1], holder=OTHER)], [("main", ["g0"]), ("main", ["g1"])]),
    "of two resources": ([of_pod(GPUS[0]), of_pod(GPUS[1]._replace(driver="example.com/nic"))],
                         [("main", ["g0"]), ("main", ["g1"])]),
    "whose hardware is known": ([replace(of_pod(GPUS[0]), hardware=("0000:01:00.0",)),
                                 replace(of_pod(GPUS[1]), hardware=("0000:02:00.0",))], [("main", ["g0"]), ("main", ["g1"])]),
    "of a claim": ([replace(of_pod(each), holder=Holder("ResourceClaim", "here", "c", "u")) for each in GPUS[:2]],
                   [("main", ["g0"]), ("main", ["g1"])]),
}


@pytest.mark.parametrize("name", GROUPS)
def test_devices_of_a_container_are_one_entry(name: str) -> None:
    bookings, entries = GROUPS[name]
    read = Page(BLANK.holding(bookings))
    assert stored(read) == entries
    assert list(read.bookings) == bookings
    assert not read.malformed
    assert Page(read.without(bookings[0].holder.uid)).bookings == tuple(
        booking for booking in bookings if booking.holder != bookings[0].holder)


CHANGES: dict[str, Callable[[Page], dict[str, Any]]] = {
    "one device leaves": lambda page: page.without("u-train", GPUS[1]),
    "all leave": lambda page: page.without("u-train"),
    "another holder's leave": lambda page: page.without("u-serve"),
    "released": lambda page: page.with_state("u-train", "released"),
    "prepared again": lambda page: page.with_state("u-train", "prepared", "2026-01-02T00:00:00Z"),
    "the hardware of one": lambda page: page.with_hardware("u-train", {GPUS[2]: ("0000:3a:00.1",)}),
    "one is contested": lambda page: page.with_contested("v", {GPUS[0]: GPUS[0]}),
    "moved": lambda page: page.moved("u-train", OTHER, "2026-01-02T00:00:00Z"),
    "one is turned": lambda page: page.turning(of_pod(GPUS[1]).key, replace(of_pod(GPUS[1]), request="side")),
    "one more": lambda page: page.holding([of_pod(GPUS[0]), of_pod(DeviceId("example.com/gpu", "node-a", "g9"))]),
    "exactly two": lambda page: page.only("u-train", [of_pod(GPUS[1]), of_pod(GPUS[3])]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_one_entry_is_that_of_one_entry_for_each_device(name: str) -> None:
    together = Page(BLANK.holding([of_pod(each) for each in GPUS]))
    together.object["spec"]["bookings"][0]["unknown"] = "kept"
    raws = [{**{key: value for key, value in together.object["spec"]["bookings"][0].items() if key != "furtherDevices"},
             "device": {"driver": each.driver, "pool": each.pool, "device": each.device}} for each in GPUS]
    apart = Page({**together.object, "spec": {**together.object["spec"], "bookings": raws}})
    assert apart.bookings == Page(together.object).bookings
    one, other = (Page(CHANGES[name](Page(each.object))) for each in (together, apart))
    assert sorted(one.bookings, key=lambda each: each.device) == sorted(other.bookings, key=lambda each: each.device)
    was = {booking.device for booking in together.bookings}
    for raw in one.object["spec"]["bookings"]:
        assert raw["device"]["device"] not in {each.device for each in was} or raw["unknown"] == "kept"


def test_a_device_of_an_entry_is_held() -> None:
    read = Page(BLANK.holding([of_pod(each) for each in GPUS]))
    for device in GPUS:
        with pytest.raises(AlreadyHeld, match="train"):
            read.holding([of_pod(device, holder=OTHER)])


@pytest.mark.parametrize("further", ["g1", [1], {"g1": True}])
def test_further_devices_that_cannot_be_read_may_be_any(further: Any) -> None:
    read = page({**BAD, "furtherDevices": further})
    assert [entry.field for entry in read.malformed] == ["spec.bookings[1].furtherDevices"]
    assert read.undetermined


def test_further_devices_of_a_malformed_entry_are_held() -> None:
    read = page({**BAD, "holder": "blue", "furtherDevices": ["vf1", "vf2"]})
    assert [(booking.device.device, booking.holder.kind) for booking in read.bookings[1:]] == [
        (name, UNKNOWN) for name in ("vf0", "vf1", "vf2")]
    assert not read.undetermined


def test_changed_bookings_of_two_versions() -> None:
    """By the identity of entries; without it all count, and equal ones are in both."""
    claimed = Booking(DeviceId(**DEVICE), Holder(**{**HOLDER, "uid": "v", "name": "d"}), "nic", "booked", SINCE)
    old = Page(Page(BLANK.holding([booking_of(GOOD)])).holding([of_pod(each) for each in GPUS]))
    new = Page(old.holding([claimed]))
    assert changed_bookings(old.object, new.object) == ([], [claimed])
    assert changed_bookings(new.object, old.object) == ([claimed], [])
    assert changed_bookings(None, new.object) == ([], list(new.bookings))
    assert changed_claims(old.object, new.object) == {"here/d"}
    copied = json.loads(json.dumps(new.object))
    assert changed_bookings(new.object, copied) == (list(new.bookings), list(new.bookings))
    assert changed_claims(new.object, copied) == set()
    less = Page(Page(copied).with_state("v", "prepared"))
    assert changed_claims(new.object, less.object) == {"here/d"}
    assert claim_keys(new.object) == ["here/c", "here/d"]
    assert new.differing(Page(copied)) == ([], []), "entries of the same content are read to one value"


@given(some.lists(some.lists(some.integers(0, 59), unique=True, max_size=60), min_size=2, max_size=6))
def test_stored_versions_are_read_as_any_page(versions: list[list[int]]) -> None:
    """What they have in common is not looked at, and the rest is read again."""
    entries = [of_pod(DeviceId("example.com/gpu", "node-a", f"g{number}"), f"c{number}").to_object() for number in range(60)]
    entries[7] = {**entries[7], "holder": "blue"}
    for version in versions:
        stored_page = {"metadata": {"name": "node-a"}, "spec": {"bookings": [entries[number] for number in version]}}
        read, again = Page(stored_page, stored=True), Page(json.loads(json.dumps(stored_page)))
        assert (read.bookings, read.malformed) == (again.bookings, again.malformed)
        assert list(well_formed(stored_page)) == [
            entry.bookings for entry in again.entries if entry.bookings[0].holder.kind != UNKNOWN]
