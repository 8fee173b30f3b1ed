"""The syntax tree of an expression, created by the parser. `macro_expansion`, `field_usage` and the compiler walk it;
`children` lists the direct children of a node."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    pos: int
    value: bool | int | float | str | bytes | None  # an unsigned number is a UInt


@dataclass(frozen=True, slots=True)
class Ident:
    pos: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`operand.field`, or `operand.?field` when optional."""

    pos: int
    operand: Node
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """`operand[key]`, or `operand[?key]` when optional."""

    pos: int
    operand: Node
    key: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """`function(args)`, or `target.function(args)`. A namespace (`sets.contains`) is still a target here."""

    pos: int
    function: str
    target: Node | None
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ListLiteral:
    pos: int
    items: tuple[Node, ...]
    optional: frozenset[int]  # positions of items written `?item`


@dataclass(frozen=True, slots=True)
class MapEntry:
    key: Node
    value: Node
    optional: bool  # written `?key: value`


@dataclass(frozen=True, slots=True)
class MapLiteral:
    pos: int
    entries: tuple[MapEntry, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """`!operand` or `-operand`; double signs are removed."""

    pos: int
    op: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator that needs both sides: comparison, arithmetic, `in`."""

    pos: int
    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Logical:
    """A whole chain of `&&` or of `||`, kept flat, so that many conditions are not deeply nested."""

    pos: int
    op: str
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    pos: int
    condition: Node
    yes: Node
    no: Node


@dataclass(frozen=True, slots=True)
class Has:
    """`has(operand.field)`."""

    pos: int
    operand: Node
    field: str


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`range.macro(first[, second][, condition], body)`. One variable is the element or key, two are index or
    key and value."""

    pos: int
    macro: str  # all, exists, exists_one, map, filter, transformList, transformMap, transformMapEntry
    range: Node
    first: str
    second: str | None
    condition: Node | None  # of map and the transforms, which may filter
    body: Node


@dataclass(frozen=True, slots=True)
class Bind:
    """`cel.bind(name, value, body)`; the value is evaluated on first use."""

    pos: int
    name: str
    value: Node
    body: Node


@dataclass(frozen=True, slots=True)
class OptMap:
    """`target.optMap(name, body)`, or `optFlatMap` when flat: the body gives an optional itself."""

    pos: int
    target: Node
    name: str
    body: Node
    flat: bool


@dataclass(frozen=True, slots=True)
class SortBy:
    """`target.sortBy(name, body)`: the items sorted by the result of the body."""

    pos: int
    target: Node
    name: str
    body: Node


Node: typing.TypeAlias = (
    Literal
    | Ident
    | Select
    | Index
    | Call
    | ListLiteral
    | MapLiteral
    | Unary
    | Binary
    | Logical
    | Conditional
    | Has
    | Comprehension
    | Bind
    | OptMap
    | SortBy
)


def children(node: Node) -> Iterator[Node]:
    """The direct children of a node, in the order of the text."""
    match node:
        case Literal() | Ident():
            pass
        case Select() | Unary() | Has():
            yield node.operand
        case Index():
            yield from (node.operand, node.key)
        case Call():
            if node.target is not None:
                yield node.target
            yield from node.args
        case ListLiteral():
            yield from node.items
        case MapLiteral():
            for entry in node.entries:
                yield from (entry.key, entry.value)
        case Binary():
            yield from (node.left, node.right)
        case Logical():
            yield from node.terms
        case Conditional():
            yield from (node.condition, node.yes, node.no)
        case Comprehension():
            yield node.range
            if node.condition is not None:
                yield node.condition
            yield node.body
        case Bind():
            yield from (node.value, node.body)
        case OptMap() | SortBy():
            yield from (node.target, node.body)
