"""Options of the commands that change the NICs and devices of a VM, and how these commands are run. The functions are imported
late: a client is slow to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click

from outfitter.cli import params


def run(context: click.Context, module: str, function: str, *arguments: Any, **options: Any) -> None:
    """Call a function of a module of `outfitter.cli.vm` with a client."""
    from outfitter.cli import client  # noqa: PLC0415

    if options.get("wait_") and options.get("dry_run"):
        raise click.UsageError("--wait cannot be combined with --dry-run: a dry run changes nothing")
    if options.get("timeout") is not None and not options["wait_"]:
        raise click.UsageError("--timeout limits --wait; add --wait")
    found = importlib.import_module(f"outfitter.cli.vm.{module}")
    client.run(context, lambda connected: getattr(found, function)(connected, *arguments, **options))


def changes(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that change a VM."""
    command = params.connection_options(click.pass_context(command))
    command = click.option("--dry-run", is_flag=True, help="Check whether it is possible, and do nothing.")(command)
    command = click.option("--timeout", type=params.Seconds(), metavar="SECONDS|5m",
                           help="How long to --wait; 0 means no limit (default: 5m).")(command)
    return click.option("--wait", "wait_", is_flag=True, help="Wait until the running VM has the change.")(command)
