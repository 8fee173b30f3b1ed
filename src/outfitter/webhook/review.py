"""AdmissionReview of admission.k8s.io/v1: what the API server posts, as a value, and what it is answered. Pure; called by
`admission_webhook`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outfitter.api import kinds
from outfitter.api import patch as patches
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
ANONYMOUS = "system:anonymous"  # never "": that is one of our own controllers


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One write, as the API server asks about it."""

    uid: str  # of the request: the answer repeats it
    operation: str  # CREATE, UPDATE, DELETE, CONNECT
    kind: Kind | None  # None: none of those that we know
    resource: str  # for messages
    subresource: str
    name: str  # "" where it is still to be generated
    user: str
    object: Object | None  # None for DELETE
    old: Object | None  # None for CREATE


def read(posted: bytes) -> AdmissionRequest:
    """The request in an AdmissionReview. BadRequest: it is none."""
    try:
        review = msgspec.json.decode(posted)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(review, dict) or (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise BadRequest(f"the body must be an {KIND} of {API_VERSION}")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise BadRequest("the AdmissionReview has no request with a uid")
    resource, user = _object(request, "resource"), _object(request, "userInfo")
    group, plural = str(resource.get("group") or ""), str(resource.get("resource") or "")
    return AdmissionRequest(
        request["uid"], str(request.get("operation") or ""),
        next((kind for kind in kinds.ALL if (kind.group, kind.plural) == (group, plural)), None),
        f"{plural}.{group}" if group else plural, str(request.get("subResource") or ""), str(request.get("name") or ""),
        str(user.get("username") or ANONYMOUS), _optional(request, "object"), _optional(request, "oldObject"))


def _object(parent: Object, field: str) -> Object:
    found = parent.get(field)
    return found if isinstance(found, dict) else {}


def _optional(parent: Object, field: str) -> Object | None:
    found = parent.get(field)
    if found is not None and not isinstance(found, dict):
        raise BadRequest(f"request.{field} of the AdmissionReview must be an object")
    return found


def allowed(uid: str, *, patch: Sequence[Object] = (), warnings: Sequence[str] = ()) -> Object:
    response: Object = {"uid": uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    if warnings:
        response["warnings"] = list(warnings)
    return _review(response)


def denied(uid: str, status: Object) -> Object:
    """Refused with a Status; the API server passes on its code, reason, message and causes."""
    return _review({"uid": uid, "allowed": False, "status": status})


def _review(response: Object) -> Object:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def difference(old: Any, new: Any, path: str = "") -> list[Object]:
    """The JSON patch that makes `new` of `old`. Lists are replaced whole."""
    if patches.same(old, new):
        return []
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [{"op": "replace", "path": path, "value": new}]
    out: list[Object] = []
    for key in sorted(old.keys() | new.keys()):
        at = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
        if key not in new:
            out.append({"op": "remove", "path": at})
        elif key not in old:
            out.append({"op": "add", "path": at, "value": new[key]})
        else:
            out += difference(old[key], new[key], at)
    return out
