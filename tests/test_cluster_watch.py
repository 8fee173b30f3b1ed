"""Who watches VMs reports what was done twice; else tests that find nothing would show nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.ledger import book
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.cluster_watch import ClusterWatch
from tests.ledger.unchecked_pages import UncheckedPages

DRIVER, HOST = "pci.example.com", "node-a"


@pytest.fixture
async def store() -> AsyncIterator[Memory]:
    store = Memory(clock=ManualClock(), rules=UncheckedPages())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    yield store
    await store.close()


async def made(store: Memory, kind: Kind, name: str, owner: Object, spec: Object) -> Object:
    meta, by = owner["metadata"], next(each for each in (kinds.VM, kinds.VMI, kinds.POD) if each.kind == owner["kind"])
    reference = {"apiVersion": by.api_version, "kind": by.kind, "name": meta["name"], "uid": meta["uid"], "controller": True}
    return await store.create(kind, {"metadata": {"name": name, "namespace": "default", "ownerReferences": [reference]},
                                     "spec": spec})


async def vmi_of(store: Memory, vm: str, name: str = "") -> Object:
    owner = {"kind": "VirtualMachine", "metadata": {"name": vm, "uid": f"uid-of-{vm}"}}
    return await made(store, kinds.VMI, name or vm, owner, {"domain": {"devices": {}}})


async def pod_of(store: Memory, vmi: Object, name: str) -> Object:
    return await made(store, kinds.POD, name, vmi, {"containers": [{"name": "compute", "image": "launcher"}]})


async def claim_of(store: Memory, pod: Object, name: str) -> Object:
    request = {"name": "nic", "exactly": {"deviceClassName": "vf"}}
    return await made(store, kinds.RESOURCE_CLAIM, name, pod, {"devices": {"requests": [request]}})


async def allocate(store: Memory, claim: str, device: str) -> None:
    result = {"request": "nic", "driver": DRIVER, "pool": HOST, "device": device}
    await store.patch(kinds.RESOURCE_CLAIM, claim, {"status": {"allocation": {"devices": {"results": [result]}}}}, "default",
                      subresource="status")


async def test_what_is_done_once_is_not_reported(store: Memory) -> None:
    async with ClusterWatch(store) as seen:
        for name in ("a", "b"):
            pod = await pod_of(store, await vmi_of(store, name), f"pod-{name}")
            claim = await claim_of(store, pod, f"claim-{name}")
            await allocate(store, f"claim-{name}", f"vf-{name}")
            holder = Holder("ResourceClaim", "default", f"claim-{name}", claim["metadata"]["uid"])
            await book.book(store, HOST, [Booking(DeviceId(DRIVER, HOST, f"vf-{name}"), holder, "nic", "booked", "")])
        await seen.until(lambda: len(seen.allocated) == 2, "two allocations")
        assert (seen.twice(), await seen.settled_differences(0)) == ([], [])


async def test_what_is_done_twice_is_reported(store: Memory) -> None:
    async with ClusterWatch(store) as seen:
        vmi = await vmi_of(store, "a")
        first, second = await pod_of(store, vmi, "pod-1"), await pod_of(store, vmi, "pod-2")
        for name, pod in (("claim-1", first), ("claim-2", first), ("claim-3", second)):
            await claim_of(store, pod, name)
            await allocate(store, name, "vf0")
        await store.patch(kinds.RESOURCE_CLAIM, "claim-2", {"status": {"allocation": None}}, "default", subresource="status")
        await allocate(store, "claim-2", "vf1")
        await vmi_of(store, "a", "another")
        await seen.until(lambda: any("virtualmachineinstances" in line for line in seen.twice()), "the second VMI")
        reported = seen.twice()
        differences = await seen.settled_differences(0)
    words = ("virtualmachineinstances of a: 2", "pods of a: 2", "resourceclaims of pod-1: 2", "had several devices",
             "is allocated to")
    assert [sum(word in line for line in reported) for word in words] == [1] * len(words), reported
    assert len(differences) == 2, "no page has the two devices"
