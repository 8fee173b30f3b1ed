"""CPU time and memory of processes, from /proc. CPU time is comparable between runs on a host that others use too; seconds of
the clock are not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process has used since its start."""

    cpu: float = 0.0  # seconds
    peak: float = 0.0  # megabytes of memory, the most that it held

    @classmethod
    def of(cls, pid: int) -> ProcessUse:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return cls((int(after_name[11]) + int(after_name[12])) / TICKS, int(status["VmHWM"].split()[0]) * 1024 / 1e6)
