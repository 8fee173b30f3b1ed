"""A page as a value: it is read, and its changes are new objects."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from outfitter.api import admission, kinds
from outfitter.api.device import DeviceId, newest_pools, text_attribute
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import (
    MOST,
    OUT_OF_SERVICE_STATES,
    Booking,
    Holder,
    Limits,
    OutOfServiceRecord,
    OutOfServiceState,
    Page,
)
from outfitter.api.write_request import WriteRequest
from outfitter.cel.library import quantity
from outfitter.errors import AlreadyHeld, Conflict, Invalid, OutfitterError, OutOfService, TooLarge, Unsatisfiable

ONE = DeviceId("pci.example.com", "node-a", "vf0")
TWO = DeviceId("pci.example.com", "node-a", "vf1")


SINCE, NOW = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
LIMITS = Limits({ONE: {"memory": "8Gi", "slots": "2"}, TWO: {}}, {
    ("pci.example.com", "node-a", "gpu"): {"slices": "4", "memory": "1"},
    ("pci.example.com", "node-b", "gpu"): {"slices": "4"}})


def booking(device: DeviceId, name: str, **amount: Any) -> Booking:
    holder = Holder("ResourceClaim", "here", name, f"uid-{name}")
    return Booking(device, holder, "nic", "booked", SINCE, amount or {"whole": True})


def share(device: DeviceId, name: str, share_id: str = "s", **capacity: str) -> Booking:
    return booking(device, name, shareID=share_id, capacity=capacity)


def counting(device: DeviceId, name: str, **counters: str) -> Booking:
    return booking(device, name, whole=True, counters={"gpu": counters})


def owning(name: str, *cpus: int) -> Booking:
    return booking(ONE, name, resources={"PCPU": len(cpus)}, cells={"0": len(cpus)}, cpus={"0": list(cpus)})


def record(device: DeviceId, reason: str = "for later", by: str = "admin", origin: str = "") -> OutOfServiceRecord:
    return OutOfServiceRecord(device, reason, by, SINCE, origin)


def page(*bookings: Booking, **marks: Sequence[OutOfServiceRecord]) -> Page:
    """With a field at every level that we do not know."""
    made = Page.blank("node-a")
    made["metadata"]["resourceVersion"] = "7"
    made["spec"]["bookings"] = [{**one.to_object(), "theirs": one.holder.name, "holder": {
        **one.holder.to_object(), "theirs": 1}} for one in bookings]
    made["spec"] |= {which: [{**one.to_object(), "theirs": one.reason} for one in given] for which, given in marks.items()}
    made["spec"]["ours"] = "kept"
    return Page(made)


def test_a_booking_survives_writing_and_reading() -> None:
    full = Booking(ONE, Holder("Consumer", "", "c", "u", "vmi/blue"), "", "released", SINCE, {"vcpu": 2}, NOW)
    assert page(full).bookings == (full,)
    assert "namespace" not in full.to_object()["holder"], "what is empty is not written"
    assert "prepared" not in booking(ONE, "a").to_object()


def test_out_of_service_record_survives_writing_and_reading() -> None:
    read = page(reserved=[record(ONE)], quarantined=[record(TWO, "hot")], unclean=[record(ONE, origin="placement")])
    assert (read.reserved, read.quarantined, read.unclean) == (
        (record(ONE),), (record(TWO, "hot"),), (record(ONE, origin="placement"),))
    assert "origin" not in record(ONE).to_object()


def test_a_blank_page_has_no_revision() -> None:
    blank = Page(Page.blank("node-a"))
    assert (blank.host, blank.revision, blank.bookings, blank.reserved) == ("node-a", "", (), ())


def test_what_is_written_is_admitted() -> None:
    read = page(replace(share(ONE, "a", memory="4Gi"), prepared=NOW), counting(TWO, "b", slices="1"),
                booking(TWO, "c", resources={"VCPU": 2}),
                **{state: [record(ONE, origin="placement")] for state in OUT_OF_SERVICE_STATES})
    assert admission.AdmissionRules().admit(
        WriteRequest("update", kinds.LEDGER_PAGE, read.object, read.object)) == read.object


UNREADABLE: dict[str, tuple[Object, str, str]] = {
    "a record that is text": ({"reserved": ["vf0"]}, "spec.reserved[0]", 'Invalid value: "vf0": must be an object'),
    "a record of no device": ({"unclean": [{"by": "admin"}]}, "spec.unclean[0].device", "Required value"),
    "a capacity that is a number": (
        {"bookings": [{**share(ONE, "a").to_object(), "amount": {"capacity": {"memory": 4}}}]},
        "spec.bookings[0].amount.capacity.memory", "Invalid value: 4: must be text; put it in quotes"),
    "counters without a set": (
        {"bookings": [{**share(ONE, "a").to_object(), "amount": {"whole": True, "counters": {"slices": "1"}}}]},
        "spec.bookings[0].amount.counters.slices", 'Invalid value: "1": must be an object'),
    "resources in words": (
        {"bookings": [{**share(ONE, "a").to_object(), "amount": {"resources": {"VCPU": "two"}}}]},
        "spec.bookings[0].amount.resources.VCPU", 'Invalid value: "two": must be a whole number'),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_page_that_cannot_be_read_is_refused(name: str) -> None:
    spec, path, words = UNREADABLE[name]
    obj = {**Page.blank("node-a"), "spec": spec}
    with pytest.raises(Invalid) as caught:
        admission.AdmissionRules().admit(WriteRequest("create", kinds.LEDGER_PAGE, obj, None))
    assert [(cause.field, cause.message) for cause in caught.value.causes] == [(path, words)]


CHANGES = {
    "a booking more": lambda read: read.holding([booking(TWO, "b")]),
    "one less": lambda read: read.without("uid-a"),
    "nothing left": lambda read: read.leaving([one.key for one in read.bookings]),
    "prepared": lambda read: read.with_state("uid-a", "prepared", NOW),
    "moved": lambda read: read.moved("uid-a", Holder("Migration", "", "m", "uid-m"), NOW),
    "another amount": lambda read: read.only("uid-z", [booking(
        TWO, "z", shareID="s", counters={"gpu": {"slices": "1"}})], LIMITS),
    "turned": lambda read: read.turning(read.bookings[0].key, booking(TWO, "b")),
    "added": lambda read: read.adding(booking(ONE, "b")),
    "an out-of-service record more": lambda read: read.with_records("unclean", [record(TWO)]),
    "an out-of-service record that says something else": lambda read: read.with_records("reserved", [record(ONE, "other")]),
    "an out-of-service record less": lambda read: read.without_records("quarantined", {ONE}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_leave_the_page_as_it_is_and_keep_what_they_do_not_know(name: str) -> None:
    full = page(booking(ONE, "a"), share(TWO, "z"), reserved=[record(ONE)], quarantined=[record(ONE)])
    read = full if name != "a booking more" else page(booking(ONE, "a"))
    before = copy.deepcopy(read.object)
    new: Object = CHANGES[name](read)
    assert read.object == before
    assert new != before
    assert new["spec"]["ours"] == "kept"
    assert new["metadata"]["resourceVersion"] == "7", "it is written at the revision at which it was read"
    for which in ("bookings", *OUT_OF_SERVICE_STATES):
        was = [raw["theirs"] for raw in before["spec"][which]]
        still = [raw["theirs"] for raw in new["spec"][which] if "theirs" in raw]
        assert still == was[len(was) - len(still):], "entries keep their fields too"
        assert len(new["spec"][which]) < len(was) or len(still) == len(was)
    Page(new)


def test_marking_and_leaving_touch_one_holder() -> None:
    read = page(booking(ONE, "a"), booking(TWO, "b"))
    assert [one.state for one in Page(read.with_state("uid-b", "prepared")).bookings] == ["booked", "prepared"]
    assert [one.device for one in Page(read.without("uid-a")).bookings] == [TWO]
    assert read.without("uid-a", TWO) == read.object
    assert Page(read.without("uid-b", TWO)).bookings == (booking(ONE, "a"),)


def test_the_first_time_it_was_prepared_stays() -> None:
    read = Page(page(booking(ONE, "a")).with_state("uid-a", "prepared", NOW))
    assert read.bookings[0].prepared == NOW
    again = Page(Page(read.with_state("uid-a", "released", "later")).with_state("uid-a", "prepared", "later"))
    assert (again.bookings[0].state, again.bookings[0].prepared) == ("prepared", NOW)
    assert Page(page(booking(ONE, "a")).with_state("uid-a", "booked", NOW)).bookings[0].prepared == ""
    assert Page(page(booking(ONE, "a")).with_state("uid-a", "prepared")).bookings[0].prepared == ""


def test_moving_takes_everything_along() -> None:
    read = page(replace(booking(ONE, "a"), state="prepared", prepared=SINCE), share(TWO, "a", "x"), share(TWO, "b", "x"))
    migration = Holder("Migration", "", "m", "uid-m", "vmi/blue")
    new = Page(read.moved("uid-a", migration, NOW))
    assert [(one.holder, one.state, one.since) for one in new.bookings[:2]] == [
        (migration, "prepared", NOW), (migration, "booked", NOW)]
    assert new.bookings[2] == read.bookings[2]
    with pytest.raises(AlreadyHeld, match="node-a/vf1 is held by ResourceClaim b in here"):
        read.moved("uid-a", read.bookings[2].holder, NOW)
    renamed = replace(read.bookings[2].holder, purpose="vmi/red")
    assert Page(read.moved("uid-b", renamed, NOW)).bookings[2] == replace(read.bookings[2], holder=renamed)
    assert read.moved("uid-z", migration, NOW) is read.object


def test_the_same_device_twice() -> None:
    read = page(booking(ONE, "a"))
    assert read.holding([booking(ONE, "a")]) is read.object
    assert [one.holder.name for one in read.rivals(booking(ONE, "b"))] == ["a"]
    assert list(read.rivals(booking(ONE, "a"))) == []
    with pytest.raises(AlreadyHeld, match="node-a/vf0 is held by ResourceClaim a in here since 2026-01-01T00:00:00Z"):
        read.holding([booking(TWO, "b"), booking(ONE, "b")])


def test_two_shares_of_one_holder_are_two_bookings() -> None:
    read = Page(page().holding([share(ONE, "a", "x", memory="2Gi"), share(ONE, "a", "y", memory="2Gi"),
                                share(ONE, "a", "y", memory="2Gi")], LIMITS))
    assert [one.key.share for one in read.bookings] == ["x", "y"]
    assert list(read.rivals(share(ONE, "b", "z"))) == [], "shares are no rivals"
    assert len(list(read.rivals(booking(ONE, "b")))) == 2


FULL = "memory of node-a/vf0: 5Gi wanted and 4Gi of 8Gi left; the rest is held by ResourceClaim a in here since 2026"
REFUSED: dict[str, tuple[Sequence[Booking], Sequence[Booking], type[OutfitterError], str]] = {
    "whole beside a share": ([share(ONE, "a")], [booking(ONE, "b")], AlreadyHeld, "vf0 is held by ResourceClaim a"),
    "a share beside whole": ([booking(ONE, "a")], [share(ONE, "b")], AlreadyHeld, "vf0 is held by ResourceClaim a"),
    "a share beside whole of one holder": ([booking(ONE, "a")], [share(ONE, "a")], AlreadyHeld, "ResourceClaim a in here"),
    "two in one step": ([], [booking(ONE, "a"), booking(ONE, "b")], AlreadyHeld, "vf0 is held by ResourceClaim a"),
    "more capacity than is left": ([share(ONE, "a", memory="4Gi")], [share(ONE, "b", memory="5Gi")], AlreadyHeld, FULL),
    "more than is left in one step": (
        [], [share(ONE, "a", memory="4Gi"), share(ONE, "b", memory="5Gi")], Unsatisfiable, "9Gi wanted and 8Gi published"),
    "a nano-unit too much": ([share(ONE, "a", slots="1")], [share(ONE, "b", slots="1.000000001")], AlreadyHeld, "1 of 2 left"),
    "more than there is": ([], [share(ONE, "a", memory="9Gi")], Unsatisfiable,
                           "memory of node-a/vf0: 9Gi wanted and 8Gi published"),
    "a capacity that was not published": ([], [share(ONE, "a", cores="1")], Unsatisfiable,
                                          "cores of node-a/vf0 is not published"),
    "a share of what cannot be shared": ([], [share(ONE._replace(device="vf9"), "a")], Unsatisfiable,
                                         "node-a/vf9 cannot be shared: it publishes no capacity"),
    "a counter that is used up": (
        [counting(ONE, "a", slices="3")], [counting(TWO, "b", slices="2")], AlreadyHeld,
        "slices of counter set gpu of node-a: 2 wanted and 1 of 4 left; the rest is held by ResourceClaim a"),
    "a counter that was not published": ([], [counting(ONE, "a", rings="1")], Unsatisfiable,
                                         "rings of counter set gpu of node-a is not published"),
    "a CPU in use": ([owning("a", 4, 5)], [owning("b", 5, 6)], AlreadyHeld,
                                "CPU 5 of node-a is held by ResourceClaim a in here since"),
    "a CPU that is on another cell now": (
        [owning("a", 4)], [booking(ONE, "b", resources={}, cpus={"1": [4]})], AlreadyHeld, "CPU 4 of node-a is held by"),
    "a CPU twice in one step": ([], [owning("a", 4), owning("b", 4)], AlreadyHeld, "CPU 4 of node-a is held by ResourceClaim"),
    "a negative amount": ([], [share(ONE, "a", memory="-1Gi")], Invalid, "-1Gi: must be at least 0"),
    "no amount at all": ([], [share(ONE, "a", memory="much")], Invalid,
                         "memory of node-a/vf0 for ResourceClaim a in here: 'much' is not a quantity"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_conflicting_booking_has_a_reason(name: str) -> None:
    have, wanted, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        page(*have).holding(wanted, LIMITS)
    assert words in str(caught.value)


TAKEN: dict[str, tuple[Sequence[Booking], Sequence[Booking]]] = {
    "shares up to the last byte": ([share(ONE, "a", memory="4Gi")], [share(ONE, "b", memory="4096Mi", slots="1")]),
    "shares of a device without capacities": ([share(TWO, "a")], [share(TWO, "b")]),
    "counters up to the last": ([counting(ONE, "a", slices="3")], [counting(TWO, "b", slices="1")]),
    "counters of another pool": ([counting(ONE, "a", slices="4")], [counting(TWO._replace(pool="node-b"), "b", slices="4")]),
    "a host's own resources": ([booking(ONE, "a")], [booking(ONE, "b", resources={"VCPU": 64})]),
    "a device beside resources": ([booking(ONE, "a", resources={"VCPU": 64})], [booking(ONE, "b")]),
    "CPUs beside CPUs": ([owning("a", 4, 5)], [owning("b", 6), owning("c", 7)]),
    "a page that is beyond its limits already, in another counter": (
        [counting(ONE, "a", slices="9")], [counting(TWO, "b", memory="1")]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_fits_stands_together(name: str) -> None:
    have, wanted = TAKEN[name]
    assert page(*have).holding(wanted, LIMITS)["spec"]["bookings"][len(have):] == [one.to_object() for one in wanted]


OUT: dict[OutOfServiceState, str] = {
    "reserved": "node-a/vf0 is reserved by admin since 2026-01-01T00:00:00Z: for later; "
                "outfit device unreserve node-a/vf0 gives it back",
    "quarantined": "node-a/vf0 is quarantined by admin since 2026-01-01T00:00:00Z: for later; "
                   "outfit device restore node-a/vf0 gives it back",
    "unclean": "node-a/vf0 must be cleaned first (for later, since 2026-01-01T00:00:00Z); "
               "outfit device clear node-a/vf0 gives it back once it is clean",
}


@pytest.mark.parametrize("which", OUT_OF_SERVICE_STATES)
def test_device_out_of_service_gets_no_new_holder(which: OutOfServiceState) -> None:
    read = page(booking(ONE, "a"), **{which: [record(ONE)]})
    for wanted in (booking(ONE, "b"), share(ONE, "b")):
        with pytest.raises(OutOfService) as caught:
            read.holding([wanted], LIMITS)
        assert str(caught.value) == OUT[which]
        assert isinstance(caught.value, Conflict)
    assert read.holding([booking(ONE, "a")]) is read.object, "who has it keeps it"
    assert Page(read.holding([booking(TWO, "b")])).of("uid-b"), "and the others are free"
    assert Page(read.holding([booking(ONE, "b", resources={"VCPU": 1})])).of("uid-b")
    assert Page(read.with_state("uid-a", "prepared", NOW)).bookings[0].state == "prepared"


def test_a_page_takes_only_so_many() -> None:
    def one(number: int) -> Booking:
        return booking(DeviceId("pci.example.com", "node-a", f"pci-0000-3a-00-0-00-{number}"), f"machine-number-{number}-gpu")

    read = Page(page().holding([one(number) for number in range(MOST)]))
    with pytest.raises(TooLarge, match="page node-a has 2000 bookings and takes at most 2000: 1 more do not fit"):
        read.holding([one(MOST)])
    assert read.holding([one(0)]) is read.object
    assert len(str(read.object)) < 1_000_000


def test_consumer_has_exactly_its_allocations() -> None:
    read = page(share(ONE, "a", "x", memory="6Gi"), share(ONE, "a", "y", memory="1Gi"), booking(TWO, "b"),
                reserved=[record(ONE)])
    read = Page(read.with_state("uid-a", "prepared", NOW))
    new = Page(read.only("uid-a", [share(ONE, "a", "x", memory="8Gi")], LIMITS))
    assert [(one.key.share, one.amount, one.state, one.prepared) for one in new.of("uid-a")] == [
        ("x", {"shareID": "x", "capacity": {"memory": "8Gi"}}, "prepared", NOW)], "the same booking with another amount"
    assert new.of("uid-b") == read.of("uid-b")
    with pytest.raises(Unsatisfiable, match="9Gi wanted and 8Gi published"):
        read.only("uid-a", [share(ONE, "a", "x", memory="9Gi")], LIMITS)
    with pytest.raises(AlreadyHeld):
        read.only("uid-a", [booking(TWO, "a")])
    with pytest.raises(OutOfService):
        read.only("uid-a", [share(ONE, "a", "new", memory="1Gi")], LIMITS)
    assert read.only("uid-a", read.of("uid-a")) is read.object
    assert Page(read.only("uid-a", [])).bookings == read.of("uid-b")


def test_what_was_found_is_turned_into_what_is_booked() -> None:
    found = Booking(ONE, Holder("Domain", "", "c", "uid-c"), "", "prepared", SINCE, prepared=SINCE)
    consumer = Booking(ONE, Holder("Consumer", "", "c", "uid-c"), "pci", "booked", NOW)
    for new in (page(found).holding([consumer]), page(found).only("uid-c", [consumer])):
        assert Page(new).bookings == (replace(found, holder=consumer.holder, request="pci"),)
    with pytest.raises(AlreadyHeld, match="held by Domain c"):
        page(found).holding([booking(ONE, "b")])


def test_one_record_per_device_and_state() -> None:
    read = page(reserved=[record(ONE)])
    assert read.with_records("reserved", [record(ONE)]) is read.object
    assert Page(read.with_records("reserved", [replace(record(ONE, "other", "root"), since=NOW)])).reserved == (
        record(ONE, "other", "root"),), "its first time stays"
    assert read.with_records("reserved", [record(ONE, "count", origin="placement")]) is read.object, "a person's word stays"
    counted = page(reserved=[record(ONE, "count", origin="placement")])
    assert Page(counted.with_records("reserved", [record(ONE)])).reserved == (record(ONE),), "a person makes it his own"
    again = record(TWO, "again")
    assert Page(read.with_records("reserved", [record(TWO), again])).reserved == (record(ONE), again)
    assert read.without_records("reserved", {TWO}) is read.object
    assert Page(read.without_records("reserved", {ONE, TWO})).reserved == ()


DEVICES = [ONE._replace(device=f"d{number}") for number in range(3)]
PUBLISHED = Limits({DEVICES[0]: {"memory": "3", "slots": "2"}, DEVICES[1]: {"memory": "1.5"}},
                   {("pci.example.com", "node-a", "gpu"): {"slices": "4"}})
SOME_AMOUNT = some.one_of(
    some.just({"whole": True}),
    some.builds(lambda size: {"whole": True, "counters": {"gpu": {"slices": size}}}, some.sampled_from(["1", "2", "3000m"])),
    some.builds(lambda name, memory: {"shareID": name, "capacity": {"memory": memory}},
                some.sampled_from("xyz"), some.sampled_from(["1", "500m", "1.5", "3"])),
    some.builds(lambda name: {"shareID": name, "capacity": {"slots": "1"}, "counters": {"gpu": {"slices": "1"}}},
                some.sampled_from("xyz")),
    some.just({"resources": {"VCPU": 1}}),
)
SOME_BOOKING = some.builds(lambda device, name, amount: booking(device, name, **amount),
                           some.sampled_from(DEVICES), some.sampled_from("abc"), SOME_AMOUNT)


@settings(deadline=None)
@given(some.lists(some.lists(SOME_BOOKING, min_size=1, max_size=3), max_size=8),
       some.lists(some.tuples(some.sampled_from(OUT_OF_SERVICE_STATES), some.sampled_from(DEVICES)), max_size=2),
       some.integers(0, 8))
def test_no_sequence_of_bookings_exceeds_what_is_published(
    asked: list[list[Booking]], marks: list[tuple[OutOfServiceState, DeviceId]], when: int
) -> None:
    read = page()
    for number, wanted in enumerate(asked):
        if number == when:
            for which, device in marks:
                read = Page(read.with_records(which, [record(device)]))
        marked = {one.device for which in OUT_OF_SERVICE_STATES for one in read.records(which)}
        try:
            new = Page(read.holding(wanted, PUBLISHED))
        except (Conflict, Invalid):
            assert read.object["spec"]["bookings"] == [one.to_object() for one in read.bookings], "everything or nothing"
            continue
        fresh = {one.key for one in new.bookings} - {one.key for one in read.bookings}
        assert fresh >= {one.key for one in wanted} - {one.key for one in read.bookings}
        assert not any(key.device in marked for one in new.bookings if (key := one.key) in fresh and one.counted)
        read = new
        _nothing_beyond(read)


def _nothing_beyond(read: Page) -> None:
    assert len({one.key for one in read.bookings}) == len(read.bookings)
    for device in DEVICES:
        there = read.on(device)
        assert len(there) == 1 or all(one.shared for one in there)
        for name, limit in PUBLISHED.capacity.get(device, {}).items():
            used = sum(quantity.parse(one.amount.get("capacity", {}).get(name, "0")).nano for one in there)
            assert used <= quantity.parse(limit).nano
    slices = [one.amount.get("counters", {}).get("gpu", {}).get("slices", "0") for one in read.bookings]
    assert sum(quantity.parse(text).nano for text in slices) <= quantity.parse("4").nano


HOLDERS = {
    "vmi/blue (claim c) in here": Holder("ResourceClaim", "here", "c", "u", "vmi/blue"),
    "ResourceClaim c in here": Holder("ResourceClaim", "here", "c", "u"),
    "Consumer c": Holder("Consumer", "", "c", "u"),
}


@pytest.mark.parametrize("words", HOLDERS)
def test_holder_as_text(words: str) -> None:
    assert str(HOLDERS[words]) == words


def test_devices_as_text() -> None:
    assert (str(ONE), ONE.short) == ("pci.example.com/node-a/vf0", "node-a/vf0")


ATTRIBUTES = {
    "the standard name": ({"resource.kubernetes.io/pciBusID": {"string": "a"}, "pciBusID": {"string": "b"}}, "a"),
    "a plain name": ({"pciBusID": {"string": "b"}}, "b"),
    "under the driver's domain": ({"pci.example.com/pciAddress": {"string": "c"}}, "c"),
    "of another type": ({"pciBusID": {"int": 3}}, None),
    "empty": ({"pciBusID": {"string": ""}}, None),
    "not an attribute at all": ({"pciBusID": "b"}, None),
    "under another owner's domain": ({"other.example.com/pciBusID": {"string": "b"}}, None),
    "a PCIe root is no address": ({"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}, None),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_address_attributes_of_drivers(name: str) -> None:
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


@pytest.mark.parametrize(("first", "second", "together"), [
    ({"whole": True, "counters": {"pf": {"f": "1"}}}, {"whole": True}, False),
    ({"whole": True, "counters": {"other": {"f": "1"}}}, {"whole": True}, True),
    ({"whole": True}, {"whole": True}, True),
], ids=["a part, and the card that no longer reports it", "of another card", "nothing in common"])
def test_pf_and_vf_exclude_each_other_even_without_the_parent_attribute(
    first: dict[str, Any], second: dict[str, Any], together: bool
) -> None:
    part = Booking(DeviceId("d", "n", "pf-vf0"), Holder("ResourceClaim", "h", "a", "uid-a"), "r", "booked", "t", first)
    card = Booking(DeviceId("d", "n", "pf"), Holder("ResourceClaim", "h", "b", "uid-b"), "r", "booked", "t", second)
    limits = Limits(counters={("d", "n", "pf"): {"f": "1"}, ("d", "n", "other"): {"f": "1"}})
    for one, other in ((part, card), (card, part)):
        page = Page(Page(Page.blank("n")).holding([one], limits))
        if together:
            page.holding([other], limits)
        else:
            with pytest.raises(AlreadyHeld, match="which excludes"):
                page.holding([other], limits)
