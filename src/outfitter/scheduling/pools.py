"""What is published, made ready to be asked often: slices are read once, pools are put together once for each node, and what a
selector says of a device is remembered with the device."""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from outfitter import cel
from outfitter.api.device import DeviceId
from outfitter.errors import EvaluationError, Invalid
from outfitter.scheduling import affinity, capacity, tolerations
from outfitter.scheduling.features import Features

log = logging.getLogger(__name__)
Object = Mapping[str, Any]
SKIPS = "DRAOptionalNodeOperations"  # what a node declares whose kubelet can leave out steps for a device
REMEMBERED = 64  # answers kept for each node; claims are of few kinds


class Wrong(NamedTuple):
    """A question that has no answer, and why."""

    why: str


Verdict = bool | Wrong
Asked = tuple[tuple[str, cel.Quantity], ...]  # capacity name -> how much of it
Share = dict[str, cel.Quantity] | Wrong | None  # what is taken of each capacity; None: the device cannot give that


class Fits(NamedTuple):
    mask: int  # a bit for each device
    wrong: Mapping[int, tuple[int, str]]  # device -> which selector has no answer for it, and why


class Shares(NamedTuple):
    of: Mapping[int, Mapping[str, cel.Quantity]]  # device -> how much of each capacity
    wrong: Mapping[int, str]  # device -> why that cannot be told
    mask: int  # the devices that can give it while nobody has a part of them


class Uses(NamedTuple):
    """What a device takes from one set of counters that it shares with others of its pool."""

    set: str
    counters: Mapping[str, int]  # nano-units
    groups: frozenset[str]  # those it can stand beside on the set; empty: only beside others without


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> cel.Selector | Wrong:
    try:
        return cel.compile_selector(text, limit=None)  # what was let in is not judged again
    except Invalid as error:
        return Wrong(f"CEL compile error: {error.message}")


class Device:
    """One published device. It never changes; what is asked of it again is remembered."""

    __slots__ = ("_capacity", "_cel", "_verdicts", "id", "raw", "shared", "taints", "uses")

    def __init__(self, driver: str, pool: str, raw: Object, rules: Sequence[Object]) -> None:
        self.id = DeviceId(driver, pool, raw["name"])
        self.raw = raw
        self.shared = bool(raw.get("allowMultipleAllocations"))
        self.taints = [*(raw.get("taints") or ()), *tolerations.ruled(rules, driver, pool, raw["name"])]
        self.uses = tuple(map(_uses, raw.get("consumesCounters") or ()))
        self._cel: cel.Device | Wrong | None = None
        self._capacity: dict[str, capacity.Capacity] | None = None
        self._verdicts: dict[str, Verdict] = {}

    @property
    def cel(self) -> cel.Device | Wrong:
        """As a selector sees it."""
        if self._cel is None:
            try:
                self._cel = cel.Device.from_slice(self.id.driver, self.raw)
            except Invalid as error:
                self._cel = Wrong(f"unsupported attribute value or capacity of device {self.id}: {error.message}")
        return self._cel

    def verdict(self, text: str) -> Verdict:
        """Does a selector match?"""
        known = self._verdicts.get(text)
        if known is None:
            known = self._verdicts[text] = self._ask(text)
        return known

    def _ask(self, text: str) -> Verdict:
        selector, device = compiled(text), self.cel
        if isinstance(selector, Wrong):
            return selector
        if isinstance(device, Wrong):
            return device
        try:
            return selector.matches(device)
        except EvaluationError as error:
            return Wrong(f"CEL runtime error on device {self.id}: {error.message}")

    def prepare(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.verdict(text)
        try:
            _ = self.cel, self.capacity
        except Invalid:
            return  # said again to whoever asks for it

    @property
    def capacity(self) -> dict[str, capacity.Capacity]:
        if self._capacity is None:
            self._capacity = capacity.read(self.raw.get("capacity") or {})
        return self._capacity

    def share(self, asked: Asked, fractional: bool) -> Share:
        """What a request takes of it; None: it could not give that even if nobody had a part of it."""
        if not asked and not self.raw.get("capacity"):
            return {}
        try:
            share = capacity.share(dict(asked), self.capacity, self.id.driver, fractional=fractional)
            return share if share is not None and capacity.room(share, {}, (), self.capacity) else None
        except Invalid as error:
            return Wrong(f"checking capacity for device {self.id}: {error.message}")

    def attribute(self, name: str) -> Mapping[str, Any] | None:
        """By its full name; one that was published without a domain has the driver's."""
        attributes = self.raw.get("attributes") or {}
        found = attributes.get(name)
        if found is None:
            domain, _, short = name.rpartition("/")
            found = attributes.get(short) if domain == self.id.driver else None
        return found


def _uses(entry: Object) -> Uses:
    return Uses(entry["counterSet"], _amounts(entry.get("counters")), frozenset(entry.get("compatibilityGroups") or ()))


def _amounts(counters: Object | None) -> dict[str, int]:
    return {name: capacity.number(entry.get("value"), f"counters[{name}].value").nano
            for name, entry in (counters or {}).items()}


class Slice:
    """A ResourceSlice, read."""

    __slots__ = ("counters", "devices", "each", "generation", "groups", "name", "node", "of", "pool", "raw", "skips", "spec")

    def __init__(self, raw: Object, rules: Sequence[Object]) -> None:
        spec = raw["spec"]
        self.raw, self.spec, self.name = raw, spec, raw["metadata"]["name"]
        self.pool = (spec["driver"], spec["pool"]["name"])
        self.generation, self.of = int(spec["pool"].get("generation") or 0), int(spec["pool"].get("resourceSliceCount") or 1)
        self.node: str = spec.get("nodeName") or ""
        self.each = bool(spec.get("perDeviceNodeSelection"))  # its devices say themselves where they can be used
        self.counters = {entry["name"]: _amounts(entry.get("counters")) for entry in spec.get("sharedCounters") or ()}
        self.skips = tuple(spec.get("skipNodeOperations") or ())
        self.devices = [Device(*self.pool, device, rules) for device in spec.get("devices") or ()]
        self.groups = any(use.groups for device in self.devices for use in device.uses)

    def reaches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Can the node use any device of it?"""
        if self.node or self.spec.get("allNodes") or self.spec.get("nodeSelector"):
            return _reaches(self.spec, name, labels)
        return self.each and any(_reaches(device.raw, name, labels) for device in self.devices)

    def where(self, device: Device) -> affinity.Where:
        """Where a device of it can be used."""
        source = device.raw if self.each else self.spec
        if device.raw.get("bindsToNode"):
            return "", None
        return source.get("nodeName") or None, source.get("nodeSelector")


def _reaches(source: Object, name: str, labels: Mapping[str, str]) -> bool:
    if node := source.get("nodeName"):
        return bool(node == name)
    if source.get("allNodes"):
        return True
    selector = source.get("nodeSelector")
    return selector is not None and affinity.matches(selector, name, labels)


class Pool:
    """A pool as one node sees it."""

    __slots__ = ("counters", "elsewhere", "id", "incomplete", "invalid", "slices")

    def __init__(self, name: tuple[str, str], slices: Sequence[Slice] = (), elsewhere: Sequence[Slice] = (), *,
                 incomplete: bool = False, invalid: str = "") -> None:
        self.id = name
        self.slices = slices  # with devices for the node, in the order of their names
        self.elsewhere = elsewhere  # with devices for other nodes: they may use the same counters
        self.incomplete, self.invalid = incomplete, invalid  # not all slices are there; what contradicts itself
        self.counters: dict[str, Mapping[str, int]] = {}

    def __str__(self) -> str:
        return "/".join(self.id)


class Site:
    """What one node can reach: its pools in Kubernetes' order, and the devices of those that can be used."""

    def __init__(self, pools: Sequence[Pool], name: str, labels: Mapping[str, str], declared: frozenset[str]) -> None:
        self.name, self.pools = name, pools
        self.incomplete = [pool for pool in pools if pool.incomplete]
        self.invalid = [pool for pool in pools if pool.invalid]
        found = [(pool, part, device) for pool in pools for part in pool.slices for device in part.devices]
        self.devices = [device for _, _, device in found]
        self.slices = [part for _, part, _ in found]
        self.pool_of = [pool for pool, _, _ in found]
        self.everything = (1 << len(found)) - 1
        self.tainted = [index for index, device in enumerate(self.devices) if device.taints]
        self.counted = _mask(bool(device.uses) for device in self.devices)
        self.shared = _mask(device.shared for device in self.devices)
        self.binding = _mask(bool(device.raw.get("bindingConditions")) for device in self.devices)
        self.lazy = _mask(bool(part.skips) and SKIPS not in declared for part in self.slices)  # need what the node cannot do
        self.there = _mask(not part.each or _reaches(device.raw, name, labels) for _, part, device in found)
        self._fits: dict[tuple[str, ...], Fits] = {}
        self._values: dict[Any, Any] = {}

    def fits(self, selectors: tuple[str, ...]) -> Fits:
        """Of the devices that can be used here: those that match, and those that cannot be told."""
        known = self._fits.get(selectors)
        if known is None:
            if len(self._fits) >= REMEMBERED:
                self._fits.clear()
            known = self._fits[selectors] = self._ask(selectors)
        return known

    def _ask(self, selectors: tuple[str, ...]) -> Fits:
        mask, wrong = 0, {}
        for index, device in enumerate(self.devices):
            for position, text in enumerate(selectors):
                verdict = device.verdict(text)
                if verdict is True:
                    continue
                if isinstance(verdict, Wrong):
                    wrong[index] = (position, verdict.why)
                break
            else:
                mask |= 1 << index
        return Fits(mask & self.there, wrong)

    def shares(self, asked: Asked, fractional: bool) -> Shares:
        """Of the devices that can be used here: what a request takes of each."""
        def make() -> Shares:
            found = [device.share(asked, fractional) for device in self.devices]
            shares = {index: share for index, share in enumerate(found) if share is not None and not isinstance(share, Wrong)}
            return Shares(shares, {index: share.why for index, share in enumerate(found) if isinstance(share, Wrong)},
                          sum(1 << index for index in shares))

        known: Shares = self.remembered(("shares", asked, fractional), make)
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


class Pools:
    """All that is published, at one moment. Built again when a slice changes: what did not change is taken over from `old`,
    with everything that was remembered of it."""

    def __init__(self, slices: Iterable[Object], rules: Sequence[Object] = (), old: Pools | None = None) -> None:
        self.rules = list(rules)
        known = old._slices if old is not None and old.rules == self.rules else {}
        self._slices: dict[tuple[str, str, str, int], Slice] = {}
        self._of: dict[tuple[str, str], list[Slice]] = defaultdict(list)
        self._at: dict[str, list[Slice]] = defaultdict(list)  # tied to one node
        self._roaming: list[Slice] = []
        for position, raw in enumerate(slices):
            key = (raw["spec"]["driver"], raw["spec"]["pool"]["name"], raw["metadata"]["name"], 0)
            if key in self._slices:  # two of one name: only in a broken cluster, and each counts
                key = (*key[:3], position)
            have = known.get(key)
            try:
                part = have if have is not None and (have.raw is raw or have.raw == raw) else Slice(raw, self.rules)
            except Invalid as error:  # its pool is then incomplete, and nobody uses it
                log.warning("slice %s cannot be read: %s", raw["metadata"]["name"], error)
                continue
            self._slices[key] = part
            self._of[part.pool].append(part)
            if part.node:
                self._at[part.node].append(part)
            else:
                self._roaming.append(part)
        self._sites: dict[str, tuple[Any, Site]] = {}
        if old is not None and not self._roaming and not old._roaming:
            self._sites = {name: site for name, site in old._sites.items() if self._same(name, old)}

    def prepare(self, selectors: Iterable[str] = ()) -> None:
        """Read every device now, and ask these selectors (those of the classes) of it: not while a claim waits."""
        texts = list(selectors)
        for part in self._slices.values():
            for device in part.devices:
                device.prepare(texts)

    def _same(self, name: str, old: Pools) -> bool:
        """Nothing that a node can reach has changed."""
        mine, theirs = self._at.get(name, ()), old._at.get(name, ())
        return (len(mine) == len(theirs) and all(one is other for one, other in zip(mine, theirs, strict=True))
                and all(self._of[part.pool] == old._of[part.pool] for part in mine))

    def at(self, node: Object, features: Features) -> Site:
        """What a node (its object) can reach."""
        meta = node.get("metadata") or {}
        name, labels = str(meta.get("name") or ""), meta.get("labels") or {}
        declared = frozenset((node.get("status") or {}).get("declaredFeatures") or ())
        key = (features.partitionable_devices, features.compatibility_groups, declared, labels if self._roaming else None)
        known = self._sites.get(name)
        if known is None or known[0] != key:
            known = self._sites[name] = (key, Site(self._gather(name, labels, features), name, labels, declared))
        return known[1]

    def _gather(self, name: str, labels: Mapping[str, str], features: Features) -> list[Pool]:
        """The pools of a node, those with binding conditions last, else by driver and name. Of each only the newest generation
        that the node sees counts."""
        seen: dict[tuple[str, str], set[Slice]] = defaultdict(set)
        for part in self._at.get(name, ()):
            seen[part.pool].add(part)
        for part in self._roaming:
            if part.reaches(name, labels):
                seen[part.pool].add(part)
        pools = [pool for pool in (self._pool(key, parts, features) for key, parts in seen.items()) if pool is not None]
        return sorted(pools, key=lambda pool: (_binds(pool), pool.id))

    def _pool(self, key: tuple[str, str], seen: set[Slice], features: Features) -> Pool | None:
        everywhere = [part for part in self._of[key] if features.compatibility_groups or not part.groups]
        here = [part for part in everywhere if part.counters or part in seen]
        if not features.partitionable_devices:
            here = [part for part in here if not part.counters and part.spec.get("perDeviceNodeSelection") is None]
        if not here:
            return None
        generation = max(part.generation for part in here)
        here = [part for part in here if part.generation == generation]
        elsewhere: list[Slice] = []
        if len(here) != here[0].of:
            if any(part.generation > generation for part in everywhere):
                return None  # what the node sees is being replaced by something that it does not see
            everywhere = [part for part in everywhere if part.generation == generation]
            if len(everywhere) != here[0].of:
                return Pool(key, incomplete=True)
            known = set(here)
            elsewhere = [part for part in everywhere if part not in known]
        return _checked(key, sorted(here, key=lambda part: part.name), elsewhere, features)


def _binds(pool: Pool) -> bool:
    return any(device.raw.get("bindingConditions") is not None for part in pool.slices for device in part.devices)


def _checked(key: tuple[str, str], here: list[Slice], elsewhere: list[Slice], features: Features) -> Pool:
    """A complete pool, or what contradicts itself in it."""
    slices = [part for part in here if not part.counters]
    names = [device.id.device for part in slices for device in part.devices]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return Pool(key, invalid=f"device {twice} is there twice")
    pool = Pool(key, slices, elsewhere)
    for part in here:
        for name, counters in part.counters.items():
            if name in pool.counters:
                return Pool(key, invalid=f"counter set {name} is there twice")
            pool.counters[name] = counters
    lacking = _lacking(pool, [*here, *elsewhere]) if features.partitionable_devices else ""
    return Pool(key, invalid=lacking) if lacking else pool


def _lacking(pool: Pool, slices: Iterable[Slice]) -> str:
    for part in slices:
        for device in part.devices:
            for use in device.uses:
                if use.set not in pool.counters:
                    return f"device {device.id.device} uses counter set {use.set}, which is not there"
                for name in use.counters:
                    if name not in pool.counters[use.set]:
                        return f"device {device.id.device} uses counter {name} of {use.set}, which is not there"
    return ""
