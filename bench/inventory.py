"""From the trees of many hosts to published devices, in one process: the first start, a start with everything there, and a
second look at hosts that did not change, which writes nothing.

    python -m bench.inventory [HOSTSxVFS]"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from outfitter import app
from outfitter.inventory import config, scan
from outfitter.inventory.simulation import hosts_file

LISTED = "device_spec: [{product_id: '1889', traits: bench}]\nreport_in_placement: true"


async def measure(shorthand: str, words: str, settings: config.Config) -> None:
    simulated = hosts_file.parse_shorthand(shorthand).hosts
    start = time.perf_counter()
    functions = sum(len(scan.scan(host.tree()).devices) for host in simulated)
    print(f"{shorthand} ({words}): {functions} functions scanned in {time.perf_counter() - start:.2f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="outfitter-bench-") as folder:
        for what in ("first start", "start again"):
            hosts = app.simulated_hosts(simulated, config=settings)
            start = time.perf_counter()
            async with app.embedded(data=Path(folder), hosts=hosts) as product:
                took, revision = time.perf_counter() - start, product.store.revision
                print(f"  {what}: {took:.2f} s, {product.offered} devices offered", flush=True)
                start = time.perf_counter()
                await product.host_audit.start()
                took = time.perf_counter() - start
                print(f"  second look: {took:.2f} s, {product.store.revision - revision} writes", flush=True)
    print(f"  most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB", flush=True)


def main() -> None:
    shorthand = sys.argv[1] if len(sys.argv) > 1 else "500x63"
    asyncio.run(measure(shorthand, "bound to vfio-pci", config.DEFAULT))
    asyncio.run(measure(shorthand, "listed and reported", config.parse(LISTED)))


if __name__ == "__main__":
    main()
