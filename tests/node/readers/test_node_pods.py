"""Which pods are shown, and what watchers are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from outfitter.api.kubevirt.device_refs import CELLS_KIND
from outfitter.errors import TooManyRequests
from outfitter.node.readers import device_metrics, node_pods
from outfitter.node.readers.node_pods import PodWatch
from outfitter.node.readers.pod_devices import ResourceDevice
from outfitter.node.readers.rate_limit import RateLimit
from tests.node.kubelet.driver_host import short_folder
from tests.node.readers.reader_client import BOTH, ReaderClient, definitions
from tests.node.readers.shown_pods import changed, node, pod, served

GPU, NIC = "a.io/gpu", "a.io/nic"


async def sent(watch: PodWatch, number: int) -> list[tuple[str, str]]:
    events = watch.events()
    return [(event.type, event.pod["metadata"]["name"]) for event in [await anext(events) for _ in range(number)]]


async def test_a_pod_is_shown_from_its_admission_to_its_end() -> None:
    pods, _ = node()
    watch = PodWatch()
    pods.watch(watch)
    p = pod("p", {"c": {GPU: ("g0",)}})
    pods.changed(None, p)
    assert pods.pods() == []
    pods.admit(p)
    pods.admit(p)
    running = changed(p, phase="Running")
    pods.changed(p, running)
    assert pods.find("default", "p") is not None
    done = changed(running, phase="Succeeded")
    pods.changed(running, done)
    pods.changed(done, None)
    assert pods.pods() == []
    assert pods.find("default", "p") is None
    pods.admit(done)
    assert pods.pods() == []
    assert await sent(watch, 3) == [("ADDED", "p"), ("MODIFIED", "p"), ("DELETED", "p")]


async def test_a_pod_of_the_same_name_is_another_pod() -> None:
    pods, _ = node()
    watch = PodWatch()
    pods.watch(watch)
    old = changed(pod("p", {"c": {}}), phase="Running")
    new = {**old, "metadata": {**old["metadata"], "uid": "other"}, "spec": {**old["spec"], "nodeName": "n2"}}
    pods.changed(None, old)
    pods.changed(old, new)
    assert pods.pods() == []
    assert await sent(watch, 2) == [("ADDED", "p"), ("DELETED", "p")]


async def test_a_watch_that_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pods, "WAITING_EVENTS", 3)
    pods, _ = node()
    watch = PodWatch()
    pods.watch(watch)
    for number in range(5):
        pods.admit(pod(f"p{number}", {"c": {}}))
    with pytest.raises(TooManyRequests):
        await anext(watch.events())


@pytest.mark.parametrize("which", BOTH)
async def test_devices_with_their_numa_nodes(which: str) -> None:
    pods, sources = node()
    sources.plugins = {GPU: {"g0": ResourceDevice((0, 1)), "g1": ResourceDevice((1,), healthy=False)},
                       NIC: {"e0": ResourceDevice()}}
    pods.admit(pod("p", {"a": {GPU: ("g0", "g1"), NIC: ("e0",)}, "b": {}}))
    with short_folder() as folder:
        client = ReaderClient(definitions(which), folder)
        async with served(pods, folder):
            [shown] = (await client.lister("List")).pod_resources
            allocatable = (await client.lister("GetAllocatableResources")).devices
    [a, b] = shown.containers
    assert entries(a.devices) == [(GPU, "g0", [0]), (GPU, "g0", [1]), (GPU, "g1", [1]), (NIC, "e0", [])]
    assert entries(b.devices) == []
    assert entries(allocatable) == [(GPU, "g0", [0]), (GPU, "g0", [1]), (NIC, "e0", [])]


def entries(devices: Any) -> list[tuple[str, str, list[int]]]:
    return [(entry.resource_name, id_, [place.ID for place in entry.topology.nodes])
            for entry in devices for id_ in entry.device_ids]


async def test_states_of_devices_are_counted() -> None:
    pods, sources = node()
    sources.plugins = {GPU: {"g0": ResourceDevice(), "g1": ResourceDevice(), "g2": ResourceDevice(healthy=False)}}
    pods.admit(pod("p", {"a": {GPU: ("g1",)}, "b": {}}))
    shown = device_metrics.readable([pods])
    assert device_metrics.states([pods], shown) == {
        ("n1", GPU, "healthy"): 2, ("n1", GPU, "unhealthy"): 1, ("n1", GPU, "assigned"): 1}
    assert device_metrics.holders(shown) == {("n1", GPU, "g1", "default", "p", "a"): 1}
    assert (pods.waits.count, pods.prepares.count) == (1, 0)


async def test_exclusive_cpus_of_a_flavor() -> None:
    pods, sources = node()
    parameters = {"apiVersion": "outfitter.dev/v1alpha1", "kind": CELLS_KIND, "cpus": {"0": [5, 4], "1": [12]}}
    sources.claims["default/k"] = {"metadata": {"uid": "k", "name": "k", "namespace": "default"}, "status": {"allocation": {
        "devices": {"results": [], "config": [{"opaque": {"driver": "x", "parameters": parameters}}]}}}}
    p = pod("p", {"compute": {}, "other": {}}, resourceClaims=[{"name": "flavor", "resourceClaimName": "k"}])
    p["spec"]["containers"][0]["resources"] = {"claims": [{"name": "flavor"}]}
    pods.admit(p)
    [shown] = pods.readable()
    assert {container.name: container.cpu_ids for container in shown.containers} == {"compute": (4, 5, 12), "other": ()}


def test_more_than_100_calls_in_a_second_are_rejected() -> None:
    now = [0.0]
    limit = RateLimit(lambda: now[0])
    assert [limit.allow() for _ in range(101)] == [True] * 100 + [False]
    now[0] = 0.02
    assert [limit.allow() for _ in range(3)] == [True, True, False]


async def test_a_call_above_the_rate_limit_is_answered_with_the_kubelets_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateLimit, "allow", lambda _self: False)
    pods, _ = node()
    with short_folder() as folder:
        async with served(pods, folder):
            with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit") as rejected:
                await ReaderClient(definitions("ours"), folder).lister("List")
    assert rejected.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_pods_over_http_on_the_local_socket() -> None:
    pods, _ = node()
    p = pod("p", {"c": {GPU: ("g0",)}})
    pods.admit(p)
    with short_folder() as folder:
        async with served(pods, folder), aiohttp.ClientSession(connector=aiohttp.UnixConnector(
                str(folder / "pods-api" / "http.sock"))) as session:
            async with session.get("http://local/pods") as answer:
                listed = await answer.json()
            assert (listed["kind"], [item["metadata"]["name"] for item in listed["items"]]) == ("PodList", ["p"])
            [container] = listed["items"][0]["spec"]["containers"]
            assert container["assignedDevices"] == [{"resourceName": GPU, "deviceIDs": ["g0"]}]
            for path, status in {"/pods?node=n1": 200, "/pods?node=n9": 404, "/pods?watch=maybe": 400, "/secrets": 404}.items():
                async with session.get(f"http://local{path}") as answer:
                    assert answer.status == status, path
            async with session.post("http://local/pods") as answer:
                assert answer.status == 405
            async with session.get("http://local/pods?watch=true") as stream:
                first = [json.loads(await stream.content.readline()) for _ in range(2)]
                assert [event["type"] for event in first] == ["ADDED", "BOOKMARK"]
                assert first[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
                pods.changed(p, changed(p, phase="Running"))
                pods.changed(p, None)
                more = [json.loads(await asyncio.wait_for(stream.content.readline(), 30)) for _ in range(2)]
                assert [(event["type"], event["object"]["metadata"]["name"]) for event in more] == [
                    ("MODIFIED", "p"), ("DELETED", "p")]
        assert not (folder / "pods-api" / "http.sock").exists()


async def test_a_server_that_stops_ends_watches(tmp_path: Path) -> None:
    pods, _ = node()
    with short_folder() as folder:
        connector = aiohttp.UnixConnector(str(folder / "pods-api" / "http.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:
            async with served(pods, folder):
                stream = await session.get("http://local/pods?watch=true")
                await stream.content.readline()
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(stream.content.read(), 30)
            stream.close()


async def test_what_a_plugin_lists_later_is_shown() -> None:
    pods, sources = node()
    sources.plugins = {GPU: {"g0": ResourceDevice((0,))}}
    first = pod("p", {"a": {GPU: ("g0",)}})
    pods.admit(first)

    def shown() -> Mapping[str, Mapping[str, tuple[int, ...]]]:
        return pods.readable()[0].containers[0].devices

    assert shown() == {GPU: {"g0": (0,)}}
    assert pods.readable()[0] is pods.readable()[0]  # nothing changed
    sources.plugins = {GPU: {"g0": ResourceDevice((1,))}}
    assert shown() == {GPU: {"g0": (1,)}}
    second = changed(first, phase="Running")
    second["spec"] = pod("p", {"a": {GPU: ("g0", "g1")}})["spec"]
    pods.changed(first, second)
    assert shown() == {GPU: {"g0": (1,), "g1": ()}}


async def test_a_claim_that_changes_is_shown_as_it_is() -> None:
    pods, sources = node()
    pods.admit(pod("p", {"a": {}}, resourceClaims=[{"name": "k", "resourceClaimName": "k"}]))
    pods.changed(None, pods.pods()[0])
    pods.pods()[0]["spec"]["containers"][0]["resources"] = {"claims": [{"name": "k"}]}
    assert pods.readable()[0].containers[0].claims == ()
    sources.claims["default/k"] = {"metadata": {"uid": "k", "name": "k", "namespace": "default"}, "status": {"allocation": {
        "devices": {"results": [{"request": "r", "driver": "d", "pool": "n1", "device": "x"}]}}}}
    assert [one.devices[0].device for one in pods.readable()[0].containers[0].claims] == ["x"]
