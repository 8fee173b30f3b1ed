"""The type checker: rejects expressions that cannot work for any device. Called by `evaluator`.

Walks the expanded tree, and sets the type of every node and the matching overloads of every call, which `cost_estimate`
reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outfitter import errors
from outfitter.cel import declarations, macro_expansion, types
from outfitter.cel.checker_hints import did_you_mean, function_hint, operator_hint, struct_usage, type_hint
from outfitter.cel.declarations import CelFeatures, Overload
from outfitter.cel.lexer import Source
from outfitter.cel.library import functions, string_format, strings
from outfitter.cel.types import Bindings, Type
from outfitter.errors import EvaluationError

_LITERALS: dict[str, Type] = {
    "bool": types.BOOL, "int": types.INT, "UInt": types.UINT, "float": types.DOUBLE, "str": types.STRING,
    "bytes": types.BYTES, "NoneType": types.NULL,
}  # fmt: skip
# Macros and their syntax; they are not in the table of functions.
MACROS = {
    "has": "has(a.b)",
    "all": "x.all(item, condition)",
    "exists": "x.exists(item, condition)",
    "exists_one": "x.exists_one(item, condition)",
    "existsOne": "x.exists_one(item, condition)",
    "map": "x.map(item, value)",
    "filter": "x.filter(item, condition)",
    "sortBy": "x.sortBy(item, key)",
    "transformList": "x.transformList(index, item, value)",
    "transformMap": "x.transformMap(key, item, value)",
    "transformMapEntry": "x.transformMapEntry(key, item, {key: value})",
    "optMap": "x.optMap(item, value)",
    "optFlatMap": "x.optFlatMap(item, value)",
    "cel.bind": "cel.bind(name, value, expression)",
}


def check(source: Source, root: macro_expansion.Expr, features: CelFeatures) -> Type:
    """Check the tree and return the type of its result; raise Invalid at the first mistake."""
    checker = _Checker(source, features)
    checker.check(root)
    checker.resolve_variables(root)
    checker.validate(root, mixed=False)
    result = root.type
    attribute = types.DYN if features.list_attributes else types.ANY
    if result not in (types.BOOL, attribute):
        raise source.invalid(
            root.pos,
            f"must evaluate to bool or the unknown type, not {result}: a selector answers yes or no, "
            "so end it with a comparison, such as == 1",
        )
    return result


class _Checker:
    def __init__(self, source: Source, features: CelFeatures) -> None:
        self.source = source
        self.functions = declarations.functions(features)
        self.fields = declarations.device_fields(features)
        self.features = features
        self.scope: dict[str, Type] = {"device": types.DEVICE}
        self.bindings: Bindings = {}
        self.free = 0  # number of type variables created

    def check(self, node: macro_expansion.Expr) -> None:
        match node:
            case macro_expansion.Const():
                node.type = _LITERALS[type(node.value).__name__]
            case macro_expansion.Name():
                node.type = self.name(node)
            case macro_expansion.ExpandedSelect():
                self.select(node)
            case macro_expansion.ExpandedCall():
                self.call(node)
            case macro_expansion.MakeList():
                self.make_list(node)
            case macro_expansion.MakeMap():
                self.make_map(node)
            case macro_expansion.Fold():
                self.fold(node)

    def resolve_variables(self, node: macro_expansion.Expr) -> None:
        """Replace type variables by their bindings; unbound ones become dyn."""
        pending = [node]
        while pending:
            current = pending.pop()
            if current.type.open:
                current.type = types.substitute(self.bindings, current.type, free=types.DYN)
            pending.extend(macro_expansion.children(current))

    # -- names and fields

    def name(self, node: macro_expansion.Name) -> Type:
        if known := self.scope.get(node.name):
            return known
        if named := declarations.TYPE_NAMES.get(node.name):
            return types.type_of(named)
        near = did_you_mean(node.name, self.scope)
        variables = " and ".join(name for name in self.scope if name.isidentifier())
        raise self.source.invalid(node.pos, f"undeclared reference to '{node.name}': known here is {variables}{near}")

    def select(self, node: macro_expansion.ExpandedSelect) -> None:
        if not node.test and (named := declarations.TYPE_NAMES.get(dotted(node) or "")):
            node.type = types.type_of(named)
            node.qualified = True
            return
        result = self.field(node, node.operand, node.name, optional=False)
        node.type = types.BOOL if node.test else result

    def field(self, node: macro_expansion.Expr, operand: macro_expansion.Expr, name: str, *, optional: bool) -> Type:
        self.check(operand)
        held = types.substitute(self.bindings, operand.type)
        target = types.unwrapped(held)
        match target.kind:
            case "map":
                result = target.of[1]
            case "struct" if target == types.DEVICE:
                result = self.device_field(node.pos, name)
            case "param":
                self.fit(types.DYN, target)
                result = types.DYN
            case "dyn" | "any":
                result = types.DYN
            case "struct":
                usage = struct_usage(target)
                raise self.source.invalid(node.pos, f"undefined field '{name}': a {target} has functions only{usage}")
            case _:
                raise self.source.invalid(node.pos, self.no_fields(target, name))
        return types.optional_of(result) if optional or held.is_optional else result

    def device_field(self, pos: int, name: str) -> Type:
        if field_type := self.fields.get(name):
            return field_type
        if name in declarations.device_fields(declarations.NEWEST):
            raise self.source.invalid(pos, f"undefined field '{name}': the feature that brings it is switched off here")
        raise self.source.invalid(
            pos, f"undefined field '{name}': device has {', '.join(self.fields)}{did_you_mean(name, self.fields)}"
        )

    def no_fields(self, target: Type, name: str) -> str:
        problem = f"type '{target}' does not support field selection"
        if any(one.member and self.fit_trial([target], one.args[:1]) for one in self.functions.get(name, ())):
            return f"{problem}: '{name}' is a function, write .{name}(...)"
        return f"{problem}: only device and maps have fields"

    # -- calls

    def call(self, node: macro_expansion.ExpandedCall) -> None:
        if node.function == "_?._":
            operand, name = node.args
            assert isinstance(name, macro_expansion.Const)
            name.type = types.STRING
            node.type = types.substitute(self.bindings, self.field(node, operand, name.value, optional=True))
            node.overloads = ("select_optional_field",)
            return
        prefix = dotted(node.target) if node.target is not None else None
        for written in (node.function, f"{prefix}.{node.function}"):
            if written in MACROS and written not in self.functions:
                raise self.unknown(node, written)
        for arg in node.args:
            self.check(arg)
        if node.target is not None:
            if prefix is not None and f"{prefix}.{node.function}" in self.functions:
                node.function, node.target = f"{prefix}.{node.function}", None
            elif prefix is not None and prefix not in self.scope and _is_namespace(prefix, self.functions):
                raise self.unknown(node, f"{prefix}.{node.function}")
            else:
                self.check(node.target)
        overloads = self.functions.get(node.function)
        if overloads is None:
            raise self.unknown(node, node.function)
        self.resolve(node, overloads)

    def resolve(self, node: macro_expansion.ExpandedCall, overloads: Sequence[Overload]) -> None:
        args: tuple[macro_expansion.Expr, ...] = node.args if node.target is None else (node.target, *node.args)
        if node.function in ("_&&_", "_||_"):
            for arg in args:
                self.expect(arg, types.BOOL)
            node.type, node.overloads = types.BOOL, (overloads[0].id,)
            return
        given = [arg.type for arg in args]
        member, fitting, result = node.target is not None, list[str](), None
        for overload in overloads:
            if overload.member is not member or len(overload.args) != len(given) or types.hopeless(given, overload.args):
                continue
            wanted, gives = overload.args, overload.result
            if overload.params:
                fresh = {name: self.variable() for name in overload.params}
                wanted = tuple(types.substitute(fresh, one) for one in wanted)
                gives = types.substitute(fresh, gives)
            trial = dict(self.bindings)
            if not types.all_fit(trial, given, wanted):
                continue
            self.bindings = trial
            fitting.append(overload.id)
            gives = types.substitute(trial, gives)
            if result is None:
                result = gives
            elif not result.is_dyn and gives != result:
                result = types.DYN
        if result is None:
            raise self.no_overload(node, overloads, [types.substitute(self.bindings, one, free=types.DYN) for one in given])
        node.type, node.overloads = result, tuple(fitting)

    def expect(self, node: macro_expansion.Expr, wanted: Type) -> None:
        if not self.fit(node.type, wanted):
            found = types.substitute(self.bindings, node.type, free=types.DYN)
            raise self.source.invalid(node.pos, f"expected type '{wanted}' but found '{found}'{type_hint(wanted, found)}")

    def fit(self, given: Type, wanted: Type) -> bool:
        trial = dict(self.bindings)
        if not types.fits(trial, given, wanted):
            return False
        self.bindings = trial
        return True

    def fit_trial(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        return types.all_fit(dict(self.bindings), given, wanted)

    def variable(self) -> Type:
        self.free += 1
        return types.param(f"_{self.free}")

    # -- literals and loops

    def make_list(self, node: macro_expansion.MakeList) -> None:
        item: Type | None = None
        for at, one in enumerate(node.items):
            self.check(one)
            item = self.joined(item, self.held(one) if at in node.optional else one.type)
        node.type = types.list_of(item or self.variable())

    def make_map(self, node: macro_expansion.MakeMap) -> None:
        key: Type | None = None
        value: Type | None = None
        for name, item, optional in node.entries:
            self.check(name)
            key = self.joined(key, name.type)
            self.check(item)
            value = self.joined(value, self.held(item) if optional else item.type)
        node.type = types.map_of(key or self.variable(), value or self.variable())

    def held(self, node: macro_expansion.Expr) -> Type:
        """The item type of an item written `?item`, which must be an optional."""
        found = types.substitute(self.bindings, node.type)
        if not found.is_optional and not found.is_dyn:
            raise self.source.invalid(
                node.pos, f"expected type 'optional_type({found})' but found '{found}': take the ? away or write a.?b"
            )
        return types.unwrapped(found)

    def joined(self, one: Type | None, other: Type) -> Type:
        """The common type of two items; dyn for mixed ones, and `validate` decides whether that is allowed."""
        if one is None:
            return other
        return types.most_general(one, other) if self.fit(one, other) else types.DYN

    def fold(self, node: macro_expansion.Fold) -> None:
        self.check(node.range)
        self.check(node.init)
        over = types.substitute(self.bindings, node.range.type)
        match over.kind:
            case "list":
                first = over.of[0] if node.second is None else types.INT
                second = over.of[0]
            case "map":
                first, second = over.of
            case "dyn" | "param":
                self.fit(types.DYN, over)
                first = second = types.DYN
            case _:
                hint = ": switch on list attributes, or compare it as one value" if over == types.ANY else ""
                raise self.source.invalid(
                    node.range.pos,
                    f"expression of type '{over}' cannot be range of a comprehension (must be list, map, or dynamic){hint}",
                )
        outer, self.scope = self.scope, {**self.scope, node.accumulator: node.init.type}
        within = self.scope
        self.scope = {**within, node.first: first}
        if node.second is not None:
            self.scope[node.second] = second
        self.check(node.condition)
        self.expect(node.condition, types.BOOL)
        self.check(node.step)
        self.expect(node.step, node.init.type)
        self.scope = within
        self.check(node.result)
        self.scope = outer
        node.type = types.substitute(self.bindings, node.result.type)

    # -- checks beyond types

    def validate(self, node: macro_expansion.Expr, *, mixed: bool) -> None:
        """Literals hold one type of item, and what is written out (patterns, times, formats) can be read. `mixed`: below
        a call of format(), whose list may mix."""
        match node:
            case macro_expansion.MakeList() if not mixed:
                self.same([(one, at in node.optional) for at, one in enumerate(node.items)])
            case macro_expansion.MakeMap() if not mixed:
                self.same([(key, False) for key, _, _ in node.entries])
                self.same([(value, optional) for _, value, optional in node.entries])
            case macro_expansion.ExpandedCall():
                self.literal_arguments(node)
        for child in macro_expansion.children(node):
            self.validate(child, mixed=mixed or (isinstance(node, macro_expansion.ExpandedCall) and node.function == "format"))

    def same(self, items: Iterable[tuple[macro_expansion.Expr, bool]]) -> None:
        first: Type | None = None
        for item, optional in items:
            kind = types.unwrapped(item.type) if optional else item.type
            if first is not None and first != kind:
                raise self.source.invalid(
                    item.pos,
                    f"expected type '{first}' but found '{kind}': items of a list or map have one type{type_hint(first, kind)}",
                )
            first = first or kind

    def literal_arguments(self, node: macro_expansion.ExpandedCall) -> None:
        if (
            node.function == "format"
            and isinstance(node.target, macro_expansion.Const)
            and isinstance(node.args[0], macro_expansion.MakeList)
        ):
            self.format(node, node.target.value, node.args[0])
            return
        place = _PATTERNS.get((node.function, node.target is not None))
        if place is None and not (node.function in _CONVERSIONS and node.target is None and len(node.args) == 1):
            return
        arg = node.args[place or 0]
        if not isinstance(arg, macro_expansion.Const):
            return
        try:
            if place is None:
                functions.GLOBAL[node.function][1](arg.value)
            else:
                strings.regex(arg.value)
        except EvaluationError as error:
            raise self.source.invalid(arg.pos, error.message) from error

    def format(self, node: macro_expansion.ExpandedCall, text: str, args: macro_expansion.MakeList) -> None:
        try:
            clauses = string_format.parse(text)
        except EvaluationError as error:
            raise self.source.invalid(node.pos, error.message) from error
        wanted = [one for one in clauses if isinstance(one, string_format.Clause)]
        if len(wanted) != len(args.items):
            raise self.source.invalid(
                node.pos, f"the format has {len(wanted)} placeholder(s), but {len(args.items)} argument(s) follow"
            )
        for clause, arg in zip(wanted, args.items, strict=True):
            if arg.type != types.DYN and arg.type.kind not in string_format.TAKES[clause.verb]:
                raise self.source.invalid(
                    arg.pos,
                    f"%{clause.verb} formats {string_format.WANTS[clause.verb]}, not a {arg.type}: use %s for any value",
                )

    # -- messages

    def unknown(self, node: macro_expansion.ExpandedCall, name: str) -> errors.Invalid:
        if usage := MACROS.get(name):
            message = f"undeclared reference to '{name}' with {len(node.args)} arguments: write {usage}"
        elif name in declarations.functions(declarations.NEWEST):
            message = f"undeclared reference to '{name}': the feature that brings it is switched off here"
        else:
            names = [known for known in (*self.functions, *MACROS) if known[0].isalpha() and "@" not in known]
            message = f"undeclared reference to '{name}': there is no such function{did_you_mean(name, names)}"
        return self.source.invalid(node.pos, message)

    def no_overload(
        self, node: macro_expansion.ExpandedCall, overloads: Sequence[Overload], given: Sequence[Type]
    ) -> errors.Invalid:
        name, member = node.function, node.target is not None
        texts = [str(one) for one in given]
        applied = f"{texts[0]}.({', '.join(texts[1:])})" if member else f"({', '.join(texts)})"
        message = f"found no matching overload for '{name}' applied to '{applied}'"
        if name[0].isalpha():
            return self.source.invalid(node.pos, f"{message}: {function_hint(name, member, overloads, given)}")
        return self.source.invalid(node.pos, f"{message}: {operator_hint(name, given)}")


# Calls whose argument is read while compiling when it is written out: the place of a pattern, and conversions.
_PATTERNS = {("matches", True): 0, ("matches", False): 1, ("find", True): 0, ("findAll", True): 0}
_CONVERSIONS = frozenset(("bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"))


def dotted(node: macro_expansion.Expr) -> str | None:
    """`a.b.c` as text, when the node is nothing but names."""
    if isinstance(node, macro_expansion.Name):
        return node.name
    if isinstance(node, macro_expansion.ExpandedSelect) and not node.test:
        prefix = dotted(node.operand)
        return f"{prefix}.{node.name}" if prefix is not None else None
    return None


def _is_namespace(prefix: str, functions: Iterable[str]) -> bool:
    return prefix == "cel" or any(name.startswith(f"{prefix}.") for name in functions)
