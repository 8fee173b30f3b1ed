"""Machines that libvirt runs. No call blocks the event loop: each is made in a thread, on one connection that is opened when
it is first needed and opened again, later and later, after it was lost. A daemon that takes the call and then is silent is
waited for as little: at the opening for some seconds, later for as long as its keepalive goes (`connection.py`).

A machine is defined before it is started, so that libvirt still knows how it ended when nobody of ours was listening; it is
undefined when it is stopped. `connection.py` speaks with libvirt."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from outfitter.api.hypervisor import DRIVES, Abilities, Domain, Ended
from outfitter.errors import HypervisorAway, StartupRefused
from outfitter.launcher import connection
from outfitter.launcher.connection import Connection

log = logging.getLogger(__name__)
SYSTEM = "qemu:///system"
SOCKETS = ("/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock")  # one daemon for all drivers, or one for QEMU alone
THREADS = 4
PATIENCE = 20.0  # seconds in which the daemon must answer who opens a connection; on an open one its keepalive counts
BACKOFF = (1.0, 30.0)  # seconds to the second try, and at most
PRESS_EVERY = 5.0  # seconds after which the power button is pressed again: a guest that boots does not notice it
FRESH = 10.0  # seconds for which a list of domains is believed though libvirt did not say that anything changed

P = ParamSpec("P")
T = TypeVar("T")


def unavailable_reason() -> str:
    """Why machines cannot be run by libvirt here; empty when they can."""
    try:
        connection.library()
    except StartupRefused as error:
        return error.message
    if not any(Path(path).is_socket() for path in SOCKETS):
        return f"libvirt does not run here (there is no {' and no '.join(SOCKETS)})"
    return ""


class Libvirt:
    def __init__(
        self, uri: str = SYSTEM, *, monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, drives: str = DRIVES, patience: float = PATIENCE,
    ) -> None:
        """`drives`: a folder for the images of config drives, where QEMU can read them."""
        self.uri, self._drives = uri, drives
        self._monotonic, self._sleep, self._patience = monotonic, sleep, patience
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="libvirt")
        self._opening = asyncio.Lock()
        self._dialled: asyncio.Future[Connection] | None = None  # a connection on which libvirt has not answered yet
        self._connection: Connection | None = None
        self._away: HypervisorAway | None = None  # why there is no connection
        self._tries, self._next_try = 0, 0.0
        self._again: asyncio.Task[None] | None = None
        self._closed = False
        self._callbacks: list[Callable[[str], None]] = []
        self._asked: dict[str, float] = {}  # when a guest was first asked to shut down
        self._changes = 0  # counts what libvirt told us
        self._seen: tuple[int, float, Mapping[str, Domain]] | None = None  # at which count and when, and what ran

    # -- what the node asks

    async def domains(self) -> Mapping[str, Domain]:
        changes, now = self._changes, self._monotonic()
        if self._connection is None or self._seen is None or self._seen[0] != changes or now - self._seen[1] > FRESH:
            found = await self._call(Connection.domains)
            self._seen = changes, now, found
        return self._seen[2]

    async def ended(self) -> Mapping[str, Ended]:
        return await self._call(Connection.ended)

    async def abilities(self) -> Abilities:
        return Abilities(kvm=await self._call(Connection.kvm), drives=self._drives)

    async def start(self, domain: Domain) -> None:
        try:
            await self._call(Connection.start, domain)
        finally:
            self._changes += 1

    async def pause(self, uid: str) -> None:
        await self._act(Connection.pause, uid)

    async def unpause(self, uid: str) -> None:
        await self._act(Connection.unpause, uid)

    async def reset(self, uid: str) -> None:
        await self._act(Connection.reset, uid)

    async def reboot(self, uid: str) -> None:
        await self._act(Connection.reboot, uid)

    async def _act(self, method: Callable[[Connection, str], None], uid: str) -> None:
        try:
            await self._call(method, uid)
        finally:
            self._changes += 1

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        if grace > 0 and await self._call(Connection.request_shutdown, uid):
            left = self._asked.setdefault(uid, self._monotonic()) + grace - self._monotonic()
            if left > 0:
                return min(left, PRESS_EVERY)
        try:
            await self._call(Connection.destroy, uid)
        finally:
            self._changes += 1
        self._asked.pop(uid, None)
        return None

    def on_change(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        self._closed = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)
        if self._dialled is not None:
            self._dialled.cancel()
        if self._connection is not None:
            link, self._connection = self._connection, None
            await asyncio.get_running_loop().run_in_executor(self._threads, link.close)
        self._threads.shutdown(wait=False)

    # -- the connection

    async def _call(self, method: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        link = await self._connected()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: method(link, *args, **kwargs))
        except HypervisorAway as error:
            if not link.alive():
                self._lost(link, error)
            raise

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is not None:
                return self._connection
            if self._closed:
                raise HypervisorAway(f"the connection to libvirt at {self.uri} was closed")
            wait = self._next_try - self._monotonic()
            if self._away is not None and wait > 0:
                raise HypervisorAway(self._away.message, retry_after=wait)
            try:
                await self._open()
            except HypervisorAway as error:
                self._put_off(error)
                raise HypervisorAway(error.message, retry_after=self._next_try - self._monotonic()) from error
            assert self._connection is not None
            return self._connection

    async def _open(self) -> None:
        if self._dialled is None:
            self._dialled = self._dial()
            await asyncio.wait({self._dialled}, timeout=self._patience)
        if not self._dialled.done():  # a second one would be as silent, and hang beside it
            raise HypervisorAway(f"libvirt at {self.uri} does not answer: it took the connection and has been silent for more "
                                 f"than {self._patience:.0f} s")
        dialled, self._dialled = self._dialled, None
        link = dialled.result()
        back = self._away is not None
        self._connection, self._away, self._tries = link, None, 0
        self._changes += 1
        if back:
            log.warning("libvirt at %s answers again", self.uri)
            self._changed("")  # whatever happened meanwhile was not told

    def _dial(self) -> asyncio.Future[Connection]:
        """A connection, some time. Made in a thread that nobody waits for, not even the end of this process: it may hang."""
        loop, made = asyncio.get_running_loop(), Future[Connection]()

        def from_thread(work: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(work)
            except RuntimeError:  # the loop has ended, and everybody who listened with it
                log.debug("news of libvirt at %s came too late", self.uri)

        def closed(why: str) -> None:
            error = HypervisorAway(f"libvirt at {self.uri} does not answer: {why}")
            from_thread(lambda: self._lost(made.result() if made.done() else None, error))

        def dial() -> None:
            made.set_running_or_notify_cancel()
            try:
                link = Connection(self.uri, changed=lambda uid: from_thread(lambda: self._changed(uid)), closed=closed)
            except Exception as error:
                made.set_exception(error)
                return
            made.set_result(link)
            if self._closed:  # nobody waits for it any more
                link.close()

        threading.Thread(target=dial, name="libvirt opening", daemon=True).start()
        return asyncio.wrap_future(made)

    def _lost(self, link: Connection | None, error: HypervisorAway) -> None:
        if link is None or link is not self._connection:
            return  # known already
        self._connection = None
        log.warning("%s; trying again", error.message)
        asyncio.get_running_loop().run_in_executor(self._threads, link.close)
        self._put_off(error)

    def _put_off(self, error: HypervisorAway) -> None:
        """Try again later, by ourselves: nobody may ask for a long time, and machines may have ended."""
        first, most = BACKOFF
        self._away = error
        self._next_try = self._monotonic() + min(most, first * 2.0 ** min(self._tries, 10))
        self._tries += 1
        if not self._closed and (self._again is None or self._again.done()):
            self._again = asyncio.get_running_loop().create_task(self._try_again())

    async def _try_again(self) -> None:
        while self._connection is None and not self._closed:
            await self._sleep(max(0.0, self._next_try - self._monotonic()))
            try:
                await self._connected()
            except HypervisorAway as error:
                log.info("%s", error.message)

    def _changed(self, uid: str) -> None:
        self._changes += 1
        for callback in self._callbacks:
            callback(uid)
