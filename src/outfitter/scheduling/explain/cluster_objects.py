"""All objects that an answer to "why" may need, read at about one moment, the look-ups in them, and the scheduling snapshot
that they make. Called by `outfit why` and `outfit plan`; pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.device import VANISHED, DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import attachment_pods, vm
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.api.ledger_page.page_entries import MalformedEntry
from outfitter.api.rejection import Rejection, RejectionCode, unreadable
from outfitter.api.validate.readable import UnreadableObject
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import assigned_devices, extended_resources
from outfitter.scheduling.dra.device_index import FEATURES, DeviceIndex
from outfitter.scheduling.dra.published_device import published_device
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.nova.host_state_cache import HostStateCache
from outfitter.scheduling.placement import Placement, Waiting
from outfitter.scheduling.plugins import NO_PLUGINS, SchedulerPlugins
from outfitter.scheduling.scheduler import place
from outfitter.scheduling.score import Policy
from outfitter.scheduling.snapshot import Claims, SchedulingSnapshot

# Kinds of which a pod does not name the object that it needs.
SCHEDULED_ON = (kinds.RESOURCE_SLICE, kinds.NODE, kinds.LEDGER_PAGE, kinds.DEVICE_TAINT_RULE, kinds.PROVIDER_TREE,
                kinds.HOST_INVENTORY)


@dataclass(frozen=True)
class ClusterObjects:
    """Objects as the store has them."""

    instances: Sequence[Object]
    pods: Sequence[Object]
    claims: Sequence[Object]
    classes: Sequence[Object]
    slices: Sequence[Object]
    pages: Sequence[Object]
    nodes: Sequence[Object]
    plugins: SchedulerPlugins = NO_PLUGINS
    templates: Sequence[Object] = ()
    unread: tuple[str, ...] = ()  # kinds that the one who asks may not read, by their plural
    rules: Sequence[Object] = ()  # DeviceTaintRules
    policy: Policy = "pack"
    features: Features = FEATURES
    trees: Sequence[Object] = ()  # ProviderTrees
    inventories: Sequence[Object] = ()
    aliases: AliasSet | None = None  # that are configured now; None: not known
    now: datetime | None = None  # None: no host is skipped, and no toleration expires
    migrations: Sequence[Object] = ()
    kubevirts: Sequence[Object] = ()
    unreadable: Sequence[UnreadableObject] = ()  # what was left out of all these
    time: Callable[[str], str] = str  # how an answer shows stored times: as they are, or as local time

    def claim(self, namespace: str, name: str) -> Object | None:
        """None: there is none. Unreadable: there is one that cannot be read."""
        self._require_readable(kinds.RESOURCE_CLAIM, f"{namespace}/{name}")
        return self._claims.get((namespace, name))

    def class_(self, name: str) -> Object | None:
        self._require_readable(kinds.DEVICE_CLASS, name)
        return _named(self.classes, "", name)

    def _require_readable(self, kind: Kind, key: str) -> None:
        for found in self.unreadable:
            if (found.kind, found.key) == (kind, key):
                raise found.error()

    def template(self, namespace: str, name: str) -> Object | None:
        return _named(self.templates, namespace, name)

    def node(self, name: str) -> Object | None:
        return self._nodes.get(name)

    def pods_of(self, uid: str) -> Sequence[Object]:
        """The pods that have an owner with this uid."""
        return self._pods_of_owners.get(uid, ())

    def pool(self, driver: str, name: str) -> Sequence[Object]:
        """The slices of a pool."""
        return self._slices_of_pools.get((driver, name), ())

    def absence(self, name: str) -> str:
        """Why a node has no running agent; "" if it has one, or if nodes may not be read."""
        return "" if kinds.NODE.plural in self.unread else conditions.not_ready_reason(self.node(name))

    def quarantine(self, device: DeviceId) -> OutOfServiceRecord | None:
        return next(
            (record for page in self._parsed_pages() for record in page.quarantined if record.device == device), None)

    def vanished(self, device: DeviceId) -> bool:
        """Whether a device is no longer on the bus of its host, though it is held."""
        return any({"device": device.device, "what": "vanished"} in (host.get("spec") or {}).get("left", ())
                   for host in self.inventories if host["metadata"]["name"] == device.pool)

    def published_on(self, host: str, device: DeviceId) -> Mapping[str, Any] | None:
        """A device that is in use on a host, if its driver still publishes it; {} if slices may not be read."""
        if kinds.RESOURCE_SLICE.plural in self.unread:
            return {}
        found = published_device(device.device, self.pool(device.driver, device.pool), host, self.node(host))
        gone = found is not None and self.vanished(device)  # its taint may have been dropped by the API server
        return {**found, "taints": [{"key": VANISHED}]} if found is not None and gone else found

    def published(self, device: DeviceId) -> bool:
        return device in self._published

    def bookings(self, uid: str) -> list[tuple[str, Booking]]:
        return [(page.host, booking) for page in self._parsed_pages() for booking in page.of(uid)]

    @functools.cached_property
    def snapshot(self) -> SchedulingSnapshot:
        """What the scheduler would decide on. A device that a claim was allocated and that is on no page (another driver's) is
        held as well."""
        index = DeviceIndex.of(self.slices, self._parsed_pages(), self.nodes, self.features, self.rules,
                               inventories=self.inventories)
        for found in self.unreadable:
            if found.kind in SCHEDULED_ON:
                index.put_unreadable(found.kind, found.key, unreadable(found))
        for claim in self.claims:
            for result, held in self._unpaged(claim):
                index.hold(result, held)
        return SchedulingSnapshot(
            devices=index, usage=NodeUsage(self.pods), claim=self.claim, device_class=self.class_,
            extended_resource=extended_resources.mapped(self.classes),
            host_states=HostStateCache.of(self.trees, self.inventories), plugins=self.plugins,
            policy=self.policy, now=self.now)

    def snapshot_for(self, obj: Object, claims: Claims | None = None) -> SchedulingSnapshot:
        """The snapshot for the placement of one pod: what is pre-assigned to other pods that wait is kept for them.
        `claims`: those to look up instead, where some are not stored yet."""
        waiting = [pod for pod in self._unbound if pod["metadata"]["uid"] != obj["metadata"].get("uid")
                   and (pod.get("status") or {}).get("phase", "Pending") == "Pending" and any(extended_resources.presets(pod))]
        devices = self.snapshot.devices
        devices.held.kept = assigned_devices.kept(waiting, devices, self.snapshot.extended_resource) if waiting else {}
        return replace(self.snapshot, claim=claims) if claims is not None else self.snapshot

    def choose(self, obj: Object, claims: Claims | None = None) -> Placement | Waiting:
        """What the scheduler would do with a pod, with the reason of each host."""
        return place(self.snapshot_for(obj, claims), obj, every_host=True)

    @functools.cached_property
    def _unbound(self) -> list[Object]:
        return [pod for pod in self.pods if not pod["spec"].get("nodeName")]

    @functools.cached_property
    def _pods_of_owners(self) -> dict[str, list[Object]]:
        out: dict[str, list[Object]] = {}
        for pod in self.pods:
            for reference in pod["metadata"].get("ownerReferences") or ():
                out.setdefault(reference.get("uid", ""), []).append(pod)
        return out

    @functools.cached_property
    def _slices_of_pools(self) -> dict[tuple[str, str], list[Object]]:
        out: dict[tuple[str, str], list[Object]] = {}
        for part in self.slices:
            out.setdefault((part["spec"]["driver"], part["spec"]["pool"]["name"]), []).append(part)
        return out

    @functools.cached_property
    def _nodes(self) -> dict[str, Object]:
        return {node["metadata"]["name"]: node for node in reversed(self.nodes)}

    @functools.cached_property
    def _claims(self) -> dict[tuple[str, str], Object]:
        """The first of a name counts: what a plan brings along stands before what is there."""
        return {(claim["metadata"].get("namespace", ""), claim["metadata"]["name"]): claim for claim in reversed(self.claims)}

    @property
    def malformed(self) -> list[MalformedEntry]:
        """The entries of pages that cannot be read; each is missing in the answer."""
        return [entry for page in self._parsed_pages() for entry in page.malformed]

    @functools.cached_property
    def _published(self) -> set[DeviceId]:
        return {DeviceId(part["spec"]["driver"], part["spec"]["pool"]["name"], device["name"])
                for part in self.slices for device in part["spec"].get("devices") or ()}

    @functools.cached_property
    def _known_pages(self) -> dict[str, Page]:
        return {}

    def _parsed_pages(self) -> list[Page]:
        """Each page is parsed once; a plan replaces some."""
        known = self._known_pages
        for obj in self.pages:
            name = obj["metadata"]["name"]
            if (page := known.get(name)) is None or page.object is not obj:
                known[name] = Page(obj)
        return [known[obj["metadata"]["name"]] for obj in self.pages]

    @functools.cached_property
    def _booked(self) -> set[tuple[DeviceId, str]]:
        return {(booking.device, booking.holder.uid) for page in self._parsed_pages() for booking in page.bookings}

    def _unpaged(self, claim: Object) -> Iterator[tuple[Object, Rejection]]:
        given = (claim.get("status") or {}).get("allocation") or {}
        meta = claim["metadata"]
        for result in (given.get("devices") or {}).get("results") or ():
            device = DeviceId(result["driver"], result["pool"], result["device"])
            if (device, meta.get("uid", "")) not in self._booked:
                yield result, Rejection(RejectionCode.HELD, device, self.user(claim), given.get("allocationTimestamp") or "")

    def called(self, namespace: str, name: str) -> str:
        """The name of a pod, for messages."""
        found = _named(self.pods, namespace, name)
        return vmi_or_pod_name(found) if found is not None else f"pod/{name}"

    def user(self, claim: Object) -> Holder:
        """For whom a claim has its devices, as a page would record it."""
        meta = claim["metadata"]
        return Holder(kinds.RESOURCE_CLAIM.kind, meta["namespace"], meta["name"], meta.get("uid", ""), self._used_by(claim))

    def _used_by(self, claim: Object) -> str:
        """The VM or pod that uses a claim; "" if there is none."""
        users = (claim.get("status") or {}).get("reservedFor") or ()
        reserved = next((one for one in users if one.get("resource") == "pods"), None)
        return self.called(claim["metadata"]["namespace"], reserved["name"]) if reserved is not None else ""


def _named(objects: Sequence[Object], namespace: str, name: str) -> Object | None:
    return next((obj for obj in objects
                 if (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) == (namespace, name)), None)


def vmi_or_pod_name(pod: Mapping[str, Any]) -> str:
    """A pod's name for messages: "vmi/blue" for the launcher pod of a VMI, and for pods that hold what is plugged into it, else
    "pod/web"."""
    owner = vm.owner(pod, kinds.VMI.kind)
    name = owner["name"] if owner else attachment_pods.vmi_name(pod)
    return f"vmi/{name}" if name else f"pod/{pod['metadata']['name']}"
