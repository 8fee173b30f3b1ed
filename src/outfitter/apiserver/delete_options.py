"""DeleteOptions of a request: in the body, or in the query when there is no body. Fields of a wrong type are a bad request, as
for every object in a body; values that are not supported are invalid. Called by `verbs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from outfitter.apiserver import status
from outfitter.apiserver.request import MAX_INT64, Request
from outfitter.errors import BadRequest, shortened
from outfitter.store import base

PROPAGATIONS = ("Foreground", "Background", "Orphan")
TYPES: Mapping[str, tuple[type, str]] = {
    "apiVersion": (str, "a string"), "kind": (str, "a string"), "gracePeriodSeconds": (int, "a whole number"),
    "preconditions": (dict, "an object"), "orphanDependents": (bool, "true or false"), "propagationPolicy": (str, "a string"),
    "dryRun": (list, "a list of strings"), "ignoreStoreReadErrorWithClusterBreakingPotential": (bool, "true or false"),
}
PRECONDITIONS = ("uid", "resourceVersion")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    dry_run: bool = False
    uid: str | None = None
    revision: str | None = None
    propagation: base.Propagation | None = None
    grace: int | None = None


def read(request: Request) -> DeleteOptions:
    if not request.body.strip():
        orphan = request.flag("orphanDependents") if request.text("orphanDependents") else None
        return _options({
            "dryRun": request.query.get("dryRun"), "gracePeriodSeconds": request.number("gracePeriodSeconds"),
            "propagationPolicy": request.text("propagationPolicy") or None, "orphanDependents": orphan,
        })
    body = request.content().value
    if not isinstance(body, dict):
        raise BadRequest("the body of a delete must be DeleteOptions")
    _check_types(body)
    if body.get("kind") not in (None, "", "DeleteOptions"):
        raise BadRequest(f"the body of a delete must be DeleteOptions, it is {shortened(body['kind'])!r}")
    return _options(body)


def _check_types(body: Mapping[str, Any]) -> None:
    for field, (type_, expected) in TYPES.items():
        value = body.get(field)
        if value is None:
            continue
        if type(value) is not type_:
            raise _wrong_type(field, expected)
    if not all(isinstance(item, str) for item in body.get("dryRun") or ()):
        raise _wrong_type("dryRun", "a list of strings")
    if abs(body.get("gracePeriodSeconds") or 0) > MAX_INT64:
        raise _wrong_type("gracePeriodSeconds", "a whole number of 64 bits")
    for field in PRECONDITIONS:
        if not isinstance((body.get("preconditions") or {}).get(field), str | None):
            raise _wrong_type(f"preconditions.{field}", "a string")


def _wrong_type(field: str, expected: str) -> BadRequest:
    return BadRequest(f"DeleteOptions cannot be read: {field}: must be {expected}")


def _options(given: Mapping[str, Any]) -> DeleteOptions:
    dry_run, grace = given.get("dryRun") or [], given.get("gracePeriodSeconds")
    policy, orphan, conditions = given.get("propagationPolicy"), given.get("orphanDependents"), given.get("preconditions") or {}
    if not set(dry_run) <= {"All"}:
        raise _bad("dryRun", f'Unsupported value: {shortened(repr(dry_run))}: supported values: "All"',
                   "FieldValueNotSupported")
    if policy and policy not in PROPAGATIONS:
        raise _bad("propagationPolicy", f'Unsupported value: "{shortened(policy)}": supported values: "Foreground", '
                   '"Background", "Orphan", "nil"', "FieldValueNotSupported")
    if policy and orphan is not None:
        raise _bad("propagationPolicy", f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be '
                   "both set")
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if grace is not None and grace < 0:
        raise _bad("gracePeriodSeconds", f"Invalid value: {grace}: must be a whole number, 0 or more")
    return DeleteOptions(bool(dry_run), conditions.get("uid"), conditions.get("resourceVersion"),
                         cast("base.Propagation | None", policy or None), grace)


def _bad(field: str, message: str, reason: str = "FieldValueInvalid") -> status.BadOptions:
    return status.BadOptions("DeleteOptions", field, message, reason)
