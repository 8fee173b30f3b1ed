"""Which part of a selector a device fails, and what the device has instead."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.scheduling.dra.claim_request import SelectorOwner
from outfitter.scheduling.dra.slices import PublishedDevice
from outfitter.scheduling.explain import selector_terms

DRIVER = "gpu.example.com"
SAYS = f'device.attributes["{DRIVER}"]'
SPLITS = {
    "a chain": ("a && b && c", ("a", "b", "c")),
    "chains in brackets": ("(a && (b || c)) && d", ("a", "b || c", "d")),
    "all in brackets": ("((a && b))", ("a", "b")),
    "or is not cut": ("a && b || c", ("a && b || c",)),
    "a choice is not cut": ("a ? b && c : d", ("a ? b && c : d",)),
    "neither a macro's body nor a string": ('x.all(y, y && z) && "&&" == w', ("x.all(y, y && z)", '"&&" == w')),
    "brackets side by side": ("(a) && (b)", ("a", "b")),
    "brackets with a comment behind": ("(a && b) // really", ("a", "b")),
    "what cannot be read": ("a && '", ("a && '",)),
    "too many": (" && ".join(["a"] * 40), (" && ".join(["a"] * 40),)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_split(name: str) -> None:
    text, wanted = SPLITS[name]
    assert selector_terms.split(text) == wanted


def device(capacity: str = "", **attributes: Any) -> PublishedDevice:
    raw: dict[str, Any] = {"name": "gpu-0", "attributes": {
        name: {"bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string": value}
        for name, value in attributes.items()}}
    if capacity:
        raw["capacity"] = {"memory": {"value": capacity}}
    return PublishedDevice(DRIVER, "node-a", raw, ())


A40 = device("40Gi", model="A40", numa=1, busy=True)
CLASS, REQUEST = SelectorOwner("class gpu", "class gpu", 0, 1), SelectorOwner("claim here/c, request gpu", "request gpu", 0, 1)
OWNERS = (CLASS, REQUEST)


def failed(owner: SelectorOwner, term: str, passed: int, *lacks: str, **has: str) -> selector_terms.FailedTerm:
    return selector_terms.FailedTerm(owner, term, passed, has, lacks)


FAILS = {
    "a part of the class": ((f'device.driver == "{DRIVER}" && {SAYS}.model == "A100"', "true"),
                            failed(CLASS, 'model == "A100"', 1, model="A40")),
    "a part of the request": (("true", f"{SAYS}.numa == 1 && {SAYS}.numa < 1"), failed(REQUEST, "numa < 1", 2, numa="1")),
    "the other spelling": (("true", f'{SAYS}["model"] == "A100"'), failed(REQUEST, 'model == "A100"', 1, model="A40")),
    "the optional spelling": (("true", f'{SAYS}.?model.orValue("") == "A100"'),
                              failed(REQUEST, 'model == "A100"', 1, model="A40")),
    "the optional spelling of what it does not say": (
        ("true", f"{SAYS}[?\"fast\"].orValue(false)"), failed(REQUEST, "fast", 1, "fast")),
    "the optional spelling of capacity": (
        ("true", f'device.capacity["{DRIVER}"].?memory.orValue(quantity("0")).compareTo(quantity("80Gi")) >= 0'),
        failed(REQUEST, 'memory.compareTo(quantity("80Gi")) >= 0', 1, memory="40Gi")),
    "what it does not say": (("true", f'"fast" in {SAYS}'), failed(REQUEST, f'"fast" in {SAYS}', 1)),
    "a guard": (("true", f'has({SAYS}.fast) && {SAYS}.fast'), failed(REQUEST, "has(fast)", 1, "fast")),
    "true or false": (("true", f"!{SAYS}.busy"), failed(REQUEST, "!busy", 1, busy="true")),
    "another driver": (('device.driver == "nic.example.com"', "true"),
                       failed(CLASS, 'driver == "nic.example.com"', 0, driver=DRIVER)),
    "capacity": (("true", f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'),
                 failed(REQUEST, 'memory.compareTo(quantity("80Gi")) >= 0', 1, memory="40Gi")),
    "either of two": (("true", f'{SAYS}.model == "A100" || {SAYS}.model == "H100"'),
                      failed(REQUEST, 'model == "A100" || model == "H100"', 1, model="A40")),
}


@pytest.mark.parametrize("name", FAILS)
def test_failing(name: str) -> None:
    selectors, wanted = FAILS[name]
    assert selector_terms.failing(A40, selectors, OWNERS) == wanted


def test_the_number_of_a_selector_where_there_are_several() -> None:
    owners = [SelectorOwner("class gpu", "class gpu", number, 2) for number in range(2)]
    found = selector_terms.failing(A40, ("true", f'{SAYS}.model == "A100"'), owners)
    assert found is not None
    assert (found.detail["selector"], found.detail["selectors"], found.detail["owner"]) == (2, 2, "class gpu")


def test_who_has_everything_fails_nothing() -> None:
    assert selector_terms.failing(A40, ("true", f"{SAYS}.numa == 1"), OWNERS) is None


def test_a_long_part_is_cut() -> None:
    found = selector_terms.failing(A40, ("true", f"{SAYS}.numa in [{', '.join(map(str, range(50, 150)))}]"), OWNERS)
    assert found is not None
    assert found.term.endswith("...")
    assert len(found.term) == selector_terms.LENGTH
    assert found.has == {"numa": "1"}
