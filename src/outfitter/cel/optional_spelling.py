"""How an expression must be written to hold for devices without an attribute: `.?name.orValue("")` in place of `.name`. By the
syntax tree; the text is for messages. Called by the allocator, which reports devices for which a selector has no result."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import NamedTuple

from outfitter.cel import nodes
from outfitter.cel.evaluator import Selector
from outfitter.cel.nodes import Node

_TEXT_FUNCTIONS = frozenset(("startsWith", "endsWith", "contains", "matches", "split", "lowerAscii", "upperAscii", "trim"))


class _Reference(NamedTuple):
    """Where an expression reads a value of the device."""

    field: str  # attributes or capacity
    domain: str
    selected: bool  # written .name; else ["name"]


@functools.lru_cache(maxsize=256)
def optional_spelling(selector: Selector, name: str) -> str | None:
    """The first plain reference to a value of this name, written so that it holds without it; None if there is none."""
    for node, parent in _walk(selector.tree, None):
        found = _reference(node, name)
        if found is not None:
            container = f"device.{found.field}[{json.dumps(found.domain)}]"
            part = f".?{name}" if found.selected else f"[?{json.dumps(name)}]"
            return f"{container}{part}.orValue({_default(found, node, parent)})"
    return None


def _walk(node: Node, parent: Node | None) -> Iterator[tuple[Node, Node | None]]:
    yield node, parent
    for child in nodes.children(node):
        yield from _walk(child, node)


def _reference(node: Node, name: str) -> _Reference | None:
    match node:
        case nodes.Select(operand=container, field=field, optional=False) if field == name:
            selected = True
        case nodes.Index(operand=container, key=nodes.Literal(value=key), optional=False) if key == name:
            selected = False
        case _:
            return None
    match container:
        case nodes.Index(operand=nodes.Select(operand=nodes.Ident(name="device"), field="attributes" | "capacity" as which),
                         key=nodes.Literal(value=str(domain))):
            return _Reference(which, domain, selected)
    return None


def _default(found: _Reference, node: Node, parent: Node | None) -> str:
    """A value of the type that the expression compares with."""
    if found.field == "capacity":
        return 'quantity("0")'
    match parent:
        case nodes.Binary(left=left, right=right):
            other = right if left is node else left
            example = other.items[0] if isinstance(other, nodes.ListLiteral) and other.items else other
        case nodes.Call(target=target, function=function, args=args) if target is node and function not in _TEXT_FUNCTIONS:
            example = args[0] if args else node
        case nodes.Unary(op="!") | nodes.Logical() | nodes.Conditional() | None:
            return "false"
        case _:
            return '""'
    match example:
        case nodes.Literal(value=bool()):
            return "false"
        case nodes.Literal(value=int()) | nodes.Unary(op="-", operand=nodes.Literal(value=int())):
            return "0"
        case nodes.Call(function="semver", target=None):
            return 'semver("0.0.0")'
    return '""'
