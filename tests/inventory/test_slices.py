"""Published slices: their shape, their limits, and when there is nothing to write."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from outfitter.api.kinds import Object
from outfitter.api.providers import Inventory, Provider
from outfitter.inventory import assignable, scan, slices
from outfitter.inventory.assignable import AssignableDevice
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import HostDevice
from outfitter.inventory.pci_ids import PciIds
from outfitter.inventory.simulation import hosts_file
from tests.inventory.spec_entries import parse_entries

DRIVER = "pci.outfitter.dev"
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def offered(pci: str, spec: list[dict[str, str]] | None = None) -> tuple[AssignableDevice, ...]:
    host = hosts_file.parse(f"hosts: [{{name: a, numa: [{{id: 3, cpus: 0-3, memory: 1Gi}}], pci: [{pci}]}}]").hosts[0]
    found = scan.scan(host.tree())
    listed = None if spec is None else parse_entries(spec, report=True)
    return assignable.assignable(found.devices, found.mdevs, listed).offered


def pool(node: str, entries: Sequence[AssignableDevice], generation: int = 1, uid: str | None = None) -> list[Object]:
    counters = slices.counters(entries)
    devices = [counters.on(device) for device in slices.describe(entries)]
    return slices.pool(node, DRIVER, devices, counters.sets, generation=generation, node_uid=uid)


NIC = ("{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, serial: S-1, numa: 3, "
       "pcieRoot: pci0000:3a, vfs: {count: %d, product: 1889}}")
BOUND = NIC.replace("driver: ice", "driver: vfio-pci")  # else its VFs keep the PF from being offered


def test_the_whole_shape() -> None:
    assert pool("node-a", offered(NIC % 1), 7, "u-1") == [{
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": "node-a-pci.outfitter.dev-0",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u-1", "controller": True}],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 7, "resourceSliceCount": 1},
            "devices": [{
                "name": "pci-0000-3a-3b-00-0-vf0",
                "attributes": {
                    "resource.kubernetes.io/pciBusID": {"string": "0000:3b:01.0"},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
                    "resource.kubernetes.io/numaNode": {"int": 3},
                    "vendor": {"string": "8086"},
                    "product": {"string": "1889"},
                    "class": {"string": "020000"},
                    "driver": {"string": "vfio-pci"},
                    "kind": {"string": "VF"},
                    "parent": {"string": "0000:3b:00.0"},
                    "iommuGroup": {"int": 2},
                    "serial": {"string": "S-1"},
                    "revision": {"string": "00"},
                    "resourceClass": {"string": "CUSTOM_PCI_8086_1889"},
                },
            }],
        },
    }]


def test_unknown_values_have_no_attribute() -> None:
    (entry,) = offered("{address: 0000:65:00.0, vendor: 10de, product: 2204}")
    assert isinstance(entry.device, HostDevice)
    entry = AssignableDevice(replace(entry.device, pcie_root=None), entry.members)
    (slice_,) = pool("a", [entry], 1)
    assert "ownerReferences" not in slice_["metadata"]
    assert set(slice_["spec"]["devices"][0]["attributes"]) == {
        "resource.kubernetes.io/pciBusID", "vendor", "product", "class", "driver", "kind", "iommuGroup",
        "revision", "resourceClass"}


def test_nothing_offered_is_no_slice() -> None:
    assert pool("a", [], 1) == []


TOTALS = {
    "more devices than its total": (("pci-0000-3a-3b-00-0-vf0", "pci-0000-3a-3b-00-0-vf1"), 1, {"provider-0000-3b-00-0": 1}),
    "as many": (("pci-0000-3a-3b-00-0-vf0", "pci-0000-3a-3b-00-0-vf1"), 2, {}),
    "one that is not published": (("pci-0000-3a-3b-00-0-vf0", "gone"), 1, {}),
}


@pytest.mark.parametrize(("devices", "total", "sets"), TOTALS.values(), ids=TOTALS)
def test_a_provider_with_more_devices_than_its_total_shares_a_counter(
    devices: tuple[str, ...], total: int, sets: dict[str, int]
) -> None:
    provider = Provider("a_0000:3B:00.0", "u", "a", 1, {"CUSTOM_NIC": Inventory(total)}, frozenset(), devices=devices)
    counters = slices.counters(offered(NIC % 3), (), [provider])
    assert counters.sets == sets
    assert counters.takes == {name: dict.fromkeys(sets, 1) for name in devices if sets}


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (128, [128]), (129, [128, 1]), (300, [128, 128, 44])])
def test_at_most_128_devices_in_a_slice(count: int, sizes: list[int]) -> None:
    parts = pool("a", offered(NIC % count), 1)
    assert [len(entry["spec"]["devices"]) for entry in parts] == sizes
    assert {entry["spec"]["pool"]["resourceSliceCount"] for entry in parts} == {len(sizes)}
    names = [f"a-{DRIVER}-g1-{index}" for index in range(len(sizes))] if len(sizes) > 1 else [f"a-{DRIVER}-0"]
    assert [entry["metadata"]["name"] for entry in parts] == names
    names = [device["name"] for entry in parts for device in entry["spec"]["devices"]]
    assert len(set(names)) == count
    assert all(DNS.fullmatch(name) and len(name) <= 63 for name in names)


def test_members_are_listed_within_the_length_of_an_attribute() -> None:
    functions = ", ".join(f"{{address: 0000:65:00.{number}, vendor: 10de, product: 2204, iommuGroup: 9}}"
                          for number in range(7))
    (entry,) = offered(functions)
    attributes = pool("a", [entry], 1)[0]["spec"]["devices"][0]["attributes"]
    assert attributes["members"] == {"string": ",".join(f"0000:65:00.{number}" for number in range(5))}
    assert attributes["members2"] == {"string": "0000:65:00.5,0000:65:00.6"}
    assert "members3" not in attributes


def test_the_largest_group_stays_within_32_attributes_of_64_characters() -> None:
    functions = ", ".join(
        f"{{address: 0000:65:{slot:02x}.{number}, vendor: 10de, product: 2204, iommuGroup: 9, numa: 3, serial: {'s' * 56}}}"
        for slot in range(3) for number in range(8))
    (entry,) = offered(functions)
    attributes = pool("a", [entry], 1)[0]["spec"]["devices"][0]["attributes"]
    assert len(attributes) <= 32
    assert all(len(value["string"]) <= 64 for value in attributes.values() if "string" in value)
    names = sorted((name for name in attributes if "members" in name), key=lambda name: (len(name), name))
    listed = ",".join(attributes[name]["string"] for name in names)
    assert listed.split(",") == [member.address for member in entry.members]


@pytest.mark.parametrize("node", ["n" * 253, "n" * 221 + "-" * 10 + "n" * 22, "n" * 221 + ".x" * 16, "a.b-c"])
def test_names_are_legal_however_long_the_node(node: str) -> None:
    (entry,) = pool(node, offered(NIC % 1), 1)
    name = entry["metadata"]["name"]
    assert len(name) <= 253
    assert DNS.fullmatch(name)
    assert name.endswith(f"-{DRIVER}-0")
    assert name == pool(node, offered(NIC % 1), 2)[0]["metadata"]["name"]


def test_long_names_that_begin_alike_differ() -> None:
    names = {pool("n" * 250 + end, offered(NIC % 1), 1)[0]["metadata"]["name"] for end in ("a", "b", "c")}
    assert len(names) == 3


def test_a_pool_is_compared_past_generation_and_metadata_only() -> None:
    (one,) = pool("a", offered(NIC % 2), 1)
    (two,) = pool("a", offered(NIC % 2), 2, "u-1")
    before = copy.deepcopy(two)
    two["metadata"] |= {"resourceVersion": "5", "uid": "x"}
    assert slices.same_pool([one], [two])
    assert before["spec"] == two["spec"], "comparing changes nothing"
    changes: tuple[Callable[[Object], object], ...] = (
        lambda spec: spec.update(driver="x"),
        lambda spec: spec.update(nodeName="b"),
        lambda spec: spec["pool"].update(resourceSliceCount=2),
        lambda spec: spec["devices"].pop(),
        lambda spec: spec["devices"][0]["attributes"]["vendor"].update(string="1"),
        lambda spec: spec["devices"][0].update(taints=[{"key": "sick", "effect": "NoSchedule"}]),
    )
    for change in changes:
        other = copy.deepcopy(two)
        change(other["spec"])
        assert not slices.same_pool([one], [other])


def test_a_pool_is_the_same_in_any_order_but_not_with_a_slice_more() -> None:
    parts = pool("a", offered(NIC % 300), 1)
    assert slices.same_pool(parts, parts[::-1])
    assert not slices.same_pool(parts, parts[:2])
    assert not slices.same_pool(parts, [])
    assert slices.same_pool([], [])


def test_device_spec_attributes_are_published() -> None:
    vf, _ = offered(NIC % 2, [{"product_id": "1889", "traits": "gold, HW_NIC_OFFLOAD_RDMA", "live_migratable": "yes"}])
    attributes = slices.describe([vf])[0]["attributes"]
    assert attributes["traits"] == {"string": "CUSTOM_GOLD,HW_NIC_OFFLOAD_RDMA,HW_PCI_LIVE_MIGRATABLE"}
    assert attributes["liveMigratable"] == {"bool": True}
    (net,) = offered(NIC % 1, [{"product_id": "1889", "physical_network": "blue"}])
    attributes = slices.describe([net])[0]["attributes"]
    assert attributes["physicalNetwork"] == {"string": "blue"}
    assert attributes["resourceClass"] == {"string": "SRIOV_NET_VF"}
    assert attributes["traits"] == {"string": "CUSTOM_PHYSNET_BLUE"}


def test_a_physical_function_and_its_virtual_ones_share_a_counter() -> None:
    entries = offered(BOUND % 3, [{"vendor_id": "8086"}])
    devices, counters = pool("a", entries)
    assert counters["spec"]["sharedCounters"] == [{"name": "pci-0000-3a-3b-00-0", "counters": {"functions": {"value": "3"}}}]
    assert "devices" not in counters["spec"]
    taken = [device["consumesCounters"] for device in devices["spec"]["devices"]]
    assert [each[0]["counters"]["functions"]["value"] for each in taken] == ["3", "1", "1", "1"]
    assert {each[0]["counterSet"] for each in taken} == {"pci-0000-3a-3b-00-0"}


@pytest.mark.parametrize("spec", [[{"product_id": "1889"}], [{"product_id": "1592"}]])
def test_without_the_other_there_is_no_counter(spec: list[dict[str, str]]) -> None:
    (part,) = pool("a", offered(BOUND % 3, spec))
    assert all("consumesCounters" not in device for device in part["spec"]["devices"])


@pytest.mark.parametrize("what", ["taints", "consumesCounters"])
def test_at_most_64_devices_in_a_slice_when_one_is_counted_or_tainted(what: str) -> None:
    devices = slices.describe(offered(NIC % 130))
    devices[7][what] = [{}]
    parts = slices.pool("a", DRIVER, devices, {}, generation=1)
    assert [len(part["spec"]["devices"]) for part in parts] == [64, 64, 2]


def test_time_of_a_taint_does_not_change_the_slice() -> None:
    devices = slices.describe(offered(NIC % 1))
    devices[0]["taints"] = [{"key": "a/b", "effect": "NoSchedule"}]
    timed = copy.deepcopy(devices)
    timed[0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert slices.same_pool(slices.pool("a", DRIVER, devices, {}, generation=1),
                            slices.pool("a", DRIVER, timed, {}, generation=2))


def test_a_function_is_remembered_as_it_was_published() -> None:
    (entry,) = offered(NIC % 1)
    assert isinstance(entry.device, HostDevice)
    again = slices.published_function(slices.describe([entry])[0])
    assert again == replace(entry.device, vf_index=None, interfaces=())
    assert slices.published_function({"name": "other"}) is None


def test_long_trait_list_is_split_between_names() -> None:
    names = [f"T{number:02}_{'x' * 40}" for number in range(12)]
    (entry,) = offered(NIC % 1, [{"product_id": "1889", "traits": ",".join(names)}])
    attributes = slices.describe([entry])[0]["attributes"]
    words = [word for key, value in attributes.items() if key.startswith("traits") for word in value["string"].split(",")]
    assert len(attributes) <= 32
    assert words == [f"CUSTOM_T{number:02}_{'X' * 40}" for number in range(5)]


def attributes(entry: AssignableDevice, names: PciIds = slices.NO_PCI_IDS) -> Object:
    found: Object = slices.describe([entry], names)[0]["attributes"]
    return found


MARKS: dict[str, tuple[dict[str, str], Object]] = {
    "nothing is said": ({}, {}),
    "it can move": ({"live_migratable": "yes"}, {"liveMigratable": {"bool": True}}),
    "it cannot": ({"live_migratable": "no"}, {"liveMigratable": {"bool": False}}),
    "for one use": ({"one_time_use": "yes"}, {"oneTimeUse": {"bool": True}}),
    "for many": ({"one_time_use": "no"}, {}),
}


@pytest.mark.parametrize(("says", "published"), MARKS.values(), ids=MARKS)
def test_yes_and_no(says: dict[str, str], published: Object) -> None:
    (entry,) = offered(NIC % 0, [{"product_id": "1592", **says}])
    found = attributes(entry)
    assert {key: found[key] for key in ("liveMigratable", "oneTimeUse") if key in found} == published


def test_zero_is_published() -> None:
    (entry,) = offered("{address: 0000:65:00.0, vendor: 10de, product: 2204}")
    assert isinstance(entry.device, HostDevice)
    found = attributes(AssignableDevice(replace(entry.device, numa=0, iommu_group=0), entry.members))
    assert found["resource.kubernetes.io/numaNode"] == found["iommuGroup"] == {"int": 0}


def test_human_readable_names() -> None:
    (entry,) = offered(NIC % 0, [{"product_id": "1592"}])
    long = "Ethernet Controller E810-C for QSFP, which is sold under many other names as well"
    found = attributes(entry, PciIds(f"8086  Intel\n\t1592  {long}\nC 02  Network\n\t00  Ethernet\n".encode()))
    assert [found[key]["string"] for key in ("vendorName", "productName", "className")] == ["Intel", long[:64], "Ethernet"]


def test_a_mediated_device() -> None:
    (entry,) = parse_entries([{"traits": "silver,gold"}], report=False).entries
    made = Mdev(uuid="4b20d080-1b54-4048-85b3-a6a62d165c01", type_id="nvidia-63", type_name="GRID P4-1Q", device_api="vfio-pci",
                parent="0000:65:00.0", numa=1, pcie_root="pci0000:64", iommu_group=9, memory=3 << 30,
                vendor="10de", product="1bb3", class_code="030200")
    assert slices.describe([AssignableDevice(made, (), entry)]) == [{
        "name": "mdev-4b20d080-1b54-4048-85b3-a6a62d165c01",
        "attributes": {
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:64"},
            "resource.kubernetes.io/numaNode": {"int": 1},
            "vendor": {"string": "10de"},
            "product": {"string": "1bb3"},
            "class": {"string": "030200"},
            "mdevUUID": {"string": "4b20d080-1b54-4048-85b3-a6a62d165c01"},
            "mdevType": {"string": "nvidia-63"},
            "mdevTypeName": {"string": "GRID P4-1Q"},
            "deviceApi": {"string": "vfio-pci"},
            "kind": {"string": "MDEV"},
            "parent": {"string": "0000:65:00.0"},
            "iommuGroup": {"int": 9},
            "traits": {"string": "CUSTOM_GOLD,CUSTOM_SILVER"},
        },
        "capacity": {"memory": {"value": "3072Mi"}},
    }]
    bare = slices.describe([AssignableDevice(replace(made, memory=None))])[0]
    assert "capacity" not in bare
    assert "traits" not in bare["attributes"]
    assert slices.published_function(bare) is None, "it is no PCI function"
    assert not slices.is_virtual(bare)


def test_trait_longer_than_a_string_attribute_is_skipped() -> None:
    words = ["A" * 57, "B" * 58, "C"]
    (entry,) = offered(NIC % 0, [{"product_id": "1592", "traits": ",".join(words)}])
    found = attributes(entry)
    assert [found[key]["string"] for key in found if key.startswith("traits")] == [f"CUSTOM_{'A' * 57}", "CUSTOM_C"]


@pytest.mark.parametrize(("length", "lines"), {55: ["CUSTOM_A,CUSTOM_B"], 56: ["CUSTOM_A", "CUSTOM_B"]}.items())
def test_the_comma_counts_too(length: int, lines: list[str]) -> None:
    """Two words of 8 and `length` characters, of which a text takes 64 with the comma."""
    second = f"B{'x' * (length - 8)}"
    (entry,) = offered(NIC % 0, [{"product_id": "1592", "traits": f"A,{second}"}])
    found = [value["string"] for key, value in attributes(entry).items() if key.startswith("traits")]
    assert [line.replace("X", "") for line in found] == lines
    assert all(len(line) <= 64 for line in found)


def test_at_most_8_counter_sets_in_a_slice() -> None:
    cards = ", ".join(f"{{address: 0000:{bus:x}:00.0, vendor: 8086, product: 1592, class: 020000, driver: vfio-pci, "
                      "vfs: {count: 1, product: 1889}}" for bus in range(0x30, 0x39))
    parts = pool("a", offered(cards, [{"vendor_id": "8086"}]))
    assert [len(part["spec"].get("sharedCounters", ())) for part in parts] == [0, 8, 1]
    assert {part["spec"]["pool"]["resourceSliceCount"] for part in parts} == {3}
    names = [each["name"] for part in parts for each in part["spec"].get("sharedCounters", ())]
    assert len(set(names)) == 9
    taken = [device["consumesCounters"][0]["counterSet"] for device in parts[0]["spec"]["devices"]]
    assert sorted(taken) == sorted(names * 2), "each card and its function take of their own"


ODD: dict[str, Object] = {
    "no attributes": {"name": "x", "attributes": None},
    "no address": {"name": "x", "attributes": {"kind": {"string": "VF"}}},
    "an address that is no text": {"name": "x", "attributes": {
        "kind": {"string": "VF"}, "resource.kubernetes.io/pciBusID": {"int": 7}}},
    "no kind": {"name": "x", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}}},
    "an empty kind": {"name": "x", "attributes": {
        "kind": {}, "resource.kubernetes.io/pciBusID": {"string": "0000:65:00.0"}}},
}


@pytest.mark.parametrize("published", ODD.values(), ids=ODD)
def test_what_was_published_by_others_is_no_function_of_ours(published: Object) -> None:
    assert slices.published_function(published) is None
    assert not slices.is_virtual(published)


def test_virtual_functions_are_distinguishable() -> None:
    parent, child = slices.describe(offered(BOUND % 1, [{"vendor_id": "8086"}]))
    assert (slices.is_virtual(parent), slices.is_virtual(child)) == (False, True)


class Wordy(PciIds):
    """Knows everything, at length."""

    def vendor_and_product(self, vendor: str | None, product: str | None) -> tuple[str | None, str | None]:
        return "v" * 200, "p" * 200

    def class_name(self, class_code: str | None) -> str | None:
        return "c" * 200


def test_device_has_at_most_32_attributes() -> None:
    """Every field, names, the largest group, all traits that fit, every flag and a capacity."""
    functions = ", ".join(
        f"{{address: 0000:65:{slot:02x}.{number}, vendor: 10de, product: 2204, iommuGroup: 9, numa: 3, serial: s-1}}"
        for slot in range(3) for number in range(8))
    traits = ",".join(f"t{number:02}{'x' * 40}" for number in range(9))
    (entry,) = offered(functions, [{"vendor_id": "10de", "traits": traits, "live_migratable": "no", "one_time_use": "yes",
                                    "remote_managed": "yes", "physical_network": "blue"}])
    assert isinstance(entry.device, HostDevice)
    whole = replace(entry.device, parent="0000:64:00.0", interfaces=("ens1",), speed=100_000)
    (said,) = slices.describe([AssignableDevice(whole, entry.members, entry.entry)], Wordy(None))
    assert len(said["attributes"]) + len(said["capacity"]) == 32
    assert all(len(value["string"]) <= 64 for value in said["attributes"].values() if "string" in value)


def test_values_that_do_not_fit_are_skipped_whole_and_reported() -> None:
    long = "a" * 80
    (entry,) = offered(NIC % 1, [{"product_id": "1889", "resource_class": long, "traits": long}])
    (said,) = slices.describe([entry], Wordy(None))
    assert "resourceClass" not in said["attributes"], "a part of a class is another class"
    assert "traits" not in said["attributes"]
    assert said["attributes"]["vendorName"] == {"string": "v" * 64}
    [sentence] = slices.truncation_warnings([entry, entry])
    assert f"CUSTOM_{'A' * 80}" in sentence
    assert slices.truncation_warnings(offered(NIC % 2, [{"product_id": "1889", "traits": "gold"}])) == []
