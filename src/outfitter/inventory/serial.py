"""Serial numbers of PCI functions and cards. On a real host only root can read the kernel's `serial_number`, the extended
configuration space and the vital product data; for other users they are absent, without a warning. The serial number of an NVMe
controller is readable for all. Called by `scan`."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from outfitter.inventory.sysfs_reader import SysfsReader, short

# Extended capabilities follow the first 256 bytes, up to the end of the configuration space.
_EXTENDED, _SPACE, _HEADER = 0x100, 0x1000, 4
_SERIAL_NUMBER = 0x0003  # id of the Device Serial Number capability
_NEVER_SET = {"00-00-00-00-00-00-00-00", "ff-ff-ff-ff-ff-ff-ff-ff"}

# Vital product data is a sequence of resources: one byte tag, two bytes length, content. Reading it is slow on real hardware,
# so only the needed part is read.
_NAME, _READ_ONLY, _END = 0x82, 0x90, 0x78
_MAX_RESOURCES, _MAX_RESOURCE = 8, 4096

_TEXT = re.compile(r"[\x20-\x7e]{1,64}")


def function_serial(reader: SysfsReader, base: str, there: frozenset[str]) -> str | None:
    """The serial number from the kernel, otherwise from the configuration space, otherwise from the NVMe controller."""
    if "serial_number" in there and (serial := _file(reader, f"{base}/serial_number", secret=True)):
        return serial
    if "config" in there and (serial := _capability(reader, f"{base}/config")):
        return serial
    for name in reader.tree.names(f"{base}/nvme") if "nvme" in there else ():
        if serial := _file(reader, f"{base}/nvme/{name}/serial"):
            return serial
    return None


def _file(reader: SysfsReader, path: str, *, secret: bool = False) -> str | None:
    text = reader.tree.read(path)
    if text is None:
        if not secret:
            reader.warn(path, "cannot be read")
        return None
    text = text.strip()
    if not _TEXT.fullmatch(text):
        reader.warn(path, f"is {short(text)}, which is not a serial number")
        return None
    return None if text in _NEVER_SET else text


def _capability(reader: SysfsReader, path: str) -> str | None:
    """The Device Serial Number capability, in the kernel's format."""
    at, seen = _EXTENDED, set()
    while at:
        if at in seen or not _EXTENDED <= at <= _SPACE - _HEADER:
            reader.warn(path, "has extended capabilities that loop or leave the configuration space")
            return None
        seen.add(at)
        header = reader.tree.read_bytes(path, _HEADER, at)
        if header is None or len(header) < _HEADER or header in (b"\0\0\0\0", b"\xff\xff\xff\xff"):
            return None
        (word,) = struct.unpack("<I", header)
        if word & 0xFFFF == _SERIAL_NUMBER:
            number = reader.tree.read_bytes(path, 8, at + _HEADER) or b""
            text = "-".join(f"{byte:02x}" for byte in reversed(number))
            return text if len(number) == 8 and text not in _NEVER_SET else None
        at = word >> 20 & 0xFFC
    return None


def card_serial(reader: SysfsReader, base: str) -> str | None:
    """The serial number in the function's vital product data."""
    path = f"{base}/vpd"
    first = reader.tree.read_bytes(path, 1)
    if not first:
        return None
    try:
        keywords = dict(_keywords(reader, path))
    except ValueError as error:
        reader.warn(path, f"is not valid vital product data: {error}")
        return None
    if (data := keywords.get(b"SN")) is None:
        return None
    text = data.decode("latin-1").strip(" \0")
    if text and _TEXT.fullmatch(text):
        return text
    if text:
        reader.warn(path, f"has the serial number {short(text)}, which is not printable")
    return None


def _keywords(reader: SysfsReader, path: str) -> Iterator[tuple[bytes, bytes]]:
    """The keywords of the read-only section. ValueError for malformed data."""
    data = _read_only(reader, path)
    at = 0
    while at < len(data):
        if at + 3 > len(data) or at + 3 + data[at + 2] > len(data):
            raise ValueError("a keyword exceeds its section")
        yield data[at:at + 2], data[at + 3:at + 3 + data[at + 2]]
        at += 3 + data[at + 2]


def _read_only(reader: SysfsReader, path: str) -> bytes:
    at = 0
    for _ in range(_MAX_RESOURCES):
        head = reader.tree.read_bytes(path, 3, at) or b""
        if head[:1] == bytes([_END]):
            return b""
        if len(head) < 3:
            raise ValueError("it ends without an end tag")
        tag, length = head[0], head[1] | head[2] << 8
        if not tag & 0x80:
            raise ValueError(f"there is no resource with the tag {tag:#04x}")
        if tag == _READ_ONLY:
            if length > _MAX_RESOURCE:
                raise ValueError(f"{length} bytes are too many")
            data = reader.tree.read_bytes(path, length, at + 3) or b""
            if len(data) < length:
                raise ValueError("it ends in the middle")
            return data
        at += 3 + length
    raise ValueError("it has no end")
