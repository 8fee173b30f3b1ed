"""Waits for VMs (`outfit vm ... --wait`), up to a limit. Prints what blocks them whenever that changes."""

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

Done = Callable[[Object | None], bool]  # whether the VMI is in the wanted state
USUAL = 300.0  # seconds without --timeout; the guests' grace period is added
LOOK = 0.2  # seconds between polls


async def until(
    client: Client, what: str, wanted: Mapping[str, Done], timeout: float | None, *, more: float = 0.0, ends: bool = False
) -> None:
    """Poll VMs until each is `wanted`, a state that is called `what` in messages. `timeout`: seconds for all of them together,
    0 for no limit. With `ends` a VM may end. TimedOut: names each VM that is not in that state, and why. Ctrl-C ends the wait,
    not the VMs."""
    limit = (USUAL + more if timeout is None else timeout) or math.inf
    time = asyncio.get_running_loop().time
    end, late, then = time() + limit, [], ": it continues without this command"
    for name, done in wanted.items():  # each is polled at least once, even after the limit
        reported = ""
        while True:
            vm, instance = await view.vm_and_vmi(client, name)
            if done(instance):
                break
            if not ends:
                _check_can_start(name, vm, instance)
            away = await view.unready_node(client, instance)
            if time() >= end:
                then = "" if away else then
                late.append(
                    f"{name} is not {what} after {time_format.format_duration(limit)}: "
                    f"{away or _unmet_reason(vm, instance, ends=ends)}"
                )
                break
            reason = away or ("" if ends else view.waiting_reason(vm, instance or {}))  # which explains a start only
            if reason and reason != reported:
                printers.print_lines([f"  {name} waits: {reason}"])
                reported = reason
            await asyncio.sleep(min(LOOK, max(0.0, end - time())))
    if late:
        raise TimedOut("\n".join([*late, f"the request stays in place{then} (outfit why shows more)"]))


def _check_can_start(name: str, vm: Object | None, instance: Object | None) -> None:
    """CommandFailed: it has ended and will not be started again. NotFound: it was deleted."""
    if vm is None and instance is None:
        raise NotFound(f"{name} was deleted meanwhile")
    if instance is None or vm_actions.is_alive(instance) or instance["metadata"].get("deletionTimestamp"):
        return
    if vm is None or not vm_actions.will_start(vm, instance):
        how = "has failed" if view.phase(instance) == "Failed" else "ran and has ended"
        message = (conditions.find(instance, "Ready") or {}).get("message")
        raise CommandFailed(f"{name} {how}{f': {message}' if message else ''}")


def _unmet_reason(vm: Object | None, instance: Object | None, *, ends: bool) -> str:
    """Why a VM is not in the wanted state yet, as far as known. With `ends`, reasons of a start are ignored."""
    if not ends and (reason := view.reason(vm, instance or {})):
        return reason
    if instance is None:
        word = ((vm or {}).get("status") or {}).get("printableStatus")
        return f"it has no VMI yet, and is {word or 'not processed yet'}"
    phase, ready = view.phase(instance), conditions.find(instance, "Ready") or {}
    if instance["metadata"].get("deletionTimestamp") and phase not in vm_api.FINAL:
        return f"its guest has {vm_actions.grace_period(instance)}s to shut down (--grace-period shortens that)"
    message = (phase in vm_api.FINAL or not ends) and ready.get("status") == "False" and ready.get("message")
    return f"it is {phase}{f': {message}' if message else ''}"
