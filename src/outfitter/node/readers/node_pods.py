"""Which pods of a node readers see, and how they change: the agent admits a pod when all its devices are assigned in the API
and prepared; from then on it is shown until it has ended or is gone. A pod that runs when the agent starts is shown at once.

Reads informers only: readers are answered while the API server is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.errors import TooManyRequests
from outfitter.node.readers.pod_devices import DeviceSources, ReadablePod, compute_pod_devices
from outfitter.store.clock import Clock
from outfitter.store.informer import key_of
from outfitter.store.queue_metrics import Durations

WAITING_EVENTS = 1000  # of one watch that does not read; then it ends
EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class PodEvent:
    type: EventType
    pod: Object  # of DELETED as it was last


@dataclass(frozen=True, slots=True)
class _ComputedPod:
    pod: Object
    numa_nodes: Mapping[str, Mapping[str, tuple[int, ...]]]  # by resource, as they were
    readable: ReadablePod


class NodePods:
    def __init__(self, node: str, sources: DeviceSources, clock: Clock) -> None:
        self.node, self.sources, self._clock = node, sources, clock
        self.waits, self.prepares = Durations(), Durations()  # of pods with devices: until admission, and of their preparation
        self._shown: dict[str, Object] = {}  # uid -> as it was last sent
        self._uids: dict[str, str] = {}  # "namespace/name" -> uid of what is shown
        self._computed: dict[str, _ComputedPod] = {}  # by uid: of pods without claims, whose devices are in their objects
        self._watches: set[PodWatch] = set()

    def admit(self, pod: Object) -> None:
        """All devices of a pod are assigned and prepared; it may start when this returns. May be repeated."""
        if pod["spec"].get("nodeName") != self.node or _ended(pod):
            return
        if pod["metadata"]["uid"] not in self._shown and _has_devices(self._compute(pod)):
            self.waits.add(max((self._clock.now() - _bound(pod)).total_seconds(), 0.0))
        self._show(pod)

    def pods(self) -> list[Object]:
        """By uid, as the kubelet sorts them."""
        return [self._shown[uid] for uid in sorted(self._shown)]

    def pod(self, uid: str) -> Object | None:
        return self._shown.get(uid)

    def readable(self) -> list[ReadablePod]:
        return [self._compute(pod) for pod in self.pods()]

    def find(self, namespace: str, name: str) -> ReadablePod | None:
        uid = self._uids.get(f"{namespace}/{name}")
        return self._compute(self._shown[uid]) if uid is not None else None

    def _compute(self, pod: Object) -> ReadablePod:
        """Once for a pod as it is and its plugins' lists as they are: many readers ask again and again."""
        uid = pod["metadata"]["uid"]
        known = self._computed.get(uid)
        if known is not None and known.pod is pod and all(
                self.sources.numa_nodes(resource) is nodes for resource, nodes in known.numa_nodes.items()):
            return known.readable
        readable = compute_pod_devices(pod, self.sources)
        self._computed.pop(uid, None)
        if uid in self._shown and not any(pod_claims.claim_names(pod)):
            resources = {resource for container in readable.containers for resource in container.devices}
            nodes = {resource: self.sources.numa_nodes(resource) for resource in resources}
            self._computed[uid] = _ComputedPod(pod, nodes, readable)
        return readable

    def watch(self, watch: PodWatch) -> None:
        """Send every change from now on; what is shown already is in `pods`."""
        self._watches.add(watch)
        watch.on_close(self._watches.discard)

    def changed(self, old: Object | None, new: Object | None) -> None:
        """A watch update of a pod that is or was on the node."""
        if old is not None and (new is None or _ended(new) or old["metadata"]["uid"] != new["metadata"]["uid"]):
            self._hide(old)
        if new is None or _ended(new) or new["spec"].get("nodeName") != self.node:
            return
        if new["metadata"]["uid"] in self._shown or (new.get("status") or {}).get("phase") == "Running":
            self._show(new)

    def _hide(self, pod: Object) -> None:
        self._computed.pop(pod["metadata"]["uid"], None)
        if self._shown.pop(pod["metadata"]["uid"], None) is not None:
            self._uids.pop(key_of(pod), None)
            self._send(PodEvent("DELETED", pod))

    def _show(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        known = self._shown.get(uid)
        if known is not None and known["metadata"].get("resourceVersion") == pod["metadata"].get("resourceVersion"):
            return
        self._shown[uid] = pod
        self._uids[key_of(pod)] = uid
        self._send(PodEvent("MODIFIED" if known is not None else "ADDED", pod))

    def _send(self, event: PodEvent) -> None:
        for watch in list(self._watches):
            watch.put(event)


class PodWatch:
    """The changes of the pods of some nodes for one reader."""

    def __init__(self) -> None:
        self._closed: list[Callable[[PodWatch], None]] = []
        self._events: deque[PodEvent] = deque()
        self._wake = asyncio.Event()
        self._overflow = False

    def put(self, event: PodEvent) -> None:
        if len(self._events) >= WAITING_EVENTS:
            self._overflow = True
            self._events.clear()
            self.close()
        elif not self._overflow:
            self._events.append(event)
        self._wake.set()

    async def events(self) -> AsyncIterator[PodEvent]:
        """TooManyRequests: the reader was too slow, and events were lost."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._overflow:
                raise TooManyRequests(f"the watch did not read {WAITING_EVENTS} events: list again")
            self._wake.clear()
            await self._wake.wait()

    def on_close(self, closed: Callable[[PodWatch], None]) -> None:
        self._closed.append(closed)

    def close(self) -> None:
        for closed in self._closed:
            closed(self)


def _has_devices(pod: ReadablePod) -> bool:
    return any(container.devices or container.claims for container in pod.containers)


def _bound(pod: Object) -> datetime:
    """When a pod was bound to its node; a pod that was created with a node has no such condition."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "True") and condition.get("lastTransitionTime"):
            return datetime.fromisoformat(condition["lastTransitionTime"])
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in vm.FINAL


