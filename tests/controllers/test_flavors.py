"""Machines with flavors, from the objects that people write to the domain that runs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api import machine as model
from outfitter.api.kinds import Kind, Object
from outfitter.api.page import Booking, Holder
from outfitter.controllers.drafts import Draft
from outfitter.errors import AlreadyExists, Invalid, NotFound
from outfitter.inventory import config, simulate
from outfitter.ledger import book, placement
from outfitter.scheduling import explain, flavored
from outfitter.scheduling.facts import Facts
from outfitter.store.base import Store
from outfitter.store.clock import ManualClock
from outfitter.store.names import Names
from tests import kubernetes
from tests.controllers.scene import Scene, _clear, addresses

HOSTS = """
hosts:
- name: elm
  numa:
  - {id: 0, cpus: 0-3, memory: 32Gi, socket: 0}
  - {id: 1, cpus: 4-7, memory: 32Gi, socket: 1}
  pci:
  - {address: 0000:17:00.0, vendor: 10de, product: 2235, class: 030000, numa: 0}
  - {address: 0000:ca:00.0, vendor: 10de, product: 2235, class: 030000, numa: 1}
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0, vfs: {count: 2, product: 1889}}
  - {address: 0000:d8:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 1, vfs: {count: 2, product: 1889}}
- name: oak
  numa: [{id: 0, cpus: 0-3, memory: 32Gi}]
  pci:
  - {address: 0000:17:00.0, vendor: 10de, product: 2235, class: 030000, numa: 0}
"""
CONFIG = """
report_in_placement: true
pci_in_placement: true
device_spec:
- {vendor_id: 10de, product_id: 2235, resource_class: gpu, traits: [ampere]}
- {vendor_id: 8086, product_id: 1889, resource_class: slice}
alias:
- {name: gpu, resource_class: gpu, traits: "ampere,!slow"}
- {name: near gpu, resource_class: gpu, numa_policy: required}
- {name: nic, resource_class: slice, device_type: type-VF}
"""


@contextlib.asynccontextmanager
async def scene(conf: str = CONFIG, hosts: str = HOSTS, data: Path | None = None) -> AsyncIterator[Scene]:
    clock, settings = ManualClock(), config.parse(conf)
    played = app.simulated_hosts(simulate.parse(hosts).hosts, data, config=settings)
    async with app.embedded(hosts=played, clock=clock, names=Names(random.Random(1)), config=settings, data=data) as product:
        with contextlib.suppress(AlreadyExists):
            await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        yield Scene(product, "here", clock)


async def flavor(scene: Scene, name: str, alias: str = "", **spec: Any) -> Object:
    extra = {"pci_passthrough:alias": alias} if alias else {}
    return await scene.create(kinds.FLAVOR, name, {"vcpus": 2, "memory": "2Gi", "disk": "10Gi", **spec,
                                                   "extraSpecs": {**extra, **spec.get("extraSpecs", {})}})


async def machine(scene: Scene, name: str, flavor: str, domain: Object | None = None, **spec: Any) -> Object:
    return await scene.create(kinds.INSTANCE, name, {"flavor": {"name": flavor}, "domain": domain or {}, **spec})


async def test_a_machine_gets_what_its_flavor_asks_for() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1, nic:2", vcpus=4, memory="3Gi")
        await machine(here, "blue", "large")
        blue = await here.running("blue")
        entries = blue["status"]["deviceStatus"]["hostDeviceStatuses"]
        assert [entry["name"] for entry in entries] == ["gpu-0", "nic-0", "nic-1"]
        assert addresses(blue) == ["0000:17:00.0", "0000:3b:01.0", "0000:3b:01.1"]
        assert blue["spec"] == {"flavor": {"name": "large"}, "domain": {}}
        assert blue["status"]["nodeName"] == "elm"
        (domain,) = await here.domains()
        assert domain.devices == tuple(addresses(blue))
        assert re.search(r"<vcpu[^>]*>4</vcpu>", domain.xml)
        assert str(3 << 30) in domain.xml
        (claim,) = await here.all(kinds.RESOURCE_CLAIM)
        assert [(request["name"], request["exactly"]["count"]) for request in claim["spec"]["devices"]["requests"]] == [
            ("gpu", 1), ("nic", 2)]
        assert claim["metadata"]["ownerReferences"][0]["name"] == "blue"
        await here.check_books()
        await here.delete(kinds.INSTANCE, "blue")
        await here.gone("blue")
        await here.empty()


async def test_what_the_spec_says_goes_before_the_flavor() -> None:
    async with scene() as here:
        await flavor(here, "large", vcpus=4, memory="3Gi")
        await machine(here, "blue", "large", {"cpu": {"cores": 3}, "memory": {"guest": "1Gi"}})
        await here.running("blue")
        (domain,) = await here.domains()
        assert re.search(r"<vcpu[^>]*>3</vcpu>", domain.xml)
        assert str(1 << 30) in domain.xml
        assert await here.all(kinds.RESOURCE_CLAIM) == []  # nothing that would need one


async def test_a_machine_waits_for_its_flavor_and_goes_on_when_it_comes() -> None:
    async with scene() as here:
        await machine(here, "blue", "large")
        assert await here.waits("blue", "Synchronized", "flavor large does not exist")
        assert await here.events("FlavorNotFound") == ["flavor large does not exist; the machine goes on when it does"]
        assert await here.all(kinds.POD) == []
        await flavor(here, "small", "gpu:1")  # another one changes nothing
        await here.waits("blue", "Synchronized", "flavor large does not exist")
        await flavor(here, "large", "gpu:1")
        blue = await here.running("blue")
        assert len(addresses(blue)) == 1
        assert await here.condition("blue", "Synchronized") is None
        assert len(await here.events("FlavorNotFound")) == 1


async def test_a_flavor_may_change_and_a_machine_keeps_what_it_was_made_with() -> None:
    async with scene() as here:
        old = await flavor(here, "large", "gpu:1")
        await machine(here, "blue", "large")
        before = await here.running("blue")
        await here.store.replace(kinds.FLAVOR, {**old, "spec": {"vcpus": 8, "memory": "1Gi", "extraSpecs": {}}})
        await machine(here, "green", "large")
        green = await here.running("green")
        blue = await here.find(kinds.INSTANCE, "blue")
        assert blue is not None
        assert blue["status"]["flavor"] == before["status"]["flavor"]
        assert addresses(blue) == addresses(before)
        assert "deviceStatus" not in green["status"]
        await here.delete(kinds.FLAVOR, "large")
        await here.store.patch(kinds.INSTANCE, "blue", {"metadata": {"labels": {"a": "b"}}}, "here")
        assert (await here.running("blue"))["status"]["flavor"] == before["status"]["flavor"]


async def test_who_comes_too_late_waits_with_a_reason_for_each_device() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        for name in ("a", "b", "c", "d"):
            await machine(here, name, "large")
        for name in ("a", "b", "c"):
            await here.running(name)
        message = await here.waits("d", "PodScheduled", "alias gpu wants 1", "0 free", "held by vmi/")
        assert "elm" in message
        assert "oak" in message
        await here.delete(kinds.INSTANCE, "a")
        await here.running("d")
        await here.check_books()


async def test_a_single_gpu_goes_where_there_are_fewest() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        await machine(here, "a", "large")
        assert (await here.running("a"))["status"]["nodeName"] == "oak"


async def test_each_from_another_card() -> None:
    async with scene() as here:
        await flavor(here, "apart", "nic:2", extraSpecs={"group_policy": "isolate"})
        await flavor(here, "three", "nic:3", extraSpecs={"group_policy": "isolate"})
        await machine(here, "blue", "apart")
        assert addresses(await here.running("blue")) == ["0000:3b:01.0", "0000:d8:01.0"]
        claim = next(iter(await here.all(kinds.RESOURCE_CLAIM)))
        assert claim["spec"]["devices"]["constraints"] == [{"requests": ["nic"], "distinctAttribute": flavored.PROVIDER}]
        await machine(here, "green", "three")
        await here.waits("green", "PodScheduled", "alias nic wants 3: 4 match, 2 free")


async def pinned_to(scene: Scene, name: str) -> list[int]:
    """On which CPUs of its host those of a machine's guest run, in their order, as the domain says."""
    (domain,) = [one for one in await scene.domains() if one.name == f"here_{name}"]
    return [int(each.get("cpuset", "")) for each in ET.fromstring(domain.xml).iterfind("cputune/vcpupin")]


async def test_cpus_of_their_own_are_booked_and_given_back() -> None:
    pinned = {"hw:cpu_policy": "dedicated"}
    async with scene() as here:
        await flavor(here, "near", "near gpu:1", vcpus=3, extraSpecs=pinned)
        await flavor(here, "cpus", vcpus=4, extraSpecs=pinned)
        await machine(here, "a", "cpus", nodeSelector={"kubernetes.io/hostname": "elm"})
        a = await here.running("a")
        # A machine without devices goes to the cell with the fewest, or the first of those that have as many.
        assert a["status"]["flavor"]["hostCells"] == [0]
        assert a["status"]["flavor"]["pinned"] == {"0": 4}
        page = await book.read(here.store, "elm")
        (own,) = [booking for booking in page.bookings if booking.device == placement.host_resources("elm")]
        assert (own.amount["cells"], own.amount["cpus"]) == ({"0": 4}, {"0": [0, 1, 2, 3]})
        assert own.state == "prepared"
        await machine(here, "b", "near", nodeSelector={"kubernetes.io/hostname": "elm"})
        b = await here.running("b")
        assert addresses(b) == ["0000:ca:00.0"]
        assert b["status"]["flavor"]["pinned"] == {"1": 3}
        assert await pinned_to(here, "b") == [4, 5, 6]
        await machine(here, "c", "near", nodeSelector={"kubernetes.io/hostname": "elm"})
        await here.waits("c", "PodScheduled", "cell 0 has 0 free CPUs", "cell 1 has 1 free CPUs")
        await here.delete(kinds.INSTANCE, "a")
        c = await here.running("c")
        assert addresses(c) == ["0000:17:00.0"]
        assert c["status"]["flavor"]["hostCells"] == [0]
        assert await pinned_to(here, "c") == [0, 1, 2]
        for name in ("b", "c"):
            await here.delete(kinds.INSTANCE, name)
        await here.gone("b", "c")
        await here.empty()


def own_cpus(cores: int, **more: Any) -> Object:
    return {"memory": {"guest": "1Gi"}, "cpu": {"cores": cores, "dedicatedCpuPlacement": True}, **more}


async def alone(scene: Scene, name: str, cores: int, host: str = "elm", **spec: Any) -> Object:
    """A machine without a flavor that wants CPUs for itself."""
    return await scene.create(kinds.INSTANCE, name, {
        "domain": own_cpus(cores), "nodeSelector": {"kubernetes.io/hostname": host}, **spec})


async def test_a_machine_without_a_flavor_may_have_cpus_of_its_own() -> None:
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
        await here.waits("c", "PodScheduled", "3 of 8 cpu free, 4 wanted")
        await alone(here, "d", 2, host="oak")
        await here.running("d")
        assert await pinned_to(here, "d") == [0, 1], "another host has its own"
        await here.delete(kinds.INSTANCE, "b")
        await here.running("c")
        for name in ("a", "c", "d"):
            await here.delete(kinds.INSTANCE, name)
        await here.gone("a", "c", "d")
        await here.empty()


async def test_more_cpus_than_a_cell_has_are_of_several() -> None:
    async with scene() as here:
        await alone(here, "a", 5)
        a = await here.running("a")
        assert a["status"]["flavor"]["cpus"] == {"0": [0, 1, 2], "1": [4, 5]}
        assert await pinned_to(here, "a") == [0, 1, 2, 4, 5]


async def test_a_flavor_and_the_wish_for_own_cpus() -> None:
    """The machine's word goes before the flavor's, and the flavor's guest is shown its cell."""
    async with scene() as here:
        await flavor(here, "shared", "near gpu:1", vcpus=8, extraSpecs={"hw:cpu_policy": "shared"})
        await machine(here, "a", "shared", own_cpus(2), nodeSelector={"kubernetes.io/hostname": "elm"})
        await here.running("a")
        assert await pinned_to(here, "a") == [0, 1]
        (domain,) = await here.domains()
        assert '<cell id="0"' in domain.xml


async def test_own_cpus_stay_the_same_whoever_restarts(tmp_path: Path) -> None:
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
        await here.waits("a", "PodScheduled", "nodeSelector wants")
        record = (await here.find(kinds.INSTANCE, "a") or {})["status"]["flavor"]
        await here.store.patch(kinds.INSTANCE, "a", {"status": {"flavor": None}}, "here", subresource="status")

        async def again() -> bool:
            return bool((await here.find(kinds.INSTANCE, "a") or {})["status"].get("flavor") == record)

        await here.reach(again, "the record is there again")
        assert len(await here.all(kinds.RESOURCE_CLAIM)) == 1


async def test_a_claim_that_lost_its_status_gets_the_same_cpus_from_the_page() -> None:
    async with scene() as here:
        await alone(here, "a", 2)
        a = await here.running("a")
        name = a["status"]["flavor"]["claimName"]
        before = (await here.find(kinds.RESOURCE_CLAIM, name) or {})["status"]["allocation"]
        await here.store.patch(kinds.RESOURCE_CLAIM, name, {"status": {"allocation": None}}, "here", subresource="status")

        async def told() -> Object | None:
            found: Object | None = ((await here.find(kinds.RESOURCE_CLAIM, name) or {}).get("status") or {}).get("allocation")
            return found

        after = await here.reach(told, "the claim has its allocation again")
        assert model.cells_of({"status": {"allocation": after}}) == model.cells_of({"status": {"allocation": before}})


async def test_cpus_that_went_between_the_choice_and_the_booking_are_not_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no device that would clash: what was chosen counts only on the page on which it was chosen."""
    commit, rivals = Draft.commit, iter([{"0": 4}, {"1": 3}])

    async def late(self: Draft, store: Store) -> list[tuple[Kind, Object]]:
        if (cells := next(rivals, None)) is not None:
            holder = Holder("Consumer", "", f"rival{cells}", f"rival{cells}")
            await book.book(here.store, "elm", [Booking(placement.host_resources("elm"), holder, "", "booked", "now", {
                "resources": {"PCPU": 4}, "cells": cells})])
        return await commit(self, store)

    monkeypatch.setattr(Draft, "commit", late)
    async with scene() as here:
        await flavor(here, "cpus", vcpus=2, extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "cpus", nodeSelector={"kubernetes.io/hostname": "elm"})
        await here.waits("blue", "PodScheduled", "cell 0 has 0 free CPUs", "cell 1 has 1 free CPUs")


async def test_who_comes_together_gets_what_the_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of one commit: each is chosen for without the CPUs of cells that those before it took."""
    commit, together = Draft.commit, list[int]()

    async def counted(self: Draft, store: Store) -> list[tuple[Kind, Object]]:
        written = await commit(self, store)
        together.append(len({obj["metadata"]["name"] for kind, obj in written if kind == kinds.POD}))
        return written

    monkeypatch.setattr(Draft, "commit", counted)
    async with scene() as here:
        names = [f"m{number}" for number in range(9)]
        for name in names:
            await machine(here, name, "cpus")
            await here.waits(name, "Synchronized", "flavor cpus does not exist")
        await flavor(here, "cpus", vcpus=2, extraSpecs={"hw:cpu_policy": "dedicated"})
        product = here.product
        assert isinstance(product, app.Embedded)
        await product.settle()
        found = [one["status"] for one in await here.all(kinds.INSTANCE) if one["status"].get("phase") == "Running"]
        assert sorted((each["nodeName"], *each["flavor"]["cpus"].items()) for each in found) == [
            ("elm", ("0", [0, 1])), ("elm", ("0", [2, 3])), ("elm", ("1", [4, 5])), ("elm", ("1", [6, 7])),
            ("oak", ("0", [0, 1])), ("oak", ("0", [2, 3]))]
        assert max(together) > 1


async def test_a_device_that_a_rule_taints_is_not_given() -> None:
    async with scene() as here:
        await here.create(kinds.DEVICE_TAINT_RULE, "broken", {
            "deviceSelector": {"driver": "pci.outfitter.dev", "pool": "oak"},
            "taint": {"key": "example.com/broken", "effect": "NoSchedule"}})
        await flavor(here, "large", "gpu:1")
        await machine(here, "a", "large")
        assert (await here.running("a"))["status"]["nodeName"] == "elm"  # though oak has fewer
        await machine(here, "b", "large", nodeSelector={"kubernetes.io/hostname": "oak"})
        await here.waits("b", "PodScheduled", "oak: alias gpu wants 1: 1 match, 0 free")


async def test_a_claim_of_the_machine_beside_its_flavor() -> None:
    """The flavor is served first, and the other claim never gets the same device."""
    async with scene(hosts=HOSTS.replace("- name: oak", "- name: zoak")) as here:
        await flavor(here, "large", "gpu:1")
        driver = "pci.outfitter.dev"
        await here.create(kinds.RESOURCE_CLAIM, "mine", {"devices": {"requests": [{"name": "any", "exactly": {
            "deviceClassName": driver, "selectors": [{"cel": {
                "expression": f'device.attributes["{driver}"].vendor == "10de"'}}]}}]}})
        await machine(here, "blue", "large", {"devices": {"hostDevices": [
            {"name": "gpu-0", "claimName": "own", "requestName": "any"}]}},
            resourceClaims=[{"name": "own", "resourceClaimName": "mine"}])
        blue = await here.running("blue")
        entries = blue["status"]["deviceStatus"]["hostDeviceStatuses"]
        assert [entry["name"] for entry in entries] == ["gpu-0", "gpu-2-0"]  # no two of a name
        assert len(set(addresses(blue))) == 2
        assert blue["status"]["nodeName"] == "elm"
        await here.check_books()


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an alias that nobody defined": ({"extraSpecs": {"pci_passthrough:alias": "gpo:1"}},
                                     "spec.extraSpecs[pci_passthrough:alias]", "defined are gpu, near gpu, nic"),
    "no list of aliases": ({"extraSpecs": {"pci_passthrough:alias": "gpu"}},
                           "spec.extraSpecs[pci_passthrough:alias]", "no list of alias:count"),
    "more than a machine can have": ({"extraSpecs": {"pci_passthrough:alias": "gpu:33"}},
                                     "spec.extraSpecs[pci_passthrough:alias]", "one machine can have 32"),
    "a policy that is none": ({"extraSpecs": {"hw:pci_numa_affinity_policy": "close"}},
                              "spec.extraSpecs[hw:pci_numa_affinity_policy]", "none of required"),
    "a group policy that is none": ({"extraSpecs": {"group_policy": "apart"}}, "spec.extraSpecs[group_policy]", "isolate"),
    "more cells than CPUs": ({"extraSpecs": {"hw:numa_nodes": "3"}}, "spec.extraSpecs[hw:numa_nodes]", "1 to 2"),
    "no CPUs": ({"vcpus": 0}, "spec.vcpus", "from 1"),
    "memory that is no amount": ({"memory": "much"}, "spec.memory", "such as 2Gi"),
    "an extra spec that is no text": ({"extraSpecs": {"hw:numa_nodes": 2}}, "spec.extraSpecs.hw:numa_nodes", "must be text"),
    "a field of the wrong kind": ({"vcpus": "two"}, "spec.vcpus", "whole number"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_flavor_that_must_not_be_is_refused_at_the_door(name: str) -> None:
    spec, field, words = REFUSED[name]
    async with scene() as here:
        with pytest.raises(Invalid) as caught:
            await here.create(kinds.FLAVOR, "f", {"vcpus": 2, "memory": "1Gi", **spec})
        assert [cause.field for cause in caught.value.causes] == [field]
        assert words in caught.value.message


async def test_all_that_is_wrong_with_a_flavor_is_said_at_once() -> None:
    """Amounts, extra specs and fields of the wrong kind alike."""
    async with scene() as here:
        with pytest.raises(Invalid) as caught:
            await here.create(kinds.FLAVOR, "f", {"memory": "much", "disk": 7, "extraSpecs": {
                "pci_passthrough:alias": "gpo:1", "group_policy": "apart", "hw:numa_nodes": 2, "hw:cpu_policy": "mine"}})
        assert [cause.field for cause in caught.value.causes] == [
            "spec.disk", "spec.extraSpecs.hw:numa_nodes", "spec.vcpus", "spec.memory", "spec.extraSpecs[pci_passthrough:alias]",
            "spec.extraSpecs[group_policy]", "spec.extraSpecs[hw:cpu_policy]"]


async def test_a_flavor_whose_alias_is_no_longer_configured_makes_no_machines_but_can_be_changed(tmp_path: Path) -> None:
    async with scene(data=tmp_path) as here:
        await flavor(here, "large", "gpu:1")
    async with scene(CONFIG.replace("name: gpu,", "name: gpux,"), data=tmp_path) as here:
        await machine(here, "blue", "large")
        await here.waits("blue", "Synchronized", "flavor large", "PCI alias gpu is not defined")
        await here.store.patch(kinds.FLAVOR, "large", {"metadata": {"labels": {"old": "yes"}}})
        with pytest.raises(Invalid, match="PCI alias gpu is not defined; defined are gpux"):
            await here.store.patch(kinds.FLAVOR, "large", {"spec": {"vcpus": 3}})
        await here.store.patch(kinds.FLAVOR, "large", {"spec": {"extraSpecs": {"pci_passthrough:alias": "gpux:1"}}})
        assert len(addresses(await here.running("blue"))) == 1


async def test_a_machine_says_its_flavor_once_and_for_all() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        await machine(here, "blue", "large")
        blue = await here.running("blue")
        with pytest.raises(Invalid, match=r"spec\.flavor: Invalid value: field is immutable"):
            await here.store.replace(kinds.INSTANCE, {**blue, "spec": {**blue["spec"], "flavor": {"name": "small"}}})
        with pytest.raises(Invalid, match="so is called the claim of the flavor"):
            await machine(here, "green", "large", resourceClaims=[{"name": "flavor", "resourceClaimName": "x"}])


async def test_a_virtual_machine_passes_its_flavor_on() -> None:
    """Each start is a machine of its own, made from the flavor as it is then; when it is stopped the devices are free."""
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        await here.create(kinds.MACHINE, "blue", {"runStrategy": "Always", "template": {"spec": {
            "flavor": {"name": "large"}, "domain": {}}}})
        first = await here.running("blue")
        assert len(addresses(first)) == 1
        await here.store.patch(kinds.MACHINE, "blue", {"spec": {"runStrategy": "Halted"}}, "here")
        await here.gone("blue")
        assert await here.bookings() == []
        await here.store.patch(kinds.FLAVOR, "large", {"spec": {"extraSpecs": {"pci_passthrough:alias": "nic:2"}}})
        await here.store.patch(kinds.MACHINE, "blue", {"spec": {"runStrategy": "Always"}}, "here")
        assert len(addresses(await here.running("blue"))) == 2


async def test_a_status_that_was_lost_is_written_again_from_the_page() -> None:
    async with scene() as here:
        await flavor(here, "near", "near gpu:1", extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "near")
        blue = await here.running("blue")
        (claim,) = await here.all(kinds.RESOURCE_CLAIM)
        before = claim["status"]["allocation"]
        await here.store.replace(kinds.RESOURCE_CLAIM, {**claim, "status": {}}, subresource="status")

        async def again() -> Object | None:
            (now,) = await here.all(kinds.RESOURCE_CLAIM)
            return (now.get("status") or {}).get("allocation")

        after = await here.reach(again, "the allocation is back")
        assert after["devices"]["results"] == before["devices"]["results"]
        assert after["devices"]["config"][-1] == before["devices"]["config"][-1]  # where the guest's cells lie
        assert (await here.running("blue"))["status"]["flavor"] == blue["status"]["flavor"]


async def test_why_tells_of_cells_and_of_a_flavor_that_is_missing() -> None:
    async with scene() as here:
        await machine(here, "green", "nothing")
        await flavor(here, "near", "near gpu:1", extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "near")
        await here.running("blue")
        await here.waits("green", "Synchronized", "nothing")
        facts = await _facts(here)
        (claim,) = facts.claims
        assert any("NUMA cells 0 of oak, with 2 CPUs of cell 0 (0-1) for itself" in line
                   for line in explain.claim(facts, claim).text())
        green = await here.find(kinds.INSTANCE, "green")
        assert green is not None
        assert explain.instance(facts, green).text() == [
            "vmi/green has no pod yet: flavor nothing does not exist; the machine goes on when it does"]


@pytest.mark.cluster
async def test_kube_scheduler_gives_what_the_aliases_mean(control_plane: kubernetes.Cluster) -> None:
    """The claim is all that it knows: class, traits and kind by selectors, isolation and one NUMA node by constraints."""
    word = f"s{uuid.uuid4().hex[:8]}"
    hosts = HOSTS.replace("name: elm", f"name: {word}-elm").replace("name: oak", f"name: {word}-oak")
    settings = config.parse(CONFIG)
    played = app.simulated_hosts(simulate.parse(hosts).hosts, config=settings)
    async with app.cluster(control_plane.access(), hosts=played, config=settings) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": word}})
        here = Scene(product, word, None)
        try:
            pinned = {"group_policy": "isolate", "hw:cpu_policy": "dedicated"}
            await flavor(here, f"{word}-apart", "gpu:1, nic:2", extraSpecs={"group_policy": "isolate"})
            await flavor(here, f"{word}-near", "near gpu:2", extraSpecs=pinned)
            await machine(here, "blue", f"{word}-apart")
            blue = await here.running("blue")
            assert [entry["name"] for entry in blue["status"]["deviceStatus"]["hostDeviceStatuses"]] == [
                "gpu-0", "nic-0", "nic-1"]
            gpu, *nics = addresses(blue)
            assert gpu in ("0000:17:00.0", "0000:ca:00.0")
            assert sorted(nic[:7] for nic in nics) == ["0000:3b", "0000:d8"]
            await machine(here, "green", f"{word}-near")  # two GPUs on one NUMA node: no host has them

            async def refused() -> str | None:
                told = await here.condition("green", "PodScheduled")
                return str(told["message"]) if told and told["status"] == "False" else None

            assert "cannot allocate all claims" in await here.reach(refused, "green waits")
            assert await here.events("FlavorNotExact") == [
                f"flavor {word}-near asks for more than kube-scheduler knows of: dedicated CPUs are not booked, so another "
                "machine may have the same"]
            await here.check_books()
            for name in ("blue", "green"):
                await here.delete(kinds.INSTANCE, name)
            await here.gone("blue", "green")
            await here.empty()
        finally:
            await _clear(here)
            for name in (f"{word}-apart", f"{word}-near"):
                with contextlib.suppress(NotFound):
                    await here.store.delete(kinds.FLAVOR, name)
    await asyncio.sleep(0.03)  # TLS says goodbye in the background


async def _facts(here: Scene) -> Facts:
    seen = {"instances": kinds.INSTANCE, "pods": kinds.POD, "claims": kinds.RESOURCE_CLAIM, "classes": kinds.DEVICE_CLASS,
            "slices": kinds.RESOURCE_SLICE, "pages": kinds.LEDGER_PAGE, "nodes": kinds.NODE, "trees": kinds.PROVIDER_TREE,
            "inventories": kinds.HOST_INVENTORY}
    found: dict[str, Any] = {name: (await here.store.list(kind)).items for name, kind in seen.items()}
    return Facts(**found)


async def test_a_device_that_was_assigned_to_a_pod_is_not_given_to_a_flavor() -> None:
    """Nor is one whose pod waits for something else than the device; and when that pod goes anybody may have it."""
    async with scene() as here:
        await here.create(kinds.DEVICE_CLASS, "gpu", {"extendedResourceName": "example.com/gpu", "selectors": [
            {"cel": {"expression": 'device.driver == "pci.outfitter.dev"'}}]})
        await flavor(here, "one", "gpu:1")
        await here.create(kinds.POD, "huge", {"containers": [{
            "name": "main", "resources": {"requests": {"cpu": "100"}},
            "assignedDevices": [{"resourceName": "example.com/gpu", "deviceIDs": ["oak/pci-0000-17-00-0"]}]}]})
        await machine(here, "blue", "one", nodeSelector={"kubernetes.io/hostname": "oak"})
        await here.waits("blue", "PodScheduled", "kept for pod/huge in here, which was given it beforehand")
        await here.delete(kinds.POD, "huge")
        assert addresses(await here.running("blue")) == ["0000:17:00.0"]


async def test_cpus_of_a_cell_that_became_free_go_to_who_waits_longest() -> None:
    async with scene() as here:
        await flavor(here, "cpus", vcpus=4, extraSpecs={"hw:cpu_policy": "dedicated"})
        order = ["m3", "m1", "m2"]
        for name in order:
            await machine(here, name, "cpus", nodeSelector={"kubernetes.io/hostname": "oak"})
            await here.phase(name, "Running" if name == "m3" else "Scheduling")
        for before, after in (("m3", "m1"), ("m1", "m2")):
            await here.delete(kinds.INSTANCE, before)
            assert (await here.running(after))["status"]["flavor"]["pinned"] == {"0": 4}
            page = await book.read(here.store, "oak")
            assert [booking.amount["cells"] for booking in page.bookings if booking.amount.get("cells")] == [{"0": 4}]
