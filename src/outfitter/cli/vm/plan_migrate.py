"""`outfit plan migrate`: where a running VM would migrate to and what becomes of its devices. Changes nothing."""

from __future__ import annotations

import json

import click

from outfitter.api import kinds
from outfitter.api.kubevirt import kubevirt_config
from outfitter.cli.client import Client
from outfitter.cli.device.view import listed
from outfitter.cli.why import cluster_objects
from outfitter.controllers.migrations import migration_plan
from outfitter.controllers.migrations.migration_plan import MigrationPlan
from outfitter.errors import Forbidden


async def migrate(client: Client, name: str, *, to: str | None, how: str) -> None:
    """Exits with status 1 if it is not possible."""
    found = await planned(client, name, to or "")
    if how == "json":
        click.echo(json.dumps(found.to_object(), indent=2))
    else:
        for line in text(found):
            click.echo(line)
    if not found.possible:
        raise SystemExit(1)


async def planned(client: Client, name: str, to: str = "") -> MigrationPlan:
    vmi = await client.readable.get(kinds.VMI, name, client.namespace)
    there = await cluster_objects(client)
    if there.unread:
        raise Forbidden(f"a plan needs to read {', '.join(there.unread)}, which you have no permission for; ask an "
                        "administrator")
    definitions = {(one["metadata"]["namespace"], one["metadata"]["name"]): one
                   for one in await listed(client, kinds.NETWORK_ATTACHMENT)}
    config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(await listed(client, kinds.KUBEVIRT)))
    return migration_plan.plan(vmi, config, lambda namespace, definition: definitions.get((namespace, definition)), there,
                               to=to)


def text(found: MigrationPlan) -> list[str]:
    head = f"vmi/{found.vmi} would migrate from {found.source} to {found.target}" if found.possible else (
        f"vmi/{found.vmi} cannot migrate from {found.source}: {found.reason}")
    return [head, *lines(found)]


def lines(found: MigrationPlan) -> list[str]:
    """What becomes of each device."""
    return [f"  {one.name}: {one.outcome}{f' ({one.reason})' if one.reason else ''}" for one in found.devices]
