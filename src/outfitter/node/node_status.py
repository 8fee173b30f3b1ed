"""A host's Node object: capacity, labels, readiness. Writes only what changed, and keeps what others write.

A host that was refused at start is not ready, with the reason, and keeps the capacity that it published. The Node of a host
with a kubelet is the kubelet's, and is only read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods
from outfitter.api.validate import resources
from outfitter.errors import AlreadyExists, Conflict, NotFound
from outfitter.node.agent_host import AgentHost
from outfitter.store.base import Store

NOT_READY = "node.kubernetes.io/not-ready"
BRIDGE = "bridge.network.kubevirt.io/"  # and the name of a bridge: a resource of the hosts that have it
UNLIMITED = "1000"
READY = Condition("Ready", True, "OutfitterReady", "outfitter is running on this host")
TRIES = 10  # conflicting writes after which the error is raised
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")  # an interface may have other characters too


async def node(store: Store, host: AgentHost, bridges: Sequence[str], now: str) -> Object:
    """The Node of a host that is served."""
    return await _written(store, host, bridges, READY, now)


async def refuse(store: Store, host: AgentHost, why: str, now: str) -> Object:
    """The Node of a host that must not start: new pods are kept away, and those that it has stay."""
    return await _written(store, host, (), Condition("Ready", False, conditions.START_REFUSED, why), now)


async def offer(store: Store, host: str, amounts: Mapping[str, tuple[int, int]]) -> None:
    """Write how many devices of each resource device plugins offer: capacity and allocatable."""
    for _ in range(TRIES):
        node = await store.get(kinds.NODE, host)
        status = node.get("status") or {}
        wanted = {"capacity": {name: str(each[0]) for name, each in amounts.items()},
                  "allocatable": {name: str(each[1]) for name, each in amounts.items()}}
        if all((status.get(field) or {}).get(name) == text for field, each in wanted.items() for name, text in each.items()):
            return
        try:
            await store.patch(kinds.NODE, host, {"metadata": _at(node), "status": wanted}, subresource="status")
        except Conflict:
            continue  # others write to nodes as well
        return
    raise Conflict(f"the Node {host} is written by others all the time")


async def _written(store: Store, host: AgentHost, bridges: Sequence[str], ready: Condition, now: str) -> Object:
    if host.kubelet:
        return await store.get(kinds.NODE, host.name)
    named = {f"{BRIDGE}{name}": UNLIMITED for name in bridges if _RESOURCE_NAME.fullmatch(name)}
    amounts = {**host.capacity, "pods": UNLIMITED, **named}
    wanted: Object = {"capacity": amounts, "allocatable": amounts,
              "nodeInfo": {"kubeletVersion": "outfitter", "operatingSystem": "linux", "architecture": "amd64", "bootID": "",
                           "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "machineID": "",
                           "osImage": "simulated" if host.simulated else "", "systemUUID": ""}}
    labels = {"kubernetes.io/hostname": host.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **host.labels}
    labels[attachment_pods.PLUG_IN_PLACE] = str(host.settings.plug_in_place).lower()
    if host.simulated:
        labels["outfitter.dev/simulated"] = "true"
    for _ in range(TRIES):
        try:
            return await _updated(store, host, wanted, labels, ready, now)
        except Conflict:
            continue  # others write to nodes as well: read it again
    return await _updated(store, host, wanted, labels, ready, now)


async def _updated(  # noqa: PLR0917
    store: Store, host: AgentHost, wanted: Object, labels: Object, ready: Condition, now: str
) -> Object:
    """The Node after its update. Lists are written whole, so each write is at the revision that was read."""
    name = host.name
    try:
        node = await store.get(kinds.NODE, name)
    except NotFound:
        status = {**wanted, "conditions": conditions.with_condition((), ready, now)}
        try:
            node = await store.create(kinds.NODE, {"apiVersion": "v1", "kind": "Node", "status": status,
                                                   "metadata": {"name": name, "labels": labels}})
        except AlreadyExists:
            node = await store.get(kinds.NODE, name)
    have = node.get("status") or {}
    if not ready.status:
        refused = conditions.with_condition(have.get("conditions"), ready, now)
        if refused != have.get("conditions"):
            node = await store.patch(kinds.NODE, name, {"metadata": _at(node), "status": {"conditions": refused}},
                                     subresource="status")
        return node
    if not _has(have, wanted, host.withdrawn) or not conditions.is_true(node, "Ready"):
        amounts = wanted["capacity"]
        change = {**wanted, **{key: {**amounts, **_gone(have.get(key) or {}, amounts, host.withdrawn)}
                               for key in ("capacity", "allocatable")},
                  "conditions": conditions.with_condition(have.get("conditions"), ready, now)}
        node = await store.patch(kinds.NODE, name, {"metadata": _at(node), "status": change}, subresource="status")
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != NOT_READY]
    if any((node["metadata"].get("labels") or {}).get(key) != value for key, value in labels.items()) or left != taints:
        other = {"spec": {"taints": left or None}} if left != taints else {}
        node = await store.patch(kinds.NODE, name, {"metadata": {**_at(node), "labels": labels}, **other})
    return node


def _gone(have: Object, amounts: Object, withdrawn: frozenset[str]) -> dict[str, None]:
    """Amounts that a node does not keep: of bridges that went, `withdrawn` ones, and of others what no write of it would be
    admitted with."""
    return {key: None for key, amount in have.items() if key not in amounts
            and (key.startswith(BRIDGE) or key in withdrawn or any(resources.quantities(key, amount)))}


def _has(have: Object, wanted: Object, withdrawn: frozenset[str]) -> bool:
    """Whether a status has what is wanted; a Node may offer resources of device plugins besides."""
    for field, value in wanted.items():
        known = have.get(field) or {}
        if field in ("capacity", "allocatable"):
            if _gone(known, value, withdrawn) or any(known.get(key) != amount for key, amount in value.items()):
                return False
        elif known != value:
            return False
    return True


def _at(node: Object) -> Object:
    return {"resourceVersion": node["metadata"]["resourceVersion"]}
