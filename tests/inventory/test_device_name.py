"""Names for life: by the way from the root, whatever bus numbers, drivers and kernels do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter.inventory import device_name, scan
from outfitter.inventory.device_name import PciLocation
from outfitter.inventory.host_tree import Link, MemoryTree
from outfitter.inventory.simulation import hosts_file

WAYS = {
    "on the root's own bus": ("/sys/devices/pci0000:3b/0000:3b:00.0", "pci-0000-3b-00-0"),
    "behind a bridge": ("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci-0000-3a-00-0-00-0"),
    "behind two": ("/sys/devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0/0000:3c:01.1", "pci-0000-3a-02-0-00-0-01-1"),
    "a bridge that is not shown": ("/sys/devices/pci0000:3a/0000:3b:00.0", "pci-0000-3a-3b-00-0"),
    "a long domain": ("/sys/devices/pci10000:e0/10000:e0:06.0", "pci-10000-e0-06-0"),
    "a root in a root": ("/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0",
                         "pci-0000-00-0e-0-06-0-00-0"),
    "a root behind a platform bus": ("/sys/devices/platform/40.pcie/pci0000:00/0000:00:01.0", "pci-0000-00-01-0"),
    "no root": ("/sys/devices/virtual/0000:00:01.0", None),
    "a root alone": ("/sys/devices/pci0000:00", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("path", "name"), WAYS.values(), ids=WAYS)
def test_the_way_from_the_root(path: str, name: str | None) -> None:
    assert device_name.location_label(path) == name


def test_bus_numbers_do_not_matter() -> None:
    """A card with a bridge of its own is added before: all buses behind it move on."""
    before = PciLocation("0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3a:02.0/0000:3b:00.0")
    after = PciLocation("0000:3e:00.0", "/sys/devices/pci0000:3a/0000:3a:02.0/0000:3e:00.0")
    assert list(device_name.names([before])[0].values()) == list(device_name.names([after])[0].values())


def test_vf_is_named_by_its_pf_and_its_number() -> None:
    pf = PciLocation("0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")
    vf = PciLocation("0000:3c:10.2", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3c:10.2", "0000:3b:00.0", 17)
    found, fallen = device_name.names([vf, pf])
    assert found == {"0000:3b:00.0": "pci-0000-3a-00-0-00-0", "0000:3c:10.2": "pci-0000-3a-00-0-00-0-vf17"}
    assert fallen == ()


@pytest.mark.parametrize(("parent", "number"), [(None, None), ("0000:77:00.0", 1), ("0000:3b:00.0", None)])
def test_a_vf_of_which_that_is_not_known_is_named_by_its_way(parent: str | None, number: int | None) -> None:
    pf = PciLocation("0000:3b:00.0", "/sys/devices/pci0000:3b/0000:3b:00.0")
    vf = PciLocation("0000:3b:01.0", "/sys/devices/pci0000:3b/0000:3b:01.0", parent, number)
    assert device_name.names([pf, vf]) == ({"0000:3b:00.0": "pci-0000-3b-00-0", "0000:3b:01.0": "pci-0000-3b-01-0"}, ())


def test_long_paths_are_truncated_with_a_hash() -> None:
    deep = "/sys/devices/pci0000:00" + "".join(f"/0000:{bus:02x}:00.0" for bus in range(12))
    places = [PciLocation(f"0000:0c:0{slot}.0", f"{deep}/0000:0c:0{slot}.0") for slot in range(4)]
    places.append(PciLocation("0000:0c:10.0", f"{deep}/0000:0c:10.0", "0000:0c:00.0", 3))
    found, fallen = device_name.names(places)
    assert len(set(found.values())) == 5
    assert fallen == ()
    assert all(40 < len(name) <= device_name.MAX_NAME and name.startswith("pci-0000-00-00-0-") for name in found.values())
    assert found == device_name.names(reversed(places))[0]


def test_two_devices_with_one_path_are_named_by_their_addresses() -> None:
    one = PciLocation("0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")
    two = PciLocation("0000:4b:00.0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:4b:00.0")
    assert device_name.names([one, two]) == (
        {"0000:3b:00.0": "pci-0000-3b-00-0", "0000:4b:00.0": "pci-0000-4b-00-0"}, ("0000:3b:00.0", "0000:4b:00.0"))


def test_device_whose_path_equals_another_fallback_falls_back_too() -> None:
    same = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    places = [PciLocation("0000:3b:00.0", same), PciLocation("0000:4b:00.0", same),
              PciLocation("0000:5b:00.0", "/sys/devices/pci0000:3b/0000:3b:00.0")]
    found, fallen = device_name.names(places)
    assert found == {place.address: f"pci-{place.address.replace(':', '-').replace('.', '-')}" for place in places}
    assert len(fallen) == 3


def test_two_devices_with_one_path_are_reported() -> None:
    host = hosts_file.parse("hosts: [{name: a, pci: [{address: 0000:01:00.0, vendor: 8086, product: 1592}]}]").hosts[0]
    tree = MemoryTree({**host.tree().entries, "/sys/bus/pci/devices/0000:02:00.0": Link("0000:01:00.0")})
    result = scan.scan(tree)
    assert [device.name for device in result.devices] == ["pci-0000-01-00-0", "pci-0000-02-00-0"]
    assert [warning.path for warning in result.warnings if "named by its address" in warning.message] == [
        "/sys/bus/pci/devices/0000:01:00.0", "/sys/bus/pci/devices/0000:02:00.0"]


PARTS = st.sampled_from(["pci0000:00", "pci0000:3a", "0000:00:00.0", "0000:3a:00.0", "0000:3b:1f.7", "10000:e0:01.0",
                         "x", "net"])
ADDRESSES = st.builds(lambda bus, slot: f"0000:{bus:02x}:{slot:02x}.0", st.integers(0, 60), st.integers(0, 2))


@given(st.dictionaries(ADDRESSES, st.tuples(st.lists(PARTS, max_size=20), st.none() | ADDRESSES, st.none() | st.integers(0, 3)),
                       max_size=12))
def test_names_are_labels_and_no_two_alike(found: dict[str, tuple[list[str], str | None, int | None]]) -> None:
    places = [PciLocation(address, "/sys/devices/" + "/".join(parts), parent, number)
              for address, (parts, parent, number) in found.items()]
    names, fallen = device_name.names(places)
    assert names.keys() == found.keys()
    assert len(set(names.values())) == len(names)
    assert set(fallen) <= names.keys()
    for name in names.values():
        assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= device_name.MAX_NAME
    assert device_name.names(reversed(places))[0] == names
