"""Which devices a claim has, who uses them, or why it has none: the claim's part of `outfit why`. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.device import DRIVER
from outfitter.api.kubevirt import pod_claims
from outfitter.api.ledger_page.page import is_pool_page
from outfitter.api.rejection_text import Wording, holder_name
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.explain.object_state import (
    GOES,
    booking_line,
    host_return_advice,
)
from outfitter.scheduling.explain.pod import pod


def claim(cluster: ClusterObjects, obj: Mapping[str, Any]) -> Explanation:
    meta, status = obj["metadata"], obj.get("status") or {}
    say = functools.partial(Explanation, f"claim/{meta['name']}", meta["namespace"])
    held = tuple(booking_line(host, booking, cluster.time) for host, booking in cluster.bookings(meta["uid"]))
    if meta.get("deletionTimestamp"):
        users = [f"{one.get('resource', 'pods')[:-1]}/{one['name']}" for one in status.get("reservedFor") or ()]
        waits = f"{', '.join(users)} to end" if users else ", ".join(meta.get("finalizers") or ("the host to release it",))
        left = {host for host, _ in cluster.bookings(meta["uid"]) if not is_pool_page(host) and cluster.absence(host)}
        since = cluster.time(meta["deletionTimestamp"])
        return say("Deleting", f"{GOES} since {since}; it waits for {waits}", "end", lines=held,
                   todo=tuple(todo for host in sorted(left) for todo in host_return_advice(cluster, host)))
    if held:
        return say("Holding", f"holds {_count(held)}: nothing is wrong", lines=held)
    if status.get("allocation"):
        results = (status["allocation"].get("devices") or {}).get("results") or ()
        lines = tuple(f"{one['device']} of pool {one['pool']} ({one['driver']}) for request {one['request']}"
                      for one in results)
        if any(one["driver"] == DRIVER for one in results):
            return say("Holding", "is allocated; the page of the host does not record it yet", lines=lines)
        who = holder_name(cluster.user(dict(obj)), Wording(meta["namespace"], claims=False))
        return say("Holding", f"holds {_count(lines)} for {who}: nothing is wrong", lines=lines)
    pods = [each for each in cluster.pods if each["metadata"]["namespace"] == meta["namespace"]
             and meta["name"] in [name for _, name in pod_claims.claim_names(each)]]
    if not pods:
        return say("Unused", "has no devices: no pod uses it, and devices are allocated when one does")
    return pod(cluster, pods[0]).said_of(f"claim/{meta['name']}", "has no devices:")


def _count(lines: Sequence[str]) -> str:
    return f"{len(lines)} device{'' if len(lines) == 1 else 's'}"
