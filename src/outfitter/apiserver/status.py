"""What the API server answers besides objects: the Status of an error (`store.failure_status`), and of a delete."""

from __future__ import annotations

from outfitter import errors
from outfitter.api.kinds import Object
from outfitter.apiserver.paths import RequestPath
from outfitter.store import failure_status


class BadOptions(errors.Invalid):
    """A query value or option that is none of those known."""

    def __init__(self, options: str, field: str, message: str, reason: str = "FieldValueNotSupported") -> None:
        super().__init__(f'{options}.meta.k8s.io "" is invalid: {field}: {message}', [errors.Cause(field, message, reason)])
        self.options = options


def failure(error: errors.OutfitterError, target: RequestPath | None = None) -> Object:
    """The Status of an error."""
    status = failure_status.failure(error, target.kind if target else None, target.name if target else None)
    if isinstance(error, BadOptions):  # these are about no object
        status["details"] |= {"group": "meta.k8s.io", "kind": error.options}
        status["details"].pop("name", None)
    return status


def success(target: RequestPath, uid: str) -> Object:
    """What a delete answers when the object is gone."""
    details = failure_status.named(target.name, target.kind.group, target.kind.plural) | {"uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def internal(id_: str) -> Object:
    """For an unexpected error: the log has the details under this id."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": f"Internal error occurred: the server's log has the details under {id_}",
            "details": {"causes": [{"message": f"see {id_} in the server's log"}]}}
