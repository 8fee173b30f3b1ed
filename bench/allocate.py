"""The allocator on one given node after the other: `pools` is built once, what is held is kept by its owner.

    python -m bench.allocate        what is hard for a search that tries everything, and all hosts at once

`factory` is for a driver that makes the objects and compares the results with another allocator's:
factory(nodes, slices, classes) -> allocate_on(node_index, claim), which gives device names, or None where nothing fits. With
BENCH_ALLOCATE=lazy in the environment devices are read when a claim first asks for them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.page import Booking, Holder, Page
from outfitter.scheduling.allocate import Allocated, allocate
from outfitter.scheduling.asks import demand
from outfitter.scheduling.features import Features
from outfitter.scheduling.held import Held
from outfitter.scheduling.index import Index
from outfitter.scheduling.pools import Pools

Object = Mapping[str, Any]


def factory(
    nodes: Sequence[Object], slices: Sequence[Object], classes: Sequence[Object]
) -> Callable[[int, Object], list[str] | None]:
    start = time.process_time()
    pools, held, features = Pools(slices), Held(), Features()
    by_name = {one["metadata"]["name"]: one for one in classes}
    print(f"pools of {len(nodes)} nodes read in {time.process_time() - start:.2f} s", file=sys.stderr)
    if "lazy" not in os.environ.get("BENCH_ALLOCATE", ""):
        pools.prepare(text["cel"]["expression"] for one in classes for text in one["spec"].get("selectors") or ())
        print(f"and made ready for selectors after {time.process_time() - start:.2f} s", file=sys.stderr)

    def allocate_on(index: int, claim: Object) -> list[str] | None:
        answer = allocate([claim], node=nodes[index], pools=pools, classes=by_name.get, held=held, features=features)
        if not isinstance(answer, Allocated):
            return None
        held.add(answer.allocations[0])
        return [result["device"] for result in answer.allocations[0]["devices"]["results"]]

    return allocate_on


DRIVER = "d.example"
NODE = {"metadata": {"name": "here"}}
MINE = f'device.driver == "{DRIVER}"'
CLASSES = {"any": {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": MINE}}]}}}


def _devices(count: int, **groups: int) -> list[Object]:
    """Devices that differ in their serial numbers; numa=2: two values, in blocks."""
    return [{"name": f"d{at}", "attributes": {"serial": {"string": str(at)}, **{
        name: {"int": at * many // count} for name, many in groups.items()}}} for at in range(count)]


def _claim(*counts: int, constraints: Sequence[tuple[str, str, str]] = ()) -> Object:
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": "any", "count": count}} for at, count in enumerate(counts)]
    under = [{kind: f"{DRIVER}/{name}", "requests": [request] if request else []} for kind, name, request in constraints]
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "constraints": under}}}


def _hard() -> dict[str, tuple[list[Object], list[Object]]]:
    match = [("matchAttribute", "pf", f"r{at}") for at in range(4)]
    vfs = _devices(48, pf=8)
    return {
        **{f"{n + 1} of {n} like devices": (_devices(n), [_claim(1) for _ in range(n + 1)]) for n in (24, 48, 64)},
        **{f"9 of 8 distinct values, {n} devices": (
            _devices(n, g=8), [_claim(9, constraints=[("distinctAttribute", "g", "")])]) for n in (24, 48, 64)},
        "6 of 8 on one NUMA node of 4": (_devices(8, numa=2), [_claim(6, constraints=[("matchAttribute", "numa", "")])]),
        "four groups of 6 VFs, 8 PFs x 6": (vfs, [_claim(6, 6, 6, 6, constraints=match)]),
        "nine groups of 4 VFs, 8 PFs x 6": (
            vfs, [*[_claim(4, 4, 4, 4, constraints=match)] * 2, _claim(4, constraints=match[:1])]),
    }


def _everywhere(hosts: int) -> None:
    """Which hosts can take a claim, for all at once: eight GPUs each on two NUMA nodes, every second one held."""
    nodes = [{"metadata": {"name": f"node-{at:05}"}} for at in range(hosts)]
    slices = [{"metadata": {"name": f"slice-{at:05}"}, "spec": {
        "driver": DRIVER, "nodeName": f"node-{at:05}", "devices": _devices(8, numa=2, model=4 if at % 2 else 1),
        "pool": {"name": f"node-{at:05}", "generation": 1, "resourceSliceCount": 1}}} for at in range(hosts)]
    start = time.process_time()
    index = Index.of(slices, [], nodes)
    for at in range(hosts):
        held = Page(Page.blank(f"node-{at:05}"))
        for place in range(at % 2, 8, 2):
            device = DeviceId(DRIVER, f"node-{at:05}", f"d{place}")
            held = Page(held.adding(Booking(device, Holder("ResourceClaim", "b", f"c{place}", f"u{place}"), "r", "booked", "")))
        index.put_page(held.host, held)
    index.candidates([])
    print(f"{hosts} hosts x 8 devices: ready after {time.process_time() - start:.2f} s")
    for name, claim in {"one": _claim(1), "two on a NUMA node": _claim(2, constraints=[("matchAttribute", "numa", "")]),
                        "four": _claim(4)}.items():
        took = []
        for _ in range(7):
            start = time.process_time()
            rows = index.candidates([demand(claim, CLASSES.get, index.features)])
            took.append(time.process_time() - start)
        print(f"  {name}: {len(rows)} hosts, first {took[0] * 1e3:.1f} ms, then {min(took) * 1e3:.2f} ms")


def main() -> None:
    start = time.process_time()
    sum(at & 7 for at in range(3_000_000))
    print(f"3,000,000 small additions: {time.process_time() - start:.3f} s")
    for name, (devices, claims) in _hard().items():
        pool = {"name": "here", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": "here", "pool": pool, "devices": devices}
        took = []
        for _ in range(5):
            pools = Pools([{"metadata": {"name": "a"}, "spec": spec}])
            start = time.process_time()
            found = allocate(claims, node=NODE, pools=pools, classes=CLASSES.get, held=Held(), features=Features())
            took.append(time.process_time() - start)
        print(f"{name}: {min(took) * 1e3:.2f} ms, {'fits' if isinstance(found, Allocated) else found.summary}")
    for hosts in (100, 1000, 5000):
        _everywhere(hosts)


if __name__ == "__main__":
    main()
