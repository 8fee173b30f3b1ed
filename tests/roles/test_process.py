"""A role as a process: its log, its end by a signal or an error, its health."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import types
import urllib.error
from collections.abc import Awaitable, Callable, Iterator

import pytest

from outfitter.errors import StartupRefused
from outfitter.roles import Role, process
from outfitter.roles.process import RoleProcess
from tests import kubernetes

ROLE = Role("launcher", "fake", "A role of this file.")
Run = Callable[[RoleProcess], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Runs a coroutine function as a role, with flags."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level

    def run(role: Run, **flags: str) -> None:
        module = types.ModuleType("outfitter.roles.fake")
        module.__dict__["run"] = role
        monkeypatch.setitem(sys.modules, module.__name__, module)
        process.main(ROLE, flags, {"OUTFITTER_LOG_LEVL": "debug"})

    yield run
    root.handlers[:] = before
    root.setLevel(level)


class RecordList(logging.Handler):
    """Adds each record to a list."""

    def __init__(self, seen: list[logging.LogRecord]) -> None:
        super().__init__()
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.append(record)


def lines(text: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.splitlines()]


async def wait_for_stop(run: RoleProcess) -> None:
    run.ready("it works")
    os.kill(os.getpid(), signal.SIGTERM)
    await run.stop.wait()


def test_a_signal_ends_a_role_and_each_line_is_json(play: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    play(wait_for_stop, log_format="json")
    said = lines(capsys.readouterr().err)
    assert [line["level"] for line in said] == ["warning", "info", "info"]
    assert "OUTFITTER_LOG_LEVL" in said[0]["message"]
    assert said[1]["message"].endswith(": it works")
    assert {line["role"] for line in said} == {"launcher"}


def test_a_signal_during_the_start_does_not_wait_for_it(play: Callable[..., None]) -> None:
    ended = []

    async def role(run: RoleProcess) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()  # for an API server that does not answer
        finally:
            ended.append(True)

    play(role)
    assert ended == [True]


async def refused(run: RoleProcess) -> None:
    raise StartupRefused("the disk is full; make room")


def test_an_error_is_raised_or_a_line_of_json_with_its_code(
    play: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StartupRefused, match="make room"):
        play(refused)
    with pytest.raises(SystemExit) as end:
        play(refused, log_format="json")
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (end.value.code, last["code"], last["message"]) == (1, StartupRefused.code, "the disk is full; make room")


def test_a_role_that_ends_without_a_signal_is_an_error(play: Callable[..., None]) -> None:
    async def role(run: RoleProcess) -> None:
        run.ready()

    with pytest.raises(StartupRefused, match="without a signal"):
        play(role)


def test_health_follows_the_checks_of_the_role(play: Callable[..., None]) -> None:
    answers: list[object] = []

    async def role(run: RoleProcess) -> None:
        address = next(record.args for record in reversed(seen) if "health and metrics" in record.msg)
        assert isinstance(address, tuple)
        url = f"http://{address[0]}:{address[1]}"
        run.ready_checks["full"] = lambda: len(answers) > 3
        answers.append(await asyncio.to_thread(status, f"{url}/readyz"))
        run.ready()
        answers.append(await asyncio.to_thread(status, f"{url}/healthz"))
        answers.append(await asyncio.to_thread(status, f"{url}/readyz"))
        answers.append(await asyncio.to_thread(status, f"{url}/secrets"))
        answers.append(await asyncio.to_thread(status, f"{url}/readyz"))
        assert b"process_cpu_seconds_total" in await asyncio.to_thread(kubernetes.fetch, f"{url}/metrics")
        os.kill(os.getpid(), signal.SIGTERM)
        await run.stop.wait()

    seen: list[logging.LogRecord] = []
    log = logging.getLogger("outfitter.roles.health")
    watch = RecordList(seen)
    log.addHandler(watch)
    try:
        play(role, health_address="127.0.0.1:0")
    finally:
        log.removeHandler(watch)
    assert answers == [500, 200, 500, 404, 200]


def test_an_address_in_use_is_refused_with_the_setting(play: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(StartupRefused, match="--health-address"):
        play(wait_for_stop, health_address=f"127.0.0.1:{taken.getsockname()[1]}")


def status(url: str) -> int:
    try:
        kubernetes.fetch(url)
    except urllib.error.HTTPError as error:
        return error.code
    return 200
