"""Waits until deleted objects are gone (`outfit delete --wait`). Prints what blocks them whenever that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm, vm_actions
from outfitter.cli import printers, time_format
from outfitter.cli.client import Client
from outfitter.cli.vm import view
from outfitter.errors import Expired, TimedOut, Unavailable

QUIET = 1.5  # seconds before the first report, and between reports: most objects are gone by then


class DeletedObject(NamedTuple):
    """An object whose deletion was requested."""

    kind: Kind
    name: str
    namespace: str
    uid: str


async def until_gone(client: Client, deleted: Sequence[DeletedObject], timeout: float) -> None:
    """`timeout`: seconds for all of them together, 0 for no limit. TimedOut: names each remaining object and what blocks it."""
    remaining: dict[DeletedObject, Object] = {}
    reporter = asyncio.create_task(_report_reasons(client, remaining))
    try:
        async with asyncio.timeout(timeout or None):
            await asyncio.gather(*(_wait_for_deletion(client, target, remaining) for target in deleted))
    except TimeoutError as error:
        late = [f"{target.name} is not gone after {time_format.format_duration(timeout)}: {await _reason(client, target, obj)}"
                for target, obj in remaining.items()]
        raise TimedOut("\n".join([*late, "the deletion stays requested: objects go when nothing blocks them"])) from error
    finally:
        reporter.cancel()


async def _wait_for_deletion(client: Client, target: DeletedObject, remaining: dict[DeletedObject, Object]) -> None:
    """Keeps the object's last seen state in `remaining`, until it is gone."""
    fields = f"metadata.name={target.name}"
    while True:
        listing = await client.store.list(target.kind, target.namespace, fields=fields)
        live = next((obj for obj in listing.items if str(obj["metadata"].get("uid", "")) == target.uid), None)
        if live is None:
            remaining.pop(target, None)
            return
        remaining[target] = live
        try:
            async for event in client.store.watch(target.kind, target.namespace, since=listing.revision, fields=fields):
                if str(event.object["metadata"].get("uid", "")) != target.uid:
                    continue
                if event.type == "DELETED":
                    del remaining[target]
                    return
                remaining[target] = event.object
        except (Unavailable, Expired):
            continue  # the next list fails if the server is gone


async def _report_reasons(client: Client, remaining: Mapping[DeletedObject, Object]) -> None:
    reported: dict[DeletedObject, str] = {}
    while True:
        await asyncio.sleep(QUIET)
        for target, obj in list(remaining.items()):
            if (reason := await _reason(client, target, obj)) != reported.get(target):
                printers.print_lines([f"  {target.name} waits: {reason}"])
                reported[target] = reason


async def _reason(client: Client, target: DeletedObject, obj: Object) -> str:
    return (await view.unready_node(client, obj) if target.kind == kinds.VMI else "") or blocking_reason(target.kind, obj)


def blocking_reason(kind: Kind, obj: Object) -> str:
    """What keeps a deleted object, as far as the object itself shows it."""
    meta, status = obj["metadata"], obj.get("status") or {}
    if kind == kinds.VMI and status.get("phase") not in vm.FINAL:
        return f"its guest has {vm_actions.grace_period(obj)}s to shut down"
    if users := status.get("reservedFor"):
        return "it is in use by " + ", ".join(f"{user.get('resource')}/{user.get('name')}" for user in users)
    if finalizers := meta.get("finalizers"):
        return f"it has metadata.finalizers: {', '.join(finalizers)}"
    if seconds := meta.get("deletionGracePeriodSeconds"):
        return f"its grace period is {seconds}s"
    return "it still exists"
