"""`outfit version`: this program's version, and the server's where one is reached. Called by main."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

import outfitter
from outfitter.cli.client import Client
from outfitter.errors import NoKubeconfig, Unavailable

PATIENCE = 10.0  # seconds for the server to answer


async def version(client: Client, *, how: str) -> None:
    """Without a server the client's version is the whole answer, and not an error: a warning says why there is no other."""
    server: dict[str, Any] | None = None
    try:
        server = await _server_version(client)
    except (Unavailable, NoKubeconfig) as error:
        click.echo(f"warning: the server's version is unknown: {error}", err=True)
    if how == "json":
        click.echo(json.dumps({"clientVersion": {"gitVersion": outfitter.__version__},
                               **({"serverVersion": server} if server else {})}))
        return
    click.echo(f"outfit {outfitter.__version__}")
    if server is not None:
        click.echo(f"server {server.get('gitVersion', 'unknown')}")


async def _server_version(client: Client) -> dict[str, Any]:
    try:
        async with asyncio.timeout(PATIENCE):
            status, _, body = await client.store.raw("GET", "/version")
    except TimeoutError as error:
        raise Unavailable(f"{client.store.access.server} did not answer within {PATIENCE:g} s") from error
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if status != 200 or not isinstance(answer, dict):
        raise Unavailable(f"{client.store.access.server}/version answered with HTTP status {status}, not with a version")
    return answer
