"""The three patches and the difference that makes one, as tables."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfitter import errors
from outfitter.api import patch as patches
from outfitter.api.kinds import Object

# -- merge patch (RFC 7396): target, patch, result

MERGE: dict[str, tuple[Any, Any, Any]] = {
    "a value is replaced": ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    "a value is added": ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    "null removes": ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    "null of what is not there": ({"a": "b"}, {"z": None}, {"a": "b"}),
    "a list is replaced whole": ({"a": [1, 2, {"x": 1}]}, {"a": [3]}, {"a": [3]}),
    "a list becomes a word": ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    "a word becomes a list": ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    "objects merge": ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": None}}, {"a": {"b": 3}}),
    "a word becomes an object": ({"a": "b"}, {"a": {"c": 1}}, {"a": {"c": 1}}),
    "nulls inside something new are skipped": ({}, {"a": {"b": {"c": None, "d": 1}}}, {"a": {"b": {"d": 1}}}),
    "nulls inside a list stay": ({}, {"a": [None, {"b": None}]}, {"a": [None, {"b": None}]}),
    "an empty object changes nothing": ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
    "an empty object where nothing was": ({}, {"a": {}}, {"a": {}}),
    "a stored null stays while it is not named": ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    "a patch that is no object is the result": ({"a": 1}, ["c"], ["c"]),
    "a target that is no object gives way": ([1, 2], {"a": 1, "b": None}, {"a": 1}),
}


@pytest.mark.parametrize("case", MERGE)
def test_merge(case: str) -> None:
    target, patch, wanted = MERGE[case]
    before = copy.deepcopy((target, patch))
    assert patches.merge(target, patch) == wanted
    assert (target, patch) == before


def test_a_merged_object_is_not_the_patch() -> None:
    patch = {"a": {"b": [1]}}
    out = patches.merge({}, patch)
    out["a"]["b"].append(2)
    assert patch == {"a": {"b": [1]}}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON_VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_merging_twice_is_merging_once(target: Object, patch: Object) -> None:
    once = patches.merge(target, patch)
    assert patches.merge(once, patch) == once


# -- JSON patch (RFC 6902): target, operations, result or the words of the refusal


def op(name: str, path: str, **more: Any) -> Object:
    return {"op": name, "path": path, **more}


JSON: dict[str, tuple[Object, list[Object], Object | str]] = {
    "add a member": ({"a": 1}, [op("add", "/b", value=2)], {"a": 1, "b": 2}),
    "add where something is replaces it": ({"a": 1}, [op("add", "/a", value=2)], {"a": 2}),
    "add null": ({}, [op("add", "/a", value=None)], {"a": None}),
    "add into a list": ({"a": [1, 3]}, [op("add", "/a/1", value=2)], {"a": [1, 2, 3]}),
    "add at the end by number": ({"a": [1]}, [op("add", "/a/1", value=2)], {"a": [1, 2]}),
    "add at the end by dash": ({"a": [1]}, [op("add", "/a/-", value=[2])], {"a": [1, [2]]}),
    "add beyond the end": ({"a": [1]}, [op("add", "/a/2", value=2)], "none at 2"),
    "add to no parent": ({}, [op("add", "/a/b", value=2)], "there is no 'a'"),
    "add into a word": ({"a": "x"}, [op("add", "/a/b", value=2)], "neither an object nor a list"),
    "add without a value": ({}, [op("add", "/a")], "needs a value"),
    "remove a member": ({"a": 1, "b": 2}, [op("remove", "/a")], {"b": 2}),
    "remove an item": ({"a": [1, 2, 3]}, [op("remove", "/a/1")], {"a": [1, 3]}),
    "remove what is not there": ({"a": 1}, [op("remove", "/b")], "there is no 'b'"),
    "remove the item behind the last": ({"a": [1]}, [op("remove", "/a/-")], "is not a list index"),
    "remove everything": ({"a": 1}, [op("remove", "")], "cannot be removed"),
    "replace a member": ({"a": 1}, [op("replace", "/a", value={"b": 1})], {"a": {"b": 1}}),
    "replace an item keeps its place": ({"a": [1, 2, 3]}, [op("replace", "/a/0", value=9)], {"a": [9, 2, 3]}),
    "replace what is not there": ({}, [op("replace", "/a", value=1)], "there is no 'a'"),
    "replace the whole": ({"a": 1}, [op("replace", "", value={"b": 2})], {"b": 2}),
    "move a member": ({"a": {"x": 1}, "b": {}}, [op("move", "/b/y", **{"from": "/a/x"})], {"a": {}, "b": {"y": 1}}),
    "move an item": ({"a": [1, 2, 3]}, [op("move", "/a/2", **{"from": "/a/0"})], {"a": [2, 3, 1]}),
    "move into itself": ({"a": {"b": 1}}, [op("move", "/a/b", **{"from": "/a"})], "there is no 'a'"),
    "move onto itself": ({"a": 1}, [op("move", "/a", **{"from": "/a"})], {"a": 1}),
    "move from nowhere": ({"a": 1}, [op("move", "/b")], 'needs "from"'),
    "copy from a number": ({"a": 1}, [op("copy", "/b", **{"from": 5})], 'needs "from"'),
    "copy is a copy": (
        {"a": {"x": 1}}, [op("copy", "/b", **{"from": "/a"}), op("replace", "/b/x", value=2)], {"a": {"x": 1}, "b": {"x": 2}}),
    "test that holds": ({"a": {"b": [1, "x", None]}}, [op("test", "/a", value={"b": [1, "x", None]})],
                        {"a": {"b": [1, "x", None]}}),
    "test that fails": ({"a": 1}, [op("test", "/a", value=2)], "the value differs"),
    "test of a number against a truth": ({"a": 1}, [op("test", "/a", value=True)], "the value differs"),
    "test of a number against a word": ({"a": 1}, [op("test", "/a", value="1")], "the value differs"),
    "test of what is not there": ({}, [op("test", "/a", value=1)], "there is no 'a'"),
    "slashes and tildes in names": (
        {"a/b": 1, "m~n": 2, "~1": 3},
        [op("replace", "/a~1b", value=10), op("replace", "/m~0n", value=20), op("replace", "/~01", value=30)],
        {"a/b": 10, "m~n": 20, "~1": 30}),
    "an empty name": ({"": 1}, [op("replace", "/", value=2)], {"": 2}),
    "numbers are names in objects": ({"a": {"0": 1}}, [op("replace", "/a/0", value=2)], {"a": {"0": 2}}),
    "a place with a leading zero": ({"a": [1, 2]}, [op("remove", "/a/01")], "is not a list index"),
    "a place below zero": ({"a": [1, 2]}, [op("remove", "/a/-1")], "is not a list index"),
    "a place in strange digits": ({"a": [1, 2, 3]}, [op("remove", "/a/²")], "is not a list index"),
    "a path without a slash": ({"a": 1}, [op("remove", "a")], "starts with /"),
    "an unknown operation": ({"a": 1}, [op("increment", "/a")], "there are add, remove, replace, move, copy and test"),
    "one after another": ({}, [op("add", "/a", value=[]), op("add", "/a/-", value=1), op("test", "/a/0", value=1)], {"a": [1]}),
    "nothing": ({"a": 1}, [], {"a": 1}),
}


@pytest.mark.parametrize("case", JSON)
def test_json(case: str) -> None:
    target, operations, wanted = JSON[case]
    before = copy.deepcopy((target, operations))
    if isinstance(wanted, str):
        with pytest.raises(errors.Invalid, match=wanted) as caught:
            patches.json(target, operations)
        assert caught.value.causes[0].field == "[0].path"
    else:
        assert patches.json(target, operations) == wanted
    assert (target, operations) == before


def test_an_error_names_the_operation() -> None:
    with pytest.raises(errors.Invalid, match=r"operation 1 \(remove /nope\) does not fit: there is no 'nope'") as caught:
        patches.json({"a": 1}, [op("add", "/b", value=1), op("remove", "/nope")])
    assert caught.value.causes[0].field == "[1].path"


@pytest.mark.parametrize("bad", [{"op": "add"}, "add", None, [1], [{"op": "add"}], [{"op": "add", "path": 5}],
                                 [{"op": "replace", "path": "", "value": 1}]], ids=str)
def test_what_is_no_json_patch(bad: Any) -> None:
    with pytest.raises(errors.BadRequest):
        patches.json({"a": 1}, bad)


# -- strategic merge patch


def pod(*containers: Object, **spec: Any) -> Object:
    return {"spec": {"containers": list(containers), **spec}}


A, B, C = ({"name": letter, "image": "i:1"} for letter in "abc")
NEW = {"name": "n", "image": "n:1"}
STRATEGIC: dict[str, tuple[Object, Object, Object]] = {
    "maps merge and null removes": (
        {"metadata": {"labels": {"a": "1", "b": "1"}}}, {"metadata": {"labels": {"a": None, "c": "1"}}},
        {"metadata": {"labels": {"b": "1", "c": "1"}}}),
    "an item is found by its name": (
        pod(A, B), pod({"name": "b", "image": "i:2"}), pod(A, {"name": "b", "image": "i:2"})),
    "an item with a null loses the field": (pod(A | {"tty": True}), pod({"name": "a", "tty": None}), pod(A)),
    "a new item stands first": (pod(A, B), pod(NEW), pod(NEW, A, B)),
    "a new item in its place, as kubectl apply sends it": (
        pod(A, B),
        {"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "n"}, {"name": "b"}], "containers": [NEW]}},
        pod(A, NEW, B)),
    "a new order": (
        pod(A, B, C), {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}}, pod(C, B, A)),
    "an item that others added keeps its place": (
        pod(A, B, C), {"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "c"}]}}, pod(A, B, C)),
    "an item goes": (pod(A, B), pod({"name": "a", "$patch": "delete"}), pod(B)),
    "an item goes that is not there": (pod(A), pod({"name": "z", "$patch": "delete"}), pod(A)),
    "an item goes, the others are put in order": (
        pod(A, B, C),
        {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                  "containers": [{"name": "b", "$patch": "delete"}]}},
        pod(C, A)),
    "a list is replaced": (pod(A, B), pod({"$patch": "replace"}, C), pod(C)),
    "a map is replaced": (
        {"spec": {"a": 1, "b": {"c": 1}}}, {"spec": {"$patch": "replace", "d": 2, "e": None}}, {"spec": {"d": 2}}),
    "a map is emptied": ({"spec": {"a": 1}, "x": 1}, {"spec": {"$patch": "delete"}}, {"spec": {}, "x": 1}),
    "merge said aloud": ({"spec": {"a": 1}}, {"spec": {"$patch": "merge", "b": 2}}, {"spec": {"a": 1, "b": 2}}),
    "lists inside items": (
        pod(A | {"env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]}),
        pod({"name": "a", "$setElementOrder/env": [{"name": "X"}, {"name": "Z"}],
             "env": [{"name": "Z", "value": "1"}, {"name": "Y", "$patch": "delete"}]}),
        pod(A | {"env": [{"name": "X", "value": "1"}, {"name": "Z", "value": "1"}]})),
    "ports are distinguished by their number": (
        pod(A | {"ports": [{"containerPort": 80}]}), pod({"name": "a", "ports": [{"containerPort": 80, "name": "web"}]}),
        pod(A | {"ports": [{"containerPort": 80, "name": "web"}]})),
    "a template's containers": (
        {"spec": {"template": pod(A)}}, {"spec": {"template": pod({"name": "a", "image": "i:2"})}},
        {"spec": {"template": pod({"name": "a", "image": "i:2"})}}),
    "only the named keys of a union are kept": (
        pod(A, volumes=[{"name": "v", "emptyDir": {}}]),
        {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}]}},
        pod(A, volumes=[{"name": "v", "configMap": {"name": "c"}}])),
    "a condition by its type": (
        {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]}}),
    "a set of words grows": (
        {"metadata": {"finalizers": ["a", "b"]}}, {"metadata": {"finalizers": ["b", "c"]}},
        {"metadata": {"finalizers": ["a", "b", "c"]}}),
    "a set of words shrinks, as kubectl apply sends it": (
        {"metadata": {"finalizers": ["a", "b", "c"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"], "$setElementOrder/finalizers": ["c", "a"]}},
        {"metadata": {"finalizers": ["c", "a"]}}),
    "owners by their uid": (
        {"metadata": {"ownerReferences": [{"uid": "1", "name": "x"}]}},
        {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}, {"uid": "2", "name": "y"}]}},
        {"metadata": {"ownerReferences": [{"uid": "2", "name": "y"}]}}),
    "a list without a key is replaced whole": (
        pod(A | {"args": ["a", "b"]}, tolerations=[{"key": "x"}]),
        pod({"name": "a", "args": ["c"]}, tolerations=[{"key": "y"}]),
        pod(A | {"args": ["c"]}, tolerations=[{"key": "y"}])),
    "where nothing was": (
        {}, {"spec": {"containers": [A], "x": {"y": None, "z": 1}}}, {"spec": {"containers": [A], "x": {"z": 1}}}),
    "nothing": ({"a": 1}, {}, {"a": 1}),
}


@pytest.mark.parametrize("case", STRATEGIC)
def test_strategic(case: str) -> None:
    target, patch, wanted = STRATEGIC[case]
    before = copy.deepcopy((target, patch))
    assert patches.strategic(target, patch) == wanted
    assert (target, patch) == before


BAD_STRATEGIC: dict[str, tuple[Object, str]] = {
    "an item without its key": (pod({"image": "i"}), "spec.containers: every item needs its merge key 'name'"),
    "an item that is no object": ({"spec": {"containers": ["a"]}}, "merge key 'name'"),
    "an unknown directive": ({"spec": {"$patch": "explode"}}, "spec: unknown .patch 'explode'"),
}


@pytest.mark.parametrize("case", BAD_STRATEGIC)
def test_bad_strategic(case: str) -> None:
    patch, words = BAD_STRATEGIC[case]
    with pytest.raises(errors.BadRequest, match=words):
        patches.strategic(pod(A), patch)


# -- the difference: what the file said, what it says, what is there, the patch, the result

DIFFERENCE: dict[str, tuple[Object, Object, Object, Object]] = {
    "nothing": ({"a": 1}, {"a": 1}, {"a": 1, "status": 1}, {}),
    "something new": ({}, {"a": 1}, {}, {"a": 1}),
    "something else": ({"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}),
    "something that others changed is set back": ({"a": 1}, {"a": 1}, {"a": 5}, {"a": 1}),
    "something that the file no longer has goes": ({"a": 1, "b": 1}, {"a": 1}, {"a": 1, "b": 1}, {"b": None}),
    "something that others removed already": ({"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {}),
    "something that others added stays": ({"a": 1}, {"a": 1}, {"a": 1, "theirs": 1}, {}),
    "inside an object": (
        {"m": {"a": 1, "b": 1}}, {"m": {"a": 2}}, {"m": {"a": 1, "b": 1, "theirs": 1}}, {"m": {"a": 2, "b": None}}),
    "an object where a word was": ({"m": "x"}, {"m": {"a": 1}}, {"m": "x"}, {"m": {"a": 1}}),
    "an object that others replaced": ({"m": {"a": 1}}, {"m": {"a": 1}}, {"m": "x"}, {"m": {"a": 1}}),
    "a list is one value": ({"l": [1, 2]}, {"l": [1]}, {"l": [1, 2]}, {"l": [1]}),
    "one is not true": ({"a": 1}, {"a": True}, {"a": 1}, {"a": True}),
}


@pytest.mark.parametrize("case", DIFFERENCE)
def test_difference(case: str) -> None:
    last, new, live, wanted = DIFFERENCE[case]
    assert patches.difference(last, new, live) == wanted


NO_NULLS = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=8,
)
FILES = st.dictionaries(st.sampled_from(["a", "b", "c"]), NO_NULLS, max_size=3)


@given(FILES, FILES, FILES)
def test_patch_from_the_difference_yields_the_file(last: Object, new: Object, live: Object) -> None:
    after = patches.merge(live, patches.difference(last, new, live))
    assert patches.difference({}, new, after) == {}
    for key in last:
        assert key in new or key not in after
    for key in live:
        assert key in last or key in new or patches.same(after[key], live[key])


SAME: dict[str, tuple[Any, Any, bool]] = {
    "numbers": (1, 1.0, True),
    "one and true": (1, True, False),
    "nothing and false": (None, False, False),
    "zero and false, deep": ({"a": [{"b": 0}]}, {"a": [{"b": False}]}, False),
    "another order of names": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    "another order of items": ([1, 2], [2, 1], False),
    "one more": ([1], [1, 2], False),
    "another name": ({"a": 1}, {"b": 1}, False),
    "a list and an object": ([], {}, False),
}


@pytest.mark.parametrize("case", SAME)
def test_same(case: str) -> None:
    one, other, wanted = SAME[case]
    assert patches.same(one, other) is wanted
    assert patches.same(other, one) is wanted
