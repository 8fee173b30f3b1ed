"""Where devices sit in the guest: every device has an address of its own, and what is added at the end moves none."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api.kinds import Object
from outfitter.errors import StartFailed
from outfitter.launcher.domain_options import DomainOptions
from tests.launcher.domain_cases import PASSED, SITUATIONS, Situation, disks, got, instance, plugged, wanted


def machine(*counts: int, nodes: tuple[int, ...] = ()) -> Situation:
    """A VM with so many GPUs, host devices, interfaces and disks, all tagged; with `nodes` they are spread over those of
    the host in turn."""
    gpus, host_devices, interfaces, disks = counts

    def entries(list_: str, count: int, bus: int) -> list[Object]:
        return [got(f"{list_}{number}", pciAddress=f"0000:{bus:02x}:{number:02x}.0",
                    **({"numaNode": nodes[number % len(nodes)]} if nodes else {})) for number in range(count)]

    nics = [{"name": f"nic{number}", "bridge": {}, "tag": f"nic{number}"} for number in range(interfaces)]
    return Situation(instance(
        {"gpus": [wanted(f"gpu{number}", tag=f"gpu{number}") for number in range(gpus)],
         "hostDevices": [wanted(f"dev{number}", tag=f"dev{number}") for number in range(host_devices)], "interfaces": nics,
         "disks": [{"name": f"disk{number}", "disk": {"bus": "virtio"}, "tag": f"disk{number}"} for number in range(disks)]},
        {"gpuStatuses": entries("gpu", gpus, 0x65), "hostDeviceStatuses": entries("dev", host_devices, 0x3B)},
        cpu={"cores": 4, **(PASSED if nodes else {})},
        spec={"networks": [{"name": nic["name"], "multus": {"networkName": nic["name"]}} for nic in nics],
              "volumes": [{"name": f"disk{number}", "hostDisk": {"path": "/x"}} for number in range(disks)]}))


def addresses(situation: Situation) -> dict[str, str]:
    """The guest's metadata: tag -> address."""
    return {one["tags"][0]: one["address"] for one in json.loads(situation.build().guest_metadata)["devices"]}


def drawn(situation: Situation) -> dict[str, str]:
    """The domain's addresses: alias -> address."""
    root = ET.fromstring(situation.build().xml)
    found = ((device.find("alias"), device.find("address[@type='pci']")) for device in root.iterfind("devices/*"))
    return {alias.get("name", ""): ":".join(address.get(part, "") for part in PARTS)
            for alias, address in found if alias is not None and address is not None}


PARTS = ("bus", "slot", "function")
COUNTS = st.tuples(*[st.integers(0, 7)] * 4)


@settings(max_examples=60, deadline=None)
@given(COUNTS, st.integers(0, 3), st.sampled_from([(), (0, 1), (1,), (0, 1, 5)]))
def test_one_more_at_the_end_of_a_list_moves_nothing(counts: tuple[int, ...], which: int, nodes: tuple[int, ...]) -> None:
    before = addresses(machine(*counts, nodes=nodes))
    after = addresses(machine(*(count + (number == which) for number, count in enumerate(counts)), nodes=nodes))
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    assert len(set(after.values())) == len(after), "one address twice"


def test_an_interface_that_becomes_absent_moves_no_other() -> None:
    given_ = machine(0, 0, 3, 0).instance
    before = addresses(Situation(given_))
    given_["spec"]["domain"]["devices"]["interfaces"][0]["state"] = "absent"
    assert addresses(Situation(given_)) == {name: before[name] for name in ("nic1", "nic2")}


@settings(max_examples=40, deadline=None)
@given(COUNTS)
def test_without_numa_nodes_both_have_the_same_layout(counts: tuple[int, ...]) -> None:
    situation = machine(*counts)
    told = {tuple(int(part, 16) for part in re.split("[:.]", text)[1:]) for text in addresses(situation).values()}
    assert told == {tuple(int(part, 16) for part in text.split(":")) for text in drawn(situation).values()}


def on_node(node: int, interfaces: int, **last: Any) -> Situation:
    """A VM with a GPU of a node and interfaces of none."""
    given_ = machine(1, 0, interfaces, 0, nodes=(node,)).instance
    given_["spec"]["domain"]["devices"]["interfaces"][-1] |= last
    return Situation(given_)


@pytest.mark.parametrize(("node", "bus", "most"), [(2, 0xA0, 40), (3, 0x80, 32), (4, 0x60, 24), (5, 0x40, 16)])
def test_buses_of_a_node_are_not_those_of_the_guests_own_ports(node: int, bus: int, most: int) -> None:
    told = addresses(on_node(node, most))
    assert max(address for name, address in told.items() if name != "gpu0") < f"0000:{bus:02x}" < told["gpu0"]
    assert addresses(on_node(node, 1, pciAddress=f"0000:{bus - 1:02x}:00.0"))["nic0"] == f"0000:{bus - 1:02x}:00.0"
    for beyond in (on_node(node, most + 1), on_node(node, 1, pciAddress=f"0000:{bus:02x}:00.0")):
        with pytest.raises(StartFailed, match=r"spec\.domain\.devices\.interfaces\[\d+\]: (bus|there is no PCI port)"):
            beyond.build()


@settings(max_examples=40, deadline=None)
@given(COUNTS, st.sampled_from([(), (0, 1), (2, 3, 4)]))
def test_every_bus_is_there_once_and_before_what_is_behind_it(counts: tuple[int, ...], nodes: tuple[int, ...]) -> None:
    root = ET.fromstring(machine(*counts, nodes=nodes).build().xml)
    controllers = [each for each in root.iterfind("devices/controller") if each.get("type") == "pci"]
    assert [int(each.get("index", "")) for each in controllers] == list(range(len(controllers))), "libvirt would fill a gap"
    places = [tuple(address.get(part, "") for part in PARTS) for address in root.iterfind("devices/*/address[@type='pci']")]
    assert len(set(places)) == len(places)
    for controller in controllers[1:]:
        address = controller.find("address")
        assert address is not None
        assert int(address.get("bus", ""), 16) < int(controller.get("index", ""))
    for bus, _, _ in places:
        assert int(bus, 16) < max(len(controllers), 1)


def test_libvirt_has_no_controller_to_add_for_disks() -> None:
    """libvirt adds one for each that a disk names without a definition, on a port that moves buses. Letters of the disks are
    shared by all buses, places on their controllers are not."""
    root = ET.fromstring(SITUATIONS["many-disks"].build().xml)
    there = {(each.get("type"), each.get("index")) for each in root.iterfind("devices/controller[address]")}
    places = []
    for each in root.iterfind("devices/disk"):
        target, address = each.find("target"), each.find("address[@type='drive']")
        assert target is not None
        assert address is not None
        places.append((target.get("bus"), address.get("controller"), address.get("unit")))
    assert sorted(places) == sorted([*(("sata", str(number // 6), str(number % 6)) for number in range(8)),
                                     *(("scsi", "0", str(number)) for number in range(8))])
    assert {place[:2] for place in places} <= there


def test_devices_are_near_their_node() -> None:
    """By bus numbers: 0xe0 and up is the first node's, 0xc0 and up the second's."""
    told = addresses(SITUATIONS["near-and-far"])
    assert told == {"train": "0000:c7:00.0", "uplink": "0000:c2:00.0"}
    document = json.loads(SITUATIONS["near-and-far"].build().guest_metadata)
    assert {one["numaNode"] for one in document["devices"]} == {1}


def test_a_node_takes_eight_of_a_list_wherever_in_the_list_they_are() -> None:
    told = addresses(machine(16, 0, 0, 0, nodes=(0, 1)))
    assert len(set(told.values())) == 16
    assert {f"gpu{number}": told[f"gpu{number}"] for number in range(8)} == addresses(machine(8, 0, 0, 0, nodes=(0, 1)))
    assert [told[f"gpu{number}"] for number in (8, 9, 14, 15)] == [
        "0000:e7:00.0", "0000:c3:00.0", "0000:ff:00.0", "0000:db:00.0"], "what the other node's left free"


def test_numa_nodes_may_be_passed() -> None:
    situation = machine(1, 0, 0, 0, nodes=(1,))
    built = Situation(situation.instance, options=DomainOptions(host_nodes=(0, 1))).build()
    assert addresses(situation) == {"gpu0": "0000:c3:00.0"}, "a node that is added does not move it"
    cells = [(cell.get("cpus"), cell.get("memory")) for cell in ET.fromstring(built.xml).iterfind("cpu/numa/cell")]
    assert cells == [("0-1", str(512 << 20)), ("2-3", str(512 << 20))]
    assert '"address": "0000:c3:00.0"' in built.guest_metadata


def test_a_node_without_cpus_has_memory_alone() -> None:
    given_ = machine(3, 0, 0, 0, nodes=(0, 1, 2)).instance
    given_["spec"]["domain"]["cpu"] = {"cores": 2, **PASSED}
    cells = list(ET.fromstring(Situation(given_).build().xml).iterfind("cpu/numa/cell"))
    assert [cell.get("cpus") for cell in cells] == ["0", "1", None]


def nic(address: str, **more: Any) -> Object:
    return {"name": "a", "bridge": {}, "pciAddress": address, "tag": "a", **more}


def with_nic(address: str, *others: Object, **domain: Any) -> Situation:
    return Situation(instance({"interfaces": [nic(address), *others], **domain.pop("devices", {})}, spec={
        "networks": [{"name": name, "multus": {"networkName": name}} for name in "abcdefgh"]}, **domain))


@pytest.mark.parametrize("address", ["0000:01:00.0", "0000:0a:00.0", "0000:81:00.0", "0000:00:05.0", "0000:06:03.0",
                                     "0000:81:01.0", "0000:00:01.0"])
def test_an_address_of_the_user_is_kept(address: str) -> None:
    situation = with_nic(address)
    assert addresses(situation) == {"a": address}
    bus, slot = address[5:7], address[8:10]
    assert drawn(situation) == {"ua-a": f"0x{bus}:0x{slot}:0x0"}
    root = ET.fromstring(situation.build().xml)
    buses = [(each.get("index"), each.get("model")) for each in root.iterfind("devices/controller[@type='pci']")]
    assert [index for index, _ in buses] == [str(number) for number in range(len(buses))]
    model = "pcie-root" if bus == "00" else "pcie-root-port" if slot == "00" else "pcie-to-pci-bridge"
    assert buses[int(bus, 16)][1] == model


def test_two_functions_of_one_slot() -> None:
    situation = with_nic("0000:05:00.0", {**nic("0000:05:00.1"), "name": "b", "tag": "b"})
    assert addresses(situation) == {"a": "0000:05:00.0", "b": "0000:05:00.1"}
    assert situation.build().xml.count('bus="0x05" slot="0x00" function="0x0" multifunction="on"') == 1


def card(*others: Object, **entry: Any) -> Situation:
    """A GPU of two functions, and interfaces."""
    members = ["0000:65:00.0", "0000:65:00.1"]
    return Situation(instance({"gpus": [wanted("g", **entry)], "interfaces": list(others)},
                              {"gpuStatuses": [got("g", pciAddress=members[0], members=members)]},
                              spec={"networks": [{"name": "a", "pod": {}}]}))


def test_a_card_behind_the_first_function_of_another() -> None:
    situation = card(nic("0000:05:00.0"), pciAddress="0000:05:00.1")
    assert drawn(situation) == {"ua-a": "0x05:0x00:0x0", "ua-dra-gpu-g": "0x05:0x00:0x1", "ua-dra-gpu-g-1": "0x05:0x00:0x2"}


def test_a_function_beside_the_random_number_generator() -> None:
    assert addresses(with_nic("0000:00:1e.1", devices={"rng": {}})) == {"a": "0000:00:1e.1"}


OTHERS = [{"name": name, "bridge": {}} for name in "bcd"]
CLASHES: dict[str, tuple[Situation, str]] = {
    "taken by the order": (with_nic("0000:05:00.0", {"name": "b", "bridge": {}}),
                           "spec.domain.devices.interfaces[1]: the guest address 0000:05:00.0 is taken by "
                           "spec.domain.devices.interfaces[0]"),
    "wanted twice": (with_nic("0000:0a:00.0", {**nic("0000:0a:00.0"), "name": "b"}), "0000:0a:00.0 is taken by"),
    "the second function of a card": (card(nic("0000:03:00.1")),
                                      "spec.domain.devices.interfaces[0]: the guest address 0000:03:00.1 is taken by "
                                      "spec.domain.devices.gpus[0]"),
    "more functions than a slot has left": (card(pciAddress="0000:05:00.7"),
                                            "spec.domain.devices.gpus[0]: the 2 functions of the device are too many for "
                                            "0000:05:00.7: a slot has functions 0 to 7, so choose 0000:05:00.6 at most"),
    "a function alone": (with_nic("0000:05:00.1"),
                         "spec.domain.devices.interfaces[0]: a guest does not find 0000:05:00.1 without a device at "
                         "0000:05:00.0: choose that address, or assign it to another device"),
    "a function of a slot alone": (with_nic("0000:00:1e.1"), "without a device at 0000:00:1e.0"),
    "disks on sata": (disks(sata=31), "spec.domain.devices.disks: a VM has at most 30 disks on sata, including the "
                                      "config drive: use virtio or scsi for the others"),
    "no address": (with_nic("eth0"), "interfaces[0]: eth0 is not a valid address of a guest device"),
    "another domain": (with_nic("0001:0a:00.0"), "is not a valid address of a guest"),
    "a slot beyond": (with_nic("0000:0a:20.0"), "is not a valid address of a guest"),
    "a bus beyond": (with_nic("0000:f0:00.0"), "a guest has the buses 00 to a0"),
    "the chipset": (with_nic("0000:00:1f.0"), "used by the chipset"),
    "the ports": (with_nic("0000:00:02.0", *OTHERS), "needed for ports of this VM"),
    "the random number generator": (with_nic("0000:00:1e.0", devices={"rng": {}}), "taken by the random number generator"),
    "an expander": (Situation({**with_nic("0000:00:16.0").instance, "spec": {
        **with_nic("0000:00:16.0").instance["spec"], "domain": {
            "cpu": PASSED, "devices": {"interfaces": [nic("0000:00:16.0")]}}}}), "taken by the expander bus"),
    "a slot behind a port in use": (with_nic("0000:06:03.0", *OTHERS), "needed for the bus of another device"),
    "a slot of the first bus": (with_nic("0000:01:03.0"), "bus 01 has slot 00 alone"),
    "too many": (machine(41, 0, 0, 0), "there is no PCI port left for it: a list may have 40 devices"),
    "too many on a node": (machine(9, 0, 0, 0, nodes=(0,)), "there is no PCI port left for it on NUMA node 0: a list may "
                           "have 8 devices there"),
    "the bus of a node": (on_node(3, 2, pciAddress="0000:83:00.0"),
                          "spec.domain.devices.interfaces[1]: bus 83 is reserved for NUMA node 3, of which this VM has "
                          "devices: other devices have the buses up to 7f"),
    "too many beside a node": (on_node(5, 18), "interfaces[16]: bus 41 is reserved for NUMA node 5, of which this VM has "
                                               "devices: other devices have the buses up to 3f, 16 of a list"),
    "more than 256 buses": (machine(8, 8, 0, 40, nodes=(0, 1, 2, 3)),
                            "disks[31]: bus 80 is reserved for NUMA node 3, of which this VM has devices: other devices have "
                            "the buses up to 7f, 31 of a list"),
    "too many nodes": (machine(7, 0, 0, 0, nodes=tuple(range(7))), "7 nodes are more than the 6"),
    "nodes of an older machine type": (Situation(instance(cpu=PASSED, machine={"type": "pc"})), "has no PCI Express to expose"),
    "a tag of an older machine type": (
        Situation(instance({"gpus": [wanted("g", tag="t")]}, {"gpuStatuses": [got("g", pciAddress="0000:65:00.0")]},
                           machine={"type": "pc"})), "spec.domain.devices.gpus[0].tag"),
    "no address on an older machine type": (Situation(instance(
        {"interfaces": [nic("x", tag=None)]}, spec={"networks": [{"name": "a", "pod": {}}]}, machine={"type": "pc"})),
        "x is not a PCI address"),
}


@pytest.mark.parametrize("name", CLASHES)
def test_clashes(name: str) -> None:
    situation, says = CLASHES[name]
    with pytest.raises(StartFailed) as caught:
        situation.build()
    assert says in str(caught.value)


def test_functions_of_a_card_keep_their_numbers() -> None:
    members = [f"0000:65:00.{number}" for number in (0, 1, 3)]
    given_ = instance({"gpus": [wanted("g"), wanted("h")]}, {"gpuStatuses": [
        got("g", pciAddress=members[0], members=members), got("h", pciAddress="0000:66:00.0")]})
    assert drawn(Situation(given_)) == {"ua-dra-gpu-g": "0x03:0x00:0x0", "ua-dra-gpu-g-1": "0x03:0x00:0x1",
                                        "ua-dra-gpu-g-2": "0x03:0x00:0x3", "ua-dra-gpu-h": "0x07:0x00:0x0"}


def test_functions_of_a_group_are_counted_and_a_port_takes_eight() -> None:
    members = [f"0000:65:{number:02x}.1" for number in range(9)]
    given_ = instance({"gpus": [wanted("g"), wanted("h")]}, {"gpuStatuses": [
        got("g", pciAddress=members[2], members=members), got("h", pciAddress="0000:66:00.0")]})
    places = drawn(Situation(given_))
    assert [places[f"ua-dra-gpu-g{suffix}"] for suffix in ("", "-1", "-7", "-8")] == [
        "0x03:0x00:0x0", "0x03:0x00:0x1", "0x03:0x00:0x7", "0x07:0x00:0x0"]
    assert places["ua-dra-gpu-h"] == "0x0b:0x00:0x0"


def test_aliases_are_each_their_own() -> None:
    given_ = instance({"gpus": [wanted("g"), wanted("g-1"), wanted("g.1"), wanted("g_1")]}, {"gpuStatuses": [
        got("g", pciAddress="0000:65:00.0"), got("g", pciAddress="0000:65:00.1"), got("g-1", pciAddress="0000:66:00.0"),
        got("g.1", pciAddress="0000:67:00.0"), got("g_1", pciAddress="0000:68:00.0")]})
    assert list(drawn(Situation(given_))) == ["ua-dra-gpu-g", "ua-dra-gpu-g-1_", "ua-dra-gpu-g-1", "ua-dra-gpu-g_1",
                                              "ua-dra-gpu-g_1_"], "an entry's own name goes before a second device of another"


def test_a_disk_does_not_take_the_alias_of_a_device() -> None:
    given_ = instance({"gpus": [plugged("a")], "disks": [{"name": "gpu-a", "disk": {"bus": "virtio"}}]},
                      spec={"volumes": [{"name": "gpu-a", "hostDisk": {"path": "/x"}}]})
    assert list(drawn(Situation(given_, {"PCI_RESOURCE_ACME_TEST_CARD": "0000:65:00.0"}))) == ["ua-gpu-a_", "ua-gpu-a"]


def test_guest_metadata() -> None:
    assert json.loads(SITUATIONS["networks"].build().guest_metadata) == {
        "uuid": "8d1f0a52-3c1e-4f0b-9d35-0f6f5b7f2a11", "instance_id": "blue.here", "hostname": "blue", "devices": [
            {"type": "nic", "bus": "pci", "address": "0000:05:00.0", "tags": ["uplink"], "mac": "02:00:00:00:00:0a"},
            {"type": "nic", "bus": "pci", "address": "0000:09:00.0", "tags": ["fast"], "mac": "02:00:00:00:00:0b"}]}
    disks = json.loads(SITUATIONS["disks"].build().guest_metadata)["devices"]
    assert disks == [{"type": "disk", "bus": "pci", "address": "0000:04:00.0", "tags": ["root"], "serial": "R1"}]
