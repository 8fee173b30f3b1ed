"""Our tables of protobuf fields are those of the published files: names, numbers, types, and which scalars are pointers in
Go."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from outfitter.api import kinds
from outfitter.api.protobuf import message_fields
from outfitter.api.protobuf.message_fields import KINDS, SPECIAL, TABLES
from tests.api.protobuf import kubernetes_messages
from tests.api.protobuf.kubernetes_messages import PACKAGES

SCALARS = {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BOOL: "bool", FieldDescriptor.TYPE_BYTES: "bytes",
           FieldDescriptor.TYPE_INT32: "int", FieldDescriptor.TYPE_INT64: "int"}
UNPUBLISHED = {("v1alpha3", name) for name in ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")}


def test_every_version_of_the_built_in_kinds_is_read() -> None:
    served = {(version, kind.kind): kind.api_version_of(version)
              for kind in kinds.ALL if kind.builtin for version in kind.versions}
    assert {name for name, api_version in served.items() if name[1] not in KINDS.get(api_version, ())} == UNPUBLISHED
    assert all(kind in TABLES[api_version] for api_version, names in KINDS.items() for kind in names)


def test_messages_do_not_contain_themselves() -> None:
    """So a body cannot be nested deeper than the tables are."""
    def depth(api_version: str, name: str, outer: tuple[str, ...]) -> int:
        assert name not in outer
        inner = [field.type for field in message_fields.fields(api_version, name) if field.type in TABLES[api_version]]
        return 1 + max((depth(api_version, each, (*outer, name)) for each in inner), default=0)

    assert max(depth(api_version, name, ()) for api_version, names in KINDS.items() for name in names) < 20


@pytest.fixture(scope="module")
def published() -> Path:
    folder = kubernetes_messages.published_folder()
    if folder is None:
        pytest.skip("needs the published protobuf files of Kubernetes; scripts/kubelet-protos fetches them")
    return folder


@pytest.mark.parts
@pytest.mark.parametrize("api_version", KINDS)
def test_the_tables_are_those_of_the_published_files(published: Path, api_version: str) -> None:
    pool = kubernetes_messages.published_pool(published)
    go = kubernetes_messages.pointers(published)
    todo = [pool.FindMessageTypeByName(f"{PACKAGES[api_version]}.{kind}") for kind in KINDS[api_version]]
    todo.append(pool.FindMessageTypeByName("k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions"))
    seen = set()
    while todo:
        message = todo.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        group, version = message.full_name.split(".")[-3:-1]
        pointers = go[f"{group}-{version}"][message.name]
        theirs = {(field.name, field.number, type_of(field), form(field, pointers)) for field in message.fields}
        ours = {(field.name, field.number, field.type, field.form.replace("!", ""))
                for field in message_fields.fields(api_version, message.name)}
        assert ours == theirs, message.full_name
        todo += [inner for field in message.fields
                 if (inner := content(field).message_type) is not None and inner.name not in SPECIAL]
    assert len(seen) > 5


def is_map(field: FieldDescriptor) -> bool:
    inner: Descriptor | None = field.message_type
    return inner is not None and inner.GetOptions().map_entry


def content(field: FieldDescriptor) -> FieldDescriptor:
    return field.message_type.fields_by_name["value"] if is_map(field) and field.message_type is not None else field


def type_of(field: FieldDescriptor) -> str:
    value = content(field)
    return value.message_type.name if value.message_type is not None else SCALARS[value.type]


def form(field: FieldDescriptor, pointers: set[str]) -> str:
    if is_map(field):
        return "{}"
    if field.is_repeated:
        return "[]"
    return "?" if field.message_type is None and field.name in pointers else ""
