"""The command `outfit install` and its options. Imports what it does only when it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from outfitter.cli import params

ACTIONS = ("dry_run", "apply", "diff", "remove")
TIMEOUT = "2m"


@click.command("install")
@click.option("--dry-run", "dry_run", is_flag=True, help="Print what would be installed, as YAML; needs no cluster.")
@click.option("--apply", is_flag=True, help="Install, upgrade or complete an installation.")
@click.option("--diff", is_flag=True, help="Show what --apply would change; exit status 1 if anything.")
@click.option("--remove", is_flag=True, help="Remove everything that was installed.")
@click.option("--image", metavar="IMAGE", help="The image of controller, webhook and node agent (default: outfitter:VERSION).")
@click.option("--launcher-image", metavar="IMAGE", help="The image of launchers (default: outfitter-launcher:VERSION).")
@click.option(
    "--image-pull-policy",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    help="When nodes pull the images (default: IfNotPresent).",
)
@click.option("--replicas", type=click.IntRange(1, 9), metavar="N", help="Controllers and webhooks (default: 2 of each).")
@click.option(
    "--config",
    type=params.Named(click.Path(dir_okay=False, path_type=Path)),
    metavar="FILE",
    help="The configuration file of all roles (default: none).",
)
@click.option("--simulation", is_flag=True, default=None, help="Also the service account for outfit node --simulate.")
@click.option("--companion", is_flag=True, default=None, help="Beside KubeVirt: without its definitions, API and webhooks.")
@click.option("--webhook-url", metavar="URL", help="Where the API server finds a webhook that runs outside the cluster.")
@click.option("--force", is_flag=True, help="Remove although there are VMs or bookings: they are ended.")
@click.option(
    "--timeout",
    type=params.Seconds(),
    metavar="SECONDS|5m",
    default=TIMEOUT,
    help="How long to wait for each step (default: 2m).",
)
@params.connection_options
@click.pass_context
def install(context: click.Context, /, *, config: Path | None, force: bool, timeout: float, **given: Any) -> None:
    """Install Outfitter in a Kubernetes cluster, or remove it."""
    chosen = [name for name in ACTIONS if given.pop(name)]
    if len(chosen) != 1:
        raise click.UsageError(f"name one of {', '.join('--' + name.replace('_', '-') for name in ACTIONS)}")
    action = chosen[0]
    if force and action != "remove":
        raise click.UsageError("--force goes with --remove")
    from outfitter.cli.install import actions  # noqa: PLC0415

    options = actions.options(context.obj["namespace"], config, **given)
    if action == "dry_run":
        actions.print_yaml(options)
        return
    from outfitter.cli import client  # noqa: PLC0415

    if action == "diff":
        client.run(context, lambda connected: actions.diff(connected, options))
        return
    with _may_be_repeated():
        if action == "apply":
            client.run(context, lambda connected: actions.apply(connected, options, timeout=timeout))
        else:
            client.run(context, lambda connected: actions.remove(connected, timeout=timeout, force=force))


@contextlib.contextmanager
def _may_be_repeated() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted: some steps may be done; the same command goes on from there", err=True)
        raise
