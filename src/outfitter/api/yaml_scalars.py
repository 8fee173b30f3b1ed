"""YAML scalars as kubectl reads them, so that a manifest means the same to both. PyYAML follows YAML 1.1, which reads the PCI
address 0000:01:00.0 as the number 60, and a date as an object that JSON does not have."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml

_TRUE = ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"]
_FALSE = ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"]
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False), **dict.fromkeys(("", "~", "null", "Null", "NULL"))}
_BOOL = re.compile(f"(?:{'|'.join(_TRUE + _FALSE)})$")
_INT = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"(?:[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
                    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_NUMBERS = "-+.0123456789"
_LONGEST = 1000  # characters of a number; a longer one is text
_BASES = {"0x": 16, "0b": 2, "0o": 8}
_KEPT = ("null", "merge")  # PyYAML's resolvers that are kept
_TAG = "tag:yaml.org,2002:"
_TYPES: Mapping[str, tuple[type, ...]] = {
    f"{_TAG}int": (int,), f"{_TAG}float": (int, float), f"{_TAG}bool": (bool,), f"{_TAG}null": (type(None),)}

_Loader = TypeVar("_Loader", bound=type[Any])


def plain(text: str) -> str | int | float | bool | None:
    """A scalar without quotes. ValueError for a number that JSON does not have."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBERS or len(text) > _LONGEST:
        return text
    return _integer(text) if _INT.match(text) else _fraction(text) if _FLOAT.match(text) else text


def tagged(tag: str, text: str) -> str | int | float | bool | None:
    """A scalar with a tag such as !!int. ValueError where the text is none."""
    value = plain(text)
    types = _TYPES.get(tag)
    if types is None:
        raise ValueError(f"{tag} is not supported: JSON has no such values")
    if type(value) not in types:
        raise ValueError(f"{text[:60]} is not a value of {tag}")
    return value


def _integer(text: str) -> str | int | float:
    """What does not fit into 64 bits is a float in decimal, text else."""
    digits = text.replace("_", "").lstrip("+-")
    base = _BASES.get(digits[:2], 8 if digits[0] == "0" and len(digits) > 1 else 10)
    value = int(digits[2:] if digits[:2] in _BASES else digits, base) * (-1 if text[0] == "-" else 1)
    if -(1 << 63) <= value < 1 << 64:
        return value
    return _fraction(text) if _FLOAT.match(text) else text


def _fraction(text: str) -> str | int | float:
    """JSON has one kind of number: 1e3 is 1000."""
    word = text.replace("_", "").lower().lstrip("+-")
    if word in (".inf", ".nan"):
        raise ValueError(f"{text} is not a JSON number")
    value = float(text.replace("_", ""))
    if not math.isfinite(value):
        return text
    return int(value) if value.is_integer() and abs(value) < 1 << 63 else value


def as_kubectl(loader: _Loader) -> _Loader:
    """Changes a PyYAML loader class to read scalars as kubectl does."""
    resolvers = {letter: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) in _KEPT]
                 for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    for letters, tag, pattern in (("yYnNtTfFoO", "bool", _BOOL), (_NUMBERS, "int", _INT), (_NUMBERS, "float", _FLOAT)):
        for letter in letters:
            resolvers[letter].append((_TAG + tag, pattern))
    loader.yaml_implicit_resolvers = resolvers
    loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
    for tag in ("int", "float"):
        loader.add_constructor(_TAG + tag, _number)
    return loader


def _number(loader: Any, node: yaml.ScalarNode) -> Any:
    text = loader.construct_scalar(node)
    try:
        return plain(text)
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


@as_kubectl
class _Plain(yaml.SafeLoader):
    pass


class Text(io.StringIO):
    """A text with the name of its source, for error messages."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


def load(text: str | Text) -> Any:
    """The value of a single YAML document."""
    return yaml.load(text, Loader=_Plain)  # a SafeLoader
