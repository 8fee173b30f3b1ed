"""Subresources of VMs and VMIs in KubeVirt's group: start, stop, pause and the rest. An action request is recorded and answered
at once; the VM controller, or the node agent, carries it out."""

from __future__ import annotations

from typing import cast

from outfitter.api import kinds, patch, write_request
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.apiserver.paths import RequestPath
from outfitter.apiserver.request import Request, Response
from outfitter.errors import NotFound
from outfitter.store.clock import rfc3339
from outfitter.store.memory import Memory
from outfitter.store.transaction import Transaction


async def act(store: Memory, request: Request) -> Response:
    target = request.target
    options = vm_actions.parse_options(target.subresource, request.content().value if request.body.strip() else {})
    # The server writes it, as it is the server that may change an instance's spec; the client gets the warnings.
    by = write_request.Writer(warn=request.warnings.append)
    if target.kind == kinds.VM:
        await store.write(lambda transaction: _machine(transaction, target, options), dry_run=options.dry_run, by=by)
        return Response(b"", 202)
    now = rfc3339(store.clock.now())
    await store.write(lambda transaction: _instance(transaction, target, now), dry_run=options.dry_run, by=by)
    return Response(b"", 200)


def _machine(transaction: Transaction, target: RequestPath, options: vm_actions.ActionOptions) -> None:
    vm = _need(transaction, target)
    found = transaction.get_object(kinds.VMI, target.namespace, target.name)
    own = found if found is not None and vm_api.belongs(found, vm) else None
    for change in vm_actions.requested_changes(cast("vm_actions.Action", target.subresource), vm, own, options):
        _merge(transaction, target, change)


def _instance(transaction: Transaction, target: RequestPath, now: str) -> None:
    instance = _need(transaction, target)
    wanted = vmi_actions.with_action_request(cast("vmi_actions.Action", target.subresource), instance, now)
    _merge(transaction, target, vm_actions.ObjectPatch(kinds.VMI, {"status": {vmi_actions.FIELD: wanted}}, "status"))


def _need(transaction: Transaction, target: RequestPath) -> Object:
    try:
        return transaction.require(target.kind, target.name, target.namespace).object()
    except NotFound:
        raise NotFound(f"{vm_actions.qualified_name(target.kind, target.name)} not found") from None


def _merge(transaction: Transaction, target: RequestPath, change: vm_actions.ObjectPatch) -> None:
    def make(old: Object) -> Object:
        made: Object = patch.merge(old, change.patch)
        return made

    transaction.change(change.kind, target.name, target.namespace, make, change.subresource)
