"""One write of a VM removes a device and adds another: with a claim of its own, with the same claim, with the same name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from tests.node.hotplug.test_device_hotplug import GPU, TEMPLATE, Story, running

NAMED = {"resourceClaimName": "mine"}


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    async with running(tmp_path) as made:
        await made.begin()
        await made.store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": GPU})
        yield made


def entry(name: str, claim: str) -> Object:
    return {"name": name, "claimName": claim, "requestName": "gpu"}


async def write(story: Story, claims: dict[str, dict[str, str]], *gpus: Object, devices: tuple[Object, ...] = ()) -> None:
    """All lists at once."""
    await story.change({"resourceClaims": [{"name": name, **source} for name, source in claims.items()], "domain": {
        "devices": {"gpus": list(gpus) or None, "hostDevices": list(devices) or None}}})


async def keeps(story: Story) -> None:
    story.hypervisor.keeping_devices.add((await story.vmi())["metadata"]["uid"])


async def phases(story: Story) -> list[tuple[str, str | None]]:
    """Names and phases of the plugged devices in the status, GPUs first."""
    return [(name, (found.get("hotplugDevice") or {}).get("phase")) for list_ in ("gpuStatuses", "hostDeviceStatuses")
            for name, found in (await story.statuses(list_)).items()]


async def test_another_device_with_another_claim(story: Story) -> None:
    await write(story, {"a": TEMPLATE}, entry("a", "a"))
    [claim], [pod] = [name for name in await story.claims() if name != "mine"], await story.pods()
    await write(story, {"b": TEMPLATE}, entry("b", "b"))
    await story.settle(5)
    assert (await story.plugged(), await phases(story)) == (["ua-dra-gpu-b"], [("b", "Attached")])
    assert claim not in await story.claims()
    assert pod not in await story.pods()
    assert (len(await story.held()), len(await story.pods()), len(await story.claims())) == (1, 1, 2)
    assert (await story.waits(), await story.restart_required()) == ({}, "")
    await write(story, {})
    await story.settle(5)
    assert (await story.plugged(), await story.held(), await story.pods(), await story.claims()) == ([], [], [], ["mine"])


async def test_another_device_on_a_full_host_gets_what_the_first_one_had(story: Story) -> None:
    await story.vm("other", resourceClaims=[{"name": "gpu", **TEMPLATE}], domain={
        "memory": {"guest": "1Gi"}, "devices": {"gpus": [entry("gpu", "gpu")]}})
    await write(story, {"a": TEMPLATE}, entry("a", "a"))
    held = await story.held()
    assert len(held) == 2
    await keeps(story)
    await write(story, {"b": TEMPLATE}, entry("b", "b"))
    await story.settle(10)
    assert (await story.plugged(), await story.held()) == (["ua-dra-gpu-a"], held)
    assert (await story.waits())["reason"] == "NoFreeDeviceOnHost"
    story.hypervisor.keeping_devices.clear()
    await story.settle(20)
    assert (await story.plugged(), await story.held(), await story.waits()) == (["ua-dra-gpu-b"], held, {})
    assert len(await story.pods()) == 1


LISTS = {"in the same list": (("b", "gpus"), "ua-dra-gpu-b"),
         "in the other list": (("b", "hostDevices"), "ua-dra-hostdevice-b"),
         "in the other list, of the same name": (("a", "hostDevices"), "ua-dra-hostdevice-a")}


@pytest.mark.parametrize("source", [TEMPLATE, NAMED], ids=["from a template", "by name"])
@pytest.mark.parametrize(("new", "alias"), LISTS.values(), ids=LISTS)
async def test_another_entry_of_the_same_claim_is_plugged_once_the_first_is_gone(
    story: Story, source: dict[str, str], new: tuple[str, str], alias: str
) -> None:
    name, list_ = new
    await write(story, {"c": source}, entry("a", "c"))
    held, pods = await story.held(), await story.pods()
    await keeps(story)
    if list_ == "gpus":
        await write(story, {"c": source}, entry(name, "c"))
    else:
        await write(story, {"c": source}, devices=(entry(name, "c"),))
    await story.settle(40)
    assert await story.plugged() == ["ua-dra-gpu-a"]
    assert await phases(story) == [("a", "Attached")], "the new one is not reported before it is there"
    waits = await story.waits()
    assert waits["reason"] == "DeviceKeptByGuest"
    assert f"{name}: claim c is that of a, which the guest has not released yet" in waits["message"]
    assert len(await story.events("DevicePlugged")) == 1
    assert (await story.held(), await story.pods(), await story.restart_required()) == (held, pods, "")
    story.hypervisor.keeping_devices.clear()
    await story.settle(10)
    assert (await story.plugged(), await phases(story)) == ([alias], [(name, "Attached")])
    assert (await story.waits(), await story.restart_required(), await story.held()) == ({}, "", held), "the device is the same"
    unplugged = await story.events("DeviceUnplugged")
    assert unplugged == ["GPU a is unplugged on rack"]
    assert len(await story.events("DevicePlugged")) == 2
    await write(story, {})
    await story.settle(5)
    assert (await story.plugged(), await story.held(), await story.pods(), await story.claims()) == ([], [], [], ["mine"])


async def test_another_entry_of_a_claim_that_the_vm_was_started_with(story: Story) -> None:
    await story.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, "default")
    await story.settle(5)
    await write(story, {"c": TEMPLATE}, entry("a", "c"))
    await story.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Always"}}, "default")
    await story.settle(5)
    held = await story.held()
    await keeps(story)
    await write(story, {"c": TEMPLATE}, entry("b", "c"))
    await story.settle(10)
    assert (await story.plugged(), await phases(story)) == (["ua-dra-gpu-a"], [("a", None)])
    story.hypervisor.keeping_devices.clear()
    await story.settle(10)
    assert (await story.plugged(), await phases(story)) == (["ua-dra-gpu-b"], [("b", "Attached")])
    assert (await story.held(), await story.pods()) == (held, []), "the claim is the launcher pod's"


async def test_the_same_entry_with_another_claim_waits_for_a_restart(story: Story) -> None:
    await write(story, {"a": TEMPLATE}, entry("a", "a"))
    before = (await story.plugged(), await story.held(), await story.pods(), await story.claims(), await phases(story))
    await write(story, {"b": TEMPLATE}, entry("a", "b"))
    await story.settle(10)
    assert (await story.plugged(), await story.held(), await story.pods(), await story.claims(), await phases(story)) == before
    assert "spec.template.spec.domain.devices.gpus[a].claimName" in await story.restart_required()
    await restart(story)
    assert (await story.plugged(), await story.restart_required(), await story.pods()) == (["ua-dra-gpu-a"], "", [])
    assert len(await story.held()) == 1
    [claim] = (await story.vmi())["spec"]["resourceClaims"]
    assert claim == {"name": "b", **TEMPLATE}


async def test_another_claim_of_the_same_name_waits_for_a_restart(story: Story) -> None:
    """The claims of a VMI only grow: a device of the first claim would not be what the template says."""
    await write(story, {"c": TEMPLATE}, entry("a", "c"))
    await write(story, {"c": NAMED}, entry("b", "c"))
    await story.settle(10)
    assert await story.plugged() == [], "a is unplugged, and b is not plugged"
    assert (await story.held(), await story.pods()) == ([], [])
    message = await story.restart_required()
    assert "gpus[b] (DeviceNotPlugged: b: claim c of the running VM is resourceClaimTemplateName one-gpu" in message, message
    await restart(story)
    assert (await story.plugged(), await story.restart_required()) == (["ua-dra-gpu-b"], "")
    [found] = [claim for claim in (await story.store.list(kinds.RESOURCE_CLAIM, "default")).items
               if (claim.get("status") or {}).get("allocation")]
    assert found["metadata"]["name"] == "mine"


async def restart(story: Story) -> None:
    for strategy in ("Halted", "Always"):
        await story.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": strategy}}, "default")
        await story.settle(5)
