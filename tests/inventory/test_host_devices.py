"""A host at one moment, beside what it published before: what stays though it is gone, and what is no change."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from outfitter.api.kinds import Object
from outfitter.errors import Invalid
from outfitter.inventory import host_devices, slices
from outfitter.inventory.config import HostSettings
from outfitter.inventory.host_devices import HostDevices
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.pci_ids import PciIds
from outfitter.inventory.scan import Scan
from tests.inventory.spec_entries import parse_entries

NOBODY = PciIds(None)
PF, VF0, VF1, GPU, AUDIO = "0000:3b:00.0", "0000:3b:01.0", "0000:3b:01.1", "0000:65:00.0", "0000:65:00.1"
UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
Spec = Sequence[Mapping[str, str]] | None


def function(address: str, name: str, group: int, kind: FunctionKind = FunctionKind.PCI, **fields: object) -> HostDevice:
    plain = HostDevice(address=address, kind=kind, vendor="10de", product="2204", class_code="030000", revision="a1",
                   driver="vfio-pci", parent=None, numa=0, pcie_root="pci0000:64", iommu_group=group, members=(), serial=None,
                   interfaces=(), name=name)
    return replace(plain, **fields)  # type: ignore[arg-type]


NIC = function(PF, "nic", 1, FunctionKind.PF, product="1592", driver="ice")
CHILD = function(VF0, "nic-vf0", 2, FunctionKind.VF, product="1889", parent=PF)
SISTER = function(VF1, "nic-vf1", 3, FunctionKind.VF, product="1889", parent=PF)
ONE = function(GPU, "gpu", 20)
PAIR = (replace(ONE, members=(AUDIO,)), function(AUDIO, "audio", 20, members=(GPU,), class_code="040300"))
SLICE = Mdev(uuid=UUID, type_id="nvidia-63", type_name="GRID P4", device_api="vfio-pci", parent=GPU, numa=0,
             pcie_root="pci0000:64", iommu_group=99, memory=1 << 30)


def settings(spec: Spec) -> HostSettings:
    return HostSettings(device_spec=None if spec is None else parse_entries(spec, report=True))


def seen(
    *found: HostDevice | Mdev, spec: Spec = None, published: Sequence[Object] = (), held: Collection[str] = (),
    running: Collection[str] = ()
) -> HostDevices:
    what = Scan(tuple(each for each in found if isinstance(each, HostDevice)),
                tuple(each for each in found if isinstance(each, Mdev)), ())
    return host_devices.host_devices("a", settings(spec), what, published, held=held, running=running)


def publish(*found: HostDevice | Mdev, spec: Spec = None) -> list[Object]:
    """The devices as a first survey publishes them."""
    return slices.describe(seen(*found, spec=spec).offered)


def offered(answer: HostDevices) -> list[str]:
    return [one.name for one in answer.offered]


@dataclass(frozen=True)
class Case:
    before: Sequence[HostDevice | Mdev]  # what was published, all of it listed or bound to vfio-pci
    now: Sequence[HostDevice | Mdev]
    offers: Sequence[str]
    left: Mapping[str, str] = field(default_factory=dict)
    kept: Sequence[str] = ()  # of these, what is no longer offered
    spec: Spec = None
    was: Spec = None
    held: Collection[str] = ()
    running: Collection[str] = ()
    withheld: Sequence[str] = ()


CASES = {
    "nothing new": Case([ONE, CHILD], [ONE, CHILD], ["nic-vf0", "gpu"], held=["gpu"], running=[GPU]),
    "gone, and not in use": Case([ONE, CHILD], [CHILD], ["nic-vf0"]),
    "gone, and another one is held": Case([ONE, CHILD], [CHILD], ["nic-vf0"], held=["nic-vf0"]),
    "gone, and booked": Case([ONE, CHILD], [CHILD], ["nic-vf0", "gpu"], {"gpu": "vanished"}, held=["gpu"]),
    "gone, and a VM has it": Case([ONE, CHILD], [CHILD], ["nic-vf0", "gpu"], {"gpu": "vanished"}, running=[GPU]),
    "gone, and no longer listed": Case(
        [ONE, CHILD], [CHILD], ["nic-vf0"], {"gpu": "vanished"}, ["gpu"], spec=[{"product_id": "1889"}], held=["gpu"]),
    "gone, with a driver of its own, and listed": Case(
        [replace(ONE, driver="nvidia")], [], ["gpu"], {"gpu": "vanished"}, was=[{}], spec=[{}], held=["gpu"]),
    "gone, with a driver of its own, and nothing is listed any more": Case(
        [replace(ONE, driver="nvidia")], [], [], {"gpu": "vanished"}, ["gpu"], was=[{}], held=["gpu"]),
    "several gone": Case([ONE, CHILD, SISTER], [], ["nic-vf0", "nic-vf1", "gpu"],
                         {"gpu": "vanished", "nic-vf0": "vanished", "nic-vf1": "vanished"}, held=["gpu", "nic-vf0", "nic-vf1"]),
    "gone, and its group's number is another's": Case(
        [ONE, CHILD], [replace(CHILD, iommu_group=20)], ["nic-vf0", "gpu"], {"gpu": "vanished"}, held=["gpu"]),
    "gone, and its group's number is that of something the host uses": Case(
        [ONE], [function(VF0, "disk", 20, driver="nvme")], ["gpu"], {"gpu": "vanished"}, held=["gpu"], withheld=["disk"]),
    "no longer listed, and not in use": Case(
        [ONE, CHILD], [ONE, CHILD], ["nic-vf0"], spec=[{"product_id": "1889"}], withheld=["gpu"]),
    "no longer listed, and booked": Case(
        [ONE, CHILD], [ONE, CHILD], ["nic-vf0"], {"gpu": "unlisted"}, ["gpu"], spec=[{"product_id": "1889"}], held=["gpu"],
        withheld=["gpu"]),
    "never published, and booked": Case([], [ONE], [], spec=[], held=["gpu"], withheld=["gpu"]),
    "bound to another driver, and booked": Case(
        [ONE], [replace(ONE, driver="nvidia")], [], {"gpu": "unlisted"}, ["gpu"], held=["gpu"], withheld=["gpu"]),
    "sliced meanwhile, and booked": Case(
        [ONE], [ONE, SLICE], [f"mdev-{UUID}"], {"gpu": "unlisted"}, ["gpu"], held=["gpu"], withheld=["gpu"]),
    "a mediated device, no longer listed, and booked": Case(
        [ONE, SLICE], [ONE, SLICE], [], {f"mdev-{UUID}": "unlisted"}, [f"mdev-{UUID}"], spec=[], held=[f"mdev-{UUID}"],
        withheld=["gpu", f"mdev-{UUID}"]),
    "a mediated device, gone, and booked": Case(
        [ONE, SLICE], [ONE], ["gpu"], {f"mdev-{UUID}": "vanished"}, [f"mdev-{UUID}"], held=[f"mdev-{UUID}"]),
    "a mediated device, gone, and not in use": Case([ONE, SLICE], [ONE], ["gpu"]),
    "the address moved, the name did not": Case(
        [ONE], [replace(ONE, address="0000:66:00.0")], ["gpu"], held=["gpu"], running=[GPU]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_became_of_what_was_published(name: str) -> None:
    case = CASES[name]
    published = publish(*case.before, spec=case.was)
    said = copy.deepcopy(published)
    answer = seen(*case.now, spec=case.spec, published=published, held=case.held, running=case.running)
    assert offered(answer) == list(case.offers)
    assert answer.left == dict(case.left)
    assert list(answer.kept) == [device for device in published if device["name"] in case.kept]
    assert [each.device.name for each in answer.withheld] == list(case.withheld)
    assert published == said


def test_vanished_device_keeps_its_attributes_and_name() -> None:
    """The group that it was in may be another's by now: the two are not one device."""
    published = publish(ONE, SISTER)
    news = replace(CHILD, iommu_group=20)
    answer = seen(news, published=published, held={"gpu", "nic-vf1"})
    assert [(one.name, [member.address for member in one.members]) for one in answer.offered] == [
        ("nic-vf0", [VF0]), ("nic-vf1", [VF1]), ("gpu", [GPU])]
    devices = {device["name"]: device for device in host_devices.devices(answer, published, {"gpu", "nic-vf1"}, {}, NOBODY)}
    assert [devices["nic-vf1"], devices["gpu"]] == published
    assert devices["nic-vf0"]["attributes"]["iommuGroup"] == {"int": 20}


# -- names


def test_names_of_all_assignable_devices() -> None:
    disk = function("0000:70:00.0", "disk", 30, driver="nvme")
    card = replace(NIC, address="0000:80:00.0", iommu_group=40)
    answer = seen(*PAIR, CHILD, disk, replace(SLICE, parent="0000:80:00.0"), card)
    assert answer.names == {GPU: "gpu", AUDIO: "gpu", VF0: "nic-vf0", "0000:70:00.0": "disk", "0000:80:00.0": "nic",
                            UUID: f"mdev-{UUID}"}


def test_group_is_named_by_its_listed_function() -> None:
    answer = seen(*PAIR, spec=[{"address": AUDIO}])
    assert answer.names == {GPU: "audio", AUDIO: "audio"}


def test_removed_device_is_known_by_its_former_address() -> None:
    answer = seen(CHILD, published=publish(ONE, CHILD))
    assert answer.names == {GPU: "gpu", VF0: "nic-vf0"}
    assert [answer.address(name) for name in ("gpu", "nic-vf0", "other")] == [GPU, VF0, "other"]


def test_an_address_is_that_of_what_stands_there_now() -> None:
    answer = seen(replace(CHILD, address=GPU), published=publish(ONE))
    assert answer.names == {GPU: "nic-vf0"}
    used = function(GPU, "disk", 30, driver="nvme")
    assert seen(used, published=publish(ONE)).names == {GPU: "disk"}, "whether it is offered or not"


# -- for those who count


def test_providers_of_what_is_offered() -> None:
    listed: Spec = [{"product_id": "1889"}, {"product_id": "2204", "one_time_use": "yes"}]
    answer = seen(ONE, NIC, CHILD, SISTER, spec=listed)
    assert answer.groups == {"gpu": "a_0000:65:00.0", "nic-vf0": "a_0000:3B:00.0", "nic-vf1": "a_0000:3B:00.0"}
    assert answer.once == {"gpu"}
    assert seen(ONE, SLICE).groups == {}, "a mediated device is on no provider"
    assert seen(ONE, spec=[{"one_time_use": "no"}]).once == frozenset()
    ghostly = seen(CHILD, spec=listed, published=publish(ONE, CHILD, spec=listed), held={"gpu"})
    assert ghostly.groups["gpu"] == "a_0000:65:00.0"
    assert ghostly.once == {"gpu"}


ORPHANS: dict[str, tuple[HostDevice, Spec, bool]] = {
    "a listed function without a parent": (replace(CHILD, parent=None), [{"product_id": "1889"}], True),
    "one that carries a vdpa device": (replace(CHILD, parent=None, kind=FunctionKind.VDPA), [{"product_id": "1889"}], True),
    "with a parent": (CHILD, [{"product_id": "1889"}], False),
    "not listed": (replace(CHILD, parent=None), [{"product_id": "2204"}], False),
    "without a list": (replace(CHILD, parent=None), None, False),
    "of a network, which Neutron counts": (
        replace(CHILD, parent=None), [{"product_id": "1889", "physical_network": "blue"}], False),
    "a whole device has none": (ONE, [{"product_id": "2204"}], False),
}


@pytest.mark.parametrize(("device", "spec", "orphan"), ORPHANS.values(), ids=ORPHANS)
def test_functions_without_a_parent(device: HostDevice, spec: Spec, orphan: bool) -> None:
    assert seen(device, spec=spec).orphans == ((device,) if orphan else ())


def test_inventory_of_another_host_is_reported() -> None:
    with pytest.raises(Invalid, match="remote_managed"):
        seen(NIC, spec=[{"address": PF, "remote_managed": "yes"}])


# -- what the slices say

BOUND = replace(ONE, driver="nvme", serial="S-1", interfaces=("ens1",), speed=25_000)
GIVEN = replace(ONE, driver="vfio-pci")


@pytest.mark.parametrize(("before", "after"), {
    "it is given away": (BOUND, GIVEN), "it comes back": (GIVEN, BOUND)}.values(), ids=["it is given away", "it comes back"])
def test_driver_specific_values_are_kept_while_a_device_is_held(before: HostDevice, after: HostDevice) -> None:
    published = publish(before, spec=[{}])
    answer = seen(replace(after, numa=1), spec=[{}], published=published)
    fresh = slices.describe(answer.offered)[0]
    [held] = host_devices.devices(answer, published, {"gpu"}, {}, NOBODY)
    for name in ("driver", "serial", "interface"):
        assert held["attributes"].get(name) == published[0]["attributes"].get(name)
    assert held["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}, "anything else is"
    if before is BOUND:
        assert held["capacity"] == {"bandwidth": {"value": "25000M"}}
    assert host_devices.devices(answer, published, {"other"}, {}, NOBODY) == [fresh]
    assert host_devices.devices(answer, [], {"gpu"}, {}, NOBODY) == [fresh], "nothing was said before"


def test_what_is_kept_comes_behind_what_is_offered() -> None:
    published = publish(ONE, CHILD)
    answer = seen(ONE, CHILD, spec=[{"product_id": "2204"}], published=published, held={"nic-vf0"})
    devices = host_devices.devices(answer, published, {"nic-vf0"}, {}, NOBODY)
    assert [device["name"] for device in devices] == ["gpu", "nic-vf0"]
    assert devices[1] == published[0]


def taint(what: str, time: str = "") -> Object:
    return {"key": f"outfitter.dev/{what}", "effect": "NoSchedule", **({"timeAdded": time} if time else {})}


OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
TAINTS: dict[str, tuple[list[Object], list[Object], list[Object] | None]] = {
    # as published, as wanted, as said
    "none": ([], [], None),
    "a new one": ([], [taint("reserved")], [taint("reserved")]),
    "one that has ended": ([taint("reserved", OLD)], [], None),
    "one that stays keeps its time": ([taint("reserved", OLD)], [taint("reserved")], [taint("reserved", OLD)]),
    "even where another is given": ([taint("reserved", OLD)], [taint("reserved", NEW)], [taint("reserved", OLD)]),
    "one that never had a time": ([taint("reserved")], [taint("reserved")], [taint("reserved")]),
    "one of two": ([taint("reserved", OLD), taint("unclean", OLD)], [taint("held"), taint("unclean")],
                   [taint("held"), taint("unclean", OLD)]),
}


@pytest.mark.parametrize(("before", "wanted", "said"), TAINTS.values(), ids=TAINTS)
@pytest.mark.parametrize("which", ["offered", "kept"])
def test_taints(before: list[Object], wanted: list[Object], said: list[Object] | None, which: str) -> None:
    published = [{**device, **({"taints": before} if before else {})} for device in publish(ONE)]
    answer = seen(ONE, spec=[{}] if which == "offered" else [], published=published, held={"gpu"})
    [device] = host_devices.devices(answer, published, {"gpu"}, {"gpu": wanted, "other": [taint("held")]}, NOBODY)
    assert device.get("taints") == said
    if which == "kept":
        assert {**device, "taints": None} == {**published[0], "taints": None}


def test_the_members_of_a_held_group_stay_its_members() -> None:
    published = publish(*PAIR)
    assert seen(*PAIR, spec=[], published=published, held={"gpu"}).names[AUDIO] == "gpu"
    assert seen(published=published, held={"gpu"}).names[AUDIO] == "gpu"


def test_a_card_in_a_group_excludes_its_functions_whichever_function_names_the_group() -> None:
    first = function("0000:3a:00.0", "first", 1, FunctionKind.PF, members=(PF,))
    second = replace(NIC, members=("0000:3a:00.0",))
    answer = seen(first, second, CHILD, spec=[{}])
    assert [one.name for one in answer.offered] == ["first", "nic-vf0"]
    whole, child = host_devices.devices(answer, [], set(), {}, slices.NO_PCI_IDS)
    assert whole["consumesCounters"] == child["consumesCounters"]


def test_unlisted_device_held_by_a_vm_stays_visible() -> None:
    assert seen(ONE, spec=[], published=publish(ONE), running=[GPU]).left == {"gpu": "unlisted"}
