"""Audits hosts: compares what a host has with its page and with what its VMs hold, heals the page and has the result published.

At start every host is read before anything is written. A host that must not start with its configuration is refused: what it
published stays, its Node is not ready and says why, its VMs can be stopped and none starts; it starts at the first audit that
finds nothing wrong. With the only host refused, the process must not start. Later the same finding is a warning, and the host
goes on as it is. A host is audited again when its page or its slices were changed by others, and a real or refused one from
time to time. Slices that others changed are first published again as they were, which needs neither host nor hypervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api import kinds, providers
from outfitter.api.device import DeviceId, hardware_key
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.ledger_page.page import Booking, Holder, Page
from outfitter.api.ledger_page.page_entries import changed_bookings, well_formed
from outfitter.api.providers import Provider
from outfitter.errors import HypervisorError, Invalid, NotFound, OutfitterError, StartupRefused, Unreadable
from outfitter.inventory import host_devices, numa_cells, scan, slices
from outfitter.inventory import providers as provider_tree
from outfitter.inventory.config import UnhealthyDevice
from outfitter.inventory.host_devices import HostDevices
from outfitter.inventory.numa_cells import HostCell
from outfitter.inventory.scan import Scan
from outfitter.inventory.simulation import driver_profile
from outfitter.ledger import book, heal, history, out_of_service
from outfitter.ledger.heal import AttachedDevice
from outfitter.node import networks, node_status, slice_repair
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import passthrough_device
from outfitter.node.devices.passthrough_device import PassthroughDevice
from outfitter.node.slice_publisher import HostPublication, SlicePublisher, StoredHost
from outfitter.node.slice_repair import RepairBackoff, SliceFinding
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.events.event_recorder import EventRecorder
from outfitter.store.informer import Informer
from outfitter.store.readable_store import ReadableStore
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
AT_ONCE = 64  # hosts that are written at the same time, so that their writes share syncs
EXPIRE = "history|"  # the key under which old history is deleted
EXPIRE_EVERY = 3600.0
EXPIRE_AFTER = history.MOST // 5  # ended bookings after which that is done before its time
RELEASED_AFTER = 1.0  # seconds from the release of a device that is only kept until its removal: others may follow it
KEPT_BECAUSE = {"unlisted": "no longer listed in device_spec", "vanished": "no longer on the bus"}


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Everything that is to be written for a host."""

    devices: HostDevices
    healed: heal.HealedPage
    attached: tuple[AttachedDevice, ...]  # what VMs really have
    groups: Mapping[DeviceId, str]  # device -> the provider on which it is counted
    plan: provider_tree.Plan
    warnings: tuple[str, ...]
    cells: tuple[HostCell, ...]
    targets: Mapping[str, PassthroughDevice]  # name -> how it is prepared
    iommu_groups: Mapping[str, frozenset[str]]  # address -> the addresses of its group, where it has several
    bridges: tuple[str, ...]  # to which network interfaces of VMs can be attached


class HostAudit:
    name = "host_audit"

    def __init__(
        self, store: Store, hosts: Sequence[AgentHost], *, clock: Clock, pages: Informer[Object],
        slices: Informer[Object] | None = None, events: EventRecorder | None = None,
        begin: Callable[[AgentHost], Awaitable[None]] | None = None,
    ) -> None:
        """`begin`: what a host does before its first audit, and again when it was refused."""
        self._store: Store = ReadableStore(store)
        self._clock, self._begin, self._events = clock, begin, events
        self._publisher = SlicePublisher(store, slices)
        self.repairs: Counter[tuple[str, str]] = Counter()  # (host, code) -> how often its slices were published again
        self._backoff: dict[str, RepairBackoff] = defaultdict(RepairBackoff)
        self.hosts = {host.name: host for host in hosts}
        self.queue = WorkQueue(clock)
        self._logged: dict[str, set[str]] = defaultdict(set)  # host -> warnings that were logged
        self._kept: dict[str, frozenset[str]] = {}  # host -> devices that only stay until they are free, and those beside them
        self.wake_holders: Callable[[str, Collection[DeviceId]], None] = lambda host, devices: None  # set by the agent
        self._ended = 0  # bookings, since history was last expired for their number
        pages.on_change(self._page_changed)
        if slices is not None:
            slices.on_change(self._slice_changed)

    # -- when

    async def start(self) -> int:
        """Audit all hosts: how many devices they offer. StartupRefused, with nothing written, when the only host must not start
        or none may and none holds a device: names every host, and why."""
        # The agent of a node of a cluster reads nothing of other nodes; slices of others in its pool are found by the watch.
        [alone] = self.hosts if len(self.hosts) == 1 and all(host.kubelet for host in self.hosts.values()) else [None]
        stored = await self._publisher.read(self.hosts.values(), alone)
        results: dict[str, AuditResult] = {}
        for host in self.hosts.values():
            if (found := stored[host.name].unreadable) is not None:
                host.refusal = found.error()
            if host.refusal is not None or (host.settings.device_spec is None and stored[host.name].tree is None):
                continue  # it was refused before, or nothing is configured that could be wrong
            try:
                results[host.name] = await self._compare(host, stored[host.name])
            except (StartupRefused, HypervisorError, Invalid) as error:
                host.refusal = _refusal(host, error)
            await asyncio.sleep(0)
        refused = [host for host in self.hosts.values() if host.refusal is not None]
        # An object that cannot be read can only be repaired while the API server runs.
        refused = [] if any(isinstance(host.refusal, Unreadable) for host in refused) else refused
        serves = any(stored[host.name].page.bookings for host in refused)
        if refused and len(refused) == len(self.hosts) and (len(refused) == 1 or not serves):
            raise _refused_start(refused)
        turns = asyncio.Semaphore(AT_ONCE)

        async def write(host: AgentHost) -> int:
            async with turns:
                have = stored.pop(host.name)
                if host.refusal is not None:
                    await self._refuse(host, host.refusal)
                    return 0
                result = results.pop(host.name, None) or await self._compare(host, have)
                try:
                    await self._write(host, have, result)
                except Unreadable as error:  # its Node
                    await self._refuse(host, error)
                    return 0
                return len(result.devices.offered)

        offered = sum(await asyncio.gather(*(write(host) for host in self.hosts.values())))
        for host in self.hosts.values():
            if (later := _audited_after(host)) is not None:
                self.queue.add_after(host.name, later)
        self.queue.add_after(EXPIRE, EXPIRE_EVERY)
        return offered

    async def audit(self, name: str) -> None:
        """Audit one host again. What would refuse a start is logged, and everything stays as it is. A refused host for which
        nothing is wrong any more starts."""
        host = self.hosts[name]
        async with host.lock:
            stored = (await self._publisher.read(self.hosts.values(), name))[name]
            if findings := await self._publisher.restore(host, stored):
                await self._report_repair(host, findings)
                stored = (await self._publisher.read(self.hosts.values(), name))[name]
            try:
                if stored.unreadable is not None:
                    raise stored.unreadable.error()
                if host.refusal is not None and self._begin is not None:
                    await self._begin(host)
                result = await self._compare(host, stored)
            except (StartupRefused, HypervisorError, Invalid, Unreadable) as error:
                if host.refusal is None:
                    self._warn(host, [error.message])
                else:
                    await self._refuse(host, _refusal(host, error))
                return
            if host.refusal is not None:
                host.refusal = None
                log.warning("%s: starts now; what kept it from starting is gone", name)
            await self._write(host, stored, result)

    async def _refuse(self, host: AgentHost, why: OutfitterError) -> None:
        """The host is not ready, and says why."""
        host.refusal = why
        self._warn(host, [why.message])
        with contextlib.suppress(Unreadable):  # its Node, which is skipped by the scheduler
            await node_status.refuse(self._store, host, why.message, self._now())

    async def reconcile(self, key: str) -> float | None:
        if key == EXPIRE:
            keep = max((host.settings.history_keep for host in self.hosts.values()), default=None)
            if keep is not None:
                alone = next(iter(self.hosts)) if len(self.hosts) == 1 else ""  # in a cluster each agent expires its own
                await history.expire(self._store, self._now(), keep, host=alone)
            return EXPIRE_EVERY
        await self.audit(key)
        return _audited_after(self.hosts[key])

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """A device was reserved, quarantined, cleaned or contested, one that only stays until it is free was released, or what
        is used of its provider changed, on which the provider's total depends; or a device of a refused host was released; or
        something that is prepared is missing: in a cluster a page can be edited by hand."""
        name = (new or old or {})["metadata"]["name"]
        if name not in self.hosts:
            return
        gone, added = changed_bookings(old, new)
        self._ended += max(0, len(gone) - len(added))
        if self._ended >= EXPIRE_AFTER:
            self._ended = 0
            self.queue.add(EXPIRE)
        if _out_of_service(old) != _out_of_service(new) or _contested(old) != _contested(new) or _lost_prepared(gone, added):
            self.queue.add(name)
        elif self._kept_changed(name, old, new) or (self.hosts[name].refusal is not None and _booked(old) != _booked(new)):
            self.queue.add_after(name, RELEASED_AFTER)

    def _slice_changed(self, old: Object | None, new: Object | None) -> None:
        """A slice of a host was changed, deleted or added by another writer. While that goes on, repairs wait longer each
        time."""
        places = {place for part in (old, new) if part is not None for place in slice_repair.places(part)}
        for name in sorted(places & self.hosts.keys()):
            if self._publisher.concerns(self.hosts[name], old, new):
                delay = self._backoff[name].delay(self._clock.monotonic())
                if delay:
                    self.queue.add_after(name, delay)
                else:
                    self.queue.add(name)

    async def _report_repair(self, host: AgentHost, findings: Sequence[SliceFinding]) -> None:
        """Log, count and record what other writers did to a host's slices."""
        now = self._clock.monotonic()
        self._backoff[host.name].repaired(now)
        delay = self._backoff[host.name].delay(now)
        again = f"; the next repair is not before {delay:.0f} s from now" if self._backoff[host.name].repairs > 1 else ""
        for code, text in slice_repair.codes(findings).items():
            log.warning("%s: %s: %s%s", host.name, code, text, again)
            self.repairs[host.name, code] += 1
            if self._events is not None:
                await self._events.warning(await self._store.get(kinds.NODE, host.name), code, text)

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        """The Node of a host was deleted while it is served: the audit creates it again."""
        if old is not None and new is None and old["metadata"]["name"] in self.hosts:
            self.queue.add(old["metadata"]["name"])

    def _kept_changed(self, name: str, old: Object | None, new: Object | None) -> bool:
        kept = self._kept.get(name, frozenset())
        return bool(kept) and _booked(old) & kept != _booked(new) & kept

    # -- comparing

    async def _compare(self, host: AgentHost, stored: StoredHost) -> AuditResult:
        # A real tree is read in a thread. A simulated one is fast, and its order of events stays the same without.
        found, cells, bridges = _read(host) if host.simulated else await asyncio.to_thread(_read, host)
        domains = (await host.hypervisor.domains()).values()
        running = {source for domain in domains for source in domain.devices}
        held = {booking.device.device for booking in stored.page.bookings if booking.device.driver == host.driver}
        published = stored.devices
        devices = host_devices.host_devices(host.name, host.settings, found, published, held=held, running=running)
        attached, unknown = await self._attached(host, stored.page, domains, devices.names)
        before = {device: provider.name for provider in providers.read(stored.tree) for device in provider.devices}
        group = {host.device(device): provider for device, provider in {**before, **devices.groups}.items()}
        once = {host.device(name) for name in devices.once}
        targets = passthrough_device.of(devices)
        healed = heal.heal(stored.page, attached, group=group, once=once, now=self._now(), hardware=_hardware(host, targets))
        virtual = {device["name"] for device in published if slices.is_virtual(device)}
        virtual |= {device.name for device in found.devices if device.kind.is_vf}
        plan = provider_tree.plan(
            host.name, host.settings, devices.offered, stored=providers.read(stored.tree), withheld=devices.withheld,
            orphans=devices.orphans,
            held=[provider_tree.HeldDevice(name, str(booking.holder), name in virtual, devices.address(name))
                  for booking in Page(healed.object).bookings if booking.counted and booking.device.driver == host.driver
                  for name in (booking.device.device,)])
        return AuditResult(
            devices,
            healed,
            tuple(attached),
            group,
            plan,
            (*host.provisioning_warnings, *map(str, found.warnings), *unknown, *slices.truncation_warnings(devices.offered)),
            cells,
            targets,
            {device.address: frozenset((device.address, *device.members)) for device in found.devices if device.members},
            bridges,
        )

    async def _attached(
        self, host: AgentHost, page: Page, domains: Collection[Domain], known: Mapping[str, str]
    ) -> tuple[list[AttachedDevice], list[str]]:
        """What VMs on the host really have, by device; and a warning for each address that is not known."""
        out: dict[tuple[str, str], AttachedDevice] = {}
        unknown: list[str] = []
        for domain in domains:
            for source in domain.devices:
                name = known.get(source)
                if not domain.foreign and (other := _other_name(page, source, host, name)) is not None:
                    uids = {domain.uid, other.holder.uid}
                    out[str(other.device), domain.uid] = AttachedDevice(other.device, other.holder, frozenset(uids))
                    continue
                if name is None:
                    unknown.append(f"VM {domain.name} has {source}, which is not known on this host")
                    continue
                device = host.device(name)
                kind = "Consumer" if domain.foreign else "Domain"
                holder, uids = Holder(kind, "", domain.name, domain.uid), {domain.uid}
                if not domain.foreign:
                    uids |= {booking.holder.uid for booking in page.on(device) if booking.state == "prepared"}
                    if not page.on(device) and (claim := await self._claim_of(host, device)) is not None:
                        meta = claim["metadata"]
                        holder = Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"])
                out[device.device, domain.uid] = AttachedDevice(device, holder, frozenset(uids))
        return list(out.values()), unknown

    async def _claim_of(self, host: AgentHost, device: DeviceId) -> Object | None:
        """The claim to which a device is allocated, for a page that lost its booking."""
        for claim in await self._claims(host):
            allocated = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
            if any(DeviceId(each["driver"], each["pool"], each["device"]) == device for each in allocated.get("results") or ()):
                return claim
        return None

    async def _claims(self, host: AgentHost) -> list[Object]:
        """Where a kubelet runs the pods, the claims of those: the agent of a node reads nothing of other nodes."""
        if not host.kubelet:
            return (await self._store.list(kinds.RESOURCE_CLAIM)).items
        pods = (await self._store.list(kinds.POD, fields=f"spec.nodeName={host.name}")).items
        out = []
        for namespace, name in sorted({(pod["metadata"]["namespace"], name) for pod in pods
                                       for _, name in pod_claims.claim_names(pod) if name}):
            with contextlib.suppress(NotFound):
                out.append(await self._store.get(kinds.RESOURCE_CLAIM, name, namespace))
        return out

    # -- writing

    async def _write(self, host: AgentHost, stored: StoredHost, result: AuditResult) -> None:
        devices = result.devices
        listed = {one.device.name: one.reason for one in devices.withheld if one.entry is not None}
        self._warn(host, [*result.warnings, *result.healed.findings, *result.plan.warnings,
                          *(f"unable to remove device {devices.address(name)} ({name}), which is "
                            f"{f'not offered (it {listed[name]})' if name in listed else KEPT_BECAUSE[cause]}: it is "
                            "allocated, and stays until it is free" for name, cause in devices.left.items())])
        host.single_use = devices.once
        host.devices, host.iommu_groups = result.targets, result.iommu_groups
        self._kept[host.name] = frozenset(devices.left).union(
            *(provider.devices for provider in result.plan.providers if not devices.left.keys().isdisjoint(provider.devices)))
        node = await node_status.node(self._store, host, result.bridges, self._now())
        await self._report_vanished(host, frozenset(name for name, cause in devices.left.items() if cause == "vanished"))
        page = stored.page
        if result.healed.object != page.object:
            await heal.heal_page(self._store, host.name, result.attached, group=result.groups, now=self._now(),
                                 hardware=_hardware(host, result.targets), once={host.device(name) for name in devices.once})
            page = await book.read(self._store, host.name)
        page = await self._keep_reserved(host, page, result.plan.providers)
        publication = HostPublication(devices, result.plan.providers, (*result.warnings, *result.plan.warnings), result.cells)
        if findings := await self._publisher.publish(host, stored, publication, page, node["metadata"]["uid"]):
            await self._report_repair(host, findings)

    async def _report_vanished(self, host: AgentHost, vanished: frozenset[str]) -> None:
        """Devices that are held and no longer on the bus: their holders are looked at again. With the policy `quarantine` they
        stay out of service when they are back."""
        changed, host.vanished = host.vanished ^ vanished, vanished
        if host.settings.unhealthy_device is UnhealthyDevice.QUARANTINE:
            for name in sorted(vanished):
                await out_of_service.quarantine(self._store, host.name, host.device(name), by="host audit",
                                                reason=KEPT_BECAUSE["vanished"], now=self._now())
        if changed:
            self.wake_holders(host.name, {host.device(name) for name in changed})

    async def _keep_reserved(self, host: AgentHost, page: Page, tree: Sequence[Provider]) -> Page:
        """As many devices of a provider are reserved as its inventory says, whichever these are. The page as it is then."""
        counted = {host.device(name) for provider in tree for name in provider.devices}
        for entry in page.reserved:
            if entry.origin == out_of_service.PLACEMENT and entry.device not in counted:
                await out_of_service.unreserve(self._store, host.name, entry.device)
        for provider in tree:
            wanted = sum(inventory.reserved for inventory in provider.inventories.values())
            devices = [host.device(name) for name in provider.devices]
            if wanted or any(entry.origin == out_of_service.PLACEMENT and entry.device in devices for entry in page.reserved):
                await out_of_service.set_reserved(self._store, host.name, devices, wanted, now=self._now(), by="placement",
                                                  cleaned=False)
        return await book.read(self._store, host.name) if page.reserved or any(
            inventory.reserved for provider in tree for inventory in provider.inventories.values()) else page

    def _warn(self, host: AgentHost, warnings: Sequence[str]) -> None:
        """Log each warning once, and again only if an audit in between did not find it."""
        for warning in warnings:
            if warning not in self._logged[host.name]:
                log.warning("%s: %s", host.name, warning)
        self._logged[host.name] = set(warnings)

    def _now(self) -> str:
        return rfc3339(self._clock.now())


def _hardware(host: AgentHost, targets: Mapping[str, PassthroughDevice]) -> dict[DeviceId, tuple[str, ...]]:
    """What each device of a host is, as bookings record it."""
    return {host.device(name): tuple(sorted(target.hardware)) for name, target in targets.items()}


def _other_name(page: Page, source: str, host: AgentHost, name: str | None) -> Booking | None:
    """The booking by which a VM has a function or mediated device under another driver's name."""
    own = host.device(name) if name is not None else None
    prepared = [booking for booking in page.bookings if booking.state == "prepared" and booking.counted]
    if any(booking.device == own for booking in prepared):
        return None
    return next((booking for booking in prepared if hardware_key(source) in booking.hardware), None)


def _read(host: AgentHost) -> tuple[Scan, tuple[HostCell, ...], tuple[str, ...]]:
    """All that is read from a host's tree: its devices, NUMA cells and bridges."""
    tree = host.tree()
    cells = numa_cells.scan(tree, host.settings.cpu_dedicated_set)
    return driver_profile.renamed(scan.scan(tree), host.driver_profiles), cells, tuple(networks.bridges(tree))


def _refusal(host: AgentHost, error: OutfitterError) -> OutfitterError:
    """Why a host must not start, with its name."""
    if isinstance(error, StartupRefused | Unreadable):
        return error
    message = f"host {host.name} does not start: {error.message}"
    return Invalid(message, error.causes) if isinstance(error, Invalid) else StartupRefused(message, [error.message])


def _refused_start(hosts: Sequence[AgentHost]) -> OutfitterError:
    """The refusals of all these hosts as one error."""
    refusals = [host.refusal for host in hosts if host.refusal is not None]
    messages = [refusal.message for refusal in refusals]
    return refusals[0] if len(refusals) == 1 else StartupRefused("\n".join(messages), messages)


def _audited_after(host: AgentHost) -> float | None:
    """Seconds until a host is audited again; None: only when something changes. The tree of a simulated host is changed by this
    process alone."""
    return None if host.simulated and host.refusal is None else host.settings.audit_every.total_seconds()


def _out_of_service(page: Object | None) -> list[list[Object]]:
    spec = (page or {}).get("spec") or {}
    return [spec.get(which) or [] for which in ("reserved", "quarantined", "unclean")]


def _contested(page: Object | None) -> set[str]:
    """The devices of a host that were allocated again while they are prepared."""
    return {booking.contested for bookings in well_formed(page) for booking in bookings if booking.contested}


def _lost_prepared(gone: Sequence[Booking], added: Sequence[Booking]) -> bool:
    """Whether bookings left a page that were prepared for a claim, without being released first."""
    has = {(booking.device.device, booking.holder.uid) for booking in added}
    return len(gone) > len(added) and any(
        booking.state == "prepared" and booking.holder.kind == kinds.RESOURCE_CLAIM.kind
        and (booking.device.device, booking.holder.uid) not in has for booking in gone)


def _booked(page: Object | None) -> frozenset[str]:
    return frozenset(booking.device.device for booking in Page(page).bookings) if page else frozenset()
