"""The devices that one node can reach: its pools in Kubernetes' order and their devices, built once for each node from the
parsed slices. The read model of the allocator, the device index and explanations."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.cel.field_usage import Read
from outfitter.errors import Invalid
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import device_hardware, selector_cache
from outfitter.scheduling.dra.selector_cache import DeviceColumn, SelectorCache, SelectorError, SelectorMatch
from outfitter.scheduling.dra.slices import CAPACITY, REMEMBERED, SKIPS, Asked, Object, ParsedSlice, Shares, _pool_of
from outfitter.scheduling.filter import node_affinity
from outfitter.scheduling.filter import taints as device_taints

log = logging.getLogger(__name__)


class DevicePool:
    """A pool as one node sees it."""

    __slots__ = ("counters", "elsewhere", "id", "incomplete", "invalid", "slices")

    def __init__(self, name: tuple[str, str], slices: Sequence[ParsedSlice] = (), elsewhere: Sequence[ParsedSlice] = (), *,
                 incomplete: bool = False, invalid: str = "") -> None:
        self.id = name
        self.slices = slices  # with devices for the node, in the order of their names
        self.elsewhere = elsewhere  # with devices for other nodes: they may use the same counters
        self.incomplete, self.invalid = incomplete, invalid  # not all slices are there; what contradicts itself
        self.counters: dict[str, Mapping[str, int]] = {}

    def __str__(self) -> str:
        return "/".join(self.id)


class NodeDevices:
    """What one node can reach: its pools in Kubernetes' order, and the devices of those that can be used."""

    def __init__(self, pools: Sequence[DevicePool], name: str, labels: Mapping[str, str], declared: frozenset[str],
                 known: SelectorCache) -> None:
        self.name, self.pools = name, pools
        self.incomplete = [pool for pool in pools if pool.incomplete]
        self.invalid = [pool for pool in pools if pool.invalid]
        found = [(pool, part, device) for pool in pools for part in pool.slices for device in part.devices]
        self.devices = [device for _, _, device in found]
        self.slices = [part for _, part, _ in found]
        self.pool_of = [pool for pool, _, _ in found]
        self.everything = (1 << len(found)) - 1
        # A selector can be asked of every device; else those that are alike need not have the same answer.
        self.readable = all(part.readable for pool in pools for part in pool.slices)
        self.tainted = [index for index, device in enumerate(self.devices) if device.taints]
        self.counted = _mask(bool(device.uses) for device in self.devices)
        self.shared = _mask(device.shared for device in self.devices)
        self.binding = _mask(bool(device.raw.get("bindingConditions")) for device in self.devices)
        self.lazy = _mask(bool(part.skips) and SKIPS not in declared for part in self.slices)  # need what the node cannot do
        self.there = _mask(not part.each or node_affinity.reaches(device.raw, name, labels) for _, part, device in found)
        self.hardware, self.twins = device_hardware.node_hardware(self.devices, self.there)
        self.contents = known  # shared with other nodes
        self._columns: dict[Hashable, DeviceColumn] = {}
        self._fits: dict[tuple[str, ...], SelectorMatch] = {}
        self._values: dict[Any, Any] = {}

    def fits(self, selectors: tuple[str, ...]) -> SelectorMatch:
        """Of the devices that can be used here: those that match, and those that cannot be evaluated."""
        known = self._fits.get(selectors)
        if known is None:
            if len(self._fits) >= REMEMBERED:
                self._fits.clear()
            known = self._fits[selectors] = self._ask(selectors)
        return known

    def _ask(self, selectors: tuple[str, ...]) -> SelectorMatch:
        question = self.contents.question(selectors)
        found = (question.ask(self.devices, self.reading(question.reads)) if self.readable
                 else question.ask_each(self.devices))
        return found if self.there == self.everything else SelectorMatch(found.mask & self.there, found.wrong)

    def reading(self, reads: Iterable[Read]) -> tuple[DeviceColumn, ...]:
        """What the devices have of these things, one column for each."""
        return tuple([self.column(read, selector_cache.source(read)) for read in reads])

    def column(self, key: Hashable, source: selector_cache.Source) -> DeviceColumn:
        known = self._columns.get(key)
        if known is None:
            if len(self._columns) >= REMEMBERED:
                self._columns.clear()
            known = self._columns[key] = self.contents.column(source(self.devices))
        return known

    def shares(self, asked: Asked, fractional: bool) -> Shares:
        """Of the devices that can be used here: what a request takes of each."""
        def make() -> Shares:
            found = [device.share(asked, fractional) for device in self.devices]
            shares = {
                index: share for index, share in enumerate(found) if share is not None and not isinstance(share, SelectorError)
            }
            return Shares(shares, {index: share.why for index, share in enumerate(found) if isinstance(share, SelectorError)},
                          sum(1 << index for index in shares))

        def shared() -> Shares:
            column = self.column(CAPACITY, selector_cache.source(CAPACITY))
            made: Shares = self.contents.remembered((CAPACITY, asked, fractional, column), make)
            return make() if made.wrong else made  # each host has its own sentences

        known: Shares = self.remembered(("shares", asked, fractional), shared)
        return known

    def remembered(self, key: Any, make: Any) -> Any:
        """The same for every claim: made once."""
        known = self._values.get(key)
        if known is None:
            if len(self._values) >= REMEMBERED:
                self._values.clear()
            known = self._values[key] = make()
        return known


def _mask(flags: Iterable[bool]) -> int:
    return sum(1 << index for index, flag in enumerate(flags) if flag)


class PoolSet:
    """All that is published. One slice after the other can be put in the place of another; built again, what did not change is
    taken over from `old`, with everything that was remembered of it."""

    def __init__(self, slices: Iterable[Object], rules: Sequence[Object] = (), old: PoolSet | None = None) -> None:
        self.rules = list(rules)
        self.contents: SelectorCache = old.contents if old is not None else SelectorCache()
        known: dict[tuple[str, str, str], ParsedSlice] = {}
        if old is not None and old.rules == self.rules:
            known = {(*part.pool, part.name): part for parts in old._of.values() for part in parts}
        self._of: dict[tuple[str, str], list[ParsedSlice]] = defaultdict(list)
        self._at: dict[str, list[ParsedSlice]] = defaultdict(list)  # tied to one node
        self._roaming: list[ParsedSlice] = []
        for raw in slices:
            have = known.pop((*_pool_of(raw), raw["metadata"]["name"]), None)  # two of one name each count
            part = have if have is not None and (have.raw is raw or have.raw == raw) else self._slice(raw)
            if part is not None:
                self._of[part.pool].append(part)
                self._home(part).append(part)
        self._sites: dict[str, tuple[Any, NodeDevices]] = {}
        if old is not None and self._roaming == old._roaming and all(
                self._of[part.pool] == old._of[part.pool] for part in self._roaming):
            self._sites = {name: site for name, site in old._sites.items() if self._same(name, old)}

    def _slice(self, raw: Object) -> ParsedSlice | None:
        try:
            return ParsedSlice(raw, self.rules)
        except Invalid as error:  # its pool is then incomplete and not used
            log.warning("slice %s cannot be read: %s", raw["metadata"]["name"], error)
            return None

    def _home(self, part: ParsedSlice) -> list[ParsedSlice]:
        return self._at[part.node] if part.node else self._roaming

    def change(self, old: Object | None, new: Object | None) -> set[str] | None:
        """Put one slice in the place of another; None: there was none, or is none any more. Gives the names of the nodes that
        may see a difference; None: any node may."""
        before = next((part for part in self._of.get(_pool_of(old), ()) if part.raw is old), None) if old is not None else None
        if before is not None and new is not None and before.name == new["metadata"]["name"] and before.spec == new["spec"]:
            before.raw = new
            return set()
        after = self._slice(new) if new is not None else None
        both = [part for part in (before, after) if part is not None]
        touched = {part for one in both for part in (one, *self._of[one.pool])}
        _swap([self._of[part.pool] for part in both], before, after)
        _swap([self._home(part) for part in both], before, after)
        if not all(part.node for part in touched):
            self._sites.clear()
            return None
        for part in touched:
            self._sites.pop(part.node, None)
        return {part.node for part in touched}

    @property
    def ids(self) -> Collection[tuple[str, str]]:
        """Driver and name of each pool."""
        return self._of.keys()

    def restricted_to(self, nodes: Iterable[str], without_taints: Collection[str] = ()) -> PoolSet:
        """The pools of which something is on these nodes or on no single node. `without_taints`: keys of published taints that
        are skipped. Parsed slices are shared."""
        out = PoolSet((), self.rules)
        out.contents = self.contents
        pools = {part.pool: None for part in (*self._roaming, *(part for name in nodes for part in self._at.get(name, ())))}
        shared = True
        for pool in pools:
            for part in self._of[pool]:
                own = part.without_taints(without_taints, self.rules) if without_taints else part
                shared &= own is part
                out._of[pool].append(own)
                out._home(own).append(own)
        if shared:
            out._sites = {name: self._sites[name] for name in nodes if name in self._sites}
        return out

    def without_rules(self, names: Collection[str]) -> PoolSet:
        """The same pools as if these DeviceTaintRules did not exist. Slices are parsed again: it is for few hosts."""
        out = PoolSet((part.raw for parts in self._of.values() for part in parts),
                      [rule for rule in self.rules if rule["metadata"]["name"] not in names])
        out.contents = self.contents
        return out

    def nodes(self, pool: tuple[str, str]) -> set[str] | None:
        """The names of those that can reach a pool (its driver and name); None: that is for each node to say."""
        parts = self._of.get(pool, ())
        return {part.node for part in parts} if all(part.node for part in parts) else None

    def tied(self, driver: str, pool: str) -> bool:
        """All of a pool is on one host."""
        nodes = {part.node for part in self._of.get((driver, pool), ())}
        return len(nodes) == 1 and "" not in nodes

    def roams(self, driver: str, pool: str) -> bool:
        """It is published, and not all of it is on one host."""
        return (driver, pool) in self._of and not self.tied(driver, pool)

    def taints(self, device: DeviceId) -> list[device_taints.Taint]:
        """Those of a device that is held, wherever it is and whether or not all of its pool is there: a device of which
        nothing is published can have some by a rule."""
        parts = self._of.get((device.driver, device.pool), ())
        newest = max((part.generation for part in parts), default=0)
        published = [taint for part in parts if part.generation == newest for one in part.devices if one.id == device
                     for taint in one.raw.get("taints") or ()]
        return [*published, *device_taints.ruled(self.rules, device.driver, device.pool, device.device)]

    def _same(self, name: str, old: PoolSet) -> bool:
        """Nothing that a node can reach has changed."""
        mine, theirs = self._at.get(name, ()), old._at.get(name, ())
        return (len(mine) == len(theirs) and all(one is other for one, other in zip(mine, theirs, strict=True))
                and all(self._of[part.pool] == old._of[part.pool] for part in mine))

    def at(self, node: Object, features: Features) -> NodeDevices:
        """What a node (its object) can reach."""
        meta = node.get("metadata") or {}
        name, labels = str(meta.get("name") or ""), meta.get("labels") or {}
        declared = frozenset((node.get("status") or {}).get("declaredFeatures") or ())
        key = (features.partitionable_devices, features.compatibility_groups, declared, labels if self._roaming else None)
        known = self._sites.get(name)
        if known is None or known[0] != key:
            known = self._sites[name] = (
                key,
                NodeDevices(self._gather(name, labels, features), name, labels, declared, self.contents),
            )
        return known[1]

    def _gather(self, name: str, labels: Mapping[str, str], features: Features) -> list[DevicePool]:
        """The pools of a node, those with binding conditions last, else by driver and name. Of each only the newest generation
        that the node sees counts."""
        seen: dict[tuple[str, str], set[ParsedSlice]] = defaultdict(set)
        for part in self._at.get(name, ()):
            seen[part.pool].add(part)
        for part in self._roaming:
            if part.reaches(name, labels):
                seen[part.pool].add(part)
        pools = [pool for pool in (self._pool(key, parts, features) for key, parts in seen.items()) if pool is not None]
        return sorted(pools, key=lambda pool: (_binds(pool), pool.id)) if len(pools) > 1 else pools

    def _pool(self, key: tuple[str, str], seen: set[ParsedSlice], features: Features) -> DevicePool | None:
        everywhere = [part for part in self._of[key] if features.compatibility_groups or not part.groups]
        here = [part for part in everywhere if part.counters or part in seen]
        if not features.partitionable_devices:
            here = [part for part in here if not part.counters and part.spec.get("perDeviceNodeSelection") is None]
        if not here:
            return None
        generation = max(part.generation for part in here)
        here = sorted((part for part in here if part.generation == generation), key=lambda part: part.name)
        elsewhere: list[ParsedSlice] = []
        if len(here) != here[0].of:
            if any(part.generation > generation for part in everywhere):
                return None  # what the node sees is being replaced by something that it does not see
            everywhere = [part for part in everywhere if part.generation == generation]
            if len(everywhere) != here[0].of:
                return DevicePool(key, incomplete=True)
            known = set(here)
            elsewhere = [part for part in everywhere if part not in known]
        return _checked(key, here, elsewhere, features)


def _swap(lists: Sequence[list[ParsedSlice]], before: ParsedSlice | None, after: ParsedSlice | None) -> None:
    """`lists`: of `before` and `after`, as far as they are not None. In the same list the new slice replaces the old one."""
    if before is not None and after is not None and lists[0] is lists[-1]:
        lists[0][lists[0].index(before)] = after
        return
    if before is not None:
        lists[0].remove(before)
    if after is not None:
        lists[-1].append(after)


def _binds(pool: DevicePool) -> bool:
    return any(device.raw.get("bindingConditions") is not None for part in pool.slices for device in part.devices)


def _checked(key: tuple[str, str], here: list[ParsedSlice], elsewhere: list[ParsedSlice], features: Features) -> DevicePool:
    """A complete pool, or what contradicts itself in it."""
    slices = [part for part in here if not part.counters]
    names = [device.id.device for part in slices for device in part.devices]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return DevicePool(key, invalid=f"device {twice} is there twice")
    pool = DevicePool(key, slices, elsewhere)
    for part in here:
        for name, counters in part.counters.items():
            if name in pool.counters:
                return DevicePool(key, invalid=f"counter set {name} is there twice")
            pool.counters[name] = counters
    lacking = _lacking(pool, [*here, *elsewhere]) if features.partitionable_devices else ""
    return DevicePool(key, invalid=lacking) if lacking else pool


def _lacking(pool: DevicePool, slices: Iterable[ParsedSlice]) -> str:
    for part in slices:
        for device in part.devices:
            for use in device.uses:
                if use.set not in pool.counters:
                    return f"device {device.id.device} uses counter set {use.set}, which is not there"
                for name in use.counters:
                    if name not in pool.counters[use.set]:
                        return f"device {device.id.device} uses counter {name} of {use.set}, which is not there"
    return ""
