"""Kubernetes' messages with Google's protobuf library, as a second implementation beside ours: from the published definitions
where they are found (`scripts/kubelet-protos`), else with the field numbers of our tables."""

from __future__ import annotations

import base64
import functools
import json
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from outfitter.api.protobuf import message_fields
from outfitter.api.protobuf.message_fields import SPECIAL, TABLES, MessageField
from tests.node.kubelet.kubelet_client import SCRIPT

Pool = descriptor_pool.DescriptorPool
Field = descriptor_pb2.FieldDescriptorProto
MAGIC = b"k8s\x00"
PACKAGES = {"v1": "k8s.io.api.core.v1", **{
    version: f"k8s.io.api.{version.replace('.k8s.io/', '.')}" for version in TABLES if version != "v1"}}
# Messages whose form in JSON is not that of their fields; 1: of their fields in protobuf.
SPECIAL_FIELDS = {"Time": "seconds:1:int nanos:2:int", "MicroTime": "seconds:1:int nanos:2:int", "Quantity": "string:1",
                  "IntOrString": "type:1:int intVal:2:int strVal:3", "RawExtension": "raw:1:bytes", "FieldsV1": "Raw:1:bytes"}
TYPES = {"": Field.TYPE_STRING, "int": Field.TYPE_INT64, "bool": Field.TYPE_BOOL, "bytes": Field.TYPE_BYTES}


def published_folder() -> Path | None:
    found = subprocess.run([SCRIPT, "--path"], capture_output=True, text=True, check=False)
    return None if found.returncode else Path(found.stdout.strip()) / "kinds"


def published_pool(folder: Path) -> Pool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((folder / "all.binpb").read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@functools.cache
def table_pool() -> Pool:
    """Messages with the names, numbers and types of our tables."""
    pool = descriptor_pool.DescriptorPool()
    for api_version, table in TABLES.items():
        file = descriptor_pb2.FileDescriptorProto(name=api_version, package=PACKAGES[api_version], syntax="proto2")
        for name in table:
            _define(file, name, message_fields.fields(api_version, name))
        for name, words in SPECIAL_FIELDS.items():
            _define(file, name, [MessageField(each[0], int(each[1]), each[2], "")
                                 for each in ((word + ":").split(":") for word in words.split())])
        pool.AddSerializedFile(file.SerializeToString())
    unknown = descriptor_pb2.FileDescriptorProto(name="unknown", package="k8s.io.apimachinery.pkg.runtime", syntax="proto2")
    _define(unknown, "TypeMeta", [MessageField("apiVersion", 1, "", ""), MessageField("kind", 2, "", "")])
    _define(unknown, "Unknown", [MessageField("typeMeta", 1, "TypeMeta", ""), MessageField("raw", 2, "bytes", ""),
                                 MessageField("contentEncoding", 3, "", ""), MessageField("contentType", 4, "", "")])
    pool.AddSerializedFile(unknown.SerializeToString())
    return pool


def _define(file: Any, name: str, fields: Any) -> None:
    message = file.message_type.add(name=name)
    for field in fields:
        made = message.field.add(name=field.name, number=field.number)
        made.label = Field.LABEL_REPEATED if field.form in ("[]", "{}") else Field.LABEL_OPTIONAL
        if field.form == "{}":
            entry = message.nested_type.add(name=field.name[0].upper() + field.name[1:] + "Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
            _typed(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL), file.package, field.type)
            made.type, made.type_name = Field.TYPE_MESSAGE, f".{file.package}.{name}.{entry.name}"
        else:
            _typed(made, file.package, field.type)


def _typed(made: Any, package: str, type_: str) -> None:
    if type_ in TYPES:
        made.type = TYPES[type_]
    else:
        made.type, made.type_name = Field.TYPE_MESSAGE, f".{package}.{type_}"


def message_class(pool: Pool, api_version: str, name: str) -> Any:
    package = "k8s.io.apimachinery.pkg.apis.meta.v1" if name == "DeleteOptions" and pool is not table_pool() else (
        PACKAGES[api_version])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def envelope(api_version: str, kind: str, raw: bytes, pool: Pool | None = None) -> bytes:
    found = (pool or table_pool()).FindMessageTypeByName("k8s.io.apimachinery.pkg.runtime.Unknown")
    unknown: Any = message_factory.GetMessageClass(found)
    return MAGIC + bytes(unknown(
        typeMeta={"apiVersion": api_version, "kind": kind}, raw=raw, contentEncoding="", contentType="").SerializeToString())


def encode(pool: Pool, api_version: str, kind: str, value: Mapping[str, Any], *, zeros: bool) -> bytes:
    """`zeros`: the zero values of what is no pointer are written, as Go does."""
    message = message_class(pool, api_version, kind)()
    _fill(message, api_version, kind, value, zeros)
    return bytes(message.SerializeToString())


def _fill(message: Any, api_version: str, name: str, value: Mapping[str, Any], zeros: bool) -> None:
    for field in message_fields.fields(api_version, name):
        if field.form == "!":
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(inner, api_version, field.type, value, zeros)
            continue
        content = value.get(field.name)
        if content is None:
            if zeros and field.form == "" and field.type in ("", "int", "bool"):
                setattr(message, field.name, {"": "", "int": 0, "bool": False}[field.type])
            continue
        target = getattr(message, field.name)
        if field.form == "{}":
            for key, item in content.items():
                if field.type in TYPES:
                    target[key] = _scalar(field.type, item)
                else:
                    _fill_one(target[key], api_version, field.type, item, zeros)
        elif field.form == "[]":
            for item in content:
                if field.type in TYPES:
                    target.append(_scalar(field.type, item))
                else:
                    _fill_one(target.add(), api_version, field.type, item, zeros)
        elif field.type in TYPES:
            setattr(message, field.name, _scalar(field.type, content))
        else:
            _fill_one(target, api_version, field.type, content, zeros)


def _scalar(type_: str, value: Any) -> Any:
    return base64.b64decode(value) if type_ == "bytes" else value


def _fill_one(message: Any, api_version: str, type_: str, value: Any, zeros: bool) -> None:
    message.SetInParent()
    if type_ not in SPECIAL:
        _fill(message, api_version, type_, value, zeros)
    elif type_ in ("Time", "MicroTime"):
        at = datetime.fromisoformat(value)
        message.seconds, message.nanos = int(at.replace(microsecond=0).timestamp()), at.microsecond * 1000
    elif type_ == "Quantity":
        message.string = value
    elif type_ == "IntOrString":
        message.type = int(isinstance(value, str))
        setattr(message, "strVal" if message.type else "intVal", value)
    else:
        setattr(message, "raw" if type_ == "RawExtension" else "Raw", json.dumps(value).encode())


def pointers(folder: Path) -> dict[str, dict[str, set[str]]]:
    """By file of Go types and struct, the fields that are pointers, by their name in protobuf."""
    out: dict[str, dict[str, set[str]]] = {}
    for path in folder.glob("*.go"):
        structs = out.setdefault(path.stem, {})
        for name, content in re.findall(r"^type (\w+) struct \{\n(.*?)^\}", path.read_text(), re.MULTILINE | re.DOTALL):
            structs[name] = set(re.findall(r'^\t\w+ \*\S+ +`.*?protobuf:"[^"]*?name=(\w+)', content, re.MULTILINE))
    return out
