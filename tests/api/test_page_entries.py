"""Pages that contain anything: what is malformed is reported with its field, still holds its device, and is kept by changes."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api.booking import Booking, Holder, booking_of
from outfitter.api.device import DeviceId
from outfitter.api.page import Page
from outfitter.api.page_entries import UNKNOWN, claim_keys, unchanged, well_formed
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
