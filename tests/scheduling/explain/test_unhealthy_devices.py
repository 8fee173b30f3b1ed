"""A pod or VM that runs with an unhealthy device is not one of which nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.conditions import DEVICES_HEALTHY
from outfitter.api.rejection import RejectionCode
from outfitter.api.rejection_text import render
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.pod import pod
from tests.controllers.numa_hosts import scene
from tests.scheduling.explain.test_vm_remedies import CONFIG, KEEPS, OAK

WHY = "example.com/gpu/oak/g0 is unhealthy: its device plugin reports it as unhealthy"
UNHEALTHY = {"type": DEVICES_HEALTHY, "status": "False", "reason": "DeviceUnhealthy", "message": WHY}


@pytest.mark.parametrize("kind", [kinds.POD, kinds.VMI])
async def test_an_unhealthy_device_is_named(tmp_path: Path, kind: kinds.Kind) -> None:
    async with scene(CONFIG, OAK, tmp_path) as host:
        await host.create(kinds.DEVICE_CLASS, "gpu", {"selectors": [{"cel": {
            "expression": 'device.driver == "pci.outfitter.dev"'}}]})
        await host.create(kinds.VM, "keep", KEEPS)
        found = await host.running("keep")
        objects = await host.cluster_objects()
        if kind == kinds.POD:
            [found] = objects.pods
        found = {**found, "status": {**found["status"], "conditions": [*found["status"].get("conditions", ()), UNHEALTHY]}}
        answer = pod(objects, found) if kind == kinds.POD else vm.instance(objects, found)
        assert (answer.state, "unhealthy device" in answer.sentence) == ("Running", True)
        assert WHY in answer.lines
        assert [(each.code, render(each)) for each in answer.rejections] == [(RejectionCode.DEVICE_UNHEALTHY, WHY)]
        assert answer.todo == ("see since when, and what else has one: outfit devices --node oak",)
