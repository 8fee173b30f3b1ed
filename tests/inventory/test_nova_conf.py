"""From nova.conf to our file: the same entries in the same order, and a warning for what means something else."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from outfitter import errors
from outfitter.inventory import config, device_spec, nova_conf
from tests.inventory.spec_entries import parse_entries


def imported(*texts: str) -> nova_conf.Imported:
    return nova_conf.convert([nova_conf.read(text, f"{place}.conf") for place, text in enumerate(texts)])


def values(*texts: str) -> Mapping[str, object]:
    """Our file as plain YAML reads it."""
    found = yaml.safe_load(imported(*texts).text)
    return found if isinstance(found, dict) else {}


# nova.conf files -> what stands in ours
MADE: dict[str, tuple[list[str], dict[str, object]]] = {
    "nothing": ([""], {}),
    "other sections": (["[DEFAULT]\nmy_ip = 1.2.3.4\n[neutron]\ndevice_spec = {}\n"], {}),
    "an entry": (['[pci]\ndevice_spec = {"vendor_id": "10de"}'], {"device_spec": [{"vendor_id": "10de"}]}),
    "many": (['[pci]\ndevice_spec = {"vendor_id": "1"}\ndevice_spec={"vendor_id": "2"}'],
             {"device_spec": [{"vendor_id": "1"}, {"vendor_id": "2"}]}),
    "a list": (['[pci]\ndevice_spec = [{"vendor_id": "1"}, {"vendor_id": "2"}]'],
               {"device_spec": [{"vendor_id": "1"}, {"vendor_id": "2"}]}),
    "an empty list": (["[pci]\ndevice_spec = []"], {"device_spec": []}),
    "over several lines": (['[pci]\ndevice_spec = [\n  {"vendor_id": "1"},\n\t{"vendor_id": "2"}\n  ]\nalias = {"name": "a"}'],
                           {"device_spec": [{"vendor_id": "1"}, {"vendor_id": "2"}], "alias": [{"name": "a"}]}),
    "with a colon": (['[pci]\ndevice_spec: {"address": "0000:3b:00.0"}'], {"device_spec": [{"address": "0000:3b:00.0"}]}),
    "in quotes": (["""[pci]\ndevice_spec = '{"vendor_id": "1"}'"""], {"device_spec": [{"vendor_id": "1"}]}),
    "comments": (['# a\n[pci]\n; b\n#device_spec = {}\ndevice_spec = {"vendor_id": "1"}\n# c'],
                 {"device_spec": [{"vendor_id": "1"}]}),
    "lines of Windows": (['[pci]\r\ndevice_spec = {"vendor_id": "1"}\r\n\r\n'], {"device_spec": [{"vendor_id": "1"}]}),
    "a section in capitals": (['[PCI]\ndevice_spec = {"vendor_id": "1"}'], {"device_spec": [{"vendor_id": "1"}]}),
    "a section twice": (['[pci]\ndevice_spec = {"vendor_id": "1"}\n[a]\n[pci]\ndevice_spec = {"vendor_id": "2"}'],
                        {"device_spec": [{"vendor_id": "1"}, {"vendor_id": "2"}]}),
    "older names come before newer ones of the same file": (
        ['[pci]\ndevice_spec = {"vendor_id": "3"}\npassthrough_whitelist = {"vendor_id": "2"}\n'
         '[DEFAULT]\npci_passthrough_whitelist = {"vendor_id": "1"}\npci_alias = {"name": "a"}\n[pci]\nalias = {"name": "b"}'],
        {"device_spec": [{"vendor_id": "1"}, {"vendor_id": "2"}, {"vendor_id": "3"}], "alias": [{"name": "a"}, {"name": "b"}]}),
    "the older name takes class and traits too": (
        ['[pci]\npassthrough_whitelist = {"vendor_id": "1", "resource_class": "gpu", "traits": "a,b"}'],
        {"device_spec": [{"vendor_id": "1", "resource_class": "gpu", "traits": "a,b"}]}),
    "later files add": (['[pci]\ndevice_spec = {"vendor_id": "1"}', '[pci]\npassthrough_whitelist = {"vendor_id": "2"}'],
                        {"device_spec": [{"vendor_id": "1"}, {"vendor_id": "2"}]}),
    "dedicated CPUs": (["[compute]\ncpu_dedicated_set = 4-12, ^8,15"], {"cpu_dedicated_set": "4-7,9-12,15"}),
    "the last dedicated CPUs decide": (["[compute]\ncpu_dedicated_set = 1", "[compute]\ncpu_dedicated_set = 2-3"],
                                       {"cpu_dedicated_set": "2-3"}),
    "switches": (["[pci]\nreport_in_placement = True\n[filter_scheduler]\npci_in_placement = on"],
                 {"report_in_placement": True, "pci_in_placement": True}),
    "switches by their other names": (["[pci]\nreport_to_placement = 1\n[scheduler]\npci_prefilter = yes"],
                                      {"report_in_placement": True, "pci_in_placement": True}),
    "the last switch of a file decides": (["[pci]\nreport_in_placement = true\nreport_in_placement = false"],
                                          {"report_in_placement": False}),
    "the name of today decides within a file": (
        ["[filter_scheduler]\npci_in_placement = true\n[scheduler]\npci_prefilter = false"], {"pci_in_placement": True}),
    "the last file with a switch decides": (
        ["[pci]\nreport_in_placement = false", "[pci]\nreport_in_placement = true", "[pci]"], {"report_in_placement": True}),
    "a dollar is written twice": (['[pci]\ndevice_spec = {"address": {"bus": "3b$$", "slot": "0\\$"}}'],
                                  {"device_spec": [{"address": {"bus": "3b$", "slot": "0$"}}]}),
    "a dollar before nothing": (['[pci]\ndevice_spec = {"address": {"bus": "3b$"}}'],
                                {"device_spec": [{"address": {"bus": "3b$"}}]}),
    "what looks like a number stays a text": (['[pci]\ndevice_spec = {"vendor_id": "0010", "product_id": "1e10"}'],
                                              {"device_spec": [{"vendor_id": "0010", "product_id": "1e10"}]}),
    "truths, lists and nothing": (
        ['[pci]\ndevice_spec = {"managed": false, "traits": ["a", "b: c"], "physical_network": null}'],
        {"device_spec": [{"managed": False, "traits": ["a", "b: c"], "physical_network": None}]}),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made(name: str) -> None:
    files, made = MADE[name]
    assert values(*files) == made
    assert imported(*files).warnings == ()


def entries(spec: device_spec.DeviceSpec | None) -> list[device_spec.DeviceSpecEntry]:
    """The entries without the words of their files."""
    return [dataclasses.replace(entry, text="") for entry in spec.entries] if spec is not None else []


WHOLE = r"""
[DEFAULT]
pci_alias = { "name": "qat", "vendor_id": "8086", "product_id": "37c9" }
[pci]
report_in_placement = true
device_spec = [{"vendor_id": "10de", "product_id": "2235", "resource_class": "gpu", "traits": "a,HW_GPU_API_VULKAN"},
    {"address": {"domain": ".*", "bus": "3[bc]", "function": "[0-3]"}, "one_time_use": "yes"}]
device_spec = {"address": "*:0a:00.*", "physical_network": "net \"1\" \\ ä", "trusted": "true", "managed": "no"}
device_spec = {"address": "0000:3b:00.0", "live_migratable": true, "traits": ["x", "y"], "physical_network": null}
alias = {"name": "gpu", "resource_class": "GPU", "traits": "a", "live_migratable": "yes", "numa_policy": "socket"}
[filter_scheduler]
pci_in_placement = true
"""


def test_converted_file_has_the_same_entries() -> None:
    ours = config.parse(imported(WHOLE).text).default
    options = nova_conf.read(WHOLE, "nova.conf")
    theirs = parse_entries([each.value for each in options if each.key == "device_spec"], report=True)
    assert len(theirs.entries) == 4
    assert entries(ours.device_spec) == entries(theirs)
    aliases = [each.value for each in options if each.key in ("alias", "pci_alias")]
    assert ours.alias == config.parse(yaml.safe_dump({"alias": aliases, "pci_in_placement": True})).default.alias
    assert (ours.report_in_placement, ours.pci_in_placement) == (True, True)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="$"), min_size=1, max_size=20)


@given(TEXTS, st.lists(TEXTS, max_size=3))
@example("a\u2028 b\x85\x00\U000e0001\n\ufeff😀", [])
def test_any_text_arrives_as_it_was(network: str, traits: list[str]) -> None:
    value = {"physical_network": network, "traits": traits}
    try:
        theirs = parse_entries([value], report=False)
    except errors.Invalid:
        return
    text = nova_conf.convert([[nova_conf.Option("pci", "device_spec", json.dumps(value), "nova.conf", 1)]]).text
    assert entries(config.parse(text).default.device_spec) == entries(theirs)


def test_each_entry_names_its_source_line() -> None:
    text = imported('[pci]\ndevice_spec = [{"vendor_id": "1"},\n  {"vendor_id": "2"}]\n', '[pci]\nalias = {"name": "a"}').text
    assert text == """\
# From 0.conf, 1.conf.

device_spec:
# 0.conf:2 [pci]device_spec, 1 of 2
- {vendor_id: "1"}
# 0.conf:2 [pci]device_spec, 2 of 2
- {vendor_id: "2"}

alias:
# 1.conf:2 [pci]alias
- {name: "a"}
"""


WARNED: dict[str, tuple[str, str]] = {
    "blanks around traits": ('[pci]\ndevice_spec = {"traits": "a, b"}', r"0\.conf:2: \[pci\]device_spec: .*' b'.* CUSTOM__B"),
    "an empty trait": ('[pci]\ndevice_spec = {"traits": "a,"}', "empty trait in 'a,' is dropped; Nova reads it as CUSTOM_"),
    "blanks around the traits of an alias": ('[pci]\nalias = {"name": "a", "traits": "x ,y"}', "CUSTOM_X_"),
    "a forbidden trait": ('[pci]\nalias = {"name": "a", "traits": "!x"}', "'!x' forbids .*; Nova requires CUSTOM__X"),
    "a class beside a network": ('[pci]\ndevice_spec = {"physical_network": "a", "resource_class": "b"}',
                                 "resource_class is dropped"),
    "an interface with reporting": ('[pci]\nreport_in_placement = true\ndevice_spec = {"devname": "ens1"}',
                                    r"0\.conf:3: .*devname 'ens1' cannot be reported"),
    "a standard class of ours": ('[pci]\nalias = {"name": "a", "resource_class": "pci_netdev"}',
                                 "PCI_NETDEV is the standard class here; Nova reads it as CUSTOM_PCI_NETDEV"),
    "the old switch in the section of the new one": (
        "[filter_scheduler]\npci_prefilter = true",
        r"0\.conf:2: \[filter_scheduler\]pci_prefilter: is not imported: .* write \[scheduler\]pci_prefilter$"),
    "the new switch in the section of the old one": (
        "[scheduler]\npci_in_placement = true",
        r"0\.conf:2: \[scheduler\]pci_in_placement: is not imported: .* write \[filter_scheduler\]pci_in_placement$"),
    "a switch of another section in [pci]": ("[pci]\npci_in_placement = true", r"write \[filter_scheduler\]pci_in_placement$"),
    "an option that is not read": ("[pci]\ndevice_specs = {}", r"0\.conf:2: \[pci\]device_specs: is not imported"),
}


@pytest.mark.parametrize("name", WARNED)
def test_changed_meaning_is_reported(name: str) -> None:
    text, says = WARNED[name]
    made = imported(text)
    assert len(made.warnings) == 1
    assert re.search(says, made.warnings[0])
    config.parse(made.text)


WRONG: dict[str, tuple[str, str]] = {
    "no section": ("device_spec = {}", r"0\.conf:1: device_spec is before the first section"),
    "a section without an end": ("[pci\n", r"0\.conf:1: '\[pci' is not a section"),
    "a section without a name": ("[]\n", r"0\.conf:1: '\[\]' is not a section"),
    "no assignment": ("[pci]\ndevice_spec\n", r"0\.conf:2: 'device_spec' is not an assignment"),
    "no name": ("[pci]\n = 1\n", r"0\.conf:2: is indented"),
    "an empty name": ("[pci]\n= 1\n", r"0\.conf:2: '= 1' is not an assignment"),
    "a value goes on after an empty line": ("[pci]\ndevice_spec = [\n\n  {}]", r"0\.conf:4: is indented"),
    "a value goes on after a comment": ("[pci]\ndevice_spec = [\n# x\n  {}]", r"0\.conf:4: is indented"),
    "no JSON": ("[pci]\nalias = {name: a}", r"0\.conf:2: \[pci\]alias: invalid entry.*no JSON"),
    "nothing": ("[pci]\ndevice_spec =", r"0\.conf:2: \[pci\]device_spec: invalid entry"),
    "an unknown key": ('[pci]\n\ndevice_spec = {"adress": "1"}', r"0\.conf:3: \[pci\]device_spec\.adress: .* address"),
    "a mistake within a list": ('[pci]\ndevice_spec = [{}, {"vendor_id": "x"}]', r"0\.conf:2: .*device_spec\[1\]\.vendor_id: "),
    "a switch that is neither": ("[pci]\nreport_in_placement = maybe", r"0\.conf:2: \[pci\]report_in_placement: 'maybe'"),
    "another option": ('[pci]\ndevice_spec = {"address": "$my_address"}', r"0\.conf:2: .*refers to the option my_address"),
    "another option in braces": ('[pci]\ndevice_spec = {"address": "${where}"}', r"option where; .* instead of \$\{where\}"),
    "one time use without reporting": ('[pci]\ndevice_spec = {"one_time_use": true}', r"\[pci\]device_spec\.one_time_use"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistake_is_reported_with_its_line(name: str) -> None:
    text, says = WRONG[name]
    with pytest.raises(errors.Invalid, match=says):
        imported(text)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(errors.Invalid) as caught:
        imported('[pci]\ndevice_spec = {"x": 1}\nalias = {}\nreport_in_placement = ?\n', "[pci]\ndevice_spec = {\n")
    assert [cause.field for cause in caught.value.causes] == [
        "0.conf:4: [pci]report_in_placement", "0.conf:2: [pci]device_spec.x", "1.conf:2: [pci]device_spec",
        "0.conf:3: [pci]alias.name"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="cannot be read"):
        nova_conf.load([tmp_path / "nova.conf"])
    (tmp_path / "nova.conf").write_bytes(b"\xff")
    with pytest.raises(errors.Invalid, match="cannot be read"):
        nova_conf.load([tmp_path / "nova.conf"])
