"""Counters that devices of a pool share: what is left of them, what each device takes, and which devices can stand side by side
on a set of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from outfitter.api.device import DeviceId
from outfitter.scheduling.dra.node_devices import DevicePool, NodeDevices

Taken = tuple[int, ...]  # for each counter, how much is taken in the attempt at hand
Company = tuple[frozenset[str] | None, ...]  # for each set, the groups that all devices on it have; None: no device is on it


NO_GROUP = frozenset([""])  # no group has this name


class CounterUse(NamedTuple):
    """What one device takes, by the numbers of the counters and sets."""

    amounts: tuple[tuple[int, int], ...]
    sets: tuple[tuple[int, frozenset[str]], ...]


class SharedCounters:
    """Of the pools that a node reaches, with what others hold already taken off."""

    def __init__(self, site: NodeDevices, touched: Callable[[DeviceId], bool], *, groups: bool) -> None:
        self._groups = groups
        self.left: list[int] = []
        self.names: list[str] = []  # for people
        self._counter: dict[tuple[DevicePool, str, str], int] = {}
        self._set: dict[tuple[DevicePool, str], int] = {}
        self._company: list[frozenset[str] | None] = []
        for pool in dict.fromkeys(site.pool_of):
            self._add(pool, touched)
        overdrawn = {key[0] for key, index in self._counter.items() if self.left[index] < 0}
        self.draws: list[CounterUse | None] = []  # of each device of the node; None: it takes nothing
        self.blocked = 0  # devices of pools of which more is held than there is
        for index, (device, pool) in enumerate(zip(site.devices, site.pool_of, strict=True)):
            amounts = tuple((self._counter[pool, use.set, name], amount)
                            for use in device.uses for name, amount in use.counters.items())
            sets = tuple((self._set[pool, use.set], use.groups) for use in device.uses)
            self.draws.append(CounterUse(amounts, sets) if device.uses else None)
            if device.uses and pool in overdrawn:
                self.blocked |= 1 << index

    def _add(self, pool: DevicePool, touched: Callable[[DeviceId], bool]) -> None:
        for name, counters in pool.counters.items():
            self._set[pool, name] = len(self._company)
            self._company.append(None)
            for counter, amount in counters.items():
                self._counter[pool, name, counter] = len(self.left)
                self.left.append(amount)
                self.names.append(f"{counter} of {name} ({pool})")
        for part in (*pool.slices, *pool.elsewhere):
            for device in part.devices:
                if not device.uses or not touched(device.id):
                    continue
                for use in device.uses:
                    for counter, amount in use.counters.items():
                        self.left[self._counter[pool, use.set, counter]] -= amount
                    at = self._set[pool, use.set]
                    self._company[at] = _joined(self._company[at], use.groups)

    @property
    def nothing(self) -> tuple[Taken, Company]:
        return (0,) * len(self.left), tuple(self._company)

    def take(self, taken: Taken, company: Company, device: int) -> tuple[Taken, Company] | None:
        """With one more device, or None where it does not fit."""
        draw = self.draws[device]
        if draw is None:
            return taken, company
        if self.blocked >> device & 1:
            return None
        after = list(taken)
        for counter, amount in draw.amounts:
            after[counter] += amount
            if after[counter] > self.left[counter]:
                return None
        if not self._groups:
            return tuple(after), company
        beside = list(company)
        for at, groups in draw.sets:
            have = beside[at]
            if have is not None and not (have & groups or have == groups):  # two without any group go together
                return None
            beside[at] = _joined(have, groups)
        return tuple(after), tuple(beside)


def _joined(have: frozenset[str] | None, groups: frozenset[str]) -> frozenset[str]:
    """The company with one more in it. Devices that use a set already may not fit together: then no other fits beside them."""
    if have is None:
        return groups
    return have & groups or NO_GROUP if have and groups else have
