"""Subresources of VMs and VMIs in KubeVirt's group: start, stop, pause and the rest. An action request is recorded and answered
at once; the VM controller, or the node agent, carries it out.

`perform` is called with where the patches are written: `act` is that of the embedded store, which writes them in one
transaction; `aggregated.app` that of a Kubernetes API server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from outfitter.api import kinds, patch, write_request
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions
from outfitter.api.kubevirt.action_patches import Read, action_patches
from outfitter.api.kubevirt.vm_actions import ObjectPatch
from outfitter.apiserver.paths import RequestPath
from outfitter.apiserver.request import Request, Response
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.memory import Memory
from outfitter.store.transaction import Transaction

Decide = Callable[[Read], Sequence[ObjectPatch]]


class ActionWriter(Protocol):
    async def __call__(self, target: RequestPath, decide: Decide, *, dry_run: bool) -> None:
        """Write what `decide` returns for the newest objects."""
        ...


async def perform(request: Request, clock: Clock, write: ActionWriter) -> Response:
    target = request.target
    options = vm_actions.parse_options(target.subresource, request.content().value if request.body.strip() else {})
    now = rfc3339(clock.now())
    await write(target, lambda read: action_patches(
        target.kind, target.name, target.subresource, options, read=read, now=now), dry_run=options.dry_run)
    return Response(b"", 202 if target.kind == kinds.VM else 200)


async def act(store: Memory, request: Request) -> Response:
    # The server writes it, as it is the server that may change an instance's spec; the client gets the warnings.
    by = write_request.Writer(warn=request.warnings.append)

    async def write(target: RequestPath, decide: Decide, *, dry_run: bool) -> None:
        await store.write(lambda transaction: _apply(transaction, target, decide), dry_run=dry_run, by=by)

    return await perform(request, store.clock, write)


def _apply(transaction: Transaction, target: RequestPath, decide: Decide) -> None:
    for change in decide(lambda kind: transaction.get_object(kind, target.namespace, target.name)):
        if change.creates:
            transaction.create(change.kind, change.patch)
        else:
            _merge(transaction, target, change)


def _merge(transaction: Transaction, target: RequestPath, change: ObjectPatch) -> None:
    def make(old: Object) -> Object:
        made: Object = patch.merge(old, change.patch)
        return made

    transaction.change(change.kind, target.name, target.namespace, make, change.subresource)
