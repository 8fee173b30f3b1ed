"""Of a pod, its claims and its pod group."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text.rendering import Sentence, Wording, message, plain, taint_text

_Code = RejectionCode


def _claim_missing(rejection: Rejection, wording: Wording) -> str:
    return f"claim {rejection['claim']} (resourceClaims entry {rejection['entry']}) does not exist"


def _claim_not_created(rejection: Rejection, wording: Wording) -> str:
    return f'claim {rejection["entry"]} is not created yet: is there a ResourceClaimTemplate "{rejection["template"]}"?'


def _claim_name_taken(rejection: Rejection, wording: Wording) -> str:
    owners = ", ".join(rejection["owners"]) or "no object"
    return (f"claim {rejection['claim']} belongs to {owners} and not to pod {rejection['pod']}, for which a claim of this name "
            "is created; delete it, and the pod is scheduled")


def _claim_in_use(rejection: Rejection, wording: Wording) -> str:
    users = rejection.detail.get("users") or [f"pod/{name}" for name in rejection["pods"]]
    return f"claim {rejection['claim']} is in use by {', '.join(users)}"


def _claim_device_tainted(rejection: Rejection, wording: Wording) -> str:
    device = rejection.device.short if rejection.device is not None else "a device"
    claim = rejection.detail.get("claim")
    return f"{f'claim {claim} keeps ' if claim else ''}{device}, which has the taint {taint_text(rejection)}"


def _request_missing(rejection: Rejection, wording: Wording) -> str:
    return (f'claim {rejection["claim"]} has no request "{rejection["request"]}"; it has '
            f"{', '.join(rejection['requests']) or 'none'}")


def _class_missing(rejection: Rejection, wording: Wording) -> str:
    return f"{rejection['where']}: there is no DeviceClass {rejection['class']}"


def _feature_disabled(rejection: Rejection, wording: Wording) -> str:
    where = rejection.detail.get("where")
    return f"{where}: {rejection['what']}, but the {rejection['feature']} feature is disabled" + (
        f": {rejection['instead']}" if rejection.detail.get("instead") else "") if where else (
        f"{rejection['what']}, and the {rejection['feature']} feature is disabled")


def _assigned_missing(rejection: Rejection, wording: Wording) -> str:
    host = rejection.detail.get("host")
    return f"{rejection['id']} ({rejection['resource']}) does not exist{f' on {host}' if host else ''}"


def _assigned_ambiguous(rejection: Rejection, wording: Wording) -> str:
    return f"{rejection['id']} ({rejection['resource']}) may be any of {', '.join(rejection['devices'])}: write host/device"


def _assigned_elsewhere(rejection: Rejection, wording: Wording) -> str:
    if "id" not in rejection.detail:
        return "it lacks the pre-assigned devices"
    return f"{rejection['id']} is on {', '.join(rejection['hosts']) or 'no host'}"


SENTENCES: Mapping[RejectionCode, Sentence] = {
    _Code.NO_HOST: plain("there is no host"),
    _Code.POD_INVALID: message,
    _Code.OBJECT_UNREADABLE: message,
    _Code.CLAIM_MISSING: _claim_missing,
    _Code.CLAIM_NOT_CREATED: _claim_not_created,
    _Code.CLAIM_NAME_TAKEN: _claim_name_taken,
    _Code.CLAIM_DELETING: lambda rejection, wording: f"claim {rejection['claim']} is being deleted",
    _Code.CLAIM_IN_USE: _claim_in_use,
    _Code.CLAIM_DEVICE_TAINTED: _claim_device_tainted,
    _Code.CLAIM_INVALID: message,
    _Code.REQUEST_MISSING: _request_missing,
    _Code.CLASS_MISSING: _class_missing,
    _Code.FEATURE_DISABLED: _feature_disabled,
    _Code.POD_GROUP_INCOMPLETE: lambda rejection, wording: (
        f"pod group {rejection['group']} has {rejection['members']} of at least {rejection['wanted']} pods: it waits for the "
        "others"
    ),
    _Code.POD_GROUP_TOO_FEW_HOSTS: lambda rejection, wording: (
        f"there are not enough hosts available for pod group {rejection['group']}: {rejection['placed']} of at least "
        f"{rejection['wanted']} pods can be placed together"
    ),
    _Code.ASSIGNED_DEVICE_MISSING: _assigned_missing,
    _Code.ASSIGNED_DEVICE_AMBIGUOUS: _assigned_ambiguous,
    _Code.ASSIGNED_DEVICE_ELSEWHERE: _assigned_elsewhere,
    _Code.ASSIGNED_RESOURCE_OFFERED: lambda rejection, wording: (
        f"it offers {', '.join(rejection['resources'])} itself, so its devices cannot be pre-assigned"
    ),
}
