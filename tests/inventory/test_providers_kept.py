"""Provider trees: what stays from one start to the next, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from outfitter.api.providers import Inventory, Provider
from outfitter.inventory.providers import MANAGED, HeldDevice
from tests.inventory.provider_hosts import CARD, LISTED, ONE, SLOT, VF0, VF1, VF2, VFS, Spec, card, gpu, planned, vf

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
    held: Sequence[HeldDevice] = ()
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
    "a VM has what was never counted here": Then(
        LISTED, rises=False, held=[HeldDevice("nic-vf7", "Consumer s1", virtual=True), HeldDevice("gpu", "Consumer s2")]),
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


def test_provider_that_reappears_is_recognised() -> None:
    [first] = planned(card(2), LISTED).providers
    assert planned(card(2), [], [first]).providers == ()
    [again] = planned(card(2), LISTED).providers
    assert again.uuid == first.uuid


RESERVED: dict[str, tuple[Spec, Sequence[HeldDevice], int, tuple[str, int, int]]] = {
    # what is listed, who has what, reserved of four before -> class, total and reserved afterwards
    "it stays": (LISTED, [], 3, (VFS, 4, 3)),
    "all of it": (LISTED, [], 4, (VFS, 4, 4)),
    "never more than there are": ([{"address": VF0}, {"address": VF1}], [], 3, (VFS, 2, 2)),
    "nor more than are held": ([{"address": VF0}], [vf(1), vf(2)], 3, (VFS, 2, 2)),
    "another class is reset": ([{"product_id": "1889", "resource_class": "x"}], [], 3, ("CUSTOM_X", 4, 0)),
    "of what is only kept": ([], [vf(1), vf(2)], 3, (VFS, 2, 2)),
    "of what is only kept, and less": ([], [vf(1), vf(2)], 1, (VFS, 2, 1)),
}


@pytest.mark.parametrize(("spec", "held", "reserved", "says"), RESERVED.values(), ids=RESERVED)
def test_what_an_operator_reserved(spec: Spec, held: Sequence[HeldDevice], reserved: int, says: tuple[str, int, int]) -> None:
    [first] = planned(card(4), LISTED).providers
    stored = replace(first, inventories={VFS: Inventory(4, reserved)})
    [provider] = planned(card(4), spec, [stored], held).providers
    class_, total, left = says
    assert provider.inventories == {class_: Inventory(total, left)}


def kept(address: str, device: str, who: str) -> str:
    return (f"device spec is not found for device {address} ({device}): it is no longer listed or no longer there; the device "
            f"is allocated by {who}, and we are keeping this device in the placement view until it is free")


WARNINGS: dict[str, tuple[Spec, Sequence[HeldDevice], list[str]]] = {
    "all is listed": (LISTED, [vf(0), vf(1)], []),
    "none is held": ([], [], []),
    "one is kept beside others": ([{"address": VF1}], [vf(0), vf(0, "Consumer s2")],
                                  [kept(VF0, "nic-vf0", "Consumer s1, Consumer s2")]),
    "one is kept alone": ([], [vf(1)], [kept(VF1, "nic-vf1", "Consumer s1")]),
    "one of unknown which where it was": ([], [HeldDevice("nic-vf1", "Consumer s1", virtual=True)],
                                               [kept("nic-vf1", "nic-vf1", "Consumer s1")]),
    "more are held than listed": (
        [{"address": VF2}], [vf(0), vf(1)],
        [kept(VF0, "nic-vf0", "Consumer s1"), kept(VF1, "nic-vf1", "Consumer s1"),
         f"needed to adjust inventories of {VFS} on resource provider {CARD} from 1 to 2 due to existing placement allocations "
         "(Consumer s1)"]),
}


@pytest.mark.parametrize(("spec", "held", "says"), WARNINGS.values(), ids=WARNINGS)
def test_kept_providers_are_reported(spec: Spec, held: Sequence[HeldDevice], says: list[str]) -> None:
    stored = planned(card(3), LISTED).providers
    assert list(planned(card(3), spec, stored, held).warnings) == says
