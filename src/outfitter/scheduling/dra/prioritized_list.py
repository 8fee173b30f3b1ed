"""Requests with alternatives (`firstAvailable`): which ones an allocation has, and which a host can have at best. `score`
compares hosts by them. Pure; called by the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from outfitter.scheduling.dra.claim_request import CompiledClaim
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.score import MOST_ALTERNATIVES, Alternative


def chosen(claims: Iterable[tuple[Object, Mapping[str, Any]]]) -> Iterator[Alternative]:
    """The alternatives in allocations: claims, each with its AllocationResult."""
    for claim, given in claims:
        served = {result["request"] for result in (given.get("devices") or {}).get("results") or ()}
        for request in (claim["spec"].get("devices") or {}).get("requests") or ():
            names = [sub["name"] for sub in request.get("firstAvailable") or ()]
            for place, name in enumerate(names):
                if f"{request['name']}/{name}" in served:
                    yield Alternative(request["name"], name, place, len(names))


def possible(index: DeviceIndex, demands: Sequence[CompiledClaim], rows: Sequence[int]) -> dict[int, int]:
    """For each host the best preference that counting does not rule out; empty for claims without alternatives."""
    requests = [(request, demand) for demand in demands for request in demand.requests
                if request[0].name != request[0].parent]
    best = dict.fromkeys(rows, 0) if requests else {}
    for request, demand in requests:
        left = list(rows)
        for place, ask in enumerate(request):
            passing = set(index.passing(ask, demand.constraints, left))
            for row in passing:
                best[row] += MOST_ALTERNATIVES - place
            left = [row for row in left if row not in passing]
    return best
