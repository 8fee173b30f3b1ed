"""Device assignment on one node: pods of 8 devices each, one after the other, until there are 110; then readers, a burst, and a
resource with 10,000 devices. Beside it a real kubelet with a runtime that runs nothing, where one is found
(`scripts/kube-assets --kubelet` builds it).

    python -m bench.assignment [--pods 110] [--devices 8] [--many 10000] [--no-kubelet]

Admission is from the creation of a pod that is bound to the node until its plugin gets the Allocate call: by then the devices
are chosen, written into the pod, seen there and booked. `outfit up`, the plugin and the monitor are processes of their own."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from bench.device_plugin import PluginProcess, running_plugin
from bench.process_use import ProcessUse
from bench.servers import outfit_up
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.node.kubelet.proto import pod_resources_v1_pb2 as pb
from outfitter.node.readers.pod_resources_client import SERVICE, SOCKET
from outfitter.store import kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from outfitter.store.rest_config import RestConfig

CALLS, EVERY = 200, 0.02  # seconds: below the rate limit
RESOURCE, MANY = "example.com/gpu", "example.com/port"
PATIENCE = 300.0  # seconds for anything


class Node:
    """One node, reached through its API server."""

    def __init__(self, store: Kube, name: str, folder: Path) -> None:
        """`folder`: of its kubelet, or of what serves in its place."""
        self._store, self.name, self.folder = store, name, folder
        self._events: AsyncIterator[Any] | None = None

    async def offers(self, resource: str) -> None:
        """Until its Node does."""
        first = await self._store.list(kinds.NODE)
        nodes = [*first.items]
        changes = self._store.watch(kinds.NODE, since=first.revision)
        async with asyncio.timeout(PATIENCE):
            while not any(node["metadata"]["name"] == self.name and _offered(node, resource) for node in nodes):
                nodes = [(await anext(changes)).object]

    async def watch(self) -> None:
        since = (await self._store.list(kinds.POD, "default")).revision
        self._events = self._store.watch(kinds.POD, "default", since=since)

    async def create(self, name: str, resource: str, devices: int) -> float:
        """The time at which it was asked for."""
        limits = {"limits": {resource: str(devices)}}
        begun = time.monotonic()
        await self._store.create(kinds.POD, {"metadata": {"name": name, "namespace": "default"}, "spec": {
            "nodeName": self.name, "automountServiceAccountToken": False, "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "main", "resources": limits}]}})
        return begun

    async def runs(self, names: Sequence[str]) -> float:
        """Until all of these run. The time of the last one."""
        assert self._events is not None
        left = set(names)
        async with asyncio.timeout(PATIENCE):
            while left:
                event = await anext(self._events)
                name, phase = event.object["metadata"]["name"], (event.object.get("status") or {}).get("phase")
                if phase == "Failed":
                    raise SystemExit(f"{name} failed: {event.object['status']}")
                if phase == "Running":
                    left.discard(name)
        return time.monotonic()

    async def delete_all(self) -> None:
        found = await self._store.list(kinds.POD, "default")
        left = {pod["metadata"]["name"] for pod in found.items}
        changes = self._store.watch(kinds.POD, "default", since=found.revision)
        for name in sorted(left):
            await self._store.delete(kinds.POD, name, "default", grace=0)
        async with asyncio.timeout(PATIENCE):
            while left:
                event = await anext(changes)
                if event.type == "DELETED":
                    left.discard(event.object["metadata"]["name"])


def _offered(node: Object, resource: str) -> int:
    return int(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))


@asynccontextmanager
async def node_of(access: RestConfig, name: str, folder: Path) -> AsyncIterator[Node]:
    store = Kube(access, clock=SystemClock(), user_agent="bench/1")
    try:
        yield Node(store, name, folder)
    finally:
        await store.close()


def percentile(times: Sequence[float], part: float) -> float:
    return sorted(times)[min(int(len(times) * part), len(times) - 1)]


def figures(times: Sequence[float]) -> str:
    """Of seconds."""
    ms = [each * 1e3 for each in times]
    return f"median {statistics.median(ms):.1f} ms, p99 {percentile(ms, 0.99):.1f} ms, most {max(ms):.1f} ms"


@dataclass
class OneByOne:
    """Seconds of each pod."""

    admitted: list[float] = field(default_factory=list)  # until Allocate
    running: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of the node's process until it runs


async def one_by_one(node: Node, plugin: PluginProcess, resource: str, pods: int, devices: int, *, pid: int) -> OneByOne:
    out = OneByOne()
    await node.watch()
    for number in range(pods):
        before = ProcessUse.of(pid).cpu
        begun = await node.create(f"pod-{number}", resource, devices)
        out.admitted.append(await asyncio.to_thread(plugin.next_allocate) - begun)
        out.running.append(await node.runs([f"pod-{number}"]) - begun)
        out.cpu.append(ProcessUse.of(pid).cpu - before)
    return out


async def burst(node: Node, pods: int, devices: int) -> float:
    """Seconds until all of these pods run, created at once."""
    await node.watch()
    names = [f"burst-{number}" for number in range(pods)]
    begun = min(await asyncio.gather(*(node.create(name, RESOURCE, devices) for name in names)))
    return await node.runs(names) - begun


def growth(times: Sequence[float], cpu: Sequence[float]) -> str:
    """Of CPU time the mean: it has the kernel's ticks."""
    tenth = max(len(times) // 10, 1)
    first, last = (statistics.median(part) * 1e3 for part in (times[:tenth], times[-tenth:]))
    used = [statistics.mean(part) * 1e3 for part in (cpu[:tenth], cpu[-tenth:])]
    return (f"the first {tenth} pods {first:.1f} ms, the last {tenth} {last:.1f} ms (medians), with {used[0]:.1f} and "
            f"{used[1]:.1f} ms of CPU each")


async def listed(folder: Path, expected: int) -> str:
    """What a monitor of its own process measures with pod-resources' List."""
    monitor = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.assignment", "--monitor", str(folder), stdout=asyncio.subprocess.PIPE)
    out, _ = await monitor.communicate()
    seen, *times = map(float, out.split())
    assert seen == expected, f"{seen:g} devices were listed instead of {expected}"
    return figures([each / 1e3 for each in times])


async def measure(node: Node, plugins: ExitStack, arguments: argparse.Namespace, pid: int) -> None:
    pods, devices = arguments.pods, arguments.devices
    plugin = plugins.enter_context(running_plugin(node.folder, RESOURCE, pods * devices))
    await node.offers(RESOURCE)
    took = await one_by_one(node, plugin, RESOURCE, pods, devices, pid=pid)
    print(f"admission of {pods} pods with {devices} devices each: {figures(took.admitted)}; p99 below 50 ms wanted")
    print(f"  {growth(took.admitted, took.cpu)}; until Running {figures(took.running)}")
    print(f"List of these, {CALLS} calls: {await listed(node.folder, pods * devices)}; below 10 ms wanted")
    print(f"the process held {ProcessUse.of(pid).peak:.0f} MB; below 150 MB wanted", flush=True)
    await node.delete_all()
    print(f"{pods} pods at once: all run after {await burst(node, pods, devices):.2f} s", flush=True)
    await node.delete_all()
    many = plugins.enter_context(running_plugin(node.folder, MANY, arguments.many))
    await node.offers(MANY)
    took = await one_by_one(node, many, MANY, pods, devices, pid=pid)
    print(f"with {arguments.many} devices of one resource: {figures(took.admitted)}; {growth(took.admitted, took.cpu)}")
    print(f"the process held {ProcessUse.of(pid).peak:.0f} MB", flush=True)


async def ours(arguments: argparse.Namespace) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp")))  # short: unix sockets
        path, pid = stack.enter_context(outfit_up(folder / "data", "--kubelet-dir", str(folder / "k")))
        kubelets = list((folder / "k").iterdir())
        plugins = stack.enter_context(ExitStack())
        async with node_of(kubeconfig.load(path, clock=SystemClock()), kubelets[0].name, kubelets[0]) as node:
            await measure(node, plugins, arguments, pid)


async def kubelet(arguments: argparse.Namespace) -> None:
    """The same one after the other on a real kubelet, where there is one."""
    from bench.kubelet_node import NAME, process_of, real_node, why_not  # noqa: PLC0415  # needs what tests need

    if missing := why_not():
        print(f"no kubelet beside it: {missing}")
        return
    with ExitStack() as plugins:
        async with real_node() as (access, process), node_of(access, NAME, process.folder) as node:
            started = running_plugin(process.plugin_folder, RESOURCE, arguments.pods * arguments.devices)
            plugin = await asyncio.to_thread(plugins.enter_context, started)  # this process is the kubelet's container runtime
            await node.offers(RESOURCE)
            pid = process_of(process.folder)
            took = await one_by_one(node, plugin, RESOURCE, arguments.pods, arguments.devices, pid=pid)
            print(f"a kubelet: admission {figures(took.admitted)}; {growth(took.admitted, took.cpu)}; until Running "
                  f"{figures(took.running)}")
            print(f"  List, {CALLS} calls: {await listed(node.folder, arguments.pods * arguments.devices)}; it held "
                  f"{ProcessUse.of(pid).peak:.0f} MB", flush=True)
            plugins.close()


def monitor(folder: Path) -> None:
    """Another process with one connection, as monitors are: the number of devices, then milliseconds of each call."""
    with grpc.insecure_channel(f"unix:{folder / SOCKET}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/List", request_serializer=lambda message: message.SerializeToString(),
                                        response_deserializer=pb.ListPodResourcesResponse.FromString)
        found = call(pb.ListPodResourcesRequest()).pod_resources  # the first one connects
        print(sum(len(entry.device_ids) for pod in found for container in pod.containers for entry in container.devices))
        for _ in range(CALLS):
            start = time.perf_counter()
            call(pb.ListPodResourcesRequest())
            print((time.perf_counter() - start) * 1e3)
            time.sleep(EVERY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--no-kubelet", action="store_true")
    parser.add_argument("--monitor", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.monitor is not None:
        monitor(arguments.monitor)
        return
    asyncio.run(ours(arguments))
    if not arguments.no_kubelet:
        asyncio.run(kubelet(arguments))


if __name__ == "__main__":
    main()
