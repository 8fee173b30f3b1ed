"""Extended resources that come from devices: which requests a pod's claim gets, and who uses which."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.filter.pod_requests import requests
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes

GPU, NIC = "example.com/gpu", "example.com/nic"


def class_(name: str, resource: str = "", made: str = "2026-01-01T00:00:00Z") -> Object:
    return {"metadata": {"name": name, "creationTimestamp": made},
            "spec": {"extendedResourceName": resource} if resource else {}}


def container(name: str, *, sidecar: bool = False, **amounts: str) -> Object:
    limits = {{"gpu": GPU, "nic": NIC}.get(key, key): amount for key, amount in amounts.items()}
    return {"name": name, "image": "x", "resources": {"limits": limits}, **({"restartPolicy": "Always"} if sidecar else {})}


def pod(*containers: Object, first: tuple[Object, ...] = ()) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"automountServiceAccountToken": False, "containers": list(containers), "initContainers": list(first)}}


CLASSES = extended_resources.mapped([class_("gpus", GPU), class_("nics", NIC)])
CASES: dict[str, tuple[Object, dict[str, int], list[str]]] = {
    "one container": (pod(container("a", gpu="2")), {"container-0-request-0": 2}, ["a:container-0-request-0"]),
    "the number of a request is that of the resource among all": (
        pod(container("a", cpu="1", gpu="1", nic="1")), {"container-0-request-1": 1, "container-0-request-2": 1},
        ["a:container-0-request-1", "a:container-0-request-2"]),
    "containers add up": (pod(container("a", gpu="1"), container("b", gpu="2")),
                          {"container-0-request-0": 1, "container-1-request-0": 2},
                          ["a:container-0-request-0", "b:container-1-request-0"]),
    "one that ends uses what comes after it": (
        pod(container("a", gpu="2"), first=(container("i", gpu="1"),)), {"container-1-request-0": 2},
        ["a:container-1-request-0", "i:container-1-request-0"]),
    "and asks for what is missing, the most of all such": (
        pod(container("a", gpu="1"), first=(container("i", gpu="2"), container("j", gpu="4"))),
        {"container-1-request-0": 3, "container-2-request-0": 1},
        ["a:container-2-request-0", "i:container-2-request-0", "i:container-1-request-0", "j:container-2-request-0",
         "j:container-1-request-0"]),
    "one that ends uses no more of those after it than it needs": (
        pod(container("a", gpu="2"), container("b", gpu="1"), first=(container("i", gpu="2"),)),
        {"container-1-request-0": 2, "container-2-request-0": 1},
        ["a:container-1-request-0", "b:container-2-request-0", "i:container-1-request-0"]),
    "a sidecar keeps its own": (
        pod(container("a", gpu="1"), first=(container("s", sidecar=True, gpu="1"), container("i", gpu="1"))),
        {"container-0-request-0": 1, "container-2-request-0": 1},
        ["s:container-0-request-0", "a:container-2-request-0", "i:container-2-request-0"]),
    "nothing is asked for nothing": (pod(container("a", gpu="0")), {}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_requests_and_who_uses_them(name: str) -> None:
    obj, wanted, uses = CASES[name]
    found = extended_resources.wanted(obj, extended_resources.names(obj, CLASSES), CLASSES)
    assert {one["name"]: one["exactly"]["count"] for one in found.requests} == wanted
    assert [f"{one['containerName']}:{one['requestName']}" for one in found.mappings] == uses


def test_of_several_classes_the_youngest_counts_then_the_first_by_name() -> None:
    both = [class_("a", GPU), class_("z", GPU, "2026-02-01T00:00:00Z"), class_("b", GPU)]
    assert (extended_resources.mapped(both)(GPU) or {})["metadata"]["name"] == "z"
    assert (extended_resources.mapped([both[2], both[0]])(GPU) or {})["metadata"]["name"] == "a"
    assert (extended_resources.mapped(both)("deviceclass.resource.kubernetes.io/b") or {})["metadata"]["name"] == "b"
    assert extended_resources.mapped(both)(NIC) is None


def test_what_is_not_a_whole_number_is_no_number_of_devices() -> None:
    assert extended_resources.asked(container("a", gpu="1500m", nic="2")) == {NIC: 2}


def test_what_a_claim_gives_is_not_counted_on_the_host_too() -> None:
    obj: dict[str, Any] = pod(container("a", gpu="2"))
    assert requests(obj)[GPU] == 2
    obj["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [
        {"containerName": "a", "resourceName": GPU, "requestName": "container-0-request-0"}]}}
    assert GPU not in requests(obj)


@pytest.mark.cluster
async def test_an_api_server_takes_our_claim_and_status(cluster: kubernetes.Cluster) -> None:
    """The same shapes as those that kube-scheduler writes."""
    store = Kube(cluster.access(), clock=SystemClock())
    try:
        await store.create(kinds.NAMESPACE, {"metadata": {"name": "extended"}})
        made = pod(container("a", gpu="1"), first=(container("i", gpu="2"),))
        made["metadata"] = {"name": "p", "namespace": "extended"}
        await store.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": "extended"}})
        there = await store.create(kinds.POD, made)
        asks = extended_resources.wanted(there, {GPU}, CLASSES)
        claim = extended_resources.claim(there, asks)
        claim["metadata"]["name"] = "p-extended-resources-abcde"
        kept = await store.create(kinds.RESOURCE_CLAIM, claim)
        assert kept["spec"] == claim["spec"], "nothing was dropped or filled in"
        told = {"resourceClaimName": "p-extended-resources-abcde", "requestMappings": list(asks.mappings)}
        after = await store.patch(kinds.POD, "p", {"status": {"extendedResourceClaimStatus": told}}, "extended",
                                  subresource="status")
        assert after["status"]["extendedResourceClaimStatus"] == told
    finally:
        await store.close()
