"""Writes `status.deviceStatus` of a VMI: which devices it has, from its pod, the pod's claims and the drivers' slices.

Driven by watch updates of all of them. `decide` holds every rule and is pure; the controller reads the cache and writes one
patch. The status is written once, when everything is known, so that a VMI costs one patch. A VMI that waits costs one more: the
claims that it waits for, and the reason in the condition DevicesReady. Another reason is reported once it has held for a while:
reasons that pass on the way to the devices cost nothing. Condition LiveMigratable of a VMI with claims is written with them,
and again when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.device import DeviceId, flag_attribute, left_the_bus
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import (
    attachment_pods,
    device_refs,
    device_status,
    kubevirt_config,
    live_migratable,
    lost_devices,
    migration,
    network_info,
    pod_claims,
    reattached_devices,
    vm,
)
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.kubevirt.lost_devices import Published
from outfitter.api.rejection_text import render
from outfitter.controllers import launcher_resources
from outfitter.controllers.device_lookup import DeviceLookup
from outfitter.controllers.device_status_entries import Find, FoundDevices, find_devices, network_entries
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.plugged_devices import plugged_devices, running_interfaces, until_migrated
from outfitter.controllers.vmi import LauncherPods, instance_of
from outfitter.scheduling import device_migration
from outfitter.scheduling.device_migration import LIVE_MIGRATABLE, SourceView
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

READY = "DevicesReady"
KNOWN = "DevicesKnown"
WAITING = "WaitingForDevices"
LOST = frozenset(map(str, lost_devices.CODES))
FIRST_REPORT = timedelta(seconds=10)  # until a reason is reported that no scheduler reports: a busy cluster needs that long
REPORT_AFTER = timedelta(seconds=2)  # until one is reported that replaces another one
LISTS = (*device_status.STATUS_LISTS.values(), network_info.STATUSES)


@dataclass(frozen=True, slots=True)
class PendingReason:
    """A reason to wait that is not reported yet, and since when it holds."""

    missing: tuple[str, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Everything that a decision about a VMI's device status depends on."""

    pod: Object
    claims: device_refs.Claims
    find: Find
    published: Published  # a device of a running VMI, as its driver publishes it now
    gates: Gates
    now: datetime
    timestamp: str  # the same moment as conditions have it
    pending: PendingReason | None = None
    attached: tuple[Object, ...] = ()  # attachment pods, which hold what was plugged
    in_place: bool = False  # its host plugs devices into running VMs

    @property
    def closed(self) -> list[device_refs.List]:
        """Lists whose feature gate is closed."""
        return [list_ for list_, gate in launcher_resources.GATES.items() if not self.gates.open(gate)]


@dataclass(frozen=True, slots=True)
class DeviceStatusEvent:
    reason: str
    message: str
    warning: bool = True


@dataclass(frozen=True, slots=True)
class StatusChange:
    """What to do about a VMI's device status; empty: nothing."""

    status: Object | None = None  # fields to merge into status
    event: DeviceStatusEvent | None = None
    requeue: float | None = None  # seconds
    pending: PendingReason | None = None


NO_CHANGE = StatusChange()


def decide(vmi: Object, view: DeviceView) -> StatusChange:
    """Every rule about a VMI's device status. `vmi` is not changed."""
    return _with_live_migratable(vmi, view, _devices_changed(vmi, view))


def _devices_changed(vmi: Object, view: DeviceView) -> StatusChange:
    pod, status = view.pod, vmi.get("status") or {}
    if arrived := _arrived(vmi, pod):
        return StatusChange(arrived)
    interfaces = network_entries(vmi, pod, view.claims, view.find, view.attached)
    if status.get("phase") == "Running" and (_were_known(vmi) or not device_status.missing_devices(
            attachment_pods.without_plugged(vmi, pod))):
        return _with_lost_devices(vmi, view, _running_changed(vmi, view, interfaces))  # what is assigned stays assigned
    if _is_current(vmi, view):
        return _interfaces_changed(status, interfaces)
    record = vm.flavored(vmi)
    flavor_claim = view.claims(vmi["metadata"]["namespace"], record["claimName"]) if record.get("claimName") else None
    if cells := pod_claims.cells_of(flavor_claim or {}):
        record = {**record, **cells}
        vmi = {**vmi, "status": {**status, "flavor": record}}
    found = find_devices(vmi, pod, view.claims, view.find, view.closed)
    of_earlier_pod = conditions.is_true(vmi, READY) or _names_other_claims(vmi, pod)
    if (later := _report_later(vmi, found, view, of_earlier_pod=of_earlier_pod)) is not None:
        return later
    change: Object = {"conditions": _conditions(vmi, found, view.timestamp)}
    if of_earlier_pod or not (found.missing and found.unnamed):
        change["deviceStatus"] = {**(found.status or {}), **({network_info.STATUSES: interfaces} if interfaces else {})} or None
    if cells:
        change["flavor"] = record
    if all(status.get(field) == value for field, value in change.items()):
        return NO_CHANGE
    if change.get("deviceStatus") is not None:  # a merge patch would keep a list that it does not name
        change["deviceStatus"] = {**dict.fromkeys(LISTS), **change["deviceStatus"]}
    reported = found.missing and pod["spec"].get("nodeName")
    return StatusChange(change, DeviceStatusEvent(WAITING, _message(found)) if reported else None)


def _arrived(vmi: Object, pod: Object) -> Object | None:
    """The status of a VMI that a migration brought into this pod, by an agent that does not swap its devices in itself."""
    record = migration.state(vmi)
    if not record.get("completed") or record.get("failed") or record.get("targetPod") != pod["metadata"]["name"] or (
            vmi["status"].get("nodeName") != pod["spec"].get("nodeName") or not _names_other_claims(vmi, pod)):
        return None
    return migration.arrived_devices(vmi)


def _with_live_migratable(vmi: Object, view: DeviceView, change: StatusChange) -> StatusChange:
    """Also whether a VMI with claims can migrate, once its devices are known."""
    status = {**(vmi.get("status") or {}), **(change.status or {})}
    known = status.get("phase") == "Running" or (change.status is not None and conditions.is_true({"status": status}, READY))
    if not live_migratable.depends_on_claims(vmi) or not known or migration.under_way(vmi):
        return change
    devices = device_migration.device_migrations(vmi, SourceView(
        attachment_pods.with_claims(view.pod, view.attached), view.claims, view.find, view.gates, view.in_place))
    leaving = dict.fromkeys(str(entry.get("name")) for entry in attachment_pods.leaving(vmi))
    unplugging = [f"{name} is being unplugged" for name in leaving]
    wanted = live_migratable.live_migratable(vmi, [
        *(one.reason for one in device_migration.blocking(devices)), *unplugging])
    fresh = conditions.with_condition(status.get("conditions"), wanted, view.timestamp)
    return change if fresh == status.get("conditions") else replace(
        change, status={**(change.status or {}), "conditions": fresh})


def _is_current(vmi: Object, view: DeviceView) -> bool:
    """Whether the status contains what the pod's claims have, where it is published now. A device that is no longer published
    keeps its entry."""
    if device_status.unsettled_devices(vmi, view.pod, view.claims):
        return False
    found = find_devices(vmi, view.pod, view.claims, view.find, view.closed)
    return bool(found.missing) or _places(found.status) == _places((vmi.get("status") or {}).get("deviceStatus"))


def _were_known(vmi: Object) -> bool:
    """Whether a VMI was started with its devices."""
    ready = conditions.find(vmi, READY) or {}
    return ready.get("status") == "True" or ready.get("reason") in LOST


def _running_changed(vmi: Object, view: DeviceView, interfaces: list[Object]) -> StatusChange:
    """VFs and devices that were plugged and unplugged since the VMI was started."""
    pods = (view.pod, *view.attached)
    change = _interfaces_changed(vmi["status"], running_interfaces(vmi, pods, interfaces))
    if migration.under_way(vmi):
        waits = until_migrated(vmi, view.timestamp)
        return change if waits is None else replace(change, status={**(change.status or {}), "conditions": waits})
    plugged, unpublished = plugged_devices(vmi, pods, view.claims, view.find, view.closed)
    if plugged:
        lists = {**((change.status or {}).get("deviceStatus") or {}), **plugged}
        ready = {} if conditions.find(vmi, READY) is not None else {"conditions": conditions.with_condition(
            vmi["status"].get("conditions"), Condition(READY, True, KNOWN), view.timestamp)}
        change = StatusChange({"deviceStatus": lists, **ready})
    return replace(change, requeue=REPORT_AFTER.total_seconds()) if unpublished else change


def _interfaces_changed(status: Object, interfaces: list[Object]) -> StatusChange:
    have = (status.get("deviceStatus") or {}).get(network_info.STATUSES) or []
    if interfaces == have:
        return NO_CHANGE
    return StatusChange({"deviceStatus": {network_info.STATUSES: interfaces or None}})


def _with_lost_devices(vmi: Object, view: DeviceView, change: StatusChange) -> StatusChange:
    """Also what a running VMI has lost, or has again. Its entries stay: what is assigned stays assigned. A loss is reported
    once it has held for a while: a driver that starts again publishes its devices in between."""
    ready, lost = conditions.find(vmi, READY), lost_devices.lost_devices(vmi, view.published)
    if ready is None:
        return change
    messages = tuple(f"{device.name}: {render(device.rejection)}" for device in lost)
    if lost:
        wanted = Condition(READY, False, str(lost[0].rejection.code), "; ".join(messages))
        if (ready.get("status"), ready.get("reason"), ready.get("message")) == ("False", wanted.reason, wanted.message):
            return change
        pending, left = _pending(view, messages)
        if left > timedelta():
            return replace(change, requeue=left.total_seconds(), pending=pending)
        event = DeviceStatusEvent(wanted.reason, wanted.message)
    elif ready.get("status") == "False" and ready.get("reason") in LOST:
        wanted = Condition(READY, True, KNOWN)
        event = DeviceStatusEvent(KNOWN, "its devices are there again", warning=False)
    else:
        return change
    have = vmi["status"].get("conditions")
    return replace(change, event=event, status={
        **(change.status or {}), "conditions": conditions.with_condition(have, wanted, view.timestamp)})


def _pending(view: DeviceView, messages: tuple[str, ...]) -> tuple[PendingReason, timedelta]:
    """Since when these messages hold, and how long until they are reported."""
    same = view.pending is not None and view.pending.missing == messages
    pending = view.pending if same and view.pending is not None else PendingReason(messages, view.now)
    return pending, pending.since + REPORT_AFTER - view.now


def _report_later(vmi: Object, found: FoundDevices, view: DeviceView, *, of_earlier_pod: bool) -> StatusChange | None:
    """Nothing to report now, or None: report it."""
    pod, scheduled = view.pod, conditions.find(view.pod, "PodScheduled") is not None
    waits = not pod["spec"].get("nodeName")
    if waits and found.unnamed and not of_earlier_pod and scheduled:
        return NO_CHANGE  # the pod's condition reports what it waits for
    if (waits and not scheduled) or (found.gated and found.status is None):
        # A scheduler may skip a pod whose claims do not exist, without a word. A feature gate may be opened.
        age = view.now - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
        if not found.missing or age < FIRST_REPORT:
            return StatusChange(requeue=(FIRST_REPORT - age).total_seconds()) if found.missing else NO_CHANGE
    if found.missing and _reports_another(vmi, found):
        pending, left = _pending(view, found.missing)
        if left > timedelta():
            return StatusChange(requeue=left.total_seconds(), pending=pending)
    return None


def _conditions(vmi: Object, found: FoundDevices, timestamp: str) -> list[Object]:
    have = (vmi.get("status") or {}).get("conditions")
    if not found.missing and found.status is None and not vm.flavored(vmi):
        return conditions.without_condition(have, READY)  # an earlier pod had devices, this one has no claim
    ready = Condition(READY, True, KNOWN) if not found.missing else Condition(READY, False, WAITING, _message(found))
    return conditions.with_condition(have, ready, timestamp)


def _reports_another(vmi: Object, found: FoundDevices) -> bool:
    """Whether the condition contains another reason to wait than there is now."""
    ready = conditions.find(vmi, READY)
    return ready is not None and ready.get("status") == "False" and ready.get("message") != _message(found)


def _message(found: FoundDevices) -> str:
    return "; ".join(found.missing)


def _names_other_claims(vmi: Object, pod: Object) -> bool:
    """Whether the status has a device of a claim that neither the pod nor an attachment pod of it uses."""
    used = {name for _, name in pod_claims.claim_names(pod)}
    return any((entry.get("deviceResourceClaimStatus") or {}).get("resourceClaimName") not in used
               and not attachment_pods.is_plugged_into(pod, entry)
               for list_ in device_refs.LISTS for entry in device_status.statuses(vmi, list_))


def _places(status: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """The addresses in a device status, by list, independent of the order of several entries of one name."""

    def place(entry: Mapping[str, Any]) -> tuple[str, ...]:
        attributes = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
        return str(entry.get("name")), *(device_status.address_of(entry) or ()), str(attributes.get("pciAddress"))

    return {list_: sorted(map(place, entries)) for list_ in device_status.STATUS_LISTS.values()
            if (entries := (status or {}).get(list_))}


def _pool(driver: str, pool: str) -> str:
    return f"{driver}\x00{pool}"


def _pools(claim: Object) -> set[str]:
    """The pools of a claim's allocation."""
    return {_pool(result["driver"], result["pool"]) for result in pod_claims.allocation_results(claim)}


def _allocated(claim: Object) -> list[str]:
    results = pod_claims.allocation_results(claim)
    return [str(DeviceId(result["driver"], result["pool"], result["device"])) for result in results]


def _before_start(vmi: Object) -> list[str]:
    """Of interest to an index: VMIs whose devices are not known, or that have not started with them."""
    return [""] if conditions.find(vmi, READY) is not None and (
        not conditions.is_true(vmi, READY) or vmi["status"].get("phase") in vm.BEFORE) else []


def _running_with(vmi: Object) -> list[str]:
    return [str(device) for device in lost_devices.devices_of(vmi)] if (
        vmi.get("status") or {}).get("phase") == "Running" else []


def _listed(part: Object | None) -> set[tuple[DeviceId, bool, bool]]:
    """The devices of a slice, each with whether it left the bus, and whether it is marked as live migratable."""
    spec = part["spec"] if part is not None else {}
    return {(DeviceId(spec["driver"], spec["pool"]["name"], device["name"]), left_the_bus(device),
             flag_attribute(device, spec["driver"], LIVE_MIGRATABLE)) for device in spec.get("devices") or ()}


def _read_of_pod(pod: Object) -> tuple[object, ...]:
    """What `decide` and `LauncherPods` depend on: not whether its containers run."""
    meta, status = pod["metadata"], pod.get("status") or {}
    return (meta["uid"], meta.get("annotations"), meta.get("labels"), meta.get("ownerReferences"), pod["spec"],
            status.get("resourceClaimStatuses"), status.get("extendedResourceClaimStatus"),
            conditions.find(pod, "PodScheduled") is None)


def _read_of_claim(claim: Object) -> tuple[object, ...]:
    return claim["metadata"]["uid"], claim["spec"], claim.get("status")


class DeviceStatus:
    """The controller: reads the cache, calls `decide`, writes one patch."""

    name = "device_status"
    kind = kinds.VMI  # of its keys

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._instances = context.informer(kinds.VMI)
        self.queue = WorkQueue(context.clock, age=self._instances.age)
        self._pods = context.informer(kinds.POD)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._published = DeviceLookup(context)
        self._kubevirts = context.informer(kinds.KUBEVIRT)
        self._launchers = LauncherPods(self._pods)
        self._pending: dict[str, PendingReason] = {}
        self._pods.add_index("claim", pod_claims.claim_keys)
        self._pods.add_index("launcher", lambda pod: [attachment_pods.launcher_uid(pod) or ""])
        enqueue_on_change(self._instances, self.queue, self._in_a_pod)
        enqueue_on_change(self._pods, self.queue, self._of_pod, reads=_read_of_pod)
        enqueue_on_change(self._claims, self.queue, self._of_claim, reads=_read_of_claim)
        self._claims.add_index("pool", _pools)
        self._claims.add_index("device", _allocated)
        self._instances.add_index("before its start", _before_start)
        enqueue_on_change(self._published.slices, self.queue, self._of_slice)
        enqueue_on_change(self._kubevirts, self.queue, self._waiting)
        self._instances.add_index("device", _running_with)
        self._published.slices.on_change(self._republished)
        self._published.nodes.on_change(self._labelled)

    def _in_a_pod(self, instance: Object) -> list[str]:
        """Before a VMI has a pod there is nothing to report; a pod that is created is a watch update itself."""
        return [key_of(instance)] if self._launchers.readable(instance) else []

    def _of_claim(self, claim: Object) -> list[str]:
        key = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        return [instance for pod in self._pods.by("claim", key) for instance in self._of_pod(pod)]

    def _of_pod(self, pod: Object) -> list[str]:
        """The VMI of a launcher pod or of an attachment pod."""
        if attachment_pods.launcher_uid(pod) is None:
            return instance_of(pod)
        owner = vm.owner(pod, kinds.POD.kind) or {}
        launcher = self._pods.readable(f"{pod['metadata']['namespace']}/{owner.get('name')}")
        return instance_of(launcher) if launcher is not None else []

    def _waiting(self, _: Object) -> list[str]:
        """A feature gate or the labels of a host can only matter to VMIs that have not started yet."""
        return [key_of(instance) for instance in self._instances.by("before its start", "")]

    def _of_slice(self, part: Object) -> list[str]:
        """Those of them that have a claim with an allocation in the slice's pool."""
        claims = self._claims.by("pool", _pool(part["spec"]["driver"], part["spec"]["pool"]["name"]))
        keys = dict.fromkeys(key for claim in claims for key in self._of_claim(claim))
        return [key for key in keys if (vmi := self._instances.readable(key)) is not None and _before_start(vmi)]

    def _republished(self, old: Object | None, new: Object | None) -> None:
        """Devices appeared in a slice, or disappeared from it, left the bus, or may travel now: of interest to running VMIs
        that have them, by their status, or by a claim where their status has no driver and pool."""
        for device, *_ in _listed(old) ^ _listed(new):
            for key in (*map(key_of, self._instances.by("device", str(device))),
                        *(key for claim in self._claims.by("device", str(device)) for key in self._of_claim(claim))):
                self.queue.add(key)

    def _labelled(self, old: Object | None, new: Object | None) -> None:
        """A host can reach other devices once it has other labels, or plugs devices into running VMs; its other updates, which
        are many, do not matter."""
        if new is not None and (old is None or old["metadata"].get("labels") != new["metadata"].get("labels")):
            for key in self._waiting(new):
                self.queue.add(key)
            if attachment_pods.plugs_in_place(old) != attachment_pods.plugs_in_place(new):
                for vmi in self._instances.items():
                    if (vmi.get("status") or {}).get("nodeName") == new["metadata"]["name"] and (
                            reattached_devices.declared(vmi["metadata"]) is not None):
                        self.queue.add(key_of(vmi))

    async def reconcile(self, key: str) -> float | None:
        pending = self._pending.pop(key, None)
        vmi = self._instances.get(key)
        if vmi is None or vmi["metadata"].get("deletionTimestamp") or (vmi.get("status") or {}).get("phase") in vm.FINAL:
            return None
        pod = self._launchers.current(vmi)
        if pod is None:
            return None
        host = str(pod["spec"].get("nodeName") or "")
        change = decide(vmi, DeviceView(
            pod, self._claim, self._published.find, lambda device: self._published.published(device, host), self._gates(),
            self._context.clock.now(), self._context.now(), pending,
            tuple(self._pods.by("launcher", pod["metadata"]["uid"])),
            attachment_pods.plugs_in_place(self._published.nodes.readable(host))))
        if change.status is not None:
            await self._context.patch_status(kinds.VMI, vmi, change.status)
        if (event := change.event) is not None:
            await (self._context.events.warning if event.warning else self._context.events.normal)(
                vmi, event.reason, event.message)
        if change.pending is not None:
            self._pending[key] = change.pending
        return change.requeue

    def _gates(self) -> Gates:
        return kubevirt_config.read_config(kubevirt_config.active_kubevirt(self._kubevirts.items())).gates

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")
