"""An answer over HTTPS means: on the disk. Seen in the system calls of the serving process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.store import kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube

SERVED = Path(__file__).with_name("served.py")


def syncs_per_create(folder: Path, synchronous: str) -> list[int]:
    """How many syncs the kernel was asked for between each of five requests and its answer."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace, to see what the kernel is asked for")
    trace, data = folder / f"{synchronous}.trace", folder / synchronous
    with subprocess.Popen(
        [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync", "-e", "signal=none", "-o", str(trace),
         sys.executable, str(SERVED), str(data), synchronous],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            if process.stdout.readline() != "ready\n":
                pytest.skip(f"strace may not trace here: {process.stderr.read().strip()}")
            return asyncio.run(_count(data, trace))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _syncs(trace: Path) -> int:
    return trace.read_text().count("sync(")


async def _count(data: Path, trace: Path) -> list[int]:
    store = Kube(kubeconfig.load(data / "kubeconfig", clock=SystemClock()), clock=SystemClock())
    counts = []
    for number in range(5):
        before = _syncs(trace)
        await store.create(kinds.CONFIG_MAP, {"metadata": {"name": f"c{number}", "namespace": "default"}})
        counts.append(_syncs(trace) - before)
    await store.close()
    return counts


@pytest.mark.parts
def test_a_create_is_synced_before_it_is_answered(tmp_path: Path) -> None:
    assert all(count >= 1 for count in syncs_per_create(tmp_path, "FULL"))
    assert syncs_per_create(tmp_path, "OFF") == [0] * 5  # so that the line above can fail
