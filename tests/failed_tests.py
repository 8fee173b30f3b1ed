"""The last lines of a run that failed: for each failed test the command that runs it alone, with the same options."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TITLE = "To run a failed test alone:"
MOST = 10  # lines
OPTIONS = {"all_parts": "--all-parts", "cases": "--cases", "cases_not_built": "--cases-not-built", "rounds": "--rounds",
           "seed": "--seed"}
ENVIRONMENT = ("KUBEBUILDER_ASSETS",)


def command(nodeid: str, options: Mapping[str, object], environment: Mapping[str, str], root: Path) -> str:
    program = Path(sys.executable).with_name("pytest")
    variables = [f"{name}={shlex.quote(environment[name])} " for name in ENVIRONMENT if environment.get(name)]
    words = [str(program.relative_to(root) if program.is_relative_to(root) else program), nodeid]
    for name, value in options.items():
        words += [name] if value is True else [name, str(value)]
    return "".join(variables) + shlex.join(words)


def options(config: pytest.Config) -> dict[str, object]:
    """Those that change what a test does, where they were given."""
    given = config.invocation_params.args
    return {option: config.getoption(name) for name, option in OPTIONS.items()
            if any(word == option or word.startswith(f"{option}=") for word in given)}


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    failed = dict.fromkeys(report.nodeid for outcome in ("failed", "error") for report in reporter.stats.get(outcome, ()))
    if not failed:
        return
    reporter.write_line(TITLE)
    for nodeid in list(failed)[:MOST]:
        reporter.write_line("  " + command(nodeid, options(config), os.environ, config.rootpath))
    if len(failed) > MOST:
        reporter.write_line(f"  and {len(failed) - MOST} more")
