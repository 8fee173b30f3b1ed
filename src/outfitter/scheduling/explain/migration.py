"""Why a live migration waits, or how it ended: its part of `outfit why`, and a line about it for its VMI. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outfitter.api import conditions
from outfitter.api.kubevirt import migration as migration_api
from outfitter.api.kubevirt import vm as vm_api
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.explain.pod import pod

HELP = {  # code -> what would help
    "ClusterLimit": "wait, or raise spec.configuration.migrations.parallelMigrationsPerCluster of the KubeVirt object",
    "NodeLimit": "wait, or raise spec.configuration.migrations.parallelOutboundMigrationsPerNode of the KubeVirt object",
    "NoProgress": "raise migrations.bandwidthPerMigration, or set migrations.allowAutoConverge, in the KubeVirt object",
    "CompletionTimeout": "raise migrations.completionTimeoutPerGiB in the KubeVirt object",
}


def migration(cluster: ClusterObjects, obj: Mapping[str, Any]) -> Explanation:
    meta, name, phase = obj["metadata"], migration_api.vmi_name(obj), migration_api.phase_of(obj) or "Pending"
    say = functools.partial(Explanation, f"vmim/{meta['name']}", meta["namespace"])
    vmi = next((one for one in cluster.instances if (one["metadata"]["namespace"], one["metadata"]["name"]) == (
        meta["namespace"], name)), None)
    host = ((vmi or {}).get("status") or {}).get("nodeName") or "no host"
    record = migration_api.state(obj) or migration_api.state_of(vmi or {}, obj)
    if phase == "Succeeded":
        return say("Ended", f"moved vmi/{name} from {record.get('sourceNode')} to {record.get('targetNode')}: nothing is wrong")
    failed = conditions.find(obj, migration_api.FAILED) or {}
    if phase in vm_api.FINAL:
        return say("Failed", f"has failed ({failed.get('reason')}): {failed.get('message')}; vmi/{name} is on {host}",
                   lines=_devices(obj), todo=tuple(filter(None, [HELP.get(str(failed.get("reason")), "")])))
    target = next((one for one in cluster.pods if migration_api.job_uid(one) == meta["uid"]
                   and one["metadata"]["namespace"] == meta["namespace"]), None)
    cancel = f"outfit vm migrate {name} --cancel, which leaves it on {host}"
    if phase == "Scheduling" and target is not None:
        answer = pod(cluster, target)
        return replace(answer.said_of(f"vmim/{meta['name']}", f"waits for a target for vmi/{name}:"),
                       lines=(*answer.lines, *_devices(obj)), todo=(*answer.todo, cancel))
    if waiting := conditions.find(obj, migration_api.WAITING):
        helps = HELP.get(str(waiting.get("reason")), "")
        return say("Waiting", f"waits ({waiting.get('reason')}): {waiting.get('message')}", "migration",
                   todo=tuple(filter(None, [helps, cancel])))
    return say("Running", f"is {phase}: vmi/{name} {_progress(record)}", todo=(cancel,))


def _devices(obj: Mapping[str, Any]) -> tuple[str, ...]:
    """What becomes of each device, where one waits or blocks."""
    found = conditions.find(obj, migration_api.DEVICES) or {}
    return (f"its devices: {found.get('message')}",) if found.get("status") == "False" else ()


def waiting_lines(cluster: ClusterObjects, vmi: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a VMI: what its migration waits for that has no target yet."""
    meta = vmi["metadata"]
    lines: list[str] = []
    for job in cluster.migrations:
        if migration_api.vmi_key(job) != f"{meta['namespace']}/{meta['name']}" or migration_api.is_finished(job):
            continue
        if waiting := conditions.find(job, migration_api.WAITING):
            lines += [f"migration {job['metadata']['name']} waits ({waiting.get('reason')}): {waiting.get('message')}",
                      *_devices(job)]
    return tuple(lines)


def line(obj: Mapping[str, Any]) -> str:
    """What a VMI's own status reports of its migration; "" for none under way."""
    if not migration_api.under_way(obj):
        record = migration_api.state(obj)
        if record.get("failed"):
            return (f"its last migration, to {record.get('targetNode')}, failed ({record.get('failureCode') or 'no code'}): "
                    f"{record.get('failureReason')}")
        return ""
    return _progress(migration_api.state(obj))


def _progress(record: Mapping[str, Any]) -> str:
    share = migration_api.progress_share(record.get("progress") or {})
    copied = f", {share:.0%} is copied" if share is not None else ""
    return f"migrates from {record.get('sourceNode')} to {record.get('targetNode')}{copied}"
