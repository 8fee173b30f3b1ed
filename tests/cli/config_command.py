"""`outfit config` as a person types it, without a server, and what it prints."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner, Result

from outfitter.cli import main

ROOT = Path(__file__).parents[2]
HOSTS = str(ROOT / "examples" / "hosts" / "two-sockets.yaml")


def _nobody(**_: object) -> None:
    raise AssertionError("no server is started")


def typed(*arguments: object) -> Result:
    return CliRunner().invoke(main.commands(_nobody), ["config", *map(str, arguments)])


def shown(text: str, *arguments: object) -> str:
    """What check says of a configuration that is right."""
    Path("file.yaml").write_text(text)
    result = typed("check", "file.yaml", *arguments)
    assert result.exception is None, result.output
    return result.stdout


def table(text: str, title: str) -> list[str]:
    """The lines below one that begins so, without their blanks at the edge."""
    block = text.partition(title)[2].partition("\n\n")[0]
    return [re.sub(" +", " ", line.strip()) for line in block.splitlines()[1:]]
