"""A time limit for each phase (set-up, call, teardown) of every test, so that no test run can hang.

A phase that exceeds its limit fails with the stacks of all threads and of the event loop's tasks. The alarm repeats, so that
a teardown that hangs too, or an exception that a background task swallowed, does not stop the run. A process that does not
react because C code never returns to Python writes its stacks and exits: pytest-xdist reports the test and starts a new worker.

`@pytest.mark.time_limit(seconds)` sets another limit; `--time-limit 0` removes all of them, for a debugger. pytest-timeout is
not used: its alarm fires once, and not at all in the teardown of a test that has failed."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

DEFAULT = 600.0  # seconds; the longest waits of tests end after 300, with a better message
BY_MARKER = {"long": 3600.0, "cluster": 900.0, "libvirt": 900.0, "kubectl": 900.0, "parts": 900.0}
AGAIN = 60.0  # seconds between alarms
ALARMS = 3  # after that many the process exits
STACKS = "stacks of all threads"

_exceeded = pytest.StashKey[str]()  # the phase that exceeded its limit
_stderr = pytest.StashKey[int]()  # where the process writes when it exits; pytest captures file descriptor 2


class TimeLimitExceeded(BaseException):
    """Not an Exception: neither the code under test nor Hypothesis may take it for a failure that they handle."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--time-limit", type=float, metavar="SECONDS", help="for each phase of each test; 0: none")
    parser.addoption("--time-limit-again", type=float, default=AGAIN, help="seconds between two alarms of a test that hangs on")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "time_limit(seconds): how long each phase of the test may take")
    try:
        config.stash[_stderr] = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # a worker of pytest-xdist: an object that is not a file
        config.stash[_stderr] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])
    del config.stash[_stderr]


def limit(item: pytest.Item) -> float:
    chosen: float | None = item.config.getoption("time_limit")
    if chosen is not None:
        return chosen
    if marker := item.get_closest_marker("time_limit"):
        return float(marker.args[0])
    usual = max((seconds for name, seconds in BY_MARKER.items() if item.get_closest_marker(name)), default=DEFAULT)
    return usual * int(item.config.getoption("rounds", 1))


def stacks() -> str:
    """Of every thread, and of every task of the event loop that runs in this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    text = io.StringIO()
    for ident, frame in sys._current_frames().items():
        text.write(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}\n")
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no event loop runs
        tasks = set()
    for task in tasks:
        task.print_stack(file=text)
    return text.getvalue()


def limited(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    seconds, again = limit(item), item.config.getoption("time_limit_again")
    if not seconds or threading.current_thread() is not threading.main_thread():
        return (yield)

    def alarm(_number: int, _frame: FrameType | None) -> None:
        message = f"{phase} took longer than {seconds:g} s"
        item.stash[_exceeded] = message
        item.add_report_section(phase, STACKS, stacks())
        raise TimeLimitExceeded(message)

    before = signal.signal(signal.SIGALRM, alarm)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, again)
    faulthandler.dump_traceback_later(seconds + ALARMS * again, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        disarm()
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def disarm() -> None:
    """No alarm from here on; one that is delivered meanwhile is ignored."""
    while True:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
        except TimeLimitExceeded:
            continue
        return


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from limited(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from limited(item, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from limited(item, "teardown"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose code swallowed the exception has failed nevertheless. Alarms end with the phase, whatever ended that."""
    if threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0]:
        disarm()
    report = yield
    message = item.stash.get(_exceeded, None)
    if message is not None:
        if report.passed:
            report.outcome, report.longrepr = "failed", message
        del item.stash[_exceeded]
    return report


def pytest_enter_pdb() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
