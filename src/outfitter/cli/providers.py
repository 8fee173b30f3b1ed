"""`outfit providers`: resource providers of hosts and devices as Placement counts them, and `outfit providers reserve`."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from outfitter.api import kinds, natural_order
from outfitter.api import providers as stored
from outfitter.api.device import DRIVER
from outfitter.api.ledger_page.page import Page
from outfitter.api.providers import Inventory
from outfitter.cli import printers, time_format, tree_printer
from outfitter.cli.client import Client
from outfitter.cli.device import view
from outfitter.cli.device.out_of_service import acting_user
from outfitter.cli.device.page_warnings import warn_malformed
from outfitter.cli.device.text import NONE, print_lines
from outfitter.cli.tree_printer import Branch
from outfitter.errors import NotFound
from outfitter.ledger import placement_view
from outfitter.ledger.device_list import abbreviated
from outfitter.store.clock import rfc3339

HEAD = ("PROVIDER", "CLASS", "TOTAL", "RESERVED", "USED", "FREE", "TRAITS", "USED BY")
OFF = "set report_in_placement to true in the file of outfit up --config; see docs/configuration.md."


@dataclass(frozen=True, slots=True)
class ProviderUsage:
    """One provider of one host, with its usage."""

    host: str
    row: placement_view.Row
    used: Mapping[str, int]  # by resource class

    def free(self, name: str) -> int:
        inventory = self.row.inventories[name]
        return max(0, int((inventory.total - inventory.reserved) * inventory.allocation_ratio) - self.used.get(name, 0))

    @property
    def users(self) -> list[str]:
        return list(dict.fromkeys(user for users in self.row.holders.values() for user in users))


async def providers(client: Client, *, node: str | None, how: str) -> None:
    fields = f"metadata.name={node}" if node else ""
    trees, pages = await asyncio.gather(view.listed(client, kinds.PROVIDER_TREE, fields),
                                        view.listed(client, kinds.LEDGER_PAGE, fields))
    if node and not trees and not pages:
        await view.read(client, node)  # NotFound if there is no such node
    parsed = {page.host: page for page in map(Page, pages)}
    warn_malformed(entry for page in parsed.values() for entry in page.malformed)
    usages = provider_usages({obj["metadata"]["name"]: obj for obj in trees}, parsed)
    if how == "json":
        click.echo(json.dumps([as_json(usage) for usage in usages], indent=2))
    elif not usages:
        print_lines([f"No provider{f' of {node}' if node else ''} is reported: {OFF}"])
    elif how == "tree":
        print_lines(
            tree_printer.for_terminal(
                (line for branch in tree(usages) for line in tree_printer.tree_lines(branch)),
                plain=tree_printer.is_ascii_only(),
            )
        )
    else:
        print_lines(table(usages))


def provider_usages(trees: Mapping[str, Mapping[str, Any]], pages: Mapping[str, Page]) -> list[ProviderUsage]:
    out = []
    for host in sorted(trees, key=natural_order.natural):
        host_providers, page = stored.read(trees[host]), pages.get(host) or Page(Page.blank(host))
        booked: dict[tuple[str, str], int] = defaultdict(int)
        for places in placement_view.allocations([host_providers], [page]).values():
            for name, amounts in places.items():
                for resource_class, amount in amounts.items():
                    booked[name, resource_class] += amount
        rows = sorted(placement_view.rows(host_providers, page), key=lambda row: natural_order.natural(row.provider.name))
        out += [
            ProviderUsage(host, row, {name: row.used.get(name, booked[row.provider.name, name]) for name in row.inventories})
            for row in rows
        ]
    return out


def table(usages: Sequence[ProviderUsage]) -> list[str]:
    rows = [list(HEAD)]
    for usage in usages:
        provider, many = usage.row.provider, usage.row.inventories
        last = [",".join(sorted(provider.traits)), ", ".join(usage.users)]
        rows += [[provider.name, name, *_numbers(usage, name, inventory), *last] for name, inventory in many.items()]
        if not many:
            rows.append([provider.name, "", "", "", "", "", *last])
    return printers.columns([[cell or NONE for cell in row] for row in rows])


def _numbers(usage: ProviderUsage, name: str, inventory: Inventory) -> list[str]:
    return [str(number) for number in (inventory.total, inventory.reserved, usage.used.get(name, 0), usage.free(name))]


def tree(usages: Sequence[ProviderUsage]) -> Iterator[Branch]:
    """Providers below their parents; a parent may be unreported as yet."""
    branches = {usage.row.provider.name: Branch(_line(usage)) for usage in usages}
    roots: dict[str, Branch] = {}
    for usage in usages:
        name, parent = usage.row.provider.name, usage.row.provider.parent
        if not parent:
            roots[name] = branches[name]
        elif parent in branches:
            branches[parent].below.append(branches[name])
        else:
            roots.setdefault(parent, Branch(parent)).below.append(branches[name])
    yield from roots.values()


def _line(usage: ProviderUsage) -> str:
    provider = usage.row.provider
    parts = [
        f"{name} {usage.free(name)} free of {inventory.total}"
        + (f", {inventory.reserved} reserved" if inventory.reserved else "")
        + (f", {usage.used[name]} used" if usage.used.get(name) else "")
        for name, inventory in usage.row.inventories.items()
    ]
    parts += [" ".join(sorted(provider.traits)), f"used by {', '.join(usage.users)}" if usage.users else ""]
    return "  ".join([provider.name, *filter(None, parts)])


def as_json(usage: ProviderUsage) -> dict[str, Any]:
    """docs/commands.md lists the keys."""
    provider = usage.row.provider
    return {
        "node": usage.host, "name": provider.name, "uuid": provider.uuid, "parent": provider.parent or None,
        "generation": provider.generation, "traits": sorted(provider.traits), "configured": sorted(provider.configured),
        "devices": list(provider.devices),
        "inventories": {name: {**inventory.to_object(), "used": usage.used.get(name, 0), "free": usage.free(name)}
                        for name, inventory in usage.row.inventories.items()},
        "holders": {device: list(users) for device, users in usage.row.holders.items()},
    }


async def reserve(client: Client, name: str, count: int, *, resource_class: str | None) -> None:
    """Reserve `count` devices of a provider; the ledger chooses which."""
    host, provider = await _find(client, name)
    classes = list(provider.inventories)
    if resource_class is None and len(classes) != 1:
        raise click.UsageError(f"provider {name} has {', '.join(classes) or 'no classes'}; choose one with --class")
    chosen = resource_class or classes[0]
    drivers = await _drivers(client, host)
    driver = next((drivers[device] for device in provider.devices if device in drivers), DRIVER)
    now, by = rfc3339(time_format.now()), await acting_user(client)
    await placement_view.set_reserved(client.readable, name, chosen, count, driver=driver, now=now, by=by)
    inventory = provider.inventories[chosen]
    outcome = f"{count} of {inventory.total} {chosen} reserved"
    print_lines([f"{name}: {outcome}" + (f" (was {inventory.reserved})" if inventory.reserved != count else " already")])


async def _find(client: Client, name: str) -> tuple[str, stored.Provider]:
    names = []
    for host, host_providers in (await placement_view.trees(client.readable)).items():
        for provider in host_providers:
            names.append(provider.name)
            if provider.name == name:
                return host, provider
    if not names:
        raise NotFound(f"there is no provider {name!r}. No provider is reported: {OFF}")
    raise NotFound(f"there is no provider {name!r}; there are {abbreviated(sorted(names, key=natural_order.natural))}")


async def _drivers(client: Client, host: str) -> dict[str, str]:
    """Device name -> the driver that publishes it."""
    slices = (await client.readable.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host}")).items
    return {device["name"]: part["spec"]["driver"] for part in slices for device in part["spec"].get("devices") or ()}
