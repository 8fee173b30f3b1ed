"""Parameter types of the CLI: paths and simulated hosts. Used by `main.py`, `scan.py` and `config.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from outfitter.errors import Invalid

NUMBERS = re.compile(r"[-+\s0-9]*[0-9][-+\s0-9]*x[-+\s0-9x]*", re.IGNORECASE)  # meant as NxM, valid or not


class Named(click.ParamType):  # type: ignore[type-arg]
    """A file or a folder. Rejects an empty text, as of a variable that is not set: Path("") is the current directory."""

    name = "path"

    def __init__(self, then: click.ParamType = click.STRING) -> None:  # type: ignore[type-arg]
        self._then = then

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; write . for the current directory", param, ctx)
        return self._then.convert(value, param, ctx)


class Hosts(Named):
    """A hosts file, or NxM. A wrong NxM is rejected while arguments are parsed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if NUMBERS.fullmatch(text) and not Path(text).exists():
            from outfitter.inventory.simulation import hosts_file  # noqa: PLC0415  # slow import, only needed here

            try:
                hosts_file.parse_shorthand(text)
            except Invalid as error:
                self.fail(error.message, param, ctx)
        return text
