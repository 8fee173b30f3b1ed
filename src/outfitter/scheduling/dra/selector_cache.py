"""What devices have in common. Thousands of cards differ in their serial numbers and addresses, and selectors ask for none of
that: a selector is asked once of all devices that are alike in what it can read (`cel.reads`), on whichever host they are.

A column is what one such thing is on each device of a host. Hosts with equal columns share one `Column`, so that an answer for
a whole host is found by identity."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from outfitter import cel
from outfitter.api import rejection_text
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.cel.field_usage import Read
from outfitter.errors import EvaluationError, Invalid, Unsatisfiable

if TYPE_CHECKING:
    from outfitter.scheduling.dra.slices import PublishedDevice

NOTHING: Mapping[Any, Any] = {}
QUESTIONS = 256  # that are remembered: claims are of few kinds
ANSWERS = 1 << 16  # to each of them, before all are forgotten
BUDGET = 320_000  # what the selectors of a pod may cost on all devices together, in Kubernetes' units: about 200 ms
COSTLY = 10_000  # a question that cost more is not asked again before it has to be
Source = Callable[[Iterable["PublishedDevice"]], list[Hashable]]


class SelectorError(NamedTuple):
    """A question that has no answer, and why."""

    why: str


class SelectorResult(NamedTuple):
    """What several selectors, each of which must match, say of a device."""

    matches: bool
    position: int = 0  # the selector that has no answer
    why: str = ""  # empty: there is an answer
    missing: str = ""  # what the device lacks, if that is why


class SelectorMatch(NamedTuple):
    """The same for the devices of a host."""

    mask: int  # those that match, a bit for each
    wrong: Mapping[int, SelectorResult]  # devices for which a selector has no answer


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> cel.Selector | SelectorError:
    try:
        return cel.compile_selector(text, limit=None)  # what was let in is not judged again
    except Invalid as error:
        return SelectorError(f"CEL compile error: {error.message}")


class DeviceColumn:
    """What the devices of a host have, one after the other. Equal ones are the same object for as long as a host has it."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: tuple[Hashable, ...]) -> None:
        self.values = values


class SelectorQuery:
    """Selectors, and their results for every device content seen."""

    def __init__(self, selectors: tuple[str, ...]) -> None:
        self._selectors = selectors
        self.reads = tuple(sorted({read for text in selectors for read in _reads(text)}, key=repr))
        self._by_device: dict[tuple[Hashable, ...], SelectorResult] = {}
        self._by_columns: dict[tuple[int | DeviceColumn, ...], SelectorMatch] = {}
        self.spent = 0  # what its results cost
        self.others = 0  # what other questions of the same pod cost

    def ask(self, devices: Sequence[PublishedDevice], columns: tuple[DeviceColumn, ...]) -> SelectorMatch:
        """Of the devices of a host, all of which can be read; columns are of `reads`."""
        where: tuple[int | DeviceColumn, ...] = (len(devices), *columns)
        known = self._by_columns.get(where)
        if known is None:
            if len(self._by_columns) >= ANSWERS:
                self._by_columns.clear()
            alike = zip(*(column.values for column in columns), strict=True) if columns else [()] * len(devices)
            answers = [self._one(key, device) for key, device in zip(alike, devices, strict=True)]
            known = self._by_columns[where] = _fits(answers)
        return known

    def ask_each(self, devices: Sequence[PublishedDevice]) -> SelectorMatch:
        """The same where one of them cannot be read."""
        return _fits([self.directly(device) for device in devices])

    def _one(self, key: tuple[Hashable, ...], device: PublishedDevice) -> SelectorResult:
        known = self._by_device.get(key)
        if known is None:
            if len(self._by_device) >= ANSWERS:
                self._by_device.clear()
                self.spent = 0
            known = self._by_device[key] = self.directly(device)
        return known

    def directly(self, device: PublishedDevice) -> SelectorResult:
        """Asked of the device itself. Unsatisfiable when the question cost too much."""
        subject: cel.CelDevice | SelectorError | None = None
        for position, text in enumerate(self._selectors):
            selector = compiled(text)
            if isinstance(selector, SelectorError):
                return SelectorResult(False, position, selector.why)
            subject = subject or device.cel
            if isinstance(subject, SelectorError):
                return SelectorResult(False, position, subject.why)
            left = BUDGET - self.spent - self.others
            if left < 0:
                raise over_budget()
            meter = cel.CostMeter(left)
            try:
                matches, error = selector.matches(subject, meter), None
            except EvaluationError as failed:
                matches, error = False, failed
            self.spent += left - meter.left
            if meter.left < 0:
                raise over_budget()
            if error is not None:
                return SelectorResult(False, position, f"CEL runtime error: {error.message}", error.missing)
            if not matches:
                return SelectorResult(False)
        return SelectorResult(True)


def over_budget(where: str = "") -> Unsatisfiable:
    return rejection_text.error(Unsatisfiable, Rejection.of(RejectionCode.SELECTOR_BUDGET, where=where, limit=BUDGET))


def _fits(answers: Sequence[SelectorResult]) -> SelectorMatch:
    return SelectorMatch(sum(1 << index for index, one in enumerate(answers) if one.matches),
                         {index: one for index, one in enumerate(answers) if one.why})


class SelectorCache:
    """Kept for as long as slices come and go."""

    def __init__(self) -> None:
        self._columns: weakref.WeakValueDictionary[tuple[Hashable, ...], DeviceColumn] = weakref.WeakValueDictionary()
        self._questions: dict[tuple[str, ...], SelectorQuery] = {}
        self._made: dict[Any, Any] = {}

    def column(self, values: Iterable[Hashable]) -> DeviceColumn:
        key = tuple(values)
        known = self._columns.get(key)
        if known is None:
            known = self._columns[key] = DeviceColumn(key)
        return known

    def question(self, selectors: tuple[str, ...]) -> SelectorQuery:
        known = self._questions.get(selectors)
        if known is None:
            if len(self._questions) >= QUESTIONS:
                self._questions.clear()
            known = self._questions[selectors] = SelectorQuery(selectors)
        return known

    def slices_changed(self) -> None:
        """What was too much of the devices that there were need not be too much of those that there are."""
        self._questions = {selectors: question for selectors, question in self._questions.items() if question.spent <= BUDGET}

    def remembered(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What follows from columns alone (they are part of the key), made once for all hosts that have them."""
        known = self._made.get(key)
        if known is None:
            if len(self._made) >= ANSWERS:
                self._made.clear()
            known = self._made[key] = make()
        return known


def _reads(text: str) -> tuple[Read, ...]:
    selector = compiled(text)
    return () if isinstance(selector, SelectorError) else selector.reads


# -- what is read of a device: equal exactly if an expression cannot tell the difference


@functools.lru_cache(maxsize=4096)
def source(read: Read) -> Source:
    match read:
        case Read("driver"):
            return lambda devices: [device.id.driver for device in devices]
        case Read("allowMultipleAllocations"):
            return lambda devices: [device.shared for device in devices]
        case Read("attributes" | "capacity" as field, str(domain), None, presence=True):
            return lambda devices: [_present(device, field, domain) for device in devices]
        case Read("attributes" | "capacity" as field, str(domain), str(name)):
            return _named(field, domain, name)
        case Read("attributes" | "capacity" as field):
            return lambda devices: [(device.id.driver, repr(device.raw.get(field))) for device in devices]
    return lambda devices: [(device.id.driver, repr(device.raw)) for device in devices]


@functools.lru_cache(maxsize=4096)
def attribute(name: str) -> Source:
    """An attribute by its full name, as constraints read it (`Device.attribute`)."""
    return lambda devices: [content(device.attribute(name)) for device in devices]


def content(entry: Any) -> Hashable:
    """An attribute or an amount, as something that can be compared."""
    if type(entry) is dict and len(entry) == 1:
        for kind, value in entry.items():
            if type(value) is str or type(value) is int:
                return kind, value
    return None if entry is None else repr(entry)


def _named(field: str, domain: str, name: str) -> Source:
    """An entry bears its domain, or has the driver's; of two under one name the last counts."""
    full = f"{domain}/{name}" if "/" not in domain else None
    short = name if "/" not in name else None

    def values(devices: Iterable[PublishedDevice]) -> list[Hashable]:
        out = []
        for device in devices:
            there = device.raw.get(field) or NOTHING
            found = there.get(short) if domain == device.id.driver else None
            if found is None:
                found = there.get(full)
            elif full in there and list(there).index(full) > list(there).index(short):
                found = there[full]
            out.append(content(found))
        return out

    return values


def _present(device: PublishedDevice, field: str, domain: str) -> bool:
    there = device.raw.get(field) or ()
    return any((name.partition("/")[0] if "/" in name else device.id.driver) == domain for name in there)
