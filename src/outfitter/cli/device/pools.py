"""`outfit devices` for a user who may not see who holds devices: free and held devices of each pool, as the aggregated API of
a cluster counts them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from outfitter.api import kinds
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.cli.device.text import NONE, print_lines
from outfitter.errors import CommandFailed, Forbidden, NotFound

HEAD = ("NODE", "POOL", "DRIVER", "DEVICES", "FREE", "HELD", "UNAVAILABLE")
FIELDS = ("nodeName", "poolName", "driver", "totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")
COUNTED = slice(3, None)  # of FIELDS


async def print_pools(client: Client, refused: Forbidden, *, node: str | None, how: str, detailed: bool) -> None:
    """`refused`: why devices cannot be listed; `detailed`: options were given that need them."""
    try:
        pools = (await client.store.list(kinds.POOL_STATUS)).items
    except (Forbidden, NotFound):
        raise CommandFailed(f"{refused.message}; free and held devices can be counted without that right where the cluster has "
                            f"{kinds.POOL_STATUS.resource}: outfit install adds it") from None
    if detailed:
        raise CommandFailed(f"{refused.message}; without that right there are counts of each pool: outfit devices, without "
                            "--state, --all and -o tree")
    pools = [{field: pool[field] for field in FIELDS if field in pool} for pool in pools
             if node is None or pool.get("nodeName") == node]
    click.echo(f"{refused.message}: showing how many devices of each pool are free and held", err=True)
    if how == "json":
        click.echo(json.dumps(pools, indent=2))
        return
    rows = [[str(pool.get(field, NONE)) for field in FIELDS] for pool in pools]
    sums = [sum(pool.get(field, 0) for pool in pools) for field in FIELDS[COUNTED]]
    print_lines([*printers.columns([HEAD, *rows]), "", _summary(sums)] if pools else ["No device is known."])


def _summary(sums: Sequence[int]) -> str:
    devices, free, held, unavailable = sums
    return f"{devices} device{'' if devices == 1 else 's'}: {free} free, {held} held, {unavailable} unavailable"
