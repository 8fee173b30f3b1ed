"""The status of a VMI whose launcher pod failed on a host before the domain ran: back to Pending for the next launch, or Failed
when no launch is left. Pure; the VMI controller writes the patch, deletes the failed pod and creates the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from outfitter.api import conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import failed_launches, vm
from outfitter.api.kubevirt.failed_launches import FailedLaunch
from outfitter.scheduling.dra import binding_conditions

FLAVOR_PLACE = ("hostCells", "pinned", "cpus")  # of status.flavor: where the guest's NUMA cells were on the failed host


def next_status(vmi: Object, launches: Sequence[FailedLaunch], now: str) -> Object:
    """The patch that records the last of these launches: no host, no devices, and Failed if it was the last one possible."""
    if len(launches) >= failed_launches.MAX_LAUNCHES:
        return {**_recorded(launches), **failed_status(vmi, launches, now)}
    status, last = vmi.get("status") or {}, launches[-1]
    have = conditions.without_condition(status.get("conditions"), "DevicesReady")
    not_ready = Condition("Ready", False, last.reason, str(last))
    change: Object = {"phase": "Pending", "nodeName": None, "deviceStatus": None,
                      "conditions": conditions.with_condition(have, not_ready, now), **_recorded(launches)}
    if status.get("flavor"):
        change["flavor"] = dict.fromkeys(FLAVOR_PLACE)
    return change


def failed_status(vmi: Object, launches: Sequence[FailedLaunch], now: str) -> Object:
    """The patch for a VMI that is not launched again."""
    status = vmi.get("status") or {}
    not_ready = Condition("Ready", False, launches[-1].reason, failed_launches.summary(launches))
    return {"phase": "Failed", "conditions": conditions.with_condition(status.get("conditions"), not_ready, now),
            "phaseTransitionTimestamps": vm.entered(status.get("phaseTransitionTimestamps"), "Failed", now)}


def _recorded(launches: Sequence[FailedLaunch]) -> Object:
    return {failed_launches.FIELD: [launch.to_object() for launch in launches]}


def keep_away(pod: Object, launches: Sequence[FailedLaunch]) -> Object:
    """The next launcher pod, which avoids the hosts of failed launches: our scheduler reads the annotation, with the reason and
    for a while; kube-scheduler prefers any other node."""
    hosts: dict[str, tuple[datetime, str]] = failed_launches.excluded_hosts(launches)
    if not hosts:
        return pod
    annotations = {**pod["metadata"]["annotations"], **binding_conditions.exclusion(hosts)}
    affinity = pod["spec"].get("affinity") or {}
    nodes = affinity.get("nodeAffinity") or {}
    elsewhere = {"weight": 100, "preference": {"matchFields": [
        {"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in sorted(hosts)]}}
    preferred = [*(nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or ()), elsewhere]
    nodes = {**nodes, "preferredDuringSchedulingIgnoredDuringExecution": preferred}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations},
            "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": nodes}}}
