"""`outfit node pods` and `outfit cni-devices`, against the sockets of a node."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from outfitter.node.readers.pod_devices import ResourceDevice
from tests.e2e.process import typed
from tests.node.kubelet.driver_host import short_folder
from tests.node.readers.shown_pods import node, pod, served

GPU, NIC = "a.io/gpu", "a.io/nic"


@contextlib.asynccontextmanager
async def one_node() -> AsyncIterator[Path]:
    pods, sources = node()
    sources.plugins = {GPU: {"g0": ResourceDevice((0, 1))}, NIC: {"e0": ResourceDevice(), "e1": ResourceDevice()}}
    sources.claims["blue/k"] = {"metadata": {"uid": "k", "name": "k", "namespace": "blue"}, "status": {"allocation": {
        "devices": {"results": [{"request": "up", "driver": "net.d.io", "pool": "n1", "device": "d0"}]}}}}
    p = pod("p", {"a": {GPU: ("g0",), NIC: ("e0",)}, "b": {NIC: ("e1",)}}, "blue",
            resourceClaims=[{"name": "net", "resourceClaimName": "k"}])
    p["spec"]["containers"][1]["resources"] = {"claims": [{"name": "net"}]}
    pods.admit(p)
    pods.admit(pod("plain", {"c": {}}))
    with short_folder() as folder:
        async with served(pods, folder):
            yield folder


async def test_pods_with_their_devices() -> None:
    async with one_node() as folder:
        done = await asyncio.to_thread(typed, "node", "pods", "--kubelet-dir", str(folder))
        as_json = await asyncio.to_thread(typed, "node", "pods", "--kubelet-dir", str(folder), "-o", "json")
    assert (done.code, done.err) == (0, "")
    assert [line.split() for line in done.out.splitlines()] == [
        ["NAMESPACE", "POD", "CONTAINER", "DEVICE", "FROM", "NUMA", "CPUS"],
        ["blue", "p", "a", "g0", GPU, "0,1", "-"], ["blue", "p", "a", "e0", NIC, "-", "-"],
        ["blue", "p", "b", "e1", NIC, "-", "-"], ["blue", "p", "b", "net.d.io/n1/d0", "claim", "k", "-", "-"],
        ["default", "plain", "c", "-", "-", "-", "-"]]
    found = {each["name"]: each for each in json.loads(as_json.out)}
    assert found["p"]["containers"][0]["devices"] == [
        {"resource": GPU, "id": "g0", "numaNodes": [0, 1]}, {"resource": NIC, "id": "e0", "numaNodes": []}]
    assert found["p"]["containers"][1]["claims"] == [
        {"name": "k", "devices": [{"driver": "net.d.io", "pool": "n1", "device": "d0", "cdi": ["net.d.io/dev=d0"]}]}]
    assert found["plain"]["containers"] == [{"name": "c", "cpus": [], "devices": [], "claims": []}]


async def test_no_socket(tmp_path: Path) -> None:
    done = await asyncio.to_thread(typed, "node", "pods", "--kubelet-dir", str(tmp_path))
    assert done.code == 1
    assert str(tmp_path / "pod-resources" / "kubelet.sock") in done.err


ANSWERS: dict[str, tuple[str, dict[str, Any], dict[str, list[str]]]] = {
    "of all containers": ("blue/p", {"resources": [NIC]}, {NIC: ["e0", "e1"]}),
    "several resources": ("blue/p", {"resources": [NIC, GPU]}, {GPU: ["g0"], NIC: ["e0", "e1"]}),
    "a resource that the pod has not": ("blue/p", {"resources": ["a.io/fpga"]}, {}),
    "a pod without devices": ("default/plain", {"resources": [NIC]}, {}),
}


async def ask(folder: Path, place: str, config: Any) -> Any:
    namespace, _, name = place.partition("/")
    arguments = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}" if place else ""
    given = {"cniVersion": "1.1.0", "kubeletDir": str(folder), **config} if isinstance(config, dict) else config
    with mock.patch.dict("os.environ", {"CNI_ARGS": arguments}):
        return await asyncio.to_thread(typed, "cni-devices", stdin=given if isinstance(given, str) else json.dumps(given))


@pytest.mark.parametrize(("place", "config", "devices"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_cni_plugin_gets_the_devices_that_it_knows(
        place: str, config: dict[str, Any], devices: dict[str, list[str]]) -> None:
    async with one_node() as folder:
        done = await ask(folder, place, config)
    assert done.code == 0, done.out
    namespace, _, name = place.partition("/")
    assert json.loads(done.out) == {"namespace": namespace, "name": name, "devices": devices}


async def test_a_pod_named_in_the_configuration() -> None:
    async with one_node() as folder:
        done = await ask(folder, "", {"resources": [NIC], "namespace": "blue", "podName": "p"})
        same = await ask(folder, "blue/p", {"resources": [NIC], "namespace": "blue", "podName": "p"})
    assert json.loads(done.out)["devices"] == json.loads(same.out)["devices"] == {NIC: ["e0", "e1"]}


ERRORS: dict[str, tuple[str, Any, int, str]] = {
    "a pod that is not here": ("default/p", {"resources": [NIC]}, 100, "pod p in namespace default not found"),
    "no pod": ("", {"resources": [NIC]}, 4, "K8S_POD_NAME"),
    "a pod without a name": ("blue/", {"resources": [NIC]}, 4, "K8S_POD_NAME"),
    "another namespace than that of the pod which is set up": (
        "default/plain", {"resources": [NIC], "namespace": "blue"}, 7, "namespace: must be that of the pod"),
    "another pod than the one which is set up": (
        "blue/plain", {"resources": [NIC], "podName": "p"}, 7, "podName: must be that of the pod which is set up, plain"),
    "a name that is no text": ("", {"resources": [NIC], "namespace": "blue", "podName": 5}, 7, "podName"),
    "no resources": ("blue/p", {}, 7, "resources"),
    "resources that are no list": ("blue/p", {"resources": NIC}, 7, "resources"),
    "a torn configuration": ("blue/p", '{"resources": [', 7, "not JSON"),
    "a list": ("blue/p", "[]", 7, "object"),
    "no socket": ("blue/p", {"resources": [NIC], "kubeletDir": "/nowhere"}, 11, "/nowhere"),
}


@pytest.mark.parametrize(("place", "config", "code", "says"), ERRORS.values(), ids=ERRORS.keys())
async def test_an_error_is_one_of_cni(place: str, config: Any, code: int, says: str) -> None:
    async with one_node() as folder:
        done = await ask(folder, place, config)
    assert done.code == 1
    error = json.loads(done.out)
    assert (error["code"], set(error)) == (code, {"cniVersion", "code", "msg"})
    assert says in error["msg"]
    assert error["cniVersion"] == ("1.1.0" if isinstance(config, dict) else "1.0.0")
