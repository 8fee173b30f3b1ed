"""Waiting for machines at the terminal: what is in the way is said when that changes, and there is an end to it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from outfitter.api import conditions
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions
from outfitter.cli import printers, time_format
from outfitter.cli.client import Client
from outfitter.cli.vm import view
from outfitter.errors import CommandFailed, NotFound, TimedOut

Done = Callable[[Object | None], bool]  # the instance is as it was asked to be
USUAL = 300.0  # seconds, unless somebody says another time; the guests' time to shut down comes on top
LOOK = 0.2  # seconds from one look to the next


async def until(
    client: Client, what: str, wanted: Mapping[str, Done], timeout: float | None, *, more: float = 0.0, ends: bool = False
) -> None:
    """Look at machines until each is as it is `wanted`, in a word `what`; `timeout` is for all of them together, 0 for no end.
    Ctrl-C ends the looking, not the machines. With `ends` a machine may end. TimedOut: says of each why it is not so."""
    limit = (USUAL + more if timeout is None else timeout) or math.inf
    time = asyncio.get_running_loop().time
    end, late, then = time() + limit, [], ": it goes on by itself"
    for name, done in wanted.items():  # who comes later is looked at once, whatever the time
        said = ""
        while True:
            vm, instance = await view.both(client, name)
            if done(instance):
                break
            if not ends:
                _must_come(name, vm, instance)
            away = await view.away(client, instance)
            if time() >= end:
                then = "" if away else then
                late.append(
                    f"{name} is not {what} after {time_format.length(limit)}: {away or _because(vm, instance, ends=ends)}"
                )
                break
            reason = away or ("" if ends else view.waiting(vm, instance or {}))  # that is what a start waits for
            if reason and reason != said:
                printers.say([f"  {name} waits: {reason}"])
                said = reason
            await asyncio.sleep(min(LOOK, max(0.0, end - time())))
    if late:
        raise TimedOut("\n".join([*late, f"nothing was taken back{then} (outfit why tells more)"]))


def _must_come(name: str, vm: Object | None, instance: Object | None) -> None:
    """CommandFailed: it has ended, and nobody starts it again."""
    if vm is None and instance is None:
        raise NotFound(f"{name} was deleted meanwhile")
    if instance is None or vm_actions.is_alive(instance) or instance["metadata"].get("deletionTimestamp"):
        return
    if vm is None or not vm_actions.comes(vm, instance):
        how = "has failed" if view.phase(instance) == "Failed" else "ran and has ended"
        message = (conditions.find(instance, "Ready") or {}).get("message")
        raise CommandFailed(f"{name} {how}{f': {message}' if message else ''}")


def _because(vm: Object | None, instance: Object | None, *, ends: bool) -> str:
    """Why a machine is not yet as it was asked to be, however little is known. With `ends` what its start waits for is none."""
    if not ends and (reason := view.why(vm, instance or {})):
        return reason
    if instance is None:
        word = ((vm or {}).get("status") or {}).get("printableStatus")
        return f"it has no instance yet, and is {word or 'not looked at yet'}"
    phase, ready = view.phase(instance), conditions.find(instance, "Ready") or {}
    if instance["metadata"].get("deletionTimestamp") and phase not in vm_api.FINAL:
        return f"its guest has {vm_actions.grace(instance)}s to shut down (--grace-period makes it fewer)"
    told = (phase in vm_api.FINAL or not ends) and ready.get("status") == "False" and ready.get("message")
    return f"it is {phase}{f': {told}' if told else ''}"
