"""Published slices: their shape, their limits, and when there is nothing to write."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from outfitter.api.kinds import Object
from outfitter.inventory import offer, scan, simulate, slices
from outfitter.inventory.offer import Offered

DRIVER = "pci.outfitter.dev"
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def offered(pci: str) -> tuple[Offered, ...]:
    host = simulate.parse(f"hosts: [{{name: a, numa: [{{id: 3, cpus: 0-3, memory: 1Gi}}], pci: [{pci}]}}]").hosts[0]
    return offer.offer(scan.scan(host.tree()).devices).offered


NIC = ("{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, serial: S-1, numa: 3, "
       "pcieRoot: pci0000:3a, vfs: {count: %d, product: 1889}}")


def test_the_whole_shape() -> None:
    assert slices.slices("node-a", DRIVER, offered(NIC % 1), generation=7, node_uid="u-1") == [{
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
                "name": "pci-0000-3b-01-0",
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
                },
            }],
        },
    }]


def test_what_is_not_known_is_not_said() -> None:
    (entry,) = offered("{address: 0000:65:00.0, vendor: 10de, product: 2204}")
    entry = Offered(replace(entry.device, pcie_root=None), entry.members)
    (slice_,) = slices.slices("a", DRIVER, [entry], 1)
    assert "ownerReferences" not in slice_["metadata"]
    assert set(slice_["spec"]["devices"][0]["attributes"]) == {
        "resource.kubernetes.io/pciBusID", "vendor", "product", "class", "driver", "kind", "iommuGroup"}


def test_nothing_offered_is_no_slice() -> None:
    assert slices.slices("a", DRIVER, [], 1) == []


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (128, [128]), (129, [128, 1]), (300, [128, 128, 44])])
def test_at_most_128_devices_in_a_slice(count: int, sizes: list[int]) -> None:
    pool = slices.slices("a", DRIVER, offered(NIC % count), 1)
    assert [len(entry["spec"]["devices"]) for entry in pool] == sizes
    assert {entry["spec"]["pool"]["resourceSliceCount"] for entry in pool} == {len(sizes)}
    assert [entry["metadata"]["name"] for entry in pool] == [f"a-{DRIVER}-{index}" for index in range(len(sizes))]
    names = [device["name"] for entry in pool for device in entry["spec"]["devices"]]
    assert len(set(names)) == count
    assert all(DNS.fullmatch(name) and len(name) <= 63 for name in names)


def test_members_are_listed_within_the_length_of_an_attribute() -> None:
    functions = ", ".join(f"{{address: 0000:65:00.{number}, vendor: 10de, product: 2204, iommuGroup: 9}}"
                          for number in range(7))
    (entry,) = offered(functions)
    attributes = slices.slices("a", DRIVER, [entry], 1)[0]["spec"]["devices"][0]["attributes"]
    assert attributes["members"] == {"string": ",".join(f"0000:65:00.{number}" for number in range(5))}
    assert attributes["members2"] == {"string": "0000:65:00.5,0000:65:00.6"}
    assert "members3" not in attributes


def test_the_largest_group_stays_within_32_attributes_of_64_characters() -> None:
    functions = ", ".join(
        f"{{address: 0000:65:{slot:02x}.{number}, vendor: 10de, product: 2204, iommuGroup: 9, numa: 3, serial: {'s' * 56}}}"
        for slot in range(8) for number in range(8))
    (entry,) = offered(functions)
    attributes = slices.slices("a", DRIVER, [entry], 1)[0]["spec"]["devices"][0]["attributes"]
    assert len(attributes) <= 32
    assert all(len(value["string"]) <= 64 for value in attributes.values() if "string" in value)
    names = sorted((name for name in attributes if "members" in name), key=lambda name: (len(name), name))
    listed = ",".join(attributes[name]["string"] for name in names)
    assert listed.split(",") == [member.address for member in entry.members]


@pytest.mark.parametrize("node", ["n" * 253, "n" * 221 + "-" * 10 + "n" * 22, "n" * 221 + ".x" * 16, "a.b-c"])
def test_names_are_legal_however_long_the_node(node: str) -> None:
    (entry,) = slices.slices(node, DRIVER, offered(NIC % 1), 1)
    name = entry["metadata"]["name"]
    assert len(name) <= 253
    assert DNS.fullmatch(name)
    assert name.endswith(f"-{DRIVER}-0")
    assert name == slices.slices(node, DRIVER, offered(NIC % 1), 2)[0]["metadata"]["name"]


def test_long_names_that_begin_alike_differ() -> None:
    names = {slices.slices("n" * 250 + end, DRIVER, offered(NIC % 1), 1)[0]["metadata"]["name"] for end in ("a", "b", "c")}
    assert len(names) == 3


def test_a_pool_is_compared_past_generation_and_metadata_only() -> None:
    (one,) = slices.slices("a", DRIVER, offered(NIC % 2), 1)
    (two,) = slices.slices("a", DRIVER, offered(NIC % 2), 2, "u-1")
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
    pool = slices.slices("a", DRIVER, offered(NIC % 300), 1)
    assert slices.same_pool(pool, pool[::-1])
    assert not slices.same_pool(pool, pool[:2])
    assert not slices.same_pool(pool, [])
    assert slices.same_pool([], [])
