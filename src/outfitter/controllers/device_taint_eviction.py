"""Pods that hold a device with a taint NoExecute go, unless their claim tolerates it, in embedded mode (a cluster has its own
controller for this): at once, or when its tolerationSeconds have passed. A taint is published with the device or put on it by a
DeviceTaintRule. What an operator takes out of service on a page is published as NoSchedule, and evicts no pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import NotFound
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra.device_index import FEATURES
from outfitter.scheduling.filter import taints
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

REASON = "DeletionByDeviceTaintManager"  # of the condition DisruptionTarget, as in Kubernetes
EVENT = "DeviceTaintManagerEviction"


class DeviceTaintEviction:
    name = "device_taint_eviction"

    def __init__(self, context: ControllerContext, features: Features = FEATURES) -> None:
        self._context, self._features = context, features
        self.queue = WorkQueue(context.clock)
        self._pods = context.informer(kinds.POD)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._slices = context.informer(kinds.RESOURCE_SLICE)
        self._rules = context.informer(kinds.DEVICE_TAINT_RULE)
        self._seen: dict[tuple[DeviceId, str, str, str], datetime] = {}  # when we saw taints that do not say since when
        self._slices.add_index("driver and pool", lambda piece: [f"{piece['spec']['driver']}/{piece['spec']['pool']['name']}"])
        self._pods.add_index("claim", pod_claims.claim_keys)
        enqueue_on_change(self._pods, self.queue, lambda pod: [key_of(pod)] if _holds(pod) else [])
        enqueue_on_change(self._claims, self.queue, lambda claim: list(map(key_of, self._pods.by("claim", key_of(claim)))))
        for informer in (self._slices, self._rules):
            enqueue_on_change(informer, self.queue, lambda _: [key_of(pod) for pod in self._pods.items() if _holds(pod)])

    async def reconcile(self, key: str) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not _holds(pod) or not self._features.device_taints:
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
        """In how many seconds the pod has to go, and why, for each taint that it does not bear for ever."""
        now = self._context.clock.now()
        for _, name in pod_claims.claim_names(pod):
            claim = self._claims.get(f"{pod['metadata']['namespace']}/{name}")
            given = ((claim or {}).get("status") or {}).get("allocation") or {}
            for result in (given.get("devices") or {}).get("results") or ():
                device = DeviceId(result["driver"], result["pool"], result["device"])
                for taint in self._taints(device):
                    left = self._left(device, taint, result.get("tolerations") or (), now)
                    if left is not None:
                        value = f"={taint['value']}" if taint.get("value") else ""
                        yield left, f"{device.short} (claim {name}) has the taint {taint.get('key')}{value}:NoExecute"

    def _taints(self, device: DeviceId) -> Iterator[Mapping[str, Any]]:
        pieces = self._slices.by("driver and pool", f"{device.driver}/{device.pool}")
        newest = max((piece["spec"]["pool"].get("generation") or 0 for piece in pieces), default=0)
        published = (taint for piece in pieces if (piece["spec"]["pool"].get("generation") or 0) == newest
                     for each in piece["spec"].get("devices") or () if each["name"] == device.device
                     for taint in each.get("taints") or ())
        rules: Iterable[Object] = self._rules.items() if self._features.device_taint_rules else ()
        ruled = taints.ruled(rules, device.driver, device.pool, device.device)
        return (taint for taint in (*published, *ruled) if taint.get("effect") == "NoExecute")

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


def _holds(pod: Object) -> bool:
    """It runs, or is about to, with devices."""
    return bool(pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
                and (pod.get("status") or {}).get("phase") not in vm.FINAL and pod_claims.claim_keys(pod))
