"""Publishes a host's devices: its ResourceSlices, its provider tree and its HostInventory, each only when it changed.

Called by the audit, which decides what there is to publish. Does not write the page."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api import kinds, providers
from outfitter.api.kinds import Kind, Object
from outfitter.api.page import Page
from outfitter.api.providers import Provider
from outfitter.errors import AlreadyExists, Conflict, NotFound
from outfitter.inventory import host_devices, pci_ids, slices
from outfitter.inventory.assignable import WithheldDevice
from outfitter.inventory.host_devices import HostDevices
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.numa_cells import HostCell
from outfitter.inventory.simulation import driver_profile
from outfitter.node.agent_host import AgentHost
from outfitter.store.base import Store

log = logging.getLogger(__name__)
TAINT = "outfitter.dev/"


@dataclass(frozen=True, slots=True)
class StoredHost:
    """The objects that the store has for a host."""

    page: Page
    tree: Object | None
    inventory: Object | None
    slices: tuple[Object, ...]

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


class SlicePublisher:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._taints_kept: bool | None = None  # by the API server; None: not known yet

    async def read(self, hosts: Iterable[AgentHost], name: str | None = None) -> dict[str, StoredHost]:
        """What the store has for each host, or for the one of that name."""
        by_name = f"metadata.name={name}" if name else ""
        pages, trees, inventories = [
            {obj["metadata"]["name"]: obj for obj in await self._list(kind, by_name)}
            for kind in (kinds.LEDGER_PAGE, kinds.PROVIDER_TREE, kinds.HOST_INVENTORY)]
        published: dict[tuple[str, str], list[Object]] = defaultdict(list)
        for part in await self._list(kinds.RESOURCE_SLICE, f"spec.nodeName={name}" if name else ""):
            published[part["spec"].get("nodeName", ""), part["spec"]["driver"]].append(part)
        return {
            host.name: StoredHost(Page(pages.get(host.name) or Page.blank(host.name)), trees.get(host.name),
                                  inventories.get(host.name), tuple(published[host.name, host.driver]))
            for host in hosts if name in (None, host.name)
        }

    async def publish(
        self, host: AgentHost, stored: StoredHost, publication: HostPublication, page: Page, node_uid: str
    ) -> None:
        """`page` as it is now; `node_uid` is that of the Node that owns the slices."""
        if stored.tree is not None or publication.providers:
            tree = providers.with_providers(stored.tree or providers.blank(host.name), publication.providers)
            await self._put(kinds.PROVIDER_TREE, stored.tree, tree)
        await self._put(kinds.HOST_INVENTORY, stored.inventory, _inventory(host, publication))
        await self._publish_slices(host, stored, publication, page, node_uid)

    async def _list(self, kind: Kind, fields: str) -> list[Object]:
        return (await self._store.list(kind, fields=fields)).items

    async def _put(self, kind: Kind, stored: Object | None, wanted: Object) -> None:
        """Create an object of ours, or replace one whose spec differs."""
        if stored is None:
            try:
                await self._store.create(kind, wanted)
            except AlreadyExists as error:
                raise Conflict(f"{kind.kind} {wanted['metadata']['name']} was created meanwhile: read it again") from error
        elif stored["spec"] != wanted["spec"]:
            await self._store.replace(kind, {**stored, "spec": wanted["spec"]})

    async def _publish_slices(
        self, host: AgentHost, stored: StoredHost, publication: HostPublication, page: Page, node_uid: str
    ) -> None:
        found = publication.devices
        held = {booking.device.device for booking in page.bookings if booking.device.driver == host.driver}
        tree, taints = publication.providers, _taints(host, found, page)
        described = host_devices.devices(found, stored.devices, held, taints, pci_ids.database(), tree=tree)
        devices = driver_profile.described(slices.on_providers(described, tree), host.driver_profiles)
        generation = max((part["spec"]["pool"].get("generation", 0) for part in stored.slices), default=0)
        owners = {owner["uid"] for part in stored.slices for owner in part["metadata"].get("ownerReferences") or ()}
        counters = slices.counters(found.offered, found.kept, tree).sets

        def pool(devices: Sequence[Object], generation: int) -> list[Object]:
            return slices.pool(host.name, host.driver, devices, counters, generation=generation, node_uid=node_uid)

        def unchanged(devices: Sequence[Object]) -> bool:
            return owners <= {node_uid} and slices.same_pool(stored.slices, pool(devices, generation))

        if unchanged(devices):
            return
        if any("taints" in device for device in devices) and await self._drops_taints(pool(devices, generation + 1)):
            devices = [device for device in devices if "taints" not in device]
            if unchanged(devices):
                return
        await self._replace_slices(stored.slices, pool(devices, generation + 1))

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

    async def _replace_slices(self, stored: Sequence[Object], wanted: Sequence[Object]) -> None:
        """New slices first, old ones last: a pool that is incomplete in between is not allocated from."""
        known = {part["metadata"]["name"]: part for part in stored}
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


def _taints(host: AgentHost, found: HostDevices, page: Page) -> dict[str, list[Object]]:
    """Why a device must not be allocated, for schedulers that do not read the page."""
    out: dict[str, list[Object]] = defaultdict(list)

    def taint(name: str, word: str) -> None:
        key = TAINT + word
        if all(each["key"] != key for each in out[name]):
            out[name].append({"key": key, "effect": "NoSchedule"})

    for word, entries in (("reserved", page.reserved), ("quarantined", page.quarantined), ("unclean", page.unclean)):
        for entry in entries:
            if entry.device.driver == host.driver:
                taint(entry.device.device, word)
    for name, cause in found.left.items():
        taint(name, cause)
    for booking in page.bookings:
        if booking.holder.kind == "Domain" and booking.device.driver == host.driver:
            taint(booking.device.device, "held")  # no claim says so
    return out


def _inventory(host: AgentHost, publication: HostPublication) -> Object:
    """What slices do not contain: devices that are not offered and why, devices that stay until they are free, warnings."""
    found, cells = publication.devices, publication.cells
    return {
        "apiVersion": kinds.HOST_INVENTORY.api_version, "kind": kinds.HOST_INVENTORY.kind, "metadata": {"name": host.name},
        "spec": {"withheld": [_withheld(each) for each in found.withheld],
                 "left": [{"device": name, "what": what} for name, what in found.left.items()],
                 "warnings": list(publication.warnings),
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
