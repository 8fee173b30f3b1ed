"""The annotation that has assigned devices where the server drops the field: no schema checks what users write into it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outfitter.api.assignment import assigned_devices
from outfitter.errors import Invalid

ENTRY = {"resourceName": "a.io/gpu", "deviceIDs": ["g0", "g1"]}


def pod(content: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"metadata": {"name": "p", "annotations": {assigned_devices.ANNOTATION: text}},
            "spec": {"containers": [{"name": "c"}]}}


def test_annotation_is_read_as_the_field_is() -> None:
    assert assigned_devices.of_pod(pod({"c": [ENTRY]})) == {"c": {"a.io/gpu": ("g0", "g1")}}


@pytest.mark.parametrize(("content", "word"), {
    "no JSON": ("{", "JSON"),
    "a list": ([ENTRY], "object"),
    "no list of entries": ({"c": ENTRY}, "must be"),
    "an id in place of a list": ({"c": [{**ENTRY, "deviceIDs": "g0"}]}, "deviceIDs of a.io/gpu must be a list of texts"),
    "an id that is a number": ({"c": [{**ENTRY, "deviceIDs": [0]}]}, "deviceIDs of a.io/gpu must be a list of texts"),
    "a resource that is no text": ({"c": [{**ENTRY, "resourceName": 1}]}, "resourceName must be a text"),
    "no ids": ({"c": [{"resourceName": "a.io/gpu"}]}, "deviceIDs"),
}.values())
def test_annotation_that_cannot_be_read(content: Any, word: str) -> None:
    with pytest.raises(Invalid, match=word):
        assigned_devices.of_pod(pod(content))
