"""The tree with every macro expanded, for the checker and the cost estimate.

Kubernetes checks and estimates the expansion of macros: `a.exists(x, p)` is a fold over `a`, `cel.bind` a fold over nothing.
The compiler does not need this and works from the parser's tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from outfitter.cel import nodes, types
from outfitter.cel.types import Type
from outfitter.cel.values import Value

ACCUMULATOR = "@result"
UNUSED = "#unused"


@dataclass(slots=True, eq=False)
class Node:
    pos: int  # position of the node, or of the macro that it comes from
    type: Type = field(init=False, default=types.ERROR)  # set by the checker


@dataclass(slots=True, eq=False)
class Const(Node):
    value: Value


@dataclass(slots=True, eq=False)
class Name(Node):
    name: str


@dataclass(slots=True, eq=False)
class ExpandedSelect(Node):
    operand: Expr
    name: str
    test: bool = False  # has(operand.name)
    qualified: bool = field(init=False, default=False)  # set by the checker: the whole is a qualified name, such as net.IP


@dataclass(slots=True, eq=False)
class ExpandedCall(Node):
    function: str  # operators have names such as _+_
    target: Expr | None
    args: tuple[Expr, ...]
    overloads: tuple[str, ...] = field(init=False, default=())  # set by the checker: the matching ones


@dataclass(slots=True, eq=False)
class MakeList(Node):
    items: tuple[Expr, ...]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MakeMap(Node):
    entries: tuple[tuple[Expr, Expr, bool], ...]  # key, value, optional


@dataclass(slots=True, eq=False)
class Fold(Node):
    """Iterate over `range` with one or two variables; `accumulator` starts as `init` and becomes `step` while `condition` is
    true."""

    range: Expr
    first: str
    second: str | None
    accumulator: str
    init: Expr
    condition: Expr
    step: Expr
    result: Expr
    bind: bool = False  # cel.bind and similar: no loop, the accumulator is the bound variable


Expr: TypeAlias = Const | Name | ExpandedSelect | ExpandedCall | MakeList | MakeMap | Fold


def children(node: Expr) -> Sequence[Expr]:
    match node:
        case ExpandedSelect():
            return (node.operand,)
        case ExpandedCall():
            return node.args if node.target is None else (node.target, *node.args)
        case MakeList():
            return node.items
        case MakeMap():
            return [one for key, value, _ in node.entries for one in (key, value)]
        case Fold():
            return (node.range, node.init, node.condition, node.step, node.result)
    return ()


def expand(node: nodes.Node) -> Expr:
    """The tree of the parser with its macros expanded."""
    match node:
        case nodes.Literal():
            return Const(node.pos, node.value)
        case nodes.Ident():
            return Name(node.pos, node.name)
        case nodes.Select():
            operand = expand(node.operand)
            if node.optional:
                return ExpandedCall(node.pos, "_?._", None, (operand, Const(node.pos, node.field)))
            return ExpandedSelect(node.pos, operand, node.field)
        case nodes.Has():
            return ExpandedSelect(node.pos, expand(node.operand), node.field, test=True)
        case nodes.Index():
            return ExpandedCall(node.pos, "_[?_]" if node.optional else "_[_]", None, (expand(node.operand), expand(node.key)))
        case nodes.Call():
            target = expand(node.target) if node.target is not None else None
            return ExpandedCall(node.pos, node.function, target, tuple(map(expand, node.args)))
        case nodes.ListLiteral():
            return MakeList(node.pos, tuple(map(expand, node.items)), node.optional)
        case nodes.MapLiteral():
            return MakeMap(node.pos, tuple((expand(one.key), expand(one.value), one.optional) for one in node.entries))
        case nodes.Unary():
            return ExpandedCall(node.pos, f"{node.op}_", None, (expand(node.operand),))
        case nodes.Binary():
            name = "@in" if node.op == "in" else f"_{node.op}_"
            return ExpandedCall(node.pos, name, None, (expand(node.left), expand(node.right)))
        case nodes.Logical():
            return ExpandedCall(node.pos, f"_{node.op}_", None, tuple(map(expand, node.terms)))
        case nodes.Conditional():
            return ExpandedCall(node.pos, "_?_:_", None, (expand(node.condition), expand(node.yes), expand(node.no)))
        case nodes.Bind():
            return _bind(node.pos, node.name, expand(node.value), expand(node.body))
        case nodes.OptMap():
            return _optional_map(node)
        case nodes.SortBy():
            return _sort_by(node)
        case nodes.Comprehension():
            return _fold(node)


def _bind(pos: int, name: str, value: Expr, body: Expr) -> Fold:
    nothing = MakeList(pos, ())
    return Fold(pos, nothing, UNUSED, None, name, value, Const(pos, False), Name(pos, name), body, bind=True)


def _optional_map(node: nodes.OptMap) -> Expr:
    pos = node.pos
    has = ExpandedCall(pos, "hasValue", expand(node.target), ())
    made: Expr = _bind(pos, node.name, ExpandedCall(pos, "value", expand(node.target), ()), expand(node.body))
    if not node.flat:
        made = ExpandedCall(pos, "optional.of", None, (made,))
    return ExpandedCall(pos, "_?_:_", None, (has, made, ExpandedCall(pos, "optional.none", None, ())))


def _sort_by(node: nodes.SortBy) -> Expr:
    pos, name = node.pos, "@sortBy"
    keys = _appending(_Loop(pos, Name(pos, name), node.name), expand(node.body))
    return _bind(pos, name, expand(node.target), ExpandedCall(pos, "@sortByAssociatedKeys", Name(pos, name), (keys,)))


@dataclass(frozen=True, slots=True)
class _Loop:
    """The common parts of a loop."""

    pos: int
    over: Expr
    first: str
    second: str | None = None
    condition: Expr | None = None  # of macros that may filter

    @property
    def made(self) -> Name:
        return Name(self.pos, ACCUMULATOR)

    def fold(self, init: Expr, step: Expr, *, goes_on: Expr | None = None, result: Expr | None = None) -> Fold:
        if self.condition is not None:
            step = ExpandedCall(self.pos, "_?_:_", None, (self.condition, step, self.made))
        goes_on = goes_on or Const(self.pos, True)
        return Fold(self.pos, self.over, self.first, self.second, ACCUMULATOR, init, goes_on, step, result or self.made)


def _appending(loop: _Loop, item: Expr) -> Fold:
    step = ExpandedCall(loop.pos, "_+_", None, (loop.made, MakeList(item.pos, (item,))))
    return loop.fold(MakeList(loop.pos, ()), step)


def _fold(node: nodes.Comprehension) -> Fold:
    pos, body = node.pos, expand(node.body)
    condition = expand(node.condition) if node.condition is not None else None
    loop = _Loop(pos, expand(node.range), node.first, node.second, condition)
    match node.macro:
        case "all" | "exists":
            every = node.macro == "all"
            going: Expr = loop.made if every else ExpandedCall(pos, "!_", None, (loop.made,))
            goes_on = ExpandedCall(pos, "@not_strictly_false", None, (going,))
            step = ExpandedCall(pos, "_&&_" if every else "_||_", None, (loop.made, body))
            return loop.fold(Const(pos, every), step, goes_on=goes_on)
        case "exists_one":
            more = ExpandedCall(pos, "_+_", None, (loop.made, Const(pos, 1)))
            step = ExpandedCall(pos, "_?_:_", None, (body, more, loop.made))
            return loop.fold(Const(pos, 0), step, result=ExpandedCall(pos, "_==_", None, (loop.made, Const(pos, 1))))
        case "filter":
            return _appending(_Loop(pos, loop.over, node.first, condition=body), Name(pos, node.first))
        case "transformMap":
            insert = ExpandedCall(pos, "cel.@mapInsert", None, (loop.made, Name(pos, node.first), body))
            return loop.fold(MakeMap(pos, ()), insert)
        case "transformMapEntry":
            return loop.fold(MakeMap(pos, ()), ExpandedCall(pos, "cel.@mapInsert", None, (loop.made, body)))
    return _appending(loop, body)
