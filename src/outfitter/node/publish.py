"""What a host says of itself: its Node object and the slices of its devices. Writes only what changed."""

from __future__ import annotations

import logging

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.errors import AlreadyExists, NotFound
from outfitter.inventory import offer, scan, slices
from outfitter.node.host import Host
from outfitter.store.base import Store

log = logging.getLogger(__name__)
NOT_READY = "node.kubernetes.io/not-ready"


async def publish(store: Store, host: Host, now: str) -> int:
    """Returns how many devices the host offers."""
    node = await _node(store, host, now)
    found = scan.scan(host.tree())
    for oddity in found.warnings:
        log.warning("%s: %s", host.name, oddity)
    offered = offer.offer(found.devices).offered
    have = [obj for obj in (await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host.name}")).items
            if obj["spec"]["driver"] == host.driver]
    generation = max((obj["spec"]["pool"].get("generation", 0) for obj in have), default=0)
    if slices.same_pool(have, slices.slices(host.name, host.driver, offered, generation)):
        return len(offered)
    await _replace(store, have, slices.slices(host.name, host.driver, offered, generation + 1, node["metadata"]["uid"]))
    return len(offered)


async def _replace(store: Store, have: list[Object], wanted: list[Object]) -> None:
    """New slices first, old ones last: a pool that is incomplete in between is not used by anybody."""
    known = {obj["metadata"]["name"]: obj for obj in have}
    for new in wanted:
        old = known.pop(new["metadata"]["name"], None)
        if old is None:
            await store.create(kinds.RESOURCE_SLICE, new)
        else:
            await store.replace(kinds.RESOURCE_SLICE, {**old, "spec": new["spec"]})
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
