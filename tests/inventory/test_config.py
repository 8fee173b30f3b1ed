"""What a configuration file may say, what each host makes of it, and what a mistake says."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfitter import errors
from outfitter.inventory import config, device_spec_parser, pci_address_spec, scan
from outfitter.inventory.config import Config, HostSettings
from outfitter.inventory.simulation import hosts_file

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "config").glob("*.yaml"))
PAGES = [ROOT / "docs" / "configuration.md", ROOT / "docs" / "device-spec.md"]


def mistakes(text: str) -> dict[str, str]:
    with pytest.raises(errors.Invalid) as caught:
        config.parse(text, "outfitter.yaml")
    assert "outfitter.yaml has " in str(caught.value)
    return {cause.field: cause.message for cause in caught.value.causes}


def without_spec(settings: HostSettings) -> dict[str, Any]:
    return {"report_in_placement": settings.report_in_placement, "pci_in_placement": settings.pci_in_placement,
            "report_networks": settings.report_networks, "alias": [dict(alias) for alias in settings.alias],
            "history_keep": settings.history_keep, "audit_every": settings.audit_every,
            "cpu_dedicated_set": settings.cpu_dedicated_set, "unhealthy_device": settings.unhealthy_device}


DEFAULTS = {"report_in_placement": False, "pci_in_placement": False, "report_networks": False, "alias": [],
            "history_keep": timedelta(days=90), "audit_every": timedelta(seconds=60), "cpu_dedicated_set": None,
            "unhealthy_device": "nothing"}

SAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "an empty file": ("", {}),
    "a comment": ("# nothing", {}),
    "reporting": ("report_in_placement: true", {"report_in_placement": True}),
    "reporting by its other name": ("report_to_placement: Yes", {"report_in_placement": True}),
    "reporting by both names": ("{report_in_placement: on, report_to_placement: true}", {"report_in_placement": True}),
    "asking": ("pci_in_placement: '1'", {"pci_in_placement": True}),
    "asking by its other name": ("pci_prefilter: true", {"pci_in_placement": True}),
    "asking without reporting": ("{pci_prefilter: true, report_in_placement: false}", {"pci_in_placement": True}),
    "networks": ("report_networks: on", {"report_networks": True}),
    "history": ("history: {keep: 12h}", {"history_keep": timedelta(hours=12)}),
    "no history": ("history: {keep: 0s}", {"history_keep": timedelta(0)}),
    "dedicated CPUs": ('cpu_dedicated_set: "4-7,^5"', {"cpu_dedicated_set": frozenset({4, 6, 7})}),
    "no dedicated CPUs": ('cpu_dedicated_set: ""', {"cpu_dedicated_set": frozenset()}),
    "unhealthy devices": ("unhealthy_device: restart", {"unhealthy_device": "restart"}),
    "audits": ("audit_every: 5m", {"audit_every": timedelta(minutes=5)}),
    "audits in days": ("audit_every: 1d", {"audit_every": timedelta(days=1)}),
    "an alias": ("alias: [{name: ' a ', vendor_id: 8086, product_id: 37c9, traits2: '!x', live_migratable: Yes}]",
                 {"alias": [{"name": "a", "vendor_id": "8086", "product_id": "37c9", "traits2": "!x",
                             "live_migratable": "true"}]}),
    "an alias as JSON": ("""alias: ['{"name": "a", "resource_class": "x"}']""",
                         {"alias": [{"name": "a", "resource_class": "x"}]}),
    "aliases as one JSON": ("""alias: '[{"name": "a"}, {"name": "b"}]'""", {"alias": [{"name": "a"}, {"name": "b"}]}),
}


@pytest.mark.parametrize("name", SAYS)
def test_valid_file(name: str) -> None:
    text, said = SAYS[name]
    found = config.parse(text)
    assert without_spec(found.default) == {**DEFAULTS, **said}
    assert found.default.device_spec is None
    assert found.for_host("any") is found.default


def test_nothing_written_is_the_default() -> None:
    assert config.parse("") == config.DEFAULT == Config(HostSettings(), {})


def texts(settings: HostSettings) -> list[str] | None:
    return None if settings.device_spec is None else [entry.text for entry in settings.device_spec.entries]


def test_device_spec_may_be_mappings_and_json() -> None:
    found = config.parse("""
device_spec:
- {vendor_id: 8086, address: 0000:10:00.0, managed: no}
- '{"vendor_id": "10de"}'
- '[{"product_id": "1"}, {"product_id": "2"}]'
""")
    assert texts(found.default) == ['{"vendor_id": "8086", "address": "0000:10:00.0", "managed": "no"}',
                                    '{"vendor_id": "10de"}', '{"product_id": "1"}', '{"product_id": "2"}']
    assert texts(config.parse("""device_spec: '[{"product_id": "1"}]'""").default) == ['{"product_id": "1"}']


def test_an_empty_device_spec_offers_nothing_and_a_missing_one_is_another_thing() -> None:
    assert texts(config.parse("device_spec: []").default) == []
    assert texts(config.parse("{}").default) is None


def test_a_host_has_its_own_and_for_the_rest_what_all_have() -> None:
    found = config.parse("""
report_in_placement: true
audit_every: 5m
device_spec: [{vendor_id: 8086}]
alias: [{name: a}]
hosts:
  plain:
  alder: {device_spec: [{vendor_id: 10de}], alias: [], history: {keep: 1d}}
  birch: {report_to_placement: false, pci_in_placement: true}
""")
    assert found.for_host("plain") == found.for_host("other") == found.default
    assert texts(found.for_host("alder")) == ['{"vendor_id": "10de"}']
    assert without_spec(found.for_host("alder")) == {
        **DEFAULTS, "report_in_placement": True, "audit_every": timedelta(minutes=5), "history_keep": timedelta(days=1)}
    assert found.for_host("birch").device_spec is found.default.device_spec
    assert without_spec(found.for_host("birch")) == {**DEFAULTS, "pci_in_placement": True, "audit_every": timedelta(minutes=5),
                                               "alias": [{"name": "a"}]}


WRONG: dict[str, tuple[str, str, str]] = {
    "an unknown key": ("device_specs: []", "device_specs", "did you mean device_spec?"),
    "a list": ("[]", "", "must be a mapping"),
    "an unknown key of a host": ("hosts: {a: {hosts: {}}}", "hosts.a.hosts", "is not known"),
    "hosts that are a list": ("hosts: [a]", "hosts", "must be a mapping from the name of a host"),
    "a host that is a text": ("hosts: {a: b}", "hosts.a", "must be a mapping"),
    "a switch that is neither": ("report_in_placement: maybe", "report_in_placement", "'maybe' is neither true nor false"),
    "a switch that is a list": ("pci_in_placement: [true]", "pci_in_placement", "must be a string"),
    "two names that disagree": ("{report_in_placement: true, report_to_placement: false}", "report_to_placement",
                                "another name of report_in_placement and contradicts it"),
    "two names of the other that disagree": ("{pci_in_placement: no, pci_prefilter: yes}", "pci_prefilter", "contradicts it"),
    "no list of CPUs": ("cpu_dedicated_set: 4-x", "cpu_dedicated_set", "'4-x' is not a list of CPUs such as 4-15 or 4-15,\\^8"),
    "an exclusion that is no number": ("cpu_dedicated_set: 4-15,^x", "cpu_dedicated_set", "'x' is not a number or range"),
    "a time without a unit": ("audit_every: 60", "audit_every", "'60' is not a duration.*for example 90s"),
    "a time of nothing": ("audit_every: 0s", "audit_every", "from 1s"),
    "a time of ages": ("history: {keep: 99999d}", "history.keep", "to 36500d"),
    "a broken time": ("history: {keep: 1.5h}", "history.keep", "whole number"),
    "history that is a time": ("history: 90d", "history", "must be a mapping with the keys keep"),
    "device_spec without anything": ("device_spec:", "device_spec", r"is empty; to offer nothing write \[\]"),
    "device_spec that is a mapping": ("device_spec: {vendor_id: 8086}", "device_spec", 'must be a list: put "- "'),
    "an entry of a host": ("hosts: {a: {device_spec: [{}, {adress: 1}]}}", "hosts.a.device_spec[1].adress", "address"),
    "a key twice": ("audit_every: 1s\naudit_every: 2s", "audit_every", "twice"),
    "one time use without reporting": ("device_spec: [{one_time_use: yes}]", "device_spec[0].one_time_use", "report_in"),
    "one time use on a host that does not report": (
        "report_in_placement: yes\ndevice_spec: [{}, {one_time_use: yes}]\nhosts: {a: {report_in_placement: no}}",
        "hosts.a.report_in_placement", r"must stay on.*device_spec\[1\]"),
    "an alias without a name": ("alias: [{vendor_id: 8086, product_id: 37c8}]", "alias[0].name", "is missing"),
    "an alias with an empty name": ("alias: [{name: ' '}]", "alias[0].name", "1 to 256 characters"),
    "an alias with a long name": (f"alias: [{{name: {'x' * 257}}}]", "alias[0].name", "1 to 256 characters, not 257"),
    "an alias with an unknown key": ("alias: [{name: a, id: 1}]", "alias[0].id", "is not known"),
    "an alias with a misspelt key": ("alias: [{name: a, vendor: 8086}]", "alias[0].vendor", "did you mean vendor_id?"),
    "an alias with 0x": ("alias: [{name: a, vendor_id: 0x8086}]", "alias[0].vendor_id", "'0x8086' is not four hex digits"),
    "an alias with a short id": ("alias: [{name: a, product_id: 7c8}]", "alias[0].product_id", "'7c8' is not four hex digits"),
    "an alias for VDPA": ("alias: [{name: a, device_type: vdpa}]", "alias[0].device_type", "'vdpa' is none of type-PCI"),
    "an alias with another policy": ("alias: [{name: a, numa_policy: strict}]", "alias[0].numa_policy", "'strict' is none of"),
    "an alias with a list of traits": ("alias: [{name: a, traits: [b, c]}]", "alias[0].traits", "must be a string"),
    "an alias with a truth as JSON says it": ("""alias: ['{"name": "a", "live_migratable": true}']""",
                                              "alias[0].live_migratable", "must be a string, not true"),
    "an alias with a truth that is none": ("alias: [{name: a, live_migratable: maybe}]", "alias[0].live_migratable", "maybe"),
    "an alias with another capability": ("alias: [{name: a, capability_type: usb}]", "alias[0].capability_type", "'usb'"),
    "an alias that is no JSON": ("alias: ['{name: a}']", "alias[0]", "is no JSON"),
    "aliases that are a mapping": ("alias: {name: a}", "alias", "must be a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistake_is_reported(name: str) -> None:
    text, field, says = WRONG[name]
    found = mistakes(text)
    assert list(found) == [field]
    assert re.search(says, found[field])


def test_all_mistakes_are_reported_at_once() -> None:
    assert set(mistakes("""
device_spec: [{vendor_id: x}]
alias: [{}]
audit_every: often
hosts: {a: {report_networks: 2}, b: {device_spec: ['[']}}
""")) == {"device_spec[0].vendor_id", "alias[0].name", "audit_every", "hosts.a.report_networks", "hosts.b.device_spec[0]"}


def test_a_file_that_is_no_yaml_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="not YAML: line 1"):
        config.parse("a: ]", "outfitter.yaml")
    with pytest.raises(errors.Invalid, match=r"configuration file .*/nope\.yaml cannot be read"):
        config.load(tmp_path / "nope.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(errors.Invalid, match="cannot be read"):
        config.load(tmp_path / "bytes.yaml")


# -- the examples and the pages

@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_right(path: Path) -> None:
    assert config.load(path).default.device_spec is not None


def taken(example: str, host: str) -> dict[str, list[str]]:
    """What each entry of an example takes of a host of the example hosts, by address."""
    hosts = {each.name: each for each in hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts}
    spec = config.load(ROOT / "examples" / "config" / example).for_host(host).device_spec
    assert spec is not None
    found: dict[str, list[str]] = {}
    for where, entry in spec.match(scan.scan(hosts[host].tree()).devices).items():
        found.setdefault(f"device_spec[{entry.index}]", []).append(where)
    return found


def test_examples_are_valid() -> None:
    vfs = [f"0000:3b:01.{number}" for number in range(8)]
    assert taken("gpus-but-one.yaml", "gpu-a") == {"device_spec[0]": ["0000:b1:00.0"], "device_spec[1]": ["0000:b1:00.1"]}
    assert taken("vfs-of-one-port.yaml", "net-a") == {"device_spec[0]": vfs}
    assert taken("networks.yaml", "net-a") == {"device_spec[0]": vfs, "device_spec[1]": ["0000:d8:00.4"],
                                               "device_spec[2]": ["0000:d8:00.5"]}
    assert taken("placement.yaml", "net-a") == {"device_spec[0]": vfs}
    assert taken("placement.yaml", "gpu-a") == {"device_spec[0]": ["0000:65:00.0", "0000:b1:00.0"],
                                                "device_spec[1]": ["0000:65:00.1", "0000:b1:00.1"]}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_what_the_pages_show_is_right(page: Path) -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert shown
    for text in shown:
        config.parse(text, f"{page.name}:\n{text}")


def test_every_key_is_documented() -> None:
    sections = {"history.keep", "events.keep", "events.most"}
    told = {PAGES[0]: {*config.KEYS["file"], *config.ALIAS_KEYS, *sections} - {"history", "events"},
            PAGES[1]: {*device_spec_parser.KEYS, *pci_address_spec.PARTS}}
    for page, keys in told.items():
        assert {key for key in keys if f"`{key}`" not in page.read_text()} == set()


def test_every_message_is_documented() -> None:
    """The table of mistakes: what is written, and what is said about it."""
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \|", PAGES[1].read_text().partition("## Mistakes")[2], re.MULTILINE)
    assert len(rows) > 5
    for written, says in rows:
        assert says in "\n".join(f"{field}: {message}" for field, message in mistakes(f"device_spec: [{written}]").items())


def test_how_hosts_are_chosen() -> None:
    text = "scheduling: {policy: spread}\nfeatures: {DRAAdminAccess: false, DRADerivedAttributes: on}\n"
    found = config.parse(text).scheduling
    assert (found.policy, dict(found.features)) == ("spread", {"DRAAdminAccess": False, "DRADerivedAttributes": True})
    assert config.DEFAULT.scheduling.policy == "pack"


@pytest.mark.parametrize(("text", "field", "says"), [
    ("scheduling: {policy: stack}", "scheduling.policy", "pack, spread"),
    ("scheduling: {police: pack}", "scheduling.police", "policy"),
    ("features: {DRAAdminAcces: true}", "features.DRAAdminAcces", "DRAAdminAccess"),
    ("features: {DRAAdminAccess: maybe}", "features.DRAAdminAccess", "neither true nor false"),
    ("hosts: {a: {scheduling: {policy: pack}}}", "hosts.a.scheduling", ""),
])
def test_mistakes_of_how_hosts_are_chosen(text: str, field: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        config.parse(text)
    assert [cause.field for cause in caught.value.causes] == [field]
    assert says in caught.value.causes[0].message


def test_events_are_bounded() -> None:
    assert config.parse("").events == config.EventSettings(timedelta(hours=1), 10_000)
    assert config.parse("events: {keep: 10m, most: 500}").events == config.EventSettings(timedelta(minutes=10), 500)
    wrong = mistakes("events: {keep: 0s, most: 99}")
    assert "from 1s to 36500d" in wrong["events.keep"]
    assert wrong["events.most"] == "'99' is not a number from 100 to 1000000"
