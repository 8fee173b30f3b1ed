"""ResourceSlices, by Kubernetes' rules. One device that cannot be read would make every selector on its pool fail, and one node
selector that cannot be read every scheduling decision."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter import cel
from outfitter.api.validate import bounds, names, node_placement
from outfitter.cel import device as cel_device
from outfitter.cel.library import quantity
from outfitter.cel.library.quantity import Quantity
from outfitter.errors import Cause, Invalid

MOST_LISTED_VALUES = 48  # values of attributes of a device, items of lists included
MOST_OPTIONS = 10  # values of a request policy
MOST_TEXT = 64  # characters of an attribute
NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
DEVICE_NODES = NODES[:3]
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


def resource_slice(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj["spec"]
    yield from names.driver(spec["driver"], "spec.driver")
    pool = spec["pool"]
    yield from names.pool(pool["name"], "spec.pool.name")
    if (count := pool.get("resourceSliceCount") or 0) < 1:
        yield Cause("spec.pool.resourceSliceCount", f"Invalid value: {count}: must be greater than zero")
    if (pool.get("generation") or 0) < 0:
        yield Cause("spec.pool.generation", f"Invalid value: {pool['generation']}: must be greater than or equal to zero")
    yield from _nodes(spec, NODES, "spec")
    if (terms := (spec.get("nodeSelector") or {}).get("nodeSelectorTerms")) and len(terms) != 1:
        yield Cause("spec.nodeSelector.nodeSelectorTerms", "Invalid value: must have exactly one node selector term")
    devices, counters = spec.get("devices") or (), spec.get("sharedCounters") or ()
    if devices and counters:
        yield Cause("spec", "Invalid value: only one of `sharedCounters` or `devices` is allowed: publish counters in a slice "
                            "of their own")
    yield from _devices(devices, spec)
    yield from unique((entry["name"] for entry in counters), "spec.sharedCounters[{}]")
    for index, entry in enumerate(counters):
        yield from _counters(entry, "name", f"spec.sharedCounters[{index}]")


def changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    spec, was = new["spec"], old.get("spec") or {}
    for field, value, before in (("driver", spec["driver"], was.get("driver")),
                                 ("pool.name", spec["pool"]["name"], (was.get("pool") or {}).get("name")),
                                 ("nodeName", spec.get("nodeName"), was.get("nodeName"))):
        if value != before:
            yield Cause(f"spec.{field}", f'Invalid value: "{value}": field is immutable')


def unreadable_devices(obj: Mapping[str, Any]) -> Iterator[Cause]:
    """Attributes and capacities that are invalid for CEL."""
    for index, entry in enumerate(obj["spec"].get("devices") or ()):
        yield from _unreadable(entry, str(obj["spec"]["driver"]), f"spec.devices[{index}]")


def _unreadable(entry: Mapping[str, Any], driver: str, path: str) -> Iterator[Cause]:
    if cel_device.readable(entry):
        return
    try:
        cel.CelDevice.from_slice(driver, entry)
    except Invalid as error:
        yield from (Cause(f"{path}.{cause.field}", f"Invalid value: {cause.message}") for cause in error.causes)


def _nodes(entry: Mapping[str, Any], fields: tuple[str, ...], path: str) -> Iterator[Cause]:
    """Where devices can be reached from: exactly one of these fields says so."""
    given = [field for field in fields if entry.get(field) is not None]
    chosen = [field for field in given if entry[field] not in ("", False)]
    if len(chosen) != 1:
        listed = ", ".join(f"`{field}`" for field in fields)
        more = ", but multiple fields are set" if chosen else ""
        yield Cause(path, f"{'Invalid value: ' if chosen else 'Required value: '}exactly one of {listed} is required{more}",
                    "FieldValueInvalid" if chosen else "FieldValueRequired")
    for field in given:
        here = f"{path}.{field}"
        if field == "nodeName" and not entry[field]:
            yield Cause(here, 'Invalid value: "": must be either unset or set to a non-empty string')
        elif field == "nodeName":
            yield from names.subdomain(entry[field], here)
        elif field == "nodeSelector":
            yield from node_placement.node_selector(entry[field], here)
        elif entry[field] is not True:
            yield Cause(here, "Invalid value: false: must be either unset or set to true")


def _devices(devices: Any, spec: Mapping[str, Any]) -> Iterator[Cause]:
    yield from unique((entry["name"] for entry in devices), "spec.devices[{}]")
    each = spec.get("perDeviceNodeSelection") is True
    driver = str(spec["driver"])
    for index, entry in enumerate(devices):
        yield from _device(entry, driver, f"spec.devices[{index}]", each)


def _device(entry: Mapping[str, Any], driver: str, path: str, own_nodes: bool) -> Iterator[Cause]:
    yield from names.label(entry["name"], f"{path}.name")
    yield from _values(entry, driver, path)
    if entry.get("taints"):
        yield from node_placement.taints(entry["taints"], f"{path}.taints", node_placement.DEVICE_EFFECTS)
    if consumed := entry.get("consumesCounters"):
        yield from unique((each["counterSet"] for each in consumed), path + ".consumesCounters[{}]")
        for index, each in enumerate(consumed):
            yield from _counters(each, "counterSet", f"{path}.consumesCounters[{index}]")
    if own_nodes:
        yield from _nodes(entry, DEVICE_NODES, path)
    elif any(entry.get(field) is not None for field in DEVICE_NODES):
        yield Cause(path, "Invalid value: `nodeName`, `nodeSelector` and `allNodes` can only be set if "
                          "`perDeviceNodeSelection` is set to true in the ResourceSlice spec")
    if entry.get("bindingConditions") or entry.get("bindingFailureConditions"):
        yield from binding_conditions(entry, path)
    for name, mapping in (entry.get("nodeAllocatableResourceMappings") or {}).items():
        here, capacity = f"{path}.nodeAllocatableResourceMappings[{name}]", mapping.get("capacityKey")
        if capacity is None and mapping.get("allocationMultiplier") is None:
            yield Cause(here, "Invalid value: at least one of allocationMultiplier or capacityKey must be set")
        elif capacity is not None and capacity not in (entry.get("capacity") or {}):
            yield Cause(f"{here}.capacityKey", f'Not found: "{capacity}"', "FieldValueNotFound")


def _values(entry: Mapping[str, Any], driver: str, path: str) -> Iterator[Cause]:
    """Attributes and capacities."""
    attributes, capacity = entry.get("attributes") or {}, entry.get("capacity") or {}
    for name in capacity:
        if not qualified(name):
            yield _unqualified(name, f"{path}.capacity")
    yield from _unreadable(entry, driver, path)
    listed = len(attributes)
    for name, attribute in attributes.items():
        if not qualified(name):
            yield _unqualified(name, f"{path}.attributes")
        for kind, value in attribute.items():
            if type(value) is list:
                listed += len(value) - 1
                if not value:
                    yield Cause(f"{path}.attributes[{name}].{kind}", "Invalid value: must not be empty if specified")
            for text in (value,) if type(value) is str else value if type(value) is list else ():
                if type(text) is str and len(text) > MOST_TEXT:
                    yield Cause(f"{path}.attributes[{name}].{kind}", f"Too long: may not be more than {MOST_TEXT} bytes",
                                "FieldValueTooLong")
    if listed > MOST_LISTED_VALUES:
        yield Cause(path, f"Invalid value: {listed}: the total number of attribute values must not exceed {MOST_LISTED_VALUES}")
    for name, amount in capacity.items():
        policy, here = amount.get("requestPolicy"), f"{path}.capacity[{name}].requestPolicy"
        if policy is None:
            continue
        if entry.get("allowMultipleAllocations") is not True:
            yield Cause(here, "Forbidden: allowMultipleAllocations must be true", "FieldValueForbidden")
        else:
            yield from _policy(policy, quantity.parse(str(amount["value"])), here)


def _policy(policy: Mapping[str, Any], capacity: Quantity, path: str) -> Iterator[Cause]:
    values, range_, default = policy.get("validValues"), policy.get("validRange"), policy.get("default")
    if values and range_ is not None:
        yield Cause(path, 'Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" at '
                          "the same time", "FieldValueForbidden")
        return
    if (values or range_ is not None) and default is None:
        yield Cause(f"{path}.default", "Required value: required when validValues or validRange is defined",
                    "FieldValueRequired")
    elif values:
        yield from bounded(values, MOST_OPTIONS, f"{path}.validValues")
        yield from _options([quantity.parse(str(value)) for value in values], quantity.parse(str(default)), capacity, path)
    elif range_ is not None:
        yield from _range(range_, quantity.parse(str(default)), capacity, f"{path}.validRange")


def _options(options: list[Quantity], default: Quantity, capacity: Quantity, path: str) -> Iterator[Cause]:
    for index, option in enumerate(options):
        here = f"{path}.validValues[{index}]"
        if index and option < options[index - 1]:
            yield Cause(here, f'Invalid value: "{option}": values must be sorted in ascending order')
        if index and option == options[index - 1]:
            yield Cause(here, f'Duplicate value: "{option}"', "FieldValueDuplicate")
        if option > capacity:
            yield Cause(here, f'Invalid value: "{option}": option is larger than capacity value: {capacity}')
    if default not in options:
        yield Cause(f"{path}.validValues", f'Invalid value: "{default}": default value is not valid according to the '
                                           "requestPolicy")


def _range(range_: Mapping[str, Any], default: Quantity, capacity: Quantity, path: str) -> Iterator[Cause]:
    if range_.get("min") is None:
        yield Cause(f"{path}.min", "Required value: required when validRange is defined", "FieldValueRequired")
        return
    least, most, step = (None if range_.get(field) is None else quantity.parse(str(range_[field]))
                         for field in ("min", "max", "step"))
    assert least is not None
    checks = [("min", least, least > capacity, f"min is larger than capacity value: {capacity}"),
              ("min", default, default < least, f"default is less than min: {least}")]
    if most is not None:
        checks += [("max", least, least > most, f"min is larger than max: {most}"),
                   ("max", most, most > capacity, f"max is larger than capacity value: {capacity}"),
                   ("max", default, default > most, f"default is more than max: {most}")]
    if step is not None and step.nano <= 0:
        checks.append(("step", step, True, "must be greater than zero"))
    elif step is not None:
        checks.append(("step", step, least + step > capacity, f"one step is larger than capacity value: {capacity}"))
        checks += [("step", value, (value.nano - least.nano) % step.nano != 0,
                    f"value is not a multiple of a given step ({step}) from ({least})")
                   for value in (default, most) if value is not None]
    for field, value, wrong, words in checks:
        if wrong:
            yield Cause(f"{path}.{field}", f'Invalid value: "{value}": {words}')


def _counters(entry: Mapping[str, Any], name: str, path: str) -> Iterator[Cause]:
    yield from names.label(entry[name], f"{path}.{name}")
    counters = entry["counters"]
    if not counters:
        yield Cause(f"{path}.counters", "Required value: at least one counter", "FieldValueRequired")
    for counter in counters:
        yield from names.label(counter, f"{path}.counters")


def binding_conditions(entry: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """Of a device, or of an allocation result."""
    conditions, failures = entry.get("bindingConditions") or (), entry.get("bindingFailureConditions") or ()
    for field, listed in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        yield from unique(listed, f"{path}.{field}[{{}}]")
        for index, type_ in enumerate(listed):
            yield from names.key(type_, f"{path}.{field}[{index}]")
        if not listed:
            other = "bindingFailureConditions" if field == "bindingConditions" else "bindingConditions"
            yield Cause(f"{path}.{field}", f"Invalid value: {field} are required to use {other}")
    for index, type_ in enumerate(failures):
        if type_ in conditions:
            yield Cause(f"{path}.bindingFailureConditions[{index}]", f'Invalid value: "{type_}": bindingFailureConditions must '
                                                                     "not overlap with bindingConditions")


@functools.lru_cache(maxsize=4096)
def qualified(name: str) -> bool:
    """Whether an attribute or capacity may have this name: "numaNode", "resource.kubernetes.io/numaNode"."""
    domain, slash, short = name.partition("/")
    return _IDENTIFIER.fullmatch(short if slash else domain) is not None and (not slash or not any(
        names.driver(domain, "")))


def _unqualified(name: str, path: str) -> Cause:
    return Cause(path, f'Invalid value: "{name}": a valid C identifier of at most 32 characters, with an optional domain (e.g. '
                       "'numaNode' or 'resource.kubernetes.io/numaNode')")


def unique(values: Any, path: str) -> Iterator[Cause]:
    """`path`: of one value, with {} for its index."""
    seen: set[Any] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield Cause(path.format(index), f'Duplicate value: "{value}"', "FieldValueDuplicate")
        seen.add(value)


def bounded(values: Any, most: int, path: str) -> Iterator[Cause]:
    """Lists inside values that `bounds` does not walk."""
    if len(values) > most:
        yield bounds.too_many(path, len(values), most)
