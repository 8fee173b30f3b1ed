"""The answer to "why" for an object that cannot be read, and for one that needs such an object. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api import kinds, rejection
from outfitter.api.kinds import Kind, Object
from outfitter.api.rejection import RejectionCode
from outfitter.api.validate.readable import UnreadableObject
from outfitter.errors import Unreadable
from outfitter.scheduling.explain.explanation import Explanation

SHORT: Mapping[Kind, str] = {kinds.VMI: "vmi", kinds.VM: "vm", kinds.POD: "pod", kinds.RESOURCE_CLAIM: "claim"}
REPAIR = "repair"  # what it waits for


def unreadable_object(found: UnreadableObject) -> Explanation:
    meta = found.reference()["metadata"]
    field = f"{found.cause.field}: " if found.cause.field else ""
    return Explanation(f"{SHORT[found.kind]}/{meta['name']}", meta["namespace"], "Unreadable",
                       f"cannot be read and is skipped: {field}{found.cause.message}", REPAIR,
                       todo=(f"repair or delete it: {found.repair}",), rejections=(rejection.unreadable(found),))


def needs_unreadable(kind: Kind, obj: Object, error: Unreadable) -> Explanation:
    meta = obj["metadata"]
    return Explanation(f"{SHORT[kind]}/{meta['name']}", meta["namespace"], "Waiting", f"waits: {error.message}", REPAIR,
                       rejections=(rejection.of_error(error, RejectionCode.OBJECT_UNREADABLE),))
