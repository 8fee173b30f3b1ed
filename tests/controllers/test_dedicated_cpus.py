"""CPUs that a VM has for itself: booked by number, kept over restarts, and never given twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.controllers.bind_transaction import BindTransaction
from outfitter.ledger import book, placement_view
from outfitter.store.base import Store
from tests.controllers.numa_hosts import CONFIG, flavor, machine, scene
from tests.controllers.scenario import Scene, addresses
from tests.rejected import Code


async def pinned_to(scene: Scene, name: str) -> list[int]:
    """On which CPUs of its host those of a VM's guest run, in their order, as the domain says."""
    (domain,) = [one for one in await scene.domains() if one.name == f"here_{name}"]
    return [int(each.get("cpuset", "")) for each in ET.fromstring(domain.xml).iterfind("cputune/vcpupin")]


async def test_dedicated_cpus_are_booked_and_released() -> None:
    pinned = {"hw:cpu_policy": "dedicated"}
    async with scene() as here:
        await flavor(here, "near", "near gpu:1", vcpus=3, extraSpecs=pinned)
        await flavor(here, "cpus", vcpus=4, extraSpecs=pinned)
        await machine(here, "a", "cpus", nodeSelector={"kubernetes.io/hostname": "elm"})
        a = await here.running("a")
        # A VM without devices goes to the cell with the fewest, or the first of those that have as many.
        assert a["status"]["flavor"]["hostCells"] == [0]
        assert a["status"]["flavor"]["pinned"] == {"0": 4}
        page = await book.read(here.store, "elm")
        (own,) = [booking for booking in page.bookings if booking.device == placement_view.host_resources("elm")]
        assert (own.amount["cells"], own.amount["cpus"]) == ({"0": 4}, {"0": [0, 1, 2, 3]})
        assert own.state == "prepared"
        await machine(here, "b", "near", nodeSelector={"kubernetes.io/hostname": "elm"})
        b = await here.running("b")
        assert addresses(b) == ["0000:ca:00.0"]
        assert b["status"]["flavor"]["pinned"] == {"1": 3}
        assert await pinned_to(here, "b") == [4, 5, 6]
        await machine(here, "c", "near", nodeSelector={"kubernetes.io/hostname": "elm"})
        await here.rejected("c", Code.NUMA_TOO_FEW_CPUS, cells={0: 0, 1: 1})
        await here.delete(kinds.VMI, "a")
        c = await here.running("c")
        assert addresses(c) == ["0000:17:00.0"]
        assert c["status"]["flavor"]["hostCells"] == [0]
        assert await pinned_to(here, "c") == [0, 1, 2]
        for name in ("b", "c"):
            await here.delete(kinds.VMI, name)
        await here.gone("b", "c")
        await here.empty()


ONE_SOCKET = """
hosts:
- name: elm
  numa:
  - {id: 0, cpus: 0-3, memory: 32Gi, socket: 0}
  - {id: 1, cpus: 4-7, memory: 32Gi, socket: 0}
  pci:
  - {address: 0000:ca:00.0, vendor: 10de, product: 2235, class: 030000, numa: 1}
  - {address: 0000:cb:00.0, vendor: 10de, product: 2235, class: 030000, numa: 1}
"""


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "taken"])
async def test_a_cell_without_a_free_cpu_keeps_its_socket(shared: bool) -> None:
    """Its CPUs are all shared, or another VM has them: its device still is beside the other cell of the socket."""
    conf = CONFIG + "- {name: beside, resource_class: gpu, numa_policy: socket}\n"
    pinned = {"hw:cpu_policy": "dedicated"}
    async with scene(conf + ("cpu_dedicated_set: 0-3\n" if shared else ""), ONE_SOCKET) as here:
        if not shared:
            await flavor(here, "near", "near gpu:1", vcpus=4, extraSpecs=pinned)
            await machine(here, "first", "near")
            assert (await here.running("first"))["status"]["flavor"]["hostCells"] == [1]
        await flavor(here, "beside", "beside:1", vcpus=2, extraSpecs=pinned)
        await machine(here, "a", "beside")
        a = await here.running("a")
        assert addresses(a) == ["0000:ca:00.0" if shared else "0000:cb:00.0"]
        assert a["status"]["flavor"]["hostCells"] == [0]


def own_cpus(cores: int, **more: Any) -> Object:
    return {"memory": {"guest": "1Gi"}, "cpu": {"cores": cores, "dedicatedCpuPlacement": True}, **more}


async def alone(scene: Scene, name: str, cores: int, host: str = "elm", **spec: Any) -> Object:
    """A VM without a flavor that wants CPUs for itself."""
    return await scene.create(kinds.VMI, name, {
        "domain": own_cpus(cores), "nodeSelector": {"kubernetes.io/hostname": host}, **spec})


async def test_vmi_without_a_flavor_may_have_dedicated_cpus() -> None:
    async with scene() as here:
        await alone(here, "a", 2)
        a = await here.running("a")
        assert await pinned_to(here, "a") == [0, 1]
        assert a["spec"]["domain"] == own_cpus(2), "nothing is added to what a user wrote"
        assert {key: a["status"]["flavor"][key] for key in ("hostCells", "pinned", "cpus")} == {
            "hostCells": [0], "pinned": {"0": 2}, "cpus": {"0": [0, 1]}}
        (xml,) = [one.xml for one in await here.domains()]
        assert '<memory mode="strict" nodeset="0" />' in xml
        assert "<numa>" not in xml, "its guest is shown nothing that it did not ask for"
        await alone(here, "b", 3)
        await here.running("b")
        assert await pinned_to(here, "b") == [4, 5, 6], "on one cell, while one has room"
        await alone(here, "c", 4)
        await here.rejected("c", Code.INSUFFICIENT_RESOURCE, resource="cpu", free=3000, total=8000, wanted=4000)
        await alone(here, "d", 2, host="oak")
        await here.running("d")
        assert await pinned_to(here, "d") == [0, 1], "another host has its own"
        await here.delete(kinds.VMI, "b")
        await here.running("c")
        for name in ("a", "c", "d"):
            await here.delete(kinds.VMI, name)
        await here.gone("a", "c", "d")
        await here.empty()


async def test_more_cpus_than_a_cell_has_are_of_several() -> None:
    async with scene() as here:
        await alone(here, "a", 5)
        a = await here.running("a")
        assert a["status"]["flavor"]["cpus"] == {"0": [0, 1, 2], "1": [4, 5]}
        assert await pinned_to(here, "a") == [0, 1, 2, 4, 5]


async def test_flavor_with_dedicated_cpu_placement() -> None:
    """The VM's word goes before the flavor's, and the flavor's guest is shown its cell."""
    async with scene() as here:
        await flavor(here, "shared", "near gpu:1", vcpus=8, extraSpecs={"hw:cpu_policy": "shared"})
        await machine(here, "a", "shared", own_cpus(2), nodeSelector={"kubernetes.io/hostname": "elm"})
        await here.running("a")
        assert await pinned_to(here, "a") == [0, 1]
        (domain,) = await here.domains()
        assert '<cell id="0"' in domain.xml


async def test_dedicated_cpus_stay_the_same_over_restarts(tmp_path: Path) -> None:
    async with scene(data=tmp_path) as here:
        await alone(here, "a", 2)
        await here.running("a")
    async with scene(data=tmp_path) as here:
        await alone(here, "b", 2)
        b = await here.running("b")
        a = await here.running("a")
        assert [one["status"]["flavor"]["cpus"] for one in (a, b)] == [{"0": [0, 1]}, {"0": [2, 3]}]


async def test_a_crash_between_the_pod_and_the_record_loses_nothing() -> None:
    async with scene() as here:
        await alone(here, "a", 2, host="nowhere")
        await here.rejected("a", Code.NODE_SELECTOR)
        record = (await here.find(kinds.VMI, "a") or {})["status"]["flavor"]
        await here.store.patch(kinds.VMI, "a", {"status": {"flavor": None}}, "here", subresource="status")

        async def again() -> bool:
            return bool((await here.find(kinds.VMI, "a") or {})["status"].get("flavor") == record)

        await here.reach(again, "the record is there again")
        assert len(await here.all(kinds.RESOURCE_CLAIM)) == 1


async def test_a_claim_that_lost_its_status_gets_the_same_cpus_from_the_page() -> None:
    async with scene() as here:
        await alone(here, "a", 2)
        a = await here.running("a")
        name = a["status"]["flavor"]["claimName"]
        before = (await here.find(kinds.RESOURCE_CLAIM, name) or {})["status"]["allocation"]
        await here.store.patch(kinds.RESOURCE_CLAIM, name, {"status": None}, "here", subresource="status")

        async def reported() -> Object | None:
            found: Object | None = ((await here.find(kinds.RESOURCE_CLAIM, name) or {}).get("status") or {}).get("allocation")
            return found

        after = await here.reach(reported, "the claim has its allocation again")
        assert pod_claims.cells_of({"status": {"allocation": after}}) == pod_claims.cells_of({"status": {"allocation": before}})


async def test_cpus_that_went_between_the_choice_and_the_booking_are_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no device that would clash: what was chosen counts only on the page on which it was chosen."""
    commit, rivals = BindTransaction.commit, iter([{"0": 4}, {"1": 3}])

    async def late(self: BindTransaction, store: Store) -> list[tuple[Kind, Object]]:
        if (cells := next(rivals, None)) is not None:
            holder = Holder("Consumer", "", f"rival{cells}", f"rival{cells}")
            await book.book(here.store, "elm", [Booking(placement_view.host_resources("elm"), holder, "", "booked", "now", {
                "resources": {"PCPU": 4}, "cells": cells})])
        return await commit(self, store)

    monkeypatch.setattr(BindTransaction, "commit", late)
    async with scene() as here:
        await flavor(here, "cpus", vcpus=2, extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "cpus", nodeSelector={"kubernetes.io/hostname": "elm"})
        await here.rejected("blue", Code.NUMA_TOO_FEW_CPUS, cells={0: 0, 1: 1})


async def test_who_comes_together_gets_what_the_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """VMs of one commit: each is chosen for without the CPUs of cells that those before it took."""
    commit, together = BindTransaction.commit, list[int]()

    async def counted(self: BindTransaction, store: Store) -> list[tuple[Kind, Object]]:
        written = await commit(self, store)
        together.append(len({obj["metadata"]["name"] for kind, obj in written if kind == kinds.POD}))
        return written

    monkeypatch.setattr(BindTransaction, "commit", counted)
    async with scene() as here:
        names = [f"m{number}" for number in range(9)]
        for name in names:
            await machine(here, name, "cpus")
            await here.waits(name, "Synchronized", "flavor cpus does not exist")
        await flavor(here, "cpus", vcpus=2, extraSpecs={"hw:cpu_policy": "dedicated"})
        await here.settle()
        found = [one["status"] for one in await here.all(kinds.VMI) if one["status"].get("phase") == "Running"]
        assert sorted((each["nodeName"], *each["flavor"]["cpus"].items()) for each in found) == [
            ("elm", ("0", [0, 1])), ("elm", ("0", [2, 3])), ("elm", ("1", [4, 5])), ("elm", ("1", [6, 7])),
            ("oak", ("0", [0, 1])), ("oak", ("0", [2, 3]))]
        assert max(together) > 1


async def test_cpus_of_a_cell_that_became_free_go_to_who_waits_longest() -> None:
    async with scene() as here:
        await flavor(here, "cpus", vcpus=4, extraSpecs={"hw:cpu_policy": "dedicated"})
        order = ["m3", "m1", "m2"]
        for name in order:
            await machine(here, name, "cpus", nodeSelector={"kubernetes.io/hostname": "oak"})
            await here.phase(name, "Running" if name == "m3" else "Scheduling")
        for before, after in (("m3", "m1"), ("m1", "m2")):
            await here.delete(kinds.VMI, before)
            assert (await here.running(after))["status"]["flavor"]["pinned"] == {"0": 4}
            page = await book.read(here.store, "oak")
            assert [booking.amount["cells"] for booking in page.bookings if booking.amount.get("cells")] == [{"0": 4}]
