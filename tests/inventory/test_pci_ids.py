"""Names for people: found in the database where there are any, and missed quietly where not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter.inventory import pci_ids
from outfitter.inventory.pci_ids import PciIds

DATA = b"""# a comment
8086  Intel Corporation
\t1592  Ethernet Controller E810-C for QSFP
\t\t8086 0001  Ethernet Network Adapter E810-C-Q1
# another between
\t1889  Ethernet Adaptive Virtual Function
10de  NVIDIA Corporation
\t2204  GA102 [GeForce RTX 3090]
\t8086  Not Intel

ffff  Illegal Vendor ID

# classes
C 02  Network controller
\t00  Ethernet controller
\t\t01  Some interface
\t07  Infiniband controller
C 03  Display controller
\t00  VGA compatible controller
\t\t00  VGA controller
"""

KNOWN: dict[str, tuple[str | None, str | None, tuple[str | None, str | None]]] = {
    "both": ("8086", "1592", ("Intel Corporation", "Ethernet Controller E810-C for QSFP")),
    "behind a subsystem and a comment": ("8086", "1889", ("Intel Corporation", "Ethernet Adaptive Virtual Function")),
    "a product of another vendor": ("8086", "2204", ("Intel Corporation", None)),
    "a product that is numbered like a vendor": ("10de", "8086", ("NVIDIA Corporation", "Not Intel")),
    "a subsystem is no product": ("8086", "8086", ("Intel Corporation", None)),
    "the last vendor": ("ffff", "0000", ("Illegal Vendor ID", None)),
    "classes are no products": ("ffff", "00", ("Illegal Vendor ID", None)),
    "an unknown vendor": ("1234", "1592", (None, None)),
    "no vendor": (None, "1592", (None, None)),
    "no product": ("8086", None, ("Intel Corporation", None)),
    "no hex digits": ("\n808", "1592", (None, None)),
    "the beginning of a comment": ("# a ", "1592", (None, None)),
}


@pytest.mark.parametrize(("vendor", "product", "known"), KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("data", [DATA, DATA.replace(b"\n", b"\r\n"), DATA.rstrip()], ids=["whole", "of Windows", "no end"])
def test_vendors_and_products(
    data: bytes, vendor: str | None, product: str | None, known: tuple[str | None, str | None]
) -> None:
    database = PciIds(data)
    assert database
    assert database.vendor_and_product(vendor, product) == known
    assert database.vendor_and_product(vendor, product) == known  # and again, from what is remembered


@pytest.mark.parametrize(("code", "name"), [
    ("020000", "Ethernet controller"), ("020700", "Infiniband controller"), ("028000", "Network controller"),
    ("030000", "VGA compatible controller"), ("030200", "Display controller"), ("990000", None), (None, None), ("02", None),
    ("02\n\t00", None)])
def test_classes(code: str | None, name: str | None) -> None:
    assert PciIds(DATA).class_name(code) == name


def test_without_data_nothing_is_known() -> None:
    for empty in (PciIds(None), PciIds(b"")):
        assert not empty
        assert empty.vendor_and_product("8086", "1592") == (None, None)
        assert empty.class_name("020000") is None


@given(st.binary(max_size=200), st.sampled_from(["8086", "0000", "ffff", "c 02"]))
def test_garbage_is_survived(data: bytes, vendor: str) -> None:
    for text in (data, b"8086  " + data, DATA + data, data + DATA):
        for name in (*PciIds(text).vendor_and_product(vendor, "1592"), PciIds(text).class_name("020000")):
            assert name is None or (name.isprintable() and name and len(name) <= pci_ids.MAX_NAME)


def test_the_variable_names_the_file(tmp_path: Path) -> None:
    place = tmp_path / "pci.ids"
    place.write_bytes(DATA)
    database = pci_ids.database({pci_ids.VARIABLE: str(place)})
    assert database.vendor_and_product("10de", "2204") == ("NVIDIA Corporation", "GA102 [GeForce RTX 3090]")
    assert pci_ids.database({pci_ids.VARIABLE: str(place)}) is database
    for wrong in (tmp_path, tmp_path / "none"):
        assert not pci_ids.database({pci_ids.VARIABLE: str(wrong)})


def test_the_systems_places_are_looked_at_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci_ids, "PLACES", (str(tmp_path / "none"), str(tmp_path / "first"), str(tmp_path / "second")))
    assert not pci_ids.database({})
    (tmp_path / "second").write_bytes(b"8086  Second\n")
    assert pci_ids.database({}).vendor_and_product("8086", None) == ("Second", None)
    (tmp_path / "first").write_bytes(b"8086  First\n")
    assert pci_ids.database({}).vendor_and_product("8086", None) == ("First", None)


def test_a_file_that_is_something_else_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci_ids, "MAX_BYTES", 100)
    (tmp_path / "large").write_bytes(DATA)
    assert not pci_ids.database({pci_ids.VARIABLE: str(tmp_path / "large")})


@pytest.mark.parts
@pytest.mark.skipif(not any(Path(place).is_file() for place in pci_ids.PLACES),
                    reason="needs the pci.ids database; on Debian it comes with pci.ids")
def test_the_systems_database_knows_what_is_common() -> None:
    database = pci_ids.database({})
    assert database.vendor_and_product("8086", "10c9") == ("Intel Corporation", "82576 Gigabit Network Connection")
    assert database.class_name("010802") == "Non-Volatile memory controller"
