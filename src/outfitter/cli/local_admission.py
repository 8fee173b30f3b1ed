"""Objects of files as a server would take them: the same questions as at its door, asked before anything is sent, or where
nothing is sent at all."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from outfitter.api import kinds, known_fields, versions, write_request
from outfitter.api.admission import AdmissionRules
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest

NIL = "00000000-0000-0000-0000-000000000000"  # uid of an object that no server has stored


def as_stored(kind: Kind, obj: Object) -> tuple[Kind, Object]:
    """The kind of ours that an object of any version is, and the object as that is stored. BadRequest: it has fields that are
    not known. What a server kept may be older than what we know, and its status is not for people to write."""
    own = next(each for each in kinds.ALL if each.resource == kind.resource)
    settled = known_fields.settle(own, obj)
    written = {} if _kept(settled) else {name: part for name, part in settled.items() if name != "status"}
    if strange := known_fields.unknown(own, kind.version, written):
        words = ", ".join(f'unknown field "{path}"' for path in strange)
        raise BadRequest(f'{own.kind} in version "{kind.version}" cannot be handled as a {own.kind}: strict decoding '
                         f"error: {words}")
    return own, versions.to_stored(own, kind.version, settled)


def admitted(kind: Kind, obj: Object, rules: AdmissionRules, kubevirts: Iterable[Object] = ()) -> Object:
    """With what a server fills in. Invalid: all causes for which it would be refused, under what the KubeVirt object says. What
    a server kept was let in by one, under the rules of its time."""
    settings = [each for each in kubevirts if kind != kinds.KUBEVIRT]  # one that comes may take the place of the one there
    return rules.admit(write_request.WriteRequest(
        "update" if _kept(obj) else "create", kind, copy.deepcopy(obj), obj if _kept(obj) else None, look=_there,
        every=lambda wanted: settings if wanted == kinds.KUBEVIRT else ()))


def _kept(obj: Object) -> bool:
    return bool(obj["metadata"].get("resourceVersion"))


def _there(kind: Kind, namespace: str, name: str) -> Object | None:
    """A namespace that is missing may yet come."""
    return {"metadata": {"name": name}} if kind == kinds.NAMESPACE else None
