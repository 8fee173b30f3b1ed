"""A page as a value: it is read, and its changes are new objects."""

from __future__ import annotations

import copy

import pytest

from outfitter.api.device import DeviceId, newest_pools, text_attribute
from outfitter.api.page import Booking, Holder, Page
from outfitter.errors import AlreadyHeld

ONE = DeviceId("pci.example.com", "node-a", "vf0")
TWO = DeviceId("pci.example.com", "node-a", "vf1")


def booking(device: DeviceId, name: str) -> Booking:
    return Booking(device, Holder("ResourceClaim", "here", name, f"uid-{name}"), "nic", "booked", "2026-01-01T00:00:00Z")


def page(*bookings: Booking) -> Page:
    made = Page.blank("node-a")
    made["metadata"]["resourceVersion"] = "7"
    made["spec"]["bookings"] = [one.to_object() for one in bookings]
    made["spec"]["ours"] = "kept"
    return Page(made)


def test_a_booking_survives_writing_and_reading() -> None:
    full = Booking(ONE, Holder("Consumer", "", "c", "u", "vmi/blue"), "", "released", "2026-01-01T00:00:00Z", {"vcpu": 2})
    assert page(full).bookings == (full,)
    assert "namespace" not in full.to_object()["holder"], "what is empty is not written"


def test_a_blank_page_has_no_revision() -> None:
    blank = Page(Page.blank("node-a"))
    assert (blank.host, blank.revision, blank.bookings) == ("node-a", "", ())


def test_changes_leave_the_page_as_it_is_and_keep_what_they_do_not_know() -> None:
    read = page(booking(ONE, "a"))
    before = copy.deepcopy(read.object)
    for new in (read.holding([booking(TWO, "b")]), read.without("uid-a"), read.marked("uid-a", "prepared")):
        assert read.object == before
        assert new != before
        assert new["spec"]["ours"] == "kept"
        assert new["metadata"]["resourceVersion"] == "7", "it is written at the revision at which it was read"


def test_marking_and_leaving_touch_one_holder() -> None:
    read = page(booking(ONE, "a"), booking(TWO, "b"))
    assert [one.state for one in Page(read.marked("uid-b", "prepared")).bookings] == ["booked", "prepared"]
    assert [one.device for one in Page(read.without("uid-a")).bookings] == [TWO]
    assert read.without("uid-a", TWO) == read.object
    assert Page(read.without("uid-b", TWO)).bookings == (booking(ONE, "a"),)


def test_the_same_device_twice() -> None:
    read = page(booking(ONE, "a"))
    assert read.holding([booking(ONE, "a")]) == read.object
    assert [one.holder.name for one in read.rivals(booking(ONE, "b"))] == ["a"]
    assert list(read.rivals(booking(ONE, "a"))) == []
    with pytest.raises(AlreadyHeld, match="node-a/vf0 is held by ResourceClaim a in here since 2026-01-01T00:00:00Z"):
        read.holding([booking(TWO, "b"), booking(ONE, "b")])


HOLDERS = {
    "vmi/blue (claim c) in here": Holder("ResourceClaim", "here", "c", "u", "vmi/blue"),
    "ResourceClaim c in here": Holder("ResourceClaim", "here", "c", "u"),
    "Consumer c": Holder("Consumer", "", "c", "u"),
}


@pytest.mark.parametrize("words", HOLDERS)
def test_a_holder_as_people_read_it(words: str) -> None:
    assert str(HOLDERS[words]) == words


def test_devices_in_words() -> None:
    assert (str(ONE), ONE.short) == ("pci.example.com/node-a/vf0", "node-a/vf0")


ATTRIBUTES = {
    "the standard name": ({"resource.kubernetes.io/pciBusID": {"string": "a"}, "pciBusID": {"string": "b"}}, "a"),
    "a plain name": ({"pciBusID": {"string": "b"}}, "b"),
    "under the driver's domain": ({"pci.example.com/pciAddress": {"string": "c"}}, "c"),
    "of another type": ({"pciBusID": {"int": 3}}, None),
    "empty": ({"pciBusID": {"string": ""}}, None),
    "not an attribute at all": ({"pciBusID": "b"}, None),
    "under somebody else's domain": ({"other.example.com/pciBusID": {"string": "b"}}, None),
    "a PCIe root is no address": ({"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}, None),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_address_in_the_words_of_drivers(name: str) -> None:
    attributes, wanted = ATTRIBUTES[name]
    names = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddress")
    assert text_attribute({"attributes": attributes}, "pci.example.com", names) == wanted


def test_only_the_newest_complete_pools_count() -> None:
    def part(name: str, pool: str, generation: int, count: int) -> dict[str, object]:
        return {"metadata": {"name": name}, "spec": {"driver": "d", "pool": {
            "name": pool, "generation": generation, "resourceSliceCount": count}}}

    found = newest_pools([part("b2", "whole", 2, 2), part("a1", "whole", 1, 1), part("a2", "whole", 2, 2),
                          part("c", "torn", 3, 2), part("old", "torn", 2, 1)])
    names = {pool: [entry["metadata"]["name"] for entry in parts] for (_, pool), parts in found.items()}
    assert names == {"whole": ["a2", "b2"]}
