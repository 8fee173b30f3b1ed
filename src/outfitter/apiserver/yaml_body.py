"""A YAML body as JSON would have it. The value is built from the parser's events, so that aliases and merge keys are counted
while they are spelt out: a few hundred bytes can name billions of values. Called by `negotiate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from outfitter.api import yaml_scalars
from outfitter.apiserver import body_limits
from outfitter.apiserver.body_limits import MAX_DEPTH, MAX_DUPLICATES, MAX_YAML_VALUES, Path
from outfitter.errors import BadRequest

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_OPEN = object()  # an anchor whose value is not complete yet
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where it is there


def read(data: bytes) -> tuple[Any, list[Path]]:
    """The value, and the paths of keys that it has more than once. BadRequest, TooLarge, yaml.YAMLError or ValueError."""
    builder = _Builder(yaml.parse(data, Loader=_Loader))
    value = builder.document()
    body_limits.check_size(value)
    return value, builder.duplicates


class _Builder:
    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and how many keys and values it has
        self._count = 0
        self._path: list[str | int] = []
        self.duplicates: list[Path] = []

    def document(self) -> Any:
        value: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise ValueError("expected a single document")
            elif isinstance(event, yaml.NodeEvent):
                value = self._value(event)
        return value

    def _spend(self, count: int) -> None:
        self._count += count
        if self._count > MAX_YAML_VALUES:
            raise body_limits.too_many_yaml_values()

    def _value(self, event: yaml.Event) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor))
        assert isinstance(event, yaml.NodeEvent)
        self._spend(1)
        before, anchor = self._count, event.anchor
        if anchor is not None:
            self._anchors[anchor] = (_OPEN, 0)
        if isinstance(event, yaml.ScalarEvent):
            value: Any = _scalar(event)
        else:
            if len(self._path) >= MAX_DEPTH:
                raise body_limits.too_deep()
            sequence = isinstance(event, yaml.SequenceStartEvent)
            _check_tag(event, "seq" if sequence else "map")
            value = self._list() if sequence else self._mapping()
        if anchor is not None:
            self._anchors[anchor] = (value, self._count - before + 1)
        return value

    def _alias(self, anchor: str) -> Any:
        if anchor not in self._anchors:
            raise ValueError(f"found undefined alias {anchor!r}")
        value, size = self._anchors[anchor]
        if value is _OPEN:
            raise body_limits.too_deep()  # without end
        self._spend(size)
        return _copied(value)

    def _list(self) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            self._path.append(len(items))
            items.append(self._value(event))
            self._path.pop()
        return items

    def _mapping(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        merged: list[Any] = []  # what merge keys name, in their order
        seen: set[str] = set()
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            merges = isinstance(event, yaml.ScalarEvent) and event.value == _MERGE and event.implicit[0]
            key = _MERGE if merges else _key(self._value(event))
            body_limits.check_key(key)
            self._path.append(key)
            if key in seen and len(self.duplicates) < MAX_DUPLICATES:
                self.duplicates.append(tuple(self._path))
            seen.add(key)
            value = self._value(next(self._events))
            if merges:
                merged += value if isinstance(value, list) else [value]
            else:
                fields[key] = value
            self._path.pop()
        return self._with_merged(fields, merged) if merged else fields

    def _with_merged(self, fields: dict[str, Any], merged: list[Any]) -> dict[str, Any]:
        """A field of the mapping itself counts before merged ones, and of those the first."""
        out: dict[str, Any] = {}
        for mapping in merged:
            if not isinstance(mapping, dict):
                raise BadRequest("the body is not YAML: a merge key needs a mapping or a list of mappings")
            for key, value in mapping.items():
                out.setdefault(key, value)
        return {**out, **fields}


def _check_tag(event: yaml.NodeEvent, kind: str) -> None:
    tag = getattr(event, "tag", None)
    if tag not in (None, "!", _TAG + kind):
        raise ValueError(f"{tag} is not supported: JSON has no such values")


def _scalar(event: yaml.ScalarEvent) -> Any:
    if event.tag is None:
        return yaml_scalars.plain(event.value) if event.implicit[0] else event.value
    if event.tag in ("!", f"{_TAG}str"):
        return event.value
    return yaml_scalars.tagged(event.tag, event.value)


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise BadRequest("the body is not YAML that JSON can say: a key must be text")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
