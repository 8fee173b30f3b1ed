"""Trees that several tests of the inventory use, and what their binary files are made of."""

from __future__ import annotations

from pathlib import Path

from outfitter.inventory.host_tree import FolderTree, Link, MemoryTree
from outfitter.inventory.simulation import hosts_file

HOST = """
hosts:
- name: a
  numa: [{id: 0, cpus: 0-3, memory: 1Gi}, {id: 1, cpus: 4-7, memory: 1Gi}]
  pci:
  - {address: 0000:3a:00.0, vendor: 8086, product: 347a, class: 060400, driver: pcieport, numa: 0}
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, revision: 02, driver: ice, numa: 0, serial: S-1,
     pcieRoot: pci0000:3a, interface: ens1f0, vfs: {count: 2, product: 1889, driver: [iavf, vfio-pci], interfaces: "v{index}"}}
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, iommuGroup: 20}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, iommuGroup: 20}
  - {address: 0000:65:00.2, vendor: 10de, product: 1aef, class: 060400, iommuGroup: 20, driver: none}
  - {address: 0000:66:00.0, vendor: 10de, product: 2204, class: 030000, iommuGroup: none, driver: none, numa: 1}
"""
TREE = hosts_file.parse(HOST).hosts[0].tree()


def materialise(tree: MemoryTree, root: Path) -> FolderTree:
    """The same tree as a folder."""
    for path, entry in tree.entries.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            place.symlink_to(entry.target)
        elif entry is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(entry if isinstance(entry, bytes) else entry.encode())
    return FolderTree(root)


def capabilities(*found: tuple[int, bytes]) -> bytes:
    """A configuration space with these extended capabilities, each of 16 bytes."""
    space = bytearray(0x1000)
    for number, (identity, body) in enumerate(found):
        at = 0x100 + 16 * number
        following = at + 16 if number + 1 < len(found) else 0
        space[at:at + 4] = (identity | 1 << 16 | following << 20).to_bytes(4, "little")
        space[at + 4:at + 4 + len(body)] = body
    return bytes(space)


NUMBER = bytes.fromhex("0000aaffff9196b4")  # as it stands in the space, the last byte of the number first
TEXT = "b4-96-91-ff-ff-aa-00-00"


def resource(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + len(body).to_bytes(2, "little") + body


def keyword(name: bytes, text: bytes) -> bytes:
    return name + bytes([len(text)]) + text


CARD = resource(0x82, b"ConnectX") + resource(
    0x90, keyword(b"PN", b"MCX6") + keyword(b"SN", b"MT2116X00042 ") + keyword(b"RV", b"\0"))
END = b"\x78"
