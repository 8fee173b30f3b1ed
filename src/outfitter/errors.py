"""Every error we raise, as one tree. Each says: which field or object, what is wrong, what would be right, what to do next.
`code` never changes once shipped, `status` is its HTTP status and `kube_reason` the reason of its Kubernetes Status.

OutfitterError           500  InternalError          outfitter.error
├─ NotFound              404  NotFound               outfitter.not_found           no such object
├─ AlreadyExists         409  AlreadyExists          outfitter.already_exists      the name is in use
├─ Conflict              409  Conflict               outfitter.conflict            changed since it was read: read again
│  ├─ AlreadyHeld        409  Conflict               outfitter.device.held         has the holder, the claim and since when
│  └─ OutOfService       409  Conflict               outfitter.device.out_of_service  has by whom, since when, why
├─ Expired               410  Expired                outfitter.expired             the revision is no longer kept: list again
├─ Invalid               422  Invalid                outfitter.invalid             has one cause per field
│  └─ Unsatisfiable      422  Invalid                outfitter.claim.unfit         has one reason per candidate
├─ Unreadable            500  InternalError          outfitter.object.unreadable   a stored object has a field of the wrong type
├─ BadRequest            400  BadRequest             outfitter.bad_request         the request cannot be parsed
├─ TooLarge              413  RequestEntityTooLarge  outfitter.too_large           the request is larger than the limit
├─ HeadersTooLarge       431  RequestHeadersTooLarge  outfitter.http.headers       more or larger headers than the limit
├─ SlowRequest           408  Timeout                outfitter.http.slow           headers or body were not complete in time
├─ Unsupported           415  UnsupportedMediaType   outfitter.unsupported         unknown content type or patch type
├─ MethodNotAllowed      405  MethodNotAllowed       outfitter.kube.method         the path is known, the verb is not
├─ NotAcceptable         406  NotAcceptable          outfitter.kube.accept         no accepted content type can be served
├─ TooNew                504  Timeout                outfitter.kube.revision       the revision has not been reached yet
├─ TimedOut              504  Timeout                outfitter.timed_out           the awaited state was not reached in time
├─ EvaluationError       422  Invalid                outfitter.cel.evaluation      a selector fails for one device
├─ Forbidden             403  Forbidden              outfitter.forbidden           authenticated, but not allowed
│  └─ Terminating        403  Forbidden              outfitter.terminating         the namespace is being deleted
├─ Unauthorized          401  Unauthorized           outfitter.unauthorized        not authenticated
├─ Unavailable           503  ServiceUnavailable     outfitter.unavailable         retry after `retry_after` seconds
│  ├─ TooManyRequests    429  TooManyRequests        outfitter.too_many_requests   the server holds as much as it may: retry
│  ├─ HypervisorAway     503  ServiceUnavailable     outfitter.hypervisor.away     the hypervisor of a host does not answer
│  └─ NotReady           503  ServiceUnavailable     outfitter.not_ready           the VM waits for what is named: retry
│     └─ BindFailed      503  ServiceUnavailable     outfitter.device.bind         a PCI function is with the wrong driver
├─ HypervisorError       500  InternalError          outfitter.hypervisor.rejected  the hypervisor rejected a call; the VM stays
├─ StartFailed           422  Invalid                outfitter.vm.start_failed     the VM cannot start: fail it for good
├─ CommandFailed         400  BadRequest             outfitter.command.failed      a command of `outfit` cannot be carried out
└─ StartupRefused        500  InternalError          outfitter.startup.refused     the process must not start, or must end
   └─ NoKubeconfig       500  InternalError          outfitter.no_kubeconfig       no kubeconfig at any of the usual places

What a caller does with these: Unreadable, leave what depends on that object as it is and go on with the others; NotReady,
report why and retry; StartFailed, fail the VM; StartupRefused, end the process, or refuse the one host of several that it is
about; CommandFailed, print it and exit 1. HypervisorError depends on the call: a start fails the VM, a stop is retried, a pause
or reset is reported as not done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


def shortened(text: str, most: int = 500) -> str:
    """Cuts the middle out of a long text: its beginning has the subject, its end what would be right."""
    return text if len(text) <= most else f"{text[:most // 2]} ... {text[-most // 2 + 5:]}"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing wrong with one field."""

    field: str  # path as the user wrote it: "spec.resourceClaims[0].name"
    message: str  # what is wrong and what would be right
    reason: str = "FieldValueInvalid"  # Kubernetes' word for the kind of mistake


class OutfitterError(Exception):
    """The root. `code` is for programs, the message for users."""

    code = "outfitter.error"
    status, kube_reason = 500, "InternalError"
    rejection: Any = None  # the api.rejection.Rejection that it reports, if it reports one: for callers, instead of the text

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFound(OutfitterError):
    code = "outfitter.not_found"
    status, kube_reason = 404, "NotFound"


class AlreadyExists(OutfitterError):
    code = "outfitter.already_exists"
    status, kube_reason = 409, "AlreadyExists"


class Conflict(OutfitterError):
    code = "outfitter.conflict"
    status, kube_reason = 409, "Conflict"


class AlreadyHeld(Conflict):
    code = "outfitter.device.held"

    def __init__(self, device: str, *, by: str, since: str) -> None:
        super().__init__(f"{device} is held by {by} since {since}")
        self.device, self.by, self.since = device, by, since


class OutOfService(Conflict):
    """A device that is not allocated: reserved, quarantined, or not yet cleaned after its last use."""

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
    status, kube_reason = 410, "Expired"


class Invalid(OutfitterError):
    """Rejected by admission. Nothing was written."""

    code = "outfitter.invalid"
    status, kube_reason = 422, "Invalid"

    def __init__(self, message: str, causes: Sequence[Cause] = (), *, title: str = "") -> None:
        super().__init__(message)
        self.causes = tuple(causes)
        self.title = title  # what is invalid, without the causes; "": only the message says it


class Unsatisfiable(Invalid):
    code = "outfitter.claim.unfit"


class Unreadable(OutfitterError):
    """A stored object that cannot be read: it exists, which is why it is not NotFound, and nothing is concluded from it."""

    code = "outfitter.object.unreadable"


class BadRequest(OutfitterError):
    code = "outfitter.bad_request"
    status, kube_reason = 400, "BadRequest"

    field, problem = "", ""  # what is wrong with which part of the request, where it is one

    @classmethod
    def of(cls, field: str, problem: str) -> Self:
        """One field is wrong."""
        error = cls(f"{field}: {problem}")
        error.field, error.problem = field, problem
        return error


class TooLarge(OutfitterError):
    code = "outfitter.too_large"
    status, kube_reason = 413, "RequestEntityTooLarge"


class HeadersTooLarge(OutfitterError):
    code = "outfitter.http.headers"
    status, kube_reason = 431, "RequestHeadersTooLarge"


class SlowRequest(OutfitterError):
    code = "outfitter.http.slow"
    status, kube_reason = 408, "Timeout"


class Unsupported(OutfitterError):
    code = "outfitter.unsupported"
    status, kube_reason = 415, "UnsupportedMediaType"


class MethodNotAllowed(OutfitterError):
    code = "outfitter.kube.method"
    status, kube_reason = 405, "MethodNotAllowed"


class NotAcceptable(OutfitterError):
    code = "outfitter.kube.accept"
    status, kube_reason = 406, "NotAcceptable"


class TooNew(OutfitterError):
    code = "outfitter.kube.revision"
    status, kube_reason = 504, "Timeout"


class TimedOut(OutfitterError):
    code = "outfitter.timed_out"
    status, kube_reason = 504, "Timeout"


class EvaluationError(OutfitterError):
    """As in "no such key: model"."""

    code = "outfitter.cel.evaluation"
    status, kube_reason = 422, "Invalid"
    missing: str = ""  # the key that a map lacks, if that is the error

    @classmethod
    def no_such_key(cls, key: str) -> Self:
        error = cls(f"no such key: {key}")
        error.missing = key
        return error


class Forbidden(OutfitterError):
    code = "outfitter.forbidden"
    status, kube_reason = 403, "Forbidden"


class Terminating(Forbidden):
    """Nothing can be created in a namespace that is being deleted."""

    code = "outfitter.terminating"

    def __init__(self, message: str, namespace: str = "") -> None:
        super().__init__(message)
        self.cause = f"namespace {namespace} is being terminated" if namespace else "the namespace is being terminated"


class Unauthorized(OutfitterError):
    code = "outfitter.unauthorized"
    status, kube_reason = 401, "Unauthorized"


class Unavailable(OutfitterError):
    code = "outfitter.unavailable"
    status, kube_reason = 503, "ServiceUnavailable"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyRequests(Unavailable):
    """The server has as much to do as it may hold in memory."""

    code = "outfitter.too_many_requests"
    status, kube_reason = 429, "TooManyRequests"


class HypervisorAway(Unavailable):
    code = "outfitter.hypervisor.away"


class NotReady(Unavailable):
    """A VM, or the end of one, waits for something on its host or in the cluster. The caller reports why and retries."""

    code = "outfitter.not_ready"


class BindFailed(NotReady):
    """A PCI function has another driver than it should have. To prepare is retried; after unprepare it is quarantined."""

    code = "outfitter.device.bind"

    def __init__(self, address: str, message: str) -> None:
        super().__init__(f"{address} {message}")
        self.address = address


class HypervisorError(OutfitterError):
    """The hypervisor answered and rejected a call; the VM is as it was. What that means depends on the call."""

    code = "outfitter.hypervisor.rejected"


class StartFailed(OutfitterError):
    """A VM cannot start as it is: its pod fails, and starting the same again would fail again."""

    code = "outfitter.vm.start_failed"
    status, kube_reason = 422, "Invalid"


class CommandFailed(OutfitterError):
    """A command of `outfit` cannot be carried out; says why and, where there is one, the command that helps."""

    code = "outfitter.command.failed"
    status, kube_reason = 400, "BadRequest"


class StartupRefused(OutfitterError):
    """This process must not start, or must not go on: its configuration, its files or a host's state would be harmed."""

    code = "outfitter.startup.refused"

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons) or (message,)  # of a host with several: each by itself, without the host


class NoKubeconfig(StartupRefused):
    """No kubeconfig was given, and none was found; one that is invalid is StartupRefused."""

    code = "outfitter.no_kubeconfig"
