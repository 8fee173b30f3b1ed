"""Decodes objects and watch events of an API server without `metadata.managedFields`: who wrote which field is read by no role,
and is up to half of an object. It is skipped while the JSON is parsed, which costs less than to build it and throw it away.

Called by `kube.Kube` for kinds that have metadata, spec and status alone; other fields at their top would be lost. A write
without managedFields leaves them to the server."""

from __future__ import annotations

from typing import Any, TypedDict, cast

import msgspec

from outfitter.api import kinds
from outfitter.api.kinds import Object

KINDS = frozenset({kinds.VM, kinds.VMI, kinds.MIGRATION, kinds.POD, kinds.NODE, kinds.RESOURCE_CLAIM, kinds.RESOURCE_SLICE,
                   kinds.LEDGER_PAGE})


class _Metadata(TypedDict, total=False):
    """ObjectMeta of Kubernetes, without managedFields."""

    name: Any
    generateName: Any
    namespace: Any
    selfLink: Any
    uid: Any
    resourceVersion: Any
    generation: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    deletionGracePeriodSeconds: Any
    labels: Any
    annotations: Any
    ownerReferences: Any
    finalizers: Any


class _Decoded(TypedDict, total=False):
    apiVersion: Any
    kind: Any
    metadata: _Metadata
    spec: Any
    status: Any


class _DecodedEvent(TypedDict, total=False):
    type: Any
    object: _Decoded


_OBJECT, _EVENT = msgspec.json.Decoder(_Decoded), msgspec.json.Decoder(_DecodedEvent)
_WHOLE: msgspec.json.Decoder[Object] = msgspec.json.Decoder(dict)


def decode(payload: bytes) -> Object:
    """An object as it is. DecodeError: not a JSON object."""
    return _WHOLE.decode(payload)


def decode_object(payload: bytes) -> Object:
    """One of `KINDS`, or a Status as it is."""
    try:
        decoded = cast(Object, _OBJECT.decode(payload))
    except msgspec.ValidationError:  # metadata that is none: for its readers to see
        return decode(payload)
    return decoded if decoded.get("kind") != "Status" else decode(payload)


def decode_event(payload: bytes) -> Object:
    """A watch event about one of `KINDS`; an ERROR as it is, as its object is a Status."""
    try:
        decoded = cast(Object, _EVENT.decode(payload))
    except msgspec.ValidationError:
        return decode(payload)
    return decoded if decoded.get("type") != "ERROR" else decode(payload)
