"""What a host says of itself: its Node object and the slices of its devices. Writes only what changed."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.errors import AlreadyExists, NotFound
from outfitter.inventory import offer, scan, slices
from outfitter.node.host import Host
from outfitter.store.base import Store

log = logging.getLogger(__name__)
NOT_READY = "node.kubernetes.io/not-ready"
AT_ONCE = 64  # hosts that are published at the same time, so that their writes share syncs


async def publish(store: Store, hosts: Sequence[Host], now: str) -> int:
    """Every host that this process speaks for; how many devices they offer together."""
    fields = f"spec.nodeName={hosts[0].name}" if len(hosts) == 1 else ""
    published: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for obj in (await store.list(kinds.RESOURCE_SLICE, fields=fields)).items:
        published[obj["spec"].get("nodeName", ""), obj["spec"]["driver"]].append(obj)
    turns = asyncio.Semaphore(AT_ONCE)

    async def say(host: Host) -> int:
        async with turns:
            return await _publish(store, host, published[host.name, host.driver], now)

    return sum(await asyncio.gather(*map(say, hosts)))


async def _publish(store: Store, host: Host, have: list[Object], now: str) -> int:
    node = await _node(store, host, now)
    found = scan.scan(host.tree())
    for oddity in found.warnings:
        log.warning("%s: %s", host.name, oddity)
    offered = offer.offer(found.devices).offered
    generation = max((obj["spec"]["pool"].get("generation", 0) for obj in have), default=0)
    uid = node["metadata"]["uid"]
    same = slices.same_pool(have, slices.slices(host.name, host.driver, offered, generation))
    if not same or any(owner["uid"] != uid for obj in have for owner in obj["metadata"].get("ownerReferences") or ()):
        await _replace(store, have, slices.slices(host.name, host.driver, offered, generation + 1, uid))
    return len(offered)


async def _replace(store: Store, have: list[Object], wanted: list[Object]) -> None:
    """New slices first, old ones last: a pool that is incomplete in between is not used by anybody."""
    known = {obj["metadata"]["name"]: obj for obj in have}
    for new in wanted:
        old = known.pop(new["metadata"]["name"], None)
        if old is None:
            await store.create(kinds.RESOURCE_SLICE, new)
        else:
            meta = {**old["metadata"], "ownerReferences": new["metadata"]["ownerReferences"]}
            await store.replace(kinds.RESOURCE_SLICE, {**old, "metadata": meta, "spec": new["spec"]})
    for name in known:
        try:
            await store.delete(kinds.RESOURCE_SLICE, name)
        except NotFound:
            pass


async def _node(store: Store, host: Host, now: str) -> Object:
    amounts = {**host.capacity, "pods": "1000"}
    ready = Condition("Ready", True, "OutfitterReady", "outfitter is running on this host")
    wanted = {"capacity": amounts, "allocatable": amounts,
              "nodeInfo": {"kubeletVersion": "outfitter", "operatingSystem": "linux", "architecture": "amd64", "bootID": "",
                           "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
                           "osImage": "simulated" if host.simulated else "", "systemUUID": ""}}
    labels = {"kubernetes.io/hostname": host.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **host.labels}
    if host.simulated:
        labels["outfitter.dev/simulated"] = "true"
    try:
        node = await store.get(kinds.NODE, host.name)
    except NotFound:
        status = {**wanted, "conditions": conditions.with_condition((), ready, now)}
        try:
            node = await store.create(kinds.NODE, {"apiVersion": "v1", "kind": "Node", "status": status,
                                                   "metadata": {"name": host.name, "labels": labels}})
        except AlreadyExists:
            node = await store.get(kinds.NODE, host.name)
    have = node.get("status") or {}
    if any(have.get(key) != value for key, value in wanted.items()) or not conditions.is_true(node, "Ready"):
        change = {**wanted, "conditions": conditions.with_condition(have.get("conditions"), ready, now)}
        node = await store.patch(kinds.NODE, host.name, {"status": change}, subresource="status")
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != NOT_READY]
    if any((node["metadata"].get("labels") or {}).get(key) != value for key, value in labels.items()) or left != taints:
        change = {"metadata": {"labels": labels}, "spec": {"taints": left or None}}
        node = await store.patch(kinds.NODE, host.name, change)
    return node
