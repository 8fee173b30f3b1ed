"""The command group `outfit vm nic`. The functions are in `nics`."""

from __future__ import annotations

from typing import Any

import click

from outfitter.cli import params
from outfitter.cli.vm import plug_options


@click.group("nic")
def nic() -> None:
    """Add, remove and see the NICs of a VM, also while it runs."""


@nic.command("list")
@click.argument("name", metavar="VM")
@params.connection_options
@click.pass_context
def _list(context: click.Context, name: str) -> None:
    """Show the NICs of a VM and what they are attached to."""
    plug_options.run(context, "nics", "list_", name)


@nic.command("add")
@click.argument("name", metavar="VM")
@click.argument("card", metavar="NIC")
@click.option("--network", metavar="[NAMESPACE/]NAME", help="The NetworkAttachmentDefinition that it is attached to.")
@click.option("--claim", metavar="CLAIM/REQUEST", help="Instead: the VF of a request of a claim that the VM has.")
@click.option("--sriov", is_flag=True, help="It is a VF (default: if the definition has the type sriov).")
@click.option("--mac", metavar="ADDRESS", help="Its MAC address (default: computed from the VM and its name).")
@click.option("--down", is_flag=True, help="With its link down.")
@plug_options.changes
def _add(context: click.Context, name: str, card: str, **options: Any) -> None:
    """Add a NIC to a VM."""
    if (options["network"] is None) == (options["claim"] is None):
        raise click.UsageError("name either --network or --claim")
    plug_options.run(context, "nics", "add", name, card, **options)


@nic.command("remove")
@click.argument("name", metavar="VM")
@click.argument("cards", nargs=-1, required=True, metavar="NIC...")
@plug_options.changes
def _remove(context: click.Context, name: str, cards: tuple[str, ...], **options: Any) -> None:
    """Remove NICs from a VM; a plug that waits is cancelled."""
    plug_options.run(context, "nics", "remove", name, cards, **options)


@nic.command("link")
@click.argument("name", metavar="VM")
@click.argument("card", metavar="NIC")
@click.argument("state", type=click.Choice(["up", "down"]), metavar="up|down")
@plug_options.changes
def _link(context: click.Context, name: str, card: str, state: str, **options: Any) -> None:
    """Set the link of a NIC up or down."""
    plug_options.run(context, "nics", "link", name, card, state=state, **options)
