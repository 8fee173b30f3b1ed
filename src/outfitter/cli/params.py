"""Parameters that commands share: paths, simulated hosts, durations, and the options of the connection. Used by the
modules that define commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from outfitter.cli import time_format
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


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A duration as kubectl accepts it; a plain number is seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return time_format.parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Accepts -n and --kubeconfig after the command too."""

    def remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value:
            context.obj[option.name] = value

    for names, metavar, text in ((("--kubeconfig",), "FILE", "How to reach the API server."),
                                 (("-n", "--namespace"), "NAME", "The namespace.")):
        command = click.option(*names, metavar=metavar, expose_value=False, callback=remember, help=text)(command)
    return command
