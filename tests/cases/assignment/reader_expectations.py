"""What a case expects of the readers of a node, and of the checkpoint that it leaves for others."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from outfitter.api.kinds import Object
from outfitter.node.device_manager import checkpoint
from outfitter.node.device_manager.checkpoint import DeviceCheckpoint
from tests.cases.assignment.monitors import SYNCED, Monitor, numa_of, pod_name
from tests.cases.assignment.pod_view import assigned, has_all
from tests.cases.assignment.world import World


def matches(found: Sequence[str], wanted: Any) -> bool:
    """A set of ids: a list, a number, or n of some."""
    if len(set(found)) != len(found):
        return False
    if isinstance(wanted, int):
        return len(found) == wanted
    if isinstance(wanted, Mapping):
        return len(found) == wanted["n"] and set(found) <= set(map(str, wanted["of"]))
    return sorted(found) == sorted(map(str, wanted))


def same_devices(found: Mapping[str, Sequence[str]], wanted: Mapping[str, Any]) -> bool:
    """Resource -> ids, complete; of what is not there, none."""
    return all(matches(found.get(name, ()), wanted.get(name, ())) for name in {*found, *wanted})


def same_pod(found: Mapping[str, Mapping[str, Sequence[str]]], wanted: Any) -> bool:
    return wanted == "any" or (found.keys() == wanted.keys() and all(
        wanted[name] == "any" or same_devices(found[name], wanted[name] or {}) for name in wanted))


async def compare_readers(wanted: Mapping[str, Any], world: World) -> list[str]:
    node = world.node(wanted.get("node"))
    words = _Readers(node.monitor or Monitor(node.folder), world.uid, node.events)
    wrong = []
    for word, value in wanted.items():
        try:
            found = await words.words[word](value) if word != "node" else None
        except (grpc.aio.AioRpcError, OSError) as error:  # as while the agent does not run
            found = f"without an answer: {error}"
        if found is not None:
            wrong.append(f"readers: {word} is {json.dumps(found, default=str)}, not {json.dumps(value)}")
    return wrong


class _Readers:
    """Each word returns what was found; None: as expected."""

    def __init__(self, monitor: Monitor, uid: Callable[[str], str], events: Sequence[str]) -> None:
        """`uid`: of the pod that has a name, or had it last."""
        self._monitor, self._uid, self._events = monitor, uid, events
        self.words: Mapping[str, Callable[[Any], Awaitable[Any]]] = {
            "list": self._list, "get": self._get, "allocatable": self._allocatable, "numa": self._numa, "cpus": self._cpus,
            "claims": self._claims, "pods": self._page, "by_uid": self._by_uid, "watch": self._watch, "cni": self._cni}

    async def _list(self, wanted: Mapping[str, Any]) -> Any:
        found = await self._monitor.devices()
        return None if found.keys() == wanted.keys() and all(same_pod(found[name], wanted[name]) for name in wanted) else found

    async def _get(self, wanted: Mapping[str, Any]) -> Any:
        found = {name: await self._monitor.get(name) for name in wanted}
        same = all((found[name] is None) if each is None else found[name] is not None and same_pod(found[name] or {}, each)
                   for name, each in wanted.items())
        return None if same else found

    async def _allocatable(self, wanted: Mapping[str, Any]) -> Any:
        found, _ = await self._monitor.allocatable()
        return None if same_devices(found, wanted) else found

    async def _numa(self, wanted: Mapping[str, Mapping[str, Sequence[int]]]) -> Any:
        _, found = await self._monitor.allocatable()
        listed = [numa_of(container.devices) for pod in await self._monitor.pod_resources() for container in pod.containers]
        for each in [found, *listed]:
            for resource, devices in each.items():
                for device, nodes in devices.items():
                    expected = wanted.get(resource, {}).get(device)
                    if expected is not None and nodes != set(expected):
                        return each
        missing = [each for resource, devices in wanted.items() for each in devices
                   if not any(each in answer.get(resource, {}) for answer in [found, *listed])]
        return found if missing else None

    async def _cpus(self, wanted: Mapping[str, Mapping[str, Sequence[int]]]) -> Any:
        found = {pod_name(pod.namespace, pod.name): {container.name: list(container.cpu_ids) for container in pod.containers}
                 for pod in await self._monitor.pod_resources()}
        return None if all(found.get(name, {}).get(container) == list(cpus) for name, each in wanted.items()
                           for container, cpus in each.items()) else found

    async def _claims(self, wanted: Mapping[str, Any]) -> Any:
        found: dict[str, Any] = {}
        for pod in await self._monitor.pod_resources():
            for container in pod.containers:
                for claim in container.dynamic_resources:
                    place = found.setdefault(pod_name(pod.namespace, pod.name), {}).setdefault(container.name, {}).setdefault(
                        claim.claim_name, {})
                    for device in claim.claim_resources:
                        key = f"{device.driver_name}/{device.pool_name}/{device.device_name}"
                        place[key] = [each.name for each in device.cdi_devices]
        same = all(found.get(name, {}) == {container: claims for container, claims in each.items() if claims}
                   for name, each in wanted.items())
        return None if same else found

    async def _page(self, wanted: Sequence[str]) -> Any:
        page, listed = sorted(await self._monitor.page()), sorted(pod.name for pod in await self._monitor.listed())
        return None if page == listed == sorted(wanted) else {"page": page, "listed": listed}

    async def _by_uid(self, wanted: Mapping[str, bool]) -> Any:
        found = {name: await self._monitor.known(self._uid(name)) for name in wanted}
        return None if found == wanted else found

    async def _watch(self, wanted: Sequence[str]) -> Any:
        return None if _initial_sorted(self._events) == _initial_sorted(wanted) else list(self._events)

    async def _cni(self, wanted: Sequence[Mapping[str, Any]]) -> Any:
        for each in wanted:
            found = await self._monitor.cni(each["pod"], list(each["knows"]))
            if (found is None) is not (each["devices"] is None) or not same_devices(found or {}, each["devices"] or {}):
                return {"pod": each["pod"], "devices": found}
        return None


def _initial_sorted(events: Sequence[str]) -> list[str]:
    """The pods that a stream begins with come in no certain order: sorted by name."""
    out: list[str] = []
    for event in events:
        out.append(event)
        if event == SYNCED:
            begin = next((at for at in range(len(out) - 1, 0, -1) if not out[at - 1].startswith("ADDED ")), 0)
            out[begin:-1] = sorted(out[begin:-1])
    return out


def compare_checkpoint(wanted: Mapping[str, Any], world: World, pods: Mapping[str, Object]) -> list[str]:
    path = world.first.folder / "device-plugins" / checkpoint.FILE
    read = checkpoint.decode(path.read_text()) if path.exists() else None
    if not isinstance(read, DeviceCheckpoint):
        return [f"checkpoint: {read}"]
    names = {pod["metadata"]["uid"]: name for name, pod in pods.items()}
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for entry in read.entries:
        place = found.setdefault(names.get(entry.pod_uid, entry.pod_uid), {}).setdefault(entry.container, {})
        place[entry.resource] = sorted(entry.ids)
    same = found.keys() == wanted.keys() and all(same_pod(found[name], wanted[name]) for name in wanted)
    return [] if same else [f"checkpoint: {found}, not {wanted}"]


async def reader_invariants(world: World, pods: Mapping[str, Object]) -> list[str]:
    """What runs is shown, with what it has in the API; what is shown lacks nothing."""
    wrong: list[str] = []
    for node in world.nodes.values():
        if node.monitor is None:
            continue
        listed, page = await node.monitor.devices(), await node.monitor.page()
        for name, pod in pods.items():
            if pod["spec"]["nodeName"] == node.name and (pod.get("status") or {}).get("phase") == "Running":
                wrong += [f"{name} runs, and is not {where}" for where, has in (("in List", listed), ("on /pods", page))
                          if name not in has]
        for name, shown in page.items():
            have = assigned(pods[name]) if name in pods else {}
            if not has_all(shown) or assigned(shown) != have:
                wrong.append(f"/pods has {assigned(shown)} of {name}, and the API {have}")
        for name, found in listed.items():
            have = assigned(pods[name]) if name in pods else {}
            if any({resource: sorted(ids) for resource, ids in have.get(container, {}).items()} != {
                    resource: sorted(ids) for resource, ids in devices.items()} for container, devices in found.items()):
                wrong.append(f"List has {found} of {name}, and the API {have}")
    return wrong
