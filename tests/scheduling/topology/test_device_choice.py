from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from outfitter.scheduling.topology.device_choice import (
    ChosenDevices,
    DevicesUnavailable,
    PreferenceNeeded,
    begin_choice,
    finish_choice,
)
from outfitter.scheduling.topology.hints import DeviceRequest, ResourceDevices

FOUR = {"g0": (0,), "g1": (0,), "g2": (0,), "g3": (1,)}
NONE: Mapping[str, tuple[int, ...]] = {"g0": (), "g1": (), "g2": ()}


@dataclass
class Case:
    numa: Mapping[str, tuple[int, ...]]
    count: int
    ids: str
    mask: int | None = None
    free: str | None = None
    assigned: str = ""
    reusable: str = ""
    prefers: str = ""
    asked: tuple[str, str] | None = None  # available, must: the plugin is asked with these; None: it is not


CASES = {
    "no affinity": Case(NONE, 2, "g0 g1", asked=("g0 g1 g2", "")),
    "the plugin's choice": Case(NONE, 2, "g1 g2", prefers="g2 g1", asked=("g0 g1 g2", "")),
    "a choice of too few is filled up": Case(NONE, 2, "g0 g2", prefers="g2", asked=("g0 g1 g2", "")),
    "of a choice of too many the first count": Case(NONE, 1, "g2", prefers="g2 g1 g0", asked=("g0 g1 g2", "")),
    "a choice that is not free is ignored": Case(NONE, 1, "g1", free="g1 g2", prefers="g0 x", asked=("g1 g2", "")),
    "aligned devices first": Case(FOUR, 1, "g3", mask=0b10),
    "of aligned devices the plugin's choice": Case(FOUR, 1, "g1", mask=0b01, prefers="g3 g1", asked=("g0 g1 g2", "")),
    "as many aligned as needed: the plugin is not asked": Case(FOUR, 3, "g0 g1 g2", mask=0b01, prefers="g3"),
    "too few aligned: all of them, then the plugin's choice": Case(
        FOUR, 2, "g3 g1", mask=0b10, prefers="g1", asked=("g0 g1 g2 g3", "g3")),
    "too few aligned: unaligned before those without a node": Case(
        {"a": (), "g0": (0,), "g1": (1,)}, 2, "g1 g0", mask=0b10, asked=("a g0 g1", "g1")),
    "at last those without a node": Case(
        {"a": (), "g0": (0,), "g1": (1,)}, 3, "a g0 g1", mask=0b10, asked=("a g0 g1", "g1")),
    "assigned ids are kept": Case(NONE, 2, "g1 g2", free="g0", assigned="g1 g2", prefers="g0"),
    "too few are assigned: the plugin must include them": Case(
        NONE, 2, "g2 g1", free="g0 g1", assigned="g2", prefers="g1", asked=("g0 g1 g2", "g2")),
    "devices of init containers are reused": Case(NONE, 1, "g2", free="g0 g1", reusable="g2"),
    "of several reusable devices those on the affinity's nodes": Case(FOUR, 1, "g3", mask=0b10, free="g1", reusable="g0 g3"),
    "reused, then aligned by the plugin": Case(
        FOUR, 2, "g0 g2", mask=0b01, free="g1 g2 g3", reusable="g0", prefers="g2", asked=("g0 g1 g2", "g0")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_choice(case: Case) -> None:
    choice = begin_choice(request(case), case.mask)
    if case.asked is None:
        assert isinstance(choice, ChosenDevices)
    else:
        assert isinstance(choice, PreferenceNeeded)
        assert (sorted(choice.available), sorted(choice.must_include)) == tuple(text.split() for text in case.asked)
        assert choice.size == case.count
        choice = finish_choice(choice, case.prefers.split())
    assert sorted(choice.ids) == sorted(case.ids.split())
    assert len(set(choice.ids)) == case.count


def request(case: Case) -> DeviceRequest:
    taken = {*case.assigned.split(), *case.reusable.split()}
    free = set(case.numa) - taken if case.free is None else set(case.free.split())
    return DeviceRequest(ResourceDevices(case.numa, frozenset(free)), case.count,
                         frozenset(case.assigned.split()), frozenset(case.reusable.split()))


def test_too_few_are_free() -> None:
    devices = ResourceDevices(NONE, frozenset({"g0"}))
    assert begin_choice(DeviceRequest(devices, 3, reusable=frozenset({"g1"})), None) == DevicesUnavailable(2, 1)
