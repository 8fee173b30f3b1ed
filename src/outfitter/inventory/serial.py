"""Serial numbers of functions and cards, from the places where the hardware keeps them. On a real host only root may read
the kernel's `serial_number`, the configuration space beyond its beginning and the vital product data; for others these say
nothing, which is no oddity. Anybody may read that of an NVMe controller."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from outfitter.inventory.sysfs_reader import SysfsReader, short

# Extended capabilities stand behind the first 256 bytes, up to the end of the space.
_EXTENDED, _SPACE, _HEADER = 0x100, 0x1000, 4
_SERIAL_NUMBER = 0x0003  # the capability that tells a device's serial number
_NEVER_SET = {"00-00-00-00-00-00-00-00", "ff-ff-ff-ff-ff-ff-ff-ff"}

# Vital product data is a row of resources, each a byte of tag, two of length and its content. Reading it takes long on
# real hardware, so no more is read than needed.
_NAME, _READ_ONLY, _END = 0x82, 0x90, 0x78
_MAX_RESOURCES, _MAX_RESOURCE = 8, 4096

_TEXT = re.compile(r"[\x20-\x7e]{1,64}")


def function_serial(reader: SysfsReader, base: str, there: frozenset[str]) -> str | None:
    """As the kernel tells it, else as its configuration space, else as the NVMe controller on it does."""
    if "serial_number" in there and (told := _file(reader, f"{base}/serial_number", secret=True)):
        return told
    if "config" in there and (told := _capability(reader, f"{base}/config")):
        return told
    for name in reader.tree.names(f"{base}/nvme") if "nvme" in there else ():
        if told := _file(reader, f"{base}/nvme/{name}/serial"):
            return told
    return None


def _file(reader: SysfsReader, path: str, *, secret: bool = False) -> str | None:
    text = reader.tree.read(path)
    if text is None:
        if not secret:
            reader.warn(path, "cannot be read")
        return None
    text = text.strip()
    if not _TEXT.fullmatch(text):
        reader.warn(path, f"says {short(text)}, which is no serial number")
        return None
    return None if text in _NEVER_SET else text


def _capability(reader: SysfsReader, path: str) -> str | None:
    """The device serial number among the extended capabilities, in the kernel's writing."""
    at, seen = _EXTENDED, set()
    while at:
        if at in seen or not _EXTENDED <= at <= _SPACE - _HEADER:
            reader.warn(path, "has extended capabilities that run in a circle or out of the space")
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
        reader.warn(path, f"is no vital product data: {error}")
        return None
    if (data := keywords.get(b"SN")) is None:
        return None
    text = data.decode("latin-1").strip(" \0")
    if text and _TEXT.fullmatch(text):
        return text
    if text:
        reader.warn(path, f"says that the serial number is {short(text)}, which is none")
    return None


def _keywords(reader: SysfsReader, path: str) -> Iterator[tuple[bytes, bytes]]:
    """The keywords of the part that is read only. ValueError says what makes no sense."""
    data = _read_only(reader, path)
    at = 0
    while at < len(data):
        if at + 3 > len(data) or at + 3 + data[at + 2] > len(data):
            raise ValueError("a keyword ends behind the end")
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
