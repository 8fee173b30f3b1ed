"""PCI aliases: what they mean, and every mistake with its alias, its key and what would be right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outfitter import errors
from outfitter.inventory import config
from outfitter.scheduling.dra import claim_request
from outfitter.scheduling.nova import alias, extra_specs
from outfitter.scheduling.nova.alias import Traits

NAMED = {"name": "gpu", "resource_class": "gpu"}


def traits(**keys: str) -> Traits:
    return alias.parse([{**NAMED, **keys}], in_placement=True)["gpu"].specs[0].traits


MEANINGS: dict[str, tuple[dict[str, str], Traits]] = {
    "nothing": ({}, Traits()),
    "an empty text": ({"traits": " , "}, Traits()),
    "standard and custom": ({"traits": "HW_GPU_API_VULKAN,fast link"},
                            Traits(frozenset({"HW_GPU_API_VULKAN", "CUSTOM_FAST_LINK"}))),
    "a forbidden one": ({"traits": "a, !b"}, Traits(frozenset({"CUSTOM_A"}), frozenset({"CUSTOM_B"}))),
    "the design document's own example": (
        {"traits1": "T1,!T2", "traits2": "in:T3,T4"},
        Traits(frozenset({"CUSTOM_T1"}), frozenset({"CUSTOM_T2"}), (frozenset({"CUSTOM_T3", "CUSTOM_T4"}),))),
    "two sets of alternatives": (
        {"traits1": "in:a,b", "traits2": "in: c"},
        Traits(any_of=(frozenset({"CUSTOM_A", "CUSTOM_B"}), frozenset({"CUSTOM_C"})))),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_traits(name: str) -> None:
    keys, meant = MEANINGS[name]
    assert traits(**keys) == meant


WISH = Traits(frozenset({"A"}), frozenset({"B"}), (frozenset({"C", "D"}),))


@pytest.mark.parametrize(("have", "lacking"), [
    ({"A", "C"}, []), ({"A", "D", "E"}, []),
    ({"C"}, ["lacks trait A"]),
    ({"A", "B", "C"}, ["has trait B, which is not wanted"]),
    ({"A"}, ["has none of the traits C, D"]),
])
def test_missing_traits(have: set[str], lacking: list[str]) -> None:
    assert WISH.lacks(frozenset(have)) == lacking


def test_the_class_is_the_written_one_or_made_from_the_ids() -> None:
    found = alias.parse([
        {"name": "a", "vendor_id": "10DE", "product_id": "2235"},
        {"name": "b", "vendor_id": "10de", "product_id": "2235", "resource_class": "pgpu"},
        {"name": "c", "resource_class": " ", "vendor_id": "10de", "product_id": "2235"},
    ], in_placement=True)
    assert {name: each.specs[0].resource_class for name, each in found.items()} == {
        "a": "CUSTOM_PCI_10DE_2235", "b": "PGPU", "c": "CUSTOM_PCI_10DE_2235"}
    assert (found["a"].specs[0].vendor, found["a"].specs[0].product) == ("10de", "2235")


def test_unknown_live_migratable_differs_from_false() -> None:
    said = [alias.parse([{**NAMED, **more}], in_placement=True)["gpu"].specs[0].live_migratable
            for more in ({}, {"live_migratable": "YES"}, {"live_migratable": "off"})]
    assert said == [None, True, False]


WRONG: dict[str, tuple[list[Any], bool, list[str]]] = {
    "an unknown key": ([{**NAMED, "trait": "a"}], True, ["'gpu'", "alias[0].trait", "did you mean traits"]),
    "an entry of a JSON list": (['[{"name": "a", "resource_class": "x"}, {"name": "b", "vendor_id": "zz"}]'], True,
                                ["'b'", "alias[0][1].vendor_id", "four hex digits"]),
    "no JSON": (["{"], True, ["no JSON"]),
    "a class that cannot be": ([{"name": "gpu", "resource_class": "CUSTOM_a-b"}], True,
                               ["'gpu'", "resource_class", "CUSTOM_A_B"]),
    "two classes": ([{"name": "gpu", "resource_class": ["a", "b"]}], True, ["'gpu'", "alias[0].resource_class", "string"]),
    "a trait that cannot be": ([{**NAMED, "traits3": "CUSTOM_a-b"}], True, ["'gpu'", "traits3", "CUSTOM_A_B"]),
    "all mistakes at once": ([{"name": "a", "vendor_id": "1"}, {"name": "b", "device_type": "VF"}], True,
                             ["2 mistakes", "'a'", "'b'", "type-VF"]),
    "two of a name": ([NAMED, NAMED], True, ["'gpu'", "multiple", "pci_in_placement", "the same resource_class"]),
    "a class alone without Placement": ([NAMED], False, ["'gpu'", "vendor_id and product_id"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name: str) -> None:
    values, placement, says = WRONG[name]
    with pytest.raises(errors.Invalid) as told:
        alias.parse(values, in_placement=placement)
    assert told.value.causes
    assert [part for part in says if part not in str(told.value)] == [], str(told.value)


# -- what people read

PAGE = (Path(__file__).parents[3] / "docs" / "aliases.md").read_text()


def test_docs_list_every_key_and_policy() -> None:
    words = {*config.ALIAS_KEYS, *alias.POLICIES, *config.ALIAS_CHOICES["device_type"], extra_specs.ALIAS, extra_specs.POLICY,
             extra_specs.GROUPS, extra_specs.IMAGE_POLICY, "isolate", "hw:cpu_policy", "hw:numa_nodes", "hw:mem_page_size"}
    assert {word for word in words if f"`{word}`" not in PAGE} == set()
    assert f"At most {claim_request.MOST} devices" in PAGE


def test_what_the_page_shows_is_right() -> None:
    first, _, all_kinds = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)  # the second is a flavor
    assert list(alias.parse(config.parse(first).default.alias, in_placement=True)) == ["gpu"]
    found = alias.parse(config.parse(all_kinds).default.alias, in_placement=True)
    assert found["new gpu"].specs[0].traits == Traits(frozenset({"CUSTOM_AMPERE"}), frozenset({"CUSTOM_SLOW"}))
    rows = re.findall(r'^\| `("traits.*?)` \|', PAGE, re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        assert traits(**json.loads(f"{{{row}}}")) != Traits()
