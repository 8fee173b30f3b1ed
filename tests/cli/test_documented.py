"""Every command and option is listed in --help and in docs/commands.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from outfitter.cli import main
from outfitter.roles import ROLES, commands
from tests.e2e.process import ROOT, typed


def _up(**options: object) -> None:
    raise AssertionError(options)


GROUP = main.commands(_up, commands.commands())


def _all(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """Every command by what is typed: "get", "config check". A group that only holds others is none itself."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found[before + name] = command
        if isinstance(command, click.Group):
            found |= _all(command, f"{before}{name} ")
    return found


COMMANDS = _all(GROUP)
DOCS = (ROOT / "docs" / "commands.md").read_text() if (ROOT / "docs" / "commands.md").exists() else ""


def _section(name: str) -> str:
    """The part of the page about one command."""
    found = re.search(rf"^## `outfit {name}`.*?(?=^## |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found, f"docs/commands.md has no section about outfit {name}"
    return found[0]


def _options(command: click.Command) -> list[str]:
    return [word for option in command.params if isinstance(option, click.Option)
            for word in (*option.opts, *option.secondary_opts)]


def _told(text: str) -> set[str]:
    """The options that a section's table mentions."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", row.split("|")[1])}


def test_help_mentions_every_command() -> None:
    shown = typed("--help")
    assert shown.code == 0
    for name, command in GROUP.commands.items():
        assert re.search(rf"^  {name}  +\S", shown.out, re.MULTILINE)
        assert command.get_short_help_str(200) in shown.out, f"the help of {name} is cut off"


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ROLES.keys()))  # those of a role are in docs/roles.md
def test_docs_list_exactly_the_options_of_each_command(name: str) -> None:
    shared = set() if name == "up" else set(_options(GROUP))  # listed once, at the head of the page
    assert _told(_section(name)) == set(_options(COMMANDS[name])) - shared


def test_docs_list_the_global_options() -> None:
    assert set(_options(GROUP)) <= _told(DOCS.partition("## `outfit")[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_for_each_option(name: str) -> None:
    shown = typed(*name.split(), "-h")
    assert shown.code == 0
    for option in (param for param in COMMANDS[name].params if isinstance(param, click.Option)):
        assert option.help, f"{name} {option.opts} has no help"
        assert option.opts[0] in shown.out


def test_docs_name_no_unknown_command() -> None:
    assert set(re.findall(r"^## `outfit ([^`]+)`", DOCS, re.MULTILINE)) == set(COMMANDS)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def _typed_in(page: Path) -> list[list[str]]:
    """The commands in the code blocks of a page."""
    lines = re.findall(r"^(?:    )?(?:\$ )?(outfit (?!.* \| ).*)$", page.read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_every_page_of_commands_is_read() -> None:
    assert len(_typed_in(ROOT / "docs" / "commands.md")) > 50
    assert sum(bool(_typed_in(page)) for page in PAGES) > 15


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_document_is_one_that_can_be_typed(page: Path) -> None:
    for _, name, *words in _typed_in(page):
        while words and any(f"{known} ".startswith(f"{name} {words[0]} ") for known in COMMANDS):
            name, words = f"{name} {words[0]}", words[1:]  # noqa: PLW2901
        command = COMMANDS[name]
        command.make_parser(click.Context(command)).parse_args([word for word in words if word != "&"])
