"""What the agent writes of a pod and its machine: why it waits, that it runs, how it ended. Each is said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.hypervisor import Ended
from outfitter.api.kinds import Object
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events import Recorder

UNPREPARED = "FailedPrepareDevices"
UNPLUGGED = "FailedPlugNetworks"
AWAY = "HypervisorAway"
UNBUILT = "SyncFailed"


class Reporter:
    def __init__(self, store: Store, *, clock: Clock, events: Recorder) -> None:
        self._store, self._clock, self._events = store, clock, events

    async def waiting(self, pod: Object, why: str, reason: str = UNPREPARED) -> None:
        """Why it does not run yet, or does not end."""
        if pod["status"].get("message") == why:
            return
        await self._patch_pod(pod, {"reason": reason, "message": why})
        await self._events.warning(pod, reason, why)

    async def no_longer_away(self, pod: Object) -> None:
        if pod["status"].get("reason") == AWAY:
            await self._patch_pod(pod, {"reason": None, "message": None})

    async def running(self, pod: Object) -> Object:
        """The pod as it is then."""
        if pod["status"].get("phase") == "Running":
            return pod
        now = rfc3339(self._clock.now())
        have = pod["status"].get("conditions") or []
        for type_ in ("Initialized", "ContainersReady", "Ready"):
            have = conditions.with_condition(have, Condition(type_, True), now)
        containers = [{"name": container["name"], "ready": True, "started": True, "restartCount": 0, "imageID": "",
                       "image": container.get("image", ""), "state": {"running": {"startedAt": now}}}
                      for container in pod["spec"]["containers"]]
        # At the revision that was read: whoever wrote conditions since does not lose them.
        return await self._patch_pod(pod, {"phase": "Running", "startTime": now, "conditions": have, "reason": None,
                                           "containerStatuses": containers, "message": None}, at_revision=True)

    async def started(self, instance: Object, host: str, cards: Sequence[Object] = ()) -> None:
        """`cards`: what is known of its network cards."""
        meta, now = instance["metadata"], rfc3339(self._clock.now())
        have = conditions.with_condition(instance["status"].get("conditions"), Condition("Ready", True), now)
        await self._store.patch(kinds.INSTANCE, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"phase": "Running", "nodeName": host, "conditions": have, **({"interfaces": cards} if cards else {})},
        }, meta["namespace"], subresource="status")
        await self._events.normal(instance, "Started", "VirtualMachineInstance started.")

    async def not_started(self, pod: Object, instance: Object, why: str) -> None:
        await self._events.warning(instance, UNBUILT, why)
        await self.failed(pod, UNBUILT, why)

    async def ended(self, pod: Object, host: str, how: Ended | None) -> None:
        """`how` is what the hypervisor knows of it: None is nothing at all."""
        if how is None:
            await self.failed(pod, "DomainGone", f"the machine no longer runs on {host}")
        elif how.failed:
            await self.failed(pod, "DomainFailed", f"{host}: {how.reason}")
        else:
            await self._patch_pod(pod, {"phase": "Succeeded", "reason": "Stopped", "message": f"{host}: {how.reason}"})
            await self._events.normal(pod, "Stopped", f"{host}: {how.reason}")

    async def failed(self, pod: Object, reason: str, message: str) -> None:
        await self._patch_pod(pod, {"phase": "Failed", "reason": reason, "message": message})
        await self._events.warning(pod, reason, message)

    async def _patch_pod(self, pod: Object, status: Mapping[str, object], *, at_revision: bool = False) -> Object:
        meta = pod["metadata"]
        patch: Object = {"status": status}
        if at_revision:
            patch["metadata"] = {"resourceVersion": meta["resourceVersion"]}
        return await self._store.patch(kinds.POD, meta["name"], patch, meta["namespace"], subresource="status")
