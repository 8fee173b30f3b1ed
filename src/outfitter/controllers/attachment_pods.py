"""Creates and deletes attachment pods (`api.kubevirt.attachment_pods`): a running VMI that got an SR-IOV interface, a GPU or a
host device has its VF or its claim booked on its host by a pod of its own, which the scheduler treats as every other. Where
none is free the pod waits, with the scheduler's reasons. The node agent plugs the device; once it is unplugged the pod is
deleted, and with it the booking and a claim from a template.

Only for hosts whose agent runs the pods itself: a kubelet gives a running container no further device. There the VM is migrated
for a NIC, and restarted for other devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, migration, network_info, vm
from outfitter.api.kubevirt.attachment_pods import Attachment
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import AlreadyExists, NotFound
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

TRY_AGAIN = 5.0  # seconds until a definition that is missing, or names no resource, is read again


class AttachmentPods:
    name = "attachment_pods"
    kind = kinds.VMI

    def __init__(self, context: ControllerContext, in_place: Callable[[str], bool]) -> None:
        """`in_place`: whether devices are plugged in place on the host of this name."""
        self._context, self._in_place = context, in_place
        self.queue = WorkQueue(context.clock)
        self._vmis, self._pods = context.informer(kinds.VMI), context.informer(kinds.POD)
        self._vmis.on_change(self._vmi_changed)
        self._pods.on_change(self._pod_changed)
        self._pods.add_index("launcher", lambda pod: [attachment_pods.launcher_uid(pod) or ""])
        self._pods.add_index("instance", lambda pod: [vm.launches(pod) or ""])

    def _vmi_changed(self, old: Object | None, new: Object | None) -> None:
        if new is not None and any(attachment_pods.concerns(vmi) for vmi in (old, new) if vmi is not None):
            self.queue.add(key_of(new))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        if (key := vm.launches(pod)) is not None:
            self.queue.add(key)
        elif (uid := attachment_pods.launcher_uid(pod)) is not None:
            owner = vm.owner(pod, kinds.POD.kind) or {}
            launcher = self._pods.get(f"{pod['metadata']['namespace']}/{owner.get('name')}")
            if launcher is not None and launcher["metadata"]["uid"] == uid and (key := vm.launches(launcher)) is not None:
                self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        vmi = self._vmis.get(key)
        status = (vmi or {}).get("status") or {}
        if vmi is None or status.get("phase") != "Running" or vmi["metadata"].get("deletionTimestamp"):
            return None  # they go with the launcher pod
        again: float | None = None
        for launcher in self._pods.by("instance", key):
            there = launcher["spec"].get("nodeName") == status.get("nodeName") and vm.is_its(launcher, status)
            if there and launcher["status"].get("phase") == "Running" and not launcher["metadata"].get("deletionTimestamp"):
                again = await self._sync(vmi, launcher)
            elif launcher["status"].get("phase") in vm.FINAL:  # the VM has migrated; the target's pod holds what was plugged
                for pod in list(self._pods.by("launcher", launcher["metadata"]["uid"])):
                    await self._delete(pod)
        return again

    async def _sync(self, vmi: Object, launcher: Object) -> float | None:
        """Seconds after which to look again."""
        have = {attachment_pods.held(pod): pod for pod in self._pods.by("launcher", launcher["metadata"]["uid"])}
        needed = attachment_pods.needed(vmi)
        for attachment, pod in have.items():
            failed = (pod.get("status") or {}).get("phase") in vm.FINAL
            if attachment not in needed or failed:
                await self._delete(pod)
        if migration.under_way(vmi) or not self._in_place(launcher["spec"]["nodeName"]):
            return None
        again: float | None = None
        for attachment in attachment_pods.wanted(vmi, launcher):
            if attachment in have:
                continue
            resource = await self._resource(vmi, attachment)
            if attachment.kind == "interface" and not resource:
                again = TRY_AGAIN  # the node agent reports what is missing
                continue
            with contextlib.suppress(AlreadyExists):
                await self._context.store.create(kinds.POD, attachment_pods.build(launcher, vmi, attachment, resource))
        return again

    async def _delete(self, pod: Object) -> None:
        meta = pod["metadata"]
        if not meta.get("deletionTimestamp"):
            with contextlib.suppress(NotFound):
                await self._context.store.delete(kinds.POD, meta["name"], meta["namespace"], uid=meta["uid"])

    async def _resource(self, vmi: Object, attachment: Attachment) -> str:
        """The resource of which an interface takes one; "" for a claim, and where no definition names one."""
        network = next((each for each in network_info.networks(vmi) if each["name"] == attachment.name), {})
        if attachment.kind == "claim" or network.get("multus") is None:
            return ""
        namespace, name = network_info.attachment(vmi, network)
        try:
            definition = await self._context.store.get(kinds.NETWORK_ATTACHMENT, name, namespace)
        except NotFound:
            return ""
        return network_info.resource_of(definition)
