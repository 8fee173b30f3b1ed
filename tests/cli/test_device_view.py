"""What is made of slices, pages and inventories: the state of a device, in words and for programs. No server."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from outfitter.api import kinds
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.cli import history, main, time_format
from outfitter.cli.client import Client
from outfitter.cli.device import listing, text, tree, view
from outfitter.errors import BadRequest, NotFound
from outfitter.ledger.device_list import STATES, DeviceList, ListedDevice, device_list
from outfitter.ledger.history import HistoryEntry
from outfitter.store.base import Listing

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
BOOKED = "2026-03-04T12:04:00Z"
BLUE = Holder("ResourceClaim", "default", "mine", "u-1", "vmi/blue")
ADDRESS = "0000:3b:01.{}"


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Times are reported in local time; here that is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def vf(number: int, **parts: Any) -> Object:
    attributes = {"resource.kubernetes.io/pciBusID": {"string": ADDRESS.format(number)}, "kind": {"string": "VF"},
                  "vendor": {"string": "8086"}, "product": {"string": "1889"}, "parent": {"string": "0000:3b:00.0"},
                  "resource.kubernetes.io/numaNode": {"int": 0}}
    return {"name": f"card-vf{number}", "attributes": attributes, **parts}


def published(*listed: Object, node: str = "node-0", driver: str = DRIVER, **spec: Any) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    return {"metadata": {"name": f"{node}-{driver}"},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": list(listed), **spec}}


def device_id(name: str = "card-vf0", node: str = "node-0") -> DeviceId:
    return DeviceId(DRIVER, node, name)


def booking(state: Any = "prepared", name: str = "card-vf0", holder: Holder = BLUE, **parts: Any) -> Booking:
    return Booking(device_id(name), holder, "nic", state, BOOKED, **parts)


def page(*bookings: Booking, node: str = "node-0", **marks: list[OutOfServiceRecord]) -> Object:
    blank = Page.blank(node)
    return {**blank, "spec": {**blank["spec"], "bookings": [each.to_object() for each in bookings],
                              **{which: [mark.to_object() for mark in those] for which, those in marks.items()}}}


def record(reason: str = "for tests", by: str = "ann", name: str = "card-vf0") -> OutOfServiceRecord:
    return OutOfServiceRecord(device_id(name), reason, by, BOOKED)


def inventory(node: str = "node-0", **spec: Any) -> Object:
    return {"metadata": {"name": node}, "spec": {"withheld": [], "left": [], "warnings": [], **spec}}


WITHHELD = {"name": "card-vf0", "address": ADDRESS.format(0), "kind": "VF", "vendor": "8086", "product": "1889",
            "reason": "is not listed"}
HELD = "held by vmi/blue (claim mine) in default since 12:04"
SHARE = {"shareID": "a", "capacity": {"memory": "4Gi"}}

# slices, pages, inventories -> the states of card-vf0, and what is reported
STATED: dict[str, tuple[list[Object], list[Object], list[Object], tuple[str, ...], str]] = {
    "free": ([published(vf(0))], [], [], ("free",), "free"),
    "prepared": ([published(vf(0))], [page(booking())], [], ("held",), HELD),
    "promised": ([published(vf(0))], [page(booking("booked"))], [], ("held",),
                 "booked for vmi/blue (claim mine) in default since 12:04"),
    "unprepared, and kept": ([published(vf(0))], [page(booking("released"))], [], ("held",),
                   "kept for vmi/blue (claim mine) in default since 12:04"),
    "by a consumer": ([published(vf(0))], [page(booking(holder=Holder("Consumer", "", "c-1", "c-1")))], [], ("held",),
                      "held by Consumer c-1 since 12:04"),
    "found with a VM": ([published(vf(0))], [page(booking(holder=Holder("Domain", "", "stray", "d-1")))], [], ("held",),
                             "held by domain stray, observed since 12:04"),
    "a share of it": ([published(vf(0))], [page(booking(amount=SHARE))], [], ("held",), f"memory 4Gi {HELD}"),
    "a host's own resources hold nothing": (
        [published(vf(0))], [page(booking(amount={"resources": {"VCPU": 2}}))], [], ("free",), "free"),
    "kept back": ([published(vf(0))], [page(reserved=[record()])], [], ("reserved",), "reserved by ann since 12:04: for tests"),
    "kept back without a word": ([published(vf(0))], [page(reserved=[record("", "")])], [], ("reserved",),
                                 "reserved since 12:04"),
    "held and kept back": ([published(vf(0))], [page(booking(), reserved=[record()])], [], ("held", "reserved"),
                           f"{HELD}; reserved by ann since 12:04: for tests"),
    "not trusted": ([published(vf(0))], [page(quarantined=[record("hot")])], [], ("quarantined",),
                    "quarantined by ann since 12:04: hot"),
    "used once": ([published(vf(0))], [page(unclean=[record("used once", str(BLUE))])], [], ("unclean",),
                  "unclean: used once by vmi/blue (claim mine) in default; outfit device clear node-0/card-vf0"),
    "in its only use": ([published(vf(0))], [page(booking(), unclean=[record("used once")])], [], ("held", "unclean"),
                        f"{HELD}; must be cleaned after use"),
    "no longer listed": (
        [published(vf(0, taints=[{"key": "outfitter.dev/unlisted", "effect": "NoSchedule"}]))], [page(booking())],
        [inventory(left=[{"device": "card-vf0", "what": "unlisted"}], withheld=[WITHHELD])], ("held", "unlisted"),
        f"unlisted, {HELD}"),
    "no longer there": ([published(vf(0))], [page(booking())], [inventory(left=[{"device": "card-vf0", "what": "vanished"}])],
                        ("held", "vanished"), f"vanished, {HELD}"),
    "by its taint alone": ([published(vf(0, taints=[{"key": "outfitter.dev/vanished", "effect": "NoSchedule"}]))],
                           [page(booking())], [], ("held", "vanished"), f"vanished, {HELD}"),
    "not offered": ([], [], [inventory(withheld=[WITHHELD])], ("withheld",), "not offered: it is not listed"),
    "not offered, and kept back": ([], [page(reserved=[record()])], [inventory(withheld=[WITHHELD])], ("withheld", "reserved"),
                                   "not offered: it is not listed; reserved by ann since 12:04: for tests"),
    "held, and not published in slices": ([], [page(booking())], [], ("held",), f"{HELD}; not published"),
    "tainted by its driver": ([published(vf(0, taints=[{"key": "a.com/hot", "value": "yes", "effect": "NoSchedule"}]))], [], [],
                              ("free",), "free; tainted a.com/hot=yes:NoSchedule"),
}


@pytest.mark.parametrize("name", STATED)
def test_the_state_of_a_device(name: str) -> None:
    slices, pages, inventories, states, says = STATED[name]
    [device] = device_list(slices, pages, inventories).devices
    assert (device.states, text.state_text(device, NOW)) == (states, says)
    assert device.short == "node-0/card-vf0"


def test_a_device_of_a_device_plugin_is_shown_with_its_resource() -> None:
    """Plugins publish no ResourceSlices, and two may give their devices the same ids."""
    held = [replace(booking(), device=DeviceId(resource, "node-0", "0")) for resource in ("a.io/gpu", "b.io/nic")]
    found = device_list([], [page(*held)], []).devices
    assert [(device.product, text.state_text(device, NOW)) for device in found] == [("a.io/gpu", HELD), ("b.io/nic", HELD)]


def test_states_that_can_be_asked_for_are_those_that_there_are() -> None:
    assert set(main.STATES) == set(STATES)


def takes(amount: int) -> Object:
    return {"consumesCounters": [{"counterSet": "card", "counters": {"functions": {"value": str(amount)}}}]}


def card(*bookings: Booking) -> dict[str, ListedDevice]:
    """A physical function that is offered beside its two virtual ones."""
    pf: Object = {"name": "card", "attributes": {"kind": {"string": "PF"}}, **takes(2)}
    limit = {"name": "card", "counters": {"functions": {"value": "2"}}}
    found = device_list([published(pf, vf(0, **takes(1)), vf(1, **takes(1)), sharedCounters=[limit])], [page(*bookings)], [])
    return {device.id.device: device for device in found.devices}


def test_a_physical_function_is_not_free_while_a_virtual_one_is_held() -> None:
    assert {device.state for device in card().values()} == {"free"}
    found = card(booking())
    assert {name: device.state for name, device in found.items()} == {"card": "blocked", "card-vf0": "held", "card-vf1": "free"}
    assert text.state_text(found["card"], NOW) == f"not free while card-vf0 is {HELD}"
    found = card(booking(name="card"))
    assert [found[name].state for name in ("card", "card-vf0", "card-vf1")] == ["held", "blocked", "blocked"]
    assert listing.as_json(found["card-vf1"])["blockedBy"] == ["card"]


def test_two_names_of_one_function_are_shown_before_and_while_one_is_held() -> None:
    def listed(*bookings: Booking) -> dict[str, ListedDevice]:
        address = {"resource.kubernetes.io/pciBusID": {"string": "0000:3B:01.0"}}
        ours = {**vf(0), "attributes": address}
        other = published({"name": "nic", "attributes": {"pciAddress": {"string": "0000:3b:01.0"}}}, driver="other.example.com")
        found = device_list([published(ours), other], [page(*bookings)], [])
        return {device.id.device: device for device in found.devices}

    found = listed()
    assert text.state_text(found["card-vf0"], NOW) == f"free; the same hardware as {found['nic'].id}"
    assert listing.as_json(found["nic"])["sameHardware"] == [
        {"driver": found["card-vf0"].id.driver, "pool": found["card-vf0"].id.pool, "name": "card-vf0"}]
    found = listed(booking())
    assert [found[name].state for name in ("card-vf0", "nic")] == ["held", "blocked"]
    both = f"not free while card-vf0 is {HELD}; the same hardware as {found['card-vf0'].id}"
    assert text.state_text(found["nic"], NOW) == both
    assert listing.as_json(found["nic"])["blockedBy"] == ["card-vf0"]


def test_only_the_newest_whole_pool_counts() -> None:
    old, new = published(vf(0)), published(vf(1), pool={"generation": 2})
    assert [device.id.device for device in device_list([old, new], [], []).devices] == ["card-vf1"]
    half = device_list([published(vf(0), pool={"resourceSliceCount": 2})], [], [])
    assert (half.devices, half.unfinished) == (
        (), (f"pool node-0 of {DRIVER} is incomplete: its devices are not shown until all slices are published",))


def test_devices_stand_in_the_order_of_nodes_and_addresses() -> None:
    found = device_list([published(vf(1), vf(0), node="node-10"), published(vf(7), node="node-2")], [], [])
    assert [device.short for device in found.devices] == ["node-2/card-vf7", "node-10/card-vf0", "node-10/card-vf1"]
    assert found.nodes == ("node-2", "node-10")


def test_devices_of_others_and_of_no_node() -> None:
    gpu = {"name": "gpu-0", "attributes": {"gpu.example.com/productName": {"string": "A100"}, "type": {"string": "gpu"}}}
    shared: Object = {"metadata": {"name": "s"}, "spec": {
        "driver": "net.example.com", "allNodes": True, "devices": [{"name": "p"}],
        "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1}}}
    fabric, mine = device_list([published(gpu, driver="gpu.example.com"), shared], [], []).devices
    assert (mine.product, mine.kind, mine.address) == ("A100", "gpu", "")
    assert (fabric.node, fabric.short) == ("", "fabric/p")
    assert device_list([shared], [], []).find("fabric/p").id == fabric.id


class Elsewhere:
    """A server that never heard of our kinds."""

    store: Any

    def __init__(self) -> None:
        self.store = self.readable = self

    async def list(self, kind: kinds.Kind, *, fields: str) -> Listing:
        if not kind.builtin:
            raise NotFound("the server could not find the requested resource")
        return Listing([published(vf(0))], "1")

    async def get(self, kind: kinds.Kind, name: str) -> Object:
        raise NotFound(f'{kind.resource} "{name}" not found')


async def test_a_cluster_that_does_not_know_our_kinds() -> None:
    found = await view.read(cast(Client, Elsewhere()))
    assert [(device.short, device.state) for device in found.devices] == [("node-0/card-vf0", "free")]


# -- who is meant

def two() -> DeviceList:
    grouped = {"name": "gpu", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"},
                                             "members": {"string": "0000:65:00.0,0000:65:00.1"}}}
    return device_list([published(vf(0), vf(1), grouped), published(vf(0), vf(2), node="node-1")], [], [])


FOUND = {
    "node and name": ("node-1/card-vf0", "node-1/card-vf0"),
    "node and address": ("node-0/0000:3b:01.0", "node-0/card-vf0"),
    "an address without its domain": ("node-0/3b:01.1", "node-0/card-vf1"),
    "in large letters": ("node-0/0000:3B:01.1", "node-0/card-vf1"),
    "a name that is there once": ("card-vf2", "node-1/card-vf2"),
    "an address that is there once": ("0000:3b:01.2", "node-1/card-vf2"),
    "one that goes along": ("0000:65:00.1", "node-0/gpu"),
    "with its driver": (f"{DRIVER}/node-1/card-vf0", "node-1/card-vf0"),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_device_is_found(name: str) -> None:
    word, short = FOUND[name]
    assert two().find(word).short == short


LOST: dict[str, tuple[str, type[Exception], str]] = {
    "a name that is there twice": (
        "card-vf0", BadRequest, "'card-vf0' matches 2 devices; write one of: node-0/card-vf0, node-1/card-vf0"),
    "no such node": ("node-7/card-vf0", NotFound, "there is no node 'node-7' with devices; there are node-0, node-1"),
    "nearly": ("node-1/card-vf22", NotFound,
               "there is no device 'node-1/card-vf22'; similar: node-1/card-vf2, node-1/card-vf0"),
    "not at all": ("node-1/qq", NotFound, "there is no device 'node-1/qq'; outfit devices --node node-1 lists them"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_device_is_not_found(name: str) -> None:
    word, kind, says = LOST[name]
    with pytest.raises(kind) as caught:
        two().find(word)
    assert str(caught.value) == says


def test_two_drivers_that_call_a_device_the_same() -> None:
    both = device_list([published(vf(0)), published(vf(0), driver="other.example.com")], [], [])
    with pytest.raises(BadRequest, match=r"write one of: other.example.com/node-0/card-vf0, pci.outfitter.dev/node-0/card-vf0"):
        both.find("card-vf0")
    assert both.find("other.example.com/node-0/card-vf0").id.driver == "other.example.com"


# -- how it is shown

def test_counts_show_further_states() -> None:
    found = device_list([published(*map(vf, range(5)))], [page(booking(), booking(name="card-vf1"), reserved=[
        record(), record(name="card-vf2")])], [inventory(withheld=[{**WITHHELD, "name": "x"}])])
    assert text.counts(found.devices) == "5 devices: 2 free, 2 held (1 reserved), 1 reserved"


PF = {"name": "card", "address": "0000:3b:00.0", "kind": "PF", "vendor": "8086", "product": "1592", "class": "020000",
      "numaNode": 0, "reason": "is used by the host"}
BRIDGES = [{"name": f"b{number}", "address": f"0000:00:0{number}.0", "kind": "PCI", "class": "060400", "numaNode": 0,
            "reason": "is a bridge"} for number in range(2)]


def test_a_tree_folds_what_is_free_and_alike() -> None:
    found = device_list([published(*map(vf, range(8)))], [page(booking(name="card-vf2"))],
                       [inventory(withheld=[PF, *BRIDGES], warnings=["odd"])])
    assert list(tree.lines(found.devices, found.warnings, NOW, plain=True)) == [
        "node-0  8 devices: 7 free, 1 held; 3 not offered",
        "|- NUMA node 0",
        "|  |- 0000:3b:00.0  PF  8086:1592  not offered: it is used by the host",
        "|  |  |- vf0  0000:3b:01.0  VF  8086:1889  free",
        "|  |  |- vf1  0000:3b:01.1  VF  8086:1889  free",
        f"|  |  |- vf2  0000:3b:01.2  VF  8086:1889  {HELD}",
        "|  |  `- vf3..vf7  0000:3b:01.3..0000:3b:01.7  VF  8086:1889  5 free",
        "|  `- 2 bridges, never offered",
        "`- warning: odd",
        "",
    ]


def test_tree_shows_each_held_device() -> None:
    found = device_list(
        [published(*map(vf, range(6)))], [page(*(booking(name=f"card-vf{number}") for number in range(6)))], []
    )
    assert [line for line in tree.lines(found.devices, {}, NOW, plain=True) if ".." in line] == []


def test_history_begins_with_what_stands() -> None:
    """Of shares one that was booked later may have ended."""
    entry = HistoryEntry("node-0", device_id(), BLUE, "nic", SHARE, BOOKED, BOOKED, "", "", "prepared")
    ended = replace(entry, booked="2026-03-04T12:10:00Z", ended="2026-03-04T12:20:00Z", how="released", state="")
    assert history.current_first([ended, entry]) == [entry, ended]
    assert [line.split()[-6:] for line in history.table([entry, ended], NOW)[1:]] == [
        ["4Gi", "12:04", "12:04", "now", "26m", "prepared"], ["4Gi", "12:10", "12:04", "12:20", "10m", "released"]]


def test_a_tree_without_the_physical_function() -> None:
    """Only the held one was asked for."""
    found = device_list([published(vf(0), vf(1))], [page(booking())], [inventory(withheld=[PF])])
    held = [device for device in found.devices if "held" in device.states]
    assert list(tree.lines(held, {}, NOW, plain=True))[1:] == [
        "`- NUMA node 0", "   `- 0000:3b:00.0", f"      `- vf0  0000:3b:01.0  VF  8086:1889  {HELD}", ""]


def test_what_would_move_the_cursor_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text.print_lines(["a\x1b[2Jb", "ü"])
    assert capsys.readouterr().out == "a?[2Jb\nü\n"


TIMES = {
    "today": ("2026-03-04T00:01:00Z", "00:01"), "another day": ("2026-03-03T23:59:00Z", "2026-03-03 23:59"),
    "no time": ("soon", "soon"), "nothing": ("", "an unknown time"),
}


@pytest.mark.parametrize("name", TIMES)
def test_times(name: str) -> None:
    text, says = TIMES[name]
    assert time_format.local_time(text, NOW) == says


SPANS = {"0s": 0, "59s": 59, "1m": 60, "2m5s": 125, "1h": 3600, "3h2m": 10_925, "2d": 172_800, "1d4h": 100_800}


@pytest.mark.parametrize("says", SPANS)
def test_spans(says: str) -> None:
    assert time_format.elapsed((NOW - timedelta(seconds=SPANS[says])).isoformat(), "", NOW) == says


TYPED = {"0": (0, "0s"), "90": (90, "1m30s"), "90s": (90, "1m30s"), "5m": (300, "5m"), "1h30m": (5400, "1h30m"),
         "1.5h": (5400, "1h30m"), "250ms": (0.25, "0.25s"), "1m0.5s": (60.5, "1m0.5s")}


@pytest.mark.parametrize("text", TYPED)
def test_durations_are_parsed_and_formatted(text: str) -> None:
    assert (time_format.parse_duration(text), time_format.format_duration(time_format.parse_duration(text))) == TYPED[text]


@pytest.mark.parametrize("text", ["", "m", "5 m", "-1", "1d", "5mm", "nan"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        time_format.parse_duration(text)


def test_every_key_for_programs_is_always_there() -> None:
    [full] = device_list([published(vf(0))], [page(booking(), reserved=[record()])], []).devices
    [bare] = device_list([published({"name": "x"})], [], []).devices
    assert listing.as_json(full).keys() == listing.as_json(bare).keys()
    told = listing.as_json(full)
    assert told["holders"] == [{"kind": "ResourceClaim", "namespace": "default", "name": "mine", "uid": "u-1",
                                "purpose": "vmi/blue", "request": "nic", "state": "prepared", "booked": BOOKED,
                                "prepared": None, "amount": {"whole": True}}]
    assert told["outOfService"] == [{"state": "reserved", "reason": "for tests", "by": "ann", "since": BOOKED, "origin": None}]
    assert (told["state"], told["states"], told["since"], told["numa"]) == ("held", ["held", "reserved"], BOOKED, 0)
    assert {key for key, value in listing.as_json(bare).items() if value not in (None, [])} == {
        "node", "name", "pool", "publishedBy", "offered", "state", "states"}
