"""nodeSelector, affinity and tolerations of pods and VMIs: their schema, and invalid values. Also `unsupported`, the cause for
a value outside an enumeration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.validate import names
from outfitter.errors import Cause

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TEXTS = [str]
_EXPRESSIONS = [{"key": str, "operator": str, "values": TEXTS}]
_TERM = {"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS}
NODE_SELECTOR: dict[str, Any] = {"nodeSelectorTerms": [_TERM]}
LABEL_SELECTOR = {"matchLabels": {"*": str}, "matchExpressions": _EXPRESSIONS}
_POD_TERM = {"topologyKey": str, "labelSelector": LABEL_SELECTOR, "namespaces": TEXTS, "namespaceSelector": LABEL_SELECTOR,
             "matchLabelKeys": TEXTS, "mismatchLabelKeys": TEXTS}
_PODS = {REQUIRED: [_POD_TERM], PREFERRED: [{"weight": int, "podAffinityTerm": _POD_TERM}]}
TOLERATIONS = [{"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}]
SHAPE: dict[str, Any] = {  # schema of the fields that a pod spec and a VMI spec have in common
    "nodeSelector": {"*": str},
    "tolerations": TOLERATIONS,
    "affinity": {"nodeAffinity": {REQUIRED: NODE_SELECTOR, PREFERRED: [{"weight": int, "preference": _TERM}]},
                 "podAffinity": _PODS, "podAntiAffinity": _PODS},
    "topologySpreadConstraints": [{
        "maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str, "labelSelector": LABEL_SELECTOR, "minDomains": int,
        "nodeAffinityPolicy": str, "nodeTaintsPolicy": str, "matchLabelKeys": TEXTS}],
}
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
TOLERATES = ("Equal", "Exists")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
DEVICE_EFFECTS = ("NoSchedule", "NoExecute", "None")
UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
POLICIES = ("Honor", "Ignore")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    yield from names.labels(spec.get("nodeSelector"), f"{root}.nodeSelector")
    yield from tolerations(spec.get("tolerations"), f"{root}.tolerations", EFFECTS)
    affinity = spec.get("affinity") or {}
    node, at = affinity.get("nodeAffinity") or {}, f"{root}.affinity.nodeAffinity"
    if node.get(REQUIRED) is not None:
        yield from node_selector(node[REQUIRED], f"{at}.{REQUIRED}")
    for index, preferred in enumerate(node.get(PREFERRED) or ()):
        here = f"{at}.{PREFERRED}[{index}]"
        yield from _weight(preferred, here)
        yield from _term(preferred.get("preference") or {}, f"{here}.preference")
    for part in ("podAffinity", "podAntiAffinity"):
        near = affinity.get(part) or {}
        for index, term in enumerate(near.get(REQUIRED) or ()):
            yield from _pod_term(term, f"{root}.affinity.{part}.{REQUIRED}[{index}]")
        for index, preferred in enumerate(near.get(PREFERRED) or ()):
            here = f"{root}.affinity.{part}.{PREFERRED}[{index}]"
            yield from _weight(preferred, here)
            yield from _pod_term(preferred.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        yield from _spread(constraint, f"{root}.topologySpreadConstraints[{index}]")


def tolerations(entries: Any, path: str, effects: tuple[str, ...]) -> Iterator[Cause]:
    for index, toleration in enumerate(entries or ()):
        here = f"{path}[{index}]"
        operator = toleration.get("operator") or "Equal"
        if toleration.get("key"):
            yield from names.key(toleration["key"], f"{here}.key")
        if operator not in TOLERATES:
            yield unsupported(f"{here}.operator", operator, TOLERATES)
        elif operator == "Exists" and toleration.get("value"):
            yield Cause(
                f"{here}.value", f'Invalid value: "{toleration["value"]}": must be empty with Exists, which tolerates any value'
            )
        elif operator == "Equal" and not toleration.get("key"):
            yield Cause(f"{here}.operator", "Invalid value: operator must be Exists when `key` is empty: any taint")
        elif operator == "Equal":
            yield from names.label_value(toleration.get("value"), f"{here}.value")
        effect = toleration.get("effect")
        if effect and effect not in effects:
            yield unsupported(f"{here}.effect", effect, effects)
        elif toleration.get("tolerationSeconds") is not None and effect != "NoExecute" and effects is EFFECTS:
            yield Cause(f"{here}.effect", f'Invalid value: "{effect or ""}": effect must be NoExecute when `tolerationSeconds` '
                                          "is set")


def taints(entries: Any, path: str, effects: tuple[str, ...]) -> Iterator[Cause]:
    """Taints of a node or a device."""
    for index, taint in enumerate(entries or ()):
        yield from check_taint(taint, f"{path}[{index}]", effects)


def check_taint(taint: Mapping[str, Any], path: str, effects: tuple[str, ...]) -> Iterator[Cause]:
    yield from names.key(taint.get("key"), f"{path}.key")
    yield from names.label_value(taint.get("value"), f"{path}.value")
    if not taint.get("effect"):
        yield Cause(f"{path}.effect", f"Required value: one of {', '.join(effects)}", "FieldValueRequired")
    elif taint["effect"] not in effects:
        yield unsupported(f"{path}.effect", taint["effect"], effects)


def node_selector(selector: Mapping[str, Any], path: str) -> Iterator[Cause]:
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        yield Cause(f"{path}.nodeSelectorTerms", "Required value: must have at least one node selector term",
                    "FieldValueRequired")
    for index, term in enumerate(terms or ()):
        yield from _term(term, f"{path}.nodeSelectorTerms[{index}]")


def _weight(preferred: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if not 1 <= (weight := preferred.get("weight") or 0) <= 100:
        yield Cause(f"{path}.weight", f"Invalid value: {weight}: must be in the range 1-100")


def _term(term: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for index, requirement in enumerate(term.get("matchExpressions") or ()):
        yield from _requirement(requirement, f"{path}.matchExpressions[{index}]", OPERATORS)
    for index, requirement in enumerate(term.get("matchFields") or ()):
        here = f"{path}.matchFields[{index}]"
        if requirement.get("key") != "metadata.name":
            yield Cause(f"{here}.key", f'Invalid value: "{requirement.get("key") or ""}": not a valid field selector key: '
                                       "metadata.name is the only one")
        if (operator := requirement.get("operator") or "") not in ("In", "NotIn"):
            yield unsupported(f"{here}.operator", operator, ("In", "NotIn"))
        elif len(requirement.get("values") or ()) != 1:
            yield Cause(f"{here}.values", f"Required value: must be only one value when `operator` is {operator} for a node "
                                          "field", "FieldValueRequired")


def _requirement(requirement: Mapping[str, Any], path: str, operators: tuple[str, ...]) -> Iterator[Cause]:
    operator, values = requirement.get("operator") or "", requirement.get("values") or []
    yield from names.key(requirement.get("key"), f"{path}.key")
    if operator not in operators:
        yield unsupported(f"{path}.operator", operator, operators)
    elif operator in ("In", "NotIn") and not values:
        yield Cause(f"{path}.values", f"Required value: must be specified when `operator` is {operator}", "FieldValueRequired")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield Cause(f"{path}.values", f"Forbidden: may not be specified when `operator` is {operator}", "FieldValueForbidden")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not _INTEGER.fullmatch(values[0])):
        yield Cause(f"{path}.values", f"Invalid value: must be one whole number when `operator` is {operator}")
    for index, value in enumerate(values if operator in ("In", "NotIn") else ()):
        yield from names.label_value(value, f"{path}.values[{index}]")


def _label_selector(selector: Any, path: str) -> Iterator[Cause]:
    selector = selector or {}
    yield from names.labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for index, requirement in enumerate(selector.get("matchExpressions") or ()):
        yield from _requirement(requirement, f"{path}.matchExpressions[{index}]", LABEL_OPERATORS)


def _pod_term(term: Mapping[str, Any], path: str) -> Iterator[Cause]:
    yield from names.key(term.get("topologyKey"), f"{path}.topologyKey")
    yield from _label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    yield from _label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for index, namespace in enumerate(term.get("namespaces") or ()):
        yield from names.label(namespace, f"{path}.namespaces[{index}]")


def _spread(constraint: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if (skew := constraint.get("maxSkew") or 0) < 1:
        yield Cause(f"{path}.maxSkew", f"Invalid value: {skew}: must be greater than zero")
    yield from names.required(constraint.get("topologyKey"), f"{path}.topologyKey", "the label that places have in common")
    if (when := constraint.get("whenUnsatisfiable") or "") not in UNSATISFIABLE:
        yield unsupported(f"{path}.whenUnsatisfiable", when, UNSATISFIABLE)
    if (domains := constraint.get("minDomains")) is not None and domains < 1:
        yield Cause(f"{path}.minDomains", f"Invalid value: {domains}: must be greater than zero")
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if constraint.get(field) is not None and constraint[field] not in POLICIES:
            yield unsupported(f"{path}.{field}", constraint[field], POLICIES)
    yield from _label_selector(constraint.get("labelSelector"), f"{path}.labelSelector")


def unsupported(field: str, value: str, among: tuple[str, ...]) -> Cause:
    known = ", ".join(f'"{supported}"' for supported in among)
    return Cause(field, f'Unsupported value: "{value}": supported values: {known}', "FieldValueNotSupported")
