"""All controllers reconcile everything again. When all are idle none may find anything to do by that: a controller that
does was not woken by something that it goes by, and would have waited for it until the next start."""

from __future__ import annotations

from collections.abc import Iterable

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object

# Of what a loop's keys are the names.
LOOPS = {
    "vm": (kinds.VM, kinds.VMI),
    "vmi": (kinds.VMI,),
    "device_status": (kinds.VMI,),
    "pod_claims": (kinds.POD,),
    "claim_deallocation": (kinds.RESOURCE_CLAIM,),
    "scheduler": (kinds.POD,),
    "node": (kinds.POD,),
    "device_taint_eviction": (kinds.POD,),
    "pod_gc": (kinds.POD,),
    "pool_status_requests": (kinds.POOL_STATUS_REQUEST,),
    "kubevirt": (kinds.KUBEVIRT,),
}
Versions = dict[tuple[Kind, str, str], str]


def look(product: app.Product) -> None:
    for loop in product.runner.controllers:
        for kind in LOOPS.get(loop.name, ()):
            for key in list(product.context.informers[kind].keys()):
                loop.queue.add(key)


def versions(objects: Iterable[tuple[Kind, Object]]) -> Versions:
    """Of everything but events: the same event once more raises their count."""
    return {(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj["metadata"]["resourceVersion"]
            for kind, obj in objects if kind != kinds.EVENT}


def missed(before: Versions, after: Versions) -> list[str]:
    """What was written only because of the resync."""
    news = sorted(f"{place[0].singular} {place[2]}" for place in before.keys() | after.keys()
                  if before.get(place) != after.get(place))
    return [f"nobody was woken for {', '.join(news)}, until all were told to look again"] if news else []
