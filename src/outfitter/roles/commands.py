"""`outfit ROLE` for every role, with the options of `settings.TABLE`. Imports a role, and what it needs, only when it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from outfitter.cli.host.pods import pods
from outfitter.errors import Invalid
from outfitter.roles import ROLES, Role, settings
from outfitter.roles.settings import Setting


def commands() -> list[click.Command]:
    return [_command(role) for role in ROLES.values()]


def _command(role: Role) -> click.Command:
    def run(context: click.Context, /, **given: Any) -> None:
        if context.invoked_subcommand is not None:
            return
        _start(role, _texts({**_before(context), **{name: value for name, value in given.items() if value is not None}}))

    run.__doc__ = role.text
    made: Any = click.pass_context(run)
    for setting in reversed(settings.of_role(role.name)):
        made = _option(setting)(made)
    if role.name == "node":
        group: click.Group = click.group(role.name, invoke_without_command=True)(made)
        group.add_command(pods)
        return group
    return click.command(role.name)(made)


def _option(setting: Setting) -> Any:
    text = setting.meaning.replace("`", "")
    text = f"{text[0].upper()}{text[1:]} (default: {setting.default.replace('`', '')}; {setting.variable})."
    if setting.type.switch:
        return click.option(f"{setting.flag}/--no-{setting.flag[2:]}", setting.name, default=None, help=text)
    return click.option(setting.flag, setting.name, metavar=setting.type.metavar, help=text)


def _before(context: click.Context) -> dict[str, Any]:
    """--kubeconfig and -n may stand before the name of the command."""
    return {name: value for name, value in (context.obj or {}).items() if value}


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in given.items()}


def _start(role: Role, flags: Mapping[str, str]) -> None:
    """A flag that is wrong is a wrong command line (exit status 2); all else that is wrong is exit status 1."""
    try:
        settings.resolve(role.name, flags, {})
    except Invalid as error:
        raise click.UsageError(error.message) from error
    from outfitter.roles import process  # noqa: PLC0415  # what runs a role need not be imported to list the commands

    process.main(role, flags, os.environ)
