"""The command group `outfit vm nic`. The functions are in `nics`, which is imported late: a client is slow to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click

from outfitter.cli import params


@click.group("nic")
def nic() -> None:
    """Add, remove and see the NICs of a VM, also while it runs."""


def _run(context: click.Context, function: str, *arguments: Any, **options: Any) -> None:
    from outfitter.cli import client  # noqa: PLC0415

    if options.get("wait_") and options.get("dry_run"):
        raise click.UsageError("--wait cannot be combined with --dry-run: a dry run changes nothing")
    if options.get("timeout") is not None and not options["wait_"]:
        raise click.UsageError("--timeout limits --wait; add --wait")
    nics = importlib.import_module("outfitter.cli.vm.nics")
    client.run(context, lambda connected: getattr(nics, function)(connected, *arguments, **options))


def _changes(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that change a VM."""
    command = params.connection_options(click.pass_context(command))
    command = click.option("--dry-run", is_flag=True, help="Check whether it is possible, and do nothing.")(command)
    command = click.option("--timeout", type=params.Seconds(), metavar="SECONDS|5m",
                           help="How long to --wait; 0 means no limit (default: 5m).")(command)
    return click.option("--wait", "wait_", is_flag=True, help="Wait until the running VM has the change.")(command)


@nic.command("list")
@click.argument("name", metavar="VM")
@params.connection_options
@click.pass_context
def _list(context: click.Context, name: str) -> None:
    """Show the NICs of a VM and what they are attached to."""
    _run(context, "list_", name)


@nic.command("add")
@click.argument("name", metavar="VM")
@click.argument("card", metavar="NIC")
@click.option("--network", metavar="[NAMESPACE/]NAME", help="The NetworkAttachmentDefinition that it is attached to.")
@click.option("--claim", metavar="CLAIM/REQUEST", help="Instead: the VF of a request of a claim that the VM has.")
@click.option("--sriov", is_flag=True, help="It is a VF (default: if the definition has the type sriov).")
@click.option("--mac", metavar="ADDRESS", help="Its MAC address (default: computed from the VM and its name).")
@click.option("--down", is_flag=True, help="With its link down.")
@_changes
def _add(context: click.Context, name: str, card: str, **options: Any) -> None:
    """Add a NIC to a VM."""
    if (options["network"] is None) == (options["claim"] is None):
        raise click.UsageError("name either --network or --claim")
    _run(context, "add", name, card, **options)


@nic.command("remove")
@click.argument("name", metavar="VM")
@click.argument("cards", nargs=-1, required=True, metavar="NIC...")
@_changes
def _remove(context: click.Context, name: str, cards: tuple[str, ...], **options: Any) -> None:
    """Remove NICs from a VM; a plug that waits is cancelled."""
    _run(context, "remove", name, cards, **options)


@nic.command("link")
@click.argument("name", metavar="VM")
@click.argument("card", metavar="NIC")
@click.argument("state", type=click.Choice(["up", "down"]), metavar="up|down")
@_changes
def _link(context: click.Context, name: str, card: str, state: str, **options: Any) -> None:
    """Set the link of a NIC up or down."""
    _run(context, "link", name, card, state=state, **options)
