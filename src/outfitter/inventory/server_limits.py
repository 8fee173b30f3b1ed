"""Limits of the API server: what a client may use of memory and time. Set in section `server` of the configuration file and by
`outfit up --limit`; docs/configuration.md lists them. Read here, enforced in `apiserver`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from outfitter.inventory.strict_yaml import Reader, Section


@dataclass(frozen=True, slots=True)
class ServerLimits:
    max_header_bytes: int = 64 << 10  # request line and headers of one request
    max_header_fields: int = 100
    max_connections: int = 2000
    max_connections_per_address: int = 256  # of one client address
    max_inflight_bytes: int = 256 << 20  # of bodies above 64 KiB that are being received or sent, together
    read_header_timeout: int = 10  # seconds to the first request, TLS handshake included; and for the headers of each later one
    read_body_timeout: int = 60  # seconds from the headers to the end of the body
    write_timeout: int = 30  # seconds for which a client may leave unread what is sent to it


DEFAULT = ServerLimits()
KEYS = tuple(field.name for field in fields(ServerLimits))
LEAST = {"max_header_bytes": 1 << 10, "max_header_fields": 10, "max_inflight_bytes": 4 << 20}  # 1 for all others
MOST = 1 << 40
DAY = 86_400  # the longest time, in seconds


def read(section: Section, default: ServerLimits = DEFAULT) -> ServerLimits:
    """The limits of a section; mistakes are reported to its reader."""
    found = {key: number for key in KEYS if (number := _number(section, key)) is not None}
    return replace(default, **found)


def with_arguments(default: ServerLimits, arguments: Iterable[str]) -> ServerLimits:
    """`default`, changed by arguments such as max_connections=500; Invalid names those that are wrong."""
    reader = Reader("--limit")
    given = dict(argument.partition("=")[::2] for argument in arguments)
    limits = read(reader.section({**given}, "", KEYS), default)
    reader.finish()
    return limits


def _number(section: Section, key: str) -> int | None:
    least = LEAST.get(key, 1)
    most, unit = (DAY, "s") if key.endswith("_timeout") else (MOST, "")
    text = section.text(key)
    if text is None:
        return None
    digits = text.removesuffix(unit)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and least <= int(digits) <= most):
        section.wrong(key, f"{text!r} is not a whole number from {least}{unit} to {most}{unit}")
        return None
    return int(digits)
