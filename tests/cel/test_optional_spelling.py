"""How a selector must be written to hold for devices without an attribute."""

from __future__ import annotations

import pytest

from outfitter import cel
from outfitter.cel import CelDevice

A = 'device.attributes["d.example"]'
SPELLINGS: dict[str, tuple[str, str | None]] = {
    "a text": (f'{A}.x == "y"', f'{A}.?x.orValue("")'),
    "a text on the left": (f'"y" == {A}["x"]', f'{A}[?"x"].orValue("")'),
    "a number": (f"{A}.x > 1", f"{A}.?x.orValue(0)"),
    "a number below 0": (f"{A}.x == -1", f"{A}.?x.orValue(0)"),
    "true or false": (f"!{A}.x", f"{A}.?x.orValue(false)"),
    "a list": (f'{A}.x in ["a", "b"]', f'{A}.?x.orValue("")'),
    "a part of a text": (f'{A}.x.startsWith("a")', f'{A}.?x.orValue("")'),
    "a version": (f'{A}.x.isGreaterThan(semver("1.2.3"))', f'{A}.?x.orValue(semver("0.0.0"))'),
    "a capacity": ('device.capacity["d.example"].x.compareTo(quantity("1Gi")) >= 0',
                   'device.capacity["d.example"].?x.orValue(quantity("0"))'),
    "the one that is not optional": (f'{A}.?x.orValue("") == "" && device.attributes["e.example"].x == true',
                                     'device.attributes["e.example"].?x.orValue(false)'),
    "no reference to see": (f"cel.bind(a, {A}, a.x == 1)", None),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_optional_spelling(name: str) -> None:
    text, spelling = SPELLINGS[name]
    selector, device = cel.compile_selector(text), CelDevice.from_slice("d.example", {})
    with pytest.raises(cel.EvaluationError) as caught:
        selector.matches(device)
    assert caught.value.missing == "x"
    assert cel.optional_spelling(selector, "x") == spelling
    if spelling is not None:
        plain = spelling.partition(".orValue")[0].replace(".?", ".").replace("[?", "[")
        assert cel.compile_selector(text.replace(plain, spelling)).matches(device) in (True, False)
