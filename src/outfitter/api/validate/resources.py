"""resource.k8s.io kinds (DeviceClass, ResourceClaim, ResourceClaimTemplate, DeviceTaintRule; `slices` has ResourceSlice and
`dra` the status of a claim and ResourcePoolStatusRequest), and NetworkAttachmentDefinition. Also `quantities`, the check of an
amount."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outfitter import cel
from outfitter.api import quantity
from outfitter.api.validate import names, node_placement
from outfitter.errors import Cause, Invalid

MOST = 2 ** 63  # quantities must fit int64
MODES = ("ExactCount", "All")
ATTRIBUTE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*")
RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def device_class(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = _spec(obj)
    yield from _selectors(spec.get("selectors"), "spec.selectors")
    name = spec.get("extendedResourceName")
    if name is not None and not RESOURCE.fullmatch(name):
        yield Cause(
            "spec.extendedResourceName",
            f'Invalid value: "{name}": an extended resource needs a domain and a name, for example example.com/gpu',
        )
    for index, entry in enumerate(spec.get("config") or ()):
        yield from _opaque(entry, f"spec.config[{index}]")


def network(obj: Mapping[str, Any]) -> Iterator[Cause]:
    """A NetworkAttachmentDefinition: spec.config is the text of a JSON object."""
    text = _spec(obj).get("config")
    try:
        if text and not isinstance(json.loads(text), dict):
            yield Cause("spec.config", "Invalid value: must be the text of a JSON object, such as "
                                       '{"cniVersion": "0.3.1", "name": "lan", "type": "bridge", "bridge": "br0"}')
    except (ValueError, RecursionError) as error:
        yield Cause("spec.config", f"Invalid value: must be JSON: {error}")


def claim(obj: Mapping[str, Any]) -> Iterator[Cause]:
    yield from _claim_spec(obj.get("spec"), "spec")


def claim_template(obj: Mapping[str, Any]) -> Iterator[Cause]:
    yield from template_spec(obj.get("spec"), "spec")


def template_spec(spec: Any, path: str) -> Iterator[Cause]:
    """The spec of a claim template, in a ResourceClaimTemplate or inside a VM."""
    yield from _claim_spec((spec if isinstance(spec, Mapping) else {}).get("spec"), f"{path}.spec")


def taint_rule(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = _spec(obj)
    yield from node_placement.check_taint(spec.get("taint") or {}, "spec.taint", node_placement.DEVICE_EFFECTS)
    selector = spec.get("deviceSelector") or {}
    for field, check in (("driver", names.driver), ("pool", names.pool), ("device", names.device)):
        if selector.get(field) is not None:
            yield from check(selector[field], f"spec.deviceSelector.{field}")


def unchanged_spec(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    if new.get("spec") != old.get("spec"):
        yield Cause("spec", "Invalid value: field is immutable; create a new object instead")


def _spec(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = obj.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _claim_spec(spec: Any, path: str) -> Iterator[Cause]:
    devices = (spec if isinstance(spec, Mapping) else {}).get("devices")
    if not isinstance(devices, Mapping):
        yield Cause(f"{path}.devices", "Required value: the requested devices", "FieldValueRequired")
        return
    seen: set[str] = set()
    known = request_names(spec)
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
    for index, entry in enumerate(devices.get("constraints") or ()):
        yield from _constraint(entry, known, f"{path}.devices.constraints[{index}]")
    for index, entry in enumerate(devices.get("config") or ()):
        yield from config(entry, known, f"{path}.devices.config[{index}]")


def request_names(spec: Any) -> frozenset[str]:
    """Names that constraints, config and results may refer to: request, or request/subrequest."""
    requests = (((spec or {}).get("devices") or {}).get("requests")) or ()
    return frozenset(name for request in requests for name in (str(request.get("name")), *(
        f"{request.get('name')}/{alternative.get('name')}" for alternative in request.get("firstAvailable") or ())))


def config(entry: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[Cause]:
    yield from _known(entry, known, path)
    yield from _opaque(entry, path)


def _constraint(entry: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[Cause]:
    yield from _known(entry, known, path)
    given = [field for field in ("matchAttribute", "distinctAttribute") if entry.get(field) is not None]
    if len(given) != 1:
        yield Cause(path, "Invalid value: exactly one of `matchAttribute` or `distinctAttribute` is required")
    for field in given:
        if not ATTRIBUTE.fullmatch(entry[field]):
            yield Cause(f"{path}.{field}", f'Invalid value: "{entry[field]}": an attribute is written with the domain of its '
                                           "publisher, for example resource.kubernetes.io/numaNode")


def _known(entry: Mapping[str, Any], known: Collection[str], path: str) -> Iterator[Cause]:
    for index, name in enumerate(entry.get("requests") or ()):
        yield from known_request(name, known, f"{path}.requests[{index}]")


def known_request(name: str, known: Collection[str], path: str) -> Iterator[Cause]:
    if name not in known:
        yield Cause(path, f'Invalid value: "{name}": must be the name of a request in the claim, or request/subrequest: '
                          f"{', '.join(sorted(known)) or 'it has none'}")


def _opaque(entry: Mapping[str, Any], path: str) -> Iterator[Cause]:
    opaque = entry.get("opaque")
    if opaque is None:
        yield Cause(f"{path}.opaque", "Required value: driver and parameters", "FieldValueRequired")
        return
    yield from names.required(opaque.get("driver"), f"{path}.opaque.driver", "the driver that reads the parameters")
    if opaque.get("driver"):
        yield from names.subdomain(opaque["driver"], f"{path}.opaque.driver")
    if opaque.get("parameters") is None:
        yield Cause(f"{path}.opaque.parameters", "Required value: an object", "FieldValueRequired")


def _request(request: Mapping[str, Any], path: str) -> Iterator[Cause]:
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if (exactly is None) == (not alternatives):
        yield Cause(path, "Invalid value: exactly one of `exactly` or `firstAvailable` is required")
        return
    subs = [alternative.get("name") for alternative in alternatives or () if isinstance(alternative, Mapping)]
    seen: set[Any] = set()
    for index, name in enumerate(subs):
        yield from names.label(name, f"{path}.firstAvailable[{index}].name")
        if name and name in seen:
            yield Cause(f"{path}.firstAvailable[{index}].name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)
    for inner, here in ([(exactly, f"{path}.exactly")] if exactly is not None else
                        [(item, f"{path}.firstAvailable[{i}]") for i, item in enumerate(alternatives or ())]):
        if not isinstance(inner, Mapping):
            yield Cause(here, "Invalid value: must be an object with deviceClassName")
            continue
        yield from names.required(inner.get("deviceClassName"), f"{here}.deviceClassName")
        if inner.get("deviceClassName"):
            yield from names.subdomain(inner["deviceClassName"], f"{here}.deviceClassName")
        mode = inner.get("allocationMode", "ExactCount")
        if mode not in MODES:
            yield Cause(f"{here}.allocationMode", f'Unsupported value: "{mode}": supported values: "ExactCount", "All"',
                        "FieldValueNotSupported")
        count = inner.get("count", 1)
        if mode == "All" and inner.get("count"):
            yield Cause(f"{here}.count", f"Invalid value: {inner['count']}: must not be specified when allocationMode is 'All'")
        if mode == "ExactCount" and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            yield Cause(f"{here}.count", f"Invalid value: {count!r}: must be greater than zero")
        yield from _selectors(inner.get("selectors"), f"{here}.selectors")
        yield from node_placement.tolerations(inner.get("tolerations"), f"{here}.tolerations", node_placement.DEVICE_EFFECTS)
        for name, amount in ((inner.get("capacity") or {}).get("requests") or {}).items():
            yield from quantities(f"{here}.capacity.requests.{name}", amount)


def quantities(field: str, amount: Any, most: int = MOST) -> Iterator[Cause]:
    """A quantity of zero or more, below `most`."""
    if not _in_range(str(amount), most):
        yield Cause(field, f'Invalid value: "{amount}": must be an amount of zero or more, such as 500m, 2 or 4Gi')


@functools.lru_cache(maxsize=4096)
def _in_range(amount: str, most: int) -> bool:
    try:
        return 0 <= quantity.to_int(amount) < most
    except Invalid:
        return False


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
