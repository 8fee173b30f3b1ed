"""Where a pod or a machine may run: nodeSelector, affinity, tolerations. Their shapes, and what in them makes no sense."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.errors import Cause

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TEXTS = [str]
_EXPRESSIONS = [{"key": str, "operator": str, "values": TEXTS}]
_TERM = {"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}
NODE_SELECTOR: Mapping[str, Any] = {"nodeSelectorTerms": [_TERM]}
_LABELS = {"matchLabels": {"*": str}, "matchExpressions": _EXPRESSIONS}
_POD_TERM = {"topologyKey": str, "labelSelector": _LABELS, "namespaces": TEXTS, "namespaceSelector": _LABELS,
             "matchLabelKeys": TEXTS, "mismatchLabelKeys": TEXTS}
_PODS = {REQUIRED: [_POD_TERM], PREFERRED: [{"weight": int, "podAffinityTerm": _POD_TERM}]}
TOLERATIONS = [{"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}]
SHAPE: Mapping[str, Any] = {  # of the fields of a pod's spec, which are also those of an instance's
    "nodeSelector": {"*": str},
    "tolerations": TOLERATIONS,
    "affinity": {"nodeAffinity": {REQUIRED: NODE_SELECTOR, PREFERRED: [{"weight": int, "preference": _TERM}]},
                 "podAffinity": _PODS, "podAntiAffinity": _PODS},
    "topologySpreadConstraints": [{"maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str, "labelSelector": _LABELS,
                                   "minDomains": int, "nodeAffinityPolicy": str, "nodeTaintsPolicy": str,
                                   "matchLabelKeys": TEXTS}],
}
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
TOLERATES = ("Equal", "Exists")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
DEVICE_EFFECTS = ("NoSchedule", "NoExecute")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    yield from tolerations(spec.get("tolerations"), f"{root}.tolerations", EFFECTS)
    near = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    at = f"{root}.affinity.nodeAffinity"
    if near.get(REQUIRED) is not None:
        yield from node_selector(near[REQUIRED], f"{at}.{REQUIRED}")
    for index, wish in enumerate(near.get(PREFERRED) or ()):
        yield from _term(wish.get("preference") or {}, f"{at}.{PREFERRED}[{index}].preference")


def tolerations(given: Any, path: str, effects: tuple[str, ...]) -> Iterator[Cause]:
    for index, one in enumerate(given or ()):
        here = f"{path}[{index}]"
        operator = one.get("operator") or "Equal"
        if operator not in TOLERATES:
            yield unsupported(f"{here}.operator", operator, TOLERATES)
        elif operator == "Exists" and one.get("value"):
            yield Cause(f"{here}.value", f'Invalid value: "{one["value"]}": must be empty with Exists, which takes any')
        elif operator == "Equal" and not one.get("key"):
            yield Cause(f"{here}.operator", "Invalid value: operator must be Exists when `key` is empty: any taint")
        if one.get("effect") and one["effect"] not in effects:
            yield unsupported(f"{here}.effect", one["effect"], effects)


def node_selector(selector: Mapping[str, Any], path: str) -> Iterator[Cause]:
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        yield Cause(f"{path}.nodeSelectorTerms", "Required value: must have at least one node selector term",
                    "FieldValueRequired")
    for index, term in enumerate(terms or ()):
        yield from _term(term, f"{path}.nodeSelectorTerms[{index}]")


def _term(term: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for part in ("matchExpressions", "matchFields"):
        for index, one in enumerate(term.get(part) or ()):
            yield from _requirement(one, f"{path}.{part}[{index}]")


def _requirement(one: Mapping[str, Any], path: str) -> Iterator[Cause]:
    operator, values = one.get("operator") or "", one.get("values") or []
    if not one.get("key"):
        yield Cause(f"{path}.key", "Required value: the label that is looked at", "FieldValueRequired")
    if operator not in OPERATORS:
        yield unsupported(f"{path}.operator", operator, OPERATORS)
    elif operator in ("In", "NotIn") and not values:
        yield Cause(f"{path}.values", f"Required value: must be specified when `operator` is {operator}", "FieldValueRequired")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield Cause(f"{path}.values", f"Forbidden: may not be specified when `operator` is {operator}", "FieldValueForbidden")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not _INTEGER.fullmatch(values[0])):
        yield Cause(f"{path}.values", f"Invalid value: must be one whole number when `operator` is {operator}")


def unsupported(field: str, value: str, among: tuple[str, ...]) -> Cause:
    known = ", ".join(f'"{each}"' for each in among)
    return Cause(field, f'Unsupported value: "{value}": supported values: {known}', "FieldValueNotSupported")
