"""The command group `outfit vm device`. The functions are in `devices`."""

from __future__ import annotations

from typing import Any

import click

from outfitter.cli import params
from outfitter.cli.vm import plug_options

SOURCES = ("template", "resource_claim", "claim")  # options of which `add` takes one


@click.group("device")
def device() -> None:
    """Add, remove and see the GPUs and host devices of a VM, also while it runs."""


@device.command("list")
@click.argument("name", metavar="VM")
@params.connection_options
@click.pass_context
def _list(context: click.Context, name: str) -> None:
    """Show the GPUs and host devices of a VM, their claims and who holds them."""
    plug_options.run(context, "devices", "list_", name)


@device.command("add")
@click.argument("name", metavar="VM")
@click.argument("entry", metavar="DEVICE")
@click.option("--template", metavar="NAME", help="The ResourceClaimTemplate of a claim of its own.")
@click.option("--resource-claim", metavar="NAME", help="Instead: a ResourceClaim that exists.")
@click.option("--claim", metavar="CLAIM", help="Instead: a claim that the VM has, an entry of its resourceClaims.")
@click.option("--request", metavar="REQUEST", help="The request of the claim (default: its only one).")
@click.option("--gpu", is_flag=True, help="As a GPU; else as a host device.")
@plug_options.changes
def _add(context: click.Context, name: str, entry: str, **options: Any) -> None:
    """Add a GPU or host device by claim to a VM; one that runs gets it on its host."""
    if sum(options[key] is not None for key in SOURCES) != 1:
        raise click.UsageError("name one of --template, --resource-claim and --claim")
    source = {key: options.pop(key) for key in SOURCES}
    plug_options.run(context, "devices", "add", name, entry, source, **options)


@device.command("remove")
@click.argument("name", metavar="VM")
@click.argument("entries", nargs=-1, required=True, metavar="DEVICE...")
@plug_options.changes
def _remove(context: click.Context, name: str, entries: tuple[str, ...], **options: Any) -> None:
    """Remove GPUs and host devices from a VM, with claims that nothing else of it uses; a plug that waits is cancelled."""
    plug_options.run(context, "devices", "remove", name, entries, **options)
