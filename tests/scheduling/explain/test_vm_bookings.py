"""VMs of KubeVirt, which writes no device status: their devices are what the pages have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outfitter.api import kinds
from outfitter.scheduling.explain import vm
from tests.controllers.numa_hosts import scene
from tests.scheduling.explain.test_vm_remedies import CONFIG, KEEPS, OAK

OURS = ("deviceStatus", "conditions")  # what KubeVirt does not write, or writes otherwise


async def test_a_running_vm_without_device_status_has_what_is_prepared_for_its_pod(tmp_path: Path) -> None:
    async with scene(CONFIG, OAK, tmp_path) as host:
        await host.create(kinds.DEVICE_CLASS, "gpu", {"selectors": [{"cel": {
            "expression": 'device.driver == "pci.outfitter.dev"'}}]})
        await host.create(kinds.VM, "keep", KEEPS)
        vmi = await host.running("keep")
        bare = {**vmi, "status": {key: value for key, value in vmi["status"].items() if key not in OURS}}
        objects = await host.cluster_objects()
        found = vm.instance(objects, bare)
        assert (found.state, found.sentence) == ("Running", "runs on oak: nothing is wrong")
        [line] = found.lines
        assert line.startswith("pci-0000-10-17-00-0 on oak for request gpu: prepared since")
        assert vm.instance(replace(objects, pages=()), bare).lines == ("devices not known yet: g",)
