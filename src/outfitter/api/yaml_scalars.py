"""Plain values in YAML as kubectl reads them, so that a manifest means the same whoever sends it. YAML 1.1, which PyYAML
follows, would make the PCI address 0000:01:00.0 the number 60, and a date an object that JSON does not have."""

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
_KEPT = ("null", "merge")  # are as PyYAML has them
_TAG = "tag:yaml.org,2002:"

_Loader = TypeVar("_Loader", bound=type[Any])


def as_kubectl(loader: _Loader) -> _Loader:
    """A loader class of PyYAML that reads plain values so."""
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
        raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no number that JSON has", node.start_mark)
    return int(value) if value.is_integer() else value


@as_kubectl
class _Plain(yaml.SafeLoader):
    pass


class Text(io.StringIO):
    """A text that knows where it is from, for those who find a mistake in it."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name


def load(text: str | Text) -> Any:
    """One document."""
    return yaml.load(text, Loader=_Plain)  # it is a safe one
