"""What each form of an entry takes, what a mistake says, and that a pattern means what a naive reading of it means."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter import errors
from outfitter.inventory import device_spec, pci_address_spec, placement_names
from outfitter.inventory.pci import FunctionKind, HostDevice
from tests.inventory.spec_entries import parse_entries


def device(
    where: str,
    ids: str = "8086:37c8",
    kind: FunctionKind = FunctionKind.PCI,
    *,
    parent: str | None = None,
    serial: str | None = None,
    card: str | None = None,
    interface: str | None = None,
) -> HostDevice:
    vendor, _, product = ids.partition(":")
    return HostDevice(
        address=where,
        kind=kind,
        vendor=vendor or None,
        product=product or None,
        class_code="020000",
        revision="00",
        driver=None,
        parent=parent,
        numa=None,
        pcie_root=None,
        iommu_group=None,
        members=(),
        serial=serial,
        interfaces=(interface,) if interface else (),
        name="pci",
        card_serial=card,
    )


def matched(values: Sequence[Any], devices: Sequence[HostDevice], *, report: bool = True) -> dict[str, int | None]:
    """Address -> the index of the entry that won, None for none."""
    found = parse_entries(values, report=report).match(devices)
    return {each.address: found[each.address].index if each.address in found else None for each in devices}


def entry(value: Any, *, report: bool = True) -> device_spec.DeviceSpecEntry:
    return parse_entries([value], report=report).entries[0]


def mistakes(values: Sequence[Any], *, report: bool = True) -> dict[str, str]:
    with pytest.raises(errors.Invalid) as caught:
        parse_entries(values, report=report)
    for cause in caught.value.causes:
        assert cause.message in str(caught.value)
    return {cause.field: cause.message for cause in caught.value.causes}


CARD = device("0000:3b:00.0", "8086:37c8", FunctionKind.PF, interface="ens1f0")
VF0 = device("0000:3b:01.0", "8086:37c9", FunctionKind.VF, parent="0000:3b:00.0", interface="ens1f0v0")
VF1 = device("0000:3b:01.1", "8086:37c9", FunctionKind.VF, parent="0000:3b:00.0")
VDPA = device("0000:3b:01.2", "8086:37c9", FunctionKind.VDPA, parent="0000:3b:00.0")
GPU = device("0000:ca:00.0", "10de:2235")
OTHER = device("0001:3b:00.0", "10de:2235")
FAR = device("10000:3b:00.0", "8086:37c8")
NAMELESS = device("0000:05:00.0", "")
HOST = [CARD, VF0, VF1, VDPA, GPU, OTHER, FAR, NAMELESS]
ALL = [each.address for each in HOST]
NEAR = [each for each in ALL if each != FAR.address]
IN_3B = [CARD.address, VF0.address, VF1.address, VDPA.address]

# An entry -> what it takes of HOST.
TAKES: dict[str, tuple[Any, list[str]]] = {
    "an empty mapping takes all but what no pattern can name": ({}, NEAR),
    "stars": ({"vendor_id": "*", "product_id": "*", "address": "*:*:*.*"}, NEAR),
    "an empty address": ({"address": ""}, NEAR),
    "an empty mapping as the address": ({"address": {}}, NEAR),
    "a vendor": ({"vendor_id": "10de"}, [GPU.address, OTHER.address]),
    "in upper case with 0x": ({"vendor_id": "0x10DE", "product_id": "0X2235"}, [GPU.address, OTHER.address]),
    "with blanks around": ({"vendor_id": " 10de "}, [GPU.address, OTHER.address]),
    "an id in short form is a number": ({"vendor_id": "86"}, []),
    "leading zeros do not count": ({"vendor_id": "00010de"}, [GPU.address, OTHER.address]),
    "both ids must fit": ({"vendor_id": "10de", "product_id": "37c8"}, []),
    "a device without ids fits only where none are asked for": ({"address": "05:00.0"}, [NAMELESS.address]),
    "one address": ({"address": "0000:ca:00.0"}, [GPU.address]),
    "one address in upper case and with 0x": ({"address": "0x0:0xCA:00.0"}, [GPU.address]),
    "without a domain": ({"address": "3b:00.0"}, [CARD.address, OTHER.address]),
    "zeros may be skipped": ({"address": "0:3b:1.1"}, [VF1.address]),
    "a slot alone": ({"address": "01"}, [VF0.address, VF1.address, VDPA.address]),
    "a slot and a function": ({"address": "1.1"}, [VF1.address]),
    "a function alone": ({"address": ".1"}, [VF1.address]),
    "empty parts": ({"address": "::1."}, [VF0.address, VF1.address, VDPA.address]),
    "blanks in parts": ({"address": " 0000 : 3b : 01 . 1 "}, [VF1.address]),
    "a bus": ({"address": "0000:3b:*"}, IN_3B),
    "the address of a PF means its VFs too": ({"address": "0000:3b:00.0"}, IN_3B),
    "and with the product of the VFs only these": (
        {"address": "0000:3b:00.0", "product_id": "37c9"}, [VF0.address, VF1.address, VDPA.address]),
    "a pattern that is a PF's by chance does not mean its VFs": ({"address": "*:3b:00.0"}, [CARD.address, OTHER.address]),
    "a regular expression begins at the start of its part": ({"address": {"bus": "3"}}, [*IN_3B, OTHER.address]),
    "and need not reach the end": ({"address": {"domain": "00", "bus": "c"}}, [GPU.address]),
    "but may": ({"address": {"bus": "3$"}}, []),
    "and does not look inside": ({"address": {"bus": "b"}}, []),
    "alternatives": ({"address": {"slot": "01", "function": "[0-1]"}}, [VF0.address, VF1.address]),
    "four plain parts are one address": (
        {"address": {"domain": "0000", "bus": "3b", "slot": "00", "function": "0"}}, IN_3B),
    "four parts of which one is a pattern are not": (
        {"address": {"domain": "0000", "bus": "3b", "slot": "00", "function": "[0]"}}, [CARD.address]),
    "plain parts that are no whole address are not": (
        {"address": {"domain": "0000", "bus": "3", "slot": "00", "function": "0"}}, [CARD.address]),
    "an expression that Python finds odd": ({"address": {"bus": "[[3]"}}, [*IN_3B, OTHER.address]),
    "the interface of a PF means its VFs too": ({"devname": "ens1f0"}, IN_3B),
    "the interface of a VF means itself": ({"devname": "ens1f0v0"}, [VF0.address]),
    "an interface with a product": ({"devname": "ens1f0", "product_id": "37c8"}, [CARD.address]),
    "an interface that is not there": ({"devname": "ens9"}, []),
    "a domain beyond what can be named is never taken": ({"address": {"domain": "1"}}, []),
    "JSON text": ('{"vendor_id": "10de"}', [GPU.address, OTHER.address]),
}


@pytest.mark.parametrize("name", TAKES)
def test_entry_matches(name: str) -> None:
    value, taken = TAKES[name]
    assert [where for where, index in matched([value], HOST, report=False).items() if index is not None] == taken


def test_the_first_entry_that_fits_wins() -> None:
    values = [{"address": "0000:ca:00.0"}, {"vendor_id": "10de"}, {"address": "0000:ca:00.0", "resource_class": "never"}]
    assert matched(values, [GPU, OTHER, CARD]) == {GPU.address: 0, OTHER.address: 1, CARD.address: None}


def test_a_json_list_is_as_many_entries_as_it_has() -> None:
    values = ['[{"vendor_id": "1234"}, {"product_id": "2235"}]', {"vendor_id": "8086"}, "[]"]
    spec = parse_entries(values, report=False)
    assert [each.index for each in spec.entries] == [0, 1, 2]
    assert matched(values, [GPU, CARD]) == {GPU.address: 1, CARD.address: 2}


def test_an_entry_keeps_what_was_written() -> None:
    assert entry('{"vendor_id":"10de","traits":["ä"]}').text == '{"vendor_id": "10de", "traits": ["ä"]}'


# -- remote_managed

PORT = device("0000:3b:00.0", "15b3:a2d6", FunctionKind.PF, card="MT1")
PORT_VF = device("0000:3b:00.2", "15b3:101e", FunctionKind.VF, parent="0000:3b:00.0", card="MT1")
SILENT_VF = device("0000:3b:00.3", "15b3:101e", FunctionKind.VF, parent="0000:3b:00.0")
SERIAL_VF = device("0000:3b:00.4", "15b3:101e", FunctionKind.VF, parent="0000:3b:00.0", serial="MT1")
DPU = [PORT, PORT_VF, SILENT_VF, SERIAL_VF]

REMOTE: dict[str, tuple[dict[str, str], list[str]]] = {
    "cards with a serial number only": ({"product_id": "101e"}, [PORT_VF.address, SERIAL_VF.address]),
    "the address of the PF with the product of the VFs": (
        {"address": "0000:3b:00.0", "product_id": "101e"}, [PORT_VF.address, SERIAL_VF.address]),
    "a VF by its address": ({"address": "0000:3b:00.2"}, [PORT_VF.address]),
}


@pytest.mark.parametrize("name", REMOTE)
def test_remote_managed_values(name: str) -> None:
    value, taken = REMOTE[name]
    found = matched([{**value, "remote_managed": "true"}], DPU)
    assert [where for where, index in found.items() if index is not None] == taken


NOT_REMOTE: dict[str, tuple[dict[str, str], str, str]] = {
    "a PF by its address": ({"address": "0000:3b:00.0"}, "device_spec[1].remote_managed", "0000:3b:00.0 is a PF.*101e"),
    "a PF with its ids": ({"address": "0000:3b:00.0", "product_id": "a2d6"}, "device_spec[1].remote_managed", "is a PF"),
    "ids that fit neither": ({"address": "0000:3b:00.0", "product_id": "beef"}, "device_spec[1]", "neither .* PF .* nor"),
    "another vendor": ({"address": "0000:3b:00.0", "vendor_id": "8086"}, "device_spec[1]", "neither"),
    "an interface that is not there": ({"devname": "ens9"}, "device_spec[1].devname", "no device has the interface 'ens9'"),
}


@pytest.mark.parametrize("name", NOT_REMOTE)
def test_remote_managed_is_refused_on_a_host_where_it_makes_no_sense(name: str) -> None:
    value, field, says = NOT_REMOTE[name]
    spec = parse_entries([{"vendor_id": "1234"}, {**value, "remote_managed": True}], report=False)
    with pytest.raises(errors.Invalid, match=says) as caught:
        spec.match(DPU)
    assert [cause.field for cause in caught.value.causes] == [field]


def test_a_pf_without_vfs_may_be_named_with_the_product_that_they_will_have() -> None:
    assert matched([{"address": "0000:3b:00.0", "product_id": "101e", "remote_managed": "yes"}], [PORT]) == {PORT.address: None}


# -- what an entry says of its devices

SAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"resource_class": None, "traits": frozenset(), "physical_network": None, "remote_managed": False,
                     "managed": True, "trusted": None, "live_migratable": None, "one_time_use": None, "devname": None}),
    "a network": ({"physical_network": " fabric "}, {"physical_network": "fabric"}),
    "a network that is null": ({"physical_network": None, "resource_class": "x"},
                               {"physical_network": None, "resource_class": "CUSTOM_X"}),
    "a network that is empty": ({"physical_network": ""}, {"physical_network": None}),
    "true as JSON says it": ({"managed": False, "trusted": True}, {"managed": False, "trusted": True}),
    "true as a number": ({"live_migratable": 1, "one_time_use": 0}, {"live_migratable": True, "one_time_use": False}),
    "no is not the same as nothing": ({"live_migratable": "no"}, {"live_migratable": False}),
    "null is": ({"live_migratable": None, "managed": None}, {"live_migratable": None, "managed": True}),
    "an empty class is made from the ids": ({"resource_class": " "}, {"resource_class": None}),
    "traits as a text": ({"traits": "a, HW_GPU_API_VULKAN ,,CUSTOM_b"},
                         {"traits": frozenset({"CUSTOM_A", "HW_GPU_API_VULKAN", "CUSTOM_B"})}),
    "traits as a list": ({"traits": ["a", " b c "]}, {"traits": frozenset({"CUSTOM_A", "CUSTOM_B_C"})}),
    "no traits": ({"traits": ""}, {"traits": frozenset()}),
    "one time use": ({"one_time_use": "yes"}, {"one_time_use": True}),
}


@pytest.mark.parametrize("name", SAYS)
def test_entry_attributes(name: str) -> None:
    value, said = SAYS[name]
    assert {key: getattr(entry(value), key) for key in said} == said


@pytest.mark.parametrize("word", ["1", "t", "true", "on", "y", "yes", "TRUE", "Yes", " on "])
def test_spellings_of_true(word: str) -> None:
    assert entry({"trusted": word}).trusted is True


@pytest.mark.parametrize("word", ["0", "f", "false", "off", "n", "no", "FALSE", "No"])
def test_spellings_of_false(word: str) -> None:
    assert entry({"managed": word}).managed is False


CLASSES = {"pgpu": "PGPU", "PCI_NETDEV": "PCI_NETDEV", " vdpa_netdev": "VDPA_NETDEV", "SRIOV_NET_VF": "SRIOV_NET_VF",
           "pci netdev": "CUSTOM_PCI_NETDEV", "gpu": "CUSTOM_GPU", "GPU": "CUSTOM_GPU", "custom-x": "CUSTOM_CUSTOM_X",
           "a__b": "CUSTOM_A_B", "custom_a__b": "CUSTOM_A__B", " far gpu ": "CUSTOM_FAR_GPU", "CUSTOM_X": "CUSTOM_X",
           "!t": "CUSTOM__T", "x" * 248: "CUSTOM_" + "X" * 248}


@pytest.mark.parametrize("text", CLASSES)
def test_a_class_as_placement_knows_it(text: str) -> None:
    assert placement_names.normal_class(text) == CLASSES[text]


TRAITS = {"HW_GPU_API_VULKAN": "HW_GPU_API_VULKAN", "hw_gpu_api_vulkan": "CUSTOM_HW_GPU_API_VULKAN", "a__b": "CUSTOM_A_B",
          "custom_a__b": "CUSTOM_A__B", " b ": "CUSTOM_B", "PGPU": "CUSTOM_PGPU", "fast-link 2": "CUSTOM_FAST_LINK_2"}


@pytest.mark.parametrize("text", TRAITS)
def test_a_trait_as_placement_knows_it(text: str) -> None:
    assert placement_names.normal_trait(text) == TRAITS[text]


ILLEGAL = {"": "empty", "  ": "empty", "CUSTOM_": "at least one", "CUSTOM_foo-bar": "CUSTOM_FOO_BAR", "custom_é": "letters",
           "x" * 249: "at most 255"}


@pytest.mark.parametrize("text", ILLEGAL)
def test_a_name_that_placement_refuses(text: str) -> None:
    for normal in (placement_names.normal_class, placement_names.normal_trait):
        with pytest.raises(errors.Invalid, match=ILLEGAL[text]):
            normal(text)


@given(st.text(max_size=300))
def test_a_name_is_legal_or_refused_and_stays_what_it_became(text: str) -> None:
    for normal in (placement_names.normal_class, placement_names.normal_trait):
        try:
            name = normal(text)
        except errors.Invalid:
            continue
        assert re.fullmatch("[A-Z][A-Z0-9_]{0,254}", name)
        assert normal(name) == name


def test_the_generated_class() -> None:
    assert placement_names.generated_class("10de", "2235") == "CUSTOM_PCI_10DE_2235"


# -- mistakes: entries -> the path of the field, and words of what is said about it

WRONG: dict[str, tuple[Any, str, str]] = {
    "no JSON": ('{"vendor_id": 8086', "[0]", "invalid entry.*no JSON"),
    "the design document's own slip": ('{"traits": "A", "B"}', "[0]", 'no JSON.*"traits": "A,B"'),
    "JSON of a number": ("7", "[0]", "expecting list or dict"),
    "JSON of a list of numbers": ("[{}, 7]", "[0][1]", "expecting dict"),
    "JSON that is very deep": ("[" * 100_000, "[0]", "no JSON"),
    "a key twice in JSON": ('{"address": "1", "address": "2"}', "[0].address", "twice"),
    "a list": ([{}], "[0]", "expecting list or dict"),
    "null": (None, "[0]", "expecting list or dict.*not null"),
    "a number": (7, "[0]", "expecting list or dict"),
    "an unknown key": ({"adress": "0000:3b:00.0"}, "[0].adress", "did you mean address?"),
    "a key that is like no other": ({"x": "1"}, "[0].x", "known are vendor_id"),
    "a vendor that is no number": ({"vendor_id": "intel"}, "[0].vendor_id", "'intel' does not parse as a hex number"),
    "a vendor that is part of one": ({"vendor_id": "80*"}, "[0].vendor_id", "does not parse as a hex number"),
    "a negative vendor": ({"vendor_id": "-1"}, "[0].vendor_id", "does not parse"),
    "a vendor too large": ({"vendor_id": "18086"}, "[0].vendor_id", "greater than the maximum FFFF"),
    "a product as a number": ({"product_id": 2235}, "[0].product_id", 'string, for example "10de", not 2235'),
    "an empty vendor": ({"vendor_id": ""}, "[0].vendor_id", "does not parse"),
    "a vendor that is null": ({"vendor_id": None}, "[0].vendor_id", "is empty"),
    "a domain too large": ({"address": "10000:00:00.0"}, "[0].address", "domain .* maximum FFFF"),
    "a bus too large": ({"address": "0000:100:00.0"}, "[0].address", "bus .* maximum FF"),
    "a slot too large": ({"address": "0000:00:20.0"}, "[0].address", "slot .* maximum 1F$"),
    "a bus where a slot stands": ({"address": "3b"}, "[0].address", r"slot .* maximum 1F; .* bus is written 3b:\*"),
    "a function too large": ({"address": "0000:00:1f.8"}, "[0].address", "func .* maximum 7"),
    "too many colons": ({"address": "00:0000:3b:00.0"}, "[0].address", "address .* format"),
    "two points": ({"address": "0000:3b:00.0.1"}, "[0].address", "func '0.1' .* not a hex number.* format"),
    "a star inside a part": ({"address": "0000:3*:00.0"}, "[0].address", r"bus '3\*' .* not a hex number.*mapping"),
    "an address of words": ({"address": "ens1f0"}, "[0].address", "slot 'ens1f0' .* not a hex number"),
    "an address as a list": ({"address": ["0000", "3b"]}, "[0].address", "address .* format"),
    "an address as a number": ({"address": 3}, "[0].address", "address .* format"),
    "an address as a truth": ({"address": True}, "[0].address", "address .* format"),
    "an address that is null": ({"address": None}, "[0].address", "is empty.*remove address"),
    "a bad expression": ({"address": {"bus": "3["}}, "[0].address", r"address .* format: its bus '3\[' is not a regular"),
    "an expression that is a number": ({"address": {"bus": 3}}, "[0].address.bus",
                                        "address .* format: 3 is not a regular expression string"),
    "an unknown part": ({"address": {"func": "0"}}, "[0].address.func", "did you mean function?"),
    "an interface and an address": ({"address": "3b:00.0", "devname": "ens1"}, "[0].devname", "combined with address"),
    "an empty interface": ({"devname": " "}, "[0].devname", "is empty"),
    "an interface that is null": ({"devname": None}, "[0].devname", "is empty"),
    "an interface that is a list": ({"devname": ["a"]}, "[0].devname", "must be a string"),
    "a truth that is none": ({"managed": "maybe"}, "[0].managed", "cannot parse managed: \"maybe\""),
    "an empty truth": ({"trusted": ""}, "[0].trusted", "cannot parse trusted"),
    "a truth that is a list": ({"live_migratable": []}, "[0].live_migratable", "cannot parse live_migratable"),
    "a truth that is two": ({"one_time_use": 2}, "[0].one_time_use", "cannot parse one_time_use"),
    "a network that is a number": ({"physical_network": 7}, "[0].physical_network", "must be a string, not 7"),
    "a network that cannot be a trait": ({"physical_network": "x" * 250}, "[0].physical_network", "at most 255"),
    "a class beside a network": ({"physical_network": "a", "resource_class": "x"}, "[0].resource_class",
                                 "SRIOV_NET_VF.*VDPA_NETDEV.*PCI_NETDEV"),
    "a class that is a list": ({"resource_class": ["a"]}, "[0].resource_class", "must be a string"),
    "an illegal class": ({"resource_class": "CUSTOM_A-B"}, "[0].resource_class", "for example CUSTOM_A_B"),
    "an illegal trait": ({"traits": "a,CUSTOM_A-B"}, "[0].traits", "'CUSTOM_A-B'.*for example CUSTOM_A_B"),
    "traits that are a mapping": ({"traits": {"a": "b"}}, "[0].traits", 'must be a string such as "A,B" or a list'),
    "traits that are numbers": ({"traits": [1]}, "[0].traits", "list of strings"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistake_is_reported(name: str) -> None:
    value, field, says = WRONG[name]
    found = mistakes([value])
    assert list(found) == [f"device_spec{field}"]
    assert re.search(says, found[f"device_spec{field}"])


def test_one_time_use_needs_placement() -> None:
    assert "requires report_in_placement" in mistakes([{"one_time_use": "true"}], report=False)["device_spec[0].one_time_use"]
    assert entry({"one_time_use": "false"}, report=False).one_time_use is False


def test_all_mistakes_of_all_entries_are_reported_at_once() -> None:
    values = [{"vendor_id": "x", "address": "20", "managed": "?"}, "{", {}, '[{"traits": "CUSTOM_"}, 1]', *([{"x": "1"}] * 40)]
    found = mistakes(values)
    assert {"device_spec[0].vendor_id", "device_spec[0].address", "device_spec[0].managed", "device_spec[1]",
            "device_spec[3][0].traits", "device_spec[3][1]", "device_spec[43].x"} <= set(found)
    assert len(found) == 46


def test_the_path_is_the_callers() -> None:
    with pytest.raises(errors.Invalid, match=r"hosts\.a\.device_spec\[0\]\.x"):
        parse_entries([{"x": ""}], "hosts.a.device_spec", report=False)


# -- patterns against a naive reading of them

def numbers(high: int) -> st.SearchStrategy[int]:
    return st.integers(0, high) | st.integers(0, min(high, 2))  # small ones, so that some meet


WHERE = st.tuples(numbers(0xFFFF), numbers(0xFF), numbers(0x1F), numbers(7))


@st.composite
def written(draw: st.DrawFn, number: int | None) -> str:
    if number is None:
        return draw(st.sampled_from(["", "*", " ", " * "]))
    text = draw(st.sampled_from([f"{number:x}", f"{number:X}", f"{number:04x}", f"0x{number:x}"]))
    return draw(st.sampled_from([text, f" {text}"]))


@given(st.data(), WHERE, WHERE, st.tuples(*[st.booleans()] * 4))
def test_string_values_are_literal(data: st.DataObject, meant: tuple[int, ...], there: tuple[int, ...],
                                   wild: tuple[bool, ...]) -> None:
    wanted = [None if any_ else number for any_, number in zip(wild, meant, strict=True)]
    parts = [data.draw(written(number)) for number in wanted]
    if wanted[0] is None and data.draw(st.booleans()):
        text = f"{parts[1]}:{parts[2]}.{parts[3]}" if wanted[1] is not None else f"{parts[2]}.{parts[3]}"
    else:
        text = f"{parts[0]}:{parts[1]}:{parts[2]}.{parts[3]}"
    pattern = pci_address_spec.from_text(text)
    name = "{:04x}:{:02x}:{:02x}.{:x}".format(*there)
    found = pci_address_spec.split(name)
    assert found is not None
    assert pattern.matches(found) == all(want in (None, got) for want, got in zip(wanted, there, strict=True))
    assert pattern.single == (None if None in wanted else "{:04x}:{:02x}:{:02x}.{:x}".format(*meant))
    assert pci_address_spec.from_text(str(pattern)) == pattern


REGEXES = st.sampled_from(["0", "00", "0000", ".*", "[0-3]", "a|0", "$", "(?i)A"])


@given(WHERE, st.dictionaries(st.sampled_from(pci_address_spec.PARTS), REGEXES))
def test_regular_expressions_are_pythons(there: tuple[int, ...], given_: dict[str, str]) -> None:
    found = pci_address_spec.split("{:04x}:{:02x}:{:02x}.{:x}".format(*there))
    assert found is not None
    naive = all(re.match(given_.get(name, ""), part) for name, part in zip(pci_address_spec.PARTS, found, strict=True))
    assert pci_address_spec.from_regexes(given_).matches(found) == naive


@given(st.text(alphabet="0123456789abcdefxX:.* g", max_size=16))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        pattern = pci_address_spec.from_text(text)
    except errors.Invalid:
        return
    assert pci_address_spec.from_text(str(pattern)) == pattern


ENTRIES = st.lists(st.fixed_dictionaries({}, optional={
    "vendor_id": st.sampled_from(["8086", "10de", "*"]), "product_id": st.sampled_from(["37c8", "37c9", "2235"]),
    "address": st.sampled_from(["3b:*", "0000:3b:00.0", ".1", {"bus": "3"}]), "traits": st.just("a")}), max_size=4)


@given(ENTRIES)
def test_the_explanation_agrees_with_the_match(values: list[dict[str, Any]]) -> None:
    spec = parse_entries([json.dumps(value) for value in values], report=False)
    taken = spec.match(HOST)
    for where, compared in spec.compare(HOST).items():
        fits = [index for index, comparison in enumerate(compared) if not comparison.unmet]
        assert (taken[where].index if where in taken else None) == (fits[0] if fits else None)
