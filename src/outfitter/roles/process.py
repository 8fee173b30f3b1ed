"""Runs one role as a process: reads its settings, logs as text or JSON, serves health and metrics, and ends in order on SIGTERM
or SIGINT. Called by `commands`; a role sees a `RoleProcess`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import outfitter
from outfitter.errors import OutfitterError, StartupRefused
from outfitter.inventory import config as config_file
from outfitter.inventory.config import Config
from outfitter.roles import Role
from outfitter.roles import settings as role_settings
from outfitter.roles.settings import Settings
from outfitter.store.clock import Clock, SystemClock

if TYPE_CHECKING:
    from outfitter.roles.health import HealthServer
    from outfitter.store.kube import Kube

log = logging.getLogger(__name__)
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
GRACE = 8.0  # seconds for which a role may end its work after a signal, before it is cancelled
FAILED, KILLED = 1, 130  # exit statuses: an error; a second signal
Check = Callable[[], bool]
MetricsText = Callable[[str], tuple[bytes, str]]  # for an Accept header: the metrics and their media type


@dataclass(slots=True)
class RoleProcess:
    """What a role gets. `stop` is set by a signal: the role ends its work and returns. One that has not called `ready` yet, or
    that takes longer than `GRACE`, is cancelled; clean-up belongs into `finally`."""

    role: Role
    settings: Settings
    config: Config  # the configuration file, or its defaults
    begun: float
    clock: Clock = field(default_factory=SystemClock)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    live_checks: dict[str, Check] = field(default_factory=dict)  # of /healthz, /livez and /readyz, by name
    ready_checks: dict[str, Check] = field(default_factory=dict)  # of /readyz alone
    metrics: MetricsText | None = None  # None: /metrics has what every process has
    started: bool = False

    def ready(self, what: str = "") -> None:
        """The role does its work, or is ready to take over."""
        if not self.started:
            self.started = True
            after = time.monotonic() - self.begun
            log.info("outfit %s %s is ready after %.2f s%s", self.role.name, outfitter.__version__, after, what and f": {what}")

    @contextlib.asynccontextmanager
    async def connect(self, warn: Callable[[str], None] | None = None) -> AsyncIterator[Kube]:
        """The API server, by --kubeconfig or the service account of the pod. `warn` receives its warnings."""
        from outfitter.store import kubeconfig  # noqa: PLC0415  # a launcher has no client
        from outfitter.store.kube import Kube  # noqa: PLC0415

        access = kubeconfig.load(self.settings.kubeconfig, clock=self.clock)
        store = Kube(access, clock=self.clock, user_agent=f"outfitter-{self.role.name}/{outfitter.__version__}", warn=warn,
                     managed_fields=False)
        try:
            yield store
        finally:
            await store.close()


def main(role: Role, flags: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Run a role to its end. An error is raised, or in a log of JSON lines logged and exit status 1."""
    begun = time.monotonic()
    settings, config = load(role, flags, environment)
    set_up_logging(settings, role.name)
    for name in role_settings.unknown_variables(environment):
        log.warning("%s is set, but no role has such a setting; it is ignored", name)
    gc.disable()  # importing leaves no garbage, and what is imported stays: later collections need not look at it
    run = importlib.import_module(f"outfitter.roles.{role.module}").run
    gc.freeze()
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            status = runner.run(_run(RoleProcess(role, settings, config, begun), run))
    except OutfitterError as error:
        if settings.log_format != "json":
            raise
        log.error("%s", error, extra={"code": error.code})  # the sentence is the message, the stack is not
        sys.exit(FAILED)
    if status:
        sys.exit(status)


def load(role: Role, flags: Mapping[str, str], environment: Mapping[str, str]) -> tuple[Settings, Config]:
    """The settings of a role and the configuration file. Invalid names what is wrong in either."""
    first = role_settings.resolve(role.name, flags, environment)
    config = config_file.DEFAULT
    if first.config is not None:
        from outfitter.scheduling.nova import alias  # noqa: PLC0415  # only a file has aliases

        config = config_file.load(first.config, alias.check)
    settings = role_settings.resolve(role.name, flags, environment, config.roles, str(first.config or ""))
    role_settings.check_together(settings)
    return settings, config


def spare_the_collector() -> None:
    """What is here after the start, the caches first of all, stays: it need not be looked through for garbage again and
    again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  # not on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(), "role": self._role, "logger": record.name, "message": record.getMessage()}
        if (code := getattr(record, "code", None)) is not None:
            line["code"] = code
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(settings: Settings, role: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role) if settings.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


async def _run(process: RoleProcess, run: Callable[[RoleProcess], Coroutine[Any, Any, int | None]]) -> int | None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if process.role.ends:  # it takes as long as it takes: a second signal changes nothing
            loop.add_signal_handler(number, process.stop.set)
        else:
            loop.add_signal_handler(number, _signalled, number, process.stop)
    health = await _serve_health(process)
    if process.role.ends:
        try:
            return await run(process)
        finally:
            if health is not None:
                await health.close()
    work, stopped = asyncio.create_task(run(process)), asyncio.create_task(process.stop.wait())
    try:
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and process.started:
            await asyncio.wait([work], timeout=GRACE)
        if work.done():
            await work  # raises what ended it
            if not process.stop.is_set():
                raise StartupRefused(f"outfit {process.role.name} ended its work without a signal")
    finally:
        for task in (work, stopped):
            task.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)
        if health is not None:
            await health.close()
    return None


async def _serve_health(process: RoleProcess) -> HealthServer | None:
    if process.settings.health_address is None:
        return None
    from outfitter.roles.health import HealthServer  # noqa: PLC0415  # a web server is slow to import

    server = HealthServer(process)
    await server.start(*process.settings.health_address)
    return server


def _signalled(number: signal.Signals, stop: asyncio.Event) -> None:
    if stop.is_set():  # a second signal: do not wait
        os._exit(KILLED)
    log.info("stopping after %s", number.name)
    stop.set()
