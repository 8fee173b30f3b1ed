"""YAML scalars as kubectl reads them, so that a manifest means the same to both. PyYAML follows YAML 1.1, which reads the PCI
address 0000:01:00.0 as the number 60, and a date as an object that JSON does not have."""

from __future__ import annotations

import io
import math
import re
from typing import Any, TypeVar

import yaml

_BOOL = re.compile("(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$")
_INT = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"(?:[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?"
                    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_NUMBERS = "-+.0123456789"
_KEPT = ("null", "merge")  # PyYAML's resolvers that are kept
_TAG = "tag:yaml.org,2002:"

_Loader = TypeVar("_Loader", bound=type[Any])


def as_kubectl(loader: _Loader) -> _Loader:
    """Changes a PyYAML loader class to read scalars as kubectl does."""
    resolvers = {letter: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) in _KEPT]
                 for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    for letters, tag, pattern in (("yYnNtTfFoO", "bool", _BOOL), (_NUMBERS, "int", _INT), (_NUMBERS, "float", _FLOAT)):
        for letter in letters:
            resolvers[letter].append((_TAG + tag, pattern))
    loader.yaml_implicit_resolvers = resolvers
    loader.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
    loader.add_constructor(f"{_TAG}float", _number)
    return loader


def _number(loader: Any, node: yaml.ScalarNode) -> int | float:
    """JSON has one kind of number: 1e3 is 1000."""
    value: float = loader.construct_yaml_float(node)
    if not math.isfinite(value):
        raise yaml.constructor.ConstructorError(None, None, f"{node.value} is not a JSON number", node.start_mark)
    return int(value) if value.is_integer() else value


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
