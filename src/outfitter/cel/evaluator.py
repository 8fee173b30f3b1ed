"""A tree to Python closures: compiled once, run for every device.

Names, functions and fields are resolved while compiling, so that what is unknown is refused before any device is
asked. What the closures do is in `closures`."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outfitter import errors
from outfitter.cel import closures, lexer, library, parser, values
from outfitter.cel.closures import DEVICE, FIELDS, FIRST_SLOT, LIMIT, TURN, Frame, Run
from outfitter.cel.device import Device
from outfitter.cel.lexer import Source
from outfitter.cel.parser import Node
from outfitter.cel.values import MISSING, NONE, Optional, OutOfBudget, Value
from outfitter.errors import EvaluationError

_UNSET = object()  # a cel.bind variable nobody has looked at yet


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. It keeps no state between devices and may be shared."""

    text: str
    tree: Node = field(repr=False, compare=False)
    run: Run = field(repr=False, compare=False)
    slots: int = field(repr=False, compare=False)

    def matches(self, device: Device) -> bool:
        """Ask it of one device; EvaluationError when the device gives it no answer."""
        frame: Frame = [device, LIMIT, *(None,) * self.slots]
        try:
            result = self.run(frame)
        except OutOfBudget:
            raise EvaluationError(
                f"actual cost limit exceeded: the expression takes more than {LIMIT} steps on this device; "
                "loop over fewer items or nest fewer loops"
            ) from None
        except RecursionError:
            raise EvaluationError("the expression nests too deeply to be evaluated") from None
        if result is True or result is False:
            return bool(result)
        raise EvaluationError(
            f"CEL result of type {values.type_name(result)} could not be converted to bool: "
            'end the expression with a comparison, such as == "x"'
        )


def compile_selector(text: str) -> Selector:
    """Compile a selector, or raise Invalid saying where it is wrong and what would be right."""
    size = len(text.encode(errors="surrogatepass"))
    if size > lexer.MAX_BYTES:
        message = f"the expression has {size} bytes; at most {lexer.MAX_BYTES} are allowed: split it into several selectors"
        raise errors.Invalid(message, [errors.Cause("expression", message, "FieldValueTooLong")])
    source = Source(text)
    tree = parser.parse(source)
    compiler = _Compiler(source)
    try:
        run = compiler.compile(tree)
    except RecursionError:
        raise source.invalid(0, "the expression nests too deeply: take brackets away or split it") from None
    return Selector(text, tree, run, compiler.slots)


class _Compiler:
    """Turns nodes into closures. `scope` maps each visible variable to the closure that reads it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.slots = 0
        self.scope: dict[str, Run] = {}

    def compile(self, node: Node) -> Run:
        match node:
            case parser.Literal():
                return closures.constant(node.value)
            case parser.Ident():
                return self.ident(node)
            case parser.Select():
                return self.select(node)
            case parser.Index():
                return self.index(node)
            case parser.Call():
                return self.call(node)
            case parser.ListLiteral():
                return self.list_literal(node)
            case parser.MapLiteral():
                return self.map_literal(node)
            case parser.Unary():
                return (
                    closures.negated_bool(self.compile(node.operand))
                    if node.op == "!"
                    else closures.negated(self.compile(node.operand))
                )
            case parser.Binary():
                return closures.binary(node.op, self.compile(node.left), self.compile(node.right))
            case parser.Logical():
                return closures.logical([self.compile(term) for term in node.terms], stop=node.op == "||", name=node.op)
            case parser.Conditional():
                return closures.conditional(self.compile(node.condition), self.compile(node.yes), self.compile(node.no))
            case parser.Has():
                return self.has(node)
            case parser.Comprehension():
                return self.comprehension(node)
            case parser.Bind():
                return self.bind(node)
            case parser.OptMap():
                return self.opt_map(node)

    # -- names and fields

    def ident(self, node: parser.Ident) -> Run:
        if run := self.scope.get(node.name):
            return run
        if node.name == "device":
            return operator.itemgetter(DEVICE)
        near = _meant(node.name, ["device", *self.scope])
        raise self.source.invalid(
            node.pos, f"undeclared reference to '{node.name}': a selector knows the variable device{near}"
        )

    def is_device(self, node: Node) -> bool:
        return isinstance(node, parser.Ident) and node.name == "device" and "device" not in self.scope

    def check_field(self, node: parser.Select | parser.Has) -> None:
        if self.is_device(node.operand) and node.field not in FIELDS:
            raise self.source.invalid(
                node.pos, f"undefined field '{node.field}': device has {', '.join(FIELDS)}{_meant(node.field, FIELDS)}"
            )

    def select(self, node: parser.Select) -> Run:
        self.check_field(node)
        name = node.field
        if self.is_device(node.operand) and not node.optional:
            of_device = operator.attrgetter(FIELDS[name])
            return lambda frame: of_device(frame[DEVICE])
        operand = self.compile(node.operand)
        if node.optional:
            return closures.optional_select(operand, name)

        def run(frame: Frame) -> Value:
            value = operand(frame)
            if type(value) is dict:
                try:
                    return value[name]
                except KeyError:
                    raise EvaluationError(f"no such key: {name}") from None
            if type(value) is Optional:
                return closures.optional(closures.select(value.value, name)) if value.present else NONE
            found = closures.select(value, name)
            if found is MISSING:
                raise EvaluationError(f"no such key: {name}")
            return found

        return run

    def has(self, node: parser.Has) -> Run:
        self.check_field(node)
        operand, name = self.compile(node.operand), node.field

        def run(frame: Frame) -> Value:
            value = operand(frame)
            if type(value) is Optional:
                return value.present and closures.select(value.value, name) is not MISSING
            return closures.select(value, name) is not MISSING

        return run

    def index(self, node: parser.Index) -> Run:
        if self.is_device(node.operand):
            raise self.source.invalid(
                node.pos, "device is not a map: write device.attributes, device.capacity or device.driver"
            )
        operand, key = self.compile(node.operand), self.compile(node.key)
        if isinstance(node.key, parser.Literal) and isinstance(node.key.value, str) and not node.optional:
            return closures.index_by_name(operand, node.key.value)

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

        return optional if node.optional else run

    # -- calls

    def call(self, node: parser.Call) -> Run:
        target = node.target
        if isinstance(target, parser.Ident) and target.name in library.NAMESPACES and target.name not in self.scope:
            return self.plain_call(node, f"{target.name}.{node.function}")
        if target is None:
            return self.plain_call(node, node.function)
        if node.function in ("or", "orValue") and len(node.args) == 1:
            return closures.or_else(node.function, self.compile(target), self.compile(node.args[0]))
        function = self.function(node, node.function, library.MEMBER)
        self.check_pattern(node, node.args[:1])
        return closures.member_call(function, self.compile(target), [self.compile(arg) for arg in node.args])

    def plain_call(self, node: parser.Call, name: str) -> Run:
        function = self.function(node, name, library.GLOBAL)
        if name == "matches":
            self.check_pattern(node, node.args[1:])
        args = [self.compile(arg) for arg in node.args]
        literals = [arg.value for arg in node.args if isinstance(arg, parser.Literal)]
        if len(literals) == len(args):
            try:
                return closures.constant(function(*literals))
            except EvaluationError:
                pass  # it is an error for each device that gets this far, not for the selector
        return closures.plain_call(function, args)

    def function(self, node: parser.Call, name: str, table: dict[str, dict[int, library.Function]]) -> library.Function:
        """The function of that name, or an error that tells near misses apart."""
        overloads = table.get(name, {})
        if function := overloads.get(len(node.args)):
            return function
        method = table is library.MEMBER
        if overloads:
            counts = " or ".join(map(str, overloads))
            message = f"found no matching overload for '{name}': it takes {counts} argument(s), not {len(node.args)}"
        elif usage := _MACROS.get(name):
            message = f"undeclared reference to '{name}' with {len(node.args)} arguments: write {usage}"
        elif part := library.unsupported(name):
            message = f"the function '{name}' ({part}) is not supported in device selectors yet"
        elif name in (library.GLOBAL if method else library.MEMBER):
            usage = f"{name}(x)" if method else f"x.{name}(...)"
            message = f"undeclared reference to '{name}': write {usage}"
        else:
            message = f"undeclared reference to '{name}': there is no such function{_meant(name, table)}"
        raise self.source.invalid(node.pos, message)

    def check_pattern(self, node: parser.Call, args: Sequence[Node]) -> None:
        """A pattern written out is compiled now, so that a bad one is refused with its place."""
        if node.function in ("matches", "find", "findAll") and args and isinstance(args[0], parser.Literal):
            pattern = args[0].value
            if isinstance(pattern, str):
                try:
                    library.regex(pattern)
                except EvaluationError as error:
                    raise self.source.invalid(args[0].pos, error.message) from error

    # -- literals

    def list_literal(self, node: parser.ListLiteral) -> Run:
        items = [(self.compile(item), at in node.optional) for at, item in enumerate(node.items)]
        if all(isinstance(item, parser.Literal) for item in node.items) and not node.optional:
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

        return run

    def map_literal(self, node: parser.MapLiteral) -> Run:
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
                closures.insert(made, name, item)
            return made

        return run

    # -- macros

    def within(self, body: Node | None, variables: dict[str, Run]) -> Run:
        """Compile a body that sees these variables as well."""
        outer, self.scope = self.scope, {**self.scope, **variables}
        try:
            return self.compile(body) if body is not None else closures.constant(True)
        finally:
            self.scope = outer

    def slot(self) -> int:
        self.slots += 1
        return FIRST_SLOT + self.slots - 1

    def comprehension(self, node: parser.Comprehension) -> Run:
        if node.first == node.second:
            raise self.source.invalid(node.pos, f"{node.macro} needs two different variable names, not '{node.first}' twice")
        items = self.compile(node.range)
        first = self.slot()
        second = self.slot() if node.second is not None else None
        variables: dict[str, Run] = {node.first: operator.itemgetter(first)}
        if node.second is not None and second is not None:
            variables[node.second] = operator.itemgetter(second)
        body = self.within(node.body, variables)
        turns = closures.turns(items, first, second, TURN[node.macro])
        match node.macro:
            case "all" | "exists":
                return closures.quantified(turns, body, stop=node.macro == "exists", name=node.macro)
            case "exists_one":
                return lambda frame: sum(closures.want_bool("exists_one", body(frame)) for _ in turns(frame)) == 1
            case "filter":
                return lambda frame: [frame[first] for _ in turns(frame) if closures.want_bool("filter", body(frame))]
        name, condition = node.macro, self.within(node.condition, variables)
        if node.macro == "transformMap":
            return lambda frame: {
                values.to_key(frame[first]): body(frame) for _ in turns(frame) if closures.want_bool(name, condition(frame))
            }
        return lambda frame: [body(frame) for _ in turns(frame) if closures.want_bool(name, condition(frame))]

    def bind(self, node: parser.Bind) -> Run:
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

    def opt_map(self, node: parser.OptMap) -> Run:
        target, slot, flat = self.compile(node.target), self.slot(), node.flat
        body = self.within(node.body, {node.name: operator.itemgetter(slot)})
        name = "optFlatMap" if flat else "optMap"

        def run(frame: Frame) -> Value:
            value = target(frame)
            if type(value) is not Optional:
                raise values.no_such_overload(name, value)
            if not value.present:
                return NONE
            frame[slot] = value.value
            result = body(frame)
            if not flat:
                return Optional(True, result)
            if type(result) is not Optional:
                raise values.no_such_overload(name, result)
            return result

        return run


_MACROS = {
    "has": "has(a.b)",
    "all": "x.all(item, condition)",
    "exists": "x.exists(item, condition)",
    "exists_one": "x.exists_one(item, condition)",
    "existsOne": "x.existsOne(item, condition)",
    "map": "x.map(item, value)",
    "filter": "x.filter(item, condition)",
    "transformList": "x.transformList(index, item, value)",
    "transformMap": "x.transformMap(key, item, value)",
    "optMap": "x.optMap(item, value)",
    "optFlatMap": "x.optFlatMap(item, value)",
    "or": "x.or(other)",
    "orValue": "x.orValue(default)",
    "cel.bind": "cel.bind(name, value, expression)",
}


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ""
