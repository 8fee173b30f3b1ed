"""`outfit vm migrate`: creates a migration, or cancels it, and shows how far it is. Decides nothing: admission refuses what
cannot be, and the migration's status has the reason why it waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys

import click

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration, vm_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt.device_refs import LISTS
from outfitter.api.kubevirt.vm_actions import ActionOptions
from outfitter.cli import printers, time_format
from outfitter.cli.client import Client
from outfitter.cli.vm import plan_migrate, view
from outfitter.errors import CommandFailed, Forbidden, NotFound, TimedOut

LOOK = 0.2  # seconds between polls
USUAL = 600.0  # seconds without --timeout
WIDTH = 30  # characters of the bar
MIB = 1 << 20


async def migrate(client: Client, name: str, *, to: str | None, wait: bool, timeout: float | None, dry_run: bool) -> None:
    vmi = await _running(client, name)
    selector = {migration.HOSTNAME: to} if to else {}
    wanted = vm_actions.migration_of(vmi, ActionOptions(node_selector=selector))
    await _show_plan(client, vmi, to or "")
    made = await client.store.create(kinds.MIGRATION, wanted.patch, dry_run=dry_run)
    source, job = vmi["status"].get("nodeName"), made["metadata"]["name"]
    where = f" to {to}" if to else ""
    if dry_run:
        printers.print_lines([f"{name} migrates from {source}{where} (dry run: nothing was changed)"])
        return
    printers.print_lines([f"{name} migrates from {source}{where} (migration {job})"])
    if wait:
        await _until_ended(client, name, job, timeout)


async def _show_plan(client: Client, vmi: Object, to: str) -> None:
    """What becomes of the devices of a VM that has some. A user who may not read what a plan needs migrates without it."""
    if not _has_devices(vmi):
        return
    with contextlib.suppress(Forbidden):
        found = await plan_migrate.planned(client, vmi["metadata"]["name"], to)
        printers.print_lines(plan_migrate.text(found))


def _has_devices(vmi: Object) -> bool:
    """GPUs, host devices, devices of a flavor, or NICs on VFs."""
    devices = (vmi["spec"].get("domain") or {}).get("devices") or {}
    nics = devices.get("interfaces") or ()
    return bool(vmi["spec"].get("resourceClaims") or vm_api.flavor_name(vmi) or any(devices.get(each) for each in LISTS)
                or any(nic.get("sriov") is not None for nic in nics))


async def cancel(client: Client, name: str, *, wait: bool, timeout: float | None) -> None:
    """Cancel the migration of a VMI by deleting it."""
    jobs = (await client.store.list(kinds.MIGRATION, client.namespace)).items
    job = next((one for one in jobs if migration.vmi_name(one) == name and not migration.is_finished(one)), None)
    if job is None:
        raise CommandFailed(f"{name} does not migrate: there is nothing to cancel")
    await client.store.delete(kinds.MIGRATION, job["metadata"]["name"], client.namespace)
    printers.print_lines([f"{name}: migration {job['metadata']['name']} is cancelled"])
    if wait:
        await _until_gone(client, name, job["metadata"]["name"], timeout)


async def _running(client: Client, name: str) -> Object:
    vmi = await view.vmi_of(client, name)
    if vmi is None or view.phase(vmi) != "Running":
        if vmi is None:
            await view.read(client, name)  # NotFound: there is no such VM either
        raise CommandFailed(f"{name} is not running: only a running VM migrates (outfit why {name})")
    return vmi


async def _until_ended(client: Client, name: str, job: str, timeout: float | None) -> None:
    time = asyncio.get_running_loop().time
    limit = (USUAL if timeout is None else timeout) or math.inf
    end, bar = time() + limit, ProgressBar(name)
    while True:
        found = await _job(client, job)
        vmi = await view.vmi_of(client, name)
        if found is None:
            bar.end()
            raise CommandFailed(f"{name}: migration {job} was deleted; {_place(vmi)}")
        bar.show(describe(found, vmi), share(found, vmi))
        phase = migration.phase_of(found)
        if phase == "Succeeded":
            bar.end()
            state = migration.state(found) or migration.state(vmi or {})
            printers.print_lines([f"{name} runs on {state.get('targetNode')}"])
            return
        if phase == "Failed":
            bar.end()
            failed = conditions.find(found, migration.FAILED) or {}
            raise CommandFailed(f"{name}: migration {job} failed: {failed.get('reason', '')}: {failed.get('message', '')}; "
                                f"{_place(vmi)}")
        if time() >= end:
            bar.end()
            raise TimedOut(f"{name} has not migrated after {time_format.format_duration(limit)}: {describe(found, vmi)}\nthe "
                           f"migration goes on without this command (outfit why vmim/{job} shows more)")
        await asyncio.sleep(LOOK)


async def _until_gone(client: Client, name: str, job: str, timeout: float | None) -> None:
    limit = (USUAL if timeout is None else timeout) or math.inf
    end = asyncio.get_running_loop().time() + limit
    while await _job(client, job) is not None:
        if asyncio.get_running_loop().time() >= end:
            raise TimedOut(f"{name}: migration {job} is not gone after {time_format.format_duration(limit)}")
        await asyncio.sleep(LOOK)
    printers.print_lines([f"{name}: {_place(await view.vmi_of(client, name))}"])


async def _job(client: Client, name: str) -> Object | None:
    try:
        return await client.store.get(kinds.MIGRATION, name, client.namespace)
    except NotFound:
        return None


def _place(vmi: Object | None) -> str:
    return "the VM is gone" if vmi is None else f"the VM runs on {(vmi.get('status') or {}).get('nodeName')}"


def describe(job: Object, vmi: Object | None) -> str:
    """The phase, and why it waits or how much is left."""
    phase = migration.phase_of(job) or "Pending"
    if waiting := conditions.find(job, migration.WAITING):
        return f"{phase}: {waiting.get('reason')}: {waiting.get('message')}"
    progress = migration.state_of(vmi or {}, job).get("progress") or {}
    if phase == "Running" and progress:
        return (f"{phase}: {progress.get('remainingBytes', 0) // MIB} MiB of {progress.get('totalBytes', 0) // MIB} MiB left, "
                f"iteration {progress.get('iteration', 0)}")
    return phase


def share(job: Object, vmi: Object | None) -> float | None:
    """How much of the memory was copied."""
    if migration.phase_of(job) == "Succeeded":
        return 1.0
    return migration.progress_share(migration.state_of(vmi or {}, job).get("progress") or {})


class ProgressBar:
    """On a terminal one line that changes; elsewhere a line for each change."""

    def __init__(self, name: str) -> None:
        self._name, self._shown, self._open = name, "", False

    def show(self, words: str, part: float | None) -> None:
        filled = "" if part is None else f"[{'#' * round(part * WIDTH):{WIDTH}}] {part:4.0%} "
        line = f"  {self._name}: {filled}{words}"
        if line == self._shown:
            return
        self._shown = line
        if sys.stdout.isatty():
            click.echo(f"\r\x1b[K{line}", nl=False)
            self._open = True
        else:
            click.echo(line)

    def end(self) -> None:
        if self._open:
            click.echo()
            self._open = False
