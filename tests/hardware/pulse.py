"""Whether all processors of the host in a VM are alive: each writes a file every other second.

With a thread for each processor QEMU 10.0.2 lost an interrupt in one run of five on a busy machine: the APIC of a processor
then has one in service that is never ended (`info lapic`: ISR 251) and lets no timer and no device through any more. The kernel
reports stalls, and whoever waits on that processor waits for ever. Nothing of outfitter is in that; a boot helps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

STILL = 120.0  # seconds without a sign of life


def time_given(pid: int, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> float:
    """Seconds, without those that the busiest thread of a process has waited for a processor of this host: an emulator that
    gets no time shows no sign of life either, and has lost nothing."""
    waited = [0]  # nanoseconds
    for thread in (proc / str(pid) / "task").glob("*/schedstat"):  # none where the kernel does not count
        with contextlib.suppress(OSError):  # it has ended
            waited.append(int(thread.read_text().split()[1]))
    return clock() - max(waited) / 1e9


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float:
    """Of all threads of a process; 0 when it has ended."""
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime of proc(5), counted behind the name


class StandsStill(Exception):
    """The emulator has lost a processor of the host."""


class Pulse:
    def __init__(self, beats: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[Path, tuple[int, float]] = dict.fromkeys(beats, (0, clock()))

    def feel(self) -> None:
        """Raises StandsStill."""
        now = self._clock()
        for beat, (stamp, since) in self._last.items():
            newest = beat.stat().st_mtime_ns if beat.exists() else 0
            if newest != stamp:
                self._last[beat] = (newest, now)
            elif now - since > STILL:
                raise StandsStill(f"no sign of life for {STILL:g} s: {beat.name}")
