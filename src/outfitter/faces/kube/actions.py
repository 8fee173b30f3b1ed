"""Actions on machines and their instances, where KubeVirt's tools ask for them. An action is noted and answered at once; the
machine's controller, or the node on which it runs, carries it out."""

from __future__ import annotations

from typing import cast

from outfitter.api import kinds, lifecycle, machine, notes, patch
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.faces.kube.paths import Target
from outfitter.faces.kube.request import Answer, Request
from outfitter.store import base
from outfitter.store.clock import rfc3339
from outfitter.store.memory import Draft, Memory


async def act(store: Memory, request: Request) -> Answer:
    target = request.target
    options = lifecycle.options(target.subresource, request.content().value if request.body.strip() else {})
    # The server writes it, as it is the server that may change an instance's spec; whoever asked hears the warnings.
    by = base.By(warn=request.warnings.append)
    if target.kind == kinds.MACHINE:
        await store.write(lambda draft: _machine(draft, target, options), dry_run=options.dry_run, by=by)
        return Answer(b"", 202)
    now = rfc3339(store.clock.now())
    await store.write(lambda draft: _instance(draft, target, now), dry_run=options.dry_run, by=by)
    return Answer(b"", 200)


def _machine(draft: Draft, target: Target, options: lifecycle.Options) -> None:
    vm = _need(draft, target)
    found = draft.look(kinds.INSTANCE, target.namespace, target.name)
    own = found if found is not None and machine.belongs(found, vm) else None
    for change in lifecycle.wish(cast("lifecycle.Action", target.subresource), vm, own, options):
        _merge(draft, target, change)


def _instance(draft: Draft, target: Target, now: str) -> None:
    instance = _need(draft, target)
    wanted = notes.noted(cast("notes.Action", target.subresource), instance, now)
    _merge(draft, target, lifecycle.Change(kinds.INSTANCE, {"status": {notes.FIELD: wanted}}, "status"))


def _need(draft: Draft, target: Target) -> Object:
    try:
        return draft.need(target.kind, target.name, target.namespace).object()
    except NotFound:
        raise NotFound(f"{lifecycle.called(target.kind, target.name)} not found") from None


def _merge(draft: Draft, target: Target, change: lifecycle.Change) -> None:
    def make(old: Object) -> Object:
        made: Object = patch.merge(old, change.patch)
        return made

    draft.change(change.kind, target.name, target.namespace, make, change.subresource)
