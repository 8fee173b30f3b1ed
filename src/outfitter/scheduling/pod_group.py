"""Pod groups: pods that are placed together or not at all, as Nova's multi-create (`min_count`) and Kubernetes' coscheduling
do it. A VM asks for it with two labels in its template, which its launcher pod inherits. Pure; called by the scheduler and by
`outfit why`.

Example: four VMs, each labelled `pod-group.scheduling.sigs.k8s.io/name: training` and
`pod-group.scheduling.sigs.k8s.io/min-available: "4"`, get devices when all four do. A VM of a group that runs counts, so one
whose start failed is placed again alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.placement import Waiting

NAME, MIN_AVAILABLE = "pod-group.scheduling.sigs.k8s.io/name", "pod-group.scheduling.sigs.k8s.io/min-available"


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One group, as one of its pods describes it."""

    namespace: str
    name: str
    min_available: int  # pods of it that must have a host before any gets one; members that have one count

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def of(pod: Mapping[str, Any]) -> PodGroup | None:
    """The group of a pod; a minimum that is no number, or that is missing, is 1, which is no condition at all."""
    labels = pod["metadata"].get("labels") or {}
    if not (name := labels.get(NAME)):
        return None
    text = str(labels.get(MIN_AVAILABLE) or "")
    least = int(text) if re.fullmatch("[0-9]{1,6}", text) else 1
    return PodGroup(pod["metadata"].get("namespace", ""), name, least)


def keys(pod: Mapping[str, Any]) -> list[str]:
    """For an index of pods by group."""
    group = of(pod)
    return [group.key] if group is not None else []


def too_few_hosts(group: PodGroup, placed: int, rejected: Sequence[Waiting], members: int) -> Waiting:
    """Why no pod of a group gets a host. `placed`: members that have one or could get one; `members`: all that there are."""
    if members < group.min_available:
        return Waiting((Rejection.of(RejectionCode.POD_GROUP_INCOMPLETE, group=group.name, members=members,
                                     wanted=group.min_available),))
    first = rejected[0] if rejected else Waiting()
    rejection = Rejection.of(RejectionCode.POD_GROUP_TOO_FEW_HOSTS, group=group.name, placed=placed, wanted=group.min_available)
    return replace(first, rejections=(rejection, *first.rejections))
