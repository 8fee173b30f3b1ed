"""What a placement is decided on: devices, pages and nodes with their taint rules and feature gates, what pods use, claims and
classes, plug-ins, policy and time.

    snapshot = SchedulingSnapshot(devices=index, usage=usage, claim=claims.get, device_class=classes.get)
    verdict = place(snapshot, pod)
    verdict = place(snapshot.restricted_to(["host-a"]).without({uid}), pod)      # what if this claim were released?

The scheduler controller, `outfit why` with its suggestions, `outfit plan` and evictions all decide on one. It is a view: the
parts belong to the cache that keeps them up to date and are not copied for a decision. It reads nothing and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import allocator, extended_resources
from outfitter.scheduling.dra.claim_request import Classes
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.filter.node_fit import NodeInfoCache
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.filter.taints import Taint
from outfitter.scheduling.nova.host_state_cache import HostStateCache
from outfitter.scheduling.plugins import NO_PLUGINS, SchedulerPlugins
from outfitter.scheduling.score import Policy

Claims = Callable[[str, str], Object | None]  # namespace, name -> ResourceClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSnapshot:
    """The state that one decision is made on."""

    devices: DeviceIndex  # slices, pages, nodes, DeviceTaintRules and feature gates
    usage: NodeUsage  # what pods take of nodes
    claim: Claims
    device_class: Classes
    extended_resource: extended_resources.Resources = extended_resources.nothing  # its name -> the DeviceClass that maps it
    node_infos: NodeInfoCache = field(default_factory=NodeInfoCache)  # nodes as they were read
    host_states: HostStateCache = field(default_factory=HostStateCache)  # what hosts offer to flavors
    plugins: SchedulerPlugins = NO_PLUGINS
    policy: Policy = "pack"
    now: datetime | None = None  # None: no host is excluded for a time, and no toleration ends
    resume: dict[str, str] = field(default_factory=dict)  # uid of a pod -> the host at which its last search took too long
    share_id: Callable[[], str] = allocator.anything  # names what a claim gets of a device that is shared

    @property
    def features(self) -> Features:
        return self.devices.features

    def taints(self, device: DeviceId) -> list[Taint]:
        """The taints that are published with a device or put on it by a DeviceTaintRule; none where taints are switched off."""
        return self.devices.pools.taints(device) if self.features.device_taints else []

    # -- what if

    def restricted_to(self, hosts: Collection[str]) -> SchedulingSnapshot:
        """The same state as if there were only these hosts. Changes of the copy are not seen by the original."""
        return replace(self, devices=self.devices.restricted_to(hosts))

    def without(self, holders: Collection[str]) -> SchedulingSnapshot:
        """The same state as if these holders (uids of claims) had released everything."""
        return replace(self, devices=self.devices.without(holders))

    def emptied(self) -> SchedulingSnapshot:
        """The same state as if no device were held or out of service."""
        blank = self.devices.with_pages(Page(Page.blank(page.host)) for page in self.devices.pages)
        return replace(self, devices=blank.without(blank.holders))

    def without_rules(self, names: Collection[str]) -> SchedulingSnapshot:
        """The same state as if these DeviceTaintRules did not exist."""
        return replace(self, devices=self.devices.without_rules(names))

    def with_page(self, page: Page) -> SchedulingSnapshot:
        """The same state with another page in the place of its namesake."""
        return replace(self, devices=self.devices.with_pages([page]))

    def with_node(self, node: Object) -> SchedulingSnapshot:
        """The same state with another node in the place of its namesake."""
        devices = self.devices.restricted_to(self.devices.hosts)
        devices.put_node(node["metadata"]["name"], node)
        return replace(self, devices=devices, node_infos=NodeInfoCache())
