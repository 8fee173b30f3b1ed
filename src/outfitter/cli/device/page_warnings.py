"""Warnings on stderr about entries of LedgerPages that cannot be read. Called by the commands that read pages: `devices`,
`device`, `history`, `providers`, `why` and `plan`; everything else of the page is shown."""

from __future__ import annotations

from collections.abc import Iterable

import click

from outfitter.api.ledger_page.page_entries import MalformedEntry


def warn_malformed(entries: Iterable[MalformedEntry]) -> None:
    for entry in entries:
        click.echo(f"warning: {entry}; repair it: kubectl edit ledgerpages.outfitter.dev {entry.page}", err=True)
