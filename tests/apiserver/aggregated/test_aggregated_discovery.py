"""What kube-apiserver's aggregator asks of the aggregated API: groups, resources, OpenAPI, health."""

from __future__ import annotations

import pytest

from tests.apiserver.aggregated.proxied import ProxiedClient
from tests.apiserver.test_subresources import ALL

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


async def test_groups(proxied: ProxiedClient) -> None:
    status, group = (await proxied.get("/apis")).json["groups"]
    assert status["preferredVersion"] == {"groupVersion": "status.outfitter.dev/v1alpha1", "version": "v1alpha1"}
    assert {"kind": "APIGroup", "apiVersion": "v1", **group} == (await proxied.get("/apis/subresources.kubevirt.io")).json
    assert [each["groupVersion"] for each in group["versions"]] == [
        "subresources.kubevirt.io/v1", "subresources.kubevirt.io/v1alpha3"]
    whole = await proxied.get("/apis", accept=AGGREGATED)
    _, item = whole.json["items"]
    assert (item["metadata"]["name"], whole.header("content-type")) == ("subresources.kubevirt.io", [
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"])
    assert {f"{each['resource']}/{inner['subresource']}" for each in item["versions"][0]["resources"]
            for inner in each["subresources"]} == ALL


@pytest.mark.parametrize("version", ["v1", "v1alpha3"])
async def test_resources(proxied: ProxiedClient, version: str) -> None:
    answer = (await proxied.get(f"/apis/subresources.kubevirt.io/{version}")).json
    assert {each["name"] for each in answer["resources"]} == ALL
    version_ = (await proxied.get(f"/apis/subresources.kubevirt.io/{version}/version")).json
    assert version_["gitVersion"].startswith("v1.8.0+outfitter")


async def test_pools_can_be_listed_only(proxied: ProxiedClient) -> None:
    [resource] = (await proxied.get("/apis/status.outfitter.dev/v1alpha1")).json["resources"]
    assert (resource["name"], resource["namespaced"], resource["verbs"]) == ("poolstatuses", False, ["list"])


async def test_openapi_and_health(proxied: ProxiedClient) -> None:
    assert (await proxied.get("/openapi/v2")).json["swagger"] == "2.0"
    assert (await proxied.get("/openapi/v3")).json == {"paths": {}}
    assert (await proxied.get("/readyz", verbose="")).data.decode().splitlines() == [
        "[+]ping ok", "[+]front-proxy ok", "readyz check passed"]
    assert (await proxied.get("/version")).json["gitVersion"]
    assert (await proxied.post("/apis", {})).status == 405
    for path in ("/apis/subresources.kubevirt.io/v9", "/apis/other", "/openapi/v3/apis", "/"):
        assert (await proxied.get(path)).status == 404
