"""Asking for an action on a machine or its instance, by the rules that virtctl's requests get.

A server that has the actions is asked for them, and does each in one step. A Kubernetes API server by itself has not: there the
same rules say what is to be written, and it is written from here, on what was read; whoever asked meanwhile stays."""

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

# Actions on an object have another group than the object.
DOORS: Mapping[Kind, Kind] = {kind: replace(kind, group=vm_actions.GROUP) for kind in (kinds.VM, kinds.VMI)}


async def of_machine(client: Client, action: vm_actions.Action, vm: Object, instance: Object | None,
                     said: vm_actions.ActionOptions) -> None:
    if await _act(client, kinds.VM, vm, action, said):
        return
    changes = vm_actions.wish(action, vm, instance, said)
    if [change.kind for change in changes].count(kinds.VM) > 1:  # it could start in between, and not paused
        raise CommandFailed(f"this server cannot start a halted machine paused in one step; give {vm['metadata']['name']} "
                            "spec.template.spec.startStrategy: Paused, and start it then")
    for change in changes:
        await _write(client, change, vm if change.kind == kinds.VM else instance or {}, dry_run=said.dry_run)


async def of_instance(client: Client, action: vmi_actions.Action, instance: Object, said: vm_actions.ActionOptions) -> None:
    if await _act(client, kinds.VMI, instance, action, said):
        return
    wanted = vmi_actions.noted(action, instance, rfc3339(time_format.now()))
    change = vm_actions.ObjectPatch(kinds.VMI, {"status": {vmi_actions.FIELD: wanted}}, "status")
    await _write(client, change, instance, dry_run=said.dry_run)


async def _act(client: Client, kind: Kind, obj: Object, action: str, said: vm_actions.ActionOptions) -> bool:
    """False: this server has no such actions."""
    status, _, _ = await client.store.raw("GET", f"/apis/{vm_actions.GROUP}")
    if status == 404:
        return False
    await client.store.call_subresource(DOORS[kind], obj["metadata"]["name"], action, said.body(action), client.namespace)
    return True


async def _write(client: Client, change: vm_actions.ObjectPatch, read: Object, *, dry_run: bool) -> None:
    at = {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}} if change.subresource else {}
    await client.store.patch(change.kind, read["metadata"]["name"], {**change.patch, **at}, client.namespace,
                             subresource=change.subresource, dry_run=dry_run)
