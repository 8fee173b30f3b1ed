"""Provider trees: every reason not to start, and what may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from outfitter.errors import StartupRefused
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.providers import HeldDevice, Plan
from tests.inventory.provider_hosts import (
    BOTH,
    CARD,
    GPU,
    GPUS,
    LISTED,
    NIC,
    ONE,
    PF,
    SLOT,
    VF0,
    VF1,
    VF2,
    VFS,
    WHOLE,
    Spec,
    card,
    gpu,
    planned,
    vf,
)

# -- reasons not to start


@dataclass(frozen=True)
class Bad:
    spec: Spec
    says: Sequence[str]  # every reason, whole
    devices: Sequence[HostDevice] = field(default_factory=lambda: card(2))
    was: Spec | None = None  # what the tree that stands was made of
    held: Sequence[HeldDevice] = ()
    orphans: Sequence[HostDevice] = ()


def listed_both(advice: str) -> str:
    return (f"device_spec lists both the physical function {PF} (entry 0) and its virtual functions {VF0} (entry 1), {VF1} "
            f"(entry 1), which is not supported: only one of the two can be offered; {advice}")


def in_use(was: str, now: str, who: str, provider: str = CARD) -> str:
    return (f"inventory of {was} on resource provider {provider} is in use by {who}, and device_spec now gives it {now}; keep "
            "the class until they are released")


def other_traits(was: str, now: str, who: str, provider: str = CARD) -> str:
    return (f"the traits of resource provider {provider} are {was} and device_spec now says {now}, but its devices are in use "
            f"by {who}; keep the traits until they are released")


def swapped(device: str, who: str, now: str) -> str:
    return (f"{device} is in use by {who}, and device_spec now lists {now} instead; a physical function and its virtual "
            "functions exclude each other: list it until it is released")


def not_for_one_use(devices: str, entries: str) -> str:
    return (f"only whole devices (type-PCI) and physical functions (type-PF) may set one_time_use, and {devices} of provider "
            f"{CARD} are virtual functions and do not qualify; remove it from {entries}")


DEVNAME = ("entry 1 of device_spec, {\"devname\": \"ens1f0\"}, selects by devname, which may be another device after a "
           "reboot; use the PCI address instead while report_in_placement is on")
ORPHAN = (f"{VF0} is a virtual function whose parent device is not known, so it belongs to no provider; remove it "
          "from device_spec, or find out why its physfn link is missing")
FREE = "none of them is held, so list either the physical function or its virtual functions"
SAME: Spec = [{"product_id": "1592", "resource_class": "nic"}]
SAME_VFS: Spec = [{"product_id": "1889", "resource_class": "nic"}]

BAD = {
    "an interface's name chooses": Bad([{"product_id": "2204"}, {"devname": "ens1f0"}], [DEVNAME], devices=[gpu()]),
    "a card and its functions, free": Bad(BOTH, [listed_both(FREE)]),
    "a card and its functions, the card is held": Bad(BOTH, [listed_both(
        f"{PF} is held by Consumer s9, so keep it listed and remove its virtual functions")], held=[NIC]),
    "a card and its functions, a function is held": Bad(BOTH, [listed_both(
        f"virtual functions are held ({VF1} by Consumer s1), so remove {PF} and keep at least these listed")], held=[vf(1)]),
    "a card and its functions, some are held, one by two": Bad(BOTH, [listed_both(
        f"virtual functions are held ({VF0} by Consumer s1, Consumer s2, {VF1} by Consumer s3), so remove {PF} and keep at "
        "least these listed")], held=[vf(0), vf(0, "Consumer s2"), vf(1, "Consumer s3")]),
    "a card and its functions, all are held": Bad(BOTH, [listed_both(
        f"{PF} is held by Consumer s9, so keep it listed and remove its virtual functions")], held=[NIC, vf(0)]),
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
        [f"virtual functions of one parent cannot have different resource_class values: device_spec has CUSTOM_GOLD for {VF0} "
         f"(entry 0); {VFS} for {VF1} (entry 1), {VF2} (entry 1); make entries 0, 1 agree"], devices=card(3)),
    "functions with different traits": Bad(
        [{"address": VF0, "traits": "b,a"}, {"product_id": "1889"}],
        [f"virtual functions of one parent cannot have different traits values: device_spec has CUSTOM_A, CUSTOM_B for {VF0} "
         f"(entry 0); none for {VF1} (entry 1); make entries 0, 1 agree"]),
    "functions of which some can move": Bad(
        [{"address": VF0, "live_migratable": "yes"}, {"product_id": "1889", "live_migratable": "no"}],
        [f"virtual functions of one parent cannot have different traits values: device_spec has HW_PCI_LIVE_MIGRATABLE for "
         f"{VF0} (entry 0); none for {VF1} (entry 1); make entries 0, 1 agree"]),
    "functions that differ in both": Bad(
        [{"address": VF0, "traits": "x", "resource_class": "y"}, {"product_id": "1889"}],
        [f"virtual functions of one parent cannot have different resource_class values: device_spec has CUSTOM_Y for {VF0} "
         f"(entry 0); {VFS} for {VF1} (entry 1); make entries 0, 1 agree",
         f"virtual functions of one parent cannot have different traits values: device_spec has CUSTOM_X for {VF0} (entry 0); "
         f"none for {VF1} (entry 1); make entries 0, 1 agree"]),
    "functions for one use": Bad([{"product_id": "1889", "one_time_use": "yes"}], [
        not_for_one_use(f"{VF0} (entry 0), {VF1} (entry 0)", "entry 0")]),
    "a function that says it is not for one use": Bad([{"address": VF0, "one_time_use": "no"}], [
        not_for_one_use(f"{VF0} (entry 0)", "entry 0")]),
    "vendors' functions and vdpa devices for one use": Bad(
        [{"address": VF0, "one_time_use": "no"}, {"address": VF1, "one_time_use": "no"}],
        [not_for_one_use(f"{VF0} (entry 0), {VF1} (entry 1)", "entries 0, 1")],
        devices=[*card(1, FunctionKind.VENDOR_VF), card(2, FunctionKind.VDPA)[2]]),
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
def test_refused_start_has_a_reason(name: str) -> None:
    case = BAD[name]
    stored = planned(case.devices, case.was).providers if case.was is not None else ()
    with pytest.raises(StartupRefused) as error:
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
    "another class while not in use": Bad([{"product_id": "1889", "resource_class": "gold"}], (), was=LISTED),
    "another class while one is in use of another card": Bad(
        [{"product_id": "1889", "resource_class": "gold"}, {"product_id": "2204"}], (), devices=[*card(2), gpu()], was=[
            {"product_id": "1889"}, {"product_id": "2204"}], held=[ONE]),
    "a card in the place of its functions while not in use": Bad(SAME, (), was=SAME_VFS),
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
    """A provider left behind, without the device in it, is not in use."""
    [stored] = planned(card(2), SAME).providers
    [provider] = planned(card(2), SAME_VFS, [replace(stored, devices=())], [NIC]).providers
    assert provider.devices == ("nic-vf0", "nic-vf1")


# -- switching it off


def cards(count: int) -> list[HostDevice]:
    return [gpu(f"0000:{0x60 + number:x}:00.0", f"gpu{number}", iommu_group=100 + number) for number in range(count)]


@pytest.mark.parametrize(("count", "named"), {
    1: "1 providers are in the tree (a_0000:60:00.0)",
    4: "4 providers are in the tree (a_0000:60:00.0, a_0000:61:00.0, a_0000:62:00.0, a_0000:63:00.0)",
    5: "5 providers are in the tree (a_0000:60:00.0, a_0000:61:00.0, a_0000:62:00.0, a_0000:63:00.0 and more)",
}.items())
def test_reporting_cannot_be_switched_off_while_a_provider_stands(count: int, named: str) -> None:
    stored = planned(cards(count), [{"product_id": "2204"}]).providers
    with pytest.raises(StartupRefused) as error:
        planned(cards(count), [], stored, report_in_placement=False)
    assert str(error.value) == (
        f"host a does not start: report_in_placement is off, but it was enabled before and {named}; disabling it again is not "
        "supported: switch it on, or first remove all devices from device_spec and start once")


def test_providers_can_be_switched_off_again() -> None:
    stored = planned(cards(2), [{"product_id": "2204"}]).providers
    emptied = planned(cards(2), [], stored).providers
    assert emptied == ()
    assert planned(cards(2), [{"product_id": "2204"}], emptied, report_in_placement=False) == Plan(())


def test_while_it_is_off_nothing_is_refused() -> None:
    both: Spec = [*BOTH, {"devname": "ens1f0"}]
    assert planned(card(2), both, held=[vf(0)], orphans=[card(1)[1]], report_in_placement=False) == Plan(())
