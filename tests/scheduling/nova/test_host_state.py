"""Hosts from what they publish and what their pages say."""

from __future__ import annotations

import pytest

from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.api.providers import Inventory, Provider
from outfitter.api.rejection import Rejection
from outfitter.inventory import assignable, scan, slices
from outfitter.inventory.pci import FunctionKind
from outfitter.ledger import placement_view
from outfitter.scheduling.nova import host_state
from outfitter.scheduling.nova.host_state import HostState, PublishedHost
from outfitter.scheduling.nova.numa_topology import NumaCell
from tests.cases import nova_cloud
from tests.inventory.spec_entries import parse_entries
from tests.rejected import Code, no
from tests.scheduling.published_hosts import published

GPU = {"address": "0000:17:00.0", "vendor_id": "10de", "product_id": "2235", "type": "PCI", "numa_node": 1}
PF = {"address": "0000:3b:00.0", "vendor_id": "8086", "product_id": "37c8", "type": "PF"}
VFS = [{"address": f"0000:3b:01.{number}", "vendor_id": "8086", "product_id": "37c9", "type": "VF", "parent": PF["address"]}
       for number in range(2)]
SPEC = [{"vendor_id": "10de", "live_migratable": "yes"}, {"vendor_id": "8086"}]
WHO = Holder("Consumer", "", "blue", "uid-blue")


def pool() -> list[Object]:
    """A host with a GPU, a card and its two parts, as our own driver publishes it."""
    spec = parse_entries(SPEC, report=False)
    offered = assignable.assignable(scan.scan(nova_cloud.tree([GPU, PF, *VFS])).devices, (), spec).offered
    counters = slices.counters(offered)
    devices = [counters.on(device) for device in slices.describe(offered)]
    return slices.pool("oak", DRIVER, devices, counters.sets, generation=3)


def page(*held: DeviceId, marks: dict[str, list[DeviceId]] | None = None, cells: dict[str, int] | None = None) -> Page:
    bookings = [Booking(each, WHO, "", "booked", "12:04") for each in held]
    if cells:
        amount = {"resources": {"PCPU": sum(cells.values())}, "cells": cells}
        bookings.append(Booking(placement_view.host_resources("oak"), WHO, "", "booked", "12:04", amount))
    out = Page(Page(Page.blank("oak")).holding(bookings))
    for which, devices in (marks or {}).items():
        out = Page(out.with_records(which, [OutOfServiceRecord(each, "bad fan", "ann", "12:05") for each in devices]))  # type: ignore[arg-type]
    return out


def tree(name: str, *devices: str, reserved: int = 0) -> Provider:
    return Provider(name, "u", "oak", 1, {"CUSTOM_X": Inventory(len(devices), reserved)}, frozenset(), devices=devices)


@pytest.fixture
def offered() -> PublishedHost:
    return published("oak", pool(), cells=[NumaCell(0, 4), NumaCell(1, 4)])


def by_address(host: HostState) -> dict[str, host_state.PciDevice]:
    return {device.address: device for device in host.devices}


def test_what_is_published_is_read(offered: PublishedHost) -> None:
    devices = by_address(offered.at(page()))
    assert list(devices) == [GPU["address"], PF["address"], *(vf["address"] for vf in VFS)]
    gpu = devices["0000:17:00.0"]
    assert (gpu.kind, gpu.vendor, gpu.product, gpu.numa, gpu.live_migratable) == (FunctionKind.PCI, "10de", "2235", 1, True)
    assert [devices["0000:3b:00.0"].kind, devices["0000:3b:01.0"].kind] == [FunctionKind.PF, FunctionKind.VF]
    assert not any(device.blocked for device in devices.values())


def test_who_holds_a_device_and_what_was_done_to_it(offered: PublishedHost) -> None:
    ids = {address: device.id for address, device in by_address(offered.at(page())).items()}
    seen = by_address(offered.at(page(ids["0000:17:00.0"], marks={"quarantined": [ids["0000:3b:01.0"]]})))
    taken, marked = seen["0000:17:00.0"].blocked, seen["0000:3b:01.0"].blocked
    assert taken is not None
    assert taken.holder is not None
    assert (taken.code, taken.device, taken.holder.kind, taken.holder.name, taken.since) == (
        Code.HELD, ids["0000:17:00.0"], "Consumer", "blue", "12:04")
    assert marked is not None
    assert (marked.code, marked.device, marked["reason"], marked.since) == (
        Code.QUARANTINED, ids["0000:3b:01.0"], "bad fan", "12:05")
    assert not seen["0000:3b:01.1"].blocked


VF_ADDRESSES = ("0000:3b:01.0", "0000:3b:01.1")


def drained(device: DeviceId, amount: str, left: str) -> Rejection:
    return no(Code.COUNTER_EXHAUSTED, device, amount=amount, counter="functions", set="pci-0000-3b-00-0", left=left)


def test_held_vf_blocks_its_pf_and_vice_versa(offered: PublishedHost) -> None:
    ids = {address: device.id for address, device in by_address(offered.at(page())).items()}
    seen = by_address(offered.at(page(ids["0000:3b:01.0"])))
    assert seen["0000:3b:00.0"].blocked == drained(ids["0000:3b:00.0"], "2", "1")
    assert not seen["0000:3b:01.1"].blocked
    seen = by_address(offered.at(page(ids["0000:3b:00.0"])))
    assert [seen[vf].blocked for vf in VF_ADDRESSES] == [drained(ids[vf], "1", "0") for vf in VF_ADDRESSES]


def test_dedicated_cpus_of_others_are_not_free(offered: PublishedHost) -> None:
    assert [cell.cpus for cell in offered.at(page(cells={"1": 3})).cells] == [4, 1]


def test_published_taints_of_page_records_are_ignored() -> None:
    [part, *rest] = pool()
    first, second, *more = part["spec"]["devices"]
    taints = {"reserved": first, "unlisted": second}
    for word, device in taints.items():
        device["taints"] = [{"key": f"outfitter.dev/{word}", "effect": "NoSchedule"}]
    more[0]["taints"] = [{"key": "a.test/hot", "effect": "None"}]
    devices = published("oak", [part, *rest]).at(page()).devices
    assert [device.blocked for device in devices][:3] == [
        None, no(Code.TAINTED, devices[1].id, taint="outfitter.dev/unlisted:NoSchedule"), None]


def test_a_device_that_is_managed_remotely() -> None:
    [part, *rest] = pool()
    part["spec"]["devices"][2]["attributes"]["remoteManaged"] = {"bool": True}
    found = published("oak", [part, *rest])
    assert [device.remote_managed for device in found.at(page()).devices] == [False, False, True, False]


@pytest.mark.parametrize(("reserved", "held", "room"), [(0, 0, 2), (1, 0, 1), (0, 1, 1), (1, 1, 0), (2, 1, 0)])
def test_the_room_of_a_provider(offered: PublishedHost, reserved: int, held: int, room: int) -> None:
    names = [device.id for device in offered.at(page()).devices if device.kind is FunctionKind.VF]
    home = tree("p", *(each.device for each in names), reserved=reserved)
    found = published("oak", pool(), [home])
    host = found.at(page(*names[:held]))
    assert host.room("p") == room
    assert {device.provider for device in host.devices} == {"", "p"}


def test_an_unfinished_pool_offers_nothing() -> None:
    found = published("oak", pool()[:1])
    assert found.at(page()).devices == ()
