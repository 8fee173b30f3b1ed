"""What the devices of a claim must have in common, or must not. A value is a set: of one member, or of those of a list.

Devices match while one member is common to all; they are distinct while no two share a member."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outfitter import cel
from outfitter.errors import EvaluationError
from outfitter.scheduling.dra import selector_cache
from outfitter.scheduling.dra.node_devices import NodeDevices
from outfitter.scheduling.dra.selector_cache import SelectorError
from outfitter.scheduling.dra.slices import PublishedDevice

Value = tuple[str, Any]  # its type and itself: the number 1 is not the text "1"
State = frozenset[Value] | None  # match: what is common so far; distinct: what was seen; None: no device yet

_SCALARS = ("string", "int", "bool", "version")
_ALIEN: Value = ("", None)  # a type that is not known, or lists while they are off: never equal to anything


class Constraint:
    __slots__ = ("attribute", "distinct", "requests")

    def __init__(self, attribute: str, distinct: bool, requests: frozenset[str]) -> None:
        self.attribute, self.distinct, self.requests = attribute, distinct, requests

    def applies(self, parent: str, full: str) -> bool:
        """Is it for a request (and for one of its alternatives)? One that names no request is for all."""
        return not self.requests or parent in self.requests or full in self.requests

    def __str__(self) -> str:
        return f"{'distinctAttribute' if self.distinct else 'matchAttribute'} {self.attribute}"


class Table:
    """The values of one attribute on the devices of a node: a bit mask for each value."""

    __slots__ = ("by", "groups", "has", "lists", "of", "wrong")

    def __init__(self, values: Iterator[frozenset[Value] | SelectorError | None]) -> None:
        self.of: list[frozenset[Value]] = []
        self.by: dict[Value, int] = {}
        self.has = 0  # devices that have the attribute
        self.lists = False
        self.wrong: dict[int, str] = {}  # devices for which it cannot be evaluated
        for index, value_or_wrong in enumerate(values):
            if isinstance(value_or_wrong, SelectorError):
                self.wrong[index] = value_or_wrong.why
            found = frozenset[Value]() if isinstance(value_or_wrong, SelectorError) else value_or_wrong or frozenset()
            self.of.append(found)
            if found:
                self.has |= 1 << index
                self.lists |= len(found) > 1
                for value in found:
                    self.by[value] = self.by.get(value, 0) | 1 << index
        self.groups = tuple(self.by.values())

    def open(self, state: State, distinct: bool) -> int:
        """The devices that can be added."""
        if not state:
            return self.has
        mask = 0
        for value in state:
            if value != _ALIEN:
                mask |= self.by.get(value, 0)
        return self.has & ~mask & ~self.by.get(_ALIEN, 0) if distinct else mask

    def add(self, state: State, device: int, distinct: bool) -> State:
        mine = self.of[device]
        if state is None:
            return mine
        return state | mine if distinct else state & mine


def published(site: NodeDevices, attribute: str, lists: bool) -> Table:
    """Of what the devices say themselves; made once for all nodes whose devices say the same."""
    column = site.column(attribute, selector_cache.attribute(attribute))
    found = site.contents.remembered(("values", lists, column), lambda: Table(
        _value(device.attribute(attribute), lists) for device in site.devices))
    assert isinstance(found, Table)
    return found


def derived(site: NodeDevices, selector: cel.Selector, lists: bool) -> Table:
    """Of what an expression of the request makes of each device."""
    found = site.remembered(("derived", selector.text, lists), lambda: Table(_all_computed(site, selector, lists)))
    assert isinstance(found, Table)
    return found


def _all_computed(site: NodeDevices, selector: cel.Selector, lists: bool) -> Iterator[frozenset[Value] | SelectorError | None]:
    """Once for all devices that are alike in what is read of them."""
    columns = site.reading(selector.reads) if site.readable else ()
    meter = site.contents.remembered(("derived cost", selector.text), lambda: cel.CostMeter(selector_cache.BUDGET))
    for index, device in enumerate(site.devices):
        compute = functools.partial(_computed, selector, device, lists, meter)
        key = ("derived", selector.text, lists, *(column.values[index] for column in columns))
        yield site.contents.remembered(key, compute) if site.readable else compute()


def _value(raw: Mapping[str, Any] | None, lists: bool) -> frozenset[Value] | None:
    if raw is None:
        return None
    for kind in _SCALARS:
        if raw.get(kind) is not None:
            return frozenset([(kind, raw[kind])])
        if lists and raw.get(f"{kind}s") is not None:
            return frozenset((kind, member) for member in raw[f"{kind}s"])
    return None if lists else frozenset([_ALIEN])


def _computed(
    selector: cel.Selector, device: PublishedDevice, lists: bool, meter: cel.CostMeter
) -> frozenset[Value] | SelectorError | None:
    """Unsatisfiable when the expression cost too much on all devices together."""
    if meter.left < 0:
        raise selector_cache.over_budget()
    subject = device.cel
    if isinstance(subject, SelectorError):
        return subject
    try:
        result = selector.value(subject, meter)
    except EvaluationError as error:
        if meter.left < 0:
            raise selector_cache.over_budget() from error
        return SelectorError(f"CEL runtime error: {error.message}")
    out = [_typed(member) for member in (result if isinstance(result, list) else [result])]
    if None in out:
        return SelectorError("the result is no text, number, version, true or false, nor a list of such")
    if isinstance(result, list) and not lists:
        return frozenset([_ALIEN])
    return frozenset(value for value in out if value is not None)


def _typed(value: Any) -> Value | None:
    kinds: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
        (bool, "bool", bool), (int, "int", int), (str, "string", str), (cel.Semver, "version", str))
    return next(((kind, make(value)) for type_, kind, make in kinds if isinstance(value, type_)), None)
