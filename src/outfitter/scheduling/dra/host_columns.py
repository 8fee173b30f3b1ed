"""All hosts as columns: a row is a host, with a bit for each of its devices. What a selector matches, what is free, and which
devices share a value of an attribute are masks, so that hosts are compared by counting bits. Columns are kept, and changed row
by row."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import constraints, selector_cache
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.claim_request import ClaimDeviceRequest, CompiledClaim
from outfitter.scheduling.dra.constraints import Constraint
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.dra.selector_cache import SelectorCache, SelectorMatch
from outfitter.scheduling.dra.slices import PublishedDevice
from outfitter.scheduling.filter import taints
from outfitter.scheduling.filter.taints import untolerated_taint

REMEMBERED = 256  # columns that are kept
Groups = tuple[int, ...]  # a mask of devices for each value of an attribute


class Count(NamedTuple):
    devices: int
    match: int
    free: int | None  # of those that match; None: counting does not tell
    rules: tuple[str, ...] = ()  # DeviceTaintRules that keep others of them back


class HostColumns:
    def __init__(self, features: Features) -> None:
        self._features = features
        self.names: list[str] = []  # of the hosts, in order: the rows
        self.sites: list[NodeDevices] = []
        self.free: list[int] = []  # free and not tainted
        self.bare: list[int] = []  # free, tainted or not
        self._masks: dict[tuple[str, ...], Matching] = {}  # selectors -> what they match
        self._groups: dict[str, list[Groups]] = {}  # attribute -> devices by value
        self._counted: dict[tuple[tuple[str, ...], int, bool], list[int]] = {}  # selectors, count, tolerating -> rows
        self.coarse = 0  # hosts with devices that have what counting does not see
        self._shared = 0  # and those with devices that can be shared

    # -- asking

    def passing(self, ask: ClaimDeviceRequest, under: Sequence[Constraint], rows: Sequence[int]) -> list[int]:
        """Those of the rows that counting does not rule out for a request, or for one of its alternatives."""
        masks, wanted = self.column(ask.selectors).masks, ask.count
        if ask.everything:
            return [row for row in rows if masks[row] or self.sites[row].fits(ask.selectors).wrong]
        free = self.bare if ask.tolerations else self.free
        if ask.admin:
            passing = [row for row in rows if masks[row].bit_count() >= wanted]
        else:
            passing = self._with_free(ask) if len(rows) == len(self.names) else [
                row for row in rows if (masks[row] & free[row]).bit_count() >= wanted]
            for which in ask.constraints if not ask.derived else ():
                groups = self._values(under[which].attribute)
                enough = functools.lru_cache(maxsize=None)(_distinct if under[which].distinct else _match)  # hosts are alike
                passing = [row for row in passing if enough(groups[row], masks[row] & free[row], wanted)]
        if len(passing) < len(rows):
            passing = self._with_unclear(ask, passing, rows)
        return passing

    def matching(self, demands: Sequence[CompiledClaim]) -> list[int]:
        """The rows with enough devices of the kind for each request by itself, free or held."""
        rows = list(range(len(self.names)))
        for request in (request for demand in demands for request in demand.requests):
            having = [(self.column(ask.selectors).masks, 1 if ask.everything else ask.count) for ask in request]
            rows = [row for row in rows if any(masks[row].bit_count() >= count for masks, count in having)]
        return rows

    def count(self, row: int, ask: ClaimDeviceRequest) -> Count | None:
        """What counting knows of a request at a host; None where only a search can tell."""
        site = self.sites[row]
        if not site.devices or site.invalid or site.incomplete or site.fits(ask.selectors).wrong:
            return None
        mask = self.column(ask.selectors).masks[row]
        plain = not (ask.everything or ask.admin or ask.tolerations or ask.capacity or ask.constraints
                     or site.counted or site.shared or site.binding or site.lazy)
        if not plain:
            return Count(len(site.devices), mask.bit_count(), None)
        kept = mask & self.bare[row] & ~self.free[row]
        rules = taints.rules(untolerated_taint(site.devices[place].taints, ()) for place in site.tainted if kept >> place & 1)
        return Count(len(site.devices), mask.bit_count(), (mask & self.free[row]).bit_count(), rules)

    def _with_free(self, ask: ClaimDeviceRequest) -> list[int]:
        """All rows with enough free devices for a request: counted once until something changes."""
        key = ask.selectors, ask.count, bool(ask.tolerations)
        known = self._counted.get(key)
        if known is None:
            if len(self._counted) >= REMEMBERED:
                self._counted.clear()
            masks, free = self.column(ask.selectors).masks, self.bare if ask.tolerations else self.free
            known = self._counted[key] = [row for row in range(len(self.names))
                                          if (masks[row] & free[row]).bit_count() >= ask.count]
        return list(known)

    def _with_unclear(self, ask: ClaimDeviceRequest, passing: list[int], rows: Sequence[int]) -> list[int]:
        """Hosts of which counting cannot tell: a selector has no answer for a device, or devices can be shared."""
        if not self._shared and not self.column(ask.selectors).wrong:
            return passing
        unclear = [row for row in rows if self.sites[row].shared or self.sites[row].fits(ask.selectors).wrong]
        return sorted({*passing, *unclear}) if unclear else passing

    def open(self, row: int, demands: Sequence[CompiledClaim]) -> Iterator[PublishedDevice]:
        """The free devices of a host that could serve one of the requests; all if nothing is asked for."""
        asks = [ask for demand in demands for request in demand.requests for ask in request]
        mask = self.free[row]
        if asks:
            wanted = 0
            for ask in asks:
                wanted |= self.column(ask.selectors).masks[row]
            mask &= wanted
        return (device for place, device in enumerate(self.sites[row].devices) if mask >> place & 1)

    # -- columns

    def column(self, selectors: tuple[str, ...]) -> Matching:
        known = self._masks.get(selectors)
        if known is None:
            if len(self._masks) >= REMEMBERED:
                self._masks.clear()
            found = [site.fits(selectors) for site in self.sites]
            known = self._masks[selectors] = Matching([one.mask for one in found], sum(1 for one in found if one.wrong))
        return known

    def _values(self, attribute: str) -> list[Groups]:
        known = self._groups.get(attribute)
        if known is None:
            if len(self._groups) >= REMEMBERED:
                self._groups.clear()
            known = self._groups[attribute] = [self._by_value(site, attribute) for site in self.sites]
        return known

    def _by_value(self, site: NodeDevices, attribute: str) -> Groups:
        return constraints.published(site, attribute, self._features.list_type_attributes).groups

    # -- changing

    def forget_counts(self) -> None:
        """Something is about to change."""
        self._counted.clear()

    def rows(self, names: Iterable[str], known: Collection[str]) -> list[int]:
        """Of the hosts of these names, where they are known."""
        return sorted(bisect.bisect_left(self.names, name) for name in names if name in known)

    def put_host(self, name: str, known: bool) -> None:
        """A host may have come or gone: one row more or less."""
        row = bisect.bisect_left(self.names, name)
        there = row < len(self.names) and self.names[row] == name
        columns: list[list[Any]] = [self.free, self.bare, *(each.masks for each in self._masks.values())]
        if there and not known:
            self.look(row, NOWHERE, NOTHING)
            columns += [self.names, self.sites, *self._groups.values()]
            for column in columns:
                del column[row]
        elif known and not there:
            self.names.insert(row, name)
            self.sites.insert(row, NOWHERE)
            for column in columns:
                column.insert(row, 0)
            for groups in self._groups.values():
                groups.insert(row, ())

    def look(self, row: int, site: NodeDevices, contents: SelectorCache) -> None:
        """A host's devices may be others now. `contents`: what selectors match of them."""
        old = self.sites[row]
        if site is old:
            return
        self.sites[row] = site
        self.coarse += _is_coarse(site) - _is_coarse(old)
        self._shared += bool(site.shared) - bool(old.shared)
        for selectors in list(self._masks):
            try:
                costly = contents.question(selectors).spent > selector_cache.COSTLY
                now = None if costly else site.fits(selectors)
            except Unsatisfiable:
                now = None
            if now is None:
                del self._masks[selectors]  # asked of all devices again when a claim needs it
            else:
                self._masks[selectors].put(row, now, old.fits(selectors))
        for attribute, groups in self._groups.items():
            groups[row] = self._by_value(site, attribute)

    def recount(self, row: int, held: AllocatedDevices) -> None:
        """Other devices of a host may be free now."""
        site = self.sites[row]
        bare = site.everything & ~held.blocked(site)
        free = bare
        for place in site.tainted if self._features.device_taints else ():
            if untolerated_taint(site.devices[place].taints, ()) is not None:
                free &= ~(1 << place)
        self.bare[row], self.free[row] = bare, free


class Matching:
    """What selectors match: a mask for each host, and how many hosts have devices of which they cannot tell."""

    __slots__ = ("masks", "wrong")

    def __init__(self, masks: list[int], wrong: int) -> None:
        self.masks, self.wrong = masks, wrong

    def put(self, row: int, now: SelectorMatch, before: SelectorMatch) -> None:
        self.masks[row] = now.mask
        self.wrong += bool(now.wrong) - bool(before.wrong)


NOTHING = SelectorCache()
NOWHERE = NodeDevices([], "", {}, frozenset(), NOTHING)  # a host of which nothing is known yet


def _is_coarse(site: NodeDevices) -> bool:
    return bool(site.counted or site.shared or site.invalid or site.incomplete or site.twins)


def _match(groups: Groups, mask: int, wanted: int) -> bool:
    return any((mask & group).bit_count() >= wanted for group in groups)


def _distinct(groups: Groups, mask: int, wanted: int) -> bool:
    return sum(1 for group in groups if mask & group) >= wanted
