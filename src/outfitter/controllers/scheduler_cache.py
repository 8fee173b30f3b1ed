"""What the scheduler knows of the cluster: informer events become incremental state (devices, pages, node usage, claims,
classes) of which a SchedulingSnapshot is a view. What this process wrote itself is known at once, before its event arrives.

It decides nothing and writes nothing. The scheduler, its binder and the eviction by device taints share one."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable

from outfitter.api import kinds, rejection
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm
from outfitter.api.ledger_page.page import Page
from outfitter.api.validate import readable
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import Invalid, Unreadable
from outfitter.ledger import book
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import assigned_devices, extended_resources
from outfitter.scheduling.dra.device_index import FEATURES, DeviceIndex
from outfitter.scheduling.filter.node_fit import NodeInfoCache
from outfitter.scheduling.filter.node_usage import NodeUsage, nominated
from outfitter.scheduling.nova.host_state_cache import HostStateCache
from outfitter.scheduling.plugins import NO_PLUGINS, SchedulerPlugins
from outfitter.scheduling.score import Policy
from outfitter.scheduling.snapshot import Claims, SchedulingSnapshot
from outfitter.store.informer import key_of

log = logging.getLogger(__name__)


class SchedulerCache:
    def __init__(
        self, context: ControllerContext, *, plugins: SchedulerPlugins = NO_PLUGINS, policy: Policy = "pack",
        features: Features = FEATURES,
    ) -> None:
        self._context, self._plugins, self._policy = context, plugins, policy
        self._pods, self._claims, self._classes = (
            context.informer(kind) for kind in (kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS))
        self.devices, self._host_states = DeviceIndex(features), HostStateCache()
        self._usage, self._node_infos = NodeUsage(), NodeInfoCache()
        self.resume: dict[str, str] = {}  # uid of a pod -> the host at which its last search took too long
        self._resources: extended_resources.Resources | None = None  # None: classes changed
        self._revisions: dict[str, int] = {}  # page -> its revision in the index
        self._pods.on_change(self._pod_changed)
        self._classes.on_change(self._class_changed)
        for kind, put in (
            (kinds.RESOURCE_SLICE, self.devices.put_slice), (kinds.NODE, self.devices.put_node),
            (kinds.DEVICE_TAINT_RULE, self.devices.put_rule), (kinds.LEDGER_PAGE, self._put_page),
            (kinds.PROVIDER_TREE, self._host_states.put_tree), (kinds.HOST_INVENTORY, self._host_states.put_inventory),
            (kinds.HOST_INVENTORY, self.devices.put_inventory),
        ):
            context.informer(kind).on_change(_by_name(put))
            context.informer(kind).on_unreadable(functools.partial(self._unreadable, kind))
        self._pods.on_unreadable(self._pod_unreadable)

    # -- reading

    def snapshot(self, claims: Claims | None = None) -> SchedulingSnapshot:
        """What is known now. `claims`: a look-up that knows claims of a transaction which is not committed yet."""
        if self._resources is None:
            self._resources = extended_resources.mapped(self._classes.items())
        return SchedulingSnapshot(
            devices=self.devices, usage=self._usage, claim=claims or self.claim, device_class=self._classes.get,
            extended_resource=self._resources, node_infos=self._node_infos, host_states=self._host_states,
            plugins=self._plugins, policy=self._policy, now=self._context.clock.now(), resume=self.resume,
            share_id=self._context.names.uid)

    def pod(self, key: str) -> Object | None:
        return self._pods.readable(key)

    def claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")

    # -- what this process does itself

    def keep(self, pods: Iterable[Object]) -> None:
        """Devices that are pre-assigned to these waiting pods are given to no other pod."""
        self.devices.held.kept = assigned_devices.kept(pods, self.devices, self.snapshot().extended_resource)

    def assume(self, pod: Object, host: str) -> None:
        """Count a pod on a host as if it were bound already."""
        self._usage.add({**pod, "spec": {**pod["spec"], "nodeName": host}})

    def forget(self, pod: Object) -> None:
        """Take an assumption back: what the informer knows of the pod counts again."""
        self._usage.remove(pod)
        if (known := self._pods.readable(key_of(pod))) is not None:  # another scheduler may have given it a host
            self._usage.add(known)

    def stored(self, kind: Kind, obj: Object) -> None:
        """An object as a commit of this process wrote it."""
        if kind == kinds.LEDGER_PAGE:
            self._see_page(obj["metadata"]["name"], Page(obj))
        elif kind == kinds.RESOURCE_CLAIM:
            self._claims.put(obj)
        elif kind == kinds.POD:
            self._pods.put(obj)
            if self._pods.readable(key_of(obj)) is not None:  # else it is gone by now, and takes nothing
                self._usage.add(obj)

    def released(self, pod: Object) -> None:
        """A pod lost the host that it was nominated for."""
        self._usage.remove(pod)

    async def reread(self, pages: Iterable[str]) -> None:
        """Pages as the store has them, whatever was assumed."""
        for name in dict.fromkeys(pages):
            try:
                page = await book.read(self._context.store, name)
            except Unreadable:
                continue  # `_unreadable` withholds what is on it
            self._revisions[name] = int(page.revision or 0)
            self.devices.put_page(name, page)

    # -- events

    def _put_page(self, name: str, obj: Object | None) -> None:
        self._see_page(name, Page(obj, stored=True) if obj is not None else None)

    def _see_page(self, name: str, page: Page | None) -> None:
        """A page by an event or by a commit of ours, whichever is newer."""
        if page is None or int(page.revision or 0) >= self._revisions.get(name, 0):
            self._revisions[name] = int(page.revision or 0) if page is not None else 0
            self.devices.put_page(name, page)

    def _unreadable(self, kind: Kind, name: str) -> None:
        found = self._context.informer(kind).unreadable.get(name)
        self.devices.put_unreadable(kind, name, rejection.unreadable(found) if found is not None else None)

    def _pod_unreadable(self, key: str) -> None:
        """A pod that cannot be read may run: what can be read of its requests counts."""
        found = self._pods.unreadable.get(key)
        part = readable.readable_part(kinds.POD, found.object) if found is not None else None
        if part is not None:
            with contextlib.suppress(Invalid):
                self._usage.add({"spec": {}, **part})

    def _class_changed(self, old: Object | None, new: Object | None) -> None:
        self._resources = None

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        try:
            if new is not None:
                newest = self._pods.readable(key_of(new)) or new  # what we wrote ourselves is newer
                self._usage.add(newest)
                if old is not None and nominated(old) and not nominated(newest) and not newest["spec"].get("nodeName"):
                    self._usage.remove(new)
            elif old is not None and key_of(old) not in self._pods.unreadable:
                self._usage.remove(old)
        except Invalid as error:
            log.warning("%s takes nothing of its host: %s", key_of(new or old or {}), error)


def takes_resources(pod: Object) -> bool:
    """The pod takes cpu and memory of a host."""
    return bool((pod["spec"].get("nodeName") or nominated(pod)) and (pod.get("status") or {}).get("phase") not in vm.FINAL)


def _by_name(put: Callable[[str, Object | None], None]) -> Callable[[Object | None, Object | None], None]:
    return lambda old, new: put((new or old or {})["metadata"]["name"], new)
