"""A closed output pipe, as in `outfit get nodes | head -1`: the command ends silently with exit status 141, as others do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, TextIO

import click

STATUS = 141  # exit status after a closed pipe: 128 + SIGPIPE


class BrokenPipe(Exception):
    """The reader closed the output pipe."""


@contextlib.contextmanager
def raise_broken_pipe() -> Iterator[None]:
    """Raises BrokenPipe, because click handles BrokenPipeError itself."""
    try:
        yield
    except BrokenPipeError as error:
        raise BrokenPipe from error


class PipeSafeGroup(click.Group):
    """Raises BrokenPipe for a closed output pipe, from argument parsing and from commands."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        with raise_broken_pipe():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with raise_broken_pipe():
            return super().invoke(ctx)


def discard_output(*streams: TextIO) -> None:
    """Send further output to /dev/null, also what the interpreter flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream.fileno())
    os.close(null)
