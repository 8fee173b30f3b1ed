"""Output that nobody reads any more, as in `outfit get nodes | head -1`: the command ends without a word, as others do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TextIO

import click

STATUS = 141  # of a command that a closed pipe ended: 128 and the number of SIGPIPE


class BrokenPipe(Exception):
    """Whoever read our output is gone."""


@contextlib.contextmanager
def noticed() -> Iterator[None]:
    """click makes a failure of its own of a closed pipe, unless it is told otherwise."""
    try:
        yield
    except BrokenPipeError as error:
        raise BrokenPipe from error


class PipeSafeGroup(click.Group):
    """Commands that tell a closed pipe from other trouble."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with noticed():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with noticed():
            return super().invoke(ctx)


def hush(*streams: TextIO) -> None:
    """Say nothing more there, nor when the interpreter ends and would say what is left."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream.fileno())
    os.close(null)
