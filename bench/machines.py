"""From machines to running machines, in one process in memory: each asks for one virtual function by a template claim.

    python -m bench.machines [HOSTSxVFS MACHINES]"""

from __future__ import annotations

import asyncio
import sys
import time

from outfitter import app
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
        start, cpu, revision, running = time.perf_counter(), time.process_time(), store.revision, 0
        for number in range(machines):
            await store.create(kinds.INSTANCE, {"metadata": {"name": f"vm-{number}", "namespace": "default"}, "spec": SPEC})
        while running < machines:
            await asyncio.sleep(0.02)
            listing = await store.list(kinds.INSTANCE)
            running = sum((each.get("status") or {}).get("phase") == "Running" for each in listing.items)
        took = time.perf_counter() - start
        print(f"{shorthand}: {machines} machines run in {took:.2f} s ({machines / took:.0f}/s, "
              f"{time.process_time() - cpu:.2f} s of CPU), {(store.revision - revision) / machines:.1f} writes each",
              flush=True)


def main() -> None:
    if len(sys.argv) > 2:
        asyncio.run(measure(sys.argv[1], int(sys.argv[2])))
        return
    for shorthand, machines in (("50x8", 200), ("500x8", 1000)):
        asyncio.run(measure(shorthand, machines))


if __name__ == "__main__":
    main()
