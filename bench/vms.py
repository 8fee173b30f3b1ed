"""VMs to running, in one process: each asks for one VF by a template claim. How many start in a
second, how long each took from its own creation, and what was written for it. State and simulated VMs are kept on the disk as
`outfit up` keeps them, and once in memory to see what the disk costs.

    python -m bench.vms [HOSTSxVFS VMS [PER_SECOND]]

Without PER_SECOND they are created as fast as several clients can, which is a burst; with it they come one by one. Beside it
stands what Kubernetes does of the same: its scheduler binds pods that have a claim each to nodes with eight devices each, and
starts nothing."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path

from outfitter import app
from outfitter.api import kinds
from outfitter.inventory.simulation import hosts_file
from outfitter.roles.process import loop_factory, spare_the_collector
from outfitter.store.watch_cache import Selection, Watcher

CLASS = {"metadata": {"name": "vf"}, "spec": {"selectors": [
    {"cel": {"expression": 'device.attributes["pci.outfitter.dev"].kind == "VF"'}}]}}
TEMPLATE = {"metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": [
    {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}}}
SPEC = {"domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "net", "requestName": "nic"}]}},
        "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "one"}]}
RUNS: tuple[tuple[str, int, float], ...] = (("50x8", 200, 0), ("500x8", 1000, 0), ("500x8", 100, 10))
IN_MEMORY = ("500x8", 1000)
CLIENTS = 32  # that create VMs at the same time in a burst
REFERENCE = """Kubernetes v1.37.0-rc.1 (etcd, API server, controller manager and scheduler on two shared cores, 500 nodes of
eight devices, client limits raised): 1,000 pods at once with a template claim each, 20-27 bound/s, 41-49 ms of CPU and 8
requests each; 10 pods/s, from created to bound p50 59 ms, p99 234 ms. Measured on another day: compare by the CPU time of
`for i in range(3000000): s += i & 7`, which was 0.1065 s then and is {now:.4f} s now. Bound is not running: its pods were not
started."""


async def measure(shorthand: str, vms: int, per_second: float = 0, *, data: Path | None = None) -> None:
    hosts = app.simulated_hosts(hosts_file.parse_shorthand(shorthand).hosts, data)
    async with app.embedded(data=data, hosts=hosts) as product:
        store = product.store
        await store.create(kinds.DEVICE_CLASS, CLASS)
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, TEMPLATE)
        await product.settle()
        spare_the_collector()  # as `outfit up` does
        written: Counter[str] = Counter()
        counting = [asyncio.ensure_future(_count(store.open_watch(kind, Selection(kind), store.revision), written))
                    for kind in kinds.ALL]
        start, cpu, revision = time.perf_counter(), time.process_time(), store.revision
        made: dict[str, float] = {}
        took: dict[str, float] = {}

        async def look() -> None:
            async for event in store.watch(kinds.VMI, since=str(revision)):
                name = event.object["metadata"]["name"]
                if name not in took and (event.object.get("status") or {}).get("phase") == "Running":
                    took[name] = time.perf_counter() - made[name]
                    if len(took) == vms:
                        return

        async def client(names: Iterator[str]) -> None:
            for name in names:
                if per_second:
                    await asyncio.sleep(max(0.0, start + len(made) / per_second - time.perf_counter()))
                made[name] = time.perf_counter()
                await store.create(kinds.VMI, {"metadata": {"name": name, "namespace": "default"}, "spec": SPEC})

        looking = asyncio.ensure_future(look())
        names = (f"vm-{number}" for number in range(vms))
        await asyncio.gather(*(client(names) for _ in range(1 if per_second else CLIENTS)))
        await looking
        total, used = time.perf_counter() - start, time.process_time() - cpu
        await product.settle()
        for task in counting:
            task.cancel()
        how = f"{per_second:g} a second" if per_second else f"{vms / total:.0f}/s"
        where = "in memory" if data is None else "on disk"
        print(f"{shorthand}, {where}: {vms} VMs run in {total:.2f} s ({how}, {used:.2f} s of CPU); from created to "
              f"running {_spread(list(took.values()))}\n  {sum(written.values()) / vms:.1f} writes each: "
              + ", ".join(f"{kind} {count / vms:.1f}" for kind, count in written.most_common()), flush=True)


async def _count(watcher: Watcher, written: Counter[str]) -> None:
    """Changes of a kind. Two writes of one object in one commit are one."""
    while True:
        if steps := await watcher.next():
            written[watcher.cache.kind.kind] += len(steps)


def _spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return ", ".join(f"p{part} {ordered[min(len(ordered) - 1, len(ordered) * part // 100)]:.3f} s" for part in (1, 50, 99))


def _calibrate() -> float:
    start, total = time.process_time(), 0
    for number in range(3_000_000):
        total += number & 7
    return time.process_time() - start


def _run(work: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:  # as `outfit up` does
        runner.run(work)


def main() -> None:
    given = len(sys.argv) > 2
    runs = ((sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0),) if given else RUNS
    for run in runs:
        with tempfile.TemporaryDirectory() as folder:
            _run(measure(*run, data=Path(folder)))
    if given:
        return
    _run(measure(*IN_MEMORY))
    print(REFERENCE.format(now=_calibrate()), flush=True)


if __name__ == "__main__":
    main()
