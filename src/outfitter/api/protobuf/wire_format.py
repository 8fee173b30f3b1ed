"""Protobuf's wire format: varints, and the fields of a message as numbers with values. Pure."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
WireValue = int | bytes | None  # None: of a fixed size, which no field of Kubernetes' messages here has


def varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF  # negative ones have ten bytes
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tagged(number: int, content: bytes) -> bytes:
    return varint(number << 3 | LENGTH) + varint(len(content)) + content


def read_fields(data: bytes) -> Iterator[tuple[int, WireValue]]:
    """Field numbers with their values. ValueError or IndexError: it is damaged. Groups, which no message of Kubernetes has, are
    damage."""
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        number, type_ = tag >> 3, tag & 7
        if not number:
            raise ValueError("field number 0")
        if type_ == VARINT:
            value, place = read_varint(data, place)
            yield number, value
            continue
        if type_ == LENGTH:
            length, place = read_varint(data, place)
        elif type_ in _SIZES:
            length = _SIZES[type_]
        else:
            raise ValueError(f"wire type {type_}")
        if place + length > len(data):
            raise ValueError("it ends early")
        yield number, data[place:place + length] if type_ == LENGTH else None
        place += length


def read_varints(data: bytes) -> Iterator[int]:
    """A packed field."""
    place = 0
    while place < len(data):
        value, place = read_varint(data, place)
        yield value


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    if data[place] < 0x80:  # most
        return data[place], place + 1
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
        if shift > 63:
            raise ValueError("a number that is too long")


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
