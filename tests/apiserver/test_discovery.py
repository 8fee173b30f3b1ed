"""What the server says of itself: readiness, the kinds and versions it serves, their fields, and its own version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.served import descriptions
from outfitter.apiserver.app import App
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client


async def test_readiness_can_be_withheld(store: Memory) -> None:
    client = Client(App(store, ready=lambda: False), token="")
    assert (await client.get("/readyz")).status == 500
    assert (await client.get("/livez")).data == b"ok"


async def test_discovery_lists_every_kind_in_every_version(client: Client) -> None:
    for kind in kinds.ALL:
        for version in kind.versions:
            root = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
            resources = {entry["name"]: entry for entry in (await client.get(root)).json["resources"]}
            assert resources[kind.plural]["kind"] == kind.kind
            assert (f"{kind.plural}/status" in resources) == kind.has_status
    groups = (await client.get("/apis")).json["groups"]
    assert next(group for group in groups if group["name"] == "resource.k8s.io")["preferredVersion"]["version"] == "v1"
    assert [each["version"] for each in (await client.get("/apis/resource.k8s.io")).json["versions"]] == [
        "v1", "v1beta2", "v1beta1", "v1alpha3"]
    assert (await client.get("/api")).json["versions"] == ["v1"]


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
async def test_aggregated_discovery(client: Client, version: str) -> None:
    accept = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList,application/json"
    core = await client.get("/api", accept=accept)
    assert core.header("content-type") == [accept.partition(",")[0]]
    assert core.json["apiVersion"] == f"apidiscovery.k8s.io/{version}"
    named = (await client.get("/apis", accept=accept)).json
    seen = {
        (group["metadata"].get("name", ""), each["version"], resource["resource"])
        for group in core.json["items"] + named["items"] for each in group["versions"] for resource in each["resources"]
        if resource["verbs"]  # else there are actions on it alone
    }
    assert seen == {(kind.group, each, kind.plural) for kind in kinds.ALL for each in kind.versions}


async def test_openapi_announces_field_validation(client: Client) -> None:
    index = (await client.get("/openapi/v3")).json["paths"]
    assert "apis/resource.k8s.io/v1beta1" in index
    for entry in index.values():
        document = (await client.get(entry["serverRelativeURL"])).json
        for route in document["paths"].values():
            for operation in route.values():
                assert operation["x-kubernetes-group-version-kind"]["kind"]
                assert "fieldValidation" in [parameter["name"] for parameter in operation["parameters"]]
    assert (await client.get("/openapi/v3/apis/nope/v1")).status == 404


EXPLAINED = {  # where the document of a kind is, its schema, and a way into it -> what stands at its end
    "a device of a VM": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachineInstance",
                              "spec domain devices gpus [] claim request", {"type": "string"}),
    "a list of a template": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachine",
                             "spec template spec networks [] multus default", {"type": "boolean"}),
    "a name whose unknown type": ("apis/kubevirt.io/v1", "io.kubevirt.v1.KubeVirt", "spec infra",
                                       {"x-kubernetes-preserve-unknown-fields": True}),
    "a flavor": ("apis/outfitter.dev/v1alpha1", "dev.outfitter.v1alpha1.Flavor", "spec vcpus", {"type": "integer"}),
    "a claim": ("apis/resource.k8s.io/v1", "io.k8s.resource.v1.ResourceClaim",
                "spec devices requests [] exactly deviceClassName", {"type": "string"}),
    "a claim of an older version": ("apis/resource.k8s.io/v1beta1", "io.k8s.resource.v1beta1.ResourceClaim",
                                    "spec devices requests [] exactly", None),
    "an alternative of an older version": ("apis/resource.k8s.io/v1beta1", "io.k8s.resource.v1beta1.ResourceClaimTemplate",
                                           "spec spec devices requests [] selectors [] cel expression", {"type": "string"}),
    "the driver of a VMI's device": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachineInstance",
                                     "status deviceStatus gpuStatuses [] deviceResourceClaimStatus driver", {"type": "string"}),
    "its pool": ("apis/kubevirt.io/v1", "io.kubevirt.v1.VirtualMachineInstance",
                 "status deviceStatus hostDeviceStatuses [] deviceResourceClaimStatus pool", {"type": "string"}),
    "its product": ("apis/kubevirt.io/v1alpha3", "io.kubevirt.v1alpha3.VirtualMachineInstance",
                    "status deviceStatus interfaceStatuses [] deviceResourceClaimStatus product", {"type": "string"}),
    "an attribute of a published device": ("apis/resource.k8s.io/v1", "io.k8s.resource.v1.ResourceSlice",
                                           "spec devices [] attributes * int", {"type": "integer"}),
    "an amount": ("api/v1", "core.v1.Pod", "spec containers [] resources limits", {
        "type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}),
    "a container": ("api/v1", "core.v1.Pod", "spec containers [] resources claims [] request", {"type": "string"}),
}


INNER = {"[]": "items", "*": "additionalProperties"}


@pytest.mark.parametrize("name", EXPLAINED)
async def test_openapi_names_the_fields_that_are_known(client: Client, name: str) -> None:
    """kubectl explain shows them."""
    place, schema, way, end = EXPLAINED[name]
    found = (await client.get(f"/openapi/v3/{place}")).json["components"]["schemas"][schema]
    assert found["x-kubernetes-preserve-unknown-fields"], "others are allowed"
    for word in way.split():
        found = found[INNER[word]] if word in INNER else found["properties"].get(word)
    assert found is None or found.pop("description")
    assert found == end


def _fields(schema: Object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Object]]:
    """Every field of a schema with its path; items of lists and values of maps have that of their field."""
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        yield from _fields(inner, path) if inner else ()
    for name, field in (schema.get("properties") or {}).items():
        yield (*path, name), field
        yield from _fields(field, (*path, name))


async def _schemas(client: Client) -> dict[str, Object]:
    """The schemas of all kinds in all versions, by name."""
    index = (await client.get("/openapi/v3")).json["paths"]
    documents = [(await client.get(entry["serverRelativeURL"])).json for entry in index.values()]
    return {name: schema for document in documents for name, schema in document["components"]["schemas"].items()}


async def test_every_served_kind_and_field_has_a_description(client: Client) -> None:
    schemas = await _schemas(client)
    assert {name for name, schema in schemas.items() if not schema["description"].endswith(".")} == set()
    fields = [found for name, schema in schemas.items() for found in _fields(schema, (name,))]
    assert len(fields) > 4000
    assert [".".join(path) for path, field in fields if not field["description"].endswith(".")] == []


async def test_every_description_is_used(client: Client) -> None:
    """A description that no field has is of a field that was renamed or removed."""
    paths: set[tuple[str, ...]] = set()
    for schema in (await _schemas(client)).values():
        kind = (schema["x-kubernetes-group-version-kind"][0]["kind"],)
        paths |= {kind, *(path for path, _ in _fields(schema, kind))}
    used = {next((end for start in range(len(path)) if (end := ".".join(path[start:])) in descriptions.FIELDS), "")
            for path in paths}
    assert set(descriptions.FIELDS) - used == set()


async def test_openapi_documents_are_the_same_at_every_request(client: Client) -> None:
    first, again = (await client.get("/openapi/v3")).json, (await client.get("/openapi/v3")).json
    assert first == again


async def test_version(client: Client) -> None:
    version = (await client.get("/version")).json
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitVersion"].startswith("v1.36.0+outfitter")


async def test_openapi_v2_has_no_kind(client: Client) -> None:
    """kubectl looks there for kinds that v3 does not have."""
    assert (await client.get("/openapi/v2")).json["paths"] == {}
    asked = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    reply = await client.get("/openapi/v2", accept=asked)
    assert reply.header("content-type") == [asked.replace("@", ".")]
    assert reply.data.startswith(b"\x0a\x032.0\x12")
