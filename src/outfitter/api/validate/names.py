"""Names, labels, annotations and other metadata, by Kubernetes' rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outfitter.errors import Cause

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
ANNOTATIONS_MOST = 256 * 1024


def label(value: Any, field: str) -> Iterator[Cause]:
    """A DNS label: "gpu-0"."""
    if value is None:
        yield Cause(field, "Required value: a name such as my-name", "FieldValueRequired")
    elif not isinstance(value, str) or not _LABEL.fullmatch(value) or len(value) > 63:
        yield Cause(field, f'Invalid value: "{value}": a lowercase RFC 1123 label must consist of lower case alphanumeric '
                           "characters or '-', start and end with an alphanumeric character and be at most 63 long "
                           "(e.g. 'my-name')")


def subdomain(value: Any, field: str) -> Iterator[Cause]:
    """A DNS subdomain: "gpu.example.com"."""
    if value is None:
        yield Cause(field, "Required value: a name such as my-name", "FieldValueRequired")
    elif not isinstance(value, str) or not _SUBDOMAIN.fullmatch(value) or len(value) > 253:
        yield Cause(field, f'Invalid value: "{value}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
                           "characters, '-' or '.', start and end with an alphanumeric character and be at most 253 long "
                           "(e.g. 'example.com')")


def required(value: Any, field: str, hint: str = "") -> Iterator[Cause]:
    if value in (None, ""):
        yield Cause(field, f"Required value{': ' + hint if hint else ''}", "FieldValueRequired")


def texts(*fields: str) -> Callable[[Mapping[str, Any]], Iterator[Cause]]:
    """A check that these fields map names to strings only."""

    def check(obj: Mapping[str, Any]) -> Iterator[Cause]:
        for field in fields:
            for key, value in (obj.get(field) or {}).items():
                if not isinstance(value, str):
                    yield Cause(f"{field}.{key}", f"Invalid value: {value!r}: must be text; put it in quotes")

    return check


def metadata(obj: Mapping[str, Any], *, namespaced: bool, plain_label: bool) -> Iterator[Cause]:
    meta = obj["metadata"]
    yield from (label if plain_label else subdomain)(meta.get("name"), "metadata.name")
    if namespaced and not meta.get("namespace"):
        yield Cause("metadata.namespace", "Required value", "FieldValueRequired")
    yield from labels_and_annotations(meta, "metadata")
    finalizers = meta.get("finalizers")
    if finalizers is not None and not (isinstance(finalizers, list) and all(isinstance(item, str) for item in finalizers)):
        yield Cause("metadata.finalizers", "Invalid value: must be a list of names")
    yield from _owners(meta.get("ownerReferences"))


def labels_and_annotations(meta: Any, field: str) -> Iterator[Cause]:
    """Labels and annotations of an object, or of a template's metadata."""
    if isinstance(meta, Mapping):
        yield from _pairs(meta.get("labels"), f"{field}.labels", values=True)
        yield from _pairs(meta.get("annotations"), f"{field}.annotations", values=False)


def _pairs(pairs: Any, field: str, *, values: bool) -> Iterator[Cause]:
    if pairs is None:
        return
    if not isinstance(pairs, Mapping):
        yield Cause(field, "Invalid value: must be a map of text to text")
        return
    for key, value in pairs.items():
        prefix, _, name = key.rpartition("/")
        if not _QUALIFIED.fullmatch(name) or len(name) > 63 or (prefix and not _SUBDOMAIN.fullmatch(prefix)):
            yield Cause(field, f'Invalid value: "{key}": a key is a name of at most 63 letters, digits, \'-\', \'_\' or \'.\', '
                               "with an optional DNS prefix (e.g. 'example.com/MyName')")
        if not isinstance(value, str):
            yield Cause(f"{field}.{key}", f"Invalid value: {value!r}: must be text; put it in quotes")
        elif values and value and (not _QUALIFIED.fullmatch(value) or len(value) > 63):
            yield Cause(field, f'Invalid value: "{value}": a label value is at most 63 letters, digits, \'-\', \'_\' or \'.\'')
    if not values and sum(len(key) + len(str(value)) for key, value in pairs.items()) > ANNOTATIONS_MOST:
        yield Cause(field, f"Too long: may not be more than {ANNOTATIONS_MOST} bytes", "FieldValueTooLong")


def _owners(references: Any) -> Iterator[Cause]:
    controllers = 0
    for index, reference in enumerate(references or ()):
        for name in ("apiVersion", "kind", "name", "uid"):
            yield from required(reference.get(name), f"metadata.ownerReferences[{index}].{name}")
        controllers += bool(reference.get("controller"))
    if controllers > 1:
        yield Cause("metadata.ownerReferences", "Invalid value: only one reference can have controller set to true")
