"""Errors as a Kubernetes Status. Code and reason are those of the table in errors.py. Called by the API server and by the
admission webhook."""

from __future__ import annotations

import re

from outfitter import errors
from outfitter.api.kinds import Kind, Object

# These say of which object they speak; the others are about the request.
ABOUT_OBJECT = (errors.NotFound, errors.AlreadyExists, errors.Conflict, errors.Forbidden)

_RESOURCE = re.compile(
    r'(?:^|Operation cannot be fulfilled on )(?P<plural>[a-z]+)(?:\.(?P<group>[a-z0-9.-]+))? "(?P<name>[^"]*)"'
)
_INVALID = re.compile(r'\S+ "(?P<name>[^"]*)" is invalid: ')


def failure(error: errors.OutfitterError, kind: Kind | None = None, name: str | None = None) -> Object:
    """The Status of an error; `kind` and `name`: what the request is about."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": error.message,
        "reason": error.kube_reason,
        "details": _details(error, kind, name),  # never absent: kubectl debug reads it without a look
        "code": error.status,
    }


def named(name: str | None, group: str | None, kind: str) -> Object:
    """The details of a Status that name an object."""
    words = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in words.items() if value}


def _details(error: errors.OutfitterError, kind: Kind | None, name: str | None) -> Object:
    details: Object = {}
    if isinstance(error, errors.Invalid) and kind:
        match = _INVALID.match(error.message)  # a create names its object in the body alone
        details = named(name or (match["name"] if match else ""), kind.group, kind.kind)
    elif isinstance(error, ABOUT_OBJECT):
        if found := _RESOURCE.search(error.message):
            details = named(found["name"], found["group"], found["plural"])
        elif kind:
            details = named(name, kind.group, kind.plural)
    if isinstance(error, errors.Invalid) and error.causes:
        details["causes"] = [
            {"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in error.causes
        ]
    if isinstance(error, errors.Terminating):
        details["causes"] = [{"reason": "NamespaceTerminating", "message": error.cause,
                              "field": "metadata.namespace"}]
    if isinstance(error, errors.TooNew):
        details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                   "retryAfterSeconds": 1}
    if isinstance(error, errors.Unavailable):
        details["retryAfterSeconds"] = max(1, round(error.retry_after))
    return details
