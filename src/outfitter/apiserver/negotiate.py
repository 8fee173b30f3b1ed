"""What a client sends and what it wants back: JSON and YAML in, JSON, YAML, Table or metadata alone out.

A body is read strictly: one document, no value that JSON does not have, nothing nested without end, no key twice unseen."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from outfitter.api import yaml_scalars
from outfitter.apiserver import protobuf
from outfitter.errors import BadRequest, NotAcceptable, TooLarge, Unsupported

MAX_BODY = 3 << 20  # bytes, as kube-apiserver
MAX_DEPTH = 128  # levels of nesting in a body or in a patched object
MAX_NODES = 250_000  # values in a YAML body, before and after its aliases are spelt out; more would block other requests
JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Body:
    """A decoded body. `duplicates` are the paths of keys that stood there more than once; the last one counts."""

    value: Any
    duplicates: tuple[str, ...] = ()


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def read(data: bytes, content_type: str) -> Body:
    """An object sent to be created, replaced or used as options."""
    media = media_type(content_type)
    if media in ("", JSON):
        return from_json(data)
    if media in (YAML, "application/x-yaml", "text/yaml"):
        return from_yaml(data)
    if media == PROTOBUF:
        return Body(protobuf.read(data))
    raise Unsupported(
        f"the body of the request was in an unknown format ({media}) - accepted media types include: {JSON}, {YAML}"
    )


def from_json(data: bytes) -> Body:
    try:
        value = _decode(data)
        if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
            check_depth(value)
        return Body(value, _duplicates(data))
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def _too_deep() -> BadRequest:
    return BadRequest(f"the object is nested deeper than {MAX_DEPTH} levels")


def _too_many() -> TooLarge:
    return TooLarge(f"the body has more than {MAX_NODES} values once its aliases are spelt out; JSON may have more")


def check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, dict | list)
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return
    raise _too_deep()


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys as they stand."""


def _duplicates(data: bytes) -> tuple[str, ...]:
    twice = False

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twice
        twice = twice or len({key for key, _ in pairs}) != len(pairs)

    json.loads(data, object_pairs_hook=note, parse_float=_keep, parse_int=_keep)
    if not twice:
        return ()
    return tuple(dict.fromkeys(_repeated(json.loads(data, object_pairs_hook=_Pairs, parse_int=_keep), "")))


def _keep(text: str) -> str:
    return text


def _repeated(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, inner in value:
            here = f"{path}.{key}" if path else key
            if key in seen:
                yield here
            seen.add(key)
            yield from _repeated(inner, here)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _repeated(inner, f"{path}[{place}]")


@yaml_scalars.as_kubectl
class _BodyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml where it is there
    """Plain values only, as in JSON."""


def from_yaml(data: bytes) -> Body:
    try:
        _shallow(data)
        loader = _BodyLoader(data)
        try:
            node = loader.get_single_node()
            duplicates = tuple(dict.fromkeys(_repeated_nodes(node, "", set()))) if node is not None else ()
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
        return Body(_plain(value), duplicates)
    except RecursionError as error:
        raise _too_deep() from error
    except (yaml.YAMLError, ValueError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not YAML: {' '.join(_reason(error).split())}") from error


def _shallow(data: bytes) -> None:
    """Refuse endless nesting before anything recurses into it, and more values than there is time for."""
    depth = 0
    for number, event in enumerate(yaml.parse(data, Loader=_BodyLoader)):
        if number > 2 * MAX_NODES:
            raise _too_many()
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1


def _repeated_nodes(node: yaml.Node, path: str, visited: set[int]) -> Iterator[str]:
    """A node behind an alias is looked at once, so an alias inside its own anchor ends."""
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, inner in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            if isinstance(key.value, str):
                if key.value in seen:
                    yield here
                seen.add(key.value)
            yield from _repeated_nodes(inner, here, visited)
    elif isinstance(node, yaml.SequenceNode):
        for place, inner in enumerate(node.value):
            yield from _repeated_nodes(inner, f"{path}[{place}]", visited)


def _plain(value: Any) -> Any:
    """The value as JSON has it; aliases are spelt out, so they are counted."""
    left = MAX_NODES

    def walk(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _too_many()
        if depth > MAX_DEPTH:
            raise _too_deep()
        if isinstance(value, dict):
            return {_key(key): walk(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, depth + 1) for inner in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise BadRequest(f"the body is not YAML that JSON can say: {value} is no number there")
        if value is None or isinstance(value, str | int | float | bool):
            return value
        raise BadRequest(f"the body is not YAML that JSON can say: it has a {type(value).__name__}")

    return walk(value, 0)


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise BadRequest(f"the body is not YAML that JSON can say: {key!r} cannot be a key")


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """How to answer. `as_` is "", "Table" or "PartialObjectMetadata" (for a list of them too)."""

    media: str = JSON
    as_: str = ""
    version: str = "v1"  # of meta.k8s.io, for Table and PartialObjectMetadata


AS = {"table": "Table", "partialobjectmetadata": "PartialObjectMetadata", "partialobjectmetadatalist": "PartialObjectMetadata"}


def response_format(accept: str, *, streaming: bool = False) -> ResponseFormat:
    """The first thing in the Accept header that can be served."""
    if not accept.strip():
        return ResponseFormat()
    for clause in accept.split(","):
        media, parameters = clause_of(clause)
        if media in (JSON, "*/*", "application/*"):
            if "as" not in parameters:
                return ResponseFormat()
            known = AS.get(parameters["as"].lower())
            if known and parameters.get("g") == "meta.k8s.io" and parameters.get("v") in ("v1", "v1beta1"):
                return ResponseFormat(JSON, known, parameters["v"])
        elif media == YAML and not streaming and "as" not in parameters:
            return ResponseFormat(YAML)
    raise NotAcceptable(f"nothing in Accept ({accept}) can be served; there are {JSON} and, but for a watch, {YAML}")


def clause_of(clause: str) -> tuple[str, Mapping[str, str]]:
    """One clause of an Accept header: "application/json;as=Table;v=v1" as its media type and parameters."""
    media, *pieces = (piece.strip() for piece in clause.split(";"))
    parameters = dict(piece.split("=", 1) for piece in pieces if "=" in piece)
    return media.lower(), parameters


def to_yaml(data: bytes) -> bytes:
    return yaml.dump(_decode(data), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True,
                     default_flow_style=False).encode()
