"""Names, labels, annotations and other metadata, by Kubernetes' rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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


def key(value: Any, field: str) -> Iterator[Cause]:
    """The key of a label, a taint or a condition: "example.com/gpu"."""
    if not value:
        yield Cause(field, "Required value: a name such as example.com/my-name", "FieldValueRequired")
    elif not _is_key(value):
        yield _bad_key(field, value)


def label_value(value: Any, field: str) -> Iterator[Cause]:
    if value and not _is_label_value(value):
        yield _bad_value(field, value)


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


def labels(pairs: Any, field: str) -> Iterator[Cause]:
    """Labels, or labels to select by."""
    yield from _pairs(pairs, field, values=True)


def _is_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return bool(_QUALIFIED.fullmatch(name)) and len(name) <= 63 and (
        not slash or (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix) is not None))


def _is_label_value(text: str) -> bool:
    return len(text) <= 63 and _QUALIFIED.fullmatch(text) is not None


def _bad_key(field: str, text: str) -> Cause:
    return Cause(field, f'Invalid value: "{text}": a key is a name of at most 63 letters, digits, \'-\', \'_\' or \'.\', '
                        "with an optional DNS prefix (e.g. 'example.com/MyName')")


def _bad_value(field: str, text: str) -> Cause:
    return Cause(field, f'Invalid value: "{text}": a label value is at most 63 letters, digits, \'-\', \'_\' or \'.\'')


def _pairs(pairs: Any, field: str, *, values: bool) -> Iterator[Cause]:
    if pairs is None:
        return
    if not isinstance(pairs, Mapping):
        yield Cause(field, "Invalid value: must be a map of text to text")
        return
    for name, value in pairs.items():
        if not _is_key(name if values else name.lower()):
            yield _bad_key(field, name)
        if not isinstance(value, str):
            yield Cause(f"{field}.{name}", f"Invalid value: {value!r}: must be text; put it in quotes")
        elif values and value and not _is_label_value(value):
            yield _bad_value(field, value)
    if not values and sum(len(name) + len(str(value)) for name, value in pairs.items()) > ANNOTATIONS_MOST:
        yield Cause(field, f"Too long: may not be more than {ANNOTATIONS_MOST} bytes", "FieldValueTooLong")


def _owners(references: Any) -> Iterator[Cause]:
    controllers = 0
    for index, reference in enumerate(references or ()):
        for name in ("apiVersion", "kind", "name", "uid"):
            yield from required(reference.get(name), f"metadata.ownerReferences[{index}].{name}")
        controllers += bool(reference.get("controller"))
    if controllers > 1:
        yield Cause("metadata.ownerReferences", "Invalid value: only one reference can have controller set to true")


# -- names of drivers, pools and devices, in slices, claims and taint rules

MOST_DRIVER = 63
MOST_POOL = 253


def driver(value: Any, field: str) -> Iterator[Cause]:
    if not value:
        yield Cause(field, "Required value: the driver's name, such as gpu.example.com", "FieldValueRequired")
        return
    if len(value) > MOST_DRIVER:
        yield Cause(field, f"Too long: may not be more than {MOST_DRIVER} bytes", "FieldValueTooLong")
    yield from subdomain(value.lower(), field)


def pool(value: Any, field: str) -> Iterator[Cause]:
    if not value:
        yield Cause(field, "Required value: the pool's name", "FieldValueRequired")
        return
    if len(value) > MOST_POOL:
        yield Cause(field, f"Too long: may not be more than {MOST_POOL} bytes", "FieldValueTooLong")
    for part in value.split("/"):
        yield from subdomain(part, field)


def device(value: Any, field: str) -> Iterator[Cause]:
    yield from label(value, field)
