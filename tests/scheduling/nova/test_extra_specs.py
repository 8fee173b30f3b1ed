"""Flavors: the text of pci_passthrough:alias, and whose policy stands above whose."""

from __future__ import annotations

import pytest

from outfitter.errors import BadRequest
from outfitter.scheduling.nova import alias, extra_specs
from outfitter.scheduling.nova.extra_specs import Guest
from tests.scheduling.flavor_requests import IDS, ask

KNOWN = alias.parse([{"name": "big card", **IDS}, {"name": "nic", **IDS, "numa_policy": "required"}], in_placement=True)

TEXTS: dict[str, list[tuple[str, int]]] = {
    "": [], "  ": [], "nic:1": [("nic", 1)], " big card : 2 ,nic:0": [("big card", 2), ("nic", 0)],
    "nic:1,nic:2": [("nic", 1), ("nic", 2)], "nic:007": [("nic", 7)],
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    assert extra_specs.entries(text, KNOWN) == TEXTS[text]


WRONG = {"nic": "alias:count", "nic:": "alias:count", ":1": "alias:count", "nic:1,": "alias:count", "nic,nic:1": "'nic'",
         "nic:1:2": "alias:count", "nic:-1": "alias:count", "nic:1.5": "alias:count", "nic:٣": "alias:count",
         "card:1": "PCI alias card is not defined; defined are big card, nic", "nic:2001": "more than 2000",
         "nic:1500,nic:501": "more than 2000"}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_texts(text: str) -> None:
    with pytest.raises(BadRequest, match="pci_passthrough:alias") as told:
        extra_specs.entries(text, KNOWN)
    assert WRONG[text] in str(told.value)


POLICIES = {  # flavor, image -> what the request gets
    (None, None): "required", ("preferred", None): "preferred", (None, "socket"): "socket", ("legacy", "legacy"): "legacy",
}


@pytest.mark.parametrize(("said", "meant"), POLICIES.items())
def test_flavor_and_image_stand_above_the_alias(said: tuple[str | None, str | None], meant: str) -> None:
    extra = {extra_specs.ALIAS: "nic:1"} | ({extra_specs.POLICY: said[0]} if said[0] else {})
    got = extra_specs.read(extra, KNOWN, new_id=lambda: "r", image={extra_specs.IMAGE_POLICY: said[1]} if said[1] else None)
    assert got.requests[0].numa_policy == meant
    assert got.affinity == (said[0] or said[1])


def test_flavor_and_image_that_disagree() -> None:
    with pytest.raises(BadRequest, match="the flavor demands legacy and the image socket"):
        extra_specs.read({extra_specs.POLICY: "legacy"}, KNOWN, new_id=lambda: "r", image={extra_specs.IMAGE_POLICY: "socket"})


def test_each_entry_is_a_request_of_its_own() -> None:
    got = ask("gpu:2,gpu:1").requests
    assert [(each.request_id, each.alias, each.count) for each in got] == [("r0", "gpu", 2), ("r1", "gpu", 1)]
    assert got[0].suffix(1) == "r0-1"


GUESTS = {
    "plain": ({}, Guest(vcpus=4)),
    "pinned": ({"hw:cpu_policy": "dedicated"}, Guest(vcpus=4, pinned=True, cells=1)),
    "two cells": ({"hw:numa_nodes": "2"}, Guest(vcpus=4, cells=2)),
    "pinned on two cells": ({"hw:numa_nodes": "2", "hw:cpu_policy": "dedicated"}, Guest(vcpus=4, pinned=True, cells=2)),
    "large pages": ({"hw:mem_page_size": "large"}, Guest(vcpus=4, cells=1)),
}


@pytest.mark.parametrize("name", GUESTS)
def test_guests(name: str) -> None:
    extra, meant = GUESTS[name]
    assert extra_specs.read(extra, {}, new_id=lambda: "r", vcpus=4).guest == meant


@pytest.mark.parametrize("extra", [{"hw:cpu_policy": "own"}, {"hw:numa_nodes": "0"}, {"hw:numa_nodes": "5"},
                                   {"group_policy": "apart"}, {"hw:pci_numa_affinity_policy": "near"}])
def test_wrong_extra_specs_are_named(extra: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match=next(iter(extra))):
        extra_specs.read(extra, {}, new_id=lambda: "r", vcpus=4)
