"""nodeSelector, affinity and tolerations of pods and VMIs: their schema, and invalid values. Also `unsupported`, the cause for
a value outside an enumeration."""

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
SHAPE: Mapping[str, Any] = {  # schema of the fields that a pod spec and a VMI spec have in common
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
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    at = f"{root}.affinity.nodeAffinity"
    if affinity.get(REQUIRED) is not None:
        yield from node_selector(affinity[REQUIRED], f"{at}.{REQUIRED}")
    for index, preferred in enumerate(affinity.get(PREFERRED) or ()):
        yield from _term(preferred.get("preference") or {}, f"{at}.{PREFERRED}[{index}].preference")


def tolerations(entries: Any, path: str, effects: tuple[str, ...]) -> Iterator[Cause]:
    for index, toleration in enumerate(entries or ()):
        here = f"{path}[{index}]"
        operator = toleration.get("operator") or "Equal"
        if operator not in TOLERATES:
            yield unsupported(f"{here}.operator", operator, TOLERATES)
        elif operator == "Exists" and toleration.get("value"):
            yield Cause(
                f"{here}.value", f'Invalid value: "{toleration["value"]}": must be empty with Exists, which tolerates any value'
            )
        elif operator == "Equal" and not toleration.get("key"):
            yield Cause(f"{here}.operator", "Invalid value: operator must be Exists when `key` is empty: any taint")
        if toleration.get("effect") and toleration["effect"] not in effects:
            yield unsupported(f"{here}.effect", toleration["effect"], effects)


def node_selector(selector: Mapping[str, Any], path: str) -> Iterator[Cause]:
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        yield Cause(f"{path}.nodeSelectorTerms", "Required value: must have at least one node selector term",
                    "FieldValueRequired")
    for index, term in enumerate(terms or ()):
        yield from _term(term, f"{path}.nodeSelectorTerms[{index}]")


def _term(term: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for part in ("matchExpressions", "matchFields"):
        for index, requirement in enumerate(term.get(part) or ()):
            yield from _requirement(requirement, f"{path}.{part}[{index}]")


def _requirement(requirement: Mapping[str, Any], path: str) -> Iterator[Cause]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or []
    if not requirement.get("key"):
        yield Cause(f"{path}.key", "Required value: the key of a label", "FieldValueRequired")
    if operator not in OPERATORS:
        yield unsupported(f"{path}.operator", operator, OPERATORS)
    elif operator in ("In", "NotIn") and not values:
        yield Cause(f"{path}.values", f"Required value: must be specified when `operator` is {operator}", "FieldValueRequired")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield Cause(f"{path}.values", f"Forbidden: may not be specified when `operator` is {operator}", "FieldValueForbidden")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not _INTEGER.fullmatch(values[0])):
        yield Cause(f"{path}.values", f"Invalid value: must be one whole number when `operator` is {operator}")


def unsupported(field: str, value: str, among: tuple[str, ...]) -> Cause:
    known = ", ".join(f'"{supported}"' for supported in among)
    return Cause(field, f'Unsupported value: "{value}": supported values: {known}', "FieldValueNotSupported")
