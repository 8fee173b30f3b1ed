"""Plugs and unplugs the GPUs and host devices of running VMIs in place, and reports them in status.deviceStatus.

As for NICs everything is decided by the spec, the status and what the domain has (`device_plan`), so that a step that was done
before a crash is found done. Nothing waits for a guest: an unplug that the guest has not answered is looked at again. Nothing
is done while a VMI migrates. Called by who runs the pods of a host, with the host's lock."""

from __future__ import annotations

from outfitter.api import conditions, kinds, rejection, rejection_conditions
from outfitter.api.device import hardware_key
from outfitter.api.hypervisor import DeviceBuilder, Domain, PluggedDevice
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, device_status, migration, pod_claims
from outfitter.api.kubevirt.attachment_pods import HOTPLUG, Attachment
from outfitter.api.kubevirt.device_refs import DeviceRef
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import render
from outfitter.errors import Forbidden, HypervisorError, NotFound, NotReady, OutfitterError, StartFailed
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.hotplug import device_plan
from outfitter.node.hotplug.booking_patience import BookingPatience
from outfitter.node.hotplug.device_plan import DeviceKey, DevicePlan, PendingDevice
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.pods.pod_preparation import PodPreparation
from outfitter.node.status_reporter import StatusReporter
from outfitter.store.base import Store
from outfitter.store.clock import Clock

TRY_AGAIN = 5.0  # seconds after a device could not be plugged
# What the scheduler reports of the claim itself; all else of an unschedulable pod is that its one host has no device for it.
OF_THE_CLAIM = frozenset(map(str, (
    RejectionCode.CLAIM_IN_USE, RejectionCode.CLAIM_MISSING, RejectionCode.CLAIM_DELETING, RejectionCode.CLAIM_NAME_TAKEN,
    RejectionCode.CLAIM_INVALID)))


class DeviceSync:
    def __init__(
        self, store: Store, cache: PodCache, build: DeviceBuilder, *, preparation: ClaimPreparation, devices: PodPreparation,
        report: StatusReporter, clock: Clock,
    ) -> None:
        self._store, self._cache, self._build, self._preparation, self._devices = store, cache, build, preparation, devices
        self._report, self._clock = report, clock
        self._patience: BookingPatience[DeviceKey] = BookingPatience(clock)
        self._unplugging: dict[tuple[str, str], float] = {}  # VMI and alias -> when its guest was first asked, monotonic

    async def sync(self, host: AgentHost, pod: Object, instance: Object, domain: Domain) -> float | None:
        """Bring the devices of a running domain one step further; when to look again."""
        if migration.under_way(instance):
            return None
        planned = device_plan.plan(instance, domain.host_devices)
        waits: dict[DeviceKey, PendingDevice] = {}
        again: float | None = None
        if not planned.nothing and domain.paused is not None:
            waits = {key: _paused(key) for key in _keys(planned)}
        elif not planned.nothing:
            again = await self._unplug(host, instance, planned, waits)
            waits |= {DeviceKey(ref.list, ref.name): await self._not_booked(host, pod, instance, ref) for ref in planned.waits}
            for ref in planned.attach:
                try:
                    await self._attach(host, pod, instance, domain, ref)
                except (NotReady, HypervisorError, StartFailed) as error:
                    waits[DeviceKey(ref.list, ref.name)] = _why(error, ref.name)
                domain = await self._fresh(host, domain)
        domain = await self._fresh(host, domain) if planned.detach else domain
        reported, later = self._patience.reported(
            instance["metadata"]["uid"], waits,
            {key for key, pending in waits.items() if pending.code == RejectionCode.DEVICE_NOT_BOOKED})
        await self._report.devices(instance, device_plan.reported(instance, domain.host_devices), reported)
        retries = [again, later, TRY_AGAIN if waits and (planned.attach or planned.waits) else None]
        return min((each for each in retries if each is not None), default=None)

    async def _unplug(
        self, host: AgentHost, instance: Object, planned: DevicePlan, waits: dict[DeviceKey, PendingDevice]
    ) -> float | None:
        uid, patience, again = instance["metadata"]["uid"], host.settings.unplug_timeout.total_seconds(), None
        for key, device in planned.detach:
            try:
                left = await host.hypervisor.detach_device(uid, device.alias)
            except HypervisorError as error:
                waits[key], left = _why(error, key.name), TRY_AGAIN
                again = left if again is None else min(again, left)
                continue
            if left is None:
                self._unplugging.pop((uid, device.alias), None)
                continue
            now = self._clock.monotonic()
            if now - self._unplugging.setdefault((uid, device.alias), now) >= patience:
                waits[key] = PendingDevice(str(RejectionCode.DEVICE_KEPT_BY_GUEST), (
                    f"{key.name}: the guest was asked to release it and has not for {patience:.0f} s; it stays held, and the "
                    "guest is asked again. A guest that still boots, or uses the device, does not release it"))
            again = left if again is None else min(again, left)
        return again

    async def _attach(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, ref: DeviceRef) -> None:
        """All functions of a device, or none. NotReady, HypervisorError, StartFailed: why not."""
        holder = self._holder(pod, instance, ref)
        if holder is None or (holder.get("status") or {}).get("phase") != "Running":
            waiting = await self._not_booked(host, pod, instance, ref)
            raise rejection.carrying(NotReady(waiting.message), RejectionCode(waiting.code))
        if missing := await self._devices.prepare(host, holder):
            raise _carrying(missing.rejection)
        prepared = self._preparation.launcher_devices(host, holder, self._cache.claim)
        parts = self._build(domain.xml, instance, ref, prepared.env, prepared.files)
        sources = tuple(part.source for part in parts)
        if common := set(map(hardware_key, sources)) & set(map(hardware_key, domain.devices)):
            raise rejection.carrying(NotReady(f"{ref.path}: the VM has {', '.join(sorted(common))} already"),
                                     RejectionCode.DEVICE_IN_USE)
        if missing := await self._devices.clash(host, holder, Domain(domain.uid, domain.name, "", sources)):
            raise _carrying(missing.rejection)
        await self._attach_all(host, domain, parts)

    async def _attach_all(self, host: AgentHost, domain: Domain, parts: list[PluggedDevice]) -> None:
        for count, part in enumerate(parts):
            try:
                await host.hypervisor.attach_device(domain.uid, part.element)
            except HypervisorError:
                for done in parts[:count]:
                    await host.hypervisor.detach_device(domain.uid, done.alias)
                raise

    def _holder(self, pod: Object, instance: Object, ref: DeviceRef) -> Object | None:
        """The pod whose claim a device of the status is of."""
        entry = next((entry for entry in device_status.status_of(instance, ref) if entry.get(HOTPLUG)), {})
        name = (entry.get(HOTPLUG) or {}).get("attachPodName")
        return next((each for each in (pod, *self._cache.attachments(pod)) if each["metadata"]["name"] == name
                     and not each["metadata"].get("deletionTimestamp")), None)

    async def _not_booked(self, host: AgentHost, pod: Object, instance: Object, ref: DeviceRef) -> PendingDevice:
        """Why a device has no entry in the status yet."""
        attachment = Attachment("claim", str(ref.claim))
        holder = pod if attachment_pods.has(pod, attachment) else await self._attachment_pod(pod, attachment)
        message = f"{ref.name}: claim {ref.claim} is not held on {host.name} yet"
        if holder is None:
            return PendingDevice(str(RejectionCode.DEVICE_NOT_BOOKED), message)
        codes, status = rejection_conditions.of(holder), holder.get("status") or {}
        name = dict(pod_claims.claim_names(holder)).get(attachment.name)
        claim = self._cache.claim(pod["metadata"]["namespace"], name) if name else None
        if claim is not None and (unknown := device_refs.unknown_request(claim.get("spec") or {}, ref.request)):
            return PendingDevice(str(RejectionCode.REQUEST_MISSING), f"{ref.name}: claim {name} {unknown}")
        if others := [str(entry.get("name")) for entry in attachment_pods.leaving(instance)
                      if name and (entry.get("deviceResourceClaimStatus") or {}).get("resourceClaimName") == name]:
            return PendingDevice(str(RejectionCode.DEVICE_NOT_BOOKED), (
                f"{ref.name}: claim {ref.claim} is that of {', '.join(others)}, which the guest has not released yet"))
        if holder["spec"].get("nodeName"):
            why = f": {status['message']}" if status.get("message") else ""
            return _pending(codes, RejectionCode.DEVICE_NOT_BOOKED, f"{message}{why}")
        waits = conditions.find(holder, "PodScheduled") or {}
        codes = [code for code in codes if code in OF_THE_CLAIM]
        if waits.get("status") != "False" or claim is None:
            why = f": {waits['message']}" if waits.get("message") else ""
            return _pending(codes, RejectionCode.DEVICE_NOT_BOOKED, f"{message}{why}")
        return _pending(codes, RejectionCode.NO_FREE_DEVICE_ON_HOST, (
            f"{ref.name}: {host.name}, on which the VM runs, has no free device for claim {ref.claim}: {waits.get('message')}"))

    async def _attachment_pod(self, pod: Object, attachment: Attachment) -> Object | None:
        """Also one without a host: an agent of a cluster follows the pods of its own hosts alone."""
        for each in self._cache.attachments(pod):
            if attachment_pods.held(each) == attachment:
                return each
        try:
            return await self._store.get(kinds.POD, attachment_pods.name(pod, attachment), pod["metadata"]["namespace"])
        except (NotFound, Forbidden):
            return None

    async def _fresh(self, host: AgentHost, domain: Domain) -> Domain:
        return (await host.hypervisor.domains()).get(domain.uid, domain)

    def forget(self, uid: str) -> None:
        """A VMI is gone."""
        self._unplugging = {key: since for key, since in self._unplugging.items() if key[0] != uid}
        self._patience.forget(uid)


def _keys(planned: DevicePlan) -> list[DeviceKey]:
    refs = [DeviceKey(ref.list, ref.name) for ref in (*planned.waits, *planned.attach)]
    return list(dict.fromkeys([*refs, *(key for key, _ in planned.detach)]))


def _paused(key: DeviceKey) -> PendingDevice:
    return PendingDevice(str(RejectionCode.VM_PAUSED), (
        f"{key.name}: the VM is paused, and its guest neither gets nor releases a device; it is done when the VM is resumed"))


def _pending(codes: list[str], default: RejectionCode, message: str) -> PendingDevice:
    return PendingDevice(codes[0] if codes else str(default), message)


def _carrying(why: Rejection) -> NotReady:
    error = NotReady(render(why))
    error.rejection = why
    return error


def _why(error: OutfitterError, name: str) -> PendingDevice:
    found: Rejection | None = error.rejection
    code = found.code if found is not None else RejectionCode.DEVICE_NOT_PLUGGED
    return PendingDevice(str(code), error.message if name in error.message else f"{name}: {error.message}")
