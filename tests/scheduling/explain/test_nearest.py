"""What `why` names as nearest, as rejected and as to be ended, with several requests, aliases and NUMA nodes; on simulated
hosts."""

from __future__ import annotations

from typing import Any

from outfitter.api import kinds
from outfitter.api.rejection_text import request_name
from outfitter.scheduling.explain import grouping, vm
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.placement import HostRejection
from tests.controllers.numa_hosts import CONFIG, HOSTS, flavor, machine, scene
from tests.controllers.scenario import Scene
from tests.rejected import Code, no
from tests.scheduling.builders import too_few

ELM: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "elm"}}
PINNED = {"hw:numa_nodes": "1", "hw:cpu_policy": "dedicated"}
FAST = CONFIG + "- {name: fast, resource_class: gpu, traits: hopper}\n"
SAYS = 'device.attributes["pci.outfitter.dev"]'
FOUR_GPUS = """
hosts:
- name: elm
  numa: [{id: 0, cpus: 0-3, memory: 32Gi}, {id: 1, cpus: 4-7, memory: 32Gi}]
  pci:
  - {address: 0000:17:00.0, vendor: 10de, product: 2235, class: 030000, numa: 0}
  - {address: 0000:18:00.0, vendor: 10de, product: 2235, class: 030000, numa: 1}
  - {address: 0000:19:00.0, vendor: 10de, product: 2235, class: 030000, numa: 0}
"""


async def why(scene: Scene, name: str) -> Explanation:
    await scene.settle()
    found = await scene.find(kinds.VMI, name)
    assert found is not None
    return vm.instance(await scene.cluster_objects(), found)


def hosts(answer: Explanation) -> dict[str, HostRejection]:
    assert answer.waiting is not None
    return dict(answer.waiting.hosts)


def nearest(answer: Explanation) -> list[tuple[str, str, str]]:
    assert answer.waiting is not None
    return [(request_name(one.detail), host, one.device.device if one.device else "")
            for host, one in grouping.nearest_devices(answer.waiting.hosts)]


async def test_the_nearest_device_is_one_for_the_alias_that_nothing_matches() -> None:
    """There are NICs; it is the GPUs that lack a trait. What is rejected for the NIC alone is no help."""
    async with scene(FAST) as elm_and_oak:
        await flavor(elm_and_oak, "both", "nic:1,fast:1")
        await machine(elm_and_oak, "blue", "both")
        answer = await why(elm_and_oak, "blue")
        assert nearest(answer) == [("alias fast", "elm", "pci-0000-17-00-0")]
        found = hosts(answer)
        assert [one["alias"] for one in found["elm"].rejections] == ["fast"]
        assert [one["alias"] for one in found["oak"].rejections] == ["nic", "fast"], "oak has neither"
        rejected = {(one["alias"], one.device.device if one.device else "") for one in found["elm"].obstacles}
        assert len(rejected) == 8, "the GPUs for both aliases, the VFs for fast, each with the alias that rejects it"
        assert sorted(alias for alias, _ in rejected) == 6 * ["fast"] + 2 * ["nic"]


async def test_the_nearest_device_is_one_for_the_request_that_nothing_matches() -> None:
    async with scene("device_spec: [{vendor_id: 10de}, {vendor_id: '8086'}]", HOSTS) as elm_and_oak:
        for name, kind in (("vf", '"VF"'), ("pci", '"PCI"')):
            await elm_and_oak.create(kinds.DEVICE_CLASS, name, {"selectors": [{"cel": {
                "expression": f'device.driver == "pci.outfitter.dev" && {SAYS}.kind == {kind}'}}]})
        nic = [{"cel": {"expression": f'{SAYS}.vendor == "8086" && {SAYS}.product == "1889"'}}]
        gpu = [{"cel": {"expression": f'{SAYS}.product == "20b0"'}}]
        await elm_and_oak.create(kinds.RESOURCE_CLAIM, "mine", {"devices": {"requests": [
            {"name": "nic", "exactly": {"deviceClassName": "vf", "selectors": nic}},
            {"name": "gpu", "exactly": {"deviceClassName": "pci", "selectors": gpu}}]}})
        await elm_and_oak.machine("blue", {"name": "d", "claimName": "network", "requestName": "gpu"}, claim="mine", **ELM)
        answer = await why(elm_and_oak, "blue")
        assert nearest(answer) == [("request gpu", "elm", "pci-0000-17-00-0")]
        assert {one["request"] for one in hosts(answer)["elm"].obstacles} == {"nic", "gpu"}


async def test_a_holder_on_another_numa_node_is_not_named_as_the_one_to_end() -> None:
    """red has the GPU of cell 0, where CPUs are free; green that of cell 1, all of whose CPUs are taken."""
    async with scene() as elm:
        await flavor(elm, "near", "near gpu:1", extraSpecs=PINNED)
        await flavor(elm, "cpus", vcpus=4, extraSpecs=PINNED)
        await flavor(elm, "plain", "gpu:1")
        for name, kind in (("red", "near"), ("green", "plain"), ("cpus", "cpus")):
            await machine(elm, name, kind, **ELM)
            await elm.running(name)
        await machine(elm, "blue", "near", **ELM)
        answer = await why(elm, "blue")
        found = hosts(answer)["elm"]
        assert [one.holder.purpose for one in found.taken if one.holder] == ["vmi/red"]
        [far] = [one for one in found.obstacles if one.code is Code.NUMA_TOO_FAR]
        assert (far["numa"], far.holder.purpose if far.holder else "") == (1, "vmi/green")
        assert [("vmi/red" in todo, "vmi/green" in todo) for todo in answer.todo] == [(True, False)]
        await elm.delete(kinds.VMI, "red")
        await elm.running("blue")


async def test_of_several_holders_only_those_that_must_end_are_named() -> None:
    """Two GPUs of one NUMA node are wanted, and the first holders have one of each node."""
    async with scene("device_spec: [{vendor_id: 10de}]", FOUR_GPUS) as elm:
        await elm.create(kinds.DEVICE_CLASS, "gpu", {"selectors": [{"cel": {
            "expression": 'device.driver == "pci.outfitter.dev"'}}]})
        for name in ("a", "b", "c"):
            await elm.create(kinds.RESOURCE_CLAIM, name, {"devices": {"requests": [
                {"name": "g", "exactly": {"deviceClassName": "gpu"}}]}})
            await elm.machine(name, {"name": "d", "claimName": "network", "requestName": "g"}, claim=name)
            await elm.running(name)
        holders = {booking.device.device: booking.holder.purpose for booking in await elm.bookings()}
        await elm.create(kinds.RESOURCE_CLAIM, "two", {"devices": {
            "requests": [{"name": "g", "exactly": {"deviceClassName": "gpu", "count": 2}}],
            "constraints": [{"matchAttribute": "resource.kubernetes.io/numaNode"}]}})
        await elm.machine("blue", {"name": "d", "claimName": "network", "requestName": "g"}, claim="two")
        [todo] = (await why(elm, "blue")).todo
        named = {device for device, holder in holders.items() if holder in todo.split()}
        assert named == {"pci-0000-17-00-0", "pci-0000-19-00-0"}


def test_unlike_hosts_are_not_grouped() -> None:
    def host(far: tuple[int, ...], *rejections: Any) -> HostRejection:
        return HostRejection(rejections, far)

    memory = no(Code.INSUFFICIENT_RESOURCE, resource="memory", wanted=4, free=1, total=8)
    found = grouping.groups([
        ("held", host((1, 2), too_few(2, 2, 0))), ("held-too", host((1, 1), too_few(2, 3, 1))),
        ("has-one", host((2, 1, 1), too_few(2, 1, 1))), ("has-none", host((2, 2, 2), too_few(2, 1, 0))),
        ("used", host((3, 1), memory)), ("too-small", host((3, 1), memory.with_detail(total=2))),
        ("used-too", host((3, 1), memory.with_detail(free=0)))])
    assert [group.hosts for group in found] == [
        ("held-too", "held"), ("has-one",), ("has-none",), ("used", "used-too"), ("too-small",)]
