"""The provider tree: how devices are counted, what stays from one start to the next, and every reason not to start."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from outfitter.api import providers as stored_form
from outfitter.api.kinds import Object
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import Refused
from outfitter.inventory import device_spec, offer, providers
from outfitter.inventory.config import Settings
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.offer import Offered
from outfitter.inventory.pci import Device, Kind
from outfitter.inventory.providers import MANAGED, Held, Plan

PF, VF0, VF1, VF2, GPU = "0000:3b:00.0", "0000:3b:01.0", "0000:3b:01.1", "0000:3b:01.2", "0000:65:00.0"
CARD, SLOT = f"a_{PF.upper()}", f"a_{GPU.upper()}"  # their providers
VFS, WHOLE, GPUS = "CUSTOM_PCI_8086_1889", "CUSTOM_PCI_8086_1592", "CUSTOM_PCI_10DE_2204"
Spec = Sequence[Mapping[str, str]]
LISTED: Spec = [{"product_id": "1889"}]  # the virtual functions
BOTH: Spec = [{"product_id": "1592"}, {"product_id": "1889"}]


def function(address: str, name: str, kind: Kind = Kind.PCI, **fields: object) -> Device:
    plain = Device(address=address, kind=kind, vendor="10de", product="2204", class_code="030000", revision="a1",
                   driver="vfio-pci", parent=None, numa=0, pcie_root="pci0000:64", iommu_group=50, members=(),
                   serial=None, interfaces=(), name=name)
    return replace(plain, **fields)  # type: ignore[arg-type]


def card(vfs: int = 2, kind: Kind = Kind.VF) -> list[Device]:
    """A network card, "nic", and its virtual functions, "nic-vf0" and so on."""
    return [function(PF, "nic", Kind.PF, vendor="8086", product="1592", interfaces=("ens1f0",), iommu_group=1),
            *(function(f"0000:3b:{1 + number // 8:02x}.{number % 8}", f"nic-vf{number}", kind, vendor="8086", product="1889",
                       parent=PF, iommu_group=2 + number) for number in range(vfs))]


def gpu(address: str = GPU, name: str = "gpu", **fields: object) -> Device:
    return function(address, name, **{"iommu_group": 100, **fields})  # type: ignore[arg-type]


def planned(
    devices: Sequence[Device], spec: Spec, stored: Sequence[Provider] = (), held: Sequence[Held] = (), *,
    orphans: Sequence[Device] = (), **switches: bool
) -> Plan:
    listed = device_spec.parse_entries(spec, report=True)
    settings = Settings(device_spec=listed, **{"report_in_placement": True, **switches})  # type: ignore[arg-type]
    return providers.plan("a", settings, offer.offer(devices, spec=listed).offered, stored, held, orphans=orphans)


def vf(number: int, holder: str = "Consumer s1") -> Held:
    return Held(f"nic-vf{number}", holder, virtual=True, address=f"0000:3b:01.{number}")


NIC, ONE = Held("nic", "Consumer s9", address=PF), Held("gpu", "Consumer s1", address=GPU)


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
    settings = Settings(device_spec=device_spec.parse_entries(LISTED, report=True), report_in_placement=True)
    offered = offer.offer(card(1), spec=settings.device_spec).offered
    [one], [two] = (providers.plan(host, settings, offered).providers for host in ("a", "b"))
    assert (one.name, one.parent, two.name, two.parent) == (CARD, "a", f"b_{PF.upper()}", "b")
    assert one.uuid != two.uuid


def test_what_no_entry_lists_and_mediated_devices_are_not_counted() -> None:
    mdev = Mdev(uuid="4b20d080-1b54-4048-85b3-a6a62d165c01", type_id="nvidia-63", type_name="", device_api="", parent=GPU,
                numa=0, pcie_root=None, iommu_group=9, memory=None)
    settings = Settings(device_spec=device_spec.parse_entries([{"product_id": "2204"}], report=True), report_in_placement=True)
    assert settings.device_spec is not None
    offered = [Offered(gpu()), Offered(mdev, (), settings.device_spec.entries[0])]
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
    Kind.VF: (VF0, "SRIOV_NET_VF", set[str]()),
    Kind.VENDOR_VF: (VF0, "SRIOV_NET_VF", set[str]()),
    Kind.VDPA: (VF0, "VDPA_NETDEV", set[str]()),
    Kind.PF: (PF, "PCI_NETDEV", {"HW_NIC_SRIOV"}),
    Kind.PCI: (GPU, "PCI_NETDEV", set[str]()),
}


@pytest.mark.parametrize("kind", Kind)
def test_a_device_of_a_physical_network(kind: Kind) -> None:
    address, class_, more = KINDS[kind]
    devices = card(1, kind) if kind.is_vf else [function(address, "one", kind)]
    spec: Spec = [{"address": address, "physical_network": "phys-net 1", "traits": "gold"}]
    assert planned(devices, spec).providers == (), "Neutron counts it, unless it is told to"
    [provider] = planned(devices, spec, report_networks=True).providers
    assert provider.inventories == {class_: Inventory(1)}
    assert provider.traits == {"CUSTOM_GOLD", "CUSTOM_PHYSNET_PHYS_NET_1", MANAGED} | more
    assert provider.configured == {"CUSTOM_GOLD", "CUSTOM_PHYSNET_PHYS_NET_1"}
    [plain] = planned(devices, [{"address": address}], report_networks=True).providers
    assert "NET" not in str(plain.inventories)
    assert plain.traits == {MANAGED}


def test_networks_are_left_out_one_device_at_a_time() -> None:
    spec: Spec = [{"address": VF0, "physical_network": "blue"}, {"product_id": "1889"}, {"product_id": "2204"}]
    plan = planned([*card(3), gpu()], spec)
    assert {each.name: each.devices for each in plan.providers} == {CARD: ("nic-vf1", "nic-vf2"), SLOT: ("gpu",)}


def test_ports_ask_for_one_class_each() -> None:
    """The table of document 002."""
    by_class = {"SRIOV_NET_VF": ["direct", "macvtap", "virtio-forwarder", "remote-managed"],
                "PCI_NETDEV": ["direct-physical"], "VDPA_NETDEV": ["vdpa"]}
    assert {vnic: class_ for class_, vnics in by_class.items() for vnic in vnics} == providers.VNIC_CLASSES
    assert set(providers.NETWORK_CLASSES) == set(Kind)
    assert set(providers.NETWORK_CLASSES.values()) == set(by_class)


CLASSES: dict[str, tuple[Device, Spec, str]] = {
    "made from its ids": (gpu(), [{}], GPUS),
    "as the entry says": (gpu(), [{"resource_class": "far gpu"}], "CUSTOM_FAR_GPU"),
    "of a network": (gpu(), [{"physical_network": "x"}], "PCI_NETDEV"),
    "not listed": (gpu(), [], GPUS),
    "no ids": (gpu(vendor=None, product=None), [], "CUSTOM_PCI__"),
}


@pytest.mark.parametrize(("device", "spec", "class_"), CLASSES.values(), ids=CLASSES)
def test_class(device: Device, spec: Spec, class_: str) -> None:
    entries = device_spec.parse_entries(spec, report=True).entries
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
    [entry] = device_spec.parse_entries([says], report=True).entries
    assert providers.traits(gpu(), entry) == traits
    assert providers.traits(gpu(), None) == frozenset()


# -- reasons not to start


@dataclass(frozen=True)
class Bad:
    spec: Spec
    says: Sequence[str]  # every reason, whole
    devices: Sequence[Device] = field(default_factory=lambda: card(2))
    was: Spec | None = None  # what the tree that stands was made of
    held: Sequence[Held] = ()
    orphans: Sequence[Device] = ()


def listed_both(advice: str) -> str:
    return (f"device_spec lists both the physical function {PF} (entry 0) and its virtual functions {VF0} (entry 1), {VF1} "
            f"(entry 1), which is not supported: only one of the two can be offered; {advice}")


def in_use(was: str, now: str, who: str, provider: str = CARD) -> str:
    return (f"inventory of {was} on resource provider {provider} is in use by {who}, and device_spec now makes it {now}; keep "
            "the class until they are gone")


def other_traits(was: str, now: str, who: str, provider: str = CARD) -> str:
    return (f"the traits of resource provider {provider} are {was} and device_spec now says {now}, but its devices are in use "
            f"by {who}; keep the traits until they are gone")


def swapped(device: str, who: str, now: str) -> str:
    return (f"{device} is in use by {who}, and device_spec now lists {now} in its place; a physical function and its virtual "
            "ones exclude each other: list it until it is free")


def not_for_one_use(devices: str, entries: str) -> str:
    return (f"only whole devices (type-PCI) and physical functions (type-PF) may set one_time_use, and {devices} of provider "
            f"{CARD} are virtual functions and do not qualify; take it out of {entries}")


DEVNAME = ("entry 1 of device_spec, {\"devname\": \"ens1f0\"}, chooses by devname, which may name another device after a "
           "reboot; write the PCI address instead while report_in_placement is on")
ORPHAN = (f"{VF0} is a virtual function whose parent device is not known, so there is no provider to count it on; leave it "
          "out of device_spec, or find out why the host does not show its physfn")
FREE = "none of them is held, so list whichever you want: the physical function, or its virtual functions"
SAME: Spec = [{"product_id": "1592", "resource_class": "nic"}]
SAME_VFS: Spec = [{"product_id": "1889", "resource_class": "nic"}]

BAD = {
    "an interface's name chooses": Bad([{"product_id": "2204"}, {"devname": "ens1f0"}], [DEVNAME], devices=[gpu()]),
    "a card and its functions, free": Bad(BOTH, [listed_both(FREE)]),
    "a card and its functions, the card is held": Bad(BOTH, [listed_both(
        f"{PF} is held by Consumer s9, so keep it listed and take its virtual functions out")], held=[NIC]),
    "a card and its functions, a function is held": Bad(BOTH, [listed_both(
        f"virtual functions are held ({VF1} by Consumer s1), so take {PF} out and keep at least these listed")], held=[vf(1)]),
    "a card and its functions, some are held, one by two": Bad(BOTH, [listed_both(
        f"virtual functions are held ({VF0} by Consumer s1, Consumer s2, {VF1} by Consumer s3), so take {PF} out and keep at "
        "least these listed")], held=[vf(0), vf(0, "Consumer s2"), vf(1, "Consumer s3")]),
    "a card and its functions, all are held": Bad(BOTH, [listed_both(
        f"{PF} is held by Consumer s9, so keep it listed and take its virtual functions out")], held=[NIC, vf(0)]),
    "a card and many functions": Bad([{"vendor_id": "8086"}], [
        f"device_spec lists both the physical function {PF} (entry 0) and its virtual functions "
        + ", ".join(f"0000:3b:01.{number} (entry 0)" for number in range(8))
        + f" and 1 more, which is not supported: only one of the two can be offered; {FREE}"], devices=card(9)),
    "a card and as many functions as are named": Bad([{"vendor_id": "8086"}], [
        f"device_spec lists both the physical function {PF} (entry 0) and its virtual functions "
        + ", ".join(f"0000:3b:01.{number} (entry 0)" for number in range(8))
        + f", which is not supported: only one of the two can be offered; {FREE}"], devices=card(8)),
    "functions of two classes": Bad(
        [{"address": VF0, "resource_class": "gold"}, {"product_id": "1889"}],
        [f"virtual functions of one parent cannot have different resource_class values: device_spec says CUSTOM_GOLD for {VF0} "
         f"(entry 0); {VFS} for {VF1} (entry 1), {VF2} (entry 1); make entries 0, 1 agree"], devices=card(3)),
    "functions with different traits": Bad(
        [{"address": VF0, "traits": "b,a"}, {"product_id": "1889"}],
        [f"virtual functions of one parent cannot have different traits values: device_spec says CUSTOM_A, CUSTOM_B for {VF0} "
         f"(entry 0); none for {VF1} (entry 1); make entries 0, 1 agree"]),
    "functions of which some can move": Bad(
        [{"address": VF0, "live_migratable": "yes"}, {"product_id": "1889", "live_migratable": "no"}],
        [f"virtual functions of one parent cannot have different traits values: device_spec says HW_PCI_LIVE_MIGRATABLE for "
         f"{VF0} (entry 0); none for {VF1} (entry 1); make entries 0, 1 agree"]),
    "functions that differ in both": Bad(
        [{"address": VF0, "traits": "x", "resource_class": "y"}, {"product_id": "1889"}],
        [f"virtual functions of one parent cannot have different resource_class values: device_spec says CUSTOM_Y for {VF0} "
         f"(entry 0); {VFS} for {VF1} (entry 1); make entries 0, 1 agree",
         f"virtual functions of one parent cannot have different traits values: device_spec says CUSTOM_X for {VF0} (entry 0); "
         f"none for {VF1} (entry 1); make entries 0, 1 agree"]),
    "functions for one use": Bad([{"product_id": "1889", "one_time_use": "yes"}], [
        not_for_one_use(f"{VF0} (entry 0), {VF1} (entry 0)", "entry 0")]),
    "a function that says it is not for one use": Bad([{"address": VF0, "one_time_use": "no"}], [
        not_for_one_use(f"{VF0} (entry 0)", "entry 0")]),
    "vendors' functions and vdpa devices for one use": Bad(
        [{"address": VF0, "one_time_use": "no"}, {"address": VF1, "one_time_use": "no"}],
        [not_for_one_use(f"{VF0} (entry 0), {VF1} (entry 1)", "entries 0, 1")],
        devices=[*card(1, Kind.VENDOR_VF), card(2, Kind.VDPA)[2]]),
    "a function without a parent": Bad([], [ORPHAN], orphans=[card(1)[1]]),
    "another class while it is held": Bad(
        [{"product_id": "1889", "resource_class": "gold"}], [in_use(VFS, "CUSTOM_GOLD", "Consumer s1, Consumer s2")],
        was=LISTED, held=[vf(0), vf(1, "Consumer s2")]),
    "another class while an unlisted one is held": Bad(
        [{"address": VF0, "resource_class": "gold"}], [in_use(VFS, "CUSTOM_GOLD", "Consumer s1")], was=LISTED, held=[vf(1)]),
    "other traits while it is held": Bad(
        [{"product_id": "1889", "traits": "c"}], [other_traits("CUSTOM_A, CUSTOM_B", "CUSTOM_C", "Consumer s1")],
        was=[{"product_id": "1889", "traits": "a,b"}], held=[vf(0)]),
    "a trait more while it is held": Bad(
        [{"product_id": "1889", "traits": "a"}], [other_traits("none", "CUSTOM_A", "Consumer s1")], was=LISTED, held=[vf(0)]),
    "a trait less while it is held": Bad(
        LISTED, [other_traits("CUSTOM_A", "none", "Consumer s1")], was=[{"product_id": "1889", "traits": "a"}], held=[vf(0)]),
    "class and traits while it is held": Bad(
        [{"product_id": "2204", "traits": "a", "resource_class": "gold"}],
        [in_use(GPUS, "CUSTOM_GOLD", "Consumer s1", SLOT), other_traits("none", "CUSTOM_A", "Consumer s1", SLOT)],
        devices=[gpu()], was=[{"product_id": "2204"}], held=[ONE]),
    "functions in the place of a held card": Bad(
        SAME_VFS, [swapped("nic", "Consumer s9", f"{VF0} (entry 0), {VF1} (entry 0)")], was=SAME, held=[NIC]),
    "a card in the place of held functions": Bad(
        SAME, [swapped("nic-vf0", "Consumer s1", f"{PF} (entry 0)"), swapped("nic-vf1", "Consumer s2, Consumer s3",
                                                                              f"{PF} (entry 0)")],
        was=SAME_VFS, held=[vf(0), vf(1, "Consumer s2"), vf(1, "Consumer s3")]),
    "a card of another class in the place of held functions": Bad(
        [{"product_id": "1592"}], [in_use(VFS, WHOLE, "Consumer s1")], was=LISTED, held=[vf(0)]),
    "everything at once": Bad(
        [{"product_id": "2204", "traits": "a"}, {"devname": "ens1f0"}, {"address": PF},
         {"product_id": "1889", "one_time_use": "no"}],
        [DEVNAME, ORPHAN,
         f"device_spec lists both the physical function {PF} (entry 1) and its virtual functions {VF0} (entry 1), which is not "
         f"supported: only one of the two can be offered; {FREE}",
         other_traits("none", "CUSTOM_A", "Consumer s1", SLOT)],
        devices=[*card(1), gpu()], was=[{"product_id": "2204"}], held=[ONE], orphans=[card(1)[1]]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_host_that_must_not_start_says_why(name: str) -> None:
    case = BAD[name]
    stored = planned(case.devices, case.was).providers if case.was is not None else ()
    with pytest.raises(Refused) as error:
        planned(case.devices, case.spec, stored, case.held, orphans=case.orphans)
    if len(case.says) == 1:
        assert str(error.value) == f"host a does not start: {case.says[0]}"
        return
    head, *reasons = str(error.value).splitlines()
    assert head == f"host a does not start, for {len(case.says)} reasons:"
    assert reasons == [f"  {reason}" for reason in case.says]


GOOD: dict[str, Bad] = {
    "functions that agree in two entries": Bad([{"address": VF0, "traits": "a"}, {"address": VF1, "traits": " A "}], ()),
    "a card whose functions are not listed": Bad([{"product_id": "1592", "one_time_use": "yes"}], ()),
    "cards of one kind with different words": Bad(
        [{"address": GPU, "traits": "a"}, {"product_id": "2204", "resource_class": "x"}], (),
        devices=[gpu(), gpu("0000:66:00.0", "gpu2", iommu_group=101)]),
    "another class while nobody has it": Bad([{"product_id": "1889", "resource_class": "gold"}], (), was=LISTED),
    "another class while somebody has one of another card": Bad(
        [{"product_id": "1889", "resource_class": "gold"}, {"product_id": "2204"}], (), devices=[*card(2), gpu()], was=[
            {"product_id": "1889"}, {"product_id": "2204"}], held=[ONE]),
    "a card in the place of its functions while nobody has one": Bad(SAME, (), was=SAME_VFS),
    "another function while one is held": Bad([{"address": VF1}], (), was=LISTED, held=[vf(0)]),
    "functions that may move by now": Bad([{"product_id": "1889", "live_migratable": "yes"}], (), was=LISTED, held=[vf(0)]),
    "for one use by now": Bad([{"product_id": "2204", "one_time_use": "yes"}], (), devices=[gpu()],
                              was=[{"product_id": "2204"}], held=[ONE]),
    "the same again": Bad(LISTED, (), was=LISTED, held=[vf(0), vf(1)]),
    "nothing listed any more": Bad([], (), was=LISTED, held=[vf(0)]),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_host_that_may_start(name: str) -> None:
    case = GOOD[name]
    stored = planned(case.devices, case.was).providers if case.was is not None else ()
    planned(case.devices, case.spec, stored, case.held)


def test_a_held_card_may_be_unlisted_while_its_functions_were_never_counted() -> None:
    """A provider that somebody else left behind, without the device in it, is in nobody's use."""
    [stored] = planned(card(2), SAME).providers
    [provider] = planned(card(2), SAME_VFS, [replace(stored, devices=())], [NIC]).providers
    assert provider.devices == ("nic-vf0", "nic-vf1")


# -- switching it off


def cards(count: int) -> list[Device]:
    return [gpu(f"0000:{0x60 + number:x}:00.0", f"gpu{number}", iommu_group=100 + number) for number in range(count)]


@pytest.mark.parametrize(("count", "named"), {
    1: "1 providers stand in the tree (a_0000:60:00.0)",
    4: "4 providers stand in the tree (a_0000:60:00.0, a_0000:61:00.0, a_0000:62:00.0, a_0000:63:00.0)",
    5: "5 providers stand in the tree (a_0000:60:00.0, a_0000:61:00.0, a_0000:62:00.0, a_0000:63:00.0 and more)",
}.items())
def test_reporting_cannot_be_switched_off_while_a_provider_stands(count: int, named: str) -> None:
    stored = planned(cards(count), [{"product_id": "2204"}]).providers
    with pytest.raises(Refused) as error:
        planned(cards(count), [], stored, report_in_placement=False)
    assert str(error.value) == (
        f"host a does not start: report_in_placement is off, but it was enabled before and {named}; disabling it again is not "
        "supported: switch it on, or first take all devices out of device_spec and start once")


def test_the_way_back() -> None:
    stored = planned(cards(2), [{"product_id": "2204"}]).providers
    emptied = planned(cards(2), [], stored).providers
    assert emptied == ()
    assert planned(cards(2), [{"product_id": "2204"}], emptied, report_in_placement=False) == Plan(())


def test_while_it_is_off_nothing_is_refused() -> None:
    both: Spec = [*BOTH, {"devname": "ens1f0"}]
    assert planned(card(2), both, held=[vf(0)], orphans=[card(1)[1]], report_in_placement=False) == Plan(())


# -- from one start to the next

OTHERS = Provider("a_bandwidth", "u-1", "a", 7, {"NET_BW_EGR_KILOBIT_PER_SEC": Inventory(10, 3, 2, 5, 5, 2.0)},
                  frozenset({"CUSTOM_PHYSNET_BLUE"}), devices=("gpu",), extra={"who": {"made": "it"}})


@pytest.mark.parametrize("report", [False, True])
def test_providers_of_others_are_left_as_they_are(report: bool) -> None:
    plan = planned([gpu()], [{"product_id": "2204"}], [OTHERS], [ONE], report_in_placement=report)
    assert plan.providers[0] == OTHERS
    assert [each.name for each in plan.providers[1:]] == ([SLOT] if report else [])
    assert plan.warnings == ()


@dataclass(frozen=True)
class Then:
    """What became of the provider of the card: two virtual functions were listed and nothing was held, unless it is said."""

    spec: Spec
    rises: bool
    total: int = 2
    devices: Sequence[str] = ("nic-vf0", "nic-vf1")
    vfs: int = 2
    class_: str = VFS
    held: Sequence[Held] = ()
    traits: frozenset[str] = frozenset()


AFTER = {
    "nothing new": Then(LISTED, rises=False),
    "held": Then(LISTED, rises=False, held=[vf(0)]),
    "one more": Then(LISTED, rises=True, total=3, devices=["nic-vf0", "nic-vf1", "nic-vf2"], vfs=3),
    "one less": Then([{"address": VF0}], rises=True, total=1, devices=["nic-vf0"]),
    "a trait": Then([{"product_id": "1889", "traits": "x"}], rises=True, traits=frozenset({"CUSTOM_X"})),
    "it can move": Then([{"product_id": "1889", "live_migratable": "1"}], rises=True, held=[vf(0)],
                        traits=frozenset({"HW_PCI_LIVE_MIGRATABLE"})),
    "a class": Then([{"product_id": "1889", "resource_class": "x"}], rises=True, class_="CUSTOM_X"),
    "another entry that says the same": Then(
        [{"product_id": "2204"}, {"vendor_id": "8086", "product_id": "1889"}], rises=False),
    "as many, but others: who counts sees no change": Then(
        [{"address": VF1}, {"address": VF2}], rises=False, devices=["nic-vf1", "nic-vf2"], vfs=3),
    "a held one that is no longer listed does not add to the others": Then(
        [{"address": VF1}], rises=True, total=1, devices=["nic-vf1", "nic-vf0"], held=[vf(0)]),
    "held ones that are no longer listed are more than the others": Then(
        [{"address": VF2}], rises=False, total=2, devices=["nic-vf2", "nic-vf0", "nic-vf1"], vfs=3, held=[vf(1), vf(0)]),
    "held ones count, listed or not": Then([{"address": VF0}], rises=False, total=2, held=[vf(0), vf(1)]),
    "a device with two holders is one": Then(
        [{"address": VF1}], rises=True, total=1, devices=["nic-vf1", "nic-vf0"], held=[vf(0), vf(0, "Consumer s2")]),
    "somebody has what was never counted here": Then(
        LISTED, rises=False, held=[Held("nic-vf7", "Consumer s1", virtual=True), Held("gpu", "Consumer s2")]),
    "nothing is listed, and one is held": Then([], rises=True, total=1, devices=["nic-vf1"], held=[vf(1)]),
    "nothing is listed, and all are held": Then([], rises=False, total=2, held=[vf(1), vf(0)]),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_becomes_of_a_provider(name: str) -> None:
    case = AFTER[name]
    [first] = planned(card(2), LISTED).providers
    stored = replace(first, uuid="as it was given", generation=5, extra={"note": 1} if not case.spec else {})
    [provider] = planned(card(case.vfs), case.spec, [stored], case.held).providers
    assert provider.inventories == {case.class_: Inventory(case.total)}
    assert provider.devices == tuple(case.devices)
    assert provider.traits == case.traits | {MANAGED}
    assert (provider.name, provider.uuid, provider.parent, provider.extra) == (CARD, stored.uuid, "a", stored.extra)
    assert provider.generation == (6 if case.rises else 5)


def test_providers_stand_in_the_order_of_their_names() -> None:
    everything: Spec = [*LISTED, {"product_id": "2204"}]
    stored = planned([*card(2), gpu()], everything).providers
    plan = planned([*card(2), gpu()], [{"product_id": "2204"}], stored, [vf(0)])
    assert [each.name for each in plan.providers] == [CARD, SLOT], "what is kept is not behind what is listed"


def test_a_provider_of_another_host_is_moved_below_this_one() -> None:
    [stored] = planned(card(2), LISTED).providers
    [provider] = planned(card(2), LISTED, [replace(stored, parent="z")]).providers
    assert (provider.parent, provider.generation) == ("a", 1)


def test_a_provider_that_went_and_came_back_is_known_again() -> None:
    [first] = planned(card(2), LISTED).providers
    assert planned(card(2), [], [first]).providers == ()
    [again] = planned(card(2), LISTED).providers
    assert again.uuid == first.uuid


RESERVED: dict[str, tuple[Spec, Sequence[Held], int, tuple[str, int, int]]] = {
    # what is listed, who has what, reserved of four before -> class, total and reserved afterwards
    "it stays": (LISTED, [], 3, (VFS, 4, 3)),
    "all of it": (LISTED, [], 4, (VFS, 4, 4)),
    "never more than there are": ([{"address": VF0}, {"address": VF1}], [], 3, (VFS, 2, 2)),
    "nor more than are held": ([{"address": VF0}], [vf(1), vf(2)], 3, (VFS, 2, 2)),
    "another class begins anew": ([{"product_id": "1889", "resource_class": "x"}], [], 3, ("CUSTOM_X", 4, 0)),
    "of what is only kept": ([], [vf(1), vf(2)], 3, (VFS, 2, 2)),
    "of what is only kept, and less": ([], [vf(1), vf(2)], 1, (VFS, 2, 1)),
}


@pytest.mark.parametrize(("spec", "held", "reserved", "says"), RESERVED.values(), ids=RESERVED)
def test_what_an_operator_reserved(spec: Spec, held: Sequence[Held], reserved: int, says: tuple[str, int, int]) -> None:
    [first] = planned(card(4), LISTED).providers
    stored = replace(first, inventories={VFS: Inventory(4, reserved)})
    [provider] = planned(card(4), spec, [stored], held).providers
    class_, total, left = says
    assert provider.inventories == {class_: Inventory(total, left)}


def kept(address: str, device: str, who: str) -> str:
    return (f"device spec is not found for device {address} ({device}): it is no longer listed or no longer there; the device "
            f"is allocated by {who}, and we are keeping this device in the placement view until it is free")


WARNINGS: dict[str, tuple[Spec, Sequence[Held], list[str]]] = {
    "all is listed": (LISTED, [vf(0), vf(1)], []),
    "none is held": ([], [], []),
    "one is kept beside others": ([{"address": VF1}], [vf(0), vf(0, "Consumer s2")],
                                  [kept(VF0, "nic-vf0", "Consumer s1, Consumer s2")]),
    "one is kept alone": ([], [vf(1)], [kept(VF1, "nic-vf1", "Consumer s1")]),
    "one of which nobody knows where it was": ([], [Held("nic-vf1", "Consumer s1", virtual=True)],
                                               [kept("nic-vf1", "nic-vf1", "Consumer s1")]),
    "more are held than listed": (
        [{"address": VF2}], [vf(0), vf(1)],
        [kept(VF0, "nic-vf0", "Consumer s1"), kept(VF1, "nic-vf1", "Consumer s1"),
         f"needed to adjust inventories of {VFS} on resource provider {CARD} from 1 to 2 due to existing placement allocations "
         "(Consumer s1)"]),
}


@pytest.mark.parametrize(("spec", "held", "says"), WARNINGS.values(), ids=WARNINGS)
def test_what_is_kept_is_told(spec: Spec, held: Sequence[Held], says: list[str]) -> None:
    stored = planned(card(3), LISTED).providers
    assert list(planned(card(3), spec, stored, held).warnings) == says


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


def test_a_tree_of_which_little_was_said() -> None:
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
    with pytest.raises(Refused, match="CUSTOM_PHYSNET_RED"):
        planned(card(2), [{"product_id": "1889", "physical_network": "red"}], stored, [vf(0)], report_networks=True)


def test_unknown_fields_of_an_inventory_stay() -> None:
    raw = {"spec": {"providers": [{"name": "p", "inventories": {"X": {"total": 2, "note": "theirs"}}}]}}
    again = stored_form.with_providers(raw, stored_form.read(raw))
    assert again["spec"]["providers"][0]["inventories"]["X"]["note"] == "theirs"


def test_a_card_in_a_group_and_its_virtual_functions_are_refused_whichever_function_names_the_group() -> None:
    first = function("0000:3a:00.0", "first", Kind.PF, vendor="8086", product="1592", iommu_group=1, members=(PF,))
    second = replace(card(0)[0], members=("0000:3a:00.0",))
    with pytest.raises(Refused, match="only one of the two can be offered"):
        planned([first, second, *card(1)[1:]], [{}])
