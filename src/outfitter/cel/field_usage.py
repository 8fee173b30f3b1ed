"""What of a device an expression can read, told from its text alone.

Devices that are alike in all of that get the same answer, at the same cost and with the same error, so it need be asked of one
of them only. Where the text does not tell (`device.attributes[x]`, loops over a map) it is taken to read the whole map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outfitter.cel import nodes
from outfitter.cel.nodes import Node


class Read(NamedTuple):
    """One thing that is read."""

    field: str  # of the device: driver, attributes, capacity, allowMultipleAllocations; empty: the whole device
    domain: str | None = None  # of a map; None: all of them
    name: str | None = None  # in the domain; None: all of them, or nothing but whether there are any
    presence: bool = False  # only whether the domain is there


DEEPEST = 3  # device -> map -> domain -> value
Path = tuple[str, ...]  # at most so many names: how a value is reached from the device
Scope = Mapping[str, Path | None]  # variables of macros: what they stand for; None: nothing that is a part of the device


def reads(tree: Node) -> tuple[Read, ...]:
    """All that is read, in one order."""
    found: set[Read] = set()
    _walk(tree, {"device": ()}, found)
    return tuple(sorted(found, key=repr))


def _read(path: Path, *, presence: bool = False) -> Read:
    match path:
        case (field, domain, name):
            return Read(field, domain, name)
        case (field, domain):
            return Read(field, domain, presence=presence)
    return Read(path[0] if path else "")


def _walk(node: Node, scope: Scope, found: set[Read]) -> None:
    path = _path(node, scope, found)
    if path is not None:
        found.add(_read(path))
        return
    match node:
        case nodes.Has():
            operand = _path(node.operand, scope, found)
            if operand is not None and len(operand) < DEEPEST:
                path = (*operand, node.field)
                found.add(_read(path, presence=len(path) == DEEPEST - 1))
                return
        case nodes.Binary(op="in", left=nodes.Literal(value=str(name)), right=right):
            operand = _path(right, scope, found)
            if operand is not None and 0 < len(operand) < DEEPEST:
                path = (*operand, name)
                found.add(_read(path, presence=len(path) == DEEPEST - 1))
                return
        case nodes.Bind():
            value = _path(node.value, scope, found)
            if value is None:
                _walk(node.value, scope, found)
            _walk(node.body, {**scope, node.name: value}, found)
            return
        case nodes.OptMap() | nodes.SortBy():
            _walk(node.target, scope, found)
            _walk(node.body, {**scope, node.name: None}, found)
            return
        case nodes.Comprehension():
            _walk(node.range, scope, found)
            inner = {**scope, node.first: None, **({node.second: None} if node.second is not None else {})}
            for part in (node.condition, node.body):
                if part is not None:
                    _walk(part, inner, found)
            return
    for child in nodes.children(node):
        _walk(child, scope, found)


def _path(node: Node, scope: Scope, found: set[Read]) -> Path | None:
    """How the device leads to what a node stands for, or None where it is something else."""
    match node:
        case nodes.Ident():
            return scope.get(node.name)
        case nodes.Select():
            name = node.field
        case nodes.Index(key=nodes.Literal(value=str(key))):
            name = key
        case _:
            return None
    operand = _path(node.operand, scope, found)
    if operand is None or len(operand) == DEEPEST:
        return None
    path = (*operand, name)
    if node.optional and len(path) == DEEPEST - 1:
        found.add(_read(path, presence=True))
    return path
