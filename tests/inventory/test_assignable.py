"""What a host offers by default, and what it says of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outfitter.inventory import assignable, pci
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice
from tests.inventory.spec_entries import parse_entries


def gpu(address: str, **fields: object) -> HostDevice:
    plain = HostDevice(
        address=address,
        kind=FunctionKind.PCI,
        vendor="10de",
        product="2204",
        class_code="030000",
        revision="a1",
        driver="vfio-pci",
        parent=None,
        numa=0,
        pcie_root="pci0000:64",
        iommu_group=20,
        members=(),
        serial=None,
        interfaces=(),
        name=pci.label(address),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def group(*devices: HostDevice) -> list[HostDevice]:
    """Devices that know each other."""
    ends = [device.address for device in devices if not device.is_bridge]
    return [replace(device, members=tuple(a for a in ends if a != device.address)) for device in devices]


A, B, C = "0000:65:00.0", "0000:65:00.1", "0000:65:00.2"

CASES: dict[str, tuple[list[HostDevice], list[tuple[str, ...]], dict[str, str]]] = {
    "a function bound to vfio-pci": ([gpu(A)], [(A,)], {}),
    "a function that the host uses": (
        [gpu(A, driver="mlx5_core")], [],
        {A: "is used by the host through mlx5_core; bind it to vfio-pci, or list it in device_spec, to offer it"}),
    "a function without a driver": (
        [gpu(A, driver=None)], [], {A: "is bound to no driver; bind it to vfio-pci, or list it in "
                    "device_spec, to offer it"}),
    "a bridge, even bound to vfio-pci": (
        [gpu(A, class_code="060400")], [], {A: "is a bridge (class 060400); bridges are not assignable"}),
    "no IOMMU": ([gpu(A, iommu_group=None)], [], {A: "no IOMMU group; switch the IOMMU on"}),
    "a class that could not be read": ([gpu(A, class_code=None)], [], {A: "has no readable vendor, product and class"}),
    "a GPU and its audio function are one device": (group(gpu(B), gpu(A)), [(A, B)], {}),
    "a bridge in the group is no obstacle": (
        group(gpu(A), gpu(B, class_code="060400", driver="pcieport")), [(A,)], {B: "is a bridge"}),
    "nor is one to the ISA bus that the host does not use": (
        group(gpu(A), gpu(B, class_code="060100", driver=None)), [(A,)], {B: "is a bridge"}),
    "but one that it does keeps the others": (
        group(gpu(A), gpu(B, class_code="060100", driver="lpc_ich"), gpu(C)), [],
        {A: f"shares IOMMU group 20 with the bridge {B}, which is used by the host through lpc_ich; free the bridge "
            "from lpc_ich to offer it", B: "is a bridge", C: f"with the bridge {B}"}),
    "an audio function that the host uses keeps the GPU": (
        group(gpu(A), gpu(B, driver="snd_hda_intel")), [],
        {A: f"shares IOMMU group 20 with {B}, which is used by the host through snd_hda_intel; bind it to vfio-pci, "
            f"or list it in device_spec, to offer both",
         B: "is used by the host through snd_hda_intel; bind it to vfio-pci, or list it in device_spec, to offer it"}),
    "a member without a driver keeps the others": (
        group(gpu(A), gpu(B, driver=None), gpu(C)), [], {A: B, B: "no driver", C: B}),
    "a member whose class is unknown keeps the others": (
        group(gpu(A), gpu(B, class_code=None)), [], {A: B, B: "readable vendor"}),
    "an unreadable member keeps the others": (
        [gpu(A, members=(B,))], [], {A: f"with {B}, which could not be read"}),
    "a member that says it is elsewhere keeps the others": (
        [gpu(A, members=(B,)), gpu(B, iommu_group=21)], [(B,)], {A: "another group (21)"}),
    "two groups stay two": ([gpu(A), gpu(B, iommu_group=21)], [(A,), (B,)], {}),
    "group zero is a group": ([gpu(A, iommu_group=0)], [(A,)], {}),
    "a VF": ([gpu(A, kind=FunctionKind.VF, parent="0000:64:00.0")], [(A,)], {}),
    "too many to list": (
        group(*(gpu(f"0000:65:{slot:02x}.{function}") for slot in range(9) for function in range(8))), [],
        {f"0000:65:{slot:02x}.{function}": "at most 24" for slot in range(9) for function in range(8)}),
}


@pytest.mark.parametrize(("devices", "offered", "reasons"), CASES.values(), ids=CASES)
def test_offer(devices: list[HostDevice], offered: list[tuple[str, ...]], reasons: dict[str, str]) -> None:
    answer = assignable.assignable(devices)
    assert [tuple(member.address for member in entry.members) for entry in answer.offered] == offered
    assert all(entry.device == entry.members[0] for entry in answer.offered)
    said = {entry.device.address: entry.reason for entry in answer.withheld if isinstance(entry.device, HostDevice)}
    assert set(said) == set(reasons)
    for address, reason in said.items():
        assert reasons[address] in reason
        assert not reason.startswith(address)  # it is said of the device


def test_group_is_named_by_its_lowest_address() -> None:
    (entry,) = assignable.assignable(group(gpu("0000:e5:00.0"), gpu("0000:0a:00.0"))).offered
    assert entry.name == "pci-0000-0a-00-0"


def listed(
    devices: list[HostDevice], spec: list[dict[str, str]], mdevs: list[Mdev] | None = None
) -> tuple[list[str], dict[str, str]]:
    answer = assignable.assignable(devices, mdevs or [], parse_entries(spec, report=False))
    return [entry.name for entry in answer.offered], {entry.device.name: entry.reason for entry in answer.withheld}


def test_what_is_listed_is_offered_whatever_driver_it_has() -> None:
    names, reasons = listed([gpu(A, driver="nvidia"), gpu(B, driver="vfio-pci", iommu_group=21)], [{"address": A}])
    assert names == [pci.label(A)]
    assert reasons == {pci.label(B): "is listed by no entry of device_spec"}


@pytest.mark.parametrize(("driver", "together"), {"vfio-pci": True, "snd_hda_intel": False, None: False}.items())
def test_the_unlisted_neighbour_of_a_listed_function(driver: str | None, together: bool) -> None:
    names, reasons = listed(group(gpu(A, driver="nvidia"), gpu(B, driver=driver)), [{"address": A}])
    assert names == ([pci.label(A)] if together else [])
    assert together or reasons[pci.label(A)] == (
        f"shares IOMMU group 20 with {B}, which is listed by no entry of device_spec; list it too, or bind it to vfio-pci, "
        "to offer both")


def test_group_has_name_and_attributes_of_its_listed_function() -> None:
    answer = assignable.assignable(
        group(gpu(A), gpu(B)), spec=parse_entries([{"address": B, "traits": "x"}], report=False)
    )
    (entry,) = answer.offered
    assert (entry.name, [member.address for member in entry.members]) == (pci.label(B), [A, B])
    assert entry.entry is not None
    assert entry.entry.traits == {"CUSTOM_X"}


def mdev(uuid: str, parent: str) -> Mdev:
    return Mdev(uuid=uuid, type_id="nvidia-63", type_name="GRID P4", device_api="vfio-pci", parent=parent, numa=0,
                pcie_root="pci0000:64", iommu_group=99, memory=None)


def test_function_with_mediated_devices_is_not_assignable_as_a_whole() -> None:
    one, two = mdev("4b20d080-1b54-4048-85b3-a6a62d165c01", A), mdev("4b20d080-1b54-4048-85b3-a6a62d165c02", B)
    answer = assignable.assignable([gpu(A)], [one])
    assert [entry.name for entry in answer.offered] == [one.name]
    assert "has 1 mediated device, which is offered instead" in answer.withheld[0].reason
    names, reasons = listed([gpu(A, driver="nvidia"), gpu(B, driver="nvidia", iommu_group=21)], [{"address": A}], [two, one])
    assert names == [one.name]
    assert reasons[two.name] == f"has the parent {B}, which no entry of device_spec lists"


def test_a_virtual_function_without_a_parent_stays() -> None:
    names, reasons = listed([gpu(A, kind=FunctionKind.VF, parent=None)], [{"address": A}])
    assert names == []
    assert "virtual function whose parent is not known" in reasons[pci.label(A)]


def test_all_mediated_devices_of_a_function_are_counted() -> None:
    three = [mdev(f"4b20d080-1b54-4048-85b3-a6a62d165c0{number}", A) for number in (3, 1, 2)]
    answer = assignable.assignable([gpu(A)], three)
    assert [entry.name[-1] for entry in answer.offered] == ["1", "2", "3"]
    assert "has 3 mediated devices, which" in answer.withheld[0].reason


@pytest.mark.parametrize("unknown", ["vendor", "product", "class_code"])
def test_unidentified_function_is_not_assignable(unknown: str) -> None:
    answer = assignable.assignable([gpu(A, **{unknown: None})])
    assert answer.offered == ()
    assert answer.withheld[0].reason == (
        "has no readable vendor, product and class; they must be known to offer it")


@pytest.mark.parametrize(
    "device", [gpu(A, driver="mlx5_vfio_pci"), gpu(A, driver="nvidia", kind=FunctionKind.VENDOR_VF, parent=B)]
)
def test_function_passed_through_by_a_vendor_driver_is_assignable(device: HostDevice) -> None:
    assert [entry.device for entry in assignable.assignable([device]).offered] == [device]


def test_listed_group_member_that_is_elsewhere_is_reported() -> None:
    names, reasons = listed([gpu(A, members=(B,)), gpu(B, iommu_group=21)], [{"address": B}])
    assert names == [pci.label(B)]
    assert "is in another group (21)" in reasons[pci.label(A)]


def test_mediated_device_has_attributes_of_its_parents_entry() -> None:
    spec = parse_entries([{"address": A, "traits": "x"}], report=False)
    (entry,) = assignable.assignable([gpu(A)], [mdev("4b20d080-1b54-4048-85b3-a6a62d165c01", A)], spec).offered
    assert entry.entry == spec.entries[0]


def test_unassignable_functions_are_reported_in_address_order() -> None:
    functions = [gpu(C, class_code="060400"), gpu(B, iommu_group=21), gpu(A, iommu_group=22)]
    _, reasons = listed(functions, [], [mdev("4b20d080-1b54-4048-85b3-a6a62d165c01", B)])
    assert list(reasons) == [*map(pci.label, (A, B, C)), "mdev-4b20d080-1b54-4048-85b3-a6a62d165c01"]


@pytest.mark.parametrize(("others", "named"), {
    "by address": ((C, B), B), "by number, not by letter": (("10000:01:00.0", "2000:01:00.0"), "2000:01:00.0")}.values(),
    ids=["by address", "by number, not by letter"])
def test_the_first_neighbour_that_stands_in_the_way_is_named(others: tuple[str, str], named: str) -> None:
    answer = assignable.assignable(group(gpu(A), *(gpu(address, driver=None) for address in others)))
    assert answer.offered == ()
    assert f"shares IOMMU group 20 with {named}, which is bound to no driver" in answer.withheld[0].reason


PFS: dict[str, tuple[dict[str, object], str]] = {
    "with VFs, on its driver": (
        {"driver": "ice", "num_vfs": 4}, "has 4 virtual functions, which would go when it is taken from ice"),
    "with a VF, without a driver": ({"driver": None, "num_vfs": 1}, "has 1 virtual function, which would go when it is taken "
                                    "from the host; remove them (sriov_numvfs 0), or bind it to vfio-pci, to offer it"),
    "with VFs, bound to vfio-pci": ({"driver": "vfio-pci", "num_vfs": 4}, ""),
    "without VFs": ({"driver": "ice", "num_vfs": 0}, ""),
    "of which it is not known": ({"driver": "ice", "num_vfs": None}, ""),
}


@pytest.mark.parametrize(("fields", "why"), PFS.values(), ids=PFS)
def test_a_listed_pf_is_offered_unless_its_vfs_would_go(fields: dict[str, object], why: str) -> None:
    spec = parse_entries([{"vendor_id": "10de"}], report=False)
    found = assignable.assignable([gpu(A, kind=FunctionKind.PF, **fields)], spec=spec)
    assert len(found.offered) == (not why)
    assert [why in device.reason and device.entry is spec.entries[0] for device in found.withheld] == [True] * bool(why)
