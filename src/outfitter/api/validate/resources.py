"""Device classes, claims and their templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter import cel
from outfitter.api.validate import names
from outfitter.cel import device
from outfitter.errors import Cause, Invalid

MODES = ("ExactCount", "All")
EFFECTS = ("NoExecute", "NoSchedule", "None")


def device_class(obj: Mapping[str, Any]) -> Iterator[Cause]:
    yield from _selectors(_spec(obj).get("selectors"), "spec.selectors")


def claim(obj: Mapping[str, Any]) -> Iterator[Cause]:
    yield from _claim_spec(obj.get("spec"), "spec")


def claim_template(obj: Mapping[str, Any]) -> Iterator[Cause]:
    yield from template_spec(obj.get("spec"), "spec")


def template_spec(spec: Any, path: str) -> Iterator[Cause]:
    """What a template says of the claims made from it, wherever it stands."""
    yield from _claim_spec((spec if isinstance(spec, Mapping) else {}).get("spec"), f"{path}.spec")


def taint_rule(obj: Mapping[str, Any]) -> Iterator[Cause]:
    taint = _spec(obj).get("taint") or {}
    if not taint.get("key"):
        yield Cause("spec.taint.key", "Required value: what the taint is called, for example example.com/broken",
                    "FieldValueRequired")
    if not taint.get("effect"):
        yield Cause("spec.taint.effect", f"Required value: one of {', '.join(EFFECTS)}", "FieldValueRequired")
    elif taint["effect"] not in EFFECTS:
        yield Cause("spec.taint.effect", f'Unsupported value: "{taint["effect"]}": supported values: '
                                         + ", ".join(f'"{effect}"' for effect in EFFECTS), "FieldValueNotSupported")


def resource_slice(obj: Mapping[str, Any]) -> Iterator[Cause]:
    """What no selector could read would keep claims from every device of the pool."""
    spec = _spec(obj)
    for index, one in enumerate(spec.get("devices") or ()):
        if device.readable(one):
            continue
        try:
            cel.Device.from_slice(str(spec.get("driver")), one)
        except Invalid as error:
            yield from (Cause(f"spec.devices[{index}].{cause.field}", f"Invalid value: {cause.message}")
                        for cause in error.causes)


def unchanged_spec(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    if new.get("spec") != old.get("spec"):
        yield Cause("spec", "Invalid value: field is immutable; make a new object instead")


def _spec(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = obj.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _claim_spec(spec: Any, path: str) -> Iterator[Cause]:
    devices = (spec if isinstance(spec, Mapping) else {}).get("devices")
    if not isinstance(devices, Mapping):
        yield Cause(f"{path}.devices", "Required value: what is claimed", "FieldValueRequired")
        return
    seen: set[str] = set()
    for index, request in enumerate(devices.get("requests") or ()):
        here = f"{path}.devices.requests[{index}]"
        if not isinstance(request, Mapping):
            yield Cause(here, "Invalid value: must be an object with name and exactly or firstAvailable")
            continue
        yield from names.label(request.get("name"), f"{here}.name")
        if request.get("name") in seen:
            yield Cause(f"{here}.name", f'Duplicate value: "{request.get("name")}"', "FieldValueDuplicate")
        seen.add(str(request.get("name")))
        yield from _request(request, here)


def _request(request: Mapping[str, Any], path: str) -> Iterator[Cause]:
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if (exactly is None) == (not alternatives):
        yield Cause(path, "Invalid value: exactly one of `exactly` or `firstAvailable` is required")
        return
    for inner, here in ([(exactly, f"{path}.exactly")] if exactly is not None else
                        [(item, f"{path}.firstAvailable[{i}]") for i, item in enumerate(alternatives or ())]):
        if not isinstance(inner, Mapping):
            yield Cause(here, "Invalid value: must be an object with deviceClassName")
            continue
        yield from names.required(inner.get("deviceClassName"), f"{here}.deviceClassName")
        mode = inner.get("allocationMode", "ExactCount")
        if mode not in MODES:
            yield Cause(f"{here}.allocationMode", f'Unsupported value: "{mode}": supported values: "ExactCount", "All"',
                        "FieldValueNotSupported")
        count = inner.get("count", 1)
        if mode == "ExactCount" and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            yield Cause(f"{here}.count", f"Invalid value: {count!r}: must be greater than zero")
        yield from _selectors(inner.get("selectors"), f"{here}.selectors")


def _selectors(selectors: Any, path: str) -> Iterator[Cause]:
    for index, selector in enumerate(selectors or ()):
        here = f"{path}[{index}].cel"
        expression = (selector.get("cel") or {}).get("expression") if isinstance(selector, Mapping) else None
        if not isinstance(expression, str) or not expression:
            yield Cause(f"{here}.expression", "Required value: an expression over `device`", "FieldValueRequired")
            continue
        try:
            cel.compile_selector(expression)
        except Invalid as error:
            yield Cause(f"{here}.expression", f"Invalid value: {error.message}")
