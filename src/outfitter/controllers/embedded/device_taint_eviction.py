"""Pods that hold a device with a taint NoExecute go, unless their claim tolerates it, in embedded mode (a cluster has its own
controller for this): at once, or when its tolerationSeconds have passed. A taint is published with the device or put on it by a
DeviceTaintRule. What an operator takes out of service on a page is published as NoSchedule, and evicts no pod."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.scheduler_cache import SchedulerCache
from outfitter.errors import NotFound
from outfitter.scheduling.filter import taints
from outfitter.scheduling.filter.taints import Taint
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

REASON = "DeletionByDeviceTaintManager"  # of the condition DisruptionTarget, as in Kubernetes
EVENT = "DeviceTaintManagerEviction"


class DeviceTaintEviction:
    name = "device_taint_eviction"
    kind = kinds.POD  # of its keys

    def __init__(self, context: ControllerContext, cache: SchedulerCache) -> None:
        self._context, self._cache = context, cache
        self.queue = WorkQueue(context.clock)
        self._pods = context.informer(kinds.POD)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._seen: dict[tuple[DeviceId, str, str, str], datetime] = {}  # when we saw taints that do not say since when
        self._evicting: set[tuple[Kind, str]] = set()  # slices and rules with a taint that evicts: without any nothing is done
        self._pods.add_index("claim", pod_claims.claim_keys)
        enqueue_on_change(self._pods, self.queue, lambda pod: [key_of(pod)] if self._evicting and _holds(pod) else [])
        enqueue_on_change(self._claims, self.queue, lambda claim: (
            list(map(key_of, self._pods.by("claim", key_of(claim)))) if self._evicting else []))
        for kind, taints_of in ((kinds.RESOURCE_SLICE, _slice_taints), (kinds.DEVICE_TAINT_RULE, _rule_taints)):
            context.informer(kind).on_change(functools.partial(self._taints_changed, kind, taints_of))

    def _taints_changed(
        self, kind: Kind, taints_of: Callable[[Object], Iterator[Taint]], old: Object | None, new: Object | None
    ) -> None:
        before, name = bool(self._evicting), (kind, (new or old or {})["metadata"]["name"])
        self._evicting.discard(name)
        if new is not None and any(taint.get("effect") == "NoExecute" for taint in taints_of(new)):
            self._evicting.add(name)
        if before or self._evicting:
            self._look_at_all()

    def _look_at_all(self) -> None:
        for pod in self._pods.items():
            if _holds(pod):
                self.queue.add(key_of(pod))

    async def reconcile(self, key: str) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not _holds(pod):
            return None
        due = sorted(self._due(pod), key=lambda one: one[0])
        if not due:
            return None
        seconds, why = due[0]
        if seconds > 0:
            return seconds
        await send_away(self._context, pod, reason=REASON, event=EVENT, why=why,
                        sentence=f"Device Taint manager: deleting due to NoExecute taint: {why}")
        return None

    def _due(self, pod: Object) -> Iterator[tuple[float, str]]:
        """In how many seconds the pod has to go, and why, for each taint that it does not tolerate for ever."""
        snapshot, now = self._cache.snapshot(), self._context.clock.now()
        for _, name in pod_claims.claim_names(pod):
            claim = self._claims.get(f"{pod['metadata']['namespace']}/{name}")
            given = ((claim or {}).get("status") or {}).get("allocation") or {}
            for result in (given.get("devices") or {}).get("results") or ():
                device = DeviceId(result["driver"], result["pool"], result["device"])
                for taint in (one for one in snapshot.taints(device) if one.get("effect") == "NoExecute"):
                    left = self._left(device, taint, result.get("tolerations") or (), now)
                    if left is not None:
                        rule = f" by DeviceTaintRule {taint[taints.RULE]}" if taints.RULE in taint else ""
                        yield left, f"{device.short} (claim {name}) has the taint {taints.text(taint)}{rule}"

    def _left(self, device: DeviceId, taint: Mapping[str, Any], tolerated: Sequence[Mapping[str, Any]], now: datetime
              ) -> float | None:
        """Seconds until it is no longer tolerated; None: never."""
        place = (device, str(taint.get("key")), str(taint.get("value")), str(taint.get("effect")))
        since = None if taint.get("timeAdded") else self._seen.setdefault(place, now)
        return taints.left(taint, tolerated, now, since)


async def send_away(context: ControllerContext, pod: Object, *, reason: str, event: str, why: str, sentence: str) -> None:
    """First what it is for, on the pod; then it goes. After a crash between the two it goes all the same."""
    meta = pod["metadata"]
    try:
        if not conditions.is_true(pod, "DisruptionTarget"):
            have = conditions.with_condition((pod.get("status") or {}).get("conditions"),
                                             Condition("DisruptionTarget", True, reason, sentence), context.now())
            await context.patch_status(kinds.POD, pod, {"conditions": have})
        await context.events.warning(pod, event, f"Marking for deletion: {why}")
        await context.store.delete(kinds.POD, meta["name"], meta["namespace"], uid=meta["uid"])
    except NotFound:
        return


def _slice_taints(part: Object) -> Iterator[Taint]:
    return (taint for device in part["spec"].get("devices") or () for taint in device.get("taints") or ())


def _rule_taints(rule: Object) -> Iterator[Taint]:
    yield (rule.get("spec") or {}).get("taint") or {}


def _holds(pod: Object) -> bool:
    """It runs, or is about to, with devices."""
    return bool(pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
                and (pod.get("status") or {}).get("phase") not in vm.FINAL and pod_claims.claim_keys(pod))
