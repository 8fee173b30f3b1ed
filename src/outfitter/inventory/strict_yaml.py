"""Parses a YAML file strictly: unknown keys, duplicate keys and wrong values are reported with the path of the field, all at
once. Called for the configuration file and the hosts file.

Every scalar is kept as a string until a field is read with a type. YAML's own types would turn the address 0000:10:00.0 into a
number of seconds and the class 020000 into an octal number."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import yaml

from outfitter import errors
from outfitter.errors import Cause

# A parsed value: a string, None, or a list or mapping of these.
Value = str | None | list["Value"] | dict[str, "Value"]

MAX_DEPTH = 20  # deeper than any valid file
MAX_SECTIONS = 1_000_000  # YAML aliases can make a short file very long
MAX_SHOWN = 30  # mistakes in one message; the causes of the error have all
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class Reader:
    """Collects the mistakes of a file while it is parsed."""

    def __init__(self, source: str) -> None:
        self.source = source  # name of the file in messages
        self.causes: list[Cause] = []
        self._sections = 0

    def wrong(self, path: str, message: str, reason: str = "FieldValueInvalid") -> None:
        self.causes.append(Cause(path, message, reason))

    def finish(self, shown: int = MAX_SHOWN) -> None:
        """Raise Invalid if there are mistakes; the message lists at most `shown`."""
        if self.causes:
            lines = "\n".join(f"  {cause.field}: {cause.message}" if cause.field else f"  {cause.message}"
                              for cause in self.causes[:shown])
            if len(self.causes) > shown:
                lines += f"\n  and {len(self.causes) - shown} more"
            many = "a mistake" if len(self.causes) == 1 else f"{len(self.causes)} mistakes"
            raise errors.Invalid(f"{self.source} has {many}:\n{lines}", self.causes)

    def parse(self, text: str) -> Value:
        """The file as plain values; raises at once if it is not YAML."""
        try:
            return _YamlBuilder(self, yaml.parse(text, Loader=_LOADER)).build()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            raise errors.Invalid(f"{self.source} is not YAML: {where}{error.problem}") from error
        except yaml.YAMLError as error:
            raise errors.Invalid(f"{self.source} is not YAML: {error}") from error

    def section(self, value: Value, path: str, keys: Sequence[str]) -> Section:
        """A mapping that may have these keys."""
        if value is not None and not isinstance(value, dict):
            self.wrong(path, f"must be a mapping with the keys {', '.join(keys)}")
            return Section(self, path, {}, broken=True)
        self._sections += 1
        if self._sections > MAX_SECTIONS:
            raise errors.Invalid(f"{self.source} has more than {MAX_SECTIONS} sections")
        fields = value or {}
        self.known(path, fields, keys)
        return Section(self, path, fields)

    def known(self, path: str, fields: Iterable[object], keys: Sequence[str]) -> None:
        """Report every key that is none of these."""
        for key in fields:
            if key not in keys:
                self.wrong(f"{path}.{key}" if path else str(key), _unknown(str(key), keys), "FieldValueNotSupported")


class _YamlBuilder:
    """Builds values from YAML events. PyYAML's own composer recurses without a limit."""

    def __init__(self, reader: Reader, events: Iterator[yaml.Event]) -> None:
        self.reader, self.events = reader, events
        self.anchors: dict[str, Value] = {}

    def build(self) -> Value:
        values = [self._value(event, "", 0) for event in self.events if isinstance(event, yaml.NodeEvent)]
        if len(values) > 1:
            self.reader.wrong("", "must be one YAML document")
        return values[0] if values else None

    def _value(self, event: yaml.Event, path: str, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise errors.Invalid(f"{self.reader.source}: {path} is nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            anchor = event.anchor or ""
            if anchor not in self.anchors:
                self.reader.wrong(path, f"*{anchor} is not defined before it is used")
            return self.anchors.get(anchor)
        value: Value = None
        if isinstance(event, yaml.SequenceStartEvent):
            value = self._list(path, depth)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(path, depth)
        elif isinstance(event, yaml.ScalarEvent) and (event.style or event.value not in ("", "~", "null")):
            value = event.value  # quoted, or not a null
        if isinstance(event, yaml.NodeEvent) and event.anchor:
            self.anchors[event.anchor] = value
        return value

    def _list(self, path: str, depth: int) -> Value:
        items: list[Value] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(event, f"{path}[{len(items)}]", depth + 1))
        return items

    def _mapping(self, path: str, depth: int) -> Value:
        fields: dict[str, Value] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._value(event, path, depth + 1) if not isinstance(event, yaml.ScalarEvent) else event.value
            inner = f"{path}.{key}" if path else str(key)
            value = self._value(next(self.events), inner, depth + 1)
            if not isinstance(key, str):
                self.reader.wrong(path, "has a key that is not a string")
                continue
            if key in fields:
                self.reader.wrong(inner, "is given twice; keep one", "FieldValueDuplicate")
            fields[key] = value
        return fields


def _unknown(key: str, keys: Sequence[str]) -> str:
    known = {known.lower(): known for known in keys}
    near = difflib.get_close_matches(key.lower(), known, n=1)
    return f"is not known; did you mean {known[near[0]]}?" if near else f"is not known; known are {', '.join(keys)}"


class Section:
    """One mapping of the file. Each getter returns a usable value even when it reports a mistake, so that parsing continues."""

    def __init__(self, reader: Reader, path: str, fields: dict[str, Value], *, broken: bool = False) -> None:
        self.reader, self.path, self.fields = reader, path, fields
        self.broken = broken  # not a mapping: reported already, so missing keys are not

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        return self.fields.get(key) is not None

    def wrong(self, key: str, message: str, reason: str = "FieldValueInvalid") -> None:
        self.reader.wrong(self.at(key), message, reason)

    def missing(self, key: str, message: str) -> None:
        if not self.broken:
            self.wrong(key, f"is missing; {message}", "FieldValueRequired")

    def text(self, key: str, check: Callable[[str], str | None] | None = None) -> str | None:
        """A string, or None if it is absent or wrong. `check` returns what is wrong with it."""
        value = self.fields.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.wrong(key, "must be a string")
            return None
        if check is not None and (message := check(value)) is not None:
            self.wrong(key, message)
            return None
        return value

    def needed(self, key: str, example: str, check: Callable[[str], str | None] | None = None) -> str | None:
        """A required string; None if it is missing or wrong, which is reported."""
        if not self.has(key):
            self.missing(key, f"for example {key}: {example}")
            return None
        return self.text(key, check)

    def hex(self, key: str, digits: int) -> str | None:
        """`digits` hex digits, with or without 0x; returned in lower case."""
        value = self.text(key, lambda text: None if re.fullmatch(f"(0x)?[0-9a-fA-F]{{{digits}}}", text)
                          else f"{text!r} is not {digits} hex digits")
        return None if value is None else value.lower().removeprefix("0x")

    def number(self, key: str, low: int, high: int) -> int | None:
        value = self.text(key, lambda text: None if re.fullmatch("[0-9]{1,10}", text) and low <= int(text) <= high
                          else f"{text!r} is not a number from {low} to {high}")
        return None if value is None else int(value)

    def items(self, key: str) -> Iterator[tuple[str, Value]]:
        """(path, value) of each item of a list; nothing if it is absent or not a list."""
        value = self.fields.get(key)
        if value is None:
            return
        if not isinstance(value, list):
            self.wrong(key, "must be a list")
            return
        for index, item in enumerate(value):
            yield f"{self.at(key)}[{index}]", item

    def texts(self, key: str) -> Iterator[tuple[str, str]]:
        """(path, string) of each item of a list of strings."""
        for path, item in self.items(key):
            if isinstance(item, str):
                yield path, item
            else:
                self.reader.wrong(path, "must be a string")


class Unique:
    """Values that must be unique."""

    def __init__(self, reader: Reader, is_of: str) -> None:
        self.reader, self.is_of = reader, is_of
        self.seen: dict[str, str] = {}

    def add(self, value: str, path: str, hint: str = "") -> bool:
        """Whether the value is new; reports a duplicate."""
        if value in self.seen:
            self.reader.wrong(path, f"{value} {self.is_of} {self.seen[value]} too{hint}", "FieldValueDuplicate")
            return False
        self.seen[value] = path
        return True


def boolean(text: str) -> bool | None:
    """The value of a boolean word (yes, on, true, 1, ...); None for any other."""
    word = text.strip().lower()
    return word in _TRUE if word in _TRUE or word in _FALSE else None


def shown(value: Any) -> str:
    """A wrong value as JSON, shortened for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
