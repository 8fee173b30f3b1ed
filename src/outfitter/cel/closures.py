"""The closures of a compiled expression: operators, lookups, calls and loops, each built from the closures of its operands.
Called by `compiler`.

A closure takes the frame, a list: the device, the remaining budget (where costs are counted), then one slot for each variable
of a macro."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from outfitter.cel import values
from outfitter.cel.device import CelDevice
from outfitter.cel.library.objects import Function
from outfitter.cel.values import MISSING, NONE, Optional, OutOfBudget, Value
from outfitter.errors import EvaluationError

Frame = list[Value]
Run = Callable[[Frame], Value]

DEVICE, BUDGET, FIRST_SLOT = 0, 1, 2  # positions in a frame

LIMIT = 1_000_000  # cost limit of a selector, both estimated and on one device

FIELDS: dict[str, str] = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple",
}


def spend(frame: Frame, cost: int) -> None:
    frame[BUDGET] -= cost
    if frame[BUDGET] < 0:
        raise OutOfBudget


def select(value: Value, name: str) -> Value:
    """`value.name`, or MISSING."""
    if isinstance(value, dict):
        try:
            return value[name]
        except KeyError:
            return MISSING
    if type(value) is CelDevice:
        return getattr(value, FIELDS[name]) if name in FIELDS else MISSING
    raise values.no_such_overload(f".{name}", value)


def optional(value: Value) -> Optional:
    return NONE if value is MISSING else Optional(True, value)


def constant(value: Value) -> Run:
    return lambda _frame: value


def want_bool(operation: str, value: Value) -> bool:
    if value is True or value is False:
        return bool(value)
    raise values.no_such_overload(operation, value)


# -- operators


def negated_bool(operand: Run) -> Run:
    return lambda frame: not want_bool("!", operand(frame))


def negated(operand: Run) -> Run:
    return lambda frame: values.negate(operand(frame))


def binary(op: str, left: Run, right: Run) -> Run:
    match op:
        case "==":
            return _equality(left, right)
        case "!=":  # values that cannot be compared are different; only == raises
            return lambda frame: not values.surely_equal(left(frame), right(frame))
        case "<":
            return lambda frame: values.compare(left(frame), right(frame), "<") < 0
        case "<=":
            return lambda frame: values.compare(left(frame), right(frame), "<=") <= 0
        case ">":
            return lambda frame: values.compare(left(frame), right(frame), ">") > 0
        case ">=":
            return lambda frame: values.compare(left(frame), right(frame), ">=") >= 0
        case "in":
            return lambda frame: values.contains(left(frame), right(frame))
    calculate = values.ARITHMETIC[op]
    return lambda frame: calculate(left(frame), right(frame))


def _equality(left: Run, right: Run) -> Run:
    def run(frame: Frame) -> Value:
        a, b = left(frame), right(frame)
        if type(a) is str and type(b) is str:
            return a == b
        return values.equal(a, b)

    return run


def logical(terms: Sequence[Run], *, stop: bool, name: str) -> Run:
    """`||` (stop is true) or `&&` (stop is false): one term equal to `stop` decides, even if another term fails."""

    def run(frame: Frame) -> Value:
        wrong: EvaluationError | None = None
        for term in terms:
            try:
                value = term(frame)
            except EvaluationError as error:
                wrong = wrong or error
                continue
            if value is stop:
                return stop
            if value is not (not stop) and wrong is None:
                wrong = values.no_such_overload(name, value)
        if wrong is not None:
            raise wrong
        return not stop

    return run


def conditional(condition: Run, yes: Run, no: Run) -> Run:
    return lambda frame: yes(frame) if want_bool("?:", condition(frame)) else no(frame)


# -- lookups


def index_by_name(operand: Run, name: str) -> Run:
    def run(frame: Frame) -> Value:
        value = operand(frame)
        if isinstance(value, dict):
            try:
                return value[name]
            except KeyError:
                raise EvaluationError.no_such_key(name) from None
        if type(value) is Optional:
            return optional(values.find(value.value, name)) if value.present else NONE
        return values.at(value, name)

    return run


def optional_select(operand: Run, name: str) -> Run:
    def run(frame: Frame) -> Value:
        value = operand(frame)
        if type(value) is Optional:
            if not value.present:
                return NONE
            value = value.value
        return optional(select(value, name))

    return run


# -- calls


def call(function: Function, operands: Sequence[Run]) -> Run:
    """A function of its operands; the target of a method is the first."""
    match len(operands):
        case 1:
            (only,) = operands
            return lambda frame: function(only(frame))
        case 2:
            first, second = operands
            return lambda frame: function(first(frame), second(frame))
    return lambda frame: function(*[operand(frame) for operand in operands])


def counted_call(function: Function, operands: Sequence[Run], charge: Callable[..., int]) -> Run:
    """As `call`, charged by the actual operands and result."""

    def run(frame: Frame) -> Value:
        args = [operand(frame) for operand in operands]
        try:
            result = function(*args)
        except EvaluationError:
            spend(frame, charge(args, None))
            raise
        spend(frame, charge(args, result))
        return result

    return run


def or_else(name: str, target: Run, other: Run) -> Run:
    """`orValue` and `or`: the other side is evaluated only when needed."""

    def run(frame: Frame) -> Value:
        value = target(frame)
        if type(value) is not Optional:
            raise values.no_such_overload(name, value)
        if value.present:
            return value.value if name == "orValue" else value
        alternative = other(frame)
        if name == "or" and type(alternative) is not Optional:
            raise values.no_such_overload(name, value, alternative)
        return alternative

    return run


# -- loops


def iterations(items: Run, first: int, second: int | None) -> Callable[[Frame], Iterator[None]]:
    """One iteration per item, with the variables set in the frame."""

    def run(frame: Frame) -> Iterator[None]:
        value = items(frame)
        if type(value) is list:
            pairs: Iterable[tuple[Value, Value]] = enumerate(value)
        elif isinstance(value, dict):
            pairs = zip(values.keys(value), value.values(), strict=True)
        else:
            raise EvaluationError(f"got '{values.type_name(value)}', expected iterable type: a list or a map")
        key_first = second is not None or type(value) is not list
        for key, item in pairs:
            frame[first] = key if key_first else item
            if second is not None:
                frame[second] = item
            yield

    return run


def quantified(each: Callable[[Frame], Iterator[None]], body: Run, *, stop: bool, name: str, again: int) -> Run:
    """`exists` (stop is true) or `all` (stop is false), which ignore errors as `||` and `&&` do. `again` is the cost of
    stopping before the end, where costs are counted."""

    def run(frame: Frame) -> Value:
        wrong: EvaluationError | None = None
        iterations = each(frame)
        for _ in iterations:
            try:
                value = body(frame)
            except EvaluationError as error:
                wrong = wrong or error
                continue
            if value is stop:
                if again and next(iterations, MISSING) is not MISSING:
                    spend(frame, again)
                return stop
            if value is not (not stop) and wrong is None:
                wrong = values.no_such_overload(name, value)
        if wrong is not None:
            raise wrong
        return not stop

    return run


def merged(each: Callable[[Frame], Iterator[None]], condition: Callable[[Frame], bool], body: Run) -> Run:
    """The merged maps that the body returns."""

    def run(frame: Frame) -> Value:
        made = dict[Value, Value]()
        for _ in each(frame):
            if condition(frame):
                entries = body(frame)
                if not isinstance(entries, dict):
                    raise values.no_such_overload("transformMapEntry", entries)
                for key, item in entries.items():
                    if key in made:
                        raise EvaluationError(f"insert failed: key {values.text_of(values.keys({key: 0})[0])} already exists")
                    made[key] = item
        return made

    return run
