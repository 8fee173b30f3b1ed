"""An acknowledged write survives `kill -9` at any moment, and is on the disk before it is acknowledged."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.store.sqlite import SQLite

WORKER = Path(__file__).with_name("crash_worker.py")
SYNC = re.compile(r"\b(?:fdatasync|fsync)(?:\(\d+\)| resumed>\))\s+=\s+0")


@dataclass
class Acknowledged:
    """What was acknowledged so far, over all rounds."""

    pairs: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    def hear(self, lines: list[bytes]) -> None:
        for line in lines:
            word, _, number = line.partition(b" ")
            {b"pair": self.pairs, b"gone": self.gone}[word].add(int(number))


def crash(folder: Path, first: int, after: float) -> list[bytes]:
    """Let it write, kill it after so many seconds of writing; the whole lines that it said."""
    worker = subprocess.Popen([sys.executable, str(WORKER), str(folder), str(first)], stdout=subprocess.PIPE)
    assert worker.stdout
    with worker.stdout:
        assert worker.stdout.readline() == b"ready\n"
        timer = threading.Timer(after, worker.kill)
        timer.start()
        said = worker.stdout.read()  # to the end, which is its death
        timer.join()
    assert worker.wait() == -signal.SIGKILL
    *whole, _torn = said.split(b"\n")
    return whole


async def check(folder: Path, acknowledged: Acknowledged) -> int:
    """Every acknowledged write is in the store; returns the highest number in it."""
    store = SQLite(folder, kinds.ALL)
    there = {item["metadata"]["name"]: item for item in (await store.list(kinds.CONFIG_MAP)).items}
    lefts, rights = ({int(name[1:]) for name in there if name[0] == side} for side in "ab")
    assert lefts == rights  # all or nothing
    assert acknowledged.pairs - acknowledged.gone - lefts <= {
        number for number in acknowledged.pairs if number % 5 == 0
    }  # a delete may be unacknowledged
    assert not acknowledged.gone & lefts
    assert all(item["data"]["n"] == str(int(name[1:])) for name, item in there.items())
    counted = (
        (await store.get(kinds.LEDGER_PAGE, "count"))["spec"]["n"] if store.committed_record(kinds.LEDGER_PAGE, "count") else 0
    )
    assert counted >= len(acknowledged.pairs)  # the third object of each commit; those unacknowledged may be there too
    highest = [int(item["metadata"]["resourceVersion"]) for item in there.values()]
    assert store.revision >= max(highest, default=0)
    await store.close()
    return max(lefts | acknowledged.pairs, default=0)


async def rounds(folder: Path, count: int, seed: int, least: int) -> None:
    """So many, and more and longer ones on a host that is too slow to write at least so many pairs in them."""
    source, acknowledged, first, done, longest = random.Random(seed), Acknowledged(), 1, 0, 0.25
    while done < count or len(acknowledged.pairs) < least or not acknowledged.gone:
        done += 1
        if done > count:
            longest *= 1.5
        acknowledged.hear(crash(folder, first, source.uniform(0.005, longest)))
        if source.random() < 0.3:  # sometimes it is killed again before any process has tidied up
            continue_from = max(acknowledged.pairs, default=0) + 1000
            acknowledged.hear(crash(folder, continue_from, source.uniform(0.0, 0.05)))
        first = await check(folder, acknowledged) + 1000


async def test_acknowledged_writes_survive_kill_9(tmp_path: Path) -> None:
    await rounds(tmp_path, 6, seed=1, least=50)


@pytest.mark.long(seeds=range(2, 4))
async def test_acknowledged_writes_survive_kill_9_many_times(tmp_path: Path, seed: int) -> None:
    await rounds(tmp_path, 40, seed=seed, least=200)


# -- on the disk before it is acknowledged


def traced(folder: Path, synchronous: str) -> list[bool]:
    """For each of three requests: whether a file was synced between the request and the answer."""
    trace = folder.with_suffix(".trace")
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace, to see what the kernel is asked for")
    calls = "trace=read,write,fsync,fdatasync"
    command = [strace, "-f", "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace),
               sys.executable, str(WORKER), str(folder), "1", "ask", synchronous]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert worker.stdin
    assert worker.stdout
    if worker.stdout.readline() != b"ready\n":
        _, complaint = worker.communicate()
        if b"ptrace" in complaint:
            pytest.skip(f"strace may not trace here: {complaint.decode().strip()}")
        raise AssertionError(complaint.decode())
    for number in (1, 2, 3):
        worker.stdin.write(b"?")
        worker.stdin.flush()
        assert worker.stdout.readline() == b"pair %d\n" % number
    worker.communicate()
    lines = trace.read_text().splitlines()
    asked = [place for place, line in enumerate(lines) if re.search(r'\bread\(0, "\?"|resumed>"\?"', line)]
    said = [place for place, line in enumerate(lines) if 'write(1, "pair' in line]
    assert len(asked) == len(said) == 3
    return [any(SYNC.search(line) for line in lines[begin:end]) for begin, end in zip(asked, said, strict=True)]


@pytest.mark.parts
def test_a_write_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    assert traced(tmp_path / "full", "FULL") == [True, True, True]
    assert traced(tmp_path / "off", "OFF") == [False, False, False]  # so that the test above is seen to be able to fail
