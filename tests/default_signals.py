"""Processes that tests start have default signal handlers, however the test run itself was started.

`nohup make test &`, and every background job of a script, runs with SIGINT ignored. A child inherits that, and a test that ends
one with SIGINT waits for ever. A signal with a handler is reset to its default in a child, so here a handler that does nothing
takes the place of "ignored": this process ignores the signal as before. SIGHUP stays ignored in children as well, because
that is what nohup is for."""

from __future__ import annotations

import signal
from types import FrameType

import pytest

SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):
        return  # tests run in workers, which must inherit that signals are ignored
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
