"""`outfit vm start`, `stop`, `restart`, `pause`, `unpause`, `reset` and `soft-reboot`. Requests go through `actions`; `view`
reads VMs and `wait` waits for them. Unlike with virtctl, starting a running VM or stopping a stopped one is not an error."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from outfitter.api import kinds
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
    options = vm_actions.ActionOptions(dry_run, paused=paused, outfit=True)
    await _check_all_exist(client, names)
    wanted: dict[str, Done] = {}
    for name in names:
        vm, instance = await view.read(client, name)
        stops = vm_actions.is_stopping(vm, instance)
        going = vm_actions.stopping_uid(vm, instance)
        wanted[name] = functools.partial(_runs, but=going)
        if (vm_api.run_strategy(vm) == "Always" or vm_actions.is_alive(instance)) and not stops and not paused:
            runs = instance is not None and view.phase(instance) == "Running"
            printers.print_lines([f"{name} is already {'running' if runs else 'starting'}"])
        else:
            await actions.request_action(client, kinds.VM, name, "start", options)
            _print(f"{name} starts{' again when it has stopped' if going and vm_actions.is_alive(instance) else ''}", options)
    if wait:
        await until(client, "running", wanted, timeout)


async def stop(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, grace: int | None, dry_run: bool
               ) -> None:
    options, going = vm_actions.ActionOptions(dry_run, grace=grace, outfit=True), dict[str, int]()
    await _check_all_exist(client, names)
    for name in names:
        vm, instance = await view.read(client, name)
        alive = vm_actions.is_alive(instance)
        if not alive and not vm_actions.will_start(vm, instance):
            printers.print_lines([f"{name} is already stopped"])
            continue
        if not alive or vm_api.run_strategy(vm) != "Halted" or grace is not None:  # else it is stopping already
            await actions.request_action(client, kinds.VM, name, "stop", options)
        _print(f"{name} stops", options)
        going[name] = _grace_period(instance, grace)
    if wait and going:
        await until(client, "stopped", dict.fromkeys(going, _is_gone), timeout, more=max(going.values()), ends=True)


async def restart(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, grace: int | None, dry_run: bool
                  ) -> None:
    options, longest = vm_actions.ActionOptions(dry_run, grace=grace, outfit=True), 0
    await _check_all_exist(client, names)
    again: dict[str, Done] = {}
    for name in names:
        vm, instance = await view.read(client, name)
        if instance is None:
            raise CommandFailed(f"{name} is not running; start it with: outfit vm start {name}")
        if vm_api.run_strategy(vm) == "Halted":
            raise CommandFailed(f"{name} is being stopped; once it is stopped, start it with: outfit vm start {name}")
        again[name] = functools.partial(_runs, but=instance["metadata"]["uid"])
        longest = max(longest, _grace_period(instance, grace))
        await actions.request_action(client, kinds.VM, name, "restart", options)
        _print(f"{name} restarts", options)
    if wait:
        await until(client, "running again", again, timeout, more=longest)


async def pause(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _act_on_vmis(client, names, "pause", "is paused", dry_run=dry_run)
    if wait:
        await until(client, "paused", dict.fromkeys(names, view.is_paused), timeout)


async def unpause(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _act_on_vmis(client, names, "unpause", "resumes", dry_run=dry_run)
    if wait:
        await until(client, "resumed", dict.fromkeys(names, _is_resumed), timeout)


async def reset(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _act_on_vmis(client, names, "reset", "is reset", dry_run=dry_run)
    if wait:
        await until(client, "reset", dict.fromkeys(names, _is_done), timeout)


async def soft_reboot(client: Client, names: Sequence[str], *, wait: bool, timeout: float | None, dry_run: bool) -> None:
    await _act_on_vmis(client, names, "softreboot", "is asked to reboot", dry_run=dry_run)
    if wait:
        await until(client, "asked to reboot", dict.fromkeys(names, _is_done), timeout)


async def _act_on_vmis(client: Client, names: Sequence[str], action: vmi_actions.Action, what: str, *, dry_run: bool) -> None:
    """Records an action request on VMIs, which need not belong to a VM. All are checked before the first is changed."""
    options = vm_actions.ActionOptions(dry_run)
    instances = [(name, await view.vmi_of(client, name)) for name in names]
    for name, instance in instances:
        if instance is None:
            await view.read(client, name)
            raise CommandFailed(f"{name} is not running; start it with: outfit vm start {name}")
    for name in names:
        await actions.request_action(client, kinds.VMI, name, action, options)
        _print(f"{name} {what}", options)


def _print(words: str, options: vm_actions.ActionOptions) -> None:
    printers.print_lines([f"{words} (dry run: nothing was changed)" if options.dry_run else words])


def _runs(instance: Object | None, *, but: str = "") -> bool:
    """Whether it runs, as a VMI with another uid than `but`."""
    return instance is not None and instance["metadata"]["uid"] != but and view.phase(instance) == "Running"


def _is_gone(instance: Object | None) -> bool:
    return instance is None


def _is_resumed(instance: Object | None) -> bool:
    return instance is not None and not view.is_paused(instance)


def _is_done(instance: Object | None) -> bool:
    return not vmi_actions.action_requests(instance or {})


def _grace_period(instance: Object | None, grace: int | None) -> int:
    """Seconds that its guest may take to shut down."""
    return vm_actions.grace_period(instance or {}) if grace is None else grace


async def _check_all_exist(client: Client, names: Sequence[str]) -> None:
    """Raises for a wrong name before anything is changed."""
    for name in names:
        await view.read(client, name)
