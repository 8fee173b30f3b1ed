"""How much a body may contain, in whichever format it comes: everything here is read on the event loop, so each bound is so
small that reading and checking an object takes a fraction of a second. Listed in docs/limits.md."""

from __future__ import annotations

from typing import Any

from outfitter.errors import BadRequest, TooLarge, shortened

MAX_DEPTH = 128  # levels of nesting in a body or in a patched object
MAX_VALUES = 60_000  # values in a JSON or protobuf body, and in an object that is stored
MAX_YAML_VALUES = 25_000  # keys and values in a YAML body, with aliases and merge keys spelt out; YAML takes longer to read
MAX_KEY = 4096  # characters in the name of a field
MAX_DUPLICATES = 100  # duplicate fields that are reported, as by Kubernetes
Path = tuple[str | int, ...]  # keys, and places in lists


def too_deep() -> BadRequest:
    return BadRequest(f"the object is nested deeper than {MAX_DEPTH} levels")


def too_many_values() -> TooLarge:
    return TooLarge(f"Request entity too large: an object may have {MAX_VALUES} values")


def too_many_yaml_values() -> TooLarge:
    return TooLarge(f"Request entity too large: a YAML body may have {MAX_YAML_VALUES} keys and values once its aliases and "
                    f"merge keys are spelt out; send JSON, which may have {MAX_VALUES} values")


def check_key(key: str) -> None:
    if len(key) > MAX_KEY:
        raise BadRequest(f"the name of a field may have {MAX_KEY} characters, {shortened(key, 60)} has {len(key)}")


def check_size(value: Any) -> None:
    """Refuse a value that is nested too deeply or has too many values inside."""
    level, left = [value], MAX_VALUES
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, dict | list)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return
        left -= len(level)
        if left < 0:
            raise too_many_values()
    raise too_deep()


def path_text(path: Path) -> str:
    """A path as messages have it: spec.devices.requests[0].name."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return shortened(out)
