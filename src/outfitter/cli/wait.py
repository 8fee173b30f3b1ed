"""Waiting until what was deleted is gone: what holds it is said when that changes, and there may be an end to it."""

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

QUIET = 1.5  # seconds before the first word, and from one look to the next: most is gone by then


class Going(NamedTuple):
    """Something that was deleted."""

    kind: Kind
    name: str
    namespace: str
    uid: str


async def until(client: Client, going: Sequence[Going], timeout: float) -> None:
    """`timeout`: for all of them together, 0 for no end. TimedOut: says of each that is left what holds it."""
    left: dict[Going, Object] = {}
    telling = asyncio.create_task(_tell(client, left))
    try:
        async with asyncio.timeout(timeout or None):
            await asyncio.gather(*(_gone(client, each, left) for each in going))
    except TimeoutError as error:
        late = [f"{one.name} is not gone after {time_format.length(timeout)}: {await _why(client, one, obj)}"
                for one, obj in left.items()]
        raise TimedOut("\n".join([*late, "nothing was taken back: it goes when nothing holds it any more"])) from error
    finally:
        telling.cancel()


async def _gone(client: Client, one: Going, left: dict[Going, Object]) -> None:
    """Keeps in `left` how it was last seen, until it is gone."""
    fields = f"metadata.name={one.name}"
    while True:
        listing = await client.store.list(one.kind, one.namespace, fields=fields)
        live = next((obj for obj in listing.items if obj["metadata"]["uid"] == one.uid), None)
        if live is None:
            left.pop(one, None)
            return
        left[one] = live
        try:
            async for event in client.store.watch(one.kind, one.namespace, since=listing.revision, fields=fields):
                if event.object["metadata"]["uid"] != one.uid:
                    continue
                if event.type == "DELETED":
                    del left[one]
                    return
                left[one] = event.object
        except (Unavailable, Expired):
            continue  # the list says whether the server is still there


async def _tell(client: Client, left: Mapping[Going, Object]) -> None:
    said: dict[Going, str] = {}
    while True:
        await asyncio.sleep(QUIET)
        for one, obj in list(left.items()):
            if (reason := await _why(client, one, obj)) != said.get(one):
                printers.say([f"  {one.name} waits: {reason}"])
                said[one] = reason


async def _why(client: Client, one: Going, obj: Object) -> str:
    return (await view.away(client, obj) if one.kind == kinds.VMI else "") or holds(one.kind, obj)


def holds(kind: Kind, obj: Object) -> str:
    """What keeps a deleted object, as far as it says so itself."""
    meta, status = obj["metadata"], obj.get("status") or {}
    if kind == kinds.VMI and status.get("phase") not in vm.FINAL:
        return f"its guest has {vm_actions.grace(obj)}s to shut down"
    if users := status.get("reservedFor"):
        return "it is in use by " + ", ".join(f"{each.get('resource')}/{each.get('name')}" for each in users)
    if finalizers := meta.get("finalizers"):
        return f"it goes when nobody needs it any more: {', '.join(finalizers)} in metadata.finalizers"
    if seconds := meta.get("deletionGracePeriodSeconds"):
        return f"it has {seconds}s to end"
    return "it is still there"
