"""A page and the devices that domains have attached: every rule of healing as a case, and what holds for all of them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from outfitter.api import admission, kinds
from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.api.write_request import WriteRequest
from outfitter.errors import AlreadyHeld
from outfitter.ledger import book, heal, history
from outfitter.ledger.heal import AttachedDevice
from outfitter.store.memory import Memory
from tests.ledger.bookings import (
    HOST,
    NOW,
    SINCE,
    booking,
    bookings_by_device,
    claim,
    consumer,
    device,
    domain,
    memory,
    page,
    record,
    resources,
)
from tests.ledger.unchecked_pages import UncheckedPages

PF1 = {device(name): "pf1" for name in ("vf0", "vf1", "vf2")}
GROUPS = {**PF1, device("gpu0"): "gpus", device("gpu1"): "gpus"}


def found(name: str, holder: Holder, *others: Holder) -> AttachedDevice:
    return AttachedDevice(device(name), holder, frozenset(each.uid for each in others))


@dataclass(frozen=True)
class Case:
    page: Sequence[Booking]
    found: Sequence[AttachedDevice]
    wanted: Mapping[str, Sequence[str]]  # as `said`
    says: Sequence[str] = ()  # one part of each finding, in order
    marks: Mapping[str, Sequence[OutOfServiceRecord]] = field(default_factory=dict)
    once: Collection[DeviceId] = ()
    unclean: Collection[str] = ()


A, B, C = consumer("a"), consumer("b"), consumer("c")
VCPU = resources(A, VCPU=2)
HOST_OF_A = {"host": ["Consumer a booked"]}
CASES = {
    "nothing there": Case([], [], {}),
    "all is right": Case(
        [booking("vf0", A, "prepared"), VCPU, booking("vf1", claim("train"), "prepared"), booking("gpu0", B)],
        [found("vf0", A), found("vf1", B, claim("train"))],
        {"vf0": ["Consumer a prepared"], **HOST_OF_A, "vf1": ["ResourceClaim train prepared"], "gpu0": ["Consumer b booked"]}),
    # (a)
    "found and not booked: a consumer that is known": Case(
        [VCPU], [found("vf0", A)], {**HOST_OF_A, "vf0": ["Consumer a prepared"]},
        ["node-a/vf0 is in use by Consumer a and was not booked for it: it is now"]),
    "found and not booked: a claim": Case(
        [], [found("vf0", claim("train"))], {"vf0": ["ResourceClaim train prepared"]}, ["was not booked for it"]),
    "booked for a claim of the VM": Case(
        [booking("vf0", claim("train"), "prepared")], [found("vf0", A, claim("train"))],
        {"vf0": ["ResourceClaim train prepared"]}),
    "reality wins, and the other consumer gets another": Case(
        [VCPU, booking("vf0", B)], [found("vf0", A)],
        {**HOST_OF_A, "vf0": ["Consumer a prepared"], "vf1": ["Consumer b booked"]},
        ["vf0 is in use by Consumer a and was not booked",
         "node-a/vf0 is in use by Consumer a and booked for Consumer b, which gets node-a/vf1 instead"]),
    "what the other never had is no longer prepared for it": Case(
        [VCPU, booking("vf0", B, "prepared")], [found("vf0", A)],
        {**HOST_OF_A, "vf0": ["Consumer a prepared"], "vf1": ["Consumer b booked"]}, ["was not booked", "gets node-a/vf1"]),
    "it gets one that is neither booked nor out of service": Case(
        [VCPU, booking("vf0", B)], [found("vf0", A), found("vf1", A)],
        {**HOST_OF_A, "vf0": ["Consumer b booked", "Consumer a prepared"], "vf1": ["Consumer a prepared"]},
        ["vf0 is in use", "vf1 is in use", "vf0 is in use by Consumer a and booked for Consumer b, and no other device of pf1"],
        marks={"quarantined": [record("vf2")]}),
    "both stand when no device is free": Case(
        [VCPU, booking("vf0", B), booking("vf1", C), booking("vf2", C)], [found("vf0", A)],
        {**HOST_OF_A, "vf0": ["Consumer b booked", "Consumer a prepared"], "vf1": ["Consumer c booked"],
         "vf2": ["Consumer c booked"]},
        ["was not booked", "and no other device of pf1 is free: both bookings are kept until one is released"]),
    "a claim that was allocated it stays, and cannot start": Case(
        [VCPU, booking("vf0", claim("train"))], [found("vf0", A)],
        {**HOST_OF_A, "vf0": ["ResourceClaim train booked", "Consumer a prepared"]},
        ["was not booked", "booked for vmi/train (claim train) in here, which cannot start with it"]),
    "two VMs with one device": Case(
        [VCPU, resources(B, VCPU=1)], [found("vf0", A), found("vf0", B)],
        {"host": ["Consumer a booked", "Consumer b booked"], "vf0": ["Consumer a prepared", "Consumer b prepared"]},
        ["vf0 is in use by Consumer a", "vf0 is in use by Consumer b"]),
    # (b)
    "another device of the provider than was booked": Case(
        [booking("vf0", A)], [found("vf1", A)], {"vf1": ["Consumer a prepared"]},
        ["node-a/vf0 was booked for Consumer a, which has node-a/vf1 of pf1 and not this one: released",
         "vf1 is in use by Consumer a"]),
    "fewer than were booked": Case(
        [booking("vf0", A), booking("vf1", A)], [found("vf1", A)], {"vf1": ["Consumer a prepared"]}, ["vf0 was booked"]),
    "other providers are left alone": Case(
        [booking("vf0", A), booking("gpu0", A)], [found("vf1", A)],
        {"gpu0": ["Consumer a booked"], "vf1": ["Consumer a prepared"]}, ["vf0 was booked", "vf1 is in use"]),
    "its surplus is what another has": Case(
        [booking("vf0", A), booking("vf1", A)], [found("vf1", A), found("vf0", B)],
        {"vf1": ["Consumer a prepared"], "vf0": ["Domain b prepared"]}, ["vf0 was booked", "vf0 is in use by Domain b"]),
    # (c)
    "none of a provider: it may be about to start": Case(
        [booking("vf0", A), booking("vf1", A), VCPU], [], {
            "vf0": ["Consumer a booked"], "vf1": ["Consumer a booked"], **HOST_OF_A}),
    # (d)
    "a consumer that the page does not know": Case(
        [], [found("vf0", A)], {"vf0": ["Domain a prepared"]}, ["node-a/vf0 is in use by Domain a and was not booked"]),
    "a domain that is still there": Case([booking("vf0", domain("a"), "prepared")], [found("vf0", A)], {
        "vf0": ["Domain a prepared"]}),
    "the consumer became known": Case(
        [booking("vf0", domain("a"), "prepared"), VCPU], [found("vf0", A)], {"vf0": ["Consumer a prepared"], **HOST_OF_A},
        ["node-a/vf0 was booked for Domain a, which is known as Consumer a now"]),
    "it became known with another device": Case(
        [booking("vf0", domain("a"), "prepared"), booking("vf1", A)], [found("vf0", A)], {"vf0": ["Consumer a prepared"]},
        ["known as Consumer a", "vf1 was booked for Consumer a, which has node-a/vf0"]),
    "its claim became known": Case(
        [booking("vf0", domain("a"), "prepared"), booking("vf0", claim("train"))], [found("vf0", A, claim("train"))],
        {"vf0": ["ResourceClaim train booked"]}, ["which is the same VM: the first booking is dropped"]),
    # (e)
    "a domain that is gone": Case(
        [booking("vf0", domain("a"), "prepared"), booking("vf1", B)], [], {"vf1": ["Consumer b booked"]},
        ["node-a/vf0 was booked for Domain a, which no longer has it: released"]),
    "a domain that has another now": Case(
        [booking("vf0", domain("a"), "prepared")], [found("vf1", A)], {"vf1": ["Domain a prepared"]},
        ["vf0 was booked for Domain a, which no longer has it", "vf1 is in use by Domain a"]),
    # (f)
    "a one-time-use device that is held": Case(
        [booking("vf0", A), VCPU], [], {"vf0": ["Consumer a booked"], **HOST_OF_A},
        ["node-a/vf0 is a one-time-use device held by Consumer a"], once=PF1, unclean=["vf0"]),
    "a one-time-use device that is attached": Case(
        [], [found("vf0", A)], {"vf0": ["Domain a prepared"]},
        ["was not booked", "is a one-time-use device"], once=PF1, unclean=["vf0"]),
    "known to be unclean already": Case(
        [booking("vf0", A)], [], {"vf0": ["Consumer a booked"]}, once=PF1, unclean=["vf0"], marks={"unclean": [record("vf0")]}),
    "unclean stays unclean": Case([], [], {}, once=(), unclean=["vf0"], marks={"unclean": [record("vf0")]}),
    "records of a reserved count are left alone": Case(
        [VCPU], [found("vf0", A)], {**HOST_OF_A, "vf0": ["Consumer a prepared"]}, ["was not booked"],
        marks={"reserved": [record("vf0", "placement")]}),
}


def healed(case: Case, read: Page | None = None) -> heal.HealedPage:
    return heal.heal(read or page(case.page, case.marks), case.found, group=GROUPS, once=case.once, now=NOW)


@pytest.mark.parametrize("name", CASES)
def test_every_rule(name: str) -> None:
    case = CASES[name]
    read = page(case.page, case.marks)
    before = copy.deepcopy(read.object)
    done = healed(case, read)
    new = Page(done.object)
    assert bookings_by_device(new) == case.wanted
    assert len(done.findings) == len(case.says)
    assert [part for part, whole in zip(case.says, done.findings, strict=True) if part not in whole] == []
    assert {one.device.device for one in new.unclean} == set(case.unclean)
    assert (new.reserved, new.quarantined) == (read.reserved, read.quarantined)
    assert read.object == before
    assert (done.object is read.object) == (not case.says), "what is right is not written"
    assert healed(case, new).object is new.object, "twice is once"
    admission.AdmissionRules().admit(WriteRequest("update", kinds.LEDGER_PAGE, copy.deepcopy(done.object), before))


def test_added_booking_has_time_and_request() -> None:
    new = Page(healed(CASES["another device of the provider than was booked"]).object)
    assert new.bookings == (Booking(device("vf1"), A, "nic", "prepared", NOW, prepared=NOW),)
    turned = Page(healed(CASES["the consumer became known"]).object).bookings[0]
    assert (turned.since, turned.prepared) == (SINCE, SINCE), "the VM has had it all the time"
    moved = Page(healed(CASES["what the other never had is no longer prepared for it"]).object).of("uid-b")
    assert moved == (replace(booking("vf1", B), since=NOW),)


def test_unknown_fields_are_kept() -> None:
    read = page([VCPU, booking("vf0", B), booking("vf2", domain("a"), "prepared")])
    read.object["spec"]["theirs"] = 1
    for raw in read.object["spec"]["bookings"]:
        raw["theirs"] = raw["holder"]["name"]
    new = heal.heal(Page(read.object), [found("vf0", A), found("vf2", A)], group=GROUPS, once=(), now=NOW).object
    assert new["spec"]["theirs"] == 1
    assert [raw.get("theirs") for raw in new["spec"]["bookings"]] == ["a", "b", "a", None]


NAMES = ["vf0", "vf1", "vf2", "gpu0", "gpu1", "lone"]
STATES = ["booked", "prepared", "released"]
SOME_HOLDER = some.builds(lambda make, name: make(name), some.sampled_from([
    lambda name: claim(f"of-{name}"), consumer, consumer, domain]), some.sampled_from("abc"))
SOME_BOOKING = some.builds(booking, some.sampled_from(NAMES), SOME_HOLDER, some.sampled_from(STATES))
SOME_FOUND = some.builds(
    lambda name, who, own: found(name, consumer(who), *([claim(f"of-{who}")] if own else [])),
    some.sampled_from(NAMES), some.sampled_from("abcd"), some.booleans())


@settings(deadline=None)
@given(some.lists(SOME_BOOKING, max_size=6), some.lists(some.sampled_from("abc"), max_size=2, unique=True),
       some.lists(SOME_FOUND, max_size=4, unique_by=lambda each: (each.device, each.holder)),
       some.lists(some.sampled_from(NAMES), max_size=2), some.lists(some.sampled_from(NAMES), max_size=2))
def test_whatever_stands_and_whatever_is_found(
    bookings: list[Booking], known: list[str], really: list[AttachedDevice], once: list[str], marked: list[str]
) -> None:
    single = {one.key: one for one in bookings}  # of one key there is one booking
    read = page([*single.values(), *(resources(consumer(name), VCPU=1) for name in known)], {
        "quarantined": [record(name) for name in marked]})
    devices = {device(name) for name in once}

    def again(at: Page) -> heal.HealedPage:
        return heal.heal(at, really, group=GROUPS, once=devices, now=NOW)

    done = again(read)
    new = Page(done.object)
    assert again(new).object is new.object, "healing twice is healing once"
    assert done.findings or [one.key for one in new.bookings] == [one.key for one in read.bookings], (
        "that a VM has what was booked for it is no finding; all else is")
    for each in really:
        assert any(one.holder.uid in each.names for one in new.on(each.device)), "what is in use is booked"
    for one in read.bookings:
        if one.holder.kind == "ResourceClaim" or not one.counted:
            assert one in new.bookings, "claims and a host's own resources are never touched"
        has = [each for each in really if each.holder.uid == one.holder.uid]
        if one.holder.kind == "Consumer" and one.counted and not any(
                GROUPS.get(each.device) == GROUPS.get(one.device) for each in has):
            group = GROUPS.get(one.device)
            count = [sum(GROUPS.get(each.device) == group and each.holder == one.holder for each in at.bookings)
                     for at in (read, new)]
            assert count[0] <= count[1], "a consumer that has none of a provider loses none of it"
    known_uids = {one.holder.uid for one in read.bookings if one.holder.kind != "Domain"}
    assert {one.holder.uid for one in new.bookings if one.holder.kind == "Consumer"} <= known_uids, "no new consumers"
    held = {one.device for one in new.bookings if one.counted}
    assert {one.device for one in new.unclean} == held & devices
    assert new.quarantined == read.quarantined


class Interrupted(Memory):
    """Another client books between the read of a page and its write."""

    meanwhile: Booking | None = None

    async def get(self, kind: kinds.Kind, name: str, namespace: str = "") -> kinds.Object:
        obj = await super().get(kind, name, namespace)
        if kind == kinds.LEDGER_PAGE and self.meanwhile:
            one, self.meanwhile = self.meanwhile, None
            await book.book(self, HOST, [one])
        return obj


async def test_healing_is_written_and_remembered() -> None:
    store = Interrupted(rules=UncheckedPages())
    await book.book(store, HOST, [booking("vf0", domain("gone"), "prepared"), booking("vf1", A), VCPU, booking("gpu0", B)])
    store.meanwhile = booking("vf2", claim("train"))
    done = await heal.heal_page(store, HOST, [found("vf0", A), found("gpu0", A)], group=GROUPS, now=NOW)
    assert len(done.findings) == 5
    assert bookings_by_device(await book.read(store, HOST)) == {
        **HOST_OF_A, "vf0": ["Consumer a prepared"], "gpu0": ["Consumer a prepared"], "gpu1": ["Consumer b booked"],
        "vf2": ["ResourceClaim train booked"]}
    past = {name: [(one.holder.name, one.how, one.ended) for one in await history.entries(store, device(name)) if one.ended]
            for name in ("vf0", "vf1", "gpu0", "gpu1")}
    assert past == {"vf0": [("gone", "found gone", NOW)], "vf1": [("a", "found gone", NOW)],
                    "gpu0": [("b", "moved to node-a/gpu1", NOW)], "gpu1": []}
    revision = store.revision
    again = await heal.heal_page(store, HOST, [found("vf0", A), found("gpu0", A)], group=GROUPS, now=NOW)
    assert (again.findings, store.revision) == ((), revision)


async def test_page_is_created_when_it_has_content() -> None:
    store = memory()
    await heal.heal_page(store, HOST, [], group=GROUPS)
    assert store.revision == 0
    await heal.heal_page(store, HOST, [found("vf0", A)], group=GROUPS)
    assert bookings_by_device(await book.read(store, HOST)) == {"vf0": ["Domain a prepared"]}
    with pytest.raises(AlreadyHeld, match="held by Domain a"):
        await book.book(store, HOST, [booking("vf0", claim("train"))])
