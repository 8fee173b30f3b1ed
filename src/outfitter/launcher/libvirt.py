"""The hypervisor libvirt, asynchronous. No call blocks the event loop: each runs in a thread, on one connection that is opened
on first use and reopened with backoff after it was lost. A daemon that accepts the connection and does not answer is not waited
for either: some seconds while opening, later as long as its keepalive allows (`connection.py`).

A domain is defined before it is started, so that libvirt still knows how it ended while the agent was not running; it is
undefined when it is stopped. `connection.py` calls libvirt. Called by the node agent."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from outfitter.api.hypervisor import DRIVES, Abilities, Domain, Ended, MigrationJob, MigrationLimits, MigrationTarget
from outfitter.errors import HypervisorAway, HypervisorError, OutfitterError, StartupRefused
from outfitter.launcher import connection
from outfitter.launcher import iso_image as drives
from outfitter.launcher.connection import Connection
from outfitter.launcher.migration import libvirt_migration

log = logging.getLogger(__name__)
SYSTEM = "qemu:///system"
SOCKETS = ("/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock")  # monolithic daemon, or the modular one for QEMU
THREADS = 4
PATIENCE = 20.0  # seconds for opening a connection; on an open one the keepalive applies
BACKOFF = (1.0, 30.0)  # seconds before the first retry, and at most
PRESS_EVERY = 5.0  # seconds after which the power button is pressed again: a guest that is booting ignores it
UNPLUG_AGAIN = 5.0  # seconds after which a guest is asked again for a NIC that it has not released
UNDEFINES = 2.0  # seconds after which a domain that migrated is undefined, unless another tool migrated it
FRESH = 10.0  # seconds for which the list of domains is cached without an event of libvirt

P = ParamSpec("P")
T = TypeVar("T")


def unavailable_reason() -> str:
    """Why libvirt cannot be used on this host; empty when it can."""
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
        """`drives`: a folder for the images of config drives that QEMU can read."""
        self.uri, self._drives = uri, drives
        self._monotonic, self._sleep, self._patience = monotonic, sleep, patience
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="libvirt")
        self._opening = asyncio.Lock()
        self._opening_connection: asyncio.Future[Connection] | None = None  # a connection that is being opened
        self._connection: Connection | None = None
        self._away: HypervisorAway | None = None  # the error of the last attempt; None while connected
        self._attempts, self._next_attempt = 0, 0.0
        self._retry_task: asyncio.Task[None] | None = None
        self._closed = False
        self._callbacks: list[Callable[[str], None]] = []
        self._shutdown_requested: dict[str, float] = {}  # uid -> time of the first shutdown request
        self._outgoing: dict[str, Future[None]] = {}  # uid -> a migration that this process began
        self._remains_task: asyncio.Task[None] | None = None  # removes what is left of plugs that were interrupted
        self._changes = 0  # number of events so far
        self._seen: tuple[int, float, Mapping[str, Domain]] | None = None  # _changes and time of the last list, and its domains

    # -- the Protocol of api.hypervisor

    async def domains(self) -> Mapping[str, Domain]:
        changes, now = self._changes, self._monotonic()
        if self._connection is None or self._seen is None or self._seen[0] != changes or now - self._seen[1] > FRESH:
            domains = await self._call(Connection.domains)
            self._seen = changes, now, domains
        return self._seen[2]

    async def ended(self) -> Mapping[str, Ended]:
        found = await self._call(Connection.ended)
        if any(how.migrated for how in found.values()):  # libvirt stops such a domain first, and undefines it then
            await self._sleep(UNDEFINES)
            found = await self._call(Connection.ended)
        return found

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

    async def attach_device(self, uid: str, element: str) -> None:
        try:
            await self._act(Connection.attach_device, uid, element)
        except HypervisorError:
            self._remove_remains_later()
            raise

    async def detach_device(self, uid: str, alias: str) -> float | None:
        gone = await self._act(Connection.detach_device, uid, alias)
        return None if gone else UNPLUG_AGAIN

    async def set_link(self, uid: str, alias: str, *, up: bool) -> None:
        await self._act(Connection.set_link, uid, alias, up)

    async def set_bridge(self, uid: str, alias: str, bridge: str) -> None:
        await self._act(Connection.set_bridge, uid, alias, bridge)

    async def _act(self, method: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call that changes a domain: what is cached of it is out of date."""
        try:
            return await self._call(method, *args, **kwargs)
        finally:
            self._changes += 1

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        if grace > 0 and await self._call(Connection.request_shutdown, uid):
            left = self._shutdown_requested.setdefault(uid, self._monotonic()) + grace - self._monotonic()
            if left > 0:
                return min(left, PRESS_EVERY)
        try:
            await self._call(Connection.destroy, uid)
            await asyncio.to_thread(drives.remove, Path(self._drives) / f"{uid}.iso")  # of one that migrated away
        finally:
            self._changes += 1
        self._shutdown_requested.pop(uid, None)
        return None

    # -- live migration

    async def prepare_incoming(self, domain: Domain) -> MigrationTarget:
        await self._call(libvirt_migration.prepare_incoming, domain)
        return MigrationTarget(self.uri, domain.drive.path if domain.drive is not None else "",
                               {nic.alias: nic.bridge for nic in domain.nics if nic.bridge})

    async def incoming(self) -> frozenset[str]:
        return await self._call(libvirt_migration.incoming, Path(self._drives))

    async def cancel_incoming(self, uid: str) -> None:
        try:
            await self._call(libvirt_migration.cancel_incoming, uid, Path(self._drives))
        finally:
            self._changes += 1

    async def migrate(self, uid: str, target: MigrationTarget, limits: MigrationLimits) -> None:
        """In a thread of its own, as it lasts: the others are for calls that are answered soon."""
        known = self._outgoing.get(uid)
        if (known is not None and not known.done()) or await self._call(libvirt_migration.job, uid) is not None:
            return
        connected, done = await self._connected(), Future[None]()
        self._outgoing[uid] = done

        def copy() -> None:
            try:
                libvirt_migration.migrate(connected, uid, target, limits)
            except OutfitterError as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=copy, name=f"libvirt migration {uid}", daemon=True).start()
        asyncio.wrap_future(done).add_done_callback(functools.partial(self._copy_ended, uid))

    def _copy_ended(self, uid: str, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.warning("%s", error)
        self._changed(uid)

    async def migration(self, uid: str) -> MigrationJob | None:
        known = self._outgoing.get(uid)
        if known is not None and known.done():
            error = known.exception()
            self._changes += 1  # whether it runs on, its caller reads from the domain
            if isinstance(error, HypervisorError):
                return MigrationJob(failed=error.message)
            del self._outgoing[uid]  # it has left; or libvirt was away, and may still copy it
        found = await self._call(libvirt_migration.job, uid)
        return found or (MigrationJob() if uid in self._outgoing and not self._outgoing[uid].done() else None)

    async def abort_migration(self, uid: str) -> None:
        if (known := self._outgoing.get(uid)) is not None and known.done():
            del self._outgoing[uid]
        await self._act(libvirt_migration.abort, uid)

    def on_change(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (self._retry_task, self._remains_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._opening_connection is not None:
            self._opening_connection.cancel()
        if self._connection is not None:
            connected, self._connection = self._connection, None
            await asyncio.get_running_loop().run_in_executor(self._threads, connected.close)
        self._threads.shutdown(wait=False)

    # -- the connection

    async def _call(self, method: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        connected = await self._connected()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: method(connected, *args, **kwargs))
        except HypervisorAway as error:
            if not connected.alive():
                self._lost(connected, error)
            raise

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is not None:
                return self._connection
            if self._closed:
                raise HypervisorAway(f"the connection to libvirt at {self.uri} was closed")
            wait = self._next_attempt - self._monotonic()
            if self._away is not None and wait > 0:
                raise HypervisorAway(self._away.message, retry_after=wait)
            try:
                await self._open()
            except HypervisorAway as error:
                self._schedule_retry(error)
                raise HypervisorAway(error.message, retry_after=self._next_attempt - self._monotonic()) from error
            assert self._connection is not None
            return self._connection

    async def _open(self) -> None:
        if self._opening_connection is None:
            self._opening_connection = self._open_in_thread()
            await asyncio.wait({self._opening_connection}, timeout=self._patience)
        if not self._opening_connection.done():  # a second attempt would hang as well
            raise HypervisorAway(f"libvirt at {self.uri} does not answer: it accepted the connection and has not answered for "
                                 f"more than {self._patience:.0f} s")
        opened, self._opening_connection = self._opening_connection, None
        connected = opened.result()
        back = self._away is not None
        self._connection, self._away, self._attempts = connected, None, 0
        self._changes += 1
        self._remove_remains_later()
        if back:
            log.warning("libvirt at %s answers again", self.uri)
            self._changed("")  # events in the meantime were missed

    def _remove_remains_later(self) -> None:
        if self._remains_task is None or self._remains_task.done():
            self._remains_task = asyncio.get_running_loop().create_task(self._remove_remains())

    async def _remove_remains(self) -> None:
        """Of plugs that were interrupted. Their NICs may not be wanted any more, so no other call would find it."""
        while not self._closed:
            try:
                if await self._call(Connection.remove_remains):
                    return
            except HypervisorAway:
                return  # looked for when it is back
            except HypervisorError as error:
                log.warning("%s", error.message)
            await self._sleep(UNPLUG_AGAIN)

    def _open_in_thread(self) -> asyncio.Future[Connection]:
        """Open a connection in a daemon thread, which may hang and does not keep the process from ending."""
        loop, future = asyncio.get_running_loop(), Future[Connection]()

        def from_thread(work: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(work)
            except RuntimeError:  # the event loop is closed
                log.debug("an event of libvirt at %s came after the event loop was closed", self.uri)

        def closed(why: str) -> None:
            error = HypervisorAway(f"libvirt at {self.uri} does not answer: {why}")
            from_thread(lambda: self._lost(future.result() if future.done() else None, error))

        def open_connection() -> None:
            future.set_running_or_notify_cancel()
            try:
                connected = Connection(self.uri, changed=lambda uid: from_thread(lambda: self._changed(uid)), closed=closed)
            except Exception as error:
                future.set_exception(error)
                return
            future.set_result(connected)
            if self._closed:  # closed while it was being opened
                connected.close()

        threading.Thread(target=open_connection, name="libvirt opening", daemon=True).start()
        return asyncio.wrap_future(future)

    def _lost(self, connected: Connection | None, error: HypervisorAway) -> None:
        if connected is None or connected is not self._connection:
            return  # handled already
        self._connection = None
        log.warning("%s; trying again", error.message)
        asyncio.get_running_loop().run_in_executor(self._threads, connected.close)
        self._schedule_retry(error)

    def _schedule_retry(self, error: HypervisorAway) -> None:
        """Retry later without a caller: there may be no call for a long time, and VMs may have ended."""
        first, most = BACKOFF
        self._away = error
        self._next_attempt = self._monotonic() + min(most, first * 2.0 ** min(self._attempts, 10))
        self._attempts += 1
        if not self._closed and (self._retry_task is None or self._retry_task.done()):
            self._retry_task = asyncio.get_running_loop().create_task(self._retry())

    async def _retry(self) -> None:
        while self._connection is None and not self._closed:
            await self._sleep(max(0.0, self._next_attempt - self._monotonic()))
            try:
                await self._connected()
            except HypervisorAway as error:
                log.info("%s", error.message)

    def _changed(self, uid: str) -> None:
        self._changes += 1
        for callback in self._callbacks:
            callback(uid)
