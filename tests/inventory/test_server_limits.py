"""Limits of the API server in the configuration file and on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outfitter import errors
from outfitter.inventory import config, server_limits
from outfitter.inventory.server_limits import ServerLimits

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_limits_of_a_file_and_of_arguments_upon_it() -> None:
    loaded = config.parse("server: {max_connections: 500, read_header_timeout: 5s, max_header_fields: 50}").server
    assert loaded == ServerLimits(max_connections=500, read_header_timeout=5, max_header_fields=50)
    limits = server_limits.with_arguments(loaded, ["max_connections=600", "write_timeout=60s", "read_body_timeout=7"])
    assert limits == ServerLimits(max_connections=600, read_header_timeout=5, max_header_fields=50, write_timeout=60,
                                  read_body_timeout=7)


@pytest.mark.parametrize(("argument", "field", "says"), [
    ("max_connections=0", "max_connections", "from 1 to"),
    ("max_connections=-1", "max_connections", "from 1 to"),
    ("max_connections", "max_connections", "from 1 to"),
    ("max_connections=" + "9" * 5000, "max_connections", "from 1 to"),
    ("max_header_bytes=100", "max_header_bytes", "from 1024 to"),
    ("write_timeout=5m", "write_timeout", "from 1s to 86400s"),
    ("max_connection=5", "max_connection", "did you mean max_connections"),
])
def test_mistakes_are_named(argument: str, field: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        server_limits.with_arguments(ServerLimits(), [argument])
    [cause] = caught.value.causes
    assert cause.field == field
    assert says in cause.message
    key, _, value = argument.partition("=")
    with pytest.raises(errors.Invalid):
        config.parse(f"server: {{{key}: '{value}'}}")


def test_the_page_has_every_limit_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([0-9]+)s? \|", PAGE.read_text(), re.MULTILINE))
    assert {key: int(value) for key, value in rows.items() if key in server_limits.KEYS} == {
        key: getattr(ServerLimits(), key) for key in server_limits.KEYS}
