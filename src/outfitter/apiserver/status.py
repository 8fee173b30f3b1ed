"""Errors as a Kubernetes Status. Code and reason are those of the table in errors.py."""

from __future__ import annotations

import re

from outfitter import errors
from outfitter.api.kinds import Object
from outfitter.apiserver.paths import RequestPath


class BadOptions(errors.Invalid):
    """A query value or option that is none of those known."""

    def __init__(self, options: str, field: str, message: str, reason: str = "FieldValueNotSupported") -> None:
        super().__init__(f'{options}.meta.k8s.io "" is invalid: {field}: {message}', [errors.Cause(field, message, reason)])
        self.options = options


# These say of which object they speak; the others are about the request.
ABOUT_OBJECT = (errors.NotFound, errors.AlreadyExists, errors.Conflict, errors.Forbidden)

_RESOURCE = re.compile(
    r'(?:^|Operation cannot be fulfilled on )(?P<plural>[a-z]+)(?:\.(?P<group>[a-z0-9.-]+))? "(?P<name>[^"]*)"'
)
_INVALID = re.compile(r'\S+ "(?P<name>[^"]*)" is invalid: ')


def failure(error: errors.OutfitterError, target: RequestPath | None = None) -> Object:
    """The Status of an error."""
    status: Object = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": error.message,
        "reason": error.kube_reason,
    }
    status["details"] = _details(error, target)  # never absent: kubectl debug reads it without a look
    status["code"] = error.status
    return status


def _details(error: errors.OutfitterError, target: RequestPath | None) -> Object:
    details: Object = {}
    if isinstance(error, BadOptions):
        details = {"group": "meta.k8s.io", "kind": error.options}
    elif isinstance(error, errors.Invalid) and target:
        match = _INVALID.match(error.message)  # a create names its object in the body alone
        details = _named(target.name or (match["name"] if match else ""), target.kind.group, target.kind.kind)
    elif isinstance(error, ABOUT_OBJECT):
        if found := _RESOURCE.search(error.message):
            details = _named(found["name"], found["group"], found["plural"])
        elif target:
            details = _named(target.name, target.kind.group, target.kind.plural)
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


def _named(name: str | None, group: str | None, kind: str) -> Object:
    words = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in words.items() if value}


def success(target: RequestPath, uid: str) -> Object:
    """What a delete answers when the object is gone."""
    details = _named(target.name, target.kind.group, target.kind.plural) | {"uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def internal(id_: str) -> Object:
    """For an unexpected error: the log has the details under this id."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": f"Internal error occurred: the server's log has the details under {id_}",
            "details": {"causes": [{"message": f"see {id_} in the server's log"}]}}
