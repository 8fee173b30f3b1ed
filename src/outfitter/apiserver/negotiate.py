"""What a client sends and what it wants back: JSON, YAML and protobuf in, JSON, YAML, Table or metadata alone out.

A body is read strictly: one document, no value that JSON does not have, nothing nested without end, no key twice unseen."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from outfitter.apiserver import body_limits, protobuf, yaml_body
from outfitter.apiserver.body_limits import MAX_DEPTH, MAX_DUPLICATES, MAX_KEY, MAX_VALUES, Path
from outfitter.errors import BadRequest, NotAcceptable, Unsupported

MAX_BODY = 3 << 20  # bytes, as kube-apiserver
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
        return Body(protobuf.read(data, lambda text: from_json(text).value))
    raise Unsupported(
        f"the body of the request was in an unknown format ({media}) - accepted media types include: {JSON}, {YAML}, "
        f"{PROTOBUF}"
    )


def from_json(data: bytes) -> Body:
    try:
        if _values_at_most(data) > MAX_VALUES and _values_at_most(_without_texts(data)) > MAX_VALUES:
            raise body_limits.too_many_values()
        value = _decode(data)
        if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
            body_limits.check_size(value)
        return Body(value, _duplicates(data))
    except RecursionError as error:
        raise body_limits.too_deep() from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def _values_at_most(data: bytes) -> int:
    """A bound of the number of values, which costs next to nothing."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _without_texts(data: bytes) -> bytes:
    """JSON without what is in quotes."""
    return b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys as they stand."""


def _duplicates(data: bytes) -> tuple[str, ...]:
    twice = False

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twice
        keys = {key for key, _ in pairs}
        twice = twice or len(keys) != len(pairs)
        for key in keys:
            if len(key) > MAX_KEY:
                body_limits.check_key(key)

    json.loads(data, object_pairs_hook=note, parse_float=_keep, parse_int=_keep)
    if not twice:
        return ()
    repeated = _repeated(json.loads(data, object_pairs_hook=_Pairs, parse_float=_keep, parse_int=_keep), ())
    return _named(itertools.islice(dict.fromkeys(repeated), MAX_DUPLICATES))


def _keep(text: str) -> str:
    return text


def _named(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(body_limits.path_text, paths)))


def _repeated(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, inner in value:
            if key in seen:
                yield (*path, key)
            seen.add(key)
            if isinstance(inner, list):
                yield from _repeated(inner, (*path, key))
    else:
        for place, inner in enumerate(value if isinstance(value, list) else ()):
            if isinstance(inner, list):
                yield from _repeated(inner, (*path, place))


def from_yaml(data: bytes) -> Body:
    try:
        value, duplicates = yaml_body.read(data)
        return Body(value, _named(duplicates))
    except RecursionError as error:
        raise body_limits.too_deep() from error
    except (yaml.YAMLError, ValueError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not YAML: {' '.join(_reason(error).split())}") from error


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
