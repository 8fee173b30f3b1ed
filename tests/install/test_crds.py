"""CustomResourceDefinitions: structural, never stricter than admission, and with what the embedded server shows of each kind.
What kube-apiserver says of them is in `test_crds_cluster`."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outfitter
from outfitter.api import admission, kinds, known_fields
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import printer_columns
from outfitter.api.validate import schema as types
from outfitter.api.write_request import Writer, WriteRequest
from outfitter.apiserver.discovery import Discovery
from outfitter.errors import OutfitterError
from outfitter.install import crds, schema_rules
from outfitter.install.schema import KEEPS_UNKNOWN
from tests.api.json_places import put
from tests.install import structural
from tests.install.sample_objects import SAMPLES, WRONG, doubled, places

KINDS = (*crds.KUBEVIRT, *crds.OURS, kinds.NETWORK_ATTACHMENT)
SCHEMAS = {kind: crds.definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind in KINDS}


def nodes(schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        yield from nodes(inner, path) if inner else ()


def test_every_kind_that_is_not_built_into_kubernetes_has_one() -> None:
    named = [crd["metadata"]["name"] for crd in crds.definitions(networks=True)]
    assert sorted(named) == sorted(kind.resource for kind in kinds.ALL if not kind.builtin)
    assert kinds.NETWORK_ATTACHMENT.resource not in [crd["metadata"]["name"] for crd in crds.definitions()]
    assert {crd["spec"]["group"] for crd in crds.definitions(kubevirt=False)} == {"outfitter.dev"}, "KubeVirt has its own"


def test_names_scope_and_subresources_are_those_of_discovery() -> None:
    served = Discovery(KINDS)
    for kind in KINDS:
        spec = crds.definition(kind)["spec"]
        for version in spec["versions"]:
            entries = {entry["name"]: entry for entry in served.resources(kind.group, version["name"])["resources"]}
            entry = entries[kind.plural]
            assert spec["names"]["singular"] == entry["singularName"]
            assert spec["names"]["kind"] == entry["kind"]
            assert spec["names"].get("shortNames") == entry.get("shortNames")
            assert spec["names"].get("categories") == entry.get("categories")
            assert (spec["scope"] == "Namespaced") == entry["namespaced"]
            assert ("status" in version.get("subresources", {})) == (f"{kind.plural}/status" in entries)


def test_versions() -> None:
    for kind in KINDS:
        crd = crds.definition(kind)
        assert crd["metadata"]["annotations"] == {"outfitter.dev/version": outfitter.__version__}
        versions = crd["spec"]["versions"]
        assert [version["name"] for version in versions if version["storage"]] == [kind.version]
        assert [version["name"] for version in versions if version["served"]] == list(kind.versions)
        same = [{name: part for name, part in version.items() if name not in ("name", "storage")} for version in versions]
        assert all(part == same[0] for part in same), "converted without a webhook"
        assert crd["spec"]["conversion"] == {"strategy": "None"}


def test_no_field_is_pruned() -> None:
    """Every object that names fields keeps others."""
    for kind, schema in SCHEMAS.items():
        for path, node in nodes(schema, kind.kind):
            if path != f"{kind.kind}.metadata" and ("properties" in node or node.get("type") == "object"):
                assert node.get(KEEPS_UNKNOWN) or "additionalProperties" in node, path


def test_schemas_are_structural() -> None:
    for kind, schema in SCHEMAS.items():
        for path, node in nodes(schema, kind.kind):
            assert ("type" in node) != ("x-kubernetes-int-or-string" in node) or node.get(KEEPS_UNKNOWN), path
            assert not ("properties" in node and "additionalProperties" in node), path
            assert ("items" in node) == (node.get("type") == "array") or path.startswith("LedgerPage"), path
            for key in node.get("x-kubernetes-list-map-keys", ()):
                assert key in node["items"]["required"], path


def test_every_field_has_a_description() -> None:
    for kind, schema in SCHEMAS.items():
        for path, node in nodes(schema, kind.kind):
            for name, inner in node.get("properties", {}).items():
                assert name == "metadata" or inner["description"].endswith("."), f"{path}.{name}"


def test_every_rule_is_of_a_field() -> None:
    found = {path for kind, schema in SCHEMAS.items() for path, _ in nodes(schema, kind.kind)}
    rules = {*schema_rules.ENUMERATIONS, *schema_rules.LIST_KEYS, *schema_rules.UNCHECKED}
    assert rules - found == set()


def test_columns_are_those_of_the_embedded_server_as_far_as_jsonpath_can() -> None:
    missing = {}
    for kind in KINDS:
        columns = crds.definition(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
        embedded = [column.name for column in printer_columns.COLUMNS.get(kind, printer_columns.PLAIN)][1:]
        named = [column["name"] for column in columns]
        assert [name for name in embedded if name in named] == named, "in the same order"
        missing[kind.kind] = [name for name in embedded if name not in named]
    assert {kind: names for kind, names in missing.items() if names} == {
        "VirtualMachineInstance": ["Devices", "Waiting"],
        "LedgerPage": ["Booked", "Prepared", "Reserved", "Quarantined", "Unclean"],
        "ProviderTree": ["Providers"], "HostInventory": ["Withheld", "Left", "Warnings"], "Flavor": ["Extra-Specs"]}


def test_selectable_fields_have_a_plain_type() -> None:
    selectable = {kind.kind: kind.selectable for kind in KINDS if kind.selectable}
    assert selectable.keys() == {"VirtualMachineInstance", "VirtualMachineInstanceMigration", "LedgerPage", "PastBooking"}
    for kind in KINDS:
        version = crds.definition(kind)["spec"]["versions"][0]
        assert [field["jsonPath"] for field in version.get("selectableFields", ())] == [f".{path}" for path in kind.selectable]
        for path in kind.selectable:
            node = SCHEMAS[kind]
            for word in path.split("."):
                node = node["properties"][word]
            assert node["type"] == "string"


def test_each_fits_the_annotation_of_kubectl_apply() -> None:
    """`outfit install` applies on the server; a user may still use `kubectl apply`, which needs the object in an annotation."""
    for crd in crds.definitions(networks=True):
        assert len(json.dumps(crd)) < 256 * 1024, crd["metadata"]["name"]


# -- never stricter than admission

def admitted(kind: Kind, obj: Object, old: Object) -> bool:
    """Whether the embedded server takes an object, as a new one and, if it has a status, as a new status of one that it has."""
    ways: list[tuple[Literal["create", "update"], Object, Object | None, str]] = [
        ("create", {name: part for name, part in obj.items() if name != "status" or not kind.has_status}, None, "")]
    if "status" in obj and kind.has_status:
        ways.append(("update", {**old, "status": obj["status"]}, old, "status"))
    try:
        for verb, new, before, subresource in ways:
            given_ = known_fields.normalize(kind, copy.deepcopy(new))
            change = WriteRequest(verb, kind, given_, copy.deepcopy(before), subresource, _look, by=Writer("", _ignore))
            admission.AdmissionRules().admit(change)
    except OutfitterError:
        return False
    return True


def _look(*_: Any) -> Object:
    return {"metadata": {"name": "here"}}


def _ignore(words: str) -> None: ...


def never_stricter(name: str, obj: Object) -> None:
    kind, old = SAMPLES[name]
    if structural.accepts(SCHEMAS[kind], obj):
        return
    assert not admitted(kind, obj, old), "admission takes what the schema refuses"


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_accepted(name: str) -> None:
    kind, obj = SAMPLES[name]
    assert structural.accepts(SCHEMAS[kind], obj)
    assert types.conforms(kind.kind, obj)


def test_wrong_values_in_every_place_are_refused_by_admission_where_the_schema_refuses_them() -> None:
    refused = 0
    for number, (name, path) in enumerate(places()):
        for value in WRONG[number % 3::3]:
            obj = put(SAMPLES[name][1], path, value)
            never_stricter(name, obj)
            refused += not structural.accepts(SCHEMAS[SAMPLES[name][0]], obj)
    assert refused > 300, "it is strict, too"


def test_what_the_type_check_admits_is_accepted_but_for_enumerations_and_keys() -> None:
    rules = {*schema_rules.ENUMERATIONS, *schema_rules.LIST_KEYS}
    for number, (name, path) in enumerate(places()):
        kind = SAMPLES[name][0]
        dotted = ".".join([kind.kind, *(word for word in path if isinstance(word, str))])
        if any(rule.startswith(dotted) or dotted.startswith(rule) for rule in rules):
            continue
        for value in WRONG[(number + 1) % 2::2]:
            obj = put(SAMPLES[name][1], path, value)
            assert structural.accepts(SCHEMAS[kind], obj) or not types.conforms(kind.kind, obj), (dotted, value)


def test_entries_with_one_name_are_refused_by_admission_where_the_schema_refuses_them() -> None:
    lists = set()
    for name, path in places():
        kind, _ = SAMPLES[name]
        if not structural.accepts(SCHEMAS[kind], spoilt := doubled(name, path)):
            assert not admitted(kind, spoilt, SAMPLES[name][1]), path
            lists.add(".".join(word for word in path if isinstance(word, str)))
    assert lists >= {"spec.resourceClaims", "spec.networks", "spec.volumes", "spec.domain.devices.disks",
                     "spec.domain.devices.hostDevices", "spec.domain.devices.interfaces", "spec.resourceClaimTemplates"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "x", ""]), inner, max_size=3),
    max_leaves=6)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(places()), JSON)
def test_any_json_in_any_place(place: tuple[str, tuple[Any, ...]], value: Any) -> None:
    name, path = place
    never_stricter(name, put(SAMPLES[name][1], path, value))
