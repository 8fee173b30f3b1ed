"""The agent of one host or, in embedded mode, of all simulated ones: which change wakes which pod that is bound to its hosts.
What is done about a pod depends on who runs it (`pod_runtime.py`): the agent itself, or a kubelet."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from outfitter.api import kinds, rejection
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, vm
from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import RejectionCode
from outfitter.errors import HypervisorAway
from outfitter.node import status_reporter, watch_filter
from outfitter.node.agent_host import AgentHost
from outfitter.node.device_manager import device_admission
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.pods.pod_runtime import PodRuntime
from outfitter.store.clock import Clock
from outfitter.store.informer import Informer, key_of
from outfitter.store.workqueue import WorkQueue

SWEEP = "host|"  # a key of this form: stop and release what no pod of the host uses
DEVICES = "devices|"  # a key of this form: what device plugins of the host report has changed
LONGEST_RETRY = 10.0  # seconds until a pod that failed is tried again, as by a kubelet: an API server that is back is used soon


class Agent:
    name = "node"
    kind = kinds.POD  # of its keys

    def __init__(
        self, hosts: Iterable[AgentHost], runtime: PodRuntime, cache: PodCache, *, clock: Clock,
        pages: Informer[Object] | None = None,
    ) -> None:
        """`pages`: where bookings that pods wait for are written; None where a kubelet waits for them."""
        self.runtime, self._cache = runtime, cache
        self.hosts = {host.name: host for host in hosts}
        self._pods, self._pages = cache.pods, pages
        self.queue = WorkQueue(clock, most=LONGEST_RETRY, age=cache.pods.age)
        cache.pods.on_change(self._pod_changed)
        cache.instances.on_change(self._vmi_changed)
        if cache.followed is not None:
            cache.followed.on_change(self._vmi_changed)
        if cache.claims is not None:
            cache.claims.on_change(self._claim_changed)
        if pages is not None:
            pages.on_change(self._page_changed)
        for name, host in self.hosts.items():
            host.hypervisor.on_change(functools.partial(self._domain_changed, name))
            if host.device_manager is not None:
                host.device_manager.on_change(functools.partial(self.queue.add, DEVICES + name))
                self.queue.add(DEVICES + name)
            self.queue.add(SWEEP + name)

    # -- which watch update wakes which pod

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        node = pod["spec"].get("nodeName")
        if (owner := vm.owner(pod, kinds.POD.kind)) is not None and attachment_pods.launcher_uid(pod) is not None:
            self.queue.add(f"{pod['metadata']['namespace']}/{owner['name']}")  # its VM can be given the device
        if new is None:
            self.runtime.forget(pod)
            self._cache.forget(pod)
        if node not in self.hosts:
            return
        if new is None:
            self.queue.add(SWEEP + node)
        elif not self._cache.wrote(new) and watch_filter.pod_changed(old, new):
            self.queue.add(key_of(new))

    def _vmi_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            self._cache.forget(old)
        if (new is not None and self._cache.wrote(new)) or not watch_filter.vmi_changed(old, new):
            return
        for pod in self._pods.by("instance", key_of(new or old or {})):
            if pod["spec"].get("nodeName") in self.hosts:
                self.queue.add(key_of(pod))

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        """A claim was seen after the pod that uses it."""
        self._requeue_pending(self._pods.by("claim", key_of(new or old or {})))

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """A claim got a booking after its pod was bound, or a device was released for which a pod waits."""
        name = (new or old or {})["metadata"]["name"]
        if name not in self.hosts:
            return
        for claim in watch_filter.newly_booked(old, new):
            self._requeue_pending(self._pods.by("claim", claim))
        if devices := watch_filter.quarantine_changed(old, new):
            self.wake_holders(name, devices)
            if self.hosts[name].device_manager is not None:
                self.queue.add(DEVICES + name)
        if watch_filter.released(old, new):
            self._requeue_pending(pod for pod in self._pods.by("node", name) if status_reporter.waits_for_devices(pod))

    def wake_holders(self, host: str, devices: Collection[DeviceId]) -> None:
        """The health of these devices of a host has changed: look at the pods that have them."""
        found = self._pages.get(host) if self._pages is not None else None
        page = Page(found, stored=True) if found is not None else None
        for holder in {booking.holder for device in devices for booking in (page.on(device) if page is not None else ())}:
            key = f"{holder.namespace}/{holder.name}"
            pods = [self._pods.get(key)] if holder.kind == kinds.POD.kind else self._pods.by("claim", key)
            for pod in pods:
                if pod is not None:
                    self.queue.add(key_of(pod))
                    if (owner := vm.owner(pod, kinds.POD.kind)) is not None:  # of an attachment pod: its VM
                        self.queue.add(f"{pod['metadata']['namespace']}/{owner['name']}")

    def _domain_changed(self, name: str, uid: str) -> None:
        """A domain started, ended or was paused; without a uid, the hypervisor was away and any of them may have."""
        if self.runtime.starts(uid):
            return  # the reconcile that starts it looks at it afterwards
        for pod in self._pods.by("node", name):
            if (reference := vm.owner(pod, kinds.VMI.kind)) is not None and uid in ("", reference["uid"]):
                self.queue.add(key_of(pod))
        if not uid:
            self.queue.add(SWEEP + name)

    def _requeue_pending(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if pod["spec"].get("nodeName") in self.hosts and (pod.get("status") or {}).get("phase") == "Pending":
                self.queue.add(key_of(pod))

    async def reconcile(self, key: str) -> float | None:
        if key.startswith(SWEEP):
            host = self.hosts[key.removeprefix(SWEEP)]
            async with host.lock:
                return await self.runtime.sweep(host)
        if key.startswith(DEVICES):
            return await self._devices_changed(self.hosts[key.removeprefix(DEVICES)])
        name = (self._pods.get(key) or {}).get("spec", {}).get("nodeName")
        if name not in self.hosts:
            return None
        async with self.hosts[name].lock:
            pod = self._pods.get(key)
            if pod is None or pod["spec"].get("nodeName") != name:
                return None
            try:
                return await self._sync(self.hosts[name], pod)
            except HypervisorAway as error:
                away = rejection.of_error(error, RejectionCode.HYPERVISOR_AWAY)
                named = away.with_detail(message=f"{name}: {error.message}")
                await self.runtime.waiting(self._pods.get(key) or pod, named, status_reporter.AWAY)
                return error.retry_after

    async def _devices_changed(self, host: AgentHost) -> float | None:
        """Write what the Node offers, and look at the pods that wait for devices or have some. A number: until the devices of
        a plugin that is gone count no more."""
        for pod in self._pods.by("node", host.name):
            if device_admission.resources_of(pod):
                self.queue.add(key_of(pod))
        return await self.runtime.offer_devices(host)

    async def _sync(self, host: AgentHost, pod: Object) -> float | None:
        """Run a pod, or end it."""
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp") or phase in vm.FINAL:
            return await self.runtime.end(host, pod)
        return await self.runtime.run(host, pod, self._cache.vmi(pod))
