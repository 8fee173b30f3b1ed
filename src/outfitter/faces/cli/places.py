"""Files and folders as people type them."""

from __future__ import annotations

from typing import Any

import click


class Named(click.ParamType):  # type: ignore[type-arg]
    """A file or a folder. An empty text, as of a variable that is not set, names none: a path would take it for the folder in
    which the command is typed."""

    name = "path"

    def __init__(self, then: click.ParamType = click.STRING) -> None:  # type: ignore[type-arg]
        self._then = then

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; write . for the folder you are in", param, ctx)
        return self._then.convert(value, param, ctx)
