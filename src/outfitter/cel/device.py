"""The variable `device` of a selector, converted once from a ResourceSlice entry so that evaluation is cheap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter import errors
from outfitter.cel.library import quantity, semver
from outfitter.cel.library.quantity import INT_MAX, INT_MIN, Quantity
from outfitter.cel.values import DefaultMap, Value

Domains = dict[str, dict[str, Value]]


@dataclass(frozen=True, slots=True, eq=False)
class CelDevice:
    """A device as selectors see it. The maps go from domain to name to value and are immutable."""

    driver: str
    attributes: DefaultMap
    capacity: DefaultMap
    allow_multiple: bool = False  # device.allowMultipleAllocations; absent means no

    @classmethod
    def from_slice(cls, driver: str, device: Mapping[str, Any]) -> CelDevice:
        """Convert one entry of a v1 ResourceSlice's spec.devices; raise Invalid naming the field that is wrong."""
        attributes: Domains = {}
        for name, attribute in (device.get("attributes") or {}).items():
            domain, short = _qualified(name, driver)
            attributes.setdefault(domain, {})[short] = _attribute(f"attributes[{name}]", attribute)
        capacity: Domains = {}
        for name, entry in (device.get("capacity") or {}).items():
            domain, short = _qualified(name, driver)
            capacity.setdefault(domain, {})[short] = _capacity(f"capacity[{name}]", entry)
        allow = device.get("allowMultipleAllocations")
        if allow is not None and not isinstance(allow, bool):
            raise _invalid("allowMultipleAllocations", f"{allow!r} is not true or false")
        return cls(driver, DefaultMap(attributes), DefaultMap(capacity), bool(allow))


def readable(device: Mapping[str, Any]) -> bool:
    """Whether `from_slice` can convert an entry. Much cheaper, as values that thousands of devices share are checked once."""
    try:
        for attribute in (device.get("attributes") or {}).values():
            (key, value), = attribute.items()
            if not (key == "string" and type(value) is str):
                _checked(key, value) if type(value) is not list else _attribute("", attribute)
        for entry in (device.get("capacity") or {}).values():
            _checked("", entry["value"])
    except (TypeError, ValueError, KeyError, AttributeError, errors.Invalid):  # unusual or wrong: convert it
        try:
            CelDevice.from_slice("", device)
        except errors.Invalid:
            return False
    return isinstance(device.get("allowMultipleAllocations"), bool | None)


@functools.lru_cache(maxsize=4096, typed=True)
def _checked(key: str, value: Any) -> None:
    """Check an attribute with one value, or (without a key) a capacity; raise Invalid."""
    _attribute("", {key: value}) if key else _capacity("", {"value": value})


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, short = name.partition("/")
    return (domain, short) if slash else (driver, name)


def _attribute(field: str, attribute: Any) -> Value:
    kinds = [key for key in _KINDS if isinstance(attribute, Mapping) and attribute.get(key) is not None]
    if len(kinds) != 1:
        raise _invalid(field, f"exactly one of {', '.join(_KINDS)} must be set, not {' and '.join(kinds) or 'none'}")
    key = kinds[0]
    one, value = _KINDS[key], attribute[key]
    if key not in _PLURAL:
        return one(f"{field}.{key}", value)
    if not isinstance(value, list):
        raise _invalid(f"{field}.{key}", f"{value!r} is not a list")
    return [one(f"{field}.{key}[{at}]", item) for at, item in enumerate(value)]


def _capacity(field: str, entry: Any) -> Quantity:
    value = entry.get("value") if isinstance(entry, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _invalid(f"{field}.value", f"{value!r} is not a quantity such as 1Gi")
    try:
        return quantity.parse(str(value))
    except ValueError as error:
        raise _invalid(f"{field}.value", str(error)) from error


def _int(field: str, value: Any) -> Value:
    if type(value) is not int or not INT_MIN <= value <= INT_MAX:
        raise _invalid(field, f"{value!r} is not a 64-bit whole number")
    return value


def _bool(field: str, value: Any) -> Value:
    if not isinstance(value, bool):
        raise _invalid(field, f"{value!r} is not true or false")
    return value


def _string(field: str, value: Any) -> Value:
    if not isinstance(value, str):
        raise _invalid(field, f"{value!r} is not a string")
    return value


def _version(field: str, value: Any) -> Value:
    if not isinstance(value, str):
        raise _invalid(field, f"{value!r} is not a string with a semantic version")
    try:
        return semver.parse(value)
    except ValueError as error:
        raise _invalid(field, str(error)) from error


_KINDS: dict[str, Callable[[str, Any], Value]] = {
    "int": _int,
    "bool": _bool,
    "string": _string,
    "version": _version,
    "ints": _int,
    "bools": _bool,
    "strings": _string,
    "versions": _version,
}
_PLURAL = frozenset(("ints", "bools", "strings", "versions"))


def _invalid(field: str, message: str) -> errors.Invalid:
    return errors.Invalid(f"{field}: {message}", [errors.Cause(field, message)])
