"""outfit config: what a person sees of a configuration, right or wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import Result

from outfitter import app, errors
from outfitter.cli import provisioning_check
from outfitter.inventory import capture, config, scan
from outfitter.inventory.simulation import hosts_file
from tests.cli.config_command import HOSTS, ROOT, shown, table, typed

EXAMPLES = ROOT / "examples" / "config"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SPEC = """
report_in_placement: true
device_spec:
- {vendor_id: 8086, product_id: 1889, resource_class: nic, traits: [fast], live_migratable: yes}
- {address: "0000:3b:01.*"}
- {vendor_id: 15b3, product_id: beef}
- {vendor_id: 10de, product_id: 2204}
- {address: "ff:*"}
hosts: {nowhere: {report_networks: true}}
"""


def test_each_entry_and_each_device_is_explained() -> None:
    text = shown(SPEC, "--simulate", HOSTS, "--host", "net-a")
    assert text.startswith("file.yaml is valid\n\nhost net-a\n  has 15 devices\n")
    assert table(text, "device_spec[0]") == [
        "matches 8 devices",
        "0000:3b:01.0 to 0000:3b:01.7 8 VFs of 0000:3b:00.0 8086:1889 CUSTOM_NIC CUSTOM_FAST, HW_PCI_LIVE_MIGRATABLE"]
    assert table(text, "device_spec[1]") == [
        "matches nothing: its devices are matched earlier, by device_spec[0]: 0000:3b:01.0, 0000:3b:01.1, 0000:3b:01.2, "
        "0000:3b:01.3, 0000:3b:01.4 and 3 more"]
    assert table(text, "device_spec[2]") == [
        "matches nothing: no device matches; the nearest is 0000:d8:00.0, which has vendor_id 15b3, but not product_id beef"]
    assert table(text, "device_spec[4]") == ["matches nothing: no device matches"]
    left = table(text, "not matched: 7 devices")
    assert left[0] == "0000:3b:00.0 PF 8086:1592 ice device_spec[0] requires product_id 1889"
    assert left[1] == "0000:5e:00.0 PCI 144d:a80a nvme no entry matches it"
    assert left[2] == "0000:d8:00.0 PF 15b3:101d mlx5_core device_spec[2] requires product_id beef"
    assert "1 provider reported to Placement (report_in_placement is on)" in text


def test_what_a_group_makes_of_an_entry() -> None:
    text = shown(SPEC, "--simulate", HOSTS, "--host", "gpu-a")
    assert table(text, "device_spec[3]")[1] == "0000:65:00.0 PCI 10de:2204 CUSTOM_PCI_10DE_2204"
    assert re.match(r"0000:b1:00\.0 PCI 10de:2204 .*but not offered: it shares IOMMU group 41 with 0000:b1:00\.1",
                    table(text, "device_spec[3]")[2])
    assert "assigned together with 0000:65:00.0" in table(text, "not matched")[0]


def test_address_range_contains_only_its_devices() -> None:
    text = shown("device_spec: [{product_id: 1889, address: {function: '[^3]'}}]", "--simulate", "1x8")
    assert [line.split(" VFs")[0] for line in table(text, "device_spec[0]")[1:]] == [
        "0000:3b:01.0 to 0000:3b:01.2 3", "0000:3b:01.4 to 0000:3b:01.7 4"]


CARDS = """
hosts:
- name: here
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 0, total: 64, product: 1889}}
  - {address: 0000:3c:00.0, vendor: 15b3, product: 101d, class: 020000, driver: mlx5_core,
     vfs: {count: 4, total: 8, product: 101e}}
  - {address: 0000:65:00.0, vendor: 10de, product: 2236, class: 030200, driver: nvidia, mdevTypes: [
      {id: nvidia-1, name: A10-1, available: 2, instances: [4b20d080-1b54-4048-85b3-a6a62d165c01]}]}
"""
NIC, TAKEN, GPU = "address: 0000:3b:00.0", "address: 0000:3c:00.0", "0000:65:00.0"
# What is written of sriov or mdev, and what is said below the entry.
MAKES: dict[str, tuple[str, list[str]]] = {
    "virtual functions where there are none": (
        f"sriov: [{{{NIC}, count: 8}}]",
        ["0000:3b:00.0 gets 8 virtual functions; it has none, and supports 64"],
    ),
    "as many as there are": (f"sriov: [{{{TAKEN}, count: 4}}]", ["0000:3c:00.0 has 4 virtual functions, as configured"]),
    "more than there can be": (
        f"sriov: [{{{TAKEN}, count: 9, replace: yes}}]",
        [
            "0000:3c:00.0 has 4 virtual functions, and is not changed",
            "warning: sriov[0].count: 9 is more than the 8 that 0000:3c:00.0 supports; write 8 or less",
        ],
    ),
    "another number": (
        f"sriov: [{{{TAKEN}, count: 2}}]",
        [
            "0000:3c:00.0 has 4 virtual functions, and gets 2 instead only if Outfitter created them",
            "warning: sriov[0].replace: virtual functions that others created are not changed; "
            "to replace them write replace: yes",
        ],
    ),
    "another number in any case": (
        f"sriov: [{{{TAKEN}, count: 0, replace: yes}}]",
        ["0000:3c:00.0 has 4 virtual functions, and gets none instead, unless one of them is in use"],
    ),
    "a card that is not there": (
        "sriov: [{address: 0000:99:00.0, count: 1}]",
        [
            "creates nothing: no device of this host matches; those that support virtual functions are "
            "0000:3b:00.0 (8086:1592), 0000:3c:00.0 "
            "(15b3:101d)"
        ],
    ),
    "a card without": ("sriov: [{vendor_id: 10de, count: 1}]", ["creates nothing: 0000:65:00.0 supports no virtual functions"]),
    "a virtual function": (
        "sriov: [{product_id: 101e, count: 1}]",
        ["creates nothing: 0000:3c:01.0 is itself a virtual function"],
    ),
    "mediated devices": (
        "mdev: [{type: nvidia-1, count: 2}]",
        [f"{GPU} gets 2 of nvidia-1 (A10-1); it has none of those; 1 created by others stays"],
    ),
    "more than can be made": (
        f"mdev: [{{type: nvidia-1, parent: {GPU}, count: 3}}]",
        [
            f"{GPU} gets 2 of nvidia-1 (A10-1); it has none of those; 1 created by others stays",
            f"warning: mdev[0].count: {GPU} can create 2 more of nvidia-1, and 3 are missing: the rest is skipped",
        ],
    ),
    "none": (
        "mdev: [{type: nvidia-1, count: 0}]",
        [f"{GPU} has none of nvidia-1 (A10-1), as configured; 1 created by others stays"],
    ),
    "a type that is not there": (
        "mdev: [{type: nvidia-2, count: 1}]",
        ["warning: mdev[0].type: no device of this host has the type nvidia-2; supported: nvidia-1"],
    ),
    "a type that the parent lacks": (
        f"mdev: [{{type: nvidia-2, count: 1, parent: {GPU}}}]",
        [f"warning: mdev[0].type: {GPU} does not have the type nvidia-2; supported: nvidia-1"],
    ),
    "a parent that is none": (
        "mdev: [{type: nvidia-1, count: 1, parent: mtty}]",
        [f"warning: mdev[0].parent: mtty supports no mediated devices; use one of {GPU}"],
    ),
}


@pytest.mark.parametrize("name", MAKES)
def test_what_a_host_would_make_of_its_cards(name: str) -> None:
    text, says = MAKES[name]
    Path("hosts.yaml").write_text(CARDS)
    assert table(shown(text, "--simulate", "hosts.yaml"), f"\n  {text.partition(':')[0]}[0] ") == says


def test_the_first_entry_that_means_a_card_counts() -> None:
    Path("hosts.yaml").write_text(CARDS)
    text = shown(f"sriov: [{{vendor_id: 8086, count: 2}}, {{{NIC}, count: 8}}]", "--simulate", "hosts.yaml")
    assert table(text, "sriov[0] vendor_id 8086, count 2") == [
        "0000:3b:00.0 gets 2 virtual functions; it has none, and supports 64"]
    assert table(text, "sriov[1] address 0000:3b:00.0, count 8") == [
        "creates nothing: its devices are matched earlier, by sriov[0]"]


@pytest.mark.parametrize("text", [text for text, says in MAKES.values() if "only if" not in says[0]], ids=[
    name for name, (_, says) in MAKES.items() if "only if" not in says[0]])
async def test_check_shows_what_a_start_creates(text: str) -> None:
    """What a host has, and what it warns of, after a start with that configuration; then there is nothing left to do."""
    given = config.parse(text)
    hosts = app.simulated_hosts(hosts_file.parse(CARDS).hosts, config=given)
    told = _told(given.default, scan.scan(hosts[0].tree()))
    async with app.embedded(hosts=hosts, config=given) as product:
        notes = product.hosts[0].provisioning_warnings
        after = scan.scan(hosts[0].tree())
    gets = {line.split()[0]: int(line.split(" gets ")[1].split()[0].replace("none", "0")) for line in told if " gets " in line}
    for address, count in gets.items():
        [card] = [device for device in after.devices if device.address == address]
        assert (card.num_vfs if text.startswith("sriov") else sum(one.parent == address for one in after.mdevs) - 1) == count
    if text.startswith("sriov"):
        assert bool(notes) == any(line.startswith("warning") for line in told)
    assert not any(" gets " in line for line in _told(given.default, after) if not notes)


def _told(settings: config.HostSettings, found: scan.Scan) -> list[str]:
    return [line.strip() for line in provisioning_check.lines("here", settings, found)]


def test_equal_hosts_are_shown_once() -> None:
    text = shown("device_spec: [{product_id: 1889}]\nhosts: {node-3: {device_spec: []}}", "--simulate", "9x2")
    assert "8 hosts alike: node-0, node-1, node-2, node-4, node-5 and 3 more\n" in text
    assert "host node-3\n" in text
    assert "device_spec is empty, so nothing is offered" in text


def test_a_host_that_is_configured_but_not_there() -> None:
    assert "hosts.nowhere matches none of these hosts" in shown(SPEC, "--simulate", HOSTS)
    assert "nowhere" not in shown(SPEC, "--simulate", HOSTS, "--host", "net-a")


def test_the_examples_can_be_used_on_the_example_hosts() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        result = typed("check", path, "--simulate", HOSTS)
        assert result.exit_code == 0, result.output


def test_without_a_file_devices_bound_to_vfio_are_shown() -> None:
    result = typed("check", "--simulate", HOSTS)
    assert result.exit_code == 0
    assert result.stdout.startswith("no configuration file given: using defaults\n")
    assert "no device_spec, so devices bound to vfio-pci are offered: 10 devices" in result.stdout
    assert re.search(r"0000:3b:00\.0 +PF +8086:1592 +ice +is used by the host through ice", result.stdout)
    assert re.search(r"also offered: \d mediated devices? ", result.stdout)


def test_a_captured_tree(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
    folder.mkdir(parents=True)
    for name, value in (("vendor", "0x10de"), ("device", "0x2235"), ("class", "0x030000"), ("revision", "0x01")):
        (folder / name).write_text(value + "\n")
    for root in (tmp_path, tmp_path / "sys"):
        text = shown("device_spec: [{vendor_id: 10de}]", "--sysfs", root, "--host", "alder")
        assert "host alder\n  has 1 device\n" in text
        assert re.search(r"0000:01:00\.0 +PCI +10de:2235 +CUSTOM_PCI_10DE_2235 +but not offered: it has no IOMMU", text)


def test_local_host_can_be_checked() -> None:
    assert typed("check").exit_code == 0


def test_a_saved_scan(tmp_path: Path) -> None:
    tree = hosts_file.parse_shorthand("1x4").hosts[0].tree()
    capture.save(capture.record(tree)[1], tmp_path / "alder.json")
    text = shown("device_spec: [{product_id: 1889}]", "--sysfs", tmp_path / "alder.json", "--host", "alder")
    assert "host alder\n  has 5 devices\n" in text
    assert table(text, "device_spec[0]")[0] == "matches 4 devices"


def test_a_tree_without_devices(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    text = shown("device_spec: [{vendor_id: 10de}]", "--sysfs", tmp_path)
    assert "has no devices" in text
    assert "  /sys/bus/pci/devices: " in text
    assert "matches nothing: no device matches" in text


# what is wrong -> the configuration, what is typed behind it, the error, and words of it
WRONG: dict[str, tuple[str, list[str], type[errors.OutfitterError], str]] = {
    "a mistake in the file": ("device_spec: [{adress: 1}]\nalias: [{}]", [], errors.Invalid,
                              "2 mistakes(.|\n)*adress(.|\n)*name:"),
    "keys and aliases at once": (
        "device_spec: [{adress: 1}]\npci_in_placement: true\n"
        "alias: [{name: a}, {name: b, device_type: VF}, {name: c, resource_class: 'CUSTOM_-', vendor_id: '1'}, "
        "{name: d, resource_class: x}, {name: d, resource_class: y}]", [], errors.Invalid,
        "5 mistakes(.|\n)*adress(.|\n)*'b'(.|\n)*'c'(.|\n)*alias 'a': does not have(.|\n)*alias 'd': have multiple specs"),
    "no such host": ("{}", ["--simulate", "1x1", "--host", "a"], errors.NotFound, "1x1 has no host 'a'; it has node-0"),
    "no file of hosts": ("{}", ["--simulate", "2y8"], errors.Invalid, "2y8 cannot be read.*or write NxM, such as 2x8"),
    "a folder that is no tree": ("{}", ["--sysfs", "."], errors.Invalid, "contains no folder sys"),
    "a PF and its VFs in Placement": ("report_in_placement: true\ndevice_spec: [{vendor_id: 8086}]", ["--simulate", "1x2"],
                                      errors.CommandFailed, "would refuse to start with this configuration: node-0"),
    "a PF that manages itself": ("device_spec: [{address: 0000:3b:00.0, remote_managed: true}]", ["--simulate", "1x2"],
                                 errors.CommandFailed, "would refuse to start with this configuration: node-0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_reported(name: str) -> None:
    text, arguments, error, says = WRONG[name]
    Path("file.yaml").write_text(text)
    result = typed("check", "file.yaml", *arguments)
    assert isinstance(result.exception, error)
    assert re.search(says, str(result.exception))


def test_the_reasons_of_a_refusal_stand_with_the_host() -> None:
    Path("file.yaml").write_text("report_in_placement: true\ndevice_spec: [{vendor_id: 8086}, {devname: ens1f0}]")
    text = typed("check", "file.yaml", "--simulate", "1x2").stdout
    devname, both = table(text, "would refuse to start")
    assert re.match("- .*devname", devname)
    assert re.match(r"- .*0000:3b:00\.0.*0000:3b:01\.0", both)


def test_a_pf_whose_vfs_are_enabled_is_not_offered() -> None:
    Path("file.yaml").write_text("device_spec: [{product_id: 1592}]")
    result = typed("check", "file.yaml", "--simulate", "1x2")
    assert result.exit_code == 0
    _, row = table(result.stdout, "device_spec[0]")
    assert row.endswith("but not offered: it has 2 virtual functions, which would go when it is taken from ice; remove them "
                        "(sriov_numvfs 0), or bind it to vfio-pci, to offer it")


def test_two_places_to_look_at() -> None:
    assert typed("check", "--simulate", "1x1", "--sysfs", ".").exit_code == 2


# -- import-nova

CONF = """
[pci]
device_spec = {"vendor_id": "10de", "traits": "a, b"}
[filter_scheduler]
pci_in_placement = true
"""


def test_nova_conf_becomes_ours() -> None:
    Path("nova.conf").write_text(CONF)
    Path("more.conf").write_text('[pci]\ndevice_spec = {"vendor_id": "8086"}\n')
    result = typed("import-nova", "nova.conf", "more.conf")
    assert result.exit_code == 0
    assert "warning: nova.conf:3: [pci]device_spec: " in result.stderr
    settings = config.parse(result.stdout).default
    assert settings.pci_in_placement
    assert settings.device_spec is not None
    assert [entry.vendor for entry in settings.device_spec.entries] == ["10de", "8086"]
    assert settings.device_spec.entries[0].traits == {"CUSTOM_A", "CUSTOM_B"}


def test_a_switch_in_the_section_of_the_other_is_not_imported_silently() -> None:
    Path("nova.conf").write_text("[filter_scheduler]\npci_prefilter = true\n[scheduler]\npci_in_placement = true\n")
    result = typed("import-nova", "nova.conf")
    assert result.exit_code == 0
    assert not config.parse(result.stdout).default.pci_in_placement
    assert "nova.conf:2: [filter_scheduler]pci_prefilter: is not imported" in result.stderr
    assert "nova.conf:4: [scheduler]pci_in_placement: is not imported" in result.stderr


def test_it_is_written_to_a_new_file_alone() -> None:
    Path("nova.conf").write_text(CONF)
    assert typed("import-nova", "nova.conf", "-o", "ours.yaml").stdout == ""
    text = Path("ours.yaml").read_text()
    assert text == typed("import-nova", "nova.conf").stdout
    result = typed("import-nova", "nova.conf", "-o", "ours.yaml")
    assert isinstance(result.exception, errors.Invalid)
    assert "ours.yaml already exists" in str(result.exception)
    assert Path("ours.yaml").read_text() == text


def test_a_mistake_writes_nothing() -> None:
    Path("nova.conf").write_text("[pci]\ndevice_spec = {\n")
    result = typed("import-nova", "nova.conf", "-o", "ours.yaml")
    assert isinstance(result.exception, errors.Invalid)
    assert "nova.conf:2: [pci]device_spec: invalid entry" in str(result.exception)
    assert not Path("ours.yaml").exists()


def test_a_place_that_cannot_be_written() -> None:
    Path("nova.conf").write_text(CONF)
    result = typed("import-nova", "nova.conf", "-o", "nowhere/ours.yaml")
    assert "nowhere/ours.yaml cannot be written" in str(result.exception)


ALIASES = """
pci_in_placement: true
report_in_placement: true
alias:
- {name: gpu, vendor_id: 10de, product_id: "2235", traits: "fast,!old"}
- {name: disk, resource_class: NVME, numa_policy: required}
"""


def flavor(*arguments: str, text: str = ALIASES) -> Result:
    Path("file.yaml").write_text(text)
    return typed("flavor", "file.yaml", *arguments)


def test_a_flavor_as_requests_groups_and_query() -> None:
    specs = ("pci_passthrough:alias=gpu:1, disk:2", "group_policy=isolate")
    said = json.loads(flavor(*specs, "--vcpus", "4", "-o", "json").stdout)
    assert said["aliases"]["disk"] == {"numa_policy": "required", "specs": [{"resource_class": "NVME"}]}
    assert [(one["alias"], one["count"], one["numa_policy"]) for one in said["requests"]] == [
        ("gpu", 1, "legacy"), ("disk", 2, "required")]
    first, second = (one["request_id"] for one in said["requests"])
    assert [(one["suffix"], one["resources"], one["required"], one["forbidden"]) for one in said["groups"]] == [
        (f"{first}-0", {"CUSTOM_PCI_10DE_2235": 1}, ["CUSTOM_FAST"], ["CUSTOM_OLD"]),
        (f"{second}-0", {"CUSTOM_NVME": 1}, [], []), (f"{second}-1", {"CUSTOM_NVME": 1}, [], [])]
    assert ["resources", "VCPU:4,MEMORY_MB:512,DISK_GB:1"] in said["query"]
    assert [f"required_{first}-0", "CUSTOM_FAST,!CUSTOM_OLD"] in said["query"]
    assert ["group_policy", "isolate"] in said["query"]


def test_flavor_as_text() -> None:
    shown_lines = flavor("pci_passthrough:alias=disk:1").stdout.splitlines()
    assert shown_lines[:2] == ["disk: 1, NUMA policy required", "  resource_class NVME"]
    assert "GET /allocation_candidates" in shown_lines
    assert flavor().stdout.startswith("the flavor requests no devices")


FLAVORS: dict[str, tuple[list[str], str, type[errors.OutfitterError]]] = {
    "an alias that is not defined": (["pci_passthrough:alias=fpga:1"], ALIASES, errors.BadRequest),
    "a group policy": (["group_policy=far"], ALIASES, errors.BadRequest),
    "an alias that is wrong": ([], 'alias: [{name: gpu, vendor_id: "1"}]', errors.Invalid),
}


@pytest.mark.parametrize("name", FLAVORS)
def test_a_flavor_that_is_wrong(name: str) -> None:
    arguments, text, kind = FLAVORS[name]
    assert isinstance(flavor(*arguments, text=text).exception, kind)


def test_a_mistake_in_an_alias_names_the_alias() -> None:
    assert "alias 'gpu'" in str(flavor(text='alias: [{name: gpu, vendor_id: "1"}]').exception)


def test_an_extra_spec_without_a_value() -> None:
    assert "EXTRA_SPEC=VALUE" in flavor("hw:cpu_policy").output
