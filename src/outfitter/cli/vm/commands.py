"""Virtual machines by name: start, stop and pause them. How they are is in `machines`, waiting for them in `patience`.

What is asked of a machine goes the way of KubeVirt's own tools (`ask`). Here a start of one that runs is no mistake, nor is a
stop of one that does not."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.cli.vm import actions, view
from outfitter.cli.vm.wait import Done, until
from outfitter.errors import CommandFailed


async def start(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, paused: bool, dry_run: bool
                ) -> None:
    said = vm_actions.ActionOptions(dry_run, paused=paused, outfit=True)
    await _all_there(client, names)
    come: dict[str, Done] = {}
    for name in names:
        vm, instance = await view.read(client, name)
        stops = vm_actions.stops(vm, instance)
        going = vm_actions.going_uid(vm, instance)
        come[name] = functools.partial(_runs, but=going)
        if (vm_api.run_strategy(vm) == "Always" or vm_actions.is_alive(instance)) and not stops and not paused:
            runs = instance is not None and view.phase(instance) == "Running"
            printers.say([f"{name} is already {'running' if runs else 'starting'}"])
        else:
            await actions.of_machine(client, "start", vm, instance, said)
            _say(f"{name} starts{' again when it has stopped' if going and vm_actions.is_alive(instance) else ''}", said)
    if wait:
        await until(client, "running", come, timeout)


async def stop(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, grace: int | None, dry_run: bool
               ) -> None:
    said, going = vm_actions.ActionOptions(dry_run, grace=grace, outfit=True), dict[str, int]()
    await _all_there(client, names)
    for name in names:
        vm, instance = await view.read(client, name)
        alive = vm_actions.is_alive(instance)
        if not alive and not vm_actions.comes(vm, instance):
            printers.say([f"{name} is already stopped"])
            continue
        if not alive or vm_api.run_strategy(vm) != "Halted" or grace is not None:  # else it is on its way
            await actions.of_machine(client, "stop", vm, instance, said)
        _say(f"{name} stops", said)
        going[name] = _shuts_down(instance, grace)
    if wait and going:
        await until(client, "stopped", dict.fromkeys(going, _is_gone), timeout, more=max(going.values()), ends=True)


async def restart(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, grace: int | None, dry_run: bool
                  ) -> None:
    said, longest = vm_actions.ActionOptions(dry_run, grace=grace, outfit=True), 0
    await _all_there(client, names)
    again: dict[str, Done] = {}
    for name in names:
        vm, instance = await view.read(client, name)
        if instance is None:
            raise CommandFailed(f"{name} does not run; start it with: outfit vm start {name}")
        if vm_api.run_strategy(vm) == "Halted":
            raise CommandFailed(f"{name} is being stopped; when it is, start it with: outfit vm start {name}")
        again[name] = functools.partial(_runs, but=instance["metadata"]["uid"])
        longest = max(longest, _shuts_down(instance, grace))
        await actions.of_machine(client, "restart", vm, instance, said)
        _say(f"{name} restarts", said)
    if wait:
        await until(client, "running again", again, timeout, more=longest)


async def pause(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _nudge(client, names, "pause", "is paused", dry_run=dry_run)
    if wait:
        await until(client, "paused", dict.fromkeys(names, view.is_paused), timeout)


async def unpause(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _nudge(client, names, "unpause", "goes on", dry_run=dry_run)
    if wait:
        await until(client, "going on", dict.fromkeys(names, _goes), timeout)


async def reset(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _nudge(client, names, "reset", "is reset", dry_run=dry_run)
    if wait:
        await until(client, "reset", dict.fromkeys(names, _was_asked), timeout)


async def soft_reboot(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _nudge(client, names, "softreboot", "is asked to reboot", dry_run=dry_run)
    if wait:
        await until(client, "asked to reboot", dict.fromkeys(names, _was_asked), timeout)


async def _nudge(client: Client, names: Sequence[str], action: vmi_actions.Action, what: str, *, dry_run: bool) -> None:
    """What a running machine is asked is noted on its instance, which need not have a machine behind it."""
    said = vm_actions.ActionOptions(dry_run)
    found = [(name, await view.instance_of(client, name)) for name in names]
    for name, instance in found:
        if instance is None:
            await view.read(client, name)
            raise CommandFailed(f"{name} does not run; start it with: outfit vm start {name}")
    for name, instance in found:
        assert instance is not None
        await actions.of_instance(client, action, instance, said)
        _say(f"{name} {what}", said)


def _say(words: str, said: vm_actions.ActionOptions) -> None:
    printers.say([f"{words} (dry run: nothing was changed)" if said.dry_run else words])


def _runs(instance: Object | None, *, but: str = "") -> bool:
    """It runs; `but`: as another instance than this."""
    return instance is not None and instance["metadata"]["uid"] != but and view.phase(instance) == "Running"


def _is_gone(instance: Object | None) -> bool:
    return instance is None


def _goes(instance: Object | None) -> bool:
    return instance is not None and not view.is_paused(instance)


def _was_asked(instance: Object | None) -> bool:
    return not vmi_actions.of(instance or {})


def _shuts_down(instance: Object | None, grace: int | None) -> int:
    """Seconds that its guest may take."""
    return vm_actions.grace(instance or {}) if grace is None else grace


async def _all_there(client: Client, names: Sequence[str]) -> None:
    """A name that is wrong is said before anything is done for the others."""
    for name in names:
        await view.read(client, name)
