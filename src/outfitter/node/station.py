"""Where the work on one host is done: its root, and the folders of what is written beside it. All paths come in here, so that
the same code works on this machine, on a host below another root, and on one that is only played."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TypeVar

from outfitter.node.checkpoint import Checkpoint
from outfitter.node.files import Files, MemoryFiles
from outfitter.node.root import Root

T = TypeVar("T")


class Station:
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
        blocks: bool = False,
    ) -> None:
        """`state` has the checkpoint, `cdi` the files that container runtimes read, `metadata` those that launchers do: what is
        left out is kept in memory. `dev` is the folder of device nodes as runtimes see it. With `blocks` the kernel may make
        whoever writes wait."""
        self.host, self.driver, self.root, self.dev, self._blocks = host, driver, root, dev, blocks
        self.state, self.cdi, self.metadata = state or MemoryFiles(), cdi or MemoryFiles(), metadata or MemoryFiles()

    @functools.cached_property
    def checkpoint(self) -> Checkpoint:
        """Refused: it cannot be read."""
        return Checkpoint(self.state, self.host)

    async def open(self) -> None:
        """Refused: the checkpoint cannot be read."""
        await self.run(lambda: self.checkpoint)

    async def run(self, work: Callable[[], T]) -> T:
        """Do something that writes to the host."""
        return await asyncio.to_thread(work) if self._blocks else work()
