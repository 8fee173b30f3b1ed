"""`outfit scan`: what it shows, what it saves, and that its documentation is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outfitter import errors
from outfitter.cli import main
from outfitter.cli.host import scan as command
from outfitter.cli.host import scan_tree
from outfitter.inventory import capture, pci_ids, scan
from outfitter.inventory.host_tree import MemoryTree
from outfitter.inventory.simulation import hosts_file
from tests.inventory.host_trees import CARD, TREE, materialise

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "scan.md").read_text()
QEMU = ROOT / "tests" / "hosts" / "qemu-host.json"
IDS = b"""8086  Intel Corporation
\t1592  Ethernet Controller E810-C for QSFP
10de  NVIDIA Corporation
\t1eb8  TU104GL [Tesla T4]
C 02  Network controller
\t00  Ethernet controller
C 03  Display controller
\t00  VGA compatible controller
\t02  3D controller
C 04  Multimedia controller
\t03  Audio device
"""


@pytest.fixture(autouse=True)
def ids(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path_factory.mktemp("ids") / "pci.ids"
    place.write_bytes(IDS)
    monkeypatch.setenv(pci_ids.VARIABLE, str(place))


def _nobody(**_: object) -> None:
    raise AssertionError("a scan starts no server")


def outfit(*arguments: str) -> Result:
    return CliRunner().invoke(main.commands(_nobody), ["scan", *arguments], catch_exceptions=False)


def shown(tree: MemoryTree, database: pci_ids.PciIds | None = None) -> list[str]:
    lines = list(scan_tree.lines(scan.scan(tree), pci_ids.PciIds(IDS) if database is None else database))
    assert all(len(line) <= scan_tree.WIDTH and line.isprintable() for line in lines)
    return lines


def test_a_network_host() -> None:
    net, _ = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    assert shown(net.tree()) == """\
NUMA node 0
├─ pci0000:3a
│  └─ 0000:3b:00.0  Intel Corporation Ethernet Controller E810-C for QSFP  [8086:1592]
│     │  Ethernet controller, PF with 8 of 64 VFs, driver ice, IOMMU group 1, ens1f0 at 100 Gbit/s,
│     │  serial b4-96-91-ff-ff-aa-00-00, name pci-0000-3a-3b-00-0
│     └─ vf0–7   0000:3b:01.0 – 0000:3b:01.7  [8086:1889], driver vfio-pci, IOMMU groups 2–9
└─ pci0000:5d
   └─ 0000:5e:00.0  [144d:a80a]
         class 010802, driver nvme, IOMMU group 15, serial S64HNE0R000001, name pci-0000-5d-5e-00-0

NUMA node 1
└─ pci0000:d7
   └─ 0000:d8:00.0  [15b3:101d]
      │  Ethernet controller, PF with 4 of 16 VFs, driver mlx5_core, IOMMU group 10, ens7f0np0,
      │  serial MT2116X00042, name pci-0000-d7-d8-00-0
      ├─ vf0     0000:d8:00.2  [15b3:101e], driver mlx5_core, IOMMU group 11, ens7f0v0
      ├─ vf1     0000:d8:00.3  [15b3:101e], driver mlx5_core, IOMMU group 12, ens7f0v1
      ├─ vf2     0000:d8:00.4  [15b3:101e], driver vfio-pci, IOMMU group 13
      └─ vf3     0000:d8:00.5  [15b3:101e], driver vfio-pci, IOMMU group 14

15 PCI functions: 2 PFs, 12 VFs, 1 other endpoint; 10 bound to VFIO""".splitlines()


def test_a_gpu_host() -> None:
    _, gpu = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    lines = shown(gpu.tree())
    assert "   │     VGA compatible controller, driver vfio-pci, IOMMU group 40 with 0000:65:00.1," in lines
    assert lines[-9:] == """\
└─ pci0000:c9
   └─ 0000:ca:00.0  NVIDIA Corporation TU104GL [Tesla T4]  [10de:1eb8]
      │  3D controller, driver nvidia, IOMMU group 1, name pci-0000-c9-ca-00-0
      ├─ nvidia-231  GRID T4-8Q   2 created, 0 available
      │  ├─ 4b20d080-1b54-4048-85b3-a6a62d165c01  8Gi of memory, IOMMU group 42
      │  └─ 4b20d080-1b54-4048-85b3-a6a62d165c02  8Gi of memory, IOMMU group 43
      └─ nvidia-232  GRID T4-16Q  0 created, 0 available

5 PCI functions: 5 other endpoints; 3 bound to VFIO; 2 mediated devices""".splitlines()


def test_bridges_stand_above_what_is_behind_them() -> None:
    text = outfit("--sysfs", str(QEMU)).stdout
    assert """\
   ├─ 0000:20:00.0  bridge  [1b36:000c]
   │  └─ 0000:21:00.0  Intel Corporation  [8086:10c9]
   │     │  Ethernet controller, PF with 4 of 7 VFs, driver igb, IOMMU group 13, eth0,
   │     │  name pci-0000-20-00-0-00-0
   │     ├─ vf0     0000:21:10.0  [8086:10ca], driver vfio-pci, IOMMU group 16
   │     └─ vf1–3   0000:21:10.2 – 0000:21:10.6  [8086:10ca], no driver, IOMMU groups 17–19
""" in text
    assert "Mediated devices that are not on PCI\n├─ mbochs\n" in text


def test_a_plain_terminal_gets_plain_lines() -> None:
    net, _ = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    lines = list(scan_tree.lines(scan.scan(net.tree()), pci_ids.PciIds(IDS), plain=True))
    assert all(line.isascii() for line in lines)
    assert "|     `- vf0-7   0000:3b:01.0 - 0000:3b:01.7  [8086:1889], driver vfio-pci, IOMMU groups 2-9" in lines


def test_missing_pci_ids_names_the_package_to_install() -> None:
    lines = shown(TREE, pci_ids.PciIds(None))
    assert lines[-1] == pci_ids.MISSING
    assert pci_ids.MISSING not in shown(TREE)


def test_warnings_come_last_and_not_without_end() -> None:
    broken = MemoryTree({**TREE.entries, "/sys/devices/pci0000:65/0000:65:00.0/vendor": "\x1b[31mred\n"})
    assert shown(broken)[-2:] == [
        "1 warning:",
        "  /sys/devices/pci0000:65/0000:65:00.0/vendor: is '\\x1b[31mred', which is not 0x and 4 hex digits"]
    many = MemoryTree({**TREE.entries, **{f"/sys/bus/pci/devices/x{number}": "" for number in range(50)}})
    assert shown(many)[-1] == "  and 20 more; -o json shows all"


def test_an_empty_host() -> None:
    assert shown(MemoryTree({"/sys/bus/pci/devices": None})) == ["0 PCI functions"]


def test_a_folder_its_sys_folder_and_its_capture_show_the_same(tmp_path: Path) -> None:
    materialise(TREE, tmp_path / "host")
    saved = tmp_path / "host.json"
    first = outfit("--sysfs", str(tmp_path / "host"), "--save", str(saved))
    assert (first.exit_code, first.stderr) == (0, f"saved to {saved}\n")
    (tmp_path / "other").symlink_to(tmp_path / "host" / "sys")
    for source in (tmp_path / "host" / "sys", tmp_path / "other", saved):
        assert outfit("--sysfs", str(source)).stdout == first.stdout
    assert "8 PCI functions: 1 PF, 2 VFs, 3 other endpoints, 2 bridges" in first.stdout


def test_local_host_is_shown() -> None:
    result = outfit("-o", "json")
    assert result.exit_code == 0
    assert isinstance(json.loads(result.stdout)["devices"], list)


@pytest.mark.parametrize(("name", "says"), [("none", "no such folder or file"), ("empty", "contains no folder sys"),
                                            ("text", "no capture")])
def test_invalid_source_is_reported(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    with pytest.raises(errors.OutfitterError, match=says) as caught:
        outfit("--sysfs", str(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


def test_serial_numbers_are_omitted_everywhere(tmp_path: Path) -> None:
    tree = MemoryTree({**TREE.entries, "/sys/devices/pci0000:3a/0000:3b:00.0/vpd": CARD})
    capture.save(capture.record(tree)[1], tmp_path / "host.json")
    source = ("--sysfs", str(tmp_path / "host.json"))
    whole = outfit(*source).stdout
    assert "serial S-1" in whole
    assert "card MT2116X00042" in whole
    for how in ("tree", "json"):
        result = outfit(*source, "--no-serials", "-o", how, "--save", str(tmp_path / "less.json"))
        assert "S-1" not in result.stdout + (tmp_path / "less.json").read_text()
        assert "MT2116" not in result.stdout + (tmp_path / "less.json").read_text()


def test_failed_capture_is_reported(tmp_path: Path) -> None:
    with pytest.raises(errors.CommandFailed, match="cannot be written"):
        outfit("--sysfs", str(QEMU), "--save", str(tmp_path / "none" / "host.json"))


def keys(title: str) -> set[str]:
    """The keys that docs/scan.md lists below a heading."""
    section = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", DOC, re.MULTILINE | re.DOTALL)
    assert section is not None, title
    return set(re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE))


def test_every_key_of_the_json_is_documented_and_no_other() -> None:
    _, gpu = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    told = command.as_json(scan.scan(gpu.tree()), pci_ids.PciIds(IDS))
    for device in told["devices"]:
        assert device.keys() == keys("`devices[]`")
    assert told["devices"][-1]["mdevTypes"][0].keys() == keys("`mdevTypes[]`")
    assert told["mdevs"][0].keys() == keys("`mdevs[]`")
    told = command.as_json(scan.scan(capture.load(QEMU)), pci_ids.PciIds(IDS))
    assert told.keys() == keys("The whole")
    assert told["mdevParents"][0].keys() == keys("`mdevParents[]`")
    broken = command.as_json(scan.scan(MemoryTree({})), pci_ids.PciIds(None))
    assert broken["warnings"][0].keys() == keys("`warnings[]`")


def test_json_contains_the_scan() -> None:
    told = json.loads(outfit("--sysfs", str(QEMU), "-o", "json").stdout)
    found = scan.scan(capture.load(QEMU))
    assert [(device["name"], device["kind"], device["selfVfio"], device["vfIndex"]) for device in told["devices"]] == [
        (device.name, device.kind.value, device.self_vfio, device.vf_index) for device in found.devices]
    assert next(device["className"] for device in told["devices"] if device["product"] == "10c9") == "Ethernet controller"


def test_every_option_is_documented() -> None:
    options = {name for option in command.scan.params for name in option.opts}
    assert set(re.findall(r"`(--?[a-z-]+)", re.findall(r"^\| option.*?\n\n", DOC, re.MULTILINE | re.DOTALL)[0])) == options


def test_the_tree_in_the_documentation_is_what_is_shown() -> None:
    (example,) = re.findall(r"```\n(NUMA node.*?)```", DOC, re.DOTALL)
    net, _ = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    assert example.splitlines() == shown(net.tree())[:6]


def test_a_virtual_function_without_its_physical_one_is_shown_nevertheless() -> None:
    net, _ = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    entries = {path: entry for path, entry in net.tree().entries.items() if path != "/sys/bus/pci/devices/0000:d8:00.0"}
    text = "\n".join(shown(MemoryTree(entries)))
    assert all(f"0000:d8:00.{number}" in text for number in (2, 3, 4, 5))
