"""What a machine is made of: memory and processors, in amounts that its pod and its domain can be written with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api import quantity
from outfitter.api.validate import resources
from outfitter.errors import Cause, Invalid

MOST_MEMORY = 2 ** 62  # with what the machine costs besides, its pod can still be asked for
MOST_CPUS = 2 ** 32 - 1  # as KubeVirt counts them
MEMORY = (("memory", "guest"), ("memory", "maxGuest"), ("resources", "requests", "memory"))
CPUS = ("sockets", "cores", "threads")


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    domain = spec["domain"]
    yield from _memory(domain, f"{root}.domain")
    yield from _resources(domain, f"{root}.domain.resources")
    yield from _processors(domain.get("cpu") or {}, f"{root}.domain.cpu")


def _memory(domain: Mapping[str, Any], root: str) -> Iterator[Cause]:
    for path in MEMORY:
        amount: Any = domain
        for field in path:
            amount = (amount or {}).get(field)
        if amount is None:
            continue
        try:
            enough = 0 < quantity.to_int(str(amount)) < MOST_MEMORY
        except Invalid:
            enough = False
        if not enough:
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
    total = math.prod(numbers.values())
    if total > MOST_CPUS and all(1 <= number <= MOST_CPUS for number in numbers.values()):
        yield Cause(root, f"Invalid value: {' x '.join(f'{number} {field}' for field, number in numbers.items())}: a machine has "
                          f"at most {MOST_CPUS} CPUs")
