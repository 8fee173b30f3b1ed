"""`outfit devices` for a user who may not see who holds devices: free and held devices of each pool, as the aggregated API of
a cluster counts them, or as Kubernetes does where only that is there (ResourcePoolStatusRequest)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from outfitter.api import kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.cli.device import pool_status_request
from outfitter.cli.device.text import NONE, print_lines
from outfitter.errors import CommandFailed, Forbidden, NotFound, Unavailable

HEAD = ("NODE", "POOL", "DRIVER", "DEVICES", "FREE", "HELD", "UNAVAILABLE")
FIELDS = ("nodeName", "poolName", "driver", "totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")
COUNTED = slice(3, None)  # of FIELDS
SHOWN = (*FIELDS, "validationError")


async def print_pools(
    client: Client, refused: Forbidden, *, node: str | None, drivers: Sequence[str], how: str, detailed: bool
) -> None:
    """`refused`: why devices cannot be listed; `detailed`: options were given that need them."""
    pools = await _read(client, refused, drivers)
    if detailed:
        raise CommandFailed(f"{refused.message}; without that right there are counts of each pool: outfit devices, without "
                            "--state, --all and -o tree")
    pools = [{field: pool[field] for field in SHOWN if field in pool} for pool in pools
             if (node is None or pool.get("nodeName") == node) and (not drivers or pool["driver"] in drivers)]
    click.echo(f"{refused.message}: showing how many devices of each pool are free and held", err=True)
    if how == "json":
        click.echo(json.dumps(pools, indent=2))
        return
    rows = [[str(pool.get(field, NONE)) for field in FIELDS] for pool in pools]
    sums = [sum(pool.get(field, 0) for pool in pools) for field in FIELDS[COUNTED]]
    errors = [pool["validationError"] for pool in pools if "validationError" in pool]
    print_lines([*printers.columns([HEAD, *rows]), "", _summary(sums), *errors] if pools else ["No device is known."])


async def _read(client: Client, refused: Forbidden, drivers: Sequence[str]) -> list[Object]:
    """PoolStatuses: they need the right to list alone, and count what the ledger knows. Else a request to Kubernetes for each
    driver."""
    try:
        return (await client.store.list(kinds.POOL_STATUS)).items
    except (Forbidden, NotFound, Unavailable) as error:
        missing: Exception = error
    pools: list[Object] = []
    for driver in drivers or (DRIVER,):
        try:
            status = await pool_status_request.ask(client, driver)
        except (Forbidden, NotFound):
            raise CommandFailed(
                f"{refused.message}; free and held devices can be counted without that right where the cluster has "
                f"{kinds.POOL_STATUS.resource} (outfit install adds it), or {kinds.POOL_STATUS_REQUEST.resource} and a role "
                f"that may create, get and delete them: {missing}") from None
        if why := pool_status_request.failure(status):
            raise CommandFailed(f"{refused.message}; and {kinds.POOL_STATUS_REQUEST.resource} of {driver} failed: {why}")
        found = status.get("pools") or []
        if len(found) < status["poolCount"]:
            click.echo(f"{driver} has {status['poolCount']} pools, of which Kubernetes shows {len(found)}", err=True)
        pools += found
    return pools


def _summary(sums: Sequence[int]) -> str:
    devices, free, held, unavailable = sums
    return f"{devices} device{'' if devices == 1 else 's'}: {free} free, {held} held, {unavailable} unavailable"
