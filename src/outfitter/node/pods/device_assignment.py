"""Gives a pod the devices of device plugins, at its admission by the agent of a host without a kubelet:

    assign     what is not assigned yet is chosen, ids that are there are kept and checked (`device_admission`); plugins that
               have a preference are asked while the lock is free (`device_preferences`)
    write      into the pod, at the revision that was read (`api.assignment.assigned_devices`)
    observe    the watch update of that write is what goes on: nothing is done for ids that are not in the API
    book       on the host's page, for the pod
    Allocate   once per container and resource; a plugin that does not answer keeps this pod waiting alone
    record     which hardware that is, as far as the answers list it: what others hold is refused
    list       for readers on the node; then PreStartContainer, and the pod is reported as Running

The API is the truth: after a restart a running pod has what its object contains. Called by `OwnPods`, which holds the host's
lock."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api import rejection as rejections
from outfitter.api.assignment import assigned_devices
from outfitter.api.assignment.assigned_devices import ContainerDevices, PodDevices
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.ledger_page.booking import OUT_OF_SERVICE_STATES
from outfitter.api.ledger_page.page import Booking, Page
from outfitter.api.ledger_page.page_entries import raw_entries, read_records
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import render
from outfitter.errors import (
    AlreadyHeld,
    Conflict,
    Invalid,
    NotFound,
    NotReady,
    OutfitterError,
    OutOfService,
    TooLarge,
    Unavailable,
)
from outfitter.ledger import book
from outfitter.ledger.out_of_service import HEALTH
from outfitter.node import claim_hardware
from outfitter.node.agent_host import AgentHost
from outfitter.node.device_manager import allocated_devices, device_admission
from outfitter.node.device_manager.container_edits import ContainerEdits, container_edits
from outfitter.node.device_manager.device_admission import DeviceUse, Preference
from outfitter.node.device_manager.device_manager import DeviceManager
from outfitter.node.pods.device_preferences import DevicePreferences
from outfitter.node.pods.held_devices import HeldDevices, holder_of
from outfitter.node.pods.plugin_calls import RETRY_AFTER, NotYet, PluginCalls, Plugins, plugins_of
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.status_reporter import StatusReporter
from outfitter.store import revision_patch
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.informer import Informer, key_of

log = logging.getLogger(__name__)
WAITS_FOR_PLUGIN = "WaitingForDevicePlugin"  # reason of a pod whose plugin is not there, or does not answer
NO_SOCKETS = "no sockets are served there: the gate DeviceAssignment is off, or outfitter runs without a --kubelet-dir"
WAITS_FOR_PAGE = "WaitingForLedgerPage"  # reason of a pod whose devices do not fit on the host's page
WAITS_FOR_POD = "WaitingForOlderPod"  # reason of a pod whose devices an older one has, which may still be rejected
PRESTART_FAILED = "CreateContainerConfigError"
REJECTED, TOPOLOGY_REJECTED = "UnexpectedAdmissionError", "TopologyAffinityError"
PAGE_AGAIN = 1.0  # seconds until a pod is looked at again whose device was taken out of service meanwhile
EARLIER = 1000  # VMIs whose last devices are remembered
STAGES = ("GetPreferredAllocation", "Allocate", "PreStartContainer")


class DeviceAssignment:
    def __init__(
        self, store: Store, cache: PodCache, report: StatusReporter, *, pages: Informer[Object], clock: Clock, field: bool
    ) -> None:
        """`field`: ids are written into the containers, else into the annotation."""
        self._pages = pages
        self._store, self._cache, self._report, self._clock, self._field = store, cache, report, clock, field
        self._held = HeldDevices(cache.pods)
        self._preferences = DevicePreferences(self._held)
        self.calls = PluginCalls(clock)
        self._ready: set[str] = set()  # pods whose PreStartContainer calls are done
        self._earlier: dict[str, ContainerDevices] = {}  # VMI -> what its launcher had when it ran last
        self._rejected: dict[str, Rejection] = {}  # pods whose rejection is not reported yet
        self._behind: dict[str, set[str]] = {}  # pod that is not decided yet -> keys of younger ones that want its devices

    # -- admission

    async def admit(self, host: AgentHost, pod: Object, *, started: bool) -> NotYet | None:
        """None once the pod has its devices. It may have been rejected instead: then it is reported as Failed. `started`: what
        it runs has been started, and needs nothing of its plugins any more."""
        manager, uid = host.device_manager, pod["metadata"]["uid"]
        if uid in self._held.admitted:
            return None
        if (rejected := self._rejected.get(uid)) is not None:
            return await self._reject(pod, rejected)
        wanted = device_admission.resources_of(pod)
        runs = pod["status"].get("phase") == "Running"
        if manager is None:
            # A launcher finds out by itself that its VM lacks devices, and names the variables in which they would be.
            return await self._without_plugins(host, pod, () if runs or vm.launches(pod) is not None else wanted)
        if not wanted and not runs and (wrong := device_admission.unrequested(pod)) is not None:
            return await self._reject(pod, wrong)
        if not wanted or (runs and (started or allocated_devices.answered(manager.allocations, pod))):
            self._held.admitted.add(uid)
            if wanted:
                manager.known(wanted)
                self.save(host)
            return None
        missing = [name for name in sorted(wanted) if name not in manager.resources or not manager.resources[name].ready]
        if missing:
            self._preferred_by_all(uid)
            return await self._without_plugins(host, pod, missing)
        older = None if allocated_devices.complete(pod) else self._preferences.asked_before(host.name, uid, wanted)
        if older is not None:
            self._behind.setdefault(older, set()).add(key_of(pod))
            return NotYet()
        decided = self._decide(manager, pod, wanted)
        devices = await self._preferred(manager, pod, wanted) if isinstance(decided, Preference) else decided
        if isinstance(devices, NotYet):
            return devices
        self._preferred_by_all(uid)
        if isinstance(devices, Rejection):
            if devices is decided and (older := self._older(manager, pod, wanted)) is not None:
                self._behind.setdefault(older, set()).add(key_of(pod))
                await self._report.waiting(pod, devices, WAITS_FOR_POD)
                return NotYet()
            return await self._reject(pod, devices)
        if not allocated_devices.same(devices, assigned_devices.of_plugins(pod)):
            self._held.reserve(uid, allocated_devices.keys(devices))
            try:
                await revision_patch.patch_at_revision(
                    self._store, kinds.POD, pod, assigned_devices.change(
                        pod, assigned_devices.with_claims(pod, devices), field=self._field))
            except Invalid as error:
                return await self._reject(pod, rejections.of_error(error, RejectionCode.POD_INVALID))
            except OutfitterError:
                self._held.reserve(uid, ())
                raise
            return NotYet()  # the watch update of this write goes on
        return await self._allocated(host, manager, pod, devices)

    async def _without_plugins(self, host: AgentHost, pod: Object, missing: Collection[str]) -> NotYet | None:
        """Nothing on the host gives these resources now. None: the pod does not ask for any."""
        if not missing:
            return None
        resources, manager = tuple(sorted(missing)), host.device_manager
        problems = tuple(map(render, manager.problems(resources))) if manager is not None else (NO_SOCKETS,)
        why = Rejection.of(RejectionCode.DEVICE_PLUGIN_MISSING, resources=resources, host=host.name)
        await self._report.waiting(pod, why.with_detail(problems=problems) if problems else why, WAITS_FOR_PLUGIN)
        return NotYet()

    def _decide(
        self, manager: DeviceManager, pod: Object, wanted: frozenset[str], *, without: Collection[str] = ()
    ) -> PodDevices | Rejection | Preference:
        """`without`: pods whose devices do not count."""
        resources = {name: manager.resources[name] for name in sorted(wanted)}
        try:
            held = self._held.of_others(manager.host, pod, resources, without)
            for booking in self._booked_only(manager.host, pod["metadata"]["uid"]):
                if (resource := booking.device.driver) in held:
                    held[resource] = {booking.device.device: booking.holder, **held[resource]}
            use = DeviceUse(held, self._out_of_service(manager.host, wanted), self._earlier.get(vm.launches(pod) or "", {}))
            steps = device_admission.assign(pod, resources, use, manager.settings)
            return self._preferences.decide(pod["metadata"]["uid"], steps)
        except Invalid as error:
            return rejections.of_error(error, RejectionCode.POD_INVALID)

    def _booked_only(self, host: str, uid: str) -> Sequence[Booking]:
        """What the page has of other pods whose objects do not contain it any more."""
        others = self._held.incomplete - {uid}
        page = self._pages.readable(host) if others else None
        return [booking for booking in Page(page).bookings if booking.holder.uid in others] if page is not None else []

    async def _preferred(self, manager: DeviceManager, pod: Object, wanted: frozenset[str]) -> NotYet | Rejection:
        """What plugins prefer is asked for while the host's lock is free."""
        uid, plugins = pod["metadata"]["uid"], plugins_of(manager.resources, wanted)
        self._preferences.begin(manager.host, uid, wanted)
        failed = await self._stage(pod, "GetPreferredAllocation", plugins, lambda: self._preferences.ask(
            manager, uid, lambda: self._decide(manager, pod, wanted)))
        if failed is None:  # its choice is gone: it is asked again
            return NotYet(0.0)
        if isinstance(failed, NotReady):  # in the plugin's own words
            return Rejection.of(RejectionCode.PLUGIN_CALL_FAILED, message="device plugin GetPreferredAllocation rpc failed "
                                                                          f"with err: {failed.message}")
        if isinstance(failed, NotYet) and self.calls.begun(uid, "GetPreferredAllocation"):
            return failed
        self._preferred_by_all(uid)
        return failed if isinstance(failed, NotYet) else await self._plugin_failed(
            pod, "GetPreferredAllocation", plugins, failed)

    def _preferred_by_all(self, uid: str) -> None:
        """No plugin is asked for a pod now: younger ones that want its resources go on."""
        if self._preferences.end(uid):
            self._decided(uid)

    def _older(self, manager: DeviceManager, pod: Object, wanted: frozenset[str]) -> str | None:
        """Of a pod that is rejected: the older one without whose devices it would not be, and which is not decided yet."""
        undecided = self._held.undecided_before(manager.host, pod["metadata"]["uid"])
        without = self._decide(manager, pod, wanted, without=undecided) if undecided else None
        return undecided[0] if undecided and not isinstance(without, Rejection) else None

    def _out_of_service(self, host: str, wanted: frozenset[str]) -> dict[str, dict[str, Rejection]]:
        """Devices that the host's page keeps out of service. What follows from their health is left to their plugins, which
        know it sooner."""
        out: dict[str, dict[str, Rejection]] = {}
        page = self._pages.get(host)
        for state in OUT_OF_SERVICE_STATES if page is not None else ():
            for record, _ in read_records(page or {}, state)[0] if raw_entries(page, state) else ():
                if record is not None and record.device.driver in wanted and record.origin != HEALTH:
                    out.setdefault(record.device.driver, {}).setdefault(
                        record.device.device, rejections.out_of_service(state, record))
        return out

    async def _reject(self, pod: Object, why: Rejection) -> NotYet:
        """For good: until it is reported, nothing is decided again and no plugin is called again."""
        self._rejected[pod["metadata"]["uid"]] = why
        reason = TOPOLOGY_REJECTED if why.code is RejectionCode.TOPOLOGY_AFFINITY else REJECTED
        await self._report.pod_not_admitted(pod, why, reason)
        self._drop(pod["metadata"]["uid"])
        return NotYet()

    # -- Allocate

    async def _allocated(self, host: AgentHost, manager: DeviceManager, pod: Object, devices: PodDevices) -> NotYet | None:
        uid = pod["metadata"]["uid"]
        self._preferences.drop(uid)
        self.calls.drop(uid, "GetPreferredAllocation")
        self._held.reserve(uid, ())  # its object contains them
        plugins = plugins_of(manager.resources, device_admission.resources_of(pod))
        if not self.calls.begun(uid, "Allocate"):
            try:
                await self._book(host, pod, devices)
            except AlreadyHeld as error:
                return await self._reject(pod, rejections.of_error(error, RejectionCode.PAGE_CONFLICT))
            except OutOfService:
                return NotYet(PAGE_AGAIN)  # the page as it is known then decides
            except TooLarge as error:
                await self._report.waiting(pod, rejections.of_error(error, RejectionCode.PAGE_CONFLICT), WAITS_FOR_PAGE)
                return NotYet(RETRY_AFTER)
        failed = await self._stage(pod, "Allocate", plugins, lambda: self._allocate(manager, pod, devices))
        if isinstance(failed, NotYet):
            return failed
        if isinstance(failed, NotReady):  # in the plugin's own words
            return await self._reject(pod, Rejection.of(RejectionCode.PLUGIN_CALL_FAILED, message=failed.message))
        if failed is not None:  # it is gone, and may come back
            return await self._plugin_failed(pod, "Allocate", plugins, failed)
        try:
            await self._record(host, manager, pod, devices)
        except AlreadyHeld as error:
            return await self._reject(pod, rejections.of_error(error, RejectionCode.PAGE_CONFLICT))
        self._held.admitted.add(uid)
        self._decided(uid)
        self.save(host)
        return None

    def save(self, host: AgentHost) -> None:
        """Write the checkpoint: what admitted pods have."""
        if (manager := host.device_manager) is not None:
            pods = [pod for pod in self._cache.alive(host) if pod["metadata"]["uid"] in self._held.admitted]
            manager.file.save(pods, manager.resources, manager.allocations)

    async def _allocate(self, manager: DeviceManager, pod: Object, devices: PodDevices) -> None:
        """What was answered before, in an earlier process too, is not asked again."""
        for container in assigned_devices.containers(pod):
            for resource, ids in devices.get(container["name"], {}).items():
                plugin, key = manager.resources[resource].plugin, (pod["metadata"]["uid"], container["name"], resource)
                if (known := manager.allocations.get(key)) is not None and known.ids == set(ids) and known.message:
                    continue
                if plugin is None:
                    raise Unavailable(f"the device plugin of {resource} is gone")
                manager.allocations[key] = await manager.answer("Allocate", plugin.allocate(ids))

    async def _book(self, host: AgentHost, pod: Object, devices: PodDevices) -> None:
        """On the same page as the host's own devices."""
        now = rfc3339(self._clock.now())
        keys = {(resource, each): name for name, by_resource in devices.items() for resource, ids in by_resource.items()
                for each in ids}
        bookings = [Booking(DeviceId(resource, host.name, each), holder_of(pod), container, "prepared", now, prepared=now)
                    for (resource, each), container in sorted(keys.items())]
        if (seen := self._pages.readable(host.name)) is not None:
            with contextlib.suppress(AlreadyHeld, Conflict, NotFound):  # what was seen may be out of date
                await self._book_on(Page(seen, stored=True), pod, bookings)
                return
        await self._book_on(await book.read(self._store, host.name), pod, bookings)

    async def _book_on(self, page: Page, pod: Object, bookings: Sequence[Booking]) -> None:
        known = {booking.device for booking in page.of(pod["metadata"]["uid"])}
        if missing := [booking for booking in bookings if booking.device not in known]:
            await book.book(self._store, page.host, missing, known=page)

    async def _record(self, host: AgentHost, manager: DeviceManager, pod: Object, devices: PodDevices) -> None:
        """Record the hardware that the plugins' answers list. AlreadyHeld: a claim or another pod has it, under another
        name."""
        hardware = allocated_devices.hardware(manager.allocations, host.name, pod, devices)
        if hardware:
            page = await book.read(self._store, host.name)
            others = {booking.device for booking in page.bookings
                      if booking.counted and not booking.hardware and booking.device not in hardware}
            hardware |= await claim_hardware.hardware(self._store, host, others)
            await book.set_state(self._store, host.name, pod["metadata"]["uid"], "prepared", now=rfc3339(self._clock.now()),
                                 hardware=hardware, known=page)

    def launcher_edits(self, host: AgentHost, pod: Object) -> ContainerEdits:
        """What the launcher of a VM gets of its device plugins. StartFailed: something that they name is not there."""
        manager, uid = host.device_manager, pod["metadata"]["uid"]
        answers = [answer for key, answer in sorted(manager.allocations.items())
                   if key[:2] == (uid, vm.CONTAINER)] if manager is not None else []
        cdi = host.env.cdi if host.env is not None else None
        return container_edits(answers, cdi, simulated=host.simulated) if answers else ContainerEdits()

    # -- start

    async def prestart(self, host: AgentHost, pod: Object) -> NotYet | None:
        """Before the containers start: PreStartContainer of the plugins that ask for it. None once that is done."""
        manager, uid = host.device_manager, pod["metadata"]["uid"]
        if manager is None or uid in self._ready:
            return None
        calls = [(resource, ids) for container in assigned_devices.containers(pod)
                 for resource, ids in assigned_devices.readable_of_plugins(pod).get(container["name"], {}).items()
                 if resource in manager.resources and manager.resources[resource].options.prestart]
        if not calls:
            self._ready.add(uid)
            return None
        plugins = plugins_of(manager.resources, {resource for resource, _ in calls})
        failed = await self._stage(pod, "PreStartContainer", plugins, lambda: self._prestart(manager, calls))
        if isinstance(failed, NotYet):
            return failed
        if failed is not None:
            return await self._plugin_failed(pod, "PreStartContainer", plugins, failed, PRESTART_FAILED)
        self._ready.add(uid)
        return None

    async def _prestart(self, manager: DeviceManager, calls: Sequence[tuple[str, Sequence[str]]]) -> None:
        for resource, ids in calls:
            plugin = manager.resources[resource].plugin
            if plugin is None:
                raise Unavailable(f"the device plugin of {resource} is gone")
            await manager.answer("PreStartContainer", plugin.prestart(ids))

    def statuses(self, host: AgentHost, pod: Object) -> Mapping[str, Sequence[Object]]:
        """Container -> its allocatedResourcesStatus."""
        return allocated_devices.statuses(host.device_manager.resources, pod) if host.device_manager is not None else {}

    # -- calls that may take long

    async def _stage(
        self, pod: Object, method: str, plugins: Plugins, begin: Callable[[], Coroutine[Any, Any, None]]
    ) -> NotYet | OutfitterError | None:
        """Make the calls of one stage; a plugin that does not answer is reported."""
        made = self.calls.make(pod, method, plugins, begin)
        if isinstance(made, NotYet) and made.unanswered:
            why = Rejection.of(RejectionCode.PLUGIN_CALL_FAILED, message=f"{method}: the device plugin has not answered yet")
            await self._report.waiting(pod, why, WAITS_FOR_PLUGIN)
        return made

    async def _plugin_failed(
        self, pod: Object, method: str, plugins: Plugins, error: OutfitterError, reason: str = WAITS_FOR_PLUGIN
    ) -> NotYet:
        why = Rejection.of(RejectionCode.PLUGIN_CALL_FAILED, message=f"{method}: {error.message}")
        await self._report.waiting(pod, why, reason)
        return self.calls.failed(pod["metadata"]["uid"], method, plugins)

    # -- the end

    def _drop(self, uid: str) -> None:
        self._preferences.drop(uid)
        self._rejected.pop(uid, None)
        self._held.reserve(uid, ())
        self._held.admitted.discard(uid)
        self._ready.discard(uid)
        self._decided(uid)
        for method in STAGES:
            self.calls.drop(uid, method)

    def _decided(self, uid: str) -> None:
        for key in self._behind.pop(uid, ()):
            self.calls.wake(key)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._drop(uid)

    async def release(self, host: AgentHost, pod: Object) -> None:
        """A pod has ended: others may get its devices."""
        self._drop(pod["metadata"]["uid"])
        if (vmi := vm.launches(pod)) is not None and (devices := assigned_devices.readable_of_plugins(pod).get(vm.CONTAINER)):
            self._earlier.pop(vmi, None)
            self._earlier[vmi] = devices
            while len(self._earlier) > EARLIER:
                self._earlier.pop(next(iter(self._earlier)))
        if host.device_manager is not None and device_admission.resources_of(pod):
            host.device_manager.forget(pod["metadata"]["uid"])
            await self._release(host, {pod["metadata"]["uid"]})
            self.save(host)

    async def release_unused(self, host: AgentHost, pods: Sequence[Object], page: Page) -> None:
        """Release what is booked on the host's page for pods that are not among these."""
        alive = {pod["metadata"]["uid"] for pod in pods}
        gone = {booking.holder.uid for booking in page.bookings if booking.holder.kind == kinds.POD.kind} - alive
        if gone:
            await self._release(host, gone)

    async def _release(self, host: AgentHost, uids: set[str]) -> None:
        page = await book.read(self._store, host.name)
        for uid in sorted(uids & {booking.holder.uid for booking in page.bookings}):
            await book.release(self._store, host.name, uid)
