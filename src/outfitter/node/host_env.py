"""The environment of a host in which devices are prepared: its sysfs root, and the folders for checkpoint, CDI and metadata
files.

All paths come in here, so that the same code works on this host, on a host below another root, and on a simulated one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection
from typing import TypeVar

from outfitter.errors import NotReady, StartupRefused
from outfitter.node.atomic_files import Files, MemoryFiles
from outfitter.node.devices.checkpoint import Checkpoint
from outfitter.node.devices.device_holders import DeviceHolder, device_holders
from outfitter.node.sysfs_root import Root

T = TypeVar("T")
HOLDERS_TIMEOUT = 5.0  # seconds to look for the processes that a driver waits for
HOLDERS_EVERY = 10.0  # seconds after which they are looked for again


class HostEnv:
    def __init__(
        self,
        host: str,
        driver: str,
        root: Root,
        *,
        state: Files | None = None,
        cdi: Files | None = None,
        metadata: Files | None = None,
        dev: str = "/dev",
        patience: float | None = None,
    ) -> None:
        """`state` has the checkpoint, `cdi` the files that container runtimes read, `metadata` those that launchers do: what is
        left out is kept in memory. `dev` is the folder of device nodes as runtimes see it. `patience`: for how many seconds
        a write to the kernel is waited for; None: writes are done at once, in this thread."""
        self.host, self.driver, self.root, self.dev, self._patience = host, driver, root, dev, patience
        self._slow: asyncio.Task[object] | None = None  # a write that the kernel has not answered yet
        self._slow_places: frozenset[str] = frozenset()  # addresses and UUIDs that it is about
        self._holders: tuple[float, tuple[DeviceHolder, ...]] | None = None  # when they were looked for, and who has these open
        self.state, self.cdi, self.metadata = state or MemoryFiles(), cdi or MemoryFiles(), metadata or MemoryFiles()

    @functools.cached_property
    def checkpoint(self) -> Checkpoint:
        """NotReady: it cannot be read; it is read again at the next call."""
        try:
            return Checkpoint(self.state, self.host)
        except StartupRefused as error:
            raise NotReady(error.message) from error

    async def open(self) -> None:
        """NotReady: the checkpoint cannot be read."""
        def first() -> None:
            self.state.tidy()
            _ = self.checkpoint

        await self.run(first)

    async def run(self, work: Callable[[], T], places: Collection[str] = ()) -> T:
        """Do something that writes to the host. NotReady: the kernel does not answer; the write was not cancelled, and until it
        ends nothing else is started here. `places`: addresses and UUIDs that it is about."""
        if self._patience is None:
            return work()
        if self._slow is not None and not self._slow.done():
            raise await self._waits()
        task = asyncio.ensure_future(asyncio.to_thread(work))
        done, _ = await asyncio.wait({task}, timeout=self._patience)
        if done:
            return task.result()
        self._slow, self._slow_places, self._holders = task, frozenset(places), None
        task.add_done_callback(lambda over: over.exception())  # it is retried, and reports then what is wrong
        raise await self._waits()

    async def _waits(self) -> NotReady:
        now = asyncio.get_running_loop().time()
        if self._holders is None or now - self._holders[0] >= HOLDERS_EVERY:
            found: tuple[DeviceHolder, ...] = ()
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(asyncio.to_thread(device_holders, self.root, self._slow_places), HOLDERS_TIMEOUT)
            self._holders = now, found
        because = (f"{'; '.join(map(str, self._holders[1]))}, and the driver waits until it is closed" if self._holders[1] else
                   "a driver waits for a process that still has a device open (dmesg names it)")
        return NotReady(f"the kernel of {self.host} has not answered a write for more than {self._patience:.0f} s: {because}")
