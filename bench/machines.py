"""From machines to running machines, in one process in memory: each asks for one virtual function by a template claim.

    python -m bench.machines [HOSTSxVFS MACHINES]"""

from __future__ import annotations

import asyncio
import sys
import time

from outfitter import app, up
from outfitter.api import kinds
from outfitter.inventory import simulate

CLASS = {"metadata": {"name": "vf"}, "spec": {"selectors": [
    {"cel": {"expression": 'device.attributes["pci.outfitter.dev"].kind == "VF"'}}]}}
TEMPLATE = {"metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": [
    {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}}}
SPEC = {"domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "net", "requestName": "nic"}]}},
        "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "one"}]}


async def measure(shorthand: str, machines: int) -> None:
    async with app.embedded(hosts=app.simulated_hosts(simulate.parse_shorthand(shorthand).hosts)) as product:
        store = product.store
        await store.create(kinds.DEVICE_CLASS, CLASS)
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, TEMPLATE)
        up.spare_the_collector()  # as `outfit up` does
        start, cpu, revision = time.perf_counter(), time.process_time(), store.revision
        made: dict[str, float] = {}
        took: dict[str, float] = {}

        async def look() -> None:
            async for event in store.watch(kinds.INSTANCE, since=str(revision)):
                name = event.object["metadata"]["name"]
                if name not in took and (event.object.get("status") or {}).get("phase") == "Running":
                    took[name] = time.perf_counter() - made[name]
                    if len(took) == machines:
                        return

        looking = asyncio.ensure_future(look())
        for number in range(machines):
            name = f"vm-{number}"
            made[name] = time.perf_counter()
            await store.create(kinds.INSTANCE, {"metadata": {"name": name, "namespace": "default"}, "spec": SPEC})
        await looking
        total, times = time.perf_counter() - start, sorted(took.values())
        print(f"{shorthand}: {machines} machines run in {total:.2f} s ({machines / total:.0f}/s, "
              f"{time.process_time() - cpu:.2f} s of CPU), {(store.revision - revision) / machines:.1f} writes each; from "
              f"created to running p50 {times[len(times) // 2]:.2f} s, p99 {times[int(len(times) * 0.99)]:.2f} s", flush=True)


def main() -> None:
    if len(sys.argv) > 2:
        asyncio.run(measure(sys.argv[1], int(sys.argv[2])))
        return
    for shorthand, machines in (("50x8", 200), ("500x8", 1000)):
        asyncio.run(measure(shorthand, machines))


if __name__ == "__main__":
    main()
