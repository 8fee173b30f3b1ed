"""`outfit providers`: hosts and devices as Placement counts them."""

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
from outfitter.api.page import Page
from outfitter.api.providers import Inventory
from outfitter.cli import printers, time_format, tree_printer
from outfitter.cli.client import Client
from outfitter.cli.device import view
from outfitter.cli.device.out_of_service import who
from outfitter.cli.device.text import NONE, say
from outfitter.cli.tree_printer import Branch
from outfitter.errors import NotFound
from outfitter.ledger import placement_view
from outfitter.store.clock import rfc3339

HEAD = ("PROVIDER", "CLASS", "TOTAL", "RESERVED", "USED", "FREE", "TRAITS", "USED BY")
OFF = ("No provider is reported: hosts are counted once report_in_placement is true in the file that outfit up --config "
       "reads; see docs/configuration.md.")


@dataclass(frozen=True, slots=True)
class Counted:
    """One provider of one host, with what is used of it."""

    host: str
    row: placement_view.Row
    used: Mapping[str, int]  # by resource class

    def free(self, name: str) -> int:
        each = self.row.inventories[name]
        return max(0, int((each.total - each.reserved) * each.allocation_ratio) - self.used.get(name, 0))

    @property
    def users(self) -> list[str]:
        return list(dict.fromkeys(user for users in self.row.holders.values() for user in users))


async def providers(client: Client, *, node: str | None, how: str) -> None:
    fields = f"metadata.name={node}" if node else ""
    trees, pages = await asyncio.gather(view.listed(client, kinds.PROVIDER_TREE, fields),
                                        view.listed(client, kinds.LEDGER_PAGE, fields))
    if node and not trees and not pages:
        await view.read(client, node)  # says so if there is no such node
    found = counted({obj["metadata"]["name"]: obj for obj in trees}, {page.host: page for page in map(Page, pages)})
    if how == "json":
        click.echo(json.dumps([as_json(each) for each in found], indent=2))
    elif not found:
        say([f"No provider of {node} is reported{OFF.removeprefix('No provider is reported')}" if node else OFF])
    elif how == "tree":
        say(
            tree_printer.spelled(
                (line for branch in tree(found) for line in tree_printer.drawn(branch)), plain=tree_printer.is_plain()
            )
        )
    else:
        say(table(found))


def counted(trees: Mapping[str, Mapping[str, Any]], pages: Mapping[str, Page]) -> list[Counted]:
    out = []
    for host in sorted(trees, key=natural_order.natural):
        those, page = stored.read(trees[host]), pages.get(host) or Page(Page.blank(host))
        booked: dict[tuple[str, str], int] = defaultdict(int)
        for places in placement_view.allocations([those], [page]).values():
            for name, amounts in places.items():
                for resource_class, amount in amounts.items():
                    booked[name, resource_class] += amount
        rows = sorted(placement_view.rows(those, page), key=lambda row: natural_order.natural(row.provider.name))
        out += [Counted(host, row, {name: row.used.get(name, booked[row.provider.name, name]) for name in row.inventories})
                for row in rows]
    return out


def table(found: Sequence[Counted]) -> list[str]:
    rows = [list(HEAD)]
    for each in found:
        provider, many = each.row.provider, each.row.inventories
        last = [",".join(sorted(provider.traits)), ", ".join(each.users)]
        rows += [[provider.name, name, *_numbers(each, name, inventory), *last] for name, inventory in many.items()]
        if not many:
            rows.append([provider.name, "", "", "", "", "", *last])
    return printers.columns([[cell or NONE for cell in row] for row in rows])


def _numbers(each: Counted, name: str, inventory: Inventory) -> list[str]:
    return [str(number) for number in (inventory.total, inventory.reserved, each.used.get(name, 0), each.free(name))]


def tree(found: Sequence[Counted]) -> Iterator[Branch]:
    """Each provider below its parent, which need not be a provider itself yet."""
    branches = {each.row.provider.name: Branch(_line(each)) for each in found}
    roots: dict[str, Branch] = {}
    for each in found:
        name, parent = each.row.provider.name, each.row.provider.parent
        if not parent:
            roots[name] = branches[name]
        elif parent in branches:
            branches[parent].below.append(branches[name])
        else:
            roots.setdefault(parent, Branch(parent)).below.append(branches[name])
    yield from roots.values()


def _line(each: Counted) -> str:
    provider = each.row.provider
    parts = [f"{name} {each.free(name)} free of {inventory.total}"
             + (f", {inventory.reserved} reserved" if inventory.reserved else "")
             + (f", {each.used[name]} used" if each.used.get(name) else "") for name, inventory in each.row.inventories.items()]
    parts += [" ".join(sorted(provider.traits)), f"used by {', '.join(each.users)}" if each.users else ""]
    return "  ".join([provider.name, *filter(None, parts)])


def as_json(each: Counted) -> dict[str, Any]:
    """docs/commands.md lists the keys."""
    provider = each.row.provider
    return {
        "node": each.host, "name": provider.name, "uuid": provider.uuid, "parent": provider.parent or None,
        "generation": provider.generation, "traits": sorted(provider.traits), "configured": sorted(provider.configured),
        "devices": list(provider.devices),
        "inventories": {name: {**inventory.to_object(), "used": each.used.get(name, 0), "free": each.free(name)}
                        for name, inventory in each.row.inventories.items()},
        "holders": {device: list(users) for device, users in each.row.holders.items()},
    }


async def reserve(client: Client, name: str, count: int, *, resource_class: str | None) -> None:
    """Keep so many devices of a provider out; which ones is the ledger's business."""
    host, provider = await _find(client, name)
    classes = list(provider.inventories)
    if resource_class is None and len(classes) != 1:
        raise click.UsageError(f"provider {name} has {', '.join(classes) or 'no classes'}; say which with --class")
    chosen = resource_class or classes[0]
    drivers = await _drivers(client, host)
    driver = next((drivers[device] for device in provider.devices if device in drivers), DRIVER)
    now, by = rfc3339(time_format.now()), await who(client)
    await placement_view.set_reserved(client.store, name, chosen, count, driver=driver, now=now, by=by)
    inventory = provider.inventories[chosen]
    said = f"{count} of {inventory.total} {chosen} reserved"
    say([f"{name}: {said}" + (f" (was {inventory.reserved})" if inventory.reserved != count else " already")])


async def _find(client: Client, name: str) -> tuple[str, stored.Provider]:
    names = []
    for host, those in (await placement_view.trees(client.store)).items():
        for provider in those:
            names.append(provider.name)
            if provider.name == name:
                return host, provider
    if not names:
        raise NotFound(f"there is no provider {name!r}. {OFF}")
    raise NotFound(f"there is no provider {name!r}; there are {view.few(sorted(names, key=natural_order.natural))}")


async def _drivers(client: Client, host: str) -> dict[str, str]:
    """Device -> who publishes it."""
    slices = (await client.store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host}")).items
    return {device["name"]: part["spec"]["driver"] for part in slices for device in part["spec"].get("devices") or ()}
