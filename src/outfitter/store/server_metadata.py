"""Metadata that only the store sets, and what it sets where a stored object has a malformed value there: writers cannot change
these fields, and without this rule no write could repair such an object. Called by `transaction` at each update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.store import base
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.id_generator import IdGenerator

FIELDS = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp",
          "deletionGracePeriodSeconds")


class MetadataSource(Protocol):
    """Where new values come from."""

    clock: Clock
    names: IdGenerator
    rules: base.Rules


def repaired(kind: Kind, old: Object, new: Mapping[str, Any], source: MetadataSource) -> Object:
    """The stored metadata, with values in place of malformed ones: those of the new metadata where they are well-formed. A
    malformed deletionTimestamp is removed: a deletion can be requested again, a deleted object cannot be restored."""
    meta: Object = {**old["metadata"]}
    if not _is_uid(meta.get("uid")):
        meta["uid"] = new["uid"] if _is_uid(new.get("uid")) else source.names.uid()
    if not readable.is_time(meta.get("creationTimestamp")):
        given = new.get("creationTimestamp")
        meta["creationTimestamp"] = given if readable.is_time(given) else rfc3339(source.clock.now())
    if "generation" in meta and type(meta["generation"]) is not int:
        meta["generation"] = 1
    if "deletionTimestamp" in meta and not readable.is_time(meta["deletionTimestamp"]):
        del meta["deletionTimestamp"]
        meta.pop("deletionGracePeriodSeconds", None)
    if "deletionGracePeriodSeconds" in meta and type(meta["deletionGracePeriodSeconds"]) is not int:
        meta["deletionGracePeriodSeconds"] = source.rules.grace(kind, old, None)
    return meta


def _is_uid(value: Any) -> bool:
    return isinstance(value, str) and value != ""
