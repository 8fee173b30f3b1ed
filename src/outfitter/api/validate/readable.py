"""Whether a stored object can be read: every field that is read has the type that its readers rely on.

Admission refuses such objects, but a store may have them from before, and a cluster keeps whatever our kinds contain. The
informers and `store.readable_store` ask here once for each version of an object and leave out those that cannot be read, so
that no reader has to check types. Pure.

    problem(kinds.RESOURCE_SLICE, slice)    # Cause("spec.nodeSelector", 'Invalid value: "0": must be an object'), or None

A page is read entry by entry (`booking`): it is unreadable only where its lists are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.booking import OUT_OF_SERVICE_STATES
from outfitter.api.validate import node_placement, schema, slices
from outfitter.errors import Cause, Unreadable, shortened


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """A stored object that cannot be read, and its first field that is wrong."""

    kind: Kind
    key: str  # "namespace/name", or "name"
    object: Object  # as it is stored: nothing in it has a known type but its name and namespace
    cause: Cause

    def __str__(self) -> str:
        field = f"{self.cause.field}: " if self.cause.field else ""
        return f"{self.kind.kind} {self.key} cannot be read: {field}{self.cause.message}"

    @property
    def repair(self) -> str:
        """What to type to correct or to remove it."""
        namespace, _, name = self.key.rpartition("/")
        return f"kubectl edit {self.kind.resource} {name}{f' -n {namespace}' if namespace else ''}"

    def error(self) -> Unreadable:
        return Unreadable(f"{self}; repair or delete it: {self.repair}")

    def reference(self) -> Object:
        """The object without anything that may be wrong, for events about it."""
        meta = self.object.get("metadata")
        namespace, _, name = self.key.rpartition("/")
        known = {field: meta[field] for field in ("uid", "resourceVersion")
                 if isinstance(meta, dict) and isinstance(meta.get(field), str)}
        return {"apiVersion": self.kind.api_version, "kind": self.kind.kind,
                "metadata": {"name": name, **({"namespace": namespace} if namespace else {}), **known}}


def problem(kind: Kind, obj: Any, old: Object | None = None) -> Cause | None:
    """The first field of an object that cannot be read; None: all of it can. `old`: an earlier version that could be read; a
    part that is the identical value there is not checked again."""
    try:
        wrong = next(_causes(kind, obj, old), None)
    except Exception as error:  # what no check foresees is unreadable as well
        wrong = Cause("", f"Invalid value: {error!r}")
    return Cause(shortened(wrong.field), shortened(wrong.message), wrong.reason) if wrong is not None else None


def unreadable(kind: Kind, obj: Object) -> UnreadableObject | None:
    wrong = problem(kind, obj)
    return UnreadableObject(kind, _key(obj), obj, wrong) if wrong is not None else None


def metadata_problem(kind: Kind, obj: Any) -> Cause | None:
    """The same for metadata alone, for readers of nothing else."""
    return next(schema.check("", obj), None) or next(_values(obj["metadata"]), None)


def readable_part(kind: Kind, obj: Object) -> Object | None:
    """A copy without the fields that have the wrong type; None where not even its metadata is left."""
    part = schema.without_wrong(kind.kind, obj)
    return part if metadata_problem(kind, part) is None else None


def _key(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _causes(kind: Kind, obj: Any, old: Object | None) -> Iterator[Cause]:
    if not isinstance(obj, dict):
        yield Cause("", "Invalid value: must be an object", "FieldValueTypeInvalid")
    name = "" if kind == kinds.LEDGER_PAGE else kind.kind
    if not schema.conforms(name, obj, old):
        yield from schema.check(name, obj)
    yield from _values(obj["metadata"])
    if kind in SPECIFIED and not isinstance(obj.get("spec"), dict):
        yield Cause("spec", "Required value", "FieldValueRequired")
    if kind in CHECKS and (old is None or obj.get("spec") is not old.get("spec")):
        yield from CHECKS[kind](obj)


def _values(meta: Object) -> Iterator[Cause]:
    """Of metadata: what an API server sets, and every stored object has."""
    if not meta.get("uid"):
        yield Cause("metadata.uid", "Required value", "FieldValueRequired")
    for field in ("creationTimestamp", *(("deletionTimestamp",) if meta.get("deletionTimestamp") is not None else ())):
        if not is_time(meta.get(field)):
            yield Cause(f"metadata.{field}", f"Invalid value: {meta.get(field)!r}: must be a time such as 2026-01-31T12:04:00Z")
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield Cause(f"metadata.ownerReferences[{index}].{field}", "Required value", "FieldValueRequired")


def is_time(text: Any) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _page(obj: Object) -> Iterator[Cause]:
    """Who reads a page skips entries that are wrong; a list that is none may have held any device."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        yield Cause("spec", "Invalid value: must be an object", "FieldValueTypeInvalid")
        return
    for field in ("bookings", *OUT_OF_SERVICE_STATES):
        if not isinstance(spec.get(field), list | None):
            yield Cause(f"spec.{field}", "Invalid value: must be a list", "FieldValueTypeInvalid")


def _slice(obj: Object) -> Iterator[Cause]:
    """A selector without an answer would be asked for every pod."""
    spec = obj["spec"]
    places = [("spec", spec), *((f"spec.devices[{index}]", device) for index, device in enumerate(spec.get("devices") or ()))]
    for path, place in places:
        if place.get("nodeSelector") is not None:
            yield from node_placement.node_selector(place["nodeSelector"], f"{path}.nodeSelector")
    yield from slices.unreadable_devices(obj)


# Besides types. Values of the right type that no reader understands are rejections of what asks for them, not of the object.
CHECKS: Mapping[Kind, Callable[[Object], Iterator[Cause]]] = {
    kinds.LEDGER_PAGE: _page, kinds.RESOURCE_SLICE: _slice}
# Kinds of which no reader expects that they may have no spec.
SPECIFIED = frozenset({kinds.POD, kinds.VMI, kinds.VM, kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE})
