"""Manifests in an API version that the server does not serve, converted to the stored version of their kind: clusters drop old
versions of `resource.k8s.io`, and documents keep them. Called by `apply` and `delete`."""

from __future__ import annotations

from dataclasses import replace

import click
import msgspec

from outfitter.api import kinds, versions
from outfitter.api.kinds import Kind, Object
from outfitter.cli.client import Client


class ServedVersions:
    """Asks the server once per group and version, and only about versions that are not the newest of their kind."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._served: dict[str, frozenset[str] | None] = {}  # "group/version" -> plurals; None: the server does not say

    async def as_served(self, kind: Kind, obj: Object, where: str) -> tuple[Kind, Object]:
        """The object in its own version where that is served, else in the version that is stored."""
        stored = kinds.of_object(obj)
        if stored is None or stored.version == kind.version:
            return kind, obj
        served = await self._plurals(kind)
        if served is None or kind.plural in served:
            return kind, obj
        click.echo(f"{where}: {kind.kind} in {kind.api_version} is not served by this cluster; "
                   f"it is sent as {stored.api_version}", err=True)
        return replace(stored, older=()), versions.to_stored(stored, kind.version, obj)

    async def _plurals(self, kind: Kind) -> frozenset[str] | None:
        if kind.api_version not in self._served:
            path = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
            status, _, body = await self._client.store.raw("GET", path, headers={"Accept": "application/json"})
            self._served[kind.api_version] = _resources(body) if status == 200 else frozenset() if status == 404 else None
        return self._served[kind.api_version]


def _resources(body: bytes) -> frozenset[str] | None:
    try:
        answer = msgspec.json.decode(body)
        return frozenset(str(resource["name"]) for resource in answer["resources"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return None
