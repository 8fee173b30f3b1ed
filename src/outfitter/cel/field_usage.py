"""The parts of a device that an expression can read, by static analysis.

Devices with equal values of these parts have the same result, cost and error, so the expression is evaluated on one of them
only (`scheduling.dra.selector_cache`). Where the analysis is not exact (`device.attributes[x]`, loops over a map), the whole
map counts as read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outfitter.cel import nodes
from outfitter.cel.nodes import Node


class Read(NamedTuple):
    """One part that is read."""

    field: str  # of the device: driver, attributes, capacity, allowMultipleAllocations; empty: the whole device
    domain: str | None = None  # of a map; None: all of them
    name: str | None = None  # in the domain; None: all of them, or only the presence of the domain
    presence: bool = False  # only whether the domain exists


DEEPEST = 3  # device -> map -> domain -> value
Path = tuple[str, ...]  # names from the device to a value, at most DEEPEST
Scope = Mapping[str, Path | None]  # variables of macros -> path of their value; None: not a part of the device


def reads(tree: Node) -> tuple[Read, ...]:
    """All parts that are read, in a stable order."""
    parts: set[Read] = set()
    _walk(tree, {"device": ()}, parts)
    return tuple(sorted(parts, key=repr))


def _read(path: Path, *, presence: bool = False) -> Read:
    match path:
        case (field, domain, name):
            return Read(field, domain, name)
        case (field, domain):
            return Read(field, domain, presence=presence)
    return Read(path[0] if path else "")


def _walk(node: Node, scope: Scope, parts: set[Read]) -> None:
    path = _path(node, scope, parts)
    if path is not None:
        parts.add(_read(path))
        return
    match node:
        case nodes.Has():
            operand = _path(node.operand, scope, parts)
            if operand is not None and len(operand) < DEEPEST:
                path = (*operand, node.field)
                parts.add(_read(path, presence=len(path) == DEEPEST - 1))
                return
        case nodes.Binary(op="in", left=nodes.Literal(value=str(name)), right=right):
            operand = _path(right, scope, parts)
            if operand is not None and 0 < len(operand) < DEEPEST:
                path = (*operand, name)
                parts.add(_read(path, presence=len(path) == DEEPEST - 1))
                return
        case nodes.Bind():
            value = _path(node.value, scope, parts)
            if value is None:
                _walk(node.value, scope, parts)
            _walk(node.body, {**scope, node.name: value}, parts)
            return
        case nodes.OptMap() | nodes.SortBy():
            _walk(node.target, scope, parts)
            _walk(node.body, {**scope, node.name: None}, parts)
            return
        case nodes.Comprehension():
            _walk(node.range, scope, parts)
            inner = {**scope, node.first: None, **({node.second: None} if node.second is not None else {})}
            for part in (node.condition, node.body):
                if part is not None:
                    _walk(part, inner, parts)
            return
    for child in nodes.children(node):
        _walk(child, scope, parts)


def _path(node: Node, scope: Scope, parts: set[Read]) -> Path | None:
    """The path from the device to the value of a node, or None for any other value."""
    match node:
        case nodes.Ident():
            return scope.get(node.name)
        case nodes.Select():
            name = node.field
        case nodes.Index(key=nodes.Literal(value=str(key))):
            name = key
        case _:
            return None
    operand = _path(node.operand, scope, parts)
    if operand is None or len(operand) == DEEPEST:
        return None
    path = (*operand, name)
    if node.optional and len(path) == DEEPEST - 1:
        parts.add(_read(path, presence=True))
    return path
