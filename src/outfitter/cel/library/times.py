"""Durations ("1h30m") and timestamps ("2024-05-01T10:00:00Z"), both exact to the nanosecond."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from dataclasses import dataclass, field
from functools import total_ordering

SECOND = 10**9
_LONGEST = (1 << 63) - 1  # nanoseconds of a duration
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(rf"[+-]?(?:0|(?:{_PART.pattern})+)")
_TIMESTAMP = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})T(?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,](?P<part>[0-9]+))?"
    r"(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
)
_OFFSET = re.compile(r"([+-]?)([0-9]{2}):([0-9]{2})")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST, _LAST = -62135596800 * SECOND, 253402300800 * SECOND  # years 1 to 9999


@total_ordering
@dataclass(frozen=True, slots=True)
class Duration:
    nano: int

    def __lt__(self, other: Duration) -> bool:
        return self.nano < other.nano

    def __str__(self) -> str:
        sign, (whole, part) = "-" if self.nano < 0 else "", divmod(abs(self.nano), SECOND)
        return f"{sign}{whole}.{part:09d}".rstrip("0").rstrip(".") + "s"


@total_ordering
@dataclass(frozen=True, slots=True)
class Timestamp:
    nano: int  # since 1970-01-01T00:00:00Z
    offset: int = field(default=0, compare=False)  # minutes of the zone it was written in; only for printing

    def __lt__(self, other: Timestamp) -> bool:
        return self.nano < other.nano

    def __str__(self) -> str:
        local = _EPOCH + datetime.timedelta(seconds=self.nano // SECOND, minutes=self.offset)
        part = f".{self.nano % SECOND:09d}".rstrip("0").rstrip(".")
        zone = f"{'-' if self.offset < 0 else '+'}{abs(self.offset) // 60:02d}:{abs(self.offset) % 60:02d}"
        # Not isoformat: years before 1000 need their zeros on every platform.
        return f"{local.year:04d}-{local:%m-%dT%H:%M:%S}{part}{zone if self.offset else 'Z'}"

    def local(self, zone: str = "UTC") -> datetime.datetime:
        """The calendar there, without the part of a second; ValueError: there is no such zone."""
        moment = _EPOCH + datetime.timedelta(seconds=self.nano // SECOND)
        try:
            if match := _OFFSET.fullmatch(zone):
                minutes = int(match[2]) * 60 + int(match[3])
                return moment + datetime.timedelta(minutes=-minutes if match[1] == "-" else minutes)
            return moment.astimezone(zoneinfo.ZoneInfo(zone))
        except OverflowError as error:
            raise ValueError(f"{self} is outside of the years 1 to 9999 in the zone {zone[:60]}") from error
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"unknown time zone {zone[:60]!r}: write Europe/Berlin or +02:00") from error


def duration(nano: int) -> Duration:
    """A duration, or ValueError when it is longer than 292 years."""
    if abs(nano) > _LONGEST:
        raise ValueError("integer overflow: a duration is at most 292 years")
    return Duration(nano)


def timestamp(nano: int, offset: int = 0) -> Timestamp:
    """A timestamp, or ValueError outside of the years 1 to 9999."""
    if not _FIRST <= nano < _LAST:
        raise ValueError("integer overflow: a timestamp is in the years 1 to 9999")
    return Timestamp(nano, offset)


def parse_duration(text: str) -> Duration:
    parts = _PART.findall(text)
    if not _DURATION.fullmatch(text) or any(not whole and not part for whole, part, _ in parts):
        raise ValueError(f"{text[:60]!r} is not a duration: write 300ms, 1.5h or 2h45m")
    nano = 0
    for whole, part, unit in parts:
        nano += int(whole[:30] or 0) * _UNITS[unit] + int(part[:20] or 0) * _UNITS[unit] // 10 ** len(part[:20])
    return duration(-nano if text.startswith("-") else nano)


def parse_timestamp(text: str) -> Timestamp:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        offset = 0
        if match["zone"] != "Z":
            hours, minutes = int(match["zone"][1:3]), int(match["zone"][4:])
            if hours > 24 or minutes > 59:
                raise ValueError
            offset = (hours * 60 + minutes) * (-1 if match["zone"][0] == "-" else 1)
        local = datetime.datetime.fromisoformat(f"{match['day']}T{match['time']}+00:00")
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is not a timestamp: write 2024-05-01T10:00:00Z") from error
    elapsed = local - _EPOCH
    nano = (elapsed.days * 86400 + elapsed.seconds - offset * 60) * SECOND
    return timestamp(nano + int((match["part"] or "0")[:9].ljust(9, "0")), offset)
