"""Changes of the template of a VM that may run, and the wait until the VM has them. Called by `nics` and `devices`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions
from outfitter.api.kubevirt.action_patches import Read
from outfitter.api.kubevirt.vm_actions import ObjectPatch
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.cli.vm import view, wait
from outfitter.errors import NotFound, TimedOut
from outfitter.store.readable_store import ReadableStore
from outfitter.store.revision_patch import patch_decided

Change = Callable[[Object, Object | None], Object]  # the template's spec; the VMI, if it is alive -> a patch of the spec


async def patch(client: Client, name: str, what: str, change: Change, *, dry_run: bool) -> bool:
    """Change the template of a VM, or nothing. Whether it runs. `what`: what a VMI without a VM has."""
    running = False

    def decide(read: Read) -> list[ObjectPatch]:
        nonlocal running
        vm, vmi = read(kinds.VM), read(kinds.VMI)
        if vm is None:
            raise NotFound(f"there is no VM {name} in namespace {client.namespace}" + (
                f": it is a VMI without a VM, whose {what} do not change" if vmi is not None else ""))
        running = vm_actions.is_alive(vmi)
        spec = change(vm["spec"]["template"]["spec"], vmi if running else None)
        return [ObjectPatch(kinds.VM, {"spec": {"template": {"spec": spec}}})]

    await patch_decided(ReadableStore(client.store), name, client.namespace, (kinds.VM, kinds.VMI), decide, dry_run=dry_run)
    return running


async def until(
    client: Client, name: str, what: str, done: Callable[[Object | None], bool], timeout: float | None, *,
    reasons: Sequence[str],
) -> None:
    """TimedOut: with the messages of the conditions `reasons`."""
    try:
        await wait.until(client, what, {name: done}, timeout)
    except TimedOut as error:
        found = [f"{type_}: {condition['message']}" for type_, condition in messages(
            *await view.vm_and_vmi(client, name), reasons)]
        raise TimedOut("\n".join([error.message, *found])) from error


def messages(vm: Object | None, vmi: Object | None, reasons: Sequence[str]) -> Iterator[tuple[str, Object]]:
    """Conditions of these types that have a message, of the VMI and of the VM."""
    for type_ in reasons:
        for obj in (vmi, vm):
            found = conditions.find(obj, type_) if obj is not None else None
            if found is not None and found.get("message"):
                yield type_, dict(found)


def print_reasons(vm: Object | None, vmi: Object | None, reasons: Sequence[str]) -> None:
    for type_, found in messages(vm, vmi, reasons):
        printers.print_lines([f"{type_} is {found['status']} ({found.get('reason')}): {found['message']}"])


def print_done(words: str, *, dry_run: bool) -> None:
    printers.print_lines([f"{words} (dry run: nothing was changed)" if dry_run else words])
