"""A host's Node object. Writes only what changed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.errors import AlreadyExists, NotFound
from outfitter.node.host import Host
from outfitter.store.base import Store

NOT_READY = "node.kubernetes.io/not-ready"
BRIDGE = "bridge.network.kubevirt.io/"  # and the name of a bridge: a resource that hosts have which have the bridge
PLENTY = "1000"
_SPOKEN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")  # interfaces may be called more than resources may


async def node(store: Store, host: Host, bridges: Sequence[str], now: str) -> Object:
    amounts = {**host.capacity, "pods": PLENTY, **{f"{BRIDGE}{name}": PLENTY for name in bridges if _SPOKEN.fullmatch(name)}}
    ready = Condition("Ready", True, "OutfitterReady", "outfitter is running on this host")
    wanted: Object = {"capacity": amounts, "allocatable": amounts,
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
        gone = {name: None for name in have.get("capacity") or {} if name.startswith(BRIDGE) and name not in amounts}
        wanted |= {"capacity": {**amounts, **gone}, "allocatable": {**amounts, **gone}}
        change = {**wanted, "conditions": conditions.with_condition(have.get("conditions"), ready, now)}
        node = await store.patch(kinds.NODE, host.name, {"status": change}, subresource="status")
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != NOT_READY]
    if any((node["metadata"].get("labels") or {}).get(key) != value for key, value in labels.items()) or left != taints:
        change = {"metadata": {"labels": labels}, "spec": {"taints": left or None}}
        node = await store.patch(kinds.NODE, host.name, change)
    return node
