"""Rejection codes on pods and VMIs, for programs: one condition for each code beside PodScheduled, whose reason is Kubernetes'.

    type: rejected.outfitter.dev/TooFewFree    status: "True"    reason: TooFewFree    message: which hosts, in words

They are written and removed with PodScheduled, in one patch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.conditions import Condition, with_condition
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode

PREFIX = "rejected.outfitter.dev/"


def of(obj: Mapping[str, Any]) -> list[str]:
    """The codes that an object carries, in their order."""
    return [str(entry.get("reason")) for entry in (obj.get("status") or {}).get("conditions") or () if _is_code(entry)]


def with_codes(have: Sequence[Mapping[str, Any]] | None, messages: Mapping[RejectionCode, str], now: str) -> list[Object]:
    """The conditions with exactly these codes, each with its message."""
    wanted = {f"{PREFIX}{code}" for code in messages}
    out: list[Object] = [dict(entry) for entry in have or () if not _is_code(entry) or entry["type"] in wanted]
    for code, message in messages.items():
        out = with_condition(out, Condition(f"{PREFIX}{code}", True, str(code), message), now)
    return out


def copied(have: Sequence[Mapping[str, Any]] | None, source: Mapping[str, Any]) -> list[Object]:
    """The conditions with the codes of another object, a VMI's launcher pod, in the place of its own."""
    theirs = [dict(entry) for entry in (source.get("status") or {}).get("conditions") or () if _is_code(entry)]
    return [*(dict(entry) for entry in have or () if not _is_code(entry)), *theirs]


def _is_code(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("type")).startswith(PREFIX)
