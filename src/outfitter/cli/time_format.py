"""Times and durations for the terminal: local time, no longer than needed. Used by all commands that print times."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def now() -> datetime:
    """The client's clock."""
    return datetime.now(UTC)


def local_time(text: str, at: datetime) -> str:
    """A stored time as local time: "12:04" if it is on the day of `at`, else with the date. Text that is not a time is returned
    as it is."""
    moment = _read(text)
    if moment is None:
        return text or "an unknown time"
    local, today = moment.astimezone(), at.astimezone()
    return f"{local:%H:%M}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M}"


def local_clock() -> Callable[[str], str]:
    """`local_time` as seen from now: how answers for people show stored times."""
    return functools.partial(local_time, at=now())


def elapsed(begin: str, end: str, at: datetime) -> str:
    """The time from `begin` to `end`, or to `at` if `end` is "": "3d4h", "12m", "8s"."""
    first, last = _read(begin), _read(end) if end else at
    if first is None or last is None:
        return "-"
    seconds = max(0, int((last - first).total_seconds()))
    units = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    while len(units) > 1 and not units[0][0]:
        units.pop(0)
    return "".join(f"{count}{unit}" for count, unit in units[:2] if count) or "0s"


def parse_duration(text: str) -> float:
    """Seconds of a typed duration: "30" (seconds), "90s", "5m", "1h30m". ValueError: it is not a duration."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not text or _PART.sub("", text):
        raise ValueError(f"{text!r} is not a duration: write a number of seconds, or for example 90s, 5m, 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def format_duration(time: float) -> str:
    """A duration in seconds as text: "1h30m", "5m", "0.5s"."""
    whole = [(int(time) // 3600, "h"), (int(time) // 60 % 60, "m"), (round(time % 60, 3), "s")]
    return "".join(f"{count:g}{unit}" for count, unit in whole if count) or "0s"


def _read(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
