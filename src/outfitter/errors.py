"""Every error we raise, as one tree. Each finishes its sentence: what, who, since when, what next.

OutfitterError
├─ NotFound         404  outfitter.not_found        the noun is not in the store
├─ AlreadyExists    409  outfitter.already_exists   the name is taken
├─ Conflict         409  outfitter.conflict         somebody moved first: read again and retry
│  ├─ AlreadyHeld   409  outfitter.device.held      names the holder, the claim and since when
│  └─ OutOfService  409  outfitter.device.out_of_service  who took the device away, since when, why, how it comes back
├─ Expired          410  outfitter.expired          the revision is no longer kept: list again
├─ Invalid          422  outfitter.invalid          carries one cause per field
│  └─ Unsatisfiable 422  outfitter.claim.unfit      carries one reason per candidate
├─ BadRequest       400  outfitter.bad_request      the request could not be understood
├─ TooLarge         413  outfitter.too_large        the request is beyond what is read
├─ Unsupported      415  outfitter.unsupported      the content type or patch type is not known
├─ MethodNotAllowed 405  outfitter.kube.method      the path is known, the verb is not
├─ NotAcceptable    406  outfitter.kube.accept      nothing that the client accepts can be served
├─ TooNew           504  outfitter.kube.revision    a read asked for a revision that has not happened yet
├─ TimedOut         504  outfitter.timed_out        what was waited for did not come in time; says why it is not there
├─ EvaluationError  422  outfitter.cel.evaluation   a selector could not be answered for one device
├─ Forbidden        403  outfitter.forbidden        known, but not allowed
│  └─ Terminating   403  outfitter.terminating      its namespace is going away
├─ Unauthorized     401  outfitter.unauthorized     not known
├─ Unavailable      503  outfitter.unavailable      try again later; carries after how many seconds
│  └─ HypervisorAway 503 outfitter.hypervisor.away  what runs the machines of a host does not answer, and why
└─ Refused          ---  outfitter.refused          the program will not start or go on, and says why

A code never changes once shipped. Each face maps codes to its own language in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def shortened(text: str, most: int = 500) -> str:
    """Without the middle of what is too long to be read: the beginning says what it is about, the end what would be right."""
    return text if len(text) <= most else f"{text[:most // 2]} ... {text[-most // 2 + 5:]}"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing wrong with one field."""

    field: str  # path as the user wrote it: "spec.resourceClaims[0].name"
    message: str  # what is wrong and what would be right
    reason: str = "FieldValueInvalid"  # Kubernetes' word for the kind of mistake


class OutfitterError(Exception):
    """The root. `code` is for programs, the text for people."""

    code = "outfitter.error"
    status = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(OutfitterError):
    code = "outfitter.not_found"
    status = 404


class AlreadyExists(OutfitterError):
    code = "outfitter.already_exists"
    status = 409


class Conflict(OutfitterError):
    code = "outfitter.conflict"
    status = 409


class AlreadyHeld(Conflict):
    code = "outfitter.device.held"

    def __init__(self, device: str, *, by: str, since: str) -> None:
        super().__init__(f"{device} is held by {by} since {since}")
        self.device, self.by, self.since = device, by, since


class OutOfService(Conflict):
    """A device that nobody new gets: reserved, quarantined, or not yet cleaned after its last use."""

    code = "outfitter.device.out_of_service"

    def __init__(self, device: str, state: str, *, by: str, since: str, reason: str) -> None:
        who, why = f" by {by}" if by else "", f": {reason}" if reason else ""
        if state == "unclean":
            said = f"{device} must be cleaned first{f' ({reason}, since {since})' if reason else f' (since {since})'}; " \
                   f"outfit device clear {device} gives it back once it is clean"
        else:
            verb = {"reserved": "unreserve", "quarantined": "restore"}[state]
            said = f"{device} is {state}{who} since {since}{why}; outfit device {verb} {device} gives it back"
        super().__init__(said)
        self.device, self.state, self.by, self.since, self.reason = device, state, by, since, reason


class Expired(OutfitterError):
    code = "outfitter.expired"
    status = 410


class Invalid(OutfitterError):
    """Bad input, refused at the door. Nothing was written."""

    code = "outfitter.invalid"
    status = 422

    def __init__(self, message: str, causes: Sequence[Cause] = ()) -> None:
        super().__init__(message)
        self.causes = tuple(causes)


class Unsatisfiable(Invalid):
    code = "outfitter.claim.unfit"


class BadRequest(OutfitterError):
    code = "outfitter.bad_request"
    status = 400


class TooLarge(OutfitterError):
    code = "outfitter.too_large"
    status = 413


class Unsupported(OutfitterError):
    code = "outfitter.unsupported"
    status = 415


class MethodNotAllowed(OutfitterError):
    code = "outfitter.kube.method"
    status = 405


class NotAcceptable(OutfitterError):
    code = "outfitter.kube.accept"
    status = 406


class TooNew(OutfitterError):
    code = "outfitter.kube.revision"
    status = 504


class TimedOut(OutfitterError):
    code = "outfitter.timed_out"
    status = 504


class EvaluationError(OutfitterError):
    """As in "no such key: model"."""

    code = "outfitter.cel.evaluation"
    status = 422


class Forbidden(OutfitterError):
    code = "outfitter.forbidden"
    status = 403


class Terminating(Forbidden):
    """Nothing new comes into a namespace that is going away."""

    code = "outfitter.terminating"


class Unauthorized(OutfitterError):
    code = "outfitter.unauthorized"
    status = 401


class Unavailable(OutfitterError):
    code = "outfitter.unavailable"
    status = 503

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HypervisorAway(Unavailable):
    code = "outfitter.hypervisor.away"


class Refused(OutfitterError):
    code = "outfitter.refused"
