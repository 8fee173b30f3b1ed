"""Several OS processes that do the same at the same moment: each receives a line, and answers with one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from outfitter.store import kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube

ROOT = Path(__file__).parent.parent
PATIENCE = 300.0  # seconds until a process that reports nothing has failed
LONGEST = 1 << 20  # bytes of an answer


class Crew:
    def __init__(self, those: Sequence[Process]) -> None:
        self._those = those

    def tell(self, *lines: str) -> None:
        """One line for each, or one for all."""
        for each, line in zip(self._those, lines * len(self._those) if len(lines) == 1 else lines, strict=True):
            assert each.stdin is not None
            each.stdin.write(f"{line}\n".encode())

    async def hear(self) -> list[str]:
        """A line of each."""

        async def line(each: Process) -> str:
            assert each.stdout is not None
            said = await asyncio.wait_for(each.stdout.readline(), PATIENCE)
            assert said, f"a process failed, exit code {await each.wait()}"
            return said.decode().strip()

        return list(await asyncio.gather(*map(line, self._those)))


@contextlib.asynccontextmanager
async def crew(script: Path, arguments: Sequence[Sequence[str]]) -> AsyncIterator[Crew]:
    """A process of the script for each list of arguments. They end when their input is closed."""
    started: list[Process] = []
    try:
        for each in arguments:
            started.append(await asyncio.create_subprocess_exec(sys.executable, str(script), *each, stdin=PIPE, stdout=PIPE,
                                                                limit=LONGEST, cwd=ROOT))
        yield Crew(started)
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except TimeoutError:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def reader(config: Path) -> AsyncIterator[Kube]:
    """The server's store, for a look at what became of it."""
    clock = SystemClock()
    store = Kube(kubeconfig.load(config, clock=clock), clock=clock)
    try:
        yield store
    finally:
        await store.close()
