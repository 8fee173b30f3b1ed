"""A VM whose guest keeps a device that was unplugged (DeviceKeptByGuest) stops, restarts and is deleted as every VM: all is
released, and nothing of it is left at the next start. `outfit vm` and virtctl request the same subresources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter.api import conditions, kinds
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.errors import NotFound
from tests.apiserver.asgi import Client
from tests.node.hotplug.test_device_hotplug import TEMPLATE, Story, running

PLACE = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/blue"


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    """With a device that its guest keeps."""
    async with running(tmp_path) as made:
        await made.begin()
        await made.plug("fast", **TEMPLATE)
        made.hypervisor.keeping_devices.add((await made.vmi())["metadata"]["uid"])
        await made.unplug("fast")
        await made.settle(40)
        assert (await made.waits())["reason"] == "DeviceKeptByGuest"
        assert (await made.plugged(), len(await made.held()), len(await made.pods())) == (["ua-dra-gpu-fast"], 1, 1)
        yield made


async def request(story: Story, action: str, body: object = None) -> None:
    """As virtctl and `outfit vm` request it."""
    client = Client(App(story.store, tokens={"admin": User("admin", (MASTERS,))}))
    answer = await client.put(f"{PLACE}/{action}", body if body is not None else {})
    assert answer.status == 202, answer.json
    await story.settle(10)


async def nothing_is_left(story: Story) -> None:
    assert (await story.pods(), await story.claims(), await story.held()) == ([], [], [])


@pytest.mark.parametrize("body", [{}, {"gracePeriodSeconds": 0}], ids=["restart", "by force"])
async def test_it_restarts_without_the_device(story: Story, body: object) -> None:
    before = (await story.vmi())["metadata"]["uid"]
    await request(story, "restart", body)
    vmi = await story.vmi()
    assert vmi["metadata"]["uid"] != before
    assert vmi["status"]["phase"] == "Running"
    await nothing_is_left(story)
    assert (await story.plugged(), await story.statuses(), await story.waits()) == ([], {}, {})
    assert not vmi["spec"].get("resourceClaims"), "the claims of the last start are not those of this one"
    assert await story.restart_required() == ""
    await story.plug("fast", **TEMPLATE)
    assert await story.plugged() == ["ua-dra-gpu-fast"], "the device is free, and its name too"


async def test_it_stops_and_releases_all(story: Story) -> None:
    await request(story, "stop")
    with pytest.raises(NotFound):
        await story.vmi()
    assert await story.hypervisor.domains() == {}
    await nothing_is_left(story)
    vm = await story.store.get(kinds.VM, "blue", "default")
    assert conditions.find(vm, "DevicesPlugged") is None
    await request(story, "start")
    assert (await story.plugged(), await story.waits(), await story.restart_required()) == ([], {}, "")


async def test_it_stops_after_its_grace_period_if_its_guest_ignores_that_too(story: Story) -> None:
    story.hypervisor._monotonic = story.clock.monotonic
    story.hypervisor.ignoring_shutdown.add((await story.vmi())["metadata"]["uid"])
    await request(story, "stop")
    assert await story.plugged() == ["ua-dra-gpu-fast"]
    assert (len(await story.held()), len(await story.pods())) == (1, 1), "it is held until then"
    await story.settle(200)
    assert await story.hypervisor.domains() == {}
    await nothing_is_left(story)


async def test_a_device_that_is_wanted_again_is_there_after_the_restart(story: Story) -> None:
    await story.plug("fast", **TEMPLATE)
    await request(story, "restart")
    assert (await story.plugged(), await story.waits(), len(await story.held())) == (["ua-dra-gpu-fast"], {}, 1)
    assert await story.pods() == [], "it is the launcher pod's from the start"
    assert "hotplugDevice" not in (await story.statuses())["fast"]


async def test_it_is_deleted(story: Story) -> None:
    await story.store.delete(kinds.VM, "blue", "default")
    await story.settle(60)
    await nothing_is_left(story)
    assert await story.hypervisor.domains() == {}
