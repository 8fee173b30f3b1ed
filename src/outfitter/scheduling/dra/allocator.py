"""Devices for all claims of one pod on one node, as Kubernetes' structured allocator gives them, or why not.

    pools = Pools(slices)                      # once, and again when a slice changes
    held = Held(allocations)                   # kept up to date by its owner
    answer = allocate(claims, node=node, pools=pools, classes=classes.get, held=held, features=Features())

Values in, a value out. A claim that cannot be understood, or that meets a selector without an answer, raises Unsatisfiable."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outfitter.api.rejection import Rejection
from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.claim_request import ClaimDeviceRequest, Classes, CompiledClaim, Object, compile_claim
from outfitter.scheduling.dra.node_devices import NodeDevices, PoolSet
from outfitter.scheduling.dra.search import Pick, Search, SearchEffort
from outfitter.scheduling.explain import rejections
from outfitter.scheduling.filter import node_affinity


@dataclass(frozen=True, slots=True)
class Allocated:
    """One v1 AllocationResult for each claim, in their order."""

    allocations: tuple[dict[str, Any], ...]


class AllocationRejection:
    """Why a node cannot serve the claims. The rejections are made when they are read."""

    def __init__(self, search: Search) -> None:
        self._search = search

    @property
    def invalid(self) -> tuple[str, ...]:
        """Pools of the node that contradict themselves. While there is one, what the node could serve is unknown."""
        return tuple(f"{pool}: {pool.invalid}" for pool in self._search.site.invalid)

    @functools.cached_property
    def rejections(self) -> tuple[Rejection, ...]:
        """Of the node as a whole."""
        return rejections.of_node(self._search)

    @property
    def lacking(self) -> tuple[int, int]:
        """How many devices are missing: those that no device matches, and those of which none is free."""
        return rejections.lacking(self._search)

    @functools.cached_property
    def obstacles(self) -> tuple[Rejection, ...]:
        """What is wrong with each device, for each request."""
        return rejections.of_devices(self._search)

    @functools.cached_property
    def blocking(self) -> tuple[Rejection, ...]:
        """The same of those devices alone that are what is asked for."""
        return rejections.of_devices(self._search, deep=False)


def anything() -> str:
    """The name of a share, where it does not matter that it is another one each time."""
    return str(uuid.uuid4())


def allocate(
    claims: Sequence[Object], *, node: Object, pools: PoolSet, classes: Classes, held: AllocatedDevices, features: Features,
    share_id: Callable[[], str] = anything, effort: SearchEffort | None = None, demands: Sequence[CompiledClaim] | None = None,
    now: datetime | None = None,
) -> Allocated | AllocationRejection:
    """All claims, or none. `effort` is how many combinations may be looked at, here and on other nodes. `demands`: the claims,
    compiled already. `now`: a taint whose toleration has expired rejects a device; without it time does not count."""
    site = pools.at(node, features)
    if demands is None:
        demands = [compile_claim(claim, classes, features) for claim in claims]
    search = Search(site, demands, held, features, now, effort=effort or SearchEffort())
    picks = search.run()
    if picks is None:
        return AllocationRejection(search)
    return Allocated(tuple(_allocation(one, [pick for pick in picks if pick.claim == index], site, features, share_id)
                           for index, one in enumerate(demands)))


def inspect(
    *, node: Object, pools: PoolSet, held: AllocatedDevices, features: Features, demands: Sequence[CompiledClaim],
    now: datetime | None = None,
) -> AllocationRejection | None:
    """What is wrong with each device, where `allocate` met a selector without an answer; None: the claims have no answer
    whatever devices there are."""
    try:
        return AllocationRejection(Search(pools.at(node, features), demands, held, features, now))
    except Unsatisfiable:
        return None


def _allocation(
    one: CompiledClaim, picks: list[Pick], site: NodeDevices, features: Features, share_id: Callable[[], str]
) -> dict[str, Any]:
    devices: dict[str, Any] = {"results": [_result(pick, site, features, share_id) for pick in picks]}
    chosen = _chosen(one, picks)
    if config := [*_class_config(chosen), *_claim_config(one, chosen)]:
        devices["config"] = config
    out: dict[str, Any] = {"devices": devices}
    if selector := node_affinity.common(
        site.name, (site.slices[pick.device].where(site.devices[pick.device]) for pick in picks)
    ):
        out["nodeSelector"] = selector
    return out


def _result(pick: Pick, site: NodeDevices, features: Features, share_id: Callable[[], str]) -> dict[str, Any]:
    device, ask = site.devices[pick.device], pick.ask
    out: dict[str, Any] = {"request": ask.name, "driver": device.id.driver, "pool": device.id.pool, "device": device.id.device}
    if ask.admin:
        out["adminAccess"] = True
    if ask.tolerations:
        out["tolerations"] = list(ask.tolerations)
    if features.device_binding_and_status:
        out |= {key: list(device.raw[key]) for key in ("bindingConditions", "bindingFailureConditions") if device.raw.get(key)}
    if pick.share is not None:
        out["shareID"] = share_id()
        if pick.share:
            out["consumedCapacity"] = {name: str(amount) for name, amount in pick.share.items()}
    if features.optional_node_operations and (skips := site.slices[pick.device].skips):
        out["skipNodeOperations"] = list(skips)
    return out


def _chosen(one: CompiledClaim, picks: Sequence[Pick]) -> list[ClaimDeviceRequest]:
    """The alternative of each request that was taken. One that asks for nothing leaves no trace, so it is the first such."""
    taken = {pick.ask.name: pick.ask for pick in picks}
    return [next((ask for ask in request if ask.name in taken), None) or next(
        (ask for ask in request if not ask.count), request[0]) for request in one.requests]


def _class_config(chosen: Sequence[ClaimDeviceRequest]) -> list[dict[str, Any]]:
    """Of each class once, with the requests that are of it; without a list when that is all of them."""
    of: dict[str, list[ClaimDeviceRequest]] = {}
    for ask in chosen:
        of.setdefault(ask.class_["metadata"]["name"], []).append(ask)
    out = []
    for asks in of.values():
        for config in (asks[0].class_.get("spec") or {}).get("config") or ():
            names = [ask.name for ask in asks] if len(asks) < len(chosen) else []
            out.append(_config("FromClass", names, config))
    return out


def _claim_config(one: CompiledClaim, chosen: Sequence[ClaimDeviceRequest]) -> list[dict[str, Any]]:
    """What the claim says for requests that were served; without a list when it is for all of them."""
    out = []
    for config in (one.claim["spec"].get("devices") or {}).get("config") or ():
        names = config.get("requests") or []
        served = [ask for ask in chosen if ask.parent in names or ask.name in names]
        if served or not names:
            out.append(_config("FromClaim", names if len(served) < len(chosen) else [], config))
    return out


def _config(source: str, requests: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in config.items() if key != "requests"}
    return {"source": source, **({"requests": list(requests)} if requests else {}), **rest}
