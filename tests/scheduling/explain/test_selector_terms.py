"""Which part of a selector a device fails, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

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
OWNERS = ("class gpu: selector #0", "claim here/c, request gpu: selector #0")
FAILS = {
    "a part of the class": ((f'device.driver == "{DRIVER}" && {SAYS}.model == "A100"', "true"),
                            'class gpu wants model == "A100"; it says model A40', 1),
    "a part of the request": (("true", f"{SAYS}.numa == 1 && {SAYS}.numa < 1"),
                              "request gpu wants numa < 1; it says numa 1", 2),
    "the other spelling": (("true", f'{SAYS}["model"] == "A100"'), 'request gpu wants model == "A100"; it says model A40', 1),
    "what it does not say": (("true", f'"fast" in {SAYS}'), f'request gpu wants "fast" in {SAYS}', 1),
    "a guard": (("true", f'has({SAYS}.fast) && {SAYS}.fast'), "request gpu wants has(fast); it has no fast", 1),
    "true or false": (("true", f"!{SAYS}.busy"), "request gpu wants !busy; it says busy true", 1),
    "another driver": (('device.driver == "nic.example.com"', "true"),
                       f'class gpu wants driver == "nic.example.com"; it says driver {DRIVER}', 0),
    "capacity": (("true", f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'),
                 'request gpu wants memory.compareTo(quantity("80Gi")) >= 0; it says memory 40Gi', 1),
    "either of two": (("true", f'{SAYS}.model == "A100" || {SAYS}.model == "H100"'),
                      'request gpu wants model == "A100" || model == "H100"; it says model A40', 1),
}


@pytest.mark.parametrize("name", FAILS)
def test_failing(name: str) -> None:
    selectors, text, passed = FAILS[name]
    assert selector_terms.failing(A40, selectors, OWNERS) == selector_terms.FailedTerm(passed, text)


def test_the_number_of_a_selector_where_there_are_several() -> None:
    found = selector_terms.failing(
        A40, ("true", f'{SAYS}.model == "A100"'), ("class gpu: selector #0", "class gpu: selector #1")
    )
    assert found is not None
    assert found.text == 'class gpu (selector 2 of 2) wants model == "A100"; it says model A40'


def test_who_has_everything_fails_nothing() -> None:
    assert selector_terms.failing(A40, ("true", f"{SAYS}.numa == 1"), OWNERS) is None


def test_a_long_part_is_cut() -> None:
    found = selector_terms.failing(A40, ("true", f"{SAYS}.numa in [{', '.join(map(str, range(50, 150)))}]"), OWNERS)
    assert found is not None
    assert "...; it says numa 1" in found.text
    assert len(found.text) < 180
