"""Requests an action on a VM or VMI, with the rules of virtctl's requests.

A server with KubeVirt's subresources gets the request and acts in one step. A plain Kubernetes API server has none: there the
same rules (`api.kubevirt.vm_actions`) give the patches, which are written from here on the resourceVersion that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.cli import time_format
from outfitter.cli.client import Client
from outfitter.errors import CommandFailed
from outfitter.store.clock import rfc3339

# Subresources have another API group than the object.
SUBRESOURCE_KINDS: Mapping[Kind, Kind] = {kind: replace(kind, group=vm_actions.GROUP) for kind in (kinds.VM, kinds.VMI)}


async def act_on_vm(client: Client, action: vm_actions.Action, vm: Object, instance: Object | None,
                     options: vm_actions.ActionOptions) -> None:
    if await _call_subresource(client, kinds.VM, vm, action, options):
        return
    changes = vm_actions.requested_changes(action, vm, instance, options)
    if [change.kind for change in changes].count(kinds.VM) > 1:  # it could start unpaused in between
        raise CommandFailed(f"this server cannot start a halted VM paused in one step; set "
                            f"spec.template.spec.startStrategy: Paused in {vm['metadata']['name']}, then start it")
    for change in changes:
        await _write(client, change, vm if change.kind == kinds.VM else instance or {}, dry_run=options.dry_run)


async def act_on_vmi(client: Client, action: vmi_actions.Action, instance: Object, options: vm_actions.ActionOptions) -> None:
    if await _call_subresource(client, kinds.VMI, instance, action, options):
        return
    request = vmi_actions.with_action_request(action, instance, rfc3339(time_format.now()))
    change = vm_actions.ObjectPatch(kinds.VMI, {"status": {vmi_actions.FIELD: request}}, "status")
    await _write(client, change, instance, dry_run=options.dry_run)


async def _call_subresource(client: Client, kind: Kind, obj: Object, action: str, options: vm_actions.ActionOptions) -> bool:
    """False: this server has no such subresources."""
    status, _, _ = await client.store.raw("GET", f"/apis/{vm_actions.GROUP}")
    if status == 404:
        return False
    await client.store.call_subresource(
        SUBRESOURCE_KINDS[kind], obj["metadata"]["name"], action, options.body(action), client.namespace
    )
    return True


async def _write(client: Client, change: vm_actions.ObjectPatch, read: Object, *, dry_run: bool) -> None:
    at = {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}} if change.subresource else {}
    await client.store.patch(change.kind, read["metadata"]["name"], {**change.patch, **at}, client.namespace,
                             subresource=change.subresource, dry_run=dry_run)
