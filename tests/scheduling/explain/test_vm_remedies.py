"""What helps a VM for which waiting does not help, on simulated hosts: each remedy is carried out, and the VM runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outfitter.api import kinds
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.explanation import Explanation
from tests.controllers.numa_hosts import flavor, machine, scene
from tests.controllers.scenario import Scene
from tests.rejected import Code

GPU = "10de, product: 2235, class: 030000, driver: vfio-pci"
OAK = f"""
hosts:
- name: oak
  pci:
  - {{address: 0000:17:00.0, vendor: {GPU}, pcieRoot: pci0000:10}}
"""
OTHER_CARD = OAK.replace("0000:17:00.0", "0000:99:00.0")
CONFIG = "device_spec: [{vendor_id: 10de, product_id: 2235}]"
MISTAKEN = f"{CONFIG}\nalias: [{{name: gpu, vendor_id: 10de, product_id: '2236'}}]"
CORRECTED = MISTAKEN.replace("2236", "2235")
KEEPS: dict[str, Any] = {
    "runStrategy": "Always",
    "resourceClaimTemplates": [{"name": "dev", "spec": {"spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}}],
    "template": {"spec": {"domain": {"devices": {"gpus": [{"name": "g", "claimName": "dev", "requestName": "gpu"}]}}}}}


async def why(scene: Scene, name: str) -> Explanation:
    objects, found = await scene.cluster_objects(), await scene.find(kinds.VM, name)
    if found is not None:
        return vm.vm(objects, found)
    instance = await scene.find(kinds.VMI, name)
    assert instance is not None
    return vm.instance(objects, instance)


async def test_the_device_of_a_claim_that_the_vm_keeps_is_gone(tmp_path: Path) -> None:
    async with scene(CONFIG, OAK, tmp_path) as first:
        await first.create(kinds.DEVICE_CLASS, "gpu", {"selectors": [{"cel": {
            "expression": 'device.driver == "pci.outfitter.dev"'}}]})
        await first.create(kinds.VM, "keep", KEEPS)
        await first.running("keep")
        assert (await why(first, "keep")).rejections == ()
        await first.store.patch(kinds.VM, "keep", {"spec": {"runStrategy": "Halted"}}, "here")
        await first.gone("keep")
        [claim] = await first.all(kinds.RESOURCE_CLAIM)
    async with scene(CONFIG, OTHER_CARD, tmp_path) as later:
        await later.store.patch(kinds.VM, "keep", {"spec": {"runStrategy": "Always"}}, "here")
        name = claim["metadata"]["name"]

        async def told() -> bool:
            found = await why(later, "keep")
            return found.state == "Waiting" and [(one.code, one["claim"]) for one in found.rejections] == [
                (Code.DEVICE_MISSING, name)]

        await later.reach(told, "the device is named, though a free one is there")
        assert later.clock is not None
        for _ in range(70):  # the launch fails, and the host is tried again
            later.clock.advance(1)
            await later.settle()
        assert await told(), "it does not fit, whatever the scheduler says"
        found = await why(later, "keep")
        [lost] = found.rejections
        assert lost.device is not None
        [result] = claim["status"]["allocation"]["devices"]["results"]
        assert (lost.device.pool, lost.device.device) == ("oak", result["device"])
        [todo] = found.todo
        assert f"kubectl delete resourceclaim {name} -n here" in todo
        await later.delete(kinds.RESOURCE_CLAIM, name)
        await later.settle()
        later.clock.advance(60)  # until the host that failed is tried again
        await later.running("keep")
        assert ((await why(later, "keep")).rejections, (await why(later, "keep")).todo) == ((), ())


async def test_an_alias_that_was_corrected_after_the_vm_was_created(tmp_path: Path) -> None:
    async with scene(MISTAKEN, OAK, tmp_path) as first:
        await flavor(first, "small", "gpu:1")
        await machine(first, "blue", "small")
        await first.create(kinds.VM, "green", {"runStrategy": "Always", "template": {"spec": {
            "flavor": {"name": "small"}, "domain": {}}}})
        for name in ("blue", "green"):
            await first.rejected(name, Code.NO_MATCH)
            assert (await why(first, name)).todo == (), "the alias is as it was"
    async with scene(CORRECTED, OAK, tmp_path) as later:
        await later.settle()
        blue, green = await why(later, "blue"), await why(later, "green")
        assert (blue.state, blue.codes, green.codes) == ("Waiting", (Code.NO_MATCH,), (Code.NO_MATCH,))
        assert [todo.partition(",")[0] for todo in blue.todo] == ["outfit delete vmi blue"]
        assert [todo.partition(":")[0] for todo in green.todo] == ["outfit vm restart green"]
        await later.delete(kinds.VMI, "blue")
        await later.gone("blue")
        await machine(later, "blue", "small")
        await later.running("blue")
