"""Which devices of a host an alias matches, held or not, or what the nearest device lacks: for `outfit config check`, which
knows a host and a configuration and asks no server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outfitter.api.device import DRIVER
from outfitter.api.ledger_page.page import Page
from outfitter.api.providers import Provider
from outfitter.api.rejection import Rejection
from outfitter.inventory import slices
from outfitter.inventory.assignable import AssignableDevice
from outfitter.scheduling.dra.slices import PublishedDevice
from outfitter.scheduling.nova import pci_allocator
from outfitter.scheduling.nova.alias import Alias
from outfitter.scheduling.nova.extra_specs import AliasRequest
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.nova.host_state import HostState, PciDevice, PublishedHost


@dataclass(frozen=True, slots=True)
class AliasCoverage:
    alias: Alias
    matching: tuple[PciDevice, ...]
    nearest: PciDevice | None = None  # if none matches: the device that lacks the least
    lacks: Rejection | None = None  # what it lacks, the first of it


def coverage(
    host: str, aliases: AliasSet, offered: Sequence[AssignableDevice], tree: Sequence[Provider]
) -> list[AliasCoverage]:
    """For each alias what it matches of the devices that a host would offer, with the providers that it would report."""
    devices = [PublishedDevice(DRIVER, host, raw, ()) for raw in slices.describe(offered)]
    state = PublishedHost(host, tree, devices).at(Page(Page.blank(host)))
    return [_of_alias(state, alias, aliases.in_placement) for alias in aliases.by_name.values()]


def _of_alias(host: HostState, alias: Alias, in_placement: bool) -> AliasCoverage:
    request = AliasRequest("", alias.name, 1, alias.specs, alias.numa_policy, in_placement)
    matching = tuple(device for device in host.devices if pci_allocator.matches(host, request, device))
    if matching or not host.devices:
        return AliasCoverage(alias, matching)
    nearest = min(host.devices, key=lambda device: pci_allocator.mismatch_count(host, request, device))
    return AliasCoverage(alias, (), nearest, pci_allocator.why_not(host, request, nearest))
