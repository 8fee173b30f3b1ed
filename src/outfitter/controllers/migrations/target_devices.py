"""The devices of migrations, for the migration controller: what becomes of each, the claims of the target's pod, what the
target has, and what is done with claims and bookings when the VM has arrived. Reads the cache; the rules are in
`scheduling.device_migration` and `target_claims`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import (
    attachment_pods,
    device_refs,
    device_status,
    pod_claims,
    reattached_devices,
    vm,
    vm_claim_templates,
)
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.ledger_page.page import Page
from outfitter.api.ledger_page.page_entries import claim_keys
from outfitter.controllers.device_lookup import DeviceLookup
from outfitter.controllers.device_status_entries import find_devices
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.migrations import target_claims
from outfitter.errors import AlreadyExists, NotFound
from outfitter.ledger import book
from outfitter.scheduling import device_migration, device_twins
from outfitter.scheduling.device_migration import DeviceMigration, SourceView
from outfitter.scheduling.device_twins import PublishedTwins
from outfitter.store.informer import key_of

CLAIM = "claim"  # index of pods and of pages


@dataclass(frozen=True, slots=True)
class TargetDeviceStatus:
    """What is known of the devices of a target's pod; `missing` is empty when it is proven to have all of them."""

    status: Object | None = None
    flavor: Object | None = None
    missing: tuple[str, ...] = ()


NO_DEVICES = TargetDeviceStatus()


class TargetDevices:
    def __init__(self, context: ControllerContext, gates: Callable[[], Gates]) -> None:
        self._context, self._store, self._gates = context, context.store, gates
        self.claims = context.informer(kinds.RESOURCE_CLAIM)
        self._pages = context.informer(kinds.LEDGER_PAGE)
        self._pages.add_index(CLAIM, claim_keys)
        self.lookup = DeviceLookup(context)

    def _view(self, vmi: Object, source: Object | None) -> SourceView:
        node = self.lookup.nodes.readable(str((vmi.get("status") or {}).get("nodeName") or ""))
        return SourceView(source, self._claim, self.lookup.find, self._gates(), attachment_pods.plugs_in_place(node))

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self.claims.get(f"{namespace}/{name}")

    def plan(self, vmi: Object, source: Object | None) -> tuple[DeviceMigration, ...]:
        """`source`: the pod that the VMI runs in."""
        return device_migration.device_migrations(vmi, self._view(vmi, source))

    def with_twins(
        self, devices: tuple[DeviceMigration, ...], vmi: Object, source: Object | None
    ) -> tuple[DeviceMigration, ...]:
        """Of a migration that no host can take: which devices have no free twin on another host."""
        published = PublishedTwins(list(self.lookup.slices.items()), list(self._pages.items()), list(self.claims.items()))
        return device_twins.with_twins(devices, vmi, self._view(vmi, source), published)

    # -- the target's claims

    def rendered(self, vmi: Object, job: Object, pod: Object, source: Object | None) -> Object:
        """The target's pod with its own claims."""
        view = self._view(vmi, source)
        pod = target_claims.with_reattached(
            target_claims.without_unplugged(vmi, pod, view), device_migration.device_migrations(vmi, view))
        return target_claims.with_target_claims(pod, target_claims.target_claims(vmi, job, pod, view))

    async def provide(self, vmi: Object, job: Object, pod: Object, source: Object | None) -> None:
        """Every claim of the target's pod exists that no template makes."""
        used = {name for _, name in pod_claims.claim_names(pod)}
        for claim in target_claims.target_claims(vmi, job, pod, self._view(vmi, source)):
            meta = claim["metadata"]
            if meta["name"] in used and self._claim(meta["namespace"], meta["name"]) is None:
                try:
                    await self._context.create(kinds.RESOURCE_CLAIM, target_claims.owned_by(claim, pod))
                except AlreadyExists:  # the cache is behind
                    continue

    def status(self, vmi: Object, pod: Object) -> TargetDeviceStatus:
        """The device status of the target: of its own claims, which are reserved for its pod. Devices that are reattached, or
        not plugged yet, are marked: they are plugged after the arrival."""
        if not any(ref.by_claim for ref in device_refs.device_refs(vmi)) and not vm.flavored(vmi).get("claimName"):
            return NO_DEVICES
        found = find_devices(vmi, pod, self._claim, self.lookup.find)
        missing = list(found.missing)
        for list_ in device_refs.LISTS:
            here = Counter(str(entry.get("name")) for entry in device_status.statuses(vmi, list_))
            there = Counter(str(entry["name"]) for entry in (found.status or {}).get(device_status.STATUS_LISTS[list_]) or ())
            missing += [f"{name}: the target has {there[name]} devices where the VM has {number}"
                        for name, number in here.items() if there[name] != number and not found.missing]
        flavor = None
        if name := dict(pod_claims.claim_names(pod)).get(device_refs.FLAVOR_CLAIM):
            claim = self._claim(pod["metadata"]["namespace"], name)
            flavor = {"claimName": name, **pod_claims.cells_of(claim or {})}
        claims = {(ref.list, ref.name): ref.claim or "" for ref in device_refs.written_refs(vmi)}
        waiting = {(ref.list, ref.name) for ref in device_refs.written_refs(vmi)
                   if ref.by_claim and not attachment_pods.in_guest(vmi, ref)}
        left = (reattached_devices.planned_for(pod) & claims.keys()) | waiting
        status = reattached_devices.marked(found.status or {}, left, claims, pod["metadata"]["name"])
        return TargetDeviceStatus(status, flavor, tuple(missing))

    # -- afterwards

    async def arrived(self, vmi: Object, pod: Object) -> None:
        """The VM runs in the target's pod: the bookings are its own now, and claims that the VM or the VMI owned are replaced
        by the target's."""
        claims = [claim for key in pod_claims.claim_keys(pod) if (claim := self.claims.get(key)) is not None]
        uids, purpose = {claim["metadata"]["uid"] for claim in claims}, f"vmi/{vmi['metadata']['name']}"
        pages = {page["metadata"]["name"]: Page(page) for claim in claims for page in self._pages.by(CLAIM, key_of(claim))}
        for host, page in pages.items():
            if any(booking.holder.purpose != purpose for uid in uids for booking in page.of(uid)):
                await book.set_purpose(self._store, host, uids, purpose, known=page)
        for claim in claims:
            await self._replace(vmi, claim)

    async def _replace(self, vmi: Object, claim: Object) -> None:
        """The second claim takes the place of the first, if the VM or the VMI owns that. It is deleted last, so that this is
        repeated after a crash."""
        meta, notes = claim["metadata"], claim["metadata"].get("annotations") or {}
        first = self._claim(meta["namespace"], notes.get(target_claims.REPLACES) or "")
        if first is None or vm.owner(first, kinds.POD.kind) is not None or not first["metadata"].get("ownerReferences"):
            return
        owners = first["metadata"]["ownerReferences"]
        if meta.get("ownerReferences") != owners:
            await self._context.patch_metadata(kinds.RESOURCE_CLAIM, claim, {"ownerReferences": owners})
        if (owner := vm.owner(first, kinds.VM.kind)) is not None:
            await self._rename(vmi, owner, notes[target_claims.ENTRY], meta["name"])
        if not first["metadata"].get("deletionTimestamp"):
            with contextlib.suppress(NotFound):
                await self._store.delete(kinds.RESOURCE_CLAIM, first["metadata"]["name"], meta["namespace"],
                                         uid=first["metadata"]["uid"])

    async def _rename(self, vmi: Object, owner: Object, entry: str, name: str) -> None:
        """VM and VMI name the second claim from now on."""
        key, namespace = f"{vm_claim_templates.CLAIM_OF_ENTRY}{entry}", vmi["metadata"]["namespace"]
        machine = await self._store.get(kinds.VM, owner["name"], namespace)
        if machine["metadata"]["uid"] == owner["uid"] and vm_claim_templates.migrated_claim(machine, entry) != name:
            await self._context.patch_metadata(kinds.VM, machine, {"annotations": {key: name}})
        stored = await self._store.get(kinds.VMI, vmi["metadata"]["name"], namespace)
        listed = [{**one, "resourceClaimName": name} if one.get("name") == entry else one
                  for one in stored["spec"].get("resourceClaims") or ()]
        if stored["metadata"]["uid"] == vmi["metadata"]["uid"] and listed != stored["spec"].get("resourceClaims"):
            await self._context.patch(kinds.VMI, stored, {"spec": {"resourceClaims": listed}})
