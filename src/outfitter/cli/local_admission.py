"""Admission of manifests on the client, with the rules of the embedded API server: before anything is sent (`outfit plan`), or
where nothing is sent at all (`outfit domxml -f`). Sends nothing itself."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from outfitter.api import kinds, known_fields, versions, write_request
from outfitter.api.admission import AdmissionRules
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest

NIL = "00000000-0000-0000-0000-000000000000"  # uid of an object that no server has stored


def as_stored(kind: Kind, obj: Object) -> tuple[Kind, Object]:
    """The stored kind of an object of any version, and the object converted to it. BadRequest: it has unknown fields. Fields of
    an object that a server stored are not checked, since its version may differ, nor is status, which users do not write."""
    own = next(known for known in kinds.ALL if known.resource == kind.resource)
    settled = known_fields.normalize(own, obj)
    written = {} if _is_stored(settled) else {name: part for name, part in settled.items() if name != "status"}
    if unknown := known_fields.unknown(own, kind.version, written):
        words = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise BadRequest(f'{own.kind} in version "{kind.version}" cannot be handled as a {own.kind}: strict decoding '
                         f"error: {words}")
    return own, versions.to_stored(own, kind.version, settled)


def admitted(kind: Kind, obj: Object, rules: AdmissionRules, kubevirts: Iterable[Object] = ()) -> Object:
    """The object with the defaults that a server fills in. Invalid: all causes for which admission would reject it under the
    KubeVirt object's configuration. An object that a server has stored is checked as an update of itself."""
    settings = [kubevirt for kubevirt in kubevirts if kind != kinds.KUBEVIRT]  # a new KubeVirt may replace the existing one
    return rules.admit(write_request.WriteRequest(
        "update" if _is_stored(obj) else "create", kind, copy.deepcopy(obj), obj if _is_stored(obj) else None, look=_namespace,
        every=lambda wanted: settings if wanted == kinds.KUBEVIRT else ()))


def _is_stored(obj: Object) -> bool:
    return bool(obj["metadata"].get("resourceVersion"))


def _namespace(kind: Kind, namespace: str, name: str) -> Object | None:
    """Every namespace counts as existing: it may be created before the object is."""
    return {"metadata": {"name": name}} if kind == kinds.NAMESPACE else None
