"""Publishes a host's devices: its ResourceSlices, its provider tree and its HostInventory, each only when it changed; and
publishes slices again as they were when another writer changed them.

Called by the audit, which decides what there is to publish. Does not write the page."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import outfitter
from outfitter.api import kinds, providers
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Page
from outfitter.api.providers import Provider
from outfitter.api.validate import readable
from outfitter.api.validate.readable import UnreadableObject
from outfitter.errors import AlreadyExists, Conflict, NotFound
from outfitter.inventory import host_devices, pci_ids, slices
from outfitter.inventory.assignable import WithheldDevice
from outfitter.inventory.config import UnhealthyDevice
from outfitter.inventory.host_devices import HostDevices
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.numa_cells import HostCell
from outfitter.inventory.pci import HostDevice
from outfitter.inventory.simulation import driver_profile
from outfitter.node import slice_repair
from outfitter.node.agent_host import AgentHost
from outfitter.node.device_plugin.plugin_resources import by_resource
from outfitter.node.slice_repair import SliceFinding
from outfitter.store.base import Store
from outfitter.store.informer import Informer
from outfitter.store.readable_store import ReadableStore

log = logging.getLogger(__name__)
TAINT = "outfitter.dev/"
NEWEST = 2**63 - 1  # the highest generation that a pool can have
IMMUTABLE = ("driver", "nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")  # beside the pool's name


@dataclass(frozen=True, slots=True)
class StoredHost:
    """The objects that the store has for a host."""

    page: Page
    tree: Object | None
    inventory: Object | None
    slices: tuple[Object, ...]
    unreadable: UnreadableObject | None = None  # its page or tree: what the host has is not known

    @property
    def devices(self) -> list[Object]:
        """The devices of the newest pool generation and, while that is incomplete, of older generations too."""
        by_generation: dict[int, list[Object]] = defaultdict(list)
        for part in self.slices:
            by_generation[part["spec"]["pool"].get("generation", 0)].append(part)
        newest = by_generation.get(max(by_generation, default=0), [])
        complete = newest and newest[0]["spec"]["pool"].get("resourceSliceCount") == len(newest)
        chosen = newest if complete else [part for number in sorted(by_generation) for part in by_generation[number]]
        return list({device["name"]: device for part in chosen for device in part["spec"].get("devices") or ()}.values())


@dataclass(frozen=True, slots=True)
class HostPublication:
    """What is published for a host."""

    devices: HostDevices
    providers: Sequence[Provider]
    warnings: Sequence[str]
    cells: Sequence[HostCell]


@dataclass(slots=True)
class PublishedPool:
    """The slices of a host as this process wrote them last."""

    devices: Sequence[Object]
    counters: Mapping[str, int]
    node_uid: str
    slices: dict[str, Object] = field(default_factory=dict)  # name -> spec; as the API server stored it, once it answered


class SlicePublisher:
    def __init__(self, store: Store, slices: Informer[Object] | None = None) -> None:
        """`slices`: finds those of a host's pool that are tied to another node."""
        self._store, self._slices = ReadableStore(store), slices
        self._published: dict[str, PublishedPool] = {}  # host -> what it publishes; none: not known, after a write that failed
        if slices is not None:
            slices.add_index("place", _place_keys)
        self._taints_kept: bool | None = None  # by the API server; None: not known yet

    async def read(self, hosts: Iterable[AgentHost], name: str | None = None) -> dict[str, StoredHost]:
        """What the store has for each host, or for the one of that name."""
        by_name = f"metadata.name={name}" if name else ""
        found: list[UnreadableObject] = []
        store = ReadableStore(self._store.raw, found.append)
        pages, trees, inventories = [
            {obj["metadata"]["name"]: obj for obj in (await each.list(kind, fields=by_name)).items}
            for kind, each in ((kinds.LEDGER_PAGE, store), (kinds.PROVIDER_TREE, store), (kinds.HOST_INVENTORY, self._store))]
        unreadable = {each.key: each for each in found}
        published: dict[str, list[Object]] = defaultdict(list)  # node or pool -> slices
        for part in (await self._store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={name}" if name else "")).items:
            for place in slice_repair.places(part):
                published[place].append(part)
        return {
            host.name: StoredHost(Page(pages.get(host.name) or Page.blank(host.name)), trees.get(host.name),
                                  inventories.get(host.name), _effective([
                                      *(part for part in published[host.name] if slice_repair.is_of(host, part)),
                                      *(await self._elsewhere(host) if name else ())]), unreadable.get(host.name))
            for host in hosts if name in (None, host.name)
        }

    async def _elsewhere(self, host: AgentHost) -> list[Object]:
        """The slices of a host's pool that are not tied to its node."""
        found = self._slices.by("place", f"{host.driver}/{host.name}") if self._slices is not None else []
        out = []
        for part in found:
            if part["spec"].get("nodeName") != host.name:
                try:
                    out.append(await self._store.get(kinds.RESOURCE_SLICE, part["metadata"]["name"]))
                except NotFound:
                    continue
        return [part for part in out if slice_repair.is_of(host, part) and part["spec"].get("nodeName") != host.name]

    def concerns(self, host: AgentHost, old: Object | None, new: Object | None) -> bool:
        """Whether a change of a slice is one of another writer to what the host publishes."""
        if not any(part is not None and slice_repair.is_of(host, part) for part in (old, new)):
            return False
        published = self._published.get(host.name)
        name = (new or old or {})["metadata"]["name"]
        if new is None or published is None:
            return new is None and (published is None or name in published.slices)
        return new["spec"] != published.slices.get(name) or slice_repair.owners(new) != {published.node_uid}

    async def restore(self, host: AgentHost, stored: StoredHost) -> list[SliceFinding]:
        """Publish the slices of a host again as this process published them, if another writer changed them: what was changed.
        Foreign slices in the pool are deleted, and the pool gets a generation above theirs."""
        published = self._published.get(host.name)
        if published is None or not (found := self._findings(host, stored, published.node_uid)):
            return []
        if not await self._is_there(host, published.node_uid):
            return []  # slices go with their Node; the audit creates it again
        await self._write_pool(host, stored.slices, published)
        return found

    def _findings(self, host: AgentHost, stored: StoredHost, node_uid: str) -> list[SliceFinding]:
        """What other writers did to slices that this process published for the Node of that uid."""
        published = self._published.get(host.name)
        if published is None or published.node_uid != node_uid:
            return []
        return slice_repair.findings(published.slices, stored.slices, node_uid)

    async def _is_there(self, host: AgentHost, node_uid: str) -> bool:
        try:
            return bool((await self._store.get(kinds.NODE, host.name))["metadata"]["uid"] == node_uid)
        except NotFound:
            return False

    async def publish(
        self, host: AgentHost, stored: StoredHost, publication: HostPublication, page: Page, node_uid: str
    ) -> list[SliceFinding]:
        """What other writers had changed in the slices. `page` as it is now; `node_uid`: of the Node that owns the slices."""
        if stored.tree is not None or publication.providers:
            tree = providers.with_providers(stored.tree or providers.blank(host.name), publication.providers)
            await self._put(kinds.PROVIDER_TREE, stored.tree, tree)
        wanted = self._wanted(host, stored, publication, page, node_uid)
        await self._put(kinds.HOST_INVENTORY, stored.inventory, _inventory(host, publication, wanted.devices))
        found = self._findings(host, stored, node_uid)
        await self._publish_slices(host, stored, wanted)
        return found

    async def _put(self, kind: Kind, stored: Object | None, wanted: Object) -> None:
        """Create an object of ours, or replace one whose spec differs."""
        if stored is None:
            try:
                await self._create(kind, wanted)
            except AlreadyExists as error:
                raise Conflict(f"{kind.kind} {wanted['metadata']['name']} was created meanwhile: read it again") from error
        elif stored["spec"] != wanted["spec"]:
            await self._store.replace(kind, {**stored, "spec": wanted["spec"]})

    async def _create(self, kind: Kind, wanted: Object) -> Object:
        """Create an object of ours. One of its name that cannot be read is deleted first. AlreadyExists."""
        try:
            return await self._store.create(kind, wanted)
        except AlreadyExists:
            stored = await self._store.raw.get(kind, wanted["metadata"]["name"])
            if readable.problem(kind, stored) is None:
                raise
            log.warning("%s %s cannot be read and is written again", kind.kind, wanted["metadata"]["name"])
            await self._store.delete(kind, wanted["metadata"]["name"], revision=stored["metadata"]["resourceVersion"])
            return await self._store.create(kind, wanted)

    def _wanted(
        self, host: AgentHost, stored: StoredHost, publication: HostPublication, page: Page, node_uid: str
    ) -> PublishedPool:
        found = publication.devices
        held = {booking.device.device for booking in page.bookings if booking.device.driver == host.driver}
        tree, taints = publication.providers, _taints(host, found, page)
        described = host_devices.devices(found, stored.devices, held, taints, pci_ids.database(), tree=tree)
        devices = driver_profile.described(slices.on_providers(described, tree), host.driver_profiles)
        return PublishedPool(devices, slices.counters(found.offered, found.kept, tree).sets, node_uid)

    async def _publish_slices(self, host: AgentHost, stored: StoredHost, wanted: PublishedPool) -> None:
        if self._is_published(host, stored, wanted):
            return
        if any("taints" in device for device in wanted.devices) and await self._drops_taints(_pool(host, wanted, 1)):
            wanted.devices = [device for device in wanted.devices if "taints" not in device]
            if self._is_published(host, stored, wanted):
                return
        await self._write_pool(host, stored.slices, wanted)

    def _is_published(self, host: AgentHost, stored: StoredHost, wanted: PublishedPool) -> bool:
        """Whether nothing has to be written. What the API server dropped of it is not written again and again."""
        if any(slice_repair.owners(part) != {wanted.node_uid} for part in stored.slices):
            return False
        specs = {part["metadata"]["name"]: part["spec"] for part in stored.slices}
        known = self._published.get(host.name)
        if known is not None and known.slices == specs and (known.devices, known.counters) == (wanted.devices, wanted.counters):
            return True
        generations = {part["spec"]["pool"].get("generation", 0) for part in stored.slices}
        if len(generations) > 1 or not slices.same_pool(stored.slices, _pool(host, wanted, max(generations, default=0))):
            return False
        wanted.slices = specs
        self._published[host.name] = wanted
        return True

    async def _drops_taints(self, wanted: Sequence[Object]) -> bool:
        """Whether the API server drops device taints, so that a tainted device would look free: tried once by a dry run."""
        if self._taints_kept is None:
            part = next(part for part in wanted if any("taints" in device for device in part["spec"].get("devices") or ()))
            trial = {**part, "metadata": {"name": f"{part['metadata']['name'][:240]}-trial"}}
            answer = await self._store.create(kinds.RESOURCE_SLICE, trial, dry_run=True)
            self._taints_kept = any("taints" in device for device in answer["spec"]["devices"])
            if not self._taints_kept:
                log.warning("the API server drops device taints: tainted devices are not published in ResourceSlices")
        return not self._taints_kept

    async def _write_pool(self, host: AgentHost, stored: Sequence[Object], wanted: PublishedPool) -> None:
        """New slices first, old ones last: a pool that is incomplete in between is not allocated from."""
        before = self._published.get(host.name)
        specs = [*(part["spec"] for part in stored), *(before.slices.values() if before is not None else ())]
        generations = [spec["pool"].get("generation", 0) for spec in specs]
        # One that has the highest generation is deleted or replaced: there is none above it.
        new = _pool(host, wanted, max((number for number in generations if number < NEWEST), default=0) + 1)
        known = {part["metadata"]["name"]: part for part in stored}
        self._published[host.name] = written = PublishedPool(wanted.devices, wanted.counters, wanted.node_uid)
        try:
            for part in new:
                name = part["metadata"]["name"]
                written.slices[name] = part["spec"]  # its event may come before the answer
                answer = await self._write_slice(host, known.pop(name, None), part)
                if answer["metadata"]["name"] != name:
                    del written.slices[name]
                written.slices[answer["metadata"]["name"]] = answer["spec"]
            for old in known.values():
                await self._delete_slice(old)
        except BaseException:
            self._published.pop(host.name, None)  # the next audit compares with what is stored
            raise

    async def _write_slice(self, host: AgentHost, old: Object | None, new: Object) -> Object:
        """Create or replace a slice. Some fields cannot be changed: such a slice is deleted first."""
        if old is not None:
            if _tied_to(old) == _tied_to(new):
                meta = {**old["metadata"], "ownerReferences": new["metadata"]["ownerReferences"]}
                return await self._store.replace(kinds.RESOURCE_SLICE, {**old, "metadata": meta, "spec": new["spec"]})
            await self._delete_slice(old)
        name = new["metadata"]["name"]
        try:
            return await self._create(kinds.RESOURCE_SLICE, new)
        except AlreadyExists as error:
            if slice_repair.is_of(host, await self._store.get(kinds.RESOURCE_SLICE, name)):
                raise Conflict(f"ResourceSlice {name} was created meanwhile: read it again") from error
        # Another driver has the name: what it publishes in its own pools is left alone.
        meta = {key: value for key, value in new["metadata"].items() if key != "name"}
        return await self._store.create(kinds.RESOURCE_SLICE, {**new, "metadata": {**meta, "generateName": f"{name[:240]}-"}})

    async def _delete_slice(self, old: Object) -> None:
        try:
            await self._store.delete(kinds.RESOURCE_SLICE, old["metadata"]["name"], uid=old["metadata"]["uid"])
        except NotFound:
            pass


def _pool(host: AgentHost, wanted: PublishedPool, generation: int) -> list[Object]:
    return slices.pool(host.name, host.driver, wanted.devices, wanted.counters, generation=generation, node_uid=wanted.node_uid)


def _place_keys(part: Object) -> list[str]:
    spec = part.get("spec") or {}
    return [f"{spec.get('driver')}/{place}" for place in slice_repair.places(part)]


def _effective(parts: Sequence[Object]) -> tuple[Object, ...]:
    """Without slices that are being deleted, kept by a finalizer, and of an older generation: they hide nothing."""
    def generation(part: Object) -> int:
        return int(part["spec"]["pool"].get("generation", 0))

    newest = max((generation(part) for part in parts if not part["metadata"].get("deletionTimestamp")), default=0)
    return tuple(part for part in parts if not part["metadata"].get("deletionTimestamp") or generation(part) >= newest)


def _tied_to(part: Object) -> list[object]:
    """What cannot be changed of a slice."""
    return [part["spec"]["pool"]["name"], *(part["spec"].get(key) for key in IMMUTABLE)]


def _taints(host: AgentHost, found: HostDevices, page: Page) -> dict[str, list[Object]]:
    """Why a device must not be allocated, for schedulers that do not read the page."""
    out: dict[str, list[Object]] = defaultdict(list)

    def taint(name: str, word: str, effect: str = "NoSchedule") -> None:
        key = TAINT + word
        if all(each["key"] != key for each in out[name]):
            out[name].append({"key": key, "effect": effect})

    for word, entries in (("reserved", page.reserved), ("quarantined", page.quarantined), ("unclean", page.unclean)):
        for entry in entries:
            if entry.device.driver == host.driver:
                taint(entry.device.device, word)
    for name, cause in found.left.items():
        evicts = cause == "vanished" and host.settings.unhealthy_device is UnhealthyDevice.RESTART
        taint(name, cause, "NoExecute" if evicts else "NoSchedule")
    for names in by_resource(host.plugin_selectors, host.devices).values():
        for name in names:
            taint(name, "device-plugin")  # offered to the kubelet under a resource name
    for booking in page.bookings:
        if booking.holder.kind in ("Domain", kinds.POD.kind) and booking.device.driver == host.driver:
            taint(booking.device.device, "held")  # no claim says so
        if booking.contested and booking.state == "prepared":
            taint(booking.contested, "contested")  # its claim was deallocated while it is still prepared
    return out


def _inventory(host: AgentHost, publication: HostPublication, devices: Sequence[Object]) -> Object:
    """What slices do not contain: devices that are not offered and why, devices that stay until they are free, warnings. And
    which devices the host has published, so that a device in a slice of another writer is not taken for one of the host's. And,
    for `outfit doctor`, whether the host has an IOMMU, and the version that published it."""
    found, cells = publication.devices, publication.cells
    every = [*(entry.device for entry in found.offered), *(entry.device for entry in found.withheld)]
    groups = [device.iommu_group for device in every if isinstance(device, HostDevice)]
    return {
        "apiVersion": kinds.HOST_INVENTORY.api_version, "kind": kinds.HOST_INVENTORY.kind, "metadata": {"name": host.name},
        "spec": {"withheld": [_withheld(each) for each in found.withheld],
                 "left": [{"device": name, "what": what} for name, what in found.left.items()],
                 "warnings": list(publication.warnings),
                 "published": {"driver": host.driver, "devices": sorted(device["name"] for device in devices)},
                 **({"iommu": any(group is not None for group in groups)} if groups else {}),
                 "agentVersion": outfitter.__version__,
                 **({"cells": [each.to_object() for each in cells]} if cells else {})},
    }


def _withheld(withheld: WithheldDevice) -> Object:
    device = withheld.device
    fields: Mapping[str, object]
    if isinstance(device, Mdev):
        fields = {"name": device.name, "uuid": device.uuid, "type": device.type_id, "parent": device.parent}
    else:
        fields = {"name": device.name, "address": device.address, "kind": device.kind.value, "vendor": device.vendor,
                  "product": device.product, "class": device.class_code, "driver": device.driver, "parent": device.parent,
                  "numaNode": device.numa, "iommuGroup": device.iommu_group, "totalVfs": device.total_vfs,
                  "numVfs": device.num_vfs}
    return {**{key: value for key, value in fields.items() if value is not None}, "reason": withheld.reason}
