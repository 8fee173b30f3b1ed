"""Collects the exit statuses of orphans where the launcher is the first process of its container, and so their parent: libvirt
waits until a QEMU that it killed is gone, and a process whose exit status is not collected stays. Called by `process.py`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

EVERY = 0.5  # seconds


async def collect(spared: Callable[[], int]) -> None:
    """Until cancelled. `spared`: the process whose status its own parent object asks for."""
    while os.getpid() == 1:
        collect_once(spared())
        await asyncio.sleep(EVERY)


def collect_once(spared: int) -> list[int]:
    """The processes whose status was collected."""
    collected: list[int] = []
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return collected
        if found is None or found.si_pid == spared:
            return collected
        os.waitpid(found.si_pid, os.WNOHANG)
        collected.append(found.si_pid)
