"""Which devices are alike in everything that the claims at hand can see. Names and serial numbers that no selector reads do not
count."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outfitter.scheduling.dra.search import Search


class DeviceEquivalence:
    def __init__(self, search: Search) -> None:
        wants = [want for step in search.steps for want in step.wants]
        tables = list({id(table): table for want in wants for _, table, _ in want.tables}.values())
        kinds: dict[Any, int] = {}
        self.of: list[int] = []  # device -> its kind
        self.masks: list[int] = []  # kind -> its devices
        for index in range(len(search.site.devices)):
            values = tuple(table.of[index] for table in tables)
            kind = kinds.setdefault((_rest(search, index), values), len(kinds))
            if kind == len(self.masks):
                self.masks.append(0)
            self.of.append(kind)
            self.masks[kind] |= 1 << index
        self._families = _families(kinds)

    def counts(self, used: int, *, swap: bool = False) -> object:
        """How many of each kind are used. With `swap` the names of values do not matter: groups of devices that differ in
        nothing but what they call their value, and of which the same is used, are one."""
        if not swap or self._families is None:
            return tuple((used & mask).bit_count() for mask in self.masks)
        return tuple(sorted((fixed, tuple((rest, (used & self.masks[kind]).bit_count()) for rest, kind in members))
                            for fixed, members in self._families))


def _rest(search: Search, index: int) -> object:
    """All but the values under constraints."""
    device, bit = search.site.devices[index], 1 << index
    wants = tuple((bool(want.ready & bit), bool(want.fit & bit), want.wrong.get(index) if want.bad & bit else None,
                   tuple((name, amount.nano) for name, amount in (want.shares.get(index) or {}).items()))
                  for step in search.steps for want in step.wants)
    draw = search.counters.draws[index] if search.counters is not None else None
    limits: tuple[tuple[str, int], ...] = ()
    if device.shared and search.features.consumable_capacity:
        used = search.held.consumed.get(device.id) or {}
        limits = tuple((name, one.value.nano - used.get(name, 0)) for name, one in device.capacity.items())
    paid = draw is not None and search.held.parted(device.id)
    blocked = draw is not None and search.counters is not None and bool(search.counters.blocked & bit)
    twin = index if index in search.site.twins else -1  # taking it takes another device: it is like no other
    return wants, draw, blocked, paid, limits, device.shared, twin


def _families(kinds: dict[Any, int]) -> list[tuple[int, tuple[tuple[int, int], ...]]] | None:
    """Kinds by their values: for each value the kinds that have it, distinguished by all else. None where exchanging two values
    could be noticed: lists, and attributes that do not group the devices in the same way."""
    rests: dict[Any, int] = {}
    by_values: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for (rest, values), kind in kinds.items():
        by_values[values].append((rests.setdefault(rest, len(rests)), kind))
    known: dict[tuple[int, Any], Any] = {}
    for values in by_values:
        for position, value in enumerate(values):
            if len(value) > 1 or known.setdefault((position, value), values) != values:
                return None
    return [(0 if any(values) else 1, tuple(sorted(members))) for values, members in by_values.items()]
