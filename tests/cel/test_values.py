"""Quantities, versions and the device a selector sees."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter import cel, errors
from outfitter.cel.library import quantity, semver

CANONICAL = {
    "0": "0",
    "0Gi": "0",
    "-0": "0",
    "1": "1",
    "+5": "5",
    "007": "7",
    "1000": "1k",
    "1500": "1500",
    "0.5": "500m",
    ".5": "500m",
    "1.": "1",
    "100m": "100m",
    "1000m": "1",
    "1e3": "1e3",
    "12e6": "12e6",
    "1E": "1E",
    "1E3": "1e3",
    "5e-1": "500e-3",
    "1024": "1024",
    "1024Ki": "1Mi",
    "1.5Gi": "1536Mi",
    "1Ki": "1Ki",
    "1000Ki": "1000Ki",
    "0.5Ki": "512",
    "0.1Ki": "102400m",
    "-1.5Gi": "-1536Mi",
    "1000E": "1000E",
    "1000000E": "1000000E",
    "1n": "1n",
    "0.1n": "1n",
    "-0.1n": "-1n",
    "1.0000000001": "1000000001n",
    "100000Ei": "9223372036854775807",
}


@pytest.mark.parametrize(("text", "canonical"), CANONICAL.items())
def test_quantity_is_printed_in_canonical_form(text: str, canonical: str) -> None:
    assert str(quantity.parse(text)) == canonical
    assert quantity.parse(canonical) == quantity.parse(text)


NOT_QUANTITIES = ["", " 1", "1 ", "200K", "1Kib", "1i", "Mi", "Three", "1.1.1", "--1", "1e", "1e1.5", "1e999999999", "٣", "1_0"]


@pytest.mark.parametrize("text", [*NOT_QUANTITIES, "9" * 400])
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity.parse(text)


WHOLE = {"1": 1, "50k": 50000, "1Gi": 1 << 30, "1e2": 100, "0.5": None, "1000m": None, "1.5Gi": None, "10E": None}


@pytest.mark.parametrize(("text", "whole"), WHOLE.items())
def test_whole_quantities_are_those_kubernetes_calls_integers(text: str, whole: int | None) -> None:
    assert quantity.parse(text).whole == whole


def test_quantity_arithmetic_is_exact() -> None:
    tenth = quantity.parse("0.1")
    assert tenth + quantity.parse("0.2") == quantity.parse("300m")
    assert str(quantity.parse("0") + quantity.parse("1Gi")) == "1Gi"
    assert (quantity.parse("9223372036854775807") + quantity.from_int(1)).whole is None
    assert quantity.parse("0.1Gi") > quantity.parse("107374182")
    assert (quantity.parse("1k") + quantity.from_int(1)).whole == 1001


@given(st.integers(-(10**20), 10**20), st.sampled_from(["n", "u", "m", "", "k", "M", "G", "e3", "e-7", "Ki", "Gi"]))
def test_quantity_survives_printing(number: int, suffix: str) -> None:
    value = quantity.parse(f"{number}{suffix}")
    again = quantity.parse(str(value))
    assert again == value
    assert str(again) == str(value)


ASCENDING = ["0.0.0", "0.0.1", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta"]
ASCENDING += ["1.0.0-beta", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.1.0", "1.10.0", "2.0.0-0", "2.0.0", "18446744073709551615.0.0"]


def test_versions_in_order() -> None:
    parsed = [semver.parse(text) for text in ASCENDING]
    assert all(low < high for low, high in itertools.combinations(parsed, 2))
    assert len(set(parsed)) == len(parsed)
    assert [str(version) for version in parsed] == ASCENDING


def test_build_metadata_has_no_part_in_comparing() -> None:
    assert semver.parse("1.0.0+a.1") == semver.parse("1.0.0+b") == semver.parse("1.0.0")
    assert str(semver.parse("1.0.0-rc.1+a.1")) == "1.0.0-rc.1+a.1"


NOT_VERSIONS = [
    "",
    "1",
    "1.0",
    "v1.0.0",
    "1.0.0.0",
    "01.0.0",
    "1.0.0-",
    "1.0.0-01",
    "1.0.0-a..b",
    "1.0.0+",
    "1.0.0-ä",
    " 1.0.0",
]


@pytest.mark.parametrize("text", [*NOT_VERSIONS, "1.0.0\n", "18446744073709551616.0.0", "1.0.0-18446744073709551616"])
def test_not_a_version(text: str) -> None:
    with pytest.raises(ValueError, match="not a semantic version"):
        semver.parse(text)


NORMALIZED = {"v1.0.0": "1.0.0", "1": "1.0.0", "v1.2": "1.2.0", "01.02.03": "1.2.3", "0": "0.0.0", "00.1": "0.1.0"}
NORMALIZED |= {"v1.0.0-rc.1": "1.0.0-rc.1", "1.0.00-a": "1.0.0-a"}


@pytest.mark.parametrize(("text", "expected"), NORMALIZED.items())
def test_normalized(text: str, expected: str) -> None:
    assert str(semver.parse(text, normalize=True)) == expected


@pytest.mark.parametrize("text", ["", "vv1", "1-rc", "1.0+b", "x", " v1"])
def test_not_even_normalized(text: str) -> None:
    with pytest.raises(ValueError, match="version"):
        semver.parse(text, normalize=True)


def test_device_from_slice() -> None:
    entry = {
        "name": "gpu-0",
        "attributes": {"n": {"int": 1}, "other.io/n": {"versions": ["1.0.0"]}, "d.io/a/b": {"bool": False}},
        "capacity": {"mem": {"value": "1Gi"}, "other.io/slots": {"value": 4}},
        "allowMultipleAllocations": True,
    }
    device = cel.CelDevice.from_slice("d.io", entry)
    assert device.attributes == {"d.io": {"n": 1, "a/b": False}, "other.io": {"n": [cel.Semver(1, 0, 0)]}}
    assert device.capacity == {"d.io": {"mem": quantity.parse("1Gi")}, "other.io": {"slots": quantity.parse("4")}}
    assert (device.driver, device.allow_multiple) == ("d.io", True)


def test_a_bare_device_has_empty_maps() -> None:
    device = cel.CelDevice.from_slice("d.io", {"attributes": None})
    assert (device.attributes, device.capacity, device.allow_multiple) == ({}, {}, False)


BAD_ENTRIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no value": ({"attributes": {"a": {}}}, "attributes[a]", "exactly one of int, bool"),
    "two values": ({"attributes": {"a": {"int": 1, "bool": True}}}, "attributes[a]", "not int and bool"),
    "unknown kind": ({"attributes": {"a": {"float": 1.5}}}, "attributes[a]", "exactly one of"),
    "no map": ({"attributes": {"a": 1}}, "attributes[a]", "exactly one of"),
    "bad version": ({"attributes": {"a": {"version": "v1"}}}, "attributes[a].version", "MAJOR.MINOR.PATCH"),
    "version of a list": ({"attributes": {"a": {"versions": ["1.0.0", "x"]}}}, "attributes[a].versions[1]", "MAJOR"),
    "a bool is no int": ({"attributes": {"a": {"int": True}}}, "attributes[a].int", "64-bit"),
    "an int too big": ({"attributes": {"a": {"ints": [1 << 63]}}}, "attributes[a].ints[0]", "64-bit"),
    "a string is no bool": ({"attributes": {"a": {"bool": "true"}}}, "attributes[a].bool", "true or false"),
    "a number is no string": ({"attributes": {"a": {"string": 1}}}, "attributes[a].string", "not a string"),
    "no list": ({"attributes": {"a": {"strings": "x"}}}, "attributes[a].strings", "not a list"),
    "bad quantity": ({"capacity": {"a": {"value": "1Kb"}}}, "capacity[a].value", "suffix"),
    "capacity without value": ({"capacity": {"a": {}}}, "capacity[a].value", "such as 1Gi"),
    "bad switch": ({"allowMultipleAllocations": "yes"}, "allowMultipleAllocations", "true or false"),
}


@pytest.mark.parametrize(("entry", "field", "says"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_bad_entries_name_the_field(entry: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.CelDevice.from_slice("d.io", entry)
    assert [cause.field for cause in caught.value.causes] == [field]
    assert says in caught.value.message
