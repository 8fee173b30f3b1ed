"""How a format's vocabulary is written down: small checks that are put together like the data they describe.

A check takes a value and the path to it, and yields one sentence for every key that the format does not know. What a format
leaves open (objects of an API, free text) is `anything`; the runner of the area then compares it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Check = Callable[[Any, str], Iterator[str]]


def anything(value: Any, path: str) -> Iterator[str]:
    """The format does not say what is in here."""
    yield from ()


def keys(known: Mapping[str, Check], *, prefixes: tuple[str, ...] = ()) -> Check:
    """A mapping with these keys and no others, but for those that begin with one of the prefixes."""

    def check(value: Any, path: str) -> Iterator[str]:
        if value is None:
            return
        if not isinstance(value, Mapping):
            yield f"{path or 'the case'}: a mapping is expected here, not {value!r}"
            return
        for key, inner in value.items():
            if key in known:
                yield from known[key](inner, _below(path, key))
            elif not str(key).startswith(prefixes or ("\x00",)):
                yield f'unknown key "{key}" in {path or "the case"}; known are: {", ".join(sorted(known))}'

    return check


def plain(*known: str) -> Check:
    """A mapping with these keys, whatever is in them."""
    return keys(dict.fromkeys(known, anything))


def each(item: Check) -> Check:
    """A list of such items."""

    def check(value: Any, path: str) -> Iterator[str]:
        if value is None:
            return
        if not isinstance(value, list):
            yield f"{path}: a list is expected here, not {value!r}"
            return
        for index, inner in enumerate(value):
            yield from item(inner, f"{path}[{index}]")

    return check


def values(item: Check) -> Check:
    """A mapping whose keys are names, with such an item for each."""

    def check(value: Any, path: str) -> Iterator[str]:
        if value is None:
            return
        if not isinstance(value, Mapping):
            yield f"{path}: a mapping is expected here, not {value!r}"
            return
        for key, inner in value.items():
            yield from item(inner, _below(path, key))

    return check


def or_scalar(item: Check) -> Check:
    """Such an item, or a plain value in its place."""

    def check(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, Mapping | list):
            yield from item(value, path)

    return check


def chosen(by: str, table: Mapping[str, Check], word: str) -> Check:
    """A mapping whose key `by` names which of the checks applies to it."""

    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{path}: a mapping is expected here, not {value!r}"
        elif by not in value:
            yield f'{path}: the key "{by}" is missing'
        elif value[by] not in table:
            yield f'unknown {word} "{value[by]}" in {path}; known are: {", ".join(sorted(table))}'
        else:
            yield from table[value[by]](value, path)

    return check


def word(*known: str) -> Check:
    """One of these words, or a list of some."""

    def check(value: Any, path: str) -> Iterator[str]:
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item not in known:
                yield f'unknown word "{item}" in {path}; known are: {", ".join(known)}'

    return check


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
