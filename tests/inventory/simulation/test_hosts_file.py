"""The hosts file: what it means, what it refuses, and that its documentation is true."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.inventory import assignable, scan
from outfitter.inventory.simulation import hosts_file

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "hosts-file.md").read_text()


def causes(text: str) -> dict[str, str]:
    """Field -> message of everything that is wrong with a file."""
    with pytest.raises(errors.Invalid) as caught:
        hosts_file.parse(text)
    found = {cause.field: cause.message for cause in caught.value.causes}
    assert all(field in caught.value.message for field in found)
    return found


def one_pci(*functions: str, more: str = "") -> str:
    return f"hosts:\n- name: a\n{more}  pci:\n" + "".join(f"  - {{{function}}}\n" for function in functions)


OK = "address: 0000:3b:00.0, vendor: 8086, product: 1592"

WRONG = {
    "a published name in capitals": (one_pci(OK + ", published: {name: GPU}"), "hosts[0].pci[0].published.name", "gpu-0"),
    "a published name twice": (one_pci(OK + ", published: {name: a}", OK.replace("3b", "3c") + ", published: {name: a}"),
                               "hosts[0].pci[1].published.name", "hosts[0].pci[0].published.name"),
    "an unknown key of what is published": (one_pci(OK + ", published: {nam: a}"), "hosts[0].pci[0].published.nam", "name?"),
    "attributes that are a list": (one_pci(OK + ", published: {attributes: [1]}"), "hosts[0].pci[0].published.attributes",
                                   "mapping"),
    "an attribute without a type": (one_pci(OK + ", published: {attributes: {type: gpu}}"),
                                    "hosts[0].pci[0].published.attributes.type", "{string: ...}"),
    "an attribute of a strange type": (one_pci(OK + ", published: {attributes: {type: {text: gpu}}}"),
                                       "hosts[0].pci[0].published.attributes.type", "{string: ...}"),
    "an attribute of another type": (one_pci(OK + ", published: {attributes: {index: {int: many}}}"),
                                     "hosts[0].pci[0].published.attributes.index", "{int: ...}"),
    "an attribute whose version is none": (one_pci(OK + ", published: {attributes: {driverVersion: {version: 1.0}}}"),
                                           "hosts[0].pci[0].published.attributes.driverVersion", "{version: ...}"),
    "an attribute with a strange name": (one_pci(OK + ", published: {attributes: {a-b: {int: 1}}}"),
                                         "hosts[0].pci[0].published.attributes.a-b", "example.com/model"),
    "too many attributes": (
        one_pci(OK + f", published: {{attributes: {{{', '.join(f'a{i}: {{int: 1}}' for i in range(13))}}}}}"),
        "hosts[0].pci[0].published.attributes", "at most 12 can be added"),
    "no file": ("", "hosts", "missing"),
    "no hosts": ("hosts: []", "hosts", "at least one"),
    "hosts is no list": ("hosts: 7", "hosts", "list"),
    "a host that is a number": ("hosts: [7]", "hosts[0]", "mapping"),
    "a host without a name": ("hosts: [{cpus: 4}]", "hosts[0].name", "missing"),
    "a host name in capitals": ("hosts: [{name: Node}]", "hosts[0].name", "lower-case letters"),
    "a host name with _": ("hosts: [{name: a_b}]", "hosts[0].name", "lower-case letters"),
    "a host name too long when repeated": (f"hosts: [{{name: {'a' * 252}, count: 3}}]", "hosts[0].name", "253"),
    "a host name twice": ("hosts: [{name: a}, {name: a}]", "hosts[1].name", "hosts[0]"),
    "a host name that a repeated host has": ("hosts: [{name: a, count: 3}, {name: a-2}]", "hosts[1].name", "hosts[0]"),
    "count zero": ("hosts: [{name: a, count: 0}]", "hosts[0].count", "from 1"),
    "too many hosts": ("hosts: [{name: a, count: 99999}, {name: b, count: 2}]", "hosts[1].count", "more than"),
    "an unknown key at the top": ("host: [{name: a}]", "host", "did you mean hosts?"),
    "an unknown key of a host": ("hosts: [{name: a, lables: {}}]", "hosts[0].lables", "did you mean labels?"),
    "a key in other case": (one_pci(OK, OK + ", iommugroup: 1"), "hosts[0].pci[1].iommugroup", "did you mean iommuGroup?"),
    "an unknown key unlike any": ("hosts: [{name: a, zzzzzz: 1}]", "hosts[0].zzzzzz", "known are name, count"),
    "a key twice": ("hosts:\n- name: a\n  name: b", "hosts[0].name", "twice"),
    "a publisher that is no DNS name": ("publisher: Me!\nhosts: [{name: a}]", "publisher", "DNS name"),
    "a label value with a blank": ("hosts: [{name: a, labels: {x: a b}}]", "hosts[0].labels.x", "label value"),
    "a label key with a bad prefix": ("hosts: [{name: a, labels: {-/x: a}}]", "hosts[0].labels.-/x", "label key"),
    "memory in words": ("hosts: [{name: a, memory: much}]", "hosts[0].memory", "64Gi"),
    "cpus unlike the nodes'": ("hosts: [{name: a, cpus: 3, numa: [{id: 0, cpus: 0-3, memory: 1Gi}]}]", "hosts[0].cpus", "4"),
    "memory unlike the nodes'": ("hosts: [{name: a, memory: 2Gi, numa: [{id: 0, cpus: 0-3, memory: 1Gi}]}]",
                                 "hosts[0].memory", "1Gi"),
    "a NUMA id twice": ("hosts: [{name: a, numa: [{id: 0, cpus: 0, memory: 1Gi}, {id: 0, cpus: 1, memory: 1Gi}]}]",
                        "hosts[0].numa[1].id", "numa[0]"),
    "a cpu in two nodes": ("hosts: [{name: a, numa: [{id: 0, cpus: 0-3, memory: 1Gi}, {id: 1, cpus: 3-5, memory: 1Gi}]}]",
                           "hosts[0].numa[1].cpus", "cpu 3"),
    "a list of cpus that runs backwards": ("hosts: [{name: a, numa: [{id: 0, cpus: 3-1, memory: 1Gi}]}]",
                                           "hosts[0].numa[0].cpus", "descending range"),
    "a node that is not declared": (one_pci(OK + ", numa: 3"), "hosts[0].pci[0].numa", "not declared"),
    "a short address": (one_pci("address: 3b:00.0, vendor: 8086, product: 1592"), "hosts[0].pci[0].address", "0000:3b:00.0"),
    "a slot beyond 1f": (one_pci("address: 0000:3b:20.0, vendor: 8086, product: 1"), "hosts[0].pci[0].address", "address"),
    "bad hex": (one_pci("address: 0000:3b:00.0, vendor: 80g6, product: 1592"), "hosts[0].pci[0].vendor", "4 hex digits"),
    "too few hex digits": (one_pci(OK + ", class: 0200"), "hosts[0].pci[0].class", "6 hex digits"),
    "no vendor": (one_pci("address: 0000:3b:00.0, product: 1592"), "hosts[0].pci[0].vendor", "missing"),
    "an address twice": (one_pci(OK, OK), "hosts[0].pci[1].address", "hosts[0].pci[0].address"),
    "a VF where another function is": (
        one_pci(OK + ", vfs: {count: 4}", "address: 0000:3b:01.2, vendor: 8086, product: 1592"),
        "hosts[0].pci[0].vfs", "0000:3b:01.2"),
    "VFs of two PFs in one place": (
        one_pci(OK + ", vfs: {count: 4}", "address: 0000:3b:00.1, vendor: 8086, product: 1592, vfs: {count: 4}"),
        "hosts[0].pci[1].vfs", "offset"),
    "VFs beyond the last bus": (one_pci("address: 0000:ff:00.0, vendor: 8086, product: 1592, vfs: {count: 300}"),
                                "hosts[0].pci[0].vfs.count", "do not fit"),
    "more VFs than the card can have": (one_pci(OK + ", vfs: {count: 4, total: 2}"), "hosts[0].pci[0].vfs.total", "4 VFs"),
    "VFs without a count": (one_pci(OK + ", vfs: {total: 4}"), "hosts[0].pci[0].vfs.count", "missing"),
    "too few drivers": (one_pci(OK + ", vfs: {count: 4, driver: [a, b]}"), "hosts[0].pci[0].vfs.driver", "4 VFs"),
    "interfaces all of one name": (one_pci(OK + ", vfs: {count: 4, interfaces: eth}"),
                                   "hosts[0].pci[0].vfs.interfaces", "{index}"),
    "an unknown grouping": (one_pci(OK + ", vfs: {count: 4, iommuGroups: all}"), "hosts[0].pci[0].vfs.iommuGroups", "shared"),
    "an IOMMU group in words": (one_pci(OK + ", iommuGroup: many"), "hosts[0].pci[0].iommuGroup", "number"),
    "a root that is none": (one_pci(OK + ", pcieRoot: '0000:3a'"), "hosts[0].pci[0].pcieRoot", "pci0000:3a"),
    "an interface name too long": (one_pci(OK + ", interface: abcdefghijklmnop"), "hosts[0].pci[0].interface", "15"),
    "a serial number too long": (one_pci(OK + f", serial: {'1' * 57}"), "hosts[0].pci[0].serial", "56"),
    "mediated devices below vfio-pci": (one_pci(OK + ", mdevTypes: [{id: a}]"), "hosts[0].pci[0].driver", "vendor's driver"),
    "a UUID that is none": (one_pci(OK + ", driver: x, mdevTypes: [{id: a, instances: [abc]}]"),
                            "hosts[0].pci[0].mdevTypes[0].instances[0]", "UUID"),
    "a bridge that is not declared": ("hosts: [{name: a, nics: [{name: e, bridge: br0}]}]", "hosts[0].nics[0].bridge",
                                      "not declared"),
    "a MAC that is none": ("hosts: [{name: a, nics: [{name: e, mac: 'xx'}]}]", "hosts[0].nics[0].mac", "MAC"),
    "an alias of nothing": ("hosts: [{name: a, memory: *a }]", "hosts[0].memory", "not defined"),
}


@pytest.mark.parametrize(("text", "field", "says"), WRONG.values(), ids=WRONG)
def test_mistake_is_reported_with_its_field(text: str, field: str, says: str) -> None:
    found = causes(text)
    assert field in found, found
    assert says in found[field]


def test_all_mistakes_are_reported_at_once() -> None:
    found = causes("""
publsher: x
hosts:
- name: A
  pci:
  - {address: x, vendor: 1, vfs: {cuont: 1}}
  - {addres: 0000:3b:00.0, product: 1592, vendor: 8086}
""")
    assert set(found) == {
        "publsher", "hosts[0].name", "hosts[0].pci[0].address", "hosts[0].pci[0].vendor", "hosts[0].pci[0].product",
        "hosts[0].pci[0].vfs.cuont", "hosts[0].pci[0].vfs.count", "hosts[0].pci[1].addres", "hosts[0].pci[1].address",
    }


@pytest.mark.parametrize("text", ["[" * 100_000, "a: b: c", "&a [*a]", "\t", "{", "--- {}\n--- {}", "\x00", "a: !!python/x y"])
def test_what_is_no_hosts_file_is_refused_and_harmless(text: str) -> None:
    with pytest.raises(errors.Invalid):
        hosts_file.parse(text)


def test_a_missing_file_is_invalid_and_named(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match=r"none\.yaml"):
        hosts_file.load(tmp_path / "none.yaml")


def test_yaml_scalars_are_strict() -> None:
    """YAML would make a number of seconds of the address and octal numbers of the ids."""
    function = hosts_file.parse(one_pci(
        "address: 0000:10:00.0, vendor: 0086, product: 1e10, class: 020000, revision: 0xA1")).hosts[0].hardware.pci[0]
    assert (function.address, function.vendor, function.product) == ("0000:10:00.0", "0086", "1e10")
    assert (function.class_code, function.revision) == ("020000", "a1")


def test_defaults() -> None:
    host = hosts_file.parse(one_pci(OK, "address: 0001:5e:00.0, vendor: 1, product: 1, vfs: {count: 2}"
                                  .replace(": 1,", ": 0001,"))).hosts[0]
    plain, pf = host.hardware.pci
    assert (plain.driver, plain.pcie_root, plain.iommu_group, plain.numa) == ("vfio-pci", "pci0000:3b", "own", None)
    assert (pf.driver, pf.pcie_root) == ("pci-pf-stub", "pci0001:5e")
    assert pf.vfs is not None
    assert (pf.vfs.drivers, pf.vfs.total) == (("vfio-pci", "vfio-pci"), 2)
    assert list(pf.vf_addresses()) == ["0001:5e:01.0", "0001:5e:01.1"]
    assert host.publisher == "pci.outfitter.dev"
    assert host.capacity() == {"cpu": "16", "memory": "64Gi"}


def test_vf_addresses_follow_offset_and_stride_across_slots_and_buses() -> None:
    function = hosts_file.parse(one_pci("address: 0000:21:00.0, vendor: 8086, product: 10c9, "
                                      "vfs: {count: 4, offset: 128, stride: 2}")).hosts[0].hardware.pci[0]
    assert list(function.vf_addresses()) == ["0000:21:10.0", "0000:21:10.2", "0000:21:10.4", "0000:21:10.6"]
    function = hosts_file.parse(one_pci(OK + ", vfs: {count: 2, offset: 255}")).hosts[0].hardware.pci[0]
    assert list(function.vf_addresses()) == ["0000:3b:1f.7", "0000:3c:00.0"]


def test_capacity_is_the_sum_of_the_nodes() -> None:
    host = hosts_file.parse("hosts: [{name: a, numa: [{id: 0, cpus: '0-3,8', memory: 1536Mi}, "
                          "{id: 1, cpus: 4-7, memory: 512Mi}]}]").hosts[0]
    assert host.capacity() == {"cpu": "9", "memory": "2Gi"}


def test_repeated_hosts_differ_in_what_must_be_their_own() -> None:
    hosts = hosts_file.parse("""
hosts:
- name: n
  count: 3
  labels: {rack: r1}
  nics: [{name: eno1, mac: "52:54:00:ff:ff:ff"}, {name: eno2}]
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, serial: S, driver: x,
     mdevTypes: [{id: t, instances: [4b20d080-1b54-4048-85b3-a6a62d165c01]}]}
""").hosts
    assert [host.name for host in hosts] == ["n-0", "n-1", "n-2"]
    assert all(host.labels == {"rack": "r1"} for host in hosts)
    trees = [host.tree() for host in hosts]
    assert [scan.scan(tree).devices[0].serial for tree in trees] == ["S-0", "S-1", "S-2"]
    assert len({tuple(tree.names("/sys/bus/mdev/devices")) for tree in trees}) == 3
    assert [tree.read("/sys/class/net/eno1/address") for tree in trees] == [
        "52:54:00:ff:ff:ff\n", "52:54:00:00:00:00\n", "52:54:00:00:00:01\n"]
    made_up = {tree.read("/sys/class/net/eno2/address") for tree in trees}
    assert len(made_up) == 3
    assert all(mac is not None and mac.startswith("02:") for mac in made_up)


def test_sysfs_tree_contains_the_whole_description() -> None:
    tree = hosts_file.parse(re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)[0]).hosts[0].tree()
    gpu = "/sys/class/mdev_bus/0000:ca:00.0"
    assert tree.read(f"{gpu}/mdev_supported_types/nvidia-231/name") == "GRID T4-8Q\n"
    assert tree.read(f"{gpu}/mdev_supported_types/nvidia-231/available_instances") == "1\n"
    (instance,) = tree.names("/sys/bus/mdev/devices")
    assert tree.link(f"/sys/bus/mdev/devices/{instance}/mdev_type") == (
        "/sys/devices/pci0000:ca/0000:ca:00.0/mdev_supported_types/nvidia-231")
    assert tree.read("/sys/devices/system/node/node1/cpulist") == "16-31\n"
    assert tree.read("/sys/devices/system/cpu/cpu20/topology/physical_package_id") == "1\n"
    assert tree.names("/sys/class/net/br0/brif") == ["eno1"]
    assert tree.link("/sys/class/net/eno1/master") == "/sys/devices/virtual/net/br0"
    assert tree.read("/sys/class/net/ens1f0/device/vendor") == "0x15b3\n"
    assert tree.names("/sys/bus/pci/drivers/vfio-pci")[0] == "0000:3b:00.2"
    entries = tree.entries
    assert all(tree.exists(path) for path in entries if not path.startswith("/sys/bus/pci/drivers_")), "no dangling link"


SHORTHANDS = ["", "x", "2x", "0x8", "2x0", "-1x8", "2x8x1", "2x9999", "999999x1", "two"]


@pytest.mark.parametrize("text", SHORTHANDS)
def test_bad_shorthand_is_rejected_with_the_right_form(text: str) -> None:
    with pytest.raises(errors.Invalid, match="2x8"):
        hosts_file.parse_shorthand(text)


def test_the_shorthand_means_hosts_times_vfs(tmp_path: Path) -> None:
    hosts = hosts_file.parse_shorthand("2x8").hosts
    assert [host.name for host in hosts] == ["node-0", "node-1"]
    for host in hosts:
        assert len(assignable.assignable(scan.scan(host.tree()).devices).offered) == 8
    assert hosts_file.from_argument("2x8") == hosts_file.parse_shorthand("2x8")
    file = tmp_path / "hosts.yaml"
    file.write_text("hosts: [{name: a}]")
    assert hosts_file.from_argument(str(file)).hosts[0].name == "a"
    assert len(assignable.assignable(scan.scan(hosts_file.parse_shorthand("1x1024").hosts[0].tree()).devices).offered) == 1024


def test_a_thousand_hosts_stay_small() -> None:
    """Counted, not timed: what a parsed file keeps alive does not grow with functions times hosts."""
    simulation = hosts_file.parse_shorthand("1000x64")
    seen: dict[int, object] = {}
    todo: list[object] = [simulation]
    while todo:
        thing = todo.pop()
        if id(thing) not in seen and not isinstance(thing, type):
            seen[id(thing)] = thing
            todo.extend(gc.get_referents(thing))
    assert len(simulation.hosts) == 1000
    assert len(seen) < 5_000
    assert len(scan.scan(simulation.hosts[999].tree()).devices) == 65


def test_example_in_the_documentation_is_parsed() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)
    assert len(examples) == 1
    simulation = hosts_file.parse(examples[0])
    assert [host.name for host in simulation.hosts] == ["rack1-0", "rack1-1", "rack1-2", "small"]
    found = scan.scan(simulation.hosts[1].tree())
    assert found.warnings == ()
    offered = assignable.assignable(found.devices).offered
    assert [(entry.name, len(entry.members)) for entry in offered] == [
        *((f"pci-0000-3a-3b-00-0-vf{number}", 1) for number in range(4)), ("pci-0000-65-00-0", 2)]
    small = simulation.hosts[3]
    assert (small.publisher, small.capacity()) == ("other.example.com", {"cpu": "8", "memory": "16Gi"})
    assert scan.scan(small.tree()) == scan.Scan((), (), ())


def test_every_key_is_documented_in_its_table_and_no_other() -> None:
    tables = {
        re.sub(r"[`\[\]]", "", title).rpartition(".")[2]: set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE))
        for title, body in re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", DOC, re.MULTILINE | re.DOTALL)
    }
    tables["file"] = tables.pop("The file")
    assert tables == {section: set(keys) for section, keys in hosts_file.KEYS.items()}


def test_the_example_of_two_sockets() -> None:
    net, gpu = hosts_file.load(ROOT / "examples" / "hosts" / "two-sockets.yaml").hosts
    assert net.capacity() == {"cpu": "64", "memory": "256Gi"}
    found = scan.scan(net.tree())
    assert found.warnings == ()
    assert [member.address for entry in assignable.assignable(found.devices).offered for member in entry.members] == [
        *(f"0000:3b:01.{function}" for function in range(8)), "0000:d8:00.4", "0000:d8:00.5"]
    assert {d.address: d.interfaces for d in found.devices if d.interfaces} == {
        "0000:3b:00.0": ("ens1f0",), "0000:d8:00.0": ("ens7f0np0",), "0000:d8:00.2": ("ens7f0v0",),
        "0000:d8:00.3": ("ens7f0v1",)}
    answer = assignable.assignable(scan.scan(gpu.tree()).devices)
    assert [[member.address for member in entry.members] for entry in answer.offered] == [["0000:65:00.0", "0000:65:00.1"]]
    assert "snd_hda_intel" in next(entry.reason for entry in answer.withheld if entry.device.name == "pci-0000-b0-b1-00-0")
