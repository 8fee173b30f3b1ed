"""Keeps what a host says in step with what it has: at start, when somebody changed its page or took away what it published, and
from time to time.

For each host: scan, compare with what was published and what is really held, heal the page, then write page, provider tree,
slices and inventory, each only when it changed. At start every host is looked at before anything is written: a configuration
that must not be leaves everything as it was. Later the same finding is a warning, and the host goes on as it is."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api import kinds, providers
from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Kind, Object
from outfitter.api.page import Holder, Page
from outfitter.api.providers import Provider
from outfitter.errors import AlreadyExists, Conflict, HypervisorError, Invalid, NotFound, OutfitterError, StartupRefused
from outfitter.inventory import host_devices, numa_cells, pci_ids, scan, slices
from outfitter.inventory import providers as model
from outfitter.inventory.assignable import WithheldDevice
from outfitter.inventory.host_devices import HostDevices
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.numa_cells import HostCell
from outfitter.inventory.scan import Scan
from outfitter.inventory.simulation import driver_profile
from outfitter.ledger import book, heal, history, out_of_service
from outfitter.ledger.heal import AttachedDevice
from outfitter.node import networks, node_status, passthrough_device
from outfitter.node.host import Host
from outfitter.node.passthrough_device import PassthroughDevice
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.informer import Informer
from outfitter.store.workqueue import WorkQueue

log = logging.getLogger(__name__)
AT_ONCE = 64  # hosts that are written at the same time, so that their writes share syncs
TAINT = "outfitter.dev/"
EXPIRE = "history|"  # the key under which old history is thrown away
EXPIRE_EVERY = 3600.0
WORDS = {"unlisted": "no longer listed in device_spec", "vanished": "no longer on the bus"}


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store has of a host."""

    page: Page
    tree: Object | None
    inventory: Object | None
    slices: tuple[Object, ...]

    @property
    def devices(self) -> list[Object]:
        """What is published: of the newest generation, and while not all of it is there of older ones too."""
        by_age: dict[int, list[Object]] = defaultdict(list)
        for each in self.slices:
            by_age[each["spec"]["pool"].get("generation", 0)].append(each)
        newest = by_age.get(max(by_age, default=0), [])
        whole = newest and newest[0]["spec"]["pool"].get("resourceSliceCount") == len(newest)
        chosen = newest if whole else [each for age in sorted(by_age) for each in by_age[age]]
        return list({device["name"]: device for each in chosen for device in each["spec"].get("devices") or ()}.values())


@dataclass(frozen=True, slots=True)
class Outlook:
    """Everything that is to be written for a host, before it is."""

    seen: HostDevices
    healed: heal.HealedPage
    found: tuple[AttachedDevice, ...]
    groups: Mapping[DeviceId, str]  # device -> the provider on which it is counted
    plan: model.Plan
    oddities: tuple[str, ...]
    cells: tuple[HostCell, ...]
    bridges: tuple[str, ...]  # to which network cards of machines can be plugged


class Keeper:
    name = "keeper"

    def __init__(self, store: Store, hosts: Sequence[Host], *, clock: Clock, pages: Informer[Object],
                 slices: Informer[Object] | None = None) -> None:
        self._store, self._clock = store, clock
        self.hosts = {host.name: host for host in hosts}
        self.queue = WorkQueue(clock)
        self.locks = {host.name: asyncio.Lock() for host in hosts}  # whoever starts, ends or counts machines of a host has it
        self.once: dict[str, frozenset[str]] = defaultdict(frozenset)  # host -> devices that must be cleaned after their use
        self.targets: dict[str, Mapping[str, PassthroughDevice]] = defaultdict(
            dict
        )  # host -> its devices as they are handed over
        self.notes: dict[str, tuple[str, ...]] = defaultdict(tuple)  # host -> what could not be made at its start
        self._said: dict[str, set[str]] = defaultdict(set)  # host -> warnings that were logged
        self._taints_kept: bool | None = None  # by the API server; None: not known yet
        self._left: dict[str, frozenset[str]] = {}  # host -> devices that only stay until they are free
        pages.on_change(self._page_changed)
        if slices is not None:
            slices.on_change(self._slice_changed)

    # -- when

    async def start(self) -> int:
        """All hosts, or none: how many devices they offer. StartupRefused names every host that must not start, and why."""
        stored = await self._stored()
        ready: dict[str, Outlook] = {}
        refusals: list[OutfitterError] = []
        for host in self.hosts.values():
            if host.settings.device_spec is None and stored[host.name].tree is None:
                continue  # nothing was said that could be wrong
            try:
                ready[host.name] = await self._look(host, stored[host.name])
            except StartupRefused as error:
                refusals.append(error)
            except HypervisorError as error:
                refusals.append(StartupRefused(f"host {host.name} does not start: {error.message}", [error.message]))
            except Invalid as error:
                refusals.append(Invalid(f"host {host.name} does not start: {error.message}", error.causes))
            await asyncio.sleep(0)
        if refusals:
            raise refusals[0] if len(refusals) == 1 else StartupRefused(
                "\n".join(error.message for error in refusals), [error.message for error in refusals])
        turns = asyncio.Semaphore(AT_ONCE)

        async def write(host: Host) -> int:
            async with turns:
                have = stored.pop(host.name)
                outlook = ready.pop(host.name, None) or await self._look(host, have)
                await self._write(host, have, outlook)
                return len(outlook.seen.offered)

        offered = sum(await asyncio.gather(*(write(host) for host in self.hosts.values())))
        for host in self.hosts.values():
            if not host.simulated:  # nothing happens to a simulated one behind our back
                self.queue.add_after(host.name, host.settings.audit_every.total_seconds())
        self.queue.add_after(EXPIRE, EXPIRE_EVERY)
        return offered

    async def audit(self, name: str) -> None:
        """Look at one host again. What would refuse a start is told, and everything stays as it is."""
        host = self.hosts[name]
        async with self.locks[name]:  # no machine starts or ends meanwhile
            have = (await self._stored(name))[name]
            try:
                outlook = await self._look(host, have)
            except (StartupRefused, HypervisorError, Invalid) as error:
                self._say(host, [error.message])
                return
            await self._write(host, have, outlook)

    async def reconcile(self, key: str) -> float | None:
        if key == EXPIRE:
            keep = max((host.settings.history_keep for host in self.hosts.values()), default=None)
            if keep is not None:
                alone = next(iter(self.hosts)) if len(self.hosts) == 1 else ""  # in a cluster each host sees to its own
                await history.expire(self._store, self._now(), keep, host=alone)
            return EXPIRE_EVERY
        await self.audit(key)
        host = self.hosts[key]
        return None if host.simulated else host.settings.audit_every.total_seconds()

    def _page_changed(self, old: Object | None, new: Object | None) -> None:
        """A device was reserved, quarantined or cleaned, or one that is only kept was let go of."""
        name = (new or old or {})["metadata"]["name"]
        if name in self.hosts and (_marks(old) != _marks(new) or self._lets_go(old, new)):
            self.queue.add(name)

    def _slice_changed(self, old: Object | None, new: Object | None) -> None:
        """What a host offers was deleted, by us or by somebody who should not: the next look tells, and publishes it again."""
        if old is not None and new is None and old["spec"].get("nodeName") in self.hosts:
            self.queue.add(old["spec"]["nodeName"])

    def _lets_go(self, old: Object | None, new: Object | None) -> bool:
        left = self._left.get((new or old or {})["metadata"]["name"], frozenset())
        return bool(left) and _held(old) & left != _held(new) & left

    # -- looking

    async def _stored(self, name: str | None = None) -> dict[str, Stored]:
        """What the store has of every host, or of one."""
        async def listed(kind: Kind, fields: str) -> list[Object]:
            return (await self._store.list(kind, fields=fields)).items

        one = f"metadata.name={name}" if name else ""
        pages, trees, inventories = [
            {obj["metadata"]["name"]: obj for obj in await listed(kind, one)}
            for kind in (kinds.LEDGER_PAGE, kinds.PROVIDER_TREE, kinds.HOST_INVENTORY)]
        published: dict[tuple[str, str], list[Object]] = defaultdict(list)
        for obj in await listed(kinds.RESOURCE_SLICE, f"spec.nodeName={name}" if name else ""):
            published[obj["spec"].get("nodeName", ""), obj["spec"]["driver"]].append(obj)
        return {
            host.name: Stored(Page(pages.get(host.name) or Page.blank(host.name)), trees.get(host.name),
                              inventories.get(host.name), tuple(published[host.name, host.driver]))
            for host in self.hosts.values() if name in (None, host.name)
        }

    async def _look(self, host: Host, have: Stored) -> Outlook:
        # a real tree takes its time; a simulated one does not, and what is played stays in its order
        found, nodes, bridges = _read(host) if host.simulated else await asyncio.to_thread(_read, host)
        domains = (await host.hypervisor.domains()).values()
        running = {source for domain in domains for source in domain.devices}
        held = {booking.device.device for booking in have.page.bookings if booking.device.driver == host.driver}
        published = have.devices
        seen = host_devices.host_devices(host.name, host.settings, found, published, held=held, running=running)
        really, strange = await self._found(host, have.page, domains, seen.names)
        before = {device: provider.name for provider in providers.read(have.tree) for device in provider.devices}
        group = {host.device(device): provider for device, provider in {**before, **seen.groups}.items()}
        once = {host.device(name) for name in seen.once}
        healed = heal.heal(have.page, really, group=group, once=once, now=self._now())
        virtual = {device["name"] for device in published if slices.is_virtual(device)}
        virtual |= {device.name for device in found.devices if device.kind.is_vf}
        plan = model.plan(
            host.name, host.settings, seen.offered, stored=providers.read(have.tree), orphans=seen.orphans,
            held=[model.HeldDevice(name, str(booking.holder), name in virtual, seen.address(name))
                  for booking in Page(healed.object).bookings if booking.counted and booking.device.driver == host.driver
                  for name in (booking.device.device,)])
        return Outlook(seen, healed, tuple(really), group, plan,
                       (*self.notes[host.name], *map(str, found.warnings), *strange, *slices.unsaid(seen.offered)),
                       nodes, bridges)

    async def _found(
        self, host: Host, page: Page, domains: Collection[Domain], known: Mapping[str, str]
    ) -> tuple[list[AttachedDevice], list[str]]:
        """What machines on the host really have, by device; and what they have that is not known."""
        out: dict[tuple[str, str], AttachedDevice] = {}
        strange: list[str] = []
        for domain in domains:
            for source in domain.devices:
                name = known.get(source)
                if name is None:
                    strange.append(f"machine {domain.name} has {source}, which is not known on this host")
                    continue
                device = host.device(name)
                kind = "Consumer" if domain.foreign else "Domain"
                holder, uids = Holder(kind, "", domain.name, domain.uid), {domain.uid}
                if not domain.foreign:
                    uids |= {booking.holder.uid for booking in page.on(device) if booking.state == "prepared"}
                    if not page.on(device) and (claim := await self._claim_of(device)) is not None:
                        meta = claim["metadata"]
                        holder = Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta["uid"])
                out[device.device, domain.uid] = AttachedDevice(device, holder, frozenset(uids))
        return list(out.values()), strange

    async def _claim_of(self, device: DeviceId) -> Object | None:
        """The claim to which a device was promised, for a page that lost it."""
        for claim in (await self._store.list(kinds.RESOURCE_CLAIM)).items:
            given = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
            if any(DeviceId(each["driver"], each["pool"], each["device"]) == device for each in given.get("results") or ()):
                return claim
        return None

    # -- writing

    async def _write(self, host: Host, have: Stored, outlook: Outlook) -> None:
        self._say(host, [*outlook.oddities, *outlook.healed.findings, *outlook.plan.warnings,
                         *(f"unable to remove device {outlook.seen.address(name)} ({name}), which is {WORDS[what]}: it is "
                           "allocated, and stays until it is free" for name, what in outlook.seen.left.items())])
        self.once[host.name] = outlook.seen.once
        if host.station is not None:
            self.targets[host.name] = passthrough_device.of(outlook.seen)
        self._left[host.name] = frozenset(outlook.seen.left)
        node = await node_status.node(self._store, host, outlook.bridges, self._now())
        page = have.page
        if outlook.healed.object != page.object:
            await heal.heal_page(self._store, host.name, outlook.found, group=outlook.groups, now=self._now(),
                                 once={host.device(name) for name in outlook.seen.once})
            page = await book.read(self._store, host.name)
        page = await self._keep_reserved(host, page, outlook.plan.providers)
        if have.tree is not None or outlook.plan.providers:
            tree = providers.with_providers(have.tree or providers.blank(host.name), outlook.plan.providers)
            await self._put(kinds.PROVIDER_TREE, have.tree, tree)
        await self._put(kinds.HOST_INVENTORY, have.inventory, _inventory(host, outlook))
        await self._publish(host, have, outlook.seen, page, node["metadata"]["uid"], tree=outlook.plan.providers)

    async def _keep_reserved(self, host: Host, page: Page, tree: Sequence[Provider]) -> Page:
        """As many devices of a provider stay out as an operator said, whichever these are."""
        counted = {host.device(name) for provider in tree for name in provider.devices}
        for mark in page.reserved:
            if mark.origin == out_of_service.PLACEMENT and mark.device not in counted:
                await out_of_service.unreserve(self._store, host.name, mark.device)
        for provider in tree:
            wanted = sum(inventory.reserved for inventory in provider.inventories.values())
            devices = [host.device(name) for name in provider.devices]
            if wanted or any(mark.origin == out_of_service.PLACEMENT and mark.device in devices for mark in page.reserved):
                await out_of_service.set_reserved(self._store, host.name, devices, wanted, now=self._now(), by="placement",
                                         cleaned=False)
        return await book.read(self._store, host.name) if page.reserved or any(
            inventory.reserved for provider in tree for inventory in provider.inventories.values()) else page

    async def _put(self, kind: Kind, have: Object | None, wanted: Object) -> None:
        """Write an object of ours if it says something else than before."""
        if have is None:
            try:
                await self._store.create(kind, wanted)
            except AlreadyExists as error:
                raise Conflict(f"{kind.kind} {wanted['metadata']['name']} was made meanwhile: look again") from error
        elif have["spec"] != wanted["spec"]:
            await self._store.replace(kind, {**have, "spec": wanted["spec"]})

    async def _publish(
        self, host: Host, have: Stored, seen: HostDevices, page: Page, uid: str, *, tree: Sequence[Provider] = ()
    ) -> None:
        held = {booking.device.device for booking in page.bookings if booking.device.driver == host.driver}
        devices = driver_profile.described(slices.on_providers(
            host_devices.devices(seen, have.devices, held, _taints(host, seen, page), pci_ids.database()), tree), host.guises)
        generation = max((obj["spec"]["pool"].get("generation", 0) for obj in have.slices), default=0)
        uids = {owner["uid"] for obj in have.slices for owner in obj["metadata"].get("ownerReferences") or ()}
        counters = slices.counters(seen.offered, seen.kept).sets

        def pool(devices: Sequence[Object], generation: int) -> list[Object]:
            return slices.pool(host.name, host.driver, devices, counters, generation=generation, node_uid=uid)

        if uids <= {uid} and slices.same_pool(have.slices, pool(devices, generation)):
            return
        if any("taints" in device for device in devices) and await self._drops_taints(pool(devices, generation + 1)):
            devices = [device for device in devices if "taints" not in device]
            if uids <= {uid} and slices.same_pool(have.slices, pool(devices, generation)):
                return
        await self._replace(have.slices, pool(devices, generation + 1))

    async def _drops_taints(self, wanted: Sequence[Object]) -> bool:
        """Whether the API server does not know taints of devices, and would make these look like any other."""
        if self._taints_kept is None:
            part = next(each for each in wanted if any("taints" in device for device in each["spec"].get("devices") or ()))
            trial = {**part, "metadata": {"name": f"{part['metadata']['name'][:240]}-trial"}}
            answer = await self._store.create(kinds.RESOURCE_SLICE, trial, dry_run=True)
            self._taints_kept = any("taints" in device for device in answer["spec"]["devices"])
            if not self._taints_kept:
                log.warning("the API server drops taints of devices: those that nobody may get are left out of the slices")
        return not self._taints_kept

    async def _replace(self, have: Sequence[Object], wanted: Sequence[Object]) -> None:
        """New slices first, old ones last: a pool that is incomplete in between is not used by anybody."""
        known = {obj["metadata"]["name"]: obj for obj in have}
        for new in wanted:
            old = known.pop(new["metadata"]["name"], None)
            if old is None:
                await self._store.create(kinds.RESOURCE_SLICE, new)
            else:
                meta = {**old["metadata"], "ownerReferences": new["metadata"]["ownerReferences"]}
                await self._store.replace(kinds.RESOURCE_SLICE, {**old, "metadata": meta, "spec": new["spec"]})
        for name, old in known.items():
            try:
                await self._store.delete(kinds.RESOURCE_SLICE, name, uid=old["metadata"]["uid"])
            except NotFound:
                pass

    def _say(self, host: Host, sentences: Sequence[str]) -> None:
        """Each warning once, until it was over in between."""
        for sentence in sentences:
            if sentence not in self._said[host.name]:
                log.warning("%s: %s", host.name, sentence)
        self._said[host.name] = set(sentences)

    def _now(self) -> str:
        return rfc3339(self._clock.now())


def _read(host: Host) -> tuple[Scan, tuple[HostCell, ...], tuple[str, ...]]:
    """All that is read of a host's tree: what it has, its cells and its bridges."""
    tree = host.tree()
    return driver_profile.renamed(scan.scan(tree), host.guises), numa_cells.scan(tree), tuple(networks.bridges(tree))


def _taints(host: Host, seen: HostDevices, page: Page) -> dict[str, list[Object]]:
    """Why nobody new gets a device, for those who allocate."""
    out: dict[str, list[Object]] = defaultdict(list)

    def taint(name: str, what: str) -> None:
        key = TAINT + what
        if all(each["key"] != key for each in out[name]):
            out[name].append({"key": key, "effect": "NoSchedule"})

    for what, entries in (("reserved", page.reserved), ("quarantined", page.quarantined), ("unclean", page.unclean)):
        for mark in entries:
            if mark.device.driver == host.driver:
                taint(mark.device.device, what)
    for name, left in seen.left.items():
        taint(name, left)
    for booking in page.bookings:
        if booking.holder.kind == "Domain" and booking.device.driver == host.driver:
            taint(booking.device.device, "held")  # who allocates claims does not know of it
    return out


def _inventory(host: Host, outlook: Outlook) -> Object:
    """What people ask of a host and slices do not say: what is not offered and why, and what is odd."""
    return {
        "apiVersion": kinds.HOST_INVENTORY.api_version, "kind": kinds.HOST_INVENTORY.kind, "metadata": {"name": host.name},
        "spec": {"withheld": [_withheld(each) for each in outlook.seen.withheld],
                 "left": [{"device": name, "what": what} for name, what in outlook.seen.left.items()],
                 "warnings": [*outlook.oddities, *outlook.plan.warnings],
                 **({"cells": [each.to_object() for each in outlook.cells]} if outlook.cells else {})},
    }


def _withheld(one: WithheldDevice) -> Object:
    device = one.device
    if isinstance(device, Mdev):
        said: Object = {"name": device.name, "uuid": device.uuid, "type": device.type_id, "parent": device.parent}
    else:
        said = {"name": device.name, "address": device.address, "kind": device.kind.value, "vendor": device.vendor,
                "product": device.product, "class": device.class_code, "driver": device.driver, "parent": device.parent,
                "numaNode": device.numa, "iommuGroup": device.iommu_group, "totalVfs": device.total_vfs,
                "numVfs": device.num_vfs}
    return {**{key: value for key, value in said.items() if value is not None}, "reason": one.reason}


def _marks(page: Object | None) -> list[list[Object]]:
    spec = (page or {}).get("spec") or {}
    return [spec.get(which) or [] for which in ("reserved", "quarantined", "unclean")]


def _held(page: Object | None) -> frozenset[str]:
    return frozenset(booking.device.device for booking in Page(page).bookings) if page else frozenset()
