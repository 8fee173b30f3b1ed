"""Machine type, memory, huge pages, resources and CPUs of a VMI: known types, and amounts that its pod and its domain can
have."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from outfitter.api import quantity
from outfitter.api.validate import node_placement, resources
from outfitter.errors import Cause, Invalid

MOST_MEMORY = 2 ** 62  # bytes; with the launcher's overhead the pod's request still fits 64 bits
MOST_CPUS = 2 ** 32 - 1  # KubeVirt's field is uint32
MEMORY = (("memory", "guest"), ("memory", "maxGuest"), ("resources", "requests", "memory"))
CPUS = ("sockets", "cores", "threads")
POLICIES = ("force", "require", "optional", "disable", "forbid")


class ArchitectureRules(NamedTuple):
    types: tuple[str, ...]  # patterns of its machine types that have a PCI bus
    pages: tuple[str, ...]  # the sizes that its huge pages can have


ARCHITECTURES: Mapping[str, ArchitectureRules] = {
    "amd64": ArchitectureRules(("q35*", "pc", "pc-*"), ("2Mi", "1Gi")),
    "arm64": ArchitectureRules(("virt*",), ("64Ki", "2Mi", "32Mi", "512Mi", "1Gi", "16Gi")),
    "s390x": ArchitectureRules(("s390-ccw-virtio*",), ("1Mi", "2Gi")),
}


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    domain, name = spec["domain"], spec.get("architecture") or ""
    if name and name not in ARCHITECTURES:
        yield node_placement.unsupported(f"{root}.architecture", name, tuple(ARCHITECTURES))
    may_be = [ARCHITECTURES[name]] if name in ARCHITECTURES else list(ARCHITECTURES.values())
    yield from _type(domain, f"{root}.domain.machine.type", [type_ for rules in may_be for type_ in rules.types])
    yield from _pages(domain, f"{root}.domain", [size for rules in may_be for size in rules.pages])
    yield from _memory(domain, f"{root}.domain")
    yield from _resources(domain, f"{root}.domain.resources")
    yield from _processors(domain.get("cpu") or {}, f"{root}.domain.cpu")


def _type(domain: Mapping[str, Any], path: str, patterns: Sequence[str]) -> Iterator[Cause]:
    kind = (domain.get("machine") or {}).get("type")
    if kind and not any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns):
        yield Cause(path, f"{path} is not supported: {kind} (allowed values: {', '.join(patterns)})")


def _pages(domain: Mapping[str, Any], root: str, sizes: Sequence[str]) -> Iterator[Cause]:
    """Page size, and memory as a multiple of it. As in KubeVirt, the memory request is checked, else the guest memory."""
    text = ((domain.get("memory") or {}).get("hugepages") or {}).get("pageSize")
    if not text:
        return
    known = {quantity.to_int(page): page for page in sorted(sizes, key=quantity.to_int)}
    size = _amount(text)
    if size not in known:
        yield node_placement.unsupported(f"{root}.memory.hugepages.pageSize", text, tuple(known.values()))
        return
    for path in (("resources", "requests", "memory"), ("memory", "guest")):
        amount = _field(domain, path)
        if amount is not None:
            if _enough(amount) and _amount(amount) % size:
                yield Cause(
                    f"{root}.{'.'.join(path)}",
                    f"{root}.{'.'.join(path)} '{amount}' is not a multiple of the page size "
                    f"{root}.memory.hugepages.pageSize '{text}'",
                )
            return


def _field(domain: Mapping[str, Any], path: Sequence[str]) -> Any:
    inner: Any = domain
    for field in path:
        inner = (inner or {}).get(field)
    return inner


def _amount(text: Any) -> int:
    """A quantity as integer; 0 if it is invalid."""
    try:
        return quantity.to_int(str(text))
    except Invalid:
        return 0


def _enough(memory: Any) -> bool:
    return 0 < _amount(memory) < MOST_MEMORY


def _memory(domain: Mapping[str, Any], root: str) -> Iterator[Cause]:
    for path in MEMORY:
        amount = _field(domain, path)
        if amount is not None and not _enough(amount):
            yield Cause(f"{root}.{'.'.join(path)}", f'Invalid value: "{amount}": must be an amount above zero, such as 2Gi')


def _resources(domain: Mapping[str, Any], root: str) -> Iterator[Cause]:
    most = {"memory": MOST_MEMORY, "cpu": MOST_CPUS + 1}
    for list_ in ("requests", "limits"):
        for name, amount in ((domain.get("resources") or {}).get(list_) or {}).items():
            if (list_, name) != ("requests", "memory"):
                yield from resources.quantities(f"{root}.{list_}.{name}", amount, most.get(name, resources.MOST))


def _processors(cpu: Mapping[str, Any], root: str) -> Iterator[Cause]:
    numbers = {field: cpu[field] for field in CPUS if cpu.get(field) is not None}
    for field, number in numbers.items():
        if number < 1:
            yield Cause(f"{root}.{field}", f"Invalid value: {number}: must be greater than zero")
        elif number > MOST_CPUS:
            yield Cause(f"{root}.{field}", f"Invalid value: {number}: must be at most {MOST_CPUS}")
    for index, feature in enumerate(cpu.get("features") or ()):
        if feature.get("policy") and feature["policy"] not in POLICIES:
            yield node_placement.unsupported(f"{root}.features[{index}].policy", feature["policy"], POLICIES)
    total = math.prod(numbers.values())
    if total > MOST_CPUS and all(1 <= number <= MOST_CPUS for number in numbers.values()):
        product = " x ".join(f"{number} {field}" for field, number in numbers.items())
        yield Cause(root, f"Invalid value: {product}: a VM has at most {MOST_CPUS} CPUs")
