"""The provider tree: how devices are counted, and how it is stored."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from outfitter.api import providers as stored_form
from outfitter.api.kinds import Object
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import StartupRefused
from outfitter.inventory import assignable, placement_names, providers
from outfitter.inventory.assignable import AssignableDevice
from outfitter.inventory.config import HostSettings
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.providers import MANAGED, Plan
from tests.inventory.provider_hosts import (
    CARD,
    GPU,
    GPUS,
    LISTED,
    ONE,
    PF,
    SLOT,
    VF0,
    VFS,
    Spec,
    card,
    function,
    gpu,
    planned,
    vf,
)
from tests.inventory.spec_entries import parse_entries

# -- a tree where none was


def test_a_new_tree() -> None:
    spec: Spec = [{"product_id": "1889", "traits": "gold"}, {"product_id": "2204", "resource_class": "PGPU"}]
    plan = planned([*card(2), gpu()], spec)
    assert plan == Plan((
        Provider(CARD, providers.provider_uuid(CARD), "a", 0, {VFS: Inventory(2)}, frozenset({"CUSTOM_GOLD", MANAGED}),
                 frozenset({"CUSTOM_GOLD"}), ("nic-vf0", "nic-vf1")),
        Provider(SLOT, providers.provider_uuid(SLOT), "a", 0, {"PGPU": Inventory(1)}, frozenset({MANAGED}), frozenset(),
                 ("gpu",)),
    ))
    assert uuid.UUID(plan.providers[0].uuid) != uuid.UUID(plan.providers[1].uuid)
    assert str(uuid.UUID(providers.provider_uuid("b"))) == providers.provider_uuid("b") != providers.provider_uuid("c")


def test_each_host_has_providers_of_its_own() -> None:
    settings = HostSettings(device_spec=parse_entries(LISTED, report=True), report_in_placement=True)
    offered = assignable.assignable(card(1), spec=settings.device_spec).offered
    [one], [two] = (providers.plan(host, settings, offered).providers for host in ("a", "b"))
    assert (one.name, one.parent, two.name, two.parent) == (CARD, "a", f"b_{PF.upper()}", "b")
    assert one.uuid != two.uuid


def test_what_no_entry_lists_and_mediated_devices_are_not_counted() -> None:
    mdev = Mdev(uuid="4b20d080-1b54-4048-85b3-a6a62d165c01", type_id="nvidia-63", type_name="", device_api="", parent=GPU,
                numa=0, pcie_root=None, iommu_group=9, memory=None)
    settings = HostSettings(
        device_spec=parse_entries([{"product_id": "2204"}], report=True), report_in_placement=True
    )
    assert settings.device_spec is not None
    offered = [AssignableDevice(gpu()), AssignableDevice(mdev, (), settings.device_spec.entries[0])]
    assert providers.plan("a", settings, offered) == Plan(())
    assert providers.plan("a", replace(settings, device_spec=None), offered) == Plan(())


def test_addresses_stand_in_capitals_in_the_name_of_a_provider() -> None:
    assert providers.provider_name("Host-1", gpu("0000:af:00.0")) == "Host-1_0000:AF:00.0"
    child = card(1)[1]
    assert providers.provider_name("a", child) == CARD
    assert providers.provider_name("a", replace(child, parent=None)) == f"a_{VF0.upper()}"
    assert providers.provider_name("a", gpu(parent=PF)) == SLOT, "only a virtual function is counted on its parent"


# -- classes and traits

KINDS = {
    # kind -> address, class of a network, traits that it adds
    FunctionKind.VF: (VF0, "SRIOV_NET_VF", set[str]()),
    FunctionKind.VENDOR_VF: (VF0, "SRIOV_NET_VF", set[str]()),
    FunctionKind.VDPA: (VF0, "VDPA_NETDEV", set[str]()),
    FunctionKind.PF: (PF, "PCI_NETDEV", {"HW_NIC_SRIOV"}),
    FunctionKind.PCI: (GPU, "PCI_NETDEV", set[str]()),
}


@pytest.mark.parametrize("kind", FunctionKind)
def test_a_device_of_a_physical_network(kind: FunctionKind) -> None:
    address, class_, more = KINDS[kind]
    devices = card(1, kind) if kind.is_vf else [function(address, "one", kind)]
    spec: Spec = [{"address": address, "physical_network": "phys-net 1", "traits": "gold"}]
    assert planned(devices, spec).providers == (), "Neutron counts it, unless it is configured to"
    [provider] = planned(devices, spec, report_networks=True).providers
    assert provider.inventories == {class_: Inventory(1)}
    assert provider.traits == {"CUSTOM_GOLD", "CUSTOM_PHYSNET_PHYS_NET_1", MANAGED} | more
    assert provider.configured == {"CUSTOM_GOLD", "CUSTOM_PHYSNET_PHYS_NET_1"}
    [plain] = planned(devices, [{"address": address}], report_networks=True).providers
    assert "NET" not in str(plain.inventories)
    assert plain.traits == {MANAGED}


def test_devices_of_networks_are_skipped_one_at_a_time() -> None:
    spec: Spec = [{"address": VF0, "physical_network": "blue"}, {"product_id": "1889"}, {"product_id": "2204"}]
    plan = planned([*card(3), gpu()], spec)
    assert {each.name: each.devices for each in plan.providers} == {CARD: ("nic-vf1", "nic-vf2"), SLOT: ("gpu",)}


def test_every_kind_of_function_has_a_network_class() -> None:
    """The classes of document 002."""
    assert set(providers.NETWORK_CLASSES) == set(FunctionKind)
    assert set(providers.NETWORK_CLASSES.values()) == {"SRIOV_NET_VF", "PCI_NETDEV", "VDPA_NETDEV"}
    assert set(providers.NETWORK_CLASSES.values()) == placement_names.NETWORK_CLASSES


CLASSES: dict[str, tuple[HostDevice, Spec, str]] = {
    "made from its ids": (gpu(), [{}], GPUS),
    "as the entry says": (gpu(), [{"resource_class": "far gpu"}], "CUSTOM_FAR_GPU"),
    "of a network": (gpu(), [{"physical_network": "x"}], "PCI_NETDEV"),
    "not listed": (gpu(), [], GPUS),
    "no ids": (gpu(vendor=None, product=None), [], "CUSTOM_PCI__"),
}


@pytest.mark.parametrize(("device", "spec", "class_"), CLASSES.values(), ids=CLASSES)
def test_class(device: HostDevice, spec: Spec, class_: str) -> None:
    entries = parse_entries(spec, report=True).entries
    assert providers.resource_class(device, entries[0] if entries else None) == class_


TRAITS: dict[str, tuple[Mapping[str, str], set[str]]] = {
    "none": ({}, set()),
    "its own": ({"traits": "gold,HW_GPU_API_VULKAN"}, {"CUSTOM_GOLD", "HW_GPU_API_VULKAN"}),
    "it can move": ({"live_migratable": "yes"}, {"HW_PCI_LIVE_MIGRATABLE"}),
    "it cannot move": ({"live_migratable": "no"}, set()),
    "for one use": ({"one_time_use": "yes"}, {"HW_PCI_ONE_TIME_USE"}),
    "for many": ({"one_time_use": "no"}, set()),
    "a network that is named like a trait": ({"physical_network": "CUSTOM_BLUE"}, {"CUSTOM_PHYSNET_BLUE"}),
    "all of it": ({"traits": "x", "live_migratable": "1", "one_time_use": "1"},
                  {"CUSTOM_X", "HW_PCI_LIVE_MIGRATABLE", "HW_PCI_ONE_TIME_USE"}),
}


@pytest.mark.parametrize(("says", "traits"), TRAITS.values(), ids=TRAITS)
def test_traits(says: Mapping[str, str], traits: set[str]) -> None:
    [entry] = parse_entries([says], report=True).entries
    assert providers.traits(gpu(), entry) == traits
    assert providers.traits(gpu(), None) == frozenset()


# -- as it is stored


def test_a_provider_is_stored_and_read_again() -> None:
    provider = Provider("a_x", "u-1", "a", 3, {"PGPU": Inventory(4, 1), "VGPU": Inventory(9, 0, 2, 3, 2, 1.5)},
                        frozenset({"B", "A"}), frozenset({"A"}), ("d2", "d1"), {"note": ["x"]})
    tree = stored_form.with_providers(stored_form.blank("a"), [provider])
    assert tree["metadata"] == {"name": "a"}
    assert tree["spec"]["providers"] == [{
        "note": ["x"], "name": "a_x", "uuid": "u-1", "parent": "a", "generation": 3,
        "inventories": {
            "PGPU": {"total": 4, "reserved": 1, "min_unit": 1, "max_unit": 4, "step_size": 1, "allocation_ratio": 1.0},
            "VGPU": {"total": 9, "reserved": 0, "min_unit": 2, "max_unit": 3, "step_size": 2, "allocation_ratio": 1.5}},
        "traits": ["A", "B"], "configured": ["A"], "devices": ["d2", "d1"]}]
    assert stored_form.read(tree) == (provider,)


def test_what_we_do_not_know_in_a_tree_stays() -> None:
    raw: Object = {"kind": "ProviderTree", "metadata": {"name": "a", "labels": {"x": "y"}}, "status": {"seen": True},
                   "spec": {"owner": "them", "providers": [{"name": "p", "resource_provider_links": [{"rel": "self"}]}]}}
    before = copy.deepcopy(raw)
    [provider] = stored_form.read(raw)
    again = stored_form.with_providers(raw, [provider])
    assert raw == before, "reading and writing change nothing in place"
    assert again["spec"]["providers"][0]["resource_provider_links"] == [{"rel": "self"}]
    assert {**again, "spec": {**again["spec"], "providers": None}} == {**raw, "spec": {**raw["spec"], "providers": None}}
    again["spec"]["providers"][0]["resource_provider_links"][0]["rel"] = again["metadata"]["labels"]["x"] = "changed"
    assert raw == before, "nor is anything shared with what was read"


def test_provider_tree_with_few_fields() -> None:
    assert stored_form.read(None) == ()
    assert stored_form.read({"metadata": {"name": "a"}}) == ()
    assert stored_form.read({"spec": {"providers": None}}) == ()
    assert stored_form.with_providers({"metadata": {"name": "a"}}, [])["spec"] == {"providers": []}
    spare: Object = {"name": "p", "inventories": {"PGPU": {"total": 2, "max_unit": None}}}
    nulls: Object = {"name": "p", "uuid": None, "parent": None, "generation": None, "traits": None, "configured": None,
                     "devices": None, "inventories": {"PGPU": {"total": 2, "reserved": None, "min_unit": None,
                                                               "step_size": None, "allocation_ratio": None}}}
    for raw in (spare, nulls):
        assert stored_form.read({"spec": {"providers": [raw]}}) == (
            Provider("p", "", "", 0, {"PGPU": Inventory(2)}, frozenset()),)


CARDS: Spec = [{"product_id": "2204"}]


def test_a_held_device_whose_address_moved_is_counted_once() -> None:
    stored = planned([gpu()], CARDS).providers
    plan = planned([gpu("0000:66:00.0")], CARDS, stored, [replace(ONE, address="0000:66:00.0")])
    assert [provider.name for provider in plan.providers if "gpu" in provider.devices] == ["a_0000:66:00.0"]
    assert plan.warnings == ()


def test_a_new_card_at_the_old_address_of_a_held_one_refuses_no_start() -> None:
    stored = planned([gpu()], CARDS).providers
    new = gpu(name="new", product="9999", iommu_group=101)
    plan = planned([gpu("0000:66:00.0"), new], [*CARDS, {"product_id": "9999"}], stored, [replace(ONE, address="0000:66:00.0")])
    assert {provider.name: provider.devices for provider in plan.providers} == {
        "a_0000:65:00.0": ("new",), "a_0000:66:00.0": ("gpu",)}


def test_a_network_does_not_change_while_a_device_is_held() -> None:
    stored = planned(card(2), [{"product_id": "1889", "physical_network": "blue"}], report_networks=True).providers
    with pytest.raises(StartupRefused, match="CUSTOM_PHYSNET_RED"):
        planned(card(2), [{"product_id": "1889", "physical_network": "red"}], stored, [vf(0)], report_networks=True)


def test_unknown_fields_of_an_inventory_stay() -> None:
    raw = {"spec": {"providers": [{"name": "p", "inventories": {"X": {"total": 2, "note": "theirs"}}}]}}
    again = stored_form.with_providers(raw, stored_form.read(raw))
    assert again["spec"]["providers"][0]["inventories"]["X"]["note"] == "theirs"


def test_a_card_in_a_group_and_its_virtual_functions_are_refused_whichever_function_names_the_group() -> None:
    first = function("0000:3a:00.0", "first", FunctionKind.PF, vendor="8086", product="1592", iommu_group=1, members=(PF,))
    second = replace(card(0)[0], members=("0000:3a:00.0",))
    with pytest.raises(StartupRefused, match="only one of the two can be offered"):
        planned([first, second, *card(1)[1:]], [{}])
