"""What two versions of an object have in common is one value in both, and the later one is equal to what was read."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from outfitter.store import unchanged_parts

ENTRIES = [{"name": f"e{number}", "number": number} for number in range(20)]
OLD: dict[str, Any] = {"metadata": {"name": "a", "resourceVersion": "1"}, "status": {"phase": "Running"},
                       "spec": {"entries": ENTRIES, "few": [{"a": 1}], "x": 1}}


def read(**changes: Any) -> dict[str, Any]:
    """Another version, of which nothing is the same value."""
    new: dict[str, Any] = copy.deepcopy(OLD)
    for path, value in changes.items():
        first, _, name = path.partition("_")
        new[first][name] = value
    return new


def test_equal_spec_and_status_are_one_value() -> None:
    new = read(metadata_resourceVersion="2", status_phase="Failed")
    shared = unchanged_parts.shared(new, OLD)
    assert shared == new
    assert shared["spec"] is OLD["spec"]
    assert shared["status"] is new["status"]


LISTS: dict[str, tuple[list[Any], int, int]] = {  # the later list, and how many first and last entries are kept
    "one more": ([*ENTRIES, {"name": "new"}], 20, 0),
    "one in the middle": ([*ENTRIES[:7], {"name": "new"}, *ENTRIES[7:]], 7, 13),
    "one left": ([*ENTRIES[:7], *ENTRIES[8:]], 7, 12),
    "one changed": ([*ENTRIES[:7], {"name": "new"}, *ENTRIES[8:]], 7, 12),
    "the first one left": (ENTRIES[1:], 0, 19),
    "none is left": ([], 0, 0),
    "others": ([{"name": "x"}] * 20, 0, 0),
}


@pytest.mark.parametrize("name", LISTS)
def test_entries_that_did_not_change_are_one_value(name: str) -> None:
    entries, first, last = LISTS[name]
    new = read(spec_entries=copy.deepcopy(entries))
    shared = unchanged_parts.shared(new, OLD)
    assert shared == new
    kept = shared["spec"]["entries"]
    assert all(kept[place] is ENTRIES[place] for place in range(first))
    assert all(kept[-1 - place] is ENTRIES[-1 - place] for place in range(last))
    assert shared["spec"]["few"] is OLD["spec"]["few"]


def test_numbers_and_truth_values_are_not_confused() -> None:
    """To Python they are equal; to a reader of JSON they are not."""
    for other in (True, 1.0):
        shared = unchanged_parts.shared(read(spec_x=other), OLD)
        assert json.dumps(shared["spec"]["x"]) == json.dumps(other)
        entries = [*copy.deepcopy(ENTRIES[:1]), {"name": "e1", "number": other}, *copy.deepcopy(ENTRIES[2:]), {}]
        shared = unchanged_parts.shared(read(spec_entries=entries), OLD)
        assert json.dumps(shared["spec"]["entries"]) == json.dumps(entries)


JSON = some.recursive(some.none() | some.booleans() | some.integers(0, 2) | some.floats(0, 2) | some.sampled_from("ab"),
                      lambda inner: some.lists(inner, max_size=12) | some.dictionaries(some.sampled_from("abc"), inner))


@given(some.lists(some.dictionaries(some.sampled_from(["metadata", "spec", "status"]), JSON), min_size=2, max_size=4))
def test_every_version_is_what_was_read(versions: list[dict[str, Any]]) -> None:
    known = versions[0]
    for version in versions[1:]:
        text = json.dumps(version, sort_keys=True)
        known = unchanged_parts.shared(version, known)
        assert json.dumps(known, sort_keys=True) == text
