"""Requests an action on a VM or VMI, with the rules of virtctl's requests.

A server with KubeVirt's subresources gets the request and acts in one step. A Kubernetes API server without the aggregated API
has none: there the same rules (`api.kubevirt.action_patches`) give the patches, which are written from here on the
resourceVersion that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.api.kubevirt import vm_actions
from outfitter.api.kubevirt.action_patches import action_patches
from outfitter.cli import time_format
from outfitter.cli.client import Client
from outfitter.store.clock import rfc3339
from outfitter.store.readable_store import ReadableStore
from outfitter.store.revision_patch import patch_decided

# Subresources have another API group than the object.
SUBRESOURCE_KINDS: Mapping[Kind, Kind] = {kind: replace(kind, group=vm_actions.GROUP) for kind in (kinds.VM, kinds.VMI)}
READ: Mapping[Kind, tuple[Kind, ...]] = {kinds.VM: (kinds.VM, kinds.VMI), kinds.VMI: (kinds.VMI,)}


async def request_action(client: Client, kind: Kind, name: str, action: str, options: vm_actions.ActionOptions) -> None:
    if await _call_subresource(client, kind, name, action, options):
        return
    now = rfc3339(time_format.now())
    await patch_decided(
        ReadableStore(client.store), name, client.namespace, READ[kind],
        lambda read: action_patches(kind, name, action, options, read=read, now=now), dry_run=options.dry_run)


async def _call_subresource(client: Client, kind: Kind, name: str, action: str, options: vm_actions.ActionOptions) -> bool:
    """False: this server has no such subresources."""
    status, _, _ = await client.store.raw("GET", f"/apis/{vm_actions.GROUP}")
    if status == 404:
        return False
    await client.store.call_subresource(SUBRESOURCE_KINDS[kind], name, action, options.body(action), client.namespace)
    return True
