"""Real parts that tests need. On a host that is meant to have all of them (`--all-parts`, as .ci/run says) a test that
skips for want of one fails instead: nothing is skipped unseen."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

# Reasons that stand on every host: what is not built yet, and cases that may be skipped.
ALLOWED = re.compile(r"is not built yet|quirk")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-parts", action="store_true", help="a test that skips because a part is missing fails")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("all_parts"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not ALLOWED.search(reason):
            report.outcome = "failed"
            report.longrepr = f"a part is missing that this machine should have: {reason}"
    return report
