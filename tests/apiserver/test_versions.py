"""Older versions to the stored one and back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api import kinds, known_fields, versions
from outfitter.api.kinds import Kind, Object
from tests.apiserver.asgi import CLAIMS, MERGE, Client

FLAT = {"name": "gpu", "deviceClassName": "gpu", "count": 2, "selectors": [{"cel": {"expression": "true"}}]}
EXACT = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2, "selectors": [{"cel": {"expression": "true"}}]}}
FIRST = {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "x"}]}
BASIC = {"name": "d0", "basic": {"attributes": {"a": {"int": 1}}, "capacity": {"memory": {"value": "1Gi"}}}}
DEVICE = {"name": "d0", "attributes": {"a": {"int": 1}}, "capacity": {"memory": {"value": "1Gi"}}}
ALPHA = {"name": "d0", "basic": {"attributes": {"a": {"int": 1}}, "capacity": {"memory": "1Gi"}}}


def claims(*requests: Object) -> Object:
    return {"devices": {"requests": list(requests)}}


CASES: dict[str, tuple[Kind, str, Object, Object]] = {
    "a flat request": (kinds.RESOURCE_CLAIM, "v1beta1", claims(FLAT, FIRST), claims(EXACT, FIRST)),
    "a flat request, alpha": (kinds.RESOURCE_CLAIM, "v1alpha3", claims(FLAT), claims(EXACT)),
    "nothing but the version": (kinds.RESOURCE_CLAIM, "v1beta2", claims(EXACT), claims(EXACT)),
    "a template": (kinds.RESOURCE_CLAIM_TEMPLATE, "v1beta1", {"spec": claims(FLAT)}, {"spec": claims(EXACT)}),
    "a slice": (kinds.RESOURCE_SLICE, "v1beta1", {"driver": "x", "devices": [BASIC]}, {"driver": "x", "devices": [DEVICE]}),
    "a slice, alpha": (kinds.RESOURCE_SLICE, "v1alpha3", {"devices": [ALPHA]}, {"devices": [DEVICE]}),
    "a device without anything": (kinds.RESOURCE_SLICE, "v1beta1", {"devices": [{"name": "d", "basic": {}}]},
                                  {"devices": [{"name": "d"}]}),
    "a class": (kinds.DEVICE_CLASS, "v1alpha3", {"selectors": []}, {"selectors": []}),
    "a VM": (kinds.VMI, "v1alpha3", {"domain": {}}, {"domain": {}}),
    "a request with fields of its own": (kinds.RESOURCE_CLAIM, "v1beta1", claims({**FLAT, "mine": 1}),
                                         claims({**EXACT, "mine": 1})),
    "no spec to mention": (kinds.RESOURCE_CLAIM, "v1beta1", {}, {}),
}


@pytest.mark.parametrize(("kind", "version", "old", "new"), CASES.values(), ids=CASES.keys())
def test_conversion_both_ways(kind: Kind, version: str, old: Object, new: Object) -> None:
    older = {"apiVersion": kind.api_version_of(version), "kind": kind.kind, "metadata": {"name": "x"}, "spec": old}
    stored = {**older, "apiVersion": kind.api_version, "spec": new}
    kept = copy.deepcopy((older, stored))
    assert versions.to_stored(kind, version, older) == stored
    assert versions.from_stored(kind, version, stored) == older
    assert (older, stored) == kept, "what was handed in was changed"


@pytest.mark.parametrize("odd", [None, 3, "x", [], [None, 3, "x", []], {"devices": 3}, {"devices": {"requests": [3]}},
                                 {"devices": [3, {"basic": 3}, {"basic": None}]}, {"devices": {"requests": [{"exactly": 3}]}}])
def test_odd_shapes_pass_unharmed(odd: Any) -> None:
    for kind, version in versions.CHANGES:
        obj = {"apiVersion": kind.api_version, "spec": odd}
        there = versions.from_stored(kind, version, obj)
        assert versions.to_stored(kind, version, there) == obj


def test_duplicate_field_is_kept() -> None:
    twice = {"spec": claims({"name": "a", "deviceClassName": "x", "count": 1, "exactly": {"deviceClassName": "y"}})}
    stored = versions.to_stored(kinds.RESOURCE_CLAIM, "v1beta1", twice)
    assert stored == {"spec": claims({"name": "a", "deviceClassName": "x", "exactly": {"deviceClassName": "y", "count": 1}})}
    assert versions.from_stored(kinds.RESOURCE_CLAIM, "v1beta1", stored) == twice


SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2)
UNKNOWN = st.dictionaries(st.sampled_from(["mine", "yours", "x"]), SCALARS | st.lists(SCALARS, max_size=2), max_size=2)
AMOUNT = st.fixed_dictionaries({"value": st.sampled_from(["1", "2Gi"])}, optional={"requestPolicy": UNKNOWN, "mine": SCALARS})


def known(names: tuple[str, ...]) -> st.SearchStrategy[Object]:
    return st.dictionaries(st.sampled_from([name for name in names if name != "capacity"]), SCALARS, max_size=4)


def both(*parts: st.SearchStrategy[Object]) -> st.SearchStrategy[Object]:
    return st.tuples(*parts).map(lambda found: {name: value for part in found for name, value in part.items()})


EXACTLY = both(known(versions.EXACT), UNKNOWN)
REQUEST = both(UNKNOWN, st.fixed_dictionaries({"name": SCALARS}, optional={
    "exactly": EXACTLY, "firstAvailable": st.lists(EXACTLY, max_size=2)}))
DEVICES = both(UNKNOWN, known(versions.BASIC), st.fixed_dictionaries({"name": SCALARS}, optional={
    "capacity": st.dictionaries(st.text("ab", max_size=2), AMOUNT, max_size=2)}))


def spec_of(kind: Kind) -> st.SearchStrategy[Object]:
    if kind is kinds.RESOURCE_SLICE:
        return both(UNKNOWN, st.fixed_dictionaries({"devices": st.lists(DEVICES, max_size=3)}))
    devices = both(UNKNOWN, st.fixed_dictionaries({"requests": st.lists(REQUEST, max_size=3)}))
    spec = both(UNKNOWN, st.fixed_dictionaries({"devices": devices}))
    return both(UNKNOWN, st.fixed_dictionaries({"spec": spec})) if kind is kinds.RESOURCE_CLAIM_TEMPLATE else spec


@settings(deadline=None, max_examples=50)  # a busy machine is not a wrong answer
@given(data=st.data())
@pytest.mark.parametrize(("kind", "version"), versions.CHANGES,
                         ids=lambda value: value if isinstance(value, str) else value.kind)
def test_round_trips_lose_nothing(kind: Kind, version: str, data: st.DataObject) -> None:
    stored = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": data.draw(spec_of(kind)), **data.draw(UNKNOWN)}
    older = versions.from_stored(kind, version, stored)
    assert older["apiVersion"] == kind.api_version_of(version)
    again = versions.to_stored(kind, version, older)
    assert again == stored
    assert versions.from_stored(kind, version, again) == older


@pytest.mark.parametrize(("kind", "version"), [
    (kind, version) for kind in kinds.ALL for version in kind.older if (kind, version) not in versions.CHANGES],
    ids=lambda value: value if isinstance(value, str) else value.kind)
@pytest.mark.parametrize("spec", [claims(EXACT, FIRST), {"devices": [DEVICE]}, {"domain": {}}, None])
def test_nothing_but_the_version_changes(kind: Kind, version: str, spec: Object | None) -> None:
    stored = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec, "mine": 1}
    older = versions.from_stored(kind, version, stored)
    assert older == {**stored, "apiVersion": kind.api_version_of(version)}
    assert versions.to_stored(kind, version, older) == stored


async def test_the_server_takes_and_shows_older_versions(client: Client) -> None:
    beta = CLAIMS.replace("/v1/", "/v1beta1/")
    body = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": claims(FLAT)}
    made = await client.post(beta, body, fieldValidation="Strict")
    assert (made.status, made.json["spec"], made.json["apiVersion"]) == (201, claims(FLAT), "resource.k8s.io/v1beta1")
    assert (await client.get(f"{CLAIMS}/c")).json["spec"] == claims(EXACT)
    patch = [{"op": "replace", "path": "/spec/devices/requests/0/count", "value": 3}]
    patched = await client.patch(f"{beta}/c", patch, type="application/json-patch+json")
    assert patched.json["spec"]["devices"]["requests"][0]["count"] == 3
    assert (await client.get(f"{CLAIMS}/c")).json["spec"]["devices"]["requests"][0]["exactly"]["count"] == 3
    listed = (await client.get(beta)).json
    assert listed["apiVersion"] == "resource.k8s.io/v1beta1"
    assert "exactly" not in listed["items"][0]["spec"]["devices"]["requests"][0]
    merged = await client.patch(f"{beta}/c", {"spec": claims({**FLAT, "count": 5})}, type=MERGE)
    assert merged.json["spec"]["devices"]["requests"][0]["count"] == 5
    mixed = await client.post(CLAIMS, {**body, "metadata": {"name": "d"}})
    assert (mixed.status, mixed.json["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(("kind", "version", "old", "new"), CASES.values(), ids=CASES.keys())
def test_the_fields_of_every_version_are_known(kind: Kind, version: str, old: Object, new: Object) -> None:
    strange = [path for path in known_fields.unknown(kind, version, {"spec": old}) if "mine" not in path]
    assert not strange
    assert not [path for path in known_fields.unknown(kind, kind.version, {"spec": new}) if "mine" not in path]
