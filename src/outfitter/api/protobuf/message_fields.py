"""The fields of a message, from the tables beside this module. A table has one line per message, with words

    name:number[:type][form]

`name` is that of JSON. Without a type the field is a string; "int" and "bool" are varints, "bytes" is base64 in JSON, "Time",
"MicroTime", "Quantity", "IntOrString", "RawExtension" and "FieldsV1" have a form of their own in JSON, all others are messages.
The form is `[]` repeated, `{}` a map with string keys, `!` a message whose fields JSON has in the outer object, `?` a scalar
that is a pointer in Go: its zero value differs from its absence. Go writes the zero value of all other scalars as well."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from outfitter.api.protobuf import core_messages, pod_messages, resource_messages

_WORD = re.compile(r"(\w+):(\d+)(?::(\w+))?(\[\]|\{\}|!|\?)?(?: |$)")
SCALARS = ("", "int", "bool", "bytes")
SPECIAL = ("Time", "MicroTime", "Quantity", "IntOrString", "RawExtension", "FieldsV1")
DELETE_OPTIONS = "DeleteOptions"  # may be sent to every group under its own apiVersion
_SHARED = {**pod_messages.MESSAGES, **core_messages.META}
# By apiVersion.
TABLES: Mapping[str, Mapping[str, str]] = {
    "v1": {**_SHARED, **core_messages.CORE},
    "coordination.k8s.io/v1": {**_SHARED, **core_messages.COORDINATION},
    "resource.k8s.io/v1": {**_SHARED, **resource_messages.V1},
    "resource.k8s.io/v1beta2": {**_SHARED, **resource_messages.V1},
    "resource.k8s.io/v1beta1": {**_SHARED, **resource_messages.V1, **resource_messages.V1BETA1},
    "resource.k8s.io/v1alpha3": {**_SHARED, **resource_messages.V1, **resource_messages.V1ALPHA3},
}
_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")
# The kinds that are sent in requests, by apiVersion.
KINDS: Mapping[str, tuple[str, ...]] = {
    "v1": ("Namespace", "Node", "Pod", "Binding", "Event", "ConfigMap", "Secret", "ServiceAccount"),
    "coordination.k8s.io/v1": ("Lease",),
    "resource.k8s.io/v1": _CLAIMS,
    "resource.k8s.io/v1beta2": (*_CLAIMS, "DeviceTaintRule"),
    "resource.k8s.io/v1beta1": _CLAIMS,
    "resource.k8s.io/v1alpha3": ("DeviceTaintRule", "ResourcePoolStatusRequest"),
}


@dataclass(frozen=True, slots=True)
class MessageField:
    name: str
    number: int
    type: str
    form: str  # "[]", "{}", "!", "?" or ""

    @property
    def varint(self) -> bool:
        return self.type in ("int", "bool")


@functools.cache
def fields(api_version: str, message: str) -> tuple[MessageField, ...]:
    words = _WORD.findall(TABLES[api_version][message])
    return tuple(MessageField(name, int(number), type_, form) for name, number, type_, form in words)


@functools.cache
def by_number(api_version: str, message: str) -> Mapping[int, MessageField]:
    return {field.number: field for field in fields(api_version, message)}
