"""The arguments of `outfit vm migrate`."""

from __future__ import annotations

import click

from outfitter.cli import params


@click.command("migrate")
@click.argument("name")
@click.option("--to", metavar="HOST", help="The host to migrate to (default: any that can take it).")
@click.option("--cancel", is_flag=True, help="Cancel its migration instead: it stays where it is.")
@click.option("--wait", is_flag=True, help="Wait until it has ended, and show how far it is.")
@click.option("--timeout", type=params.Seconds(), metavar="SECONDS|5m",
              help="How long to --wait; 0 means no limit (default: 10m).")
@click.option("--dry-run", is_flag=True, help="Check whether the migration is admitted, and do nothing.")
@params.connection_options
@click.pass_context
def command(
    context: click.Context, /, *, name: str, to: str | None, cancel: bool, wait: bool, timeout: float | None, dry_run: bool
) -> None:
    """Migrate a running VM to another host."""
    from outfitter.cli import client  # noqa: PLC0415  # an HTTP client
    from outfitter.cli.vm import migrate  # noqa: PLC0415

    if timeout is not None and not wait:
        raise click.UsageError("--timeout limits --wait; add --wait")
    if wait and dry_run:
        raise click.UsageError("--wait cannot be combined with --dry-run: a dry run changes nothing")
    if cancel and (to or dry_run):
        raise click.UsageError("--cancel takes neither --to nor --dry-run")
    if cancel:
        client.run(context, lambda connected: migrate.cancel(connected, name, wait=wait, timeout=timeout))
    else:
        client.run(context, lambda connected: migrate.migrate(
            connected, name, to=to, wait=wait, timeout=timeout, dry_run=dry_run))
