"""Node selectors: does a node match, and what an allocation says about the nodes on which its devices can be used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from outfitter.errors import Cause, Invalid

Selector = Mapping[str, Any]  # a v1 NodeSelector
Where = tuple[str | None, Selector | None]  # the one node, or those that match; both None: every node

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # as Kubernetes reads one: Python would take 1_00 too


def matches(selector: Selector, name: str, labels: Mapping[str, str]) -> bool:
    """One term is enough; in a term everything must hold, and a term that asks for nothing matches nothing."""
    return any(_term(term, name, labels) for term in selector.get("nodeSelectorTerms") or ())


def reaches(source: Mapping[str, Any], name: str, labels: Mapping[str, str] | None) -> bool:
    """Whether a node can use the devices of a slice, or one device of a slice with perDeviceNodeSelection (`source` is what
    says so). Without labels the node is not known but by its name: only what a selector says of names counts."""
    if node := source.get("nodeName"):
        return bool(node == name)
    if source.get("allNodes"):
        return True
    selector = source.get("nodeSelector") or {}
    if labels is not None:
        return matches(selector, name, labels)
    by_name = [{"matchFields": term["matchFields"]} if term.get("matchFields") else None
               for term in selector.get("nodeSelectorTerms") or ()]
    return any(term is None or _term(term, name, {}) for term in by_name)


def _term(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    expressions, names = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not names:
        return False
    return (all(_holds(one, labels) for one in expressions)
            and all(_holds(one, {"metadata.name": name}) for one in names))


def _holds(requirement: Mapping[str, Any], have: Mapping[str, str]) -> bool:
    key, operator, values = requirement["key"], requirement.get("operator"), list(requirement.get("values") or ())
    value = have.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if not values or not _INTEGER.fullmatch(value or "") or not _INTEGER.fullmatch(values[0]):
                return False
            mine, bound = int(value or "0"), int(values[0])
            return mine > bound if operator == "Gt" else mine < bound
    message = f"{operator!r} is not an operator: use In, NotIn, Exists, DoesNotExist, Gt or Lt"
    raise Invalid(f"nodeSelector, {key}: {message}", [Cause("operator", message)])


def common(node: str, places: Iterable[Where]) -> dict[str, Any] | None:
    """The node selector of an allocation: this node where one device is tied to a node, else what all devices ask of a node;
    None if they can be used everywhere."""
    term: dict[str, list[Mapping[str, Any]]] = {"matchExpressions": [], "matchFields": []}
    for host, selector in places:
        if host is not None:
            return {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}
        terms = (selector or {}).get("nodeSelectorTerms") or ()
        if len(terms) > 1:
            raise Invalid(f"nodeSelector: {len(terms)} terms cannot be joined with those of other devices: write one")
        for part, asked in term.items():
            asked += [one for one in (terms[0].get(part) or () if terms else ()) if not any(_same(one, old) for old in asked)]
    asks = {part: asked for part, asked in term.items() if asked}
    return {"nodeSelectorTerms": [asks]} if asks else None


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["key"], one.get("operator")) == (other["key"], other.get("operator")) and set(one.get("values") or ()) == set(
        other.get("values") or ())
