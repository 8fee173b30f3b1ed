"""How fast the store is: durable creates, gets, lists, watch fan-out, start and memory.

    python -m bench.store [--json FILE]                          the SQLite home, in this process
    python -m bench.store --servers ours=a.kubeconfig kube=b.kubeconfig [--json FILE]
                                                                 API servers over HTTP, side by side; ratios to the first

The figures are for comparing on one machine at one time; nothing here passes or fails."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from outfitter.api import kinds
from outfitter.api.kinds import CONFIG_MAP, Object
from outfitter.store import kubeconfig
from outfitter.store.base import Create
from outfitter.store.clock import SystemClock
from outfitter.store.sqlite import SQLite
from outfitter.store.watch_cache import Selection

Figures = dict[str, float]  # what was measured, by what it is and in which unit
PAYLOAD = "x" * 1500  # bytes in each object
WORDS = {
    "creates_1": "creates/s, 1 writer", "creates_many": "creates/s, {clients} writers", "create_p50": "create ms, median",
    "create_p99": "create ms, 99 %", "gets": "gets/s", "list": "list of {listed}, ms", "list_bytes": "the same as bytes, ms",
    "events": "events/s to {watchers} watchers", "start": "start with {stored}, s", "memory": "memory of {stored}, MB",
}
LESS_IS_BETTER = {"create_p50", "create_p99", "list", "list_bytes", "start", "memory"}


def config(name: str, namespace: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
            "data": {"payload": PAYLOAD}}


async def load(count: int, clients: int, one: Callable[[int], Awaitable[object]]) -> tuple[float, list[float]]:
    """So many calls by so many clients at a time: calls per second, and how long each took, in ms."""
    numbers, took = iter(range(count)), []

    async def client() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await one(number)
            took.append((time.perf_counter() - begun) * 1000)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return count / (time.perf_counter() - begun), sorted(took)


def best(times: int, work: Callable[[], object]) -> float:
    """The fastest of some tries, in ms."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append((time.perf_counter() - begun) * 1000)
    return min(took)


def creates(single: float, many: tuple[float, list[float]]) -> Figures:
    rate, took = many
    return {"creates_1": single, "creates_many": rate, "create_p50": statistics.median(took),
            "create_p99": took[int(len(took) * 0.99)]}


# -- the SQLite home, in this process


async def in_process(folder: Path, sizes: argparse.Namespace) -> Figures:
    store = SQLite(folder, kinds.ALL)

    async def create(number: int, prefix: str = "o") -> None:
        await store.create(CONFIG_MAP, config(f"{prefix}{number:06}", "bench"))

    single, _ = await load(sizes.objects // 4, 1, lambda number: create(number, "s"))
    figures = creates(single, await load(sizes.objects, sizes.clients, create))
    figures["gets"], _ = await load(sizes.objects * 10, 1, lambda n: store.get(CONFIG_MAP, f"o{n % sizes.objects:06}", "bench"))
    await store.commit([Create(CONFIG_MAP, config(f"l{number:06}", "listed")) for number in range(sizes.listed)])
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        assert len((await store.list(CONFIG_MAP, "listed")).items) == sizes.listed
        took.append((time.perf_counter() - begun) * 1000)
    figures["list"] = min(took)
    listed = Selection(CONFIG_MAP, "listed")
    figures["list_bytes"] = best(3, lambda: b",".join(record.data for record in store.list_records(CONFIG_MAP, listed)[0]))
    figures["events"] = await fan_out(store, sizes)
    await store.close()
    return figures


async def fan_out(store: SQLite, sizes: argparse.Namespace) -> float:
    """Changes made durable by 8 writers and handed to every watcher as the bytes that travel, per second."""
    wanted: int = sizes.changes

    async def watch() -> None:
        watcher, seen, size = store.open_watch(CONFIG_MAP, Selection(CONFIG_MAP, "watched"), store.revision), 0, 0
        while seen < wanted:
            steps = await watcher.next()
            seen += len(steps)
            size += sum(len(step.line(type_)) for type_, step in steps)
        watcher.close()

    watching = [asyncio.create_task(watch()) for _ in range(sizes.watchers)]
    await asyncio.sleep(0)
    begun = time.perf_counter()
    await load(wanted, 8, lambda number: store.create(CONFIG_MAP, config(f"w{number}", "watched")))
    await asyncio.gather(*watching)
    return wanted * len(watching) / (time.perf_counter() - begun)


async def fill(folder: Path, count: int) -> None:
    store = SQLite(folder, kinds.ALL)
    for first in range(0, count, 500):
        await store.commit([
            Create(CONFIG_MAP, config(f"o{number:06}", "bench")) for number in range(first, min(first + 500, count))
        ])
    await store.close()


def resident() -> float:
    """MB of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def opened(folder: Path) -> Figures:
    """In a process of its own, so that nothing else counts."""
    before, begun = resident(), time.perf_counter()
    store = SQLite(folder, kinds.ALL)
    figures = {"start": time.perf_counter() - begun, "memory": resident() - before}
    await store.close()
    return figures


def measure_in_process(sizes: argparse.Namespace) -> Figures:
    with tempfile.TemporaryDirectory(prefix="outfitter-bench-", dir=sizes.folder) as name:
        folder = Path(name)
        figures = asyncio.run(in_process(folder / "rates", sizes))
        asyncio.run(fill(folder / "stored", sizes.stored))
        child = subprocess.run([sys.executable, __file__, "--opened", str(folder / "stored")], capture_output=True, check=True)
        figures.update(json.loads(child.stdout))
        return figures


# -- API servers over HTTP


class Server:
    """One API server and a namespace of its own in it."""

    def __init__(self, session: aiohttp.ClientSession, tls: Any, server: str, namespace: str) -> None:
        self._session, self._tls, self._server, self._namespace = session, tls, server, namespace
        self._path = f"{server}/api/v1/namespaces/{namespace}/configmaps"

    async def begin(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
        async with self._session.post(f"{self._server}/api/v1/namespaces", json=body, ssl=self._tls) as answer:
            answer.raise_for_status()

    async def end(self) -> None:
        async with self._session.delete(f"{self._server}/api/v1/namespaces/{self._namespace}", ssl=self._tls) as answer:
            await answer.read()

    async def create(self, name: str) -> None:
        async with self._session.post(self._path, json=config(name, self._namespace), ssl=self._tls) as answer:
            answer.raise_for_status()
            await answer.read()

    async def get(self, name: str = "", **query: str) -> bytes:
        path = f"{self._path}/{name}" if name else self._path
        async with self._session.get(path, params=query, ssl=self._tls) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def watch(self, since: str, wanted: int, ready: Callable[[], None]) -> None:
        """Until so many changes were seen."""
        query = {"watch": "true", "resourceVersion": since}
        async with self._session.get(self._path, params=query, ssl=self._tls) as answer:
            answer.raise_for_status()
            ready()
            seen = 0
            async for chunk in answer.content.iter_any():
                seen += chunk.count(b"\n")
                if seen >= wanted:
                    return


async def over_http(path: str, sizes: argparse.Namespace) -> Figures:
    access = kubeconfig.load(Path(path), clock=SystemClock())
    credential = await access.credential()
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    headers = access.headers_for(credential)
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        server = Server(session, access.tls(credential) or True, access.server, f"bench-{time.time_ns()}")
        await server.begin()
        try:
            return await measure_http(server, sizes)
        finally:
            await server.end()


async def measure_http(server: Server, sizes: argparse.Namespace) -> Figures:
    single, _ = await load(sizes.objects // 4, 1, lambda number: server.create(f"s{number:06}"))
    figures = creates(single, await load(sizes.objects, sizes.clients, lambda number: server.create(f"o{number:06}")))
    figures["gets"], _ = await load(sizes.objects * 2, sizes.clients, lambda n: server.get(f"o{n % sizes.objects:06}"))
    there = sizes.objects + sizes.objects // 4
    await load(max(0, sizes.listed - there), sizes.clients, lambda number: server.create(f"l{number:06}"))
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        listing = json.loads(await server.get(limit=str(sizes.listed)))
        took.append((time.perf_counter() - begun) * 1000)
        assert len(listing["items"]) == sizes.listed
    figures["list"] = min(took)
    since = json.loads(await server.get(limit="1"))["metadata"]["resourceVersion"]
    ready, all_ready = 0, asyncio.Event()

    def one_ready() -> None:
        nonlocal ready
        ready += 1
        if ready == sizes.watchers:
            all_ready.set()

    watching = [asyncio.create_task(server.watch(since, sizes.changes, one_ready)) for _ in range(sizes.watchers)]
    await all_ready.wait()
    begun = time.perf_counter()
    await load(sizes.changes, 8, lambda number: server.create(f"w{number:06}"))
    await asyncio.gather(*watching)
    figures["events"] = sizes.changes * sizes.watchers / (time.perf_counter() - begun)
    return figures


# -- telling


def ratio(figure: str, first: float, other: float) -> float:
    """How many times as good as the first."""
    return first / other if figure in LESS_IS_BETTER else other / first


def table(results: dict[str, Figures], sizes: argparse.Namespace) -> str:
    first, *others = results
    head = ["", *results, *(f"{name} to {first} (above 1 is better)" for name in others)]
    rows = [head]
    for figure, words in WORDS.items():
        if figure not in results[first]:
            continue
        values = [f"{figures[figure]:,.{0 if figures[figure] >= 100 else 2}f}" for figures in results.values()]
        ratios = [f"{ratio(figure, results[first][figure], results[name][figure]):.2f}" for name in others]
        rows.append([words.format(**vars(sizes)), *values, *ratios])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) if not place else cell.rjust(width)
                               for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", metavar="NAME=KUBECONFIG", help="measure these API servers over HTTP instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--folder", type=Path, help="where to put the files; a disk as you would use (default: the system's)")
    parser.add_argument("--opened", type=Path, help=argparse.SUPPRESS)
    for name, number, what in (
        ("objects", 2000, "objects to create and get"),
        ("clients", 32, "writers at a time"),
        ("listed", 5000, "objects in a list"),
        ("watchers", 200, "watchers of each change"),
        ("changes", 100, "changes to watch"),
        ("stored", 10_000, "objects at start"),
    ):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"{what} (default {number})")
    return parser.parse_args(words)


def main() -> None:
    sizes = arguments()
    if sizes.opened:
        print(json.dumps(asyncio.run(opened(sizes.opened))))
        return
    results: dict[str, Figures] = {}
    for entry in sizes.servers or ():
        name, _, path = entry.rpartition("=")
        results[name or "server"] = asyncio.run(over_http(path, sizes))
    if not sizes.servers:
        results["sqlite"] = measure_in_process(sizes)
    print(table(results, sizes))
    if sizes.json:
        sizes.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
