"""A second opinion: lspci and a scan agree about the host that the tests run on."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from outfitter.inventory import pci_ids, scan
from outfitter.inventory.host_tree import FolderTree

pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(shutil.which("lspci") is None, reason="needs lspci; on Debian it comes with pciutils"),
]
NUMBERS = re.compile(r"(\S+) .*?\[([0-9a-f]{4})\]: .*\[([0-9a-f]{4}):([0-9a-f]{4})\](?: \(rev ([0-9a-f]{2})\))?.*")
TEXTS = re.compile(r'(\S+) "(.*?)" "(.*?)" "(.*?)".*')


def lspci(option: str) -> list[str]:
    return subprocess.run(["lspci", "-D", option], check=True, capture_output=True, text=True).stdout.splitlines()


def test_numbers_agree() -> None:
    told = {}
    for line in lspci("-nn"):
        parts = NUMBERS.fullmatch(line)
        assert parts is not None, line
        told[parts[1]] = (parts[2], parts[3], parts[4], parts[5] or "00")
    found = scan.scan(FolderTree(Path("/"))).devices
    assert {device.address: ((device.class_code or "")[:4], device.vendor, device.product, device.revision)
            for device in found} == told


@pytest.mark.skipif(not Path(pci_ids.PLACES[0]).is_file(), reason="needs the pci.ids database; on Debian it comes with pci.ids")
def test_names_agree() -> None:
    told = {}
    for line in lspci("-mm"):
        parts = TEXTS.fullmatch(line)
        assert parts is not None, line
        told[parts[1]] = parts.groups()[1:]
    database = pci_ids.database({})
    for device in scan.scan(FolderTree(Path("/"))).devices:
        kind, *called = told[device.address]
        vendor, product = database.vendor_and_product(device.vendor, device.product)
        # What lspci has no name for it calls by its number, which it puts behind the class of a subclass without a name.
        assert called == [vendor or f"Vendor {device.vendor}", product or f"Device {device.product}"]
        assert kind.startswith(database.class_name(device.class_code) or "Class")
