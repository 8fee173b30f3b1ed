"""Asking for an action on a machine or its instance, by the rules that virtctl's requests get.

A server that has the actions is asked for them, and does each in one step. A Kubernetes API server by itself has not: there the
same rules say what is to be written, and it is written from here, on what was read; whoever asked meanwhile stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outfitter.api import kinds, lifecycle, notes
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Refused
from outfitter.faces.cli import moments
from outfitter.faces.cli.client import Client
from outfitter.store.clock import rfc3339

# Actions on an object have another group than the object.
DOORS: Mapping[Kind, Kind] = {kind: replace(kind, group=lifecycle.GROUP) for kind in (kinds.MACHINE, kinds.INSTANCE)}


async def of_machine(client: Client, action: lifecycle.Action, vm: Object, instance: Object | None,
                     said: lifecycle.Options) -> None:
    if await _act(client, kinds.MACHINE, vm, action, said):
        return
    changes = lifecycle.wish(action, vm, instance, said)
    if [change.kind for change in changes].count(kinds.MACHINE) > 1:  # it could start in between, and not paused
        raise Refused(f"this server cannot start a halted machine paused in one step; give {vm['metadata']['name']} "
                      "spec.template.spec.startStrategy: Paused, and start it then")
    for change in changes:
        await _write(client, change, vm if change.kind == kinds.MACHINE else instance or {}, dry_run=said.dry_run)


async def of_instance(client: Client, action: notes.Action, instance: Object, said: lifecycle.Options) -> None:
    if await _act(client, kinds.INSTANCE, instance, action, said):
        return
    wanted = notes.noted(action, instance, rfc3339(moments.now()))
    change = lifecycle.Change(kinds.INSTANCE, {"status": {notes.FIELD: wanted}}, "status")
    await _write(client, change, instance, dry_run=said.dry_run)


async def _act(client: Client, kind: Kind, obj: Object, action: str, said: lifecycle.Options) -> bool:
    """False: this server has no such actions."""
    status, _, _ = await client.store.raw("GET", f"/apis/{lifecycle.GROUP}")
    if status == 404:
        return False
    await client.store.act(DOORS[kind], obj["metadata"]["name"], action, said.body(action), client.namespace)
    return True


async def _write(client: Client, change: lifecycle.Change, read: Object, *, dry_run: bool) -> None:
    at = {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}} if change.subresource else {}
    await client.store.patch(change.kind, read["metadata"]["name"], {**change.patch, **at}, client.namespace,
                             subresource=change.subresource, dry_run=dry_run)
