"""Functions on times, addresses, URLs and named formats."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TypeVar

from outfitter.cel import values
from outfitter.cel.library import named_formats, network, times
from outfitter.cel.library.named_formats import FORMATS, NamedFormat
from outfitter.cel.library.network import Cidr, Ip, Url
from outfitter.cel.library.times import SECOND, Duration, Timestamp
from outfitter.cel.values import NONE, Optional, Value
from outfitter.errors import EvaluationError

Function = Callable[..., Value]
T = TypeVar("T")


def want(kind: type[T], function: str, value: Value) -> T:
    """The value, if it is exactly of that type (bool is not int)."""
    if type(value) is not kind:
        raise values.no_such_overload(function, value)
    return value


def read(parse: Callable[[str], T], function: str, text: Value) -> T:
    """A text as what `parse` makes of it."""
    try:
        return parse(want(str, function, text))
    except ValueError as error:
        raise EvaluationError(str(error)) from error


def _is(parse: Callable[[str], object], function: str) -> Function:
    def check(text: Value) -> bool:
        try:
            parse(want(str, function, text))
        except ValueError:
            return False
        return True

    return check


def _get(kind: type[T], function: str, part: Callable[[T], Value]) -> Function:
    return lambda target: part(want(kind, function, target))


# -- times


def duration(value: Value) -> Duration:
    return value if type(value) is Duration else read(times.parse_duration, "duration", value)


def timestamp(value: Value) -> Timestamp:
    if type(value) is Timestamp:
        return value
    if type(value) is int:
        try:
            return times.timestamp(value * SECOND)
        except ValueError as error:
            raise EvaluationError(str(error)) from error
    return read(times.parse_timestamp, "timestamp", value)


def _cut(nano: int, unit: int) -> int:
    """Towards zero."""
    return nano // unit if nano >= 0 else -(-nano // unit)


def _moment(function: str, part: Callable[[datetime.datetime], int], unit: int | None = None) -> Function:
    """A part of a timestamp, or a whole duration in a unit."""

    def get(target: Value, zone: Value = "UTC") -> int:
        if type(target) is Duration and unit is not None:
            return _cut(target.nano, unit)
        moment = want(Timestamp, function, target)
        if function == "getMilliseconds":
            return moment.nano % SECOND // 10**6
        try:
            return part(moment.local(want(str, function, zone)))
        except ValueError as error:
            raise EvaluationError(str(error)) from error

    return get


_CALENDAR: dict[str, Function] = {
    "getFullYear": _moment("getFullYear", lambda at: at.year),
    "getMonth": _moment("getMonth", lambda at: at.month - 1),
    "getDate": _moment("getDate", lambda at: at.day),
    "getDayOfMonth": _moment("getDayOfMonth", lambda at: at.day - 1),
    "getDayOfWeek": _moment("getDayOfWeek", lambda at: at.isoweekday() % 7),
    "getDayOfYear": _moment("getDayOfYear", lambda at: at.timetuple().tm_yday - 1),
    "getHours": _moment("getHours", lambda at: at.hour, 3600 * SECOND),
    "getMinutes": _moment("getMinutes", lambda at: at.minute, 60 * SECOND),
    "getSeconds": _moment("getSeconds", lambda at: at.second, SECOND),
    "getMilliseconds": _moment("getMilliseconds", lambda at: 0, 10**6),
}

# -- addresses and URLs


def _contains_ip(target: Value, other: Value) -> bool:
    one = other if type(other) is Ip else read(network.parse_ip, "containsIP", other)
    return want(Cidr, "containsIP", target).contains(one.address)


def _contains_cidr(target: Value, other: Value) -> bool:
    one = other if type(other) is Cidr else read(network.parse_cidr, "containsCIDR", other)
    return want(Cidr, "containsCIDR", target).covers(one)


def _validate(target: Value, text: Value) -> Optional:
    problems = want(NamedFormat, "validate", target).problems(want(str, "validate", text))
    return Optional(True, list(problems)) if problems else NONE


def _named(name: Value) -> Optional:
    found = FORMATS.get(want(str, "format.named", name))
    return Optional(True, found) if found else NONE


def _constant(value: NamedFormat) -> Function:
    return lambda: value


MEMBER: dict[str, dict[int, Function]] = {
    **{name: {0: function, 1: function} for name, function in _CALENDAR.items()},
    "family": {0: _get(Ip, "family", lambda one: one.address.version)},
    "isUnspecified": {0: _get(Ip, "isUnspecified", lambda one: one.address.is_unspecified)},
    "isLoopback": {0: _get(Ip, "isLoopback", lambda one: one.address.is_loopback)},
    "isLinkLocalMulticast": {0: _get(Ip, "isLinkLocalMulticast", lambda one: one.link_local_multicast)},
    "isLinkLocalUnicast": {0: _get(Ip, "isLinkLocalUnicast", lambda one: one.address.is_link_local)},
    "isGlobalUnicast": {0: _get(Ip, "isGlobalUnicast", lambda one: one.global_unicast)},
    "ip": {0: _get(Cidr, "ip", lambda one: Ip(one.address))},
    "prefixLength": {0: _get(Cidr, "prefixLength", lambda one: one.bits)},
    "masked": {0: _get(Cidr, "masked", Cidr.masked)},
    "containsIP": {1: _contains_ip},
    "containsCIDR": {1: _contains_cidr},
    "getScheme": {0: _get(Url, "getScheme", lambda one: one.scheme)},
    "getHost": {0: _get(Url, "getHost", lambda one: one.host)},
    "getHostname": {0: _get(Url, "getHostname", lambda one: one.hostname)},
    "getPort": {0: _get(Url, "getPort", lambda one: one.port)},
    "getEscapedPath": {0: _get(Url, "getEscapedPath", lambda one: one.escaped_path)},
    "getQuery": {0: _get(Url, "getQuery", lambda one: one.parameters)},
    "validate": {1: _validate},
}
GLOBAL: dict[str, dict[int, Function]] = {
    "duration": {1: duration},
    "timestamp": {1: timestamp},
    "ip": {1: lambda text: read(network.parse_ip, "ip", text)},
    "isIP": {1: _is(network.parse_ip, "isIP")},
    "ip.isCanonical": {1: lambda text: str(read(network.parse_ip, "ip.isCanonical", text)) == text},
    "cidr": {1: lambda text: read(network.parse_cidr, "cidr", text)},
    "isCIDR": {1: _is(network.parse_cidr, "isCIDR")},
    "url": {1: lambda text: read(network.parse_url, "url", text)},
    "isURL": {1: lambda text: network.is_url(want(str, "isURL", text))},
    "format.named": {1: _named},
    **{f"format.{name}": {0: _constant(one)} for name, one in named_formats.FORMATS.items()},
}
