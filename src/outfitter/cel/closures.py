"""The closures an expression is made of: operators, lookups, calls and loops, each built from closures below it.

A closure takes the frame, a list: the device, what is left of the budget, then one slot per variable of a macro."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from outfitter.cel import library, values
from outfitter.cel.device import Device
from outfitter.cel.values import MISSING, NONE, Optional, OutOfBudget, Value
from outfitter.errors import EvaluationError

Frame = list[Value]
Run = Callable[[Frame], Value]

DEVICE, BUDGET, FIRST_SLOT = 0, 1, 2  # what is where in a frame

# A guard, not yet Kubernetes' exact cost: loop turns and calls count as the least that Kubernetes charges for them, and
# walking a value counts only when the expression has made a long one. So what Kubernetes' limit of the same number lets
# through is answered here too, unless it builds very long lists, which it joins without copying and we do not.
LIMIT = 1_000_000
TURN = {"all": 3, "exists": 3, "exists_one": 1, "filter": 1, "map": 12, "transformList": 12, "transformMap": 1}
CALL = 1
LONG = 100  # characters or items from which walking a value is counted

FIELDS: dict[str, str] = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple",
}
_SIZED = (str, list, dict)


def _spend(frame: Frame, cost: int) -> None:
    frame[BUDGET] -= cost
    if frame[BUDGET] < 0:
        raise OutOfBudget


def _walk(frame: Frame, value: Value) -> None:
    """Count what walking a long string, list or map takes."""
    if isinstance(value, _SIZED) and len(value) > LONG:
        _spend(frame, len(value) // 10 if isinstance(value, str) else len(value))


def select(value: Value, name: str) -> Value:
    """`value.name`, or MISSING."""
    if isinstance(value, dict):
        try:
            return value[name]
        except KeyError:
            return MISSING
    if type(value) is Device:
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


def insert(mapping: dict[Value, Value], name: Value, item: Value) -> None:
    if type(name) is float:
        raise EvaluationError("unsupported key type: double")
    key = values.to_key(name)
    if key in mapping:
        raise EvaluationError(f"Failed with repeated key: {values.text_of(name)}")
    mapping[key] = item


# -- operators


def negated_bool(operand: Run) -> Run:
    return lambda frame: not want_bool("!", operand(frame))


def negated(operand: Run) -> Run:
    return lambda frame: values.negate(operand(frame))


def binary(op: str, left: Run, right: Run) -> Run:
    match op:
        case "==":
            return _equality(left, right)
        case "!=":
            same = _equality(left, right)
            return lambda frame: not same(frame)
        case "<":
            return lambda frame: values.compare(left(frame), right(frame), "<") < 0
        case "<=":
            return lambda frame: values.compare(left(frame), right(frame), "<=") <= 0
        case ">":
            return lambda frame: values.compare(left(frame), right(frame), ">") > 0
        case ">=":
            return lambda frame: values.compare(left(frame), right(frame), ">=") >= 0
        case "in":
            return _membership(left, right)
        case "+":
            return _addition(left, right)
    calculate = values.ARITHMETIC[op]
    return lambda frame: calculate(left(frame), right(frame))


def _equality(left: Run, right: Run) -> Run:
    def run(frame: Frame) -> Value:
        a, b = left(frame), right(frame)
        if type(a) is str and type(b) is str:
            return a == b
        _walk(frame, a)
        return values.equal(a, b)

    return run


def _membership(left: Run, right: Run) -> Run:
    def run(frame: Frame) -> Value:
        item, container = left(frame), right(frame)
        if type(container) is list:
            _walk(frame, container)
        return values.contains(item, container)

    return run


def _addition(left: Run, right: Run) -> Run:
    def run(frame: Frame) -> Value:
        total = values.add(left(frame), right(frame))
        _walk(frame, total)
        return total

    return run


def logical(terms: Sequence[Run], *, stop: bool, name: str) -> Run:
    """`||` (stop is true) or `&&` (stop is false): one term that says `stop` decides, even beside an error."""

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
                raise EvaluationError(f"no such key: {name}") from None
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


def plain_call(function: library.Function, args: Sequence[Run]) -> Run:
    def run(frame: Frame) -> Value:
        _spend(frame, CALL)
        given = [arg(frame) for arg in args]
        for value in given:
            _walk(frame, value)
        return function(*given)

    return run


def member_call(function: library.Function, target: Run, args: Sequence[Run]) -> Run:
    if len(args) == 1:
        only = args[0]

        def with_one(frame: Frame) -> Value:
            _spend(frame, CALL)
            value = target(frame)
            _walk(frame, value)
            result = function(value, only(frame))
            _walk(frame, result)
            return result

        return with_one

    def run(frame: Frame) -> Value:
        _spend(frame, CALL)
        value = target(frame)
        _walk(frame, value)
        result = function(value, *[arg(frame) for arg in args])
        _walk(frame, result)
        return result

    return run


def or_else(name: str, target: Run, other: Run) -> Run:
    """`orValue` and `or`: the other side is worked out only when it is needed."""

    def run(frame: Frame) -> Value:
        value = target(frame)
        if type(value) is not Optional:
            raise values.no_such_overload(name, value)
        if value.present:
            return value.value if name == "orValue" else value
        instead = other(frame)
        if name == "or" and type(instead) is not Optional:
            raise values.no_such_overload(name, value, instead)
        return instead

    return run


# -- loops


def turns(items: Run, first: int, second: int | None, cost: int) -> Callable[[Frame], Iterable[None]]:
    """One turn per item, with the variables set in the frame; every turn is paid for."""

    def run(frame: Frame) -> Iterable[None]:
        value = items(frame)
        if type(value) is list:
            pairs: Iterable[tuple[Value, Value]] = enumerate(value)
        elif isinstance(value, dict):
            pairs = zip(values.keys(value), value.values(), strict=True)
        else:
            raise EvaluationError(f"got '{values.type_name(value)}', expected iterable type: a list or a map")
        key_first = second is not None or type(value) is not list
        for key, item in pairs:
            _spend(frame, cost)
            frame[first] = key if key_first else item
            if second is not None:
                frame[second] = item
            yield

    return run


def quantified(each: Callable[[Frame], Iterable[None]], body: Run, *, stop: bool, name: str) -> Run:
    """`exists` (stop is true) or `all` (stop is false), which swallow errors as `||` and `&&` do."""

    def run(frame: Frame) -> Value:
        wrong: EvaluationError | None = None
        for _ in each(frame):
            try:
                value = body(frame)
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
