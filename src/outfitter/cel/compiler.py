"""Compiles the parser's tree to Python closures (`closures`). Called by `evaluator`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from outfitter.cel import closures, declarations, nodes, runtime_cost, values
from outfitter.cel.closures import DEVICE, FIELDS, FIRST_SLOT, Frame, Run
from outfitter.cel.device import CelDevice
from outfitter.cel.library import functions, lists
from outfitter.cel.library.objects import Function
from outfitter.cel.nodes import Node
from outfitter.cel.values import MISSING, NONE, Optional, TypeValue, Value
from outfitter.errors import EvaluationError

_UNSET = object()  # a cel.bind variable that is not evaluated yet


class Compiler:
    """Turns nodes into closures. `scope` maps each visible variable to the closure that reads it.

    With `places` (see `runtime_cost.by_place`) the closures also count their cost, as Kubernetes does."""

    def __init__(self, places: runtime_cost.Places | None = None) -> None:
        self.slots = 0
        self.scope: dict[str, Run] = {}
        self.places = places

    def priced(self, run: Run, price: int) -> Run:
        """The closure with a fixed price, where costs are counted."""
        if self.places is None or price == 0:
            return run

        def counted(frame: Frame) -> Value:
            closures.spend(frame, price)
            return run(frame)

        return counted

    def operation(self, node: Node, name: str, function: Function, operands: Sequence[Node]) -> Run:
        runs = [self.compile(one) for one in operands]
        if self.places is None:
            return closures.call(function, runs)
        return closures.counted_call(function, runs, runtime_cost.charge(name, self.places.get((node.pos, name), ())))

    def compile(self, node: Node) -> Run:
        match node:
            case nodes.Literal():
                return closures.constant(node.value)
            case nodes.Ident():
                return self.ident(node)
            case nodes.Select():
                return self.select(node)
            case nodes.Index():
                return self.index(node)
            case nodes.Call():
                return self.call(node)
            case nodes.ListLiteral():
                return self.list_literal(node)
            case nodes.MapLiteral():
                return self.map_literal(node)
            case nodes.Unary():
                return self.unary(node)
            case nodes.Binary():
                return self.binary(node)
            case nodes.Logical():
                return closures.logical([self.compile(term) for term in node.terms], stop=node.op == "||", name=node.op)
            case nodes.Conditional():
                return closures.conditional(self.compile(node.condition), self.inner(node.yes), self.inner(node.no))
            case nodes.Has():
                return self.has(node)
            case nodes.Comprehension():
                return self.comprehension(node)
            case nodes.Bind():
                return self.bind(node)
            case nodes.OptMap():
                return self.opt_map(node)
            case nodes.SortBy():
                return self.sort_by(node)

    # -- operators

    def unary(self, node: nodes.Unary) -> Run:
        run = self.compile(node.operand)
        return self.priced(closures.negated_bool(run) if node.op == "!" else closures.negated(run), 1)

    def binary(self, node: nodes.Binary) -> Run:
        if self.places is None:
            return closures.binary(node.op, self.compile(node.left), self.compile(node.right))
        if node.op == "in" and _is_constant(node.right) and isinstance(node.right, nodes.ListLiteral):
            return closures.binary(node.op, self.compile(node.left), self.compile(node.right))  # looked up in a set
        operate = closures.binary(node.op, operator.itemgetter(0), operator.itemgetter(1))
        name = "@in" if node.op == "in" else f"_{node.op}_"
        return self.operation(node, name, lambda left, right: operate([left, right]), (node.left, node.right))

    # -- names and fields

    def ident(self, node: nodes.Ident) -> Run:
        if run := self.scope.get(node.name):
            return self.priced(run, 1)
        if node.name == "device":
            return self.priced(operator.itemgetter(DEVICE), 1)
        return closures.constant(_type_value(node.name))

    def is_device(self, node: Node) -> bool:
        return isinstance(node, nodes.Ident) and node.name == "device" and "device" not in self.scope

    def step(self, run: Run, operand: Node, *, optional: bool = False) -> Run:
        """A lookup in the operand. It costs 1, and 1 more when the operand is not a lookup itself; an optional lookup without a
        result is free."""
        if self.places is None:
            return run
        root = 0 if _is_lookup(operand) else 1

        def counted(frame: Frame) -> Value:
            closures.spend(frame, root if optional else root + 1)
            result = run(frame)
            if optional:
                closures.spend(frame, result.present)
            elif type(result) is Optional and not result.present:
                closures.spend(frame, -1)
            return result

        return counted

    def inner(self, node: Node) -> Run:
        """A lookup inside another one, or a branch of a condition: its first name is free."""
        return self.priced(self.compile(node), -1 if _is_lookup(node) else 0)

    def select(self, node: nodes.Select) -> Run:
        name = node.field
        if self.is_device(node.operand) and not node.optional:
            of_device = operator.attrgetter(FIELDS[name])
            return self.priced(lambda frame: of_device(frame[DEVICE]), 2)
        whole = _dotted(node)
        if whole in declarations.TYPE_NAMES and whole.partition(".")[0] not in self.scope:
            return closures.constant(_type_value(whole))
        operand = self.compile(node.operand)
        if node.optional:
            return self.step(closures.optional_select(operand, name), node.operand, optional=True)

        def run(frame: Frame) -> Value:
            value = operand(frame)
            if type(value) is dict:
                try:
                    return value[name]
                except KeyError:
                    raise EvaluationError.no_such_key(name) from None
            if type(value) is Optional:
                return closures.optional(closures.select(value.value, name)) if value.present else NONE
            found = closures.select(value, name)
            if found is MISSING:
                raise EvaluationError.no_such_key(name)
            return found

        return self.step(run, node.operand)

    def has(self, node: nodes.Has) -> Run:
        operand, name = self.compile(node.operand), node.field

        def run(frame: Frame) -> Value:
            value = operand(frame)
            if type(value) is Optional:
                value = value.value
            # A value without fields does not have this one; only a list raises.
            return isinstance(value, dict | CelDevice | list) and closures.select(value, name) is not MISSING

        return run

    def index(self, node: nodes.Index) -> Run:
        operand, key = self.compile(node.operand), self.inner(node.key)
        if isinstance(node.key, nodes.Literal) and isinstance(node.key.value, str) and not node.optional:
            return self.step(closures.index_by_name(operand, node.key.value), node.operand)

        def run(frame: Frame) -> Value:
            value, at = operand(frame), key(frame)
            if type(value) is Optional:
                return closures.optional(values.find(value.value, at)) if value.present else NONE
            return values.at(value, at)

        def optional(frame: Frame) -> Value:
            value, at = operand(frame), key(frame)
            if type(value) is Optional:
                if not value.present:
                    return NONE
                value = value.value
            return closures.optional(values.find(value, at))

        return self.step(optional if node.optional else run, node.operand, optional=node.optional)

    # -- calls

    def call(self, node: nodes.Call) -> Run:
        count, target = len(node.args), node.target
        if target is not None:
            prefix = _dotted(target)
            if prefix and (function := functions.GLOBAL.get(f"{prefix}.{node.function}", {}).get(count)):
                return self.plain_call(node, f"{prefix}.{node.function}", function)
            if node.function in ("or", "orValue"):
                return closures.or_else(node.function, self.compile(target), self.compile(node.args[0]))
            return self.operation(node, node.function, functions.MEMBER[node.function][count], (target, *node.args))
        return self.plain_call(node, node.function, functions.GLOBAL[node.function][count])

    def plain_call(self, node: nodes.Call, name: str, function: Function) -> Run:
        if all(map(_is_constant, node.args)) and (self.places is None or name in runtime_cost.FOLDED):
            try:
                return closures.constant(function(*[self.compile(arg)([]) for arg in node.args]))
            except EvaluationError:
                pass  # an error for each device on which it is evaluated, not for the selector
        return self.operation(node, name, function, node.args)

    # -- literals

    def list_literal(self, node: nodes.ListLiteral) -> Run:
        items = [(self.compile(item), at in node.optional) for at, item in enumerate(node.items)]
        if _is_constant(node):
            return closures.constant([run([]) for run, _ in items])

        def run(frame: Frame) -> Value:
            made = list[Value]()
            for item, optional in items:
                value = item(frame)
                if not optional:
                    made.append(value)
                elif type(value) is not Optional:
                    raise EvaluationError(f"cannot initialize optional list element from {values.type_name(value)}")
                elif value.present:
                    made.append(value.value)
            return made

        return self.priced(run, runtime_cost.LIST)

    def map_literal(self, node: nodes.MapLiteral) -> Run:
        entries = [(self.compile(entry.key), self.compile(entry.value), entry.optional) for entry in node.entries]

        def run(frame: Frame) -> Value:
            made = dict[Value, Value]()
            for key, value, optional in entries:
                name, item = key(frame), value(frame)
                if optional:
                    if type(item) is not Optional:
                        raise EvaluationError(f"cannot initialize optional entry from {values.type_name(item)}")
                    if not item.present:
                        continue
                    item = item.value
                made[values.to_key(name)] = item  # of a duplicate key the last value counts
            return made

        return run if _is_constant(node) else self.priced(run, runtime_cost.MAP)

    # -- macros

    def within(self, body: Node | None, variables: dict[str, Run]) -> Run:
        """Compile a body with these additional variables."""
        outer, self.scope = self.scope, {**self.scope, **variables}
        try:
            return self.compile(body) if body is not None else closures.constant(True)
        finally:
            self.scope = outer

    def slot(self) -> int:
        self.slots += 1
        return FIRST_SLOT + self.slots - 1

    def comprehension(self, node: nodes.Comprehension) -> Run:
        items = self.compile(node.range)
        first = self.slot()
        second = self.slot() if node.second is not None else None
        variables: dict[str, Run] = {node.first: operator.itemgetter(first)}
        if node.second is not None and second is not None:
            variables[node.second] = operator.itemgetter(second)
        iterations, name = closures.iterations(items, first, second), node.macro
        body = self.priced(self.within(node.body, variables), runtime_cost.TURN[name])
        match name:
            case "all" | "exists":
                again = runtime_cost.AGAIN[name] if self.places is not None else 0
                run = closures.quantified(iterations, body, stop=name == "exists", name=name, again=again)
                return self.priced(run, runtime_cost.END[name])
            case "exists_one":
                one = self.chosen("exists_one", body, 2)
                return self.priced(lambda frame: sum(one(frame) for _ in iterations(frame)) == 1, runtime_cost.END[name])
            case "filter":
                keep = self.chosen("filter", body, runtime_cost.LIST + 3)
                return self.priced(
                    lambda frame: [frame[first] for _ in iterations(frame) if keep(frame)], runtime_cost.END[name])
        condition = self.chosen(name, self.within(node.condition, variables), 0)
        if name == "transformMap":
            return self.priced(
                lambda frame: {values.to_key(frame[first]): body(frame) for _ in iterations(frame) if condition(frame)},
                runtime_cost.END[name],
            )
        if name == "transformMapEntry":
            return self.priced(closures.merged(iterations, condition, body), runtime_cost.END[name])
        return self.priced(lambda frame: [body(frame) for _ in iterations(frame) if condition(frame)], runtime_cost.END[name])

    def chosen(self, name: str, condition: Run, price: int) -> Callable[[Frame], bool]:
        """A condition that must be a bool; true has a price."""

        def run(frame: Frame) -> bool:
            return closures.want_bool(name, condition(frame))

        def counted(frame: Frame) -> bool:
            answer = run(frame)
            closures.spend(frame, price if answer else 0)
            return answer

        return run if self.places is None else counted

    def bind(self, node: nodes.Bind) -> Run:
        value, slot = self.compile(node.value), self.slot()

        def read(frame: Frame) -> Value:
            known = frame[slot]
            if known is _UNSET:
                known = frame[slot] = value(frame)
            return known

        body = self.within(node.body, {node.name: read})

        def run(frame: Frame) -> Value:
            frame[slot] = _UNSET
            return body(frame)

        return run

    def opt_map(self, node: nodes.OptMap) -> Run:
        target, slot, flat = self.compile(node.target), self.slot(), node.flat
        body = self.within(node.body, {node.name: operator.itemgetter(slot)})
        name, counting = "optFlatMap" if flat else "optMap", self.places is not None

        def run(frame: Frame) -> Value:
            before = frame[closures.BUDGET]
            value = target(frame)
            if type(value) is not Optional:
                raise values.no_such_overload(name, value)
            if not value.present:
                if counting:
                    closures.spend(frame, 1)
                return NONE
            frame[slot] = value.value
            if counting:  # Kubernetes evaluates the target a second time, for its value
                closures.spend(frame, before - frame[closures.BUDGET] + (1 if flat else 2))
            result = body(frame)
            if not flat:
                return Optional(True, result)
            if type(result) is not Optional:
                raise values.no_such_overload(name, result)
            return result

        return self.priced(run, 1)

    def sort_by(self, node: nodes.SortBy) -> Run:
        target, slot = self.compile(node.target), self.slot()
        body = self.within(node.body, {node.name: operator.itemgetter(slot)})
        key = self.priced(body, runtime_cost.TURN["map"])
        counting = self.places is not None

        def run(frame: Frame) -> Value:
            items, keys = target(frame), list[Value]()
            for frame[slot] in items if type(items) is list else ():
                keys.append(key(frame))
            result = lists.sort_by(items, keys)
            if counting:
                closures.spend(frame, runtime_cost.charge("@sortByAssociatedKeys", ())([items, keys], result))
            return result

        return self.priced(run, 3)


def _dotted(node: Node) -> str:
    """`a.b.c` as text, when the node consists of names only; empty otherwise."""
    if isinstance(node, nodes.Ident):
        return node.name
    if isinstance(node, nodes.Select) and not node.optional and (prefix := _dotted(node.operand)):
        return f"{prefix}.{node.field}"
    return ""


def _is_lookup(node: Node) -> bool:
    return isinstance(node, nodes.Ident | nodes.Select | nodes.Index)


def _type_value(name: str) -> TypeValue:
    return TypeValue({"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}.get(name, name))


def _is_constant(node: Node) -> bool:
    """Whether the node is a constant, which is built once and costs nothing."""
    match node:
        case nodes.Literal():
            return True
        case nodes.ListLiteral():
            return not node.optional and all(map(_is_constant, node.items))
        case nodes.MapLiteral():
            return all(not one.optional and _is_constant(one.key) and _is_constant(one.value) for one in node.entries)
        case nodes.Call():
            return node.target is None and node.function in runtime_cost.FOLDED and all(map(_is_constant, node.args))
    return False
