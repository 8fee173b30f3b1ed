"""The quick look at an object's shape reports that there is nothing to say exactly when the careful one has nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api.validate import schema, shapes

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    shapes.QUANTITY: st.sampled_from(["1Gi", 1]), shapes.NUMBER: st.sampled_from(["1Gi", 1, 0.5]),
    shapes.Amount: st.sampled_from(["1Gi", 1, 0.5]), shapes.Time: st.just("2026-01-31T12:00:00Z"),
    str: st.just("x"), int: st.just(1), bool: st.booleans(), dict: st.just({}), list: st.just([])}
ODD: st.SearchStrategy[Any] = st.sampled_from([None, True, 0, 2 ** 63, 1.5, "", [], {}, [None], {"a": None}])


def near(wanted: Any) -> st.SearchStrategy[Any]:
    """Mostly as it should be."""
    right: st.SearchStrategy[Any]
    if isinstance(wanted, list):
        right = st.lists(near(wanted[0]), max_size=2)
    elif isinstance(wanted, dict):
        fields = {mark.rstrip("!"): near(inner) for mark, inner in wanted.items() if mark != "*"}
        right = st.fixed_dictionaries({}, optional=fields) if "*" not in wanted else st.dictionaries(
            st.sampled_from(["a", "b"]), near(wanted["*"]), max_size=2)
    else:
        right = PLAIN[wanted]
    return st.integers(0, 9).flatmap(lambda dice: ODD if dice == 0 else right)


@pytest.mark.parametrize("kind", ["Flavor", "LedgerPage", "Pod", "ResourceClaim", "ResourceSlice", "VirtualMachineInstance"])
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_both_looks_agree(kind: str, data: st.DataObject) -> None:
    obj = data.draw(st.fixed_dictionaries({"metadata": near(shapes.METADATA)}, optional={
        mark.rstrip("!"): near(wanted) for mark, wanted in shapes.SHAPES[kind].items()}))
    assert schema.conforms(kind, obj) == (not list(schema.check(kind, obj)))


def test_a_part_that_is_stored_already_is_left_alone() -> None:
    old: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": 1}, "status": {"phase": "Pending"}}
    assert [cause.field for cause in schema.check("Pod", old)] == ["spec.containers"]
    assert list(schema.check("Pod", {**old, "status": {"phase": "Running"}}, old)) == []
    assert [cause.field for cause in schema.check("Pod", {**old, "status": {"phase": 1}}, old)][-1:] == ["status.phase"]
    assert list(schema.check("Pod", {**old, "spec": {"containers": 1}}, old)) == []
    assert [cause.field for cause in schema.check("Pod", {**old, "spec": {"containers": 2}}, old)] == ["spec.containers"]
    assert [cause.field for cause in schema.check("Pod", {**old, "spec": {"containers": True}}, old)] == ["spec.containers"]
    assert schema.conforms("Pod", {**old, "metadata": {"name": "p"}}, old), "the identical spec is not looked at"
    assert not schema.conforms("Pod", {**old, "spec": {"containers": 1}}, old)
