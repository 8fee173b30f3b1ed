"""The types of expressions for the checker, and unification of types.

A parameter (`A` in `list(A)`) stands for any type until something fixes it; what was fixed is kept in a `Bindings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

Bindings = dict[str, "Type"]  # parameter -> what it stands for


@dataclass(frozen=True, slots=True)
class Type:
    kind: str  # bool, int, ..., list, map, struct (has a name), opaque (has a name), param (has a name)
    name: str  # as shown to people
    of: tuple[Type, ...] = ()  # element of a list; key and value of a map; what an optional holds
    open: bool = field(init=False, compare=False, repr=False, default=False)  # is or holds a parameter

    def __post_init__(self) -> None:
        object.__setattr__(self, "open", self.kind == "param" or any(one.open for one in self.of))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.of))})" if self.of else self.name

    @property
    def is_dyn(self) -> bool:
        return self.kind in _DYN

    @property
    def is_optional(self) -> bool:
        return self.name == "optional_type"


_DYN = frozenset(("dyn", "any"))
_ANYTHING = frozenset(("dyn", "any", "error"))
_LOOSE = _ANYTHING | {"param", "null"}  # may fit what is of another kind

BOOL, INT, UINT, DOUBLE = (Type(name, name) for name in ("bool", "int", "uint", "double"))
STRING, BYTES, NULL = Type("string", "string"), Type("bytes", "bytes"), Type("null", "null")
DURATION, TIMESTAMP = Type("duration", "duration"), Type("timestamp", "timestamp")
DYN, ANY, ERROR = Type("dyn", "dyn"), Type("any", "any"), Type("error", "error")
TYPE = Type("type", "type")
QUANTITY, SEMVER = Type("struct", "kubernetes.Quantity"), Type("struct", "kubernetes.Semver")
URL, FORMAT = Type("struct", "kubernetes.URL"), Type("struct", "kubernetes.NamedFormat")
IP, CIDR = Type("opaque", "net.IP"), Type("opaque", "net.CIDR")
DEVICE = Type("struct", "kubernetes.DRADevice")

SCALARS = frozenset(("bool", "double", "duration", "int", "timestamp", "uint"))  # of a size that is known
_NULLABLE = frozenset(("opaque", "struct", "duration", "timestamp"))


@lru_cache(maxsize=1024)
def list_of(item: Type) -> Type:
    return Type("list", "list", (item,))


@lru_cache(maxsize=1024)
def map_of(key: Type, value: Type) -> Type:
    return Type("map", "map", (key, value))


@lru_cache(maxsize=1024)
def optional_of(value: Type) -> Type:
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", "type", (value,))


def param(name: str) -> Type:
    return Type("param", name)


def unwrapped(kind: Type) -> Type:
    """What an optional holds; any other type is itself."""
    return kind.of[0] if kind.is_optional else kind


def substitute(bindings: Mapping[str, Type], kind: Type, *, free: Type | None = None) -> Type:
    """The type with its parameters replaced; `free` replaces those that nothing has fixed."""
    if not kind.open:
        return kind
    if kind.kind == "param":
        known = bindings.get(kind.name)
        return substitute(bindings, known, free=free) if known is not None else free or kind
    return Type(kind.kind, kind.name, tuple(substitute(bindings, one, free=free) for one in kind.of))


def fits(bindings: Bindings, given: Type, wanted: Type) -> bool:
    """Can one stand where the other is wanted? Fixes parameters in `bindings` on the way, also when it fails: hand it
    a copy."""
    if wanted.kind == "param":
        valid, fixed = _stands_for(bindings, given, wanted)
        if valid or fixed:
            return valid
    if given.kind == "param":
        return _stands_for(bindings, wanted, given)[0]
    if given.kind in _ANYTHING or wanted.kind in _ANYTHING:
        return True
    if given.kind == "null" or wanted.kind == "null":
        other = wanted if given.kind == "null" else given
        return other.kind in _NULLABLE or other.kind == "null"
    if given.kind == "type":
        return wanted.kind == "type"
    return given.kind == wanted.kind and given.name == wanted.name and all_fit(bindings, given.of, wanted.of)


def hopeless(given: Sequence[Type], wanted: Sequence[Type]) -> bool:
    """A quick no, before anything is tried: two plain kinds that differ."""
    for one, other in zip(given, wanted, strict=True):
        if one.kind != other.kind and one.kind not in _LOOSE and other.kind not in _LOOSE:
            return True
    return False


def all_fit(bindings: Bindings, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
    return len(given) == len(wanted) and all(fits(bindings, one, other) for one, other in zip(given, wanted, strict=True))


def most_general(a: Type, b: Type) -> Type:
    """The less specific of two types that fit each other."""
    return a if _at_most_as_specific(a, b) else b


def _stands_for(bindings: Bindings, kind: Type, parameter: Type) -> tuple[bool, bool]:
    """Can the parameter stand for that type, and was it fixed before?"""
    if kind == parameter:
        return True, True
    known = bindings.get(parameter.name)
    if known is not None:
        if kind == known:
            return True, True
        if not fits(bindings, kind, known):
            return False, True
        wider = most_general(kind, known)
        if not _occurs(bindings, parameter, wider):
            bindings[parameter.name] = wider
        return True, True
    if _occurs(bindings, parameter, kind):
        return False, False
    bindings[parameter.name] = kind
    return True, False


def _occurs(bindings: Mapping[str, Type], parameter: Type, within: Type) -> bool:
    if parameter == within:
        return True
    if within.kind == "param":
        known = bindings.get(within.name)
        return known is not None and _occurs(bindings, parameter, known)
    return any(_occurs(bindings, parameter, one) for one in within.of)


def _at_most_as_specific(a: Type, b: Type) -> bool:
    if a.is_dyn or a.kind == "param":
        return True
    if b.is_dyn or b.kind == "param" or a.kind != b.kind:
        return False
    if a.kind == "type":
        return True
    if a.name != b.name or len(a.of) != len(b.of):
        return False
    return all(_at_most_as_specific(one, other) for one, other in zip(a.of, b.of, strict=True))
