"""The ledger in Placement's terms: inventory, reserved and used of each resource provider, and the allocations of each
consumer.

A view computed from provider trees and pages; keeps no state. Called by the scheduler, the CLI and the host audit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from outfitter.api import kinds, providers
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import DOMAIN, Page
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import Conflict, Invalid, NotFound
from outfitter.ledger import out_of_service
from outfitter.store.base import Store

DRIVER = "placement.outfitter.dev"  # driver of the bookings of a host's own resources
TRIES = 16
Allocations = dict[str, dict[str, dict[str, int]]]  # consumer's uid -> provider -> resource class -> amount


def host_resources(host: str) -> DeviceId:
    """The device id under which a host's VCPU, MEMORY_MB and DISK_GB are booked."""
    return DeviceId(DRIVER, host, "host")


@dataclass(frozen=True, slots=True)
class Row:
    """One provider with its usage."""

    provider: Provider
    inventories: Mapping[str, Inventory]  # out-of-service devices count as reserved
    used: Mapping[str, int]
    holders: Mapping[str, Sequence[str]]  # device -> its holders, for display


def rows(tree: Sequence[Provider], page: Page) -> list[Row]:
    """The providers of one host. A device that is attached to a domain without a consumer in Placement counts as reserved."""
    out = []
    for provider in tree:
        members = set(provider.devices)
        held: dict[str, list[str]] = defaultdict(list)
        used = 0
        unavailable = {record.device.device for record in (*page.reserved, *page.unclean, *page.quarantined)} & members
        for booking in page.bookings:
            if booking.counted and booking.device.device in members:
                held[booking.device.device].append(str(booking.holder))
                if booking.holder.kind == DOMAIN:
                    unavailable.add(booking.device.device)
                else:
                    used += 1
        inventories = {name: replace(inventory, reserved=min(inventory.total, max(inventory.reserved, len(unavailable))))
                       for name, inventory in provider.inventories.items()}
        out.append(Row(provider, inventories, dict.fromkeys(provider.inventories, used) if members else {}, held))
    return out


def allocations(trees: Iterable[Sequence[Provider]], pages: Iterable[Page]) -> Allocations:
    """The allocations of every consumer; a host's own resources are under the host's name."""
    provider_of = {(provider.parent, device): provider for tree in trees for provider in tree for device in provider.devices}
    out: Allocations = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for page in pages:
        for booking in page.bookings:
            if booking.holder.kind == DOMAIN:
                continue
            for name, amount in (booking.amount.get("resources") or {}).items():
                out[booking.holder.uid][page.host][name] += amount
            provider = provider_of.get((page.host, booking.device.device)) if booking.counted else None
            if provider is not None:
                for name in provider.inventories:
                    out[booking.holder.uid][provider.name][name] += 1
    return {uid: {name: dict(amounts) for name, amounts in of_provider.items()} for uid, of_provider in out.items()}


async def trees(store: Store) -> dict[str, tuple[Provider, ...]]:
    """The providers of each host, by its name."""
    listing = await store.list(kinds.PROVIDER_TREE)
    return {obj["metadata"]["name"]: providers.read(obj) for obj in listing.items}


async def set_reserved(store: Store, name: str, resource_class: str, count: int, *, driver: str, now: str, by: str) -> None:
    """Set the reserved count of a provider's inventory. Written to the provider tree, then to the page; after a crash between
    the two, the next audit of the host writes the page."""
    for _ in range(TRIES):
        obj, provider = await _find(store, name)
        inventory = provider.inventories.get(resource_class)
        if inventory is None:
            raise Invalid(f"provider {name} has no {resource_class}; it has {', '.join(provider.inventories) or 'nothing'}")
        if not 0 <= count <= inventory.total:
            raise Invalid(f"reserved: {count} of {inventory.total} {resource_class} on {name}; write a number from 0 to "
                          f"{inventory.total}")
        changed = replace(provider, generation=provider.generation + 1,
                          inventories={**provider.inventories, resource_class: replace(inventory, reserved=count)})
        try:
            await store.replace(kinds.PROVIDER_TREE, providers.with_providers(
                obj, [changed if other.name == name else other for other in providers.read(obj)]))
        except Conflict:
            continue
        host = obj["metadata"]["name"]
        devices = [DeviceId(driver, host, device) for device in provider.devices]
        await out_of_service.set_reserved(store, host, devices, count, now=now, by=by)
        return
    raise Conflict(f"provider {name} was changed {TRIES} times meanwhile; try again")


async def _find(store: Store, name: str) -> tuple[Object, Provider]:
    for obj in (await store.list(kinds.PROVIDER_TREE)).items:
        for provider in providers.read(obj):
            if provider.name == name:
                return obj, provider
    raise NotFound(f"there is no provider {name!r}; outfit providers lists them")
