"""Choosing devices, beside Kubernetes' structured allocator. One table: ours, the reference, how many times faster we are.

    python -m bench.allocate               100, 1,000 and 5,000 nodes with eight GPUs each, half of them taken
    python -m bench.allocate 1000          as many as you say

The reference was measured once (Kubernetes v1.37.0-rc.1, Go 1.27.3, 2 shared cores, thread CPU time, best of three rounds) and
is scaled to the speed of this machine at this moment by a loop of Python that took 0.1065 s then. What is below 30 % is noise.
Ours is CPU time too, so neighbours on the machine disturb it less, and devices are read while the first claim waits for them.

`factory` is for a driver that makes objects of its own and compares the results with another allocator's:
factory(nodes, slices, classes) -> allocate_on(node_index, claim), which gives device names, or None where nothing fits."""

from __future__ import annotations

import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import gpu8
from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.page import Booking, Holder, Page
from outfitter.api.rejection_text import render_all
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.allocator import Allocated, allocate
from outfitter.scheduling.dra.claim_request import compile_claim
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.dra.node_devices import PoolSet
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.placement import Placement
from outfitter.scheduling.scheduler import place
from outfitter.scheduling.snapshot import SchedulingSnapshot

Object = Mapping[str, Any]
AllocateOn = Callable[[int, Object], list[str] | None]
LOOP = 0.1065  # seconds for the loop when the reference was measured
# Microseconds, by the number of nodes.
GIVEN = {100: 62, 1000: 368, 5000: 1700}  # one given node, p50 for a claim, set-up included
ALL = {100: (800, 1600, 4100), 1000: (10_000, 20_000, 47_000), 5000: (64_000, 114_000, 253_000)}  # all nodes, half full
SAME = {100: "03fcf6dda405c120", 1000: "d6c95bcb074f4be6", 5000: "01dbb3d46853249d"}  # what was given, as a checksum
FEASIBLE = {1000: (833, 762, 96), 5000: (4614, 4019, 29)}
HARD = {"25 of 24 like devices": 15_610_000}  # and it had not ended by then


def factory(
    nodes: Sequence[Object], slices: Sequence[Object], classes: Sequence[Object]
) -> Callable[[int, Object], list[str] | None]:
    by_name = {one["metadata"]["name"]: one for one in classes}
    start = time.process_time()
    pools = PoolSet(slices)
    print(f"pools of {len(nodes)} nodes read in {time.process_time() - start:.2f} s", file=sys.stderr)
    return allocator(nodes, pools, AllocatedDevices(), by_name.get)


def allocator(nodes: Sequence[Object], pools: PoolSet, held: AllocatedDevices, classes: Callable[[str], Object | None],
              given: Callable[[int, Object, Object], None] = lambda *_: None) -> AllocateOn:
    features = Features()

    def allocate_on(index: int, claim: Object) -> list[str] | None:
        answer = allocate([claim], node=nodes[index], pools=pools, classes=classes, held=held, features=features)
        if not isinstance(answer, Allocated):
            return None
        held.add(answer.allocations[0])
        given(index, claim, answer.allocations[0])
        return [result["device"] for result in answer.allocations[0]["devices"]["results"]]

    return allocate_on


class Table:
    """Lines of one table; `slower`: how much slower the machine is than the one of the reference."""

    def __init__(self) -> None:
        self.slower = min(_took(_loop) for _ in range(5)) / LOOP
        print(f"this machine now needs {self.slower:.2f} times the time of the one that the reference was measured on\n")
        print(f"{'':<62}{'ours':>10}{'reference':>12}{'scaled':>11}{'faster':>9}")

    def line(self, what: str, seconds: float, reference: float = 0, note: str = "") -> None:
        """The reference in microseconds; 0: there is none."""
        scaled = reference * self.slower
        beside = f"{_time(reference)}{_time(scaled):>11}{scaled / 1e6 / seconds:>8.1f}x" if reference else ""
        print(f"{what:<62}{_time(seconds * 1e6):>10}{beside:>32}  {note}".rstrip(), flush=True)


def _time(us: float) -> str:
    return f"{us:.0f} us" if us < 1000 else f"{us / 1000:.2f} ms" if us < 100_000 else f"{us / 1000:.0f} ms"


def _loop() -> int:
    total = 0
    for at in range(3_000_000):
        total += at & 7
    return total


def _took(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _median(work: Callable[[int], object], times: int = 21) -> float:
    return statistics.median(_took(lambda at=at: work(at)) for at in range(times))  # type: ignore[misc]


def _resident() -> float:
    """MB of this process."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


# -- many nodes


def cluster(table: Table, count: int) -> None:
    print(f"\n{count:,} nodes x 8 GPUs")
    before = _resident()
    nodes, slices = [gpu8.node(at) for at in range(count)], [gpu8.part(at) for at in range(count)]
    objects, index = _resident(), DeviceIndex()
    reading = _took(lambda: _feed(index, nodes, slices))
    first = [_took(lambda number=number: _ask(index, number)) for number in range(3)]  # type: ignore[misc]
    memory = _resident()
    checksum, took = gpu8.fill(count, allocator(nodes, PoolSet(slices), AllocatedDevices(), gpu8.CLASSES.get))
    same = "" if count not in SAME else "same devices" if checksum.startswith(SAME[count]) else "OTHER DEVICES"
    table.line("a claim on one given node, p50", statistics.median(took), GIVEN.get(count, 0), same)
    pages = _half_full(index, nodes, slices)
    for number, kind in enumerate(gpu8.KINDS):
        found, best = len(_ask(index, number)), min(_took(lambda: _ask(index, number)) for _ in range(9))  # noqa: B023
        right = "" if found == FEASIBLE.get(count, (found,) * 3)[number] else ", which is WRONG"
        table.line(f"all nodes that can take {kind}", best, ALL[count][number] if count in ALL else 0, f"{found} nodes{right}")
    table.line("reading all slices and nodes", reading)
    for kind, seconds in zip(gpu8.KINDS, first, strict=True):
        table.line(f"all nodes that can take {kind}, asked for the first time", seconds)
    for text in ('model == "a100"', "index < 2", "index < 4"):
        asked = compile_claim(gpu8.claim(0, f'device.attributes["{gpu8.DRIVER}"].{text}'), gpu8.CLASSES.get, index.features)
        table.line(f"  then with a new selector, {text}", _took(lambda asked=asked: index.candidates([asked])))  # type: ignore[misc]
    _pods(table, index)
    _events(table, index, nodes, slices, pages)
    print(f"memory: objects {objects - before:.0f} MB; all that is kept to ask them {memory - objects:.0f} MB")


def _half_full(index: DeviceIndex, nodes: Sequence[Object], slices: Sequence[Object]) -> dict[str, Page]:
    pages = {node["metadata"]["name"]: Page(Page.blank(node["metadata"]["name"])) for node in nodes}

    def given(at: int, claim: Object, allocation: Object) -> None:
        name, meta = nodes[at]["metadata"]["name"], claim["metadata"]
        for result in allocation["devices"]["results"]:
            device = DeviceId(result["driver"], result["pool"], result["device"])
            holder = Holder("ResourceClaim", meta["namespace"], meta["name"], meta["uid"])
            pages[name] = Page(pages[name].adding(Booking(device, holder, "gpu", "booked", "")))

    gpu8.fill(len(nodes), allocator(nodes, PoolSet(slices), AllocatedDevices(), gpu8.CLASSES.get, given))
    for name, page in pages.items():
        index.put_page(name, page)
    return pages


def _feed(index: DeviceIndex, nodes: Sequence[Object], slices: Sequence[Object]) -> None:
    for one in slices:
        index.put_slice(one["metadata"]["name"], one)  # type: ignore[arg-type]
    for node in nodes:
        index.put_node(node["metadata"]["name"], node)  # type: ignore[arg-type]
    index.candidates([])


def _ask(index: DeviceIndex, number: int) -> list[int]:
    return index.candidates([compile_claim(gpu8.claim(number), gpu8.CLASSES.get, index.features)])


def _events(
    table: Table, index: DeviceIndex, nodes: Sequence[Object], slices: Sequence[Object], pages: Mapping[str, Page]
) -> None:
    """Something changes, until the next question can be asked."""
    many = len(nodes)

    def page(at: int) -> None:
        name = f"node-{at * 37 % many:05d}"
        index.put_page(name, pages[name] if at % 2 else Page(Page.blank(name)))

    def part(at: int) -> None:
        old = slices[at * 41 % many]
        devices = [*old["spec"]["devices"][1:], {**old["spec"]["devices"][0], "attributes": {"model": {"string": "b200"}}}]
        index.put_slice(old["metadata"]["name"], {**old, "spec": {**old["spec"], "devices": devices}})

    def label(at: int) -> None:
        old = nodes[at * 43 % many]
        meta = {**old["metadata"], "labels": {"moved": str(at)}}
        index.put_node(meta["name"], {**old, "metadata": meta})

    def arrival(at: int) -> None:
        index.put_node(f"node-{at * 47 % many:05d}-new", {"metadata": {"name": f"node-{at * 47 % many:05d}-new", "labels": {}}})

    for what, work in {"a page changes": page, "a slice changes": part, "a node has other labels": label,
                       "a node comes": arrival}.items():
        def known(at: int, work: Callable[[int], None] = work) -> None:
            work(at)
            _ = index.pools

        table.line(f"{what}: until the next question can be asked", _median(known))


def _pods(table: Table, index: DeviceIndex) -> None:
    claims = {f"claim-{number:06d}": gpu8.claim(number) for number in range(3)}
    snapshot = SchedulingSnapshot(devices=index, usage=NodeUsage(), claim=lambda _, name: claims[name],
                                  device_class=gpu8.CLASSES.get)
    for number, kind in enumerate(["nothing", *gpu8.KINDS], -1):
        entries = [{"name": "gpu", "resourceClaimName": f"claim-{number:06d}"}] if number >= 0 else []
        pod = {"metadata": {"name": "pod", "namespace": "default", "uid": "pod"}, "spec": {"resourceClaims": entries}}

        def put(_: int = 0, pod: dict[str, Any] = pod) -> None:
            found = place(snapshot, pod)
            assert isinstance(found, Placement), found

        put()
        table.line(f"place a pod that asks for {kind}", _median(put))


# -- what is hard for a search that tries everything


NODE = {"metadata": {"name": "here"}}


def _devices(count: int, **groups: int) -> list[Object]:
    """Devices that differ in their serial numbers; numa=2: two values, in blocks."""
    return [{"name": f"d{at}", "attributes": {"serial": {"string": str(at)}, **{
        name: {"int": at * many // count} for name, many in groups.items()}}} for at in range(count)]


def _claim(*counts: int, constraints: Sequence[tuple[str, str, str]] = ()) -> Object:
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": gpu8.DRIVER, "count": count}}
                for at, count in enumerate(counts)]
    under = [{kind: f"{gpu8.DRIVER}/{name}", "requests": [request] if request else []} for kind, name, request in constraints]
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests, "constraints": under}}}


def _hard() -> dict[str, tuple[list[Object], list[Object]]]:
    match = [("matchAttribute", "pf", f"r{at}") for at in range(4)]
    vfs = _devices(48, pf=8)
    return {
        **{f"{n + 1} of {n} like devices": (_devices(n), [_claim(1) for _ in range(n + 1)]) for n in (24, 48, 64)},
        **{f"9 of 8 distinct values, {n} devices": (
            _devices(n, g=8), [_claim(9, constraints=[("distinctAttribute", "g", "")])]) for n in (24, 64)},
        "6 of 8 like devices": (_devices(8), [_claim(6)]),
        "6 of 8 on one NUMA node of 4": (_devices(8, numa=2), [_claim(6, constraints=[("matchAttribute", "numa", "")])]),
        "four groups of 6 VFs, 8 PFs x 6": (vfs, [_claim(6, 6, 6, 6, constraints=match)]),
        "nine groups of 4 VFs, 8 PFs x 6": (
            vfs, [*[_claim(4, 4, 4, 4, constraints=match)] * 2, _claim(4, constraints=match[:1])]),
    }


def hard(table: Table) -> None:
    print("\none node, hard claims")
    for name, (devices, claims) in _hard().items():
        pool = {"name": "here", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": gpu8.DRIVER, "nodeName": "here", "pool": pool, "devices": devices}
        took = []
        for _ in range(5):
            start = time.process_time()
            found = allocate(claims, node=NODE, pools=PoolSet([{"metadata": {"name": "a"}, "spec": spec}]),
                             classes=gpu8.CLASSES.get, held=AllocatedDevices(), features=Features())
            took.append(time.process_time() - start)
        table.line(name, min(took), HARD.get(name, 0), "fits" if isinstance(found, Allocated) else render_all(found.rejections))


def main() -> None:
    table = Table()
    hard(table)
    for count in [int(text) for text in sys.argv[1:]] or [100, 1000, 5000]:
        cluster(table, count)


if __name__ == "__main__":
    main()
