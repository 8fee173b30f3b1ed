"""One truth: a claim's status is what kube-scheduler allocated, the page what is prepared. A device that was freed while it is
still prepared, and allocated again, is refused to the second claim until the first is unprepared."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outfitter.api import kinds
from outfitter.errors import Conflict
from outfitter.ledger import book
from outfitter.store.memory import Memory
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import HOST, VF0, VF1, DriverHost
from tests.node.kubelet.kubelet_client import KubeletClient

CONTESTED = {VF0: ["outfitter.dev/contested"]}


@pytest.fixture(params=["mirrored", "without the mirror"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[DriverHost]:
    client = KubeletClient(kubelet_client.our_definitions())
    async with driver_host.running(client, mirror=request.param == "mirrored") as there:
        yield there


async def test_an_allocation_is_booked_and_then_prepared(node: DriverHost) -> None:
    await node.store.create(kinds.POD, {"metadata": {"name": "web", "namespace": "here"}, "spec": {
        "nodeName": HOST, "containers": [{"name": "it", "image": "it"}]}})
    info, claim = await node.registered(), await node.allocate("gold", VF0, pod="web")
    assert (await node.client.prepare(info, claim))[claim["uid"]].error == ""
    booking = (await node.bookings())["gold", VF0]
    assert (booking.state, booking.hardware, booking.holder.purpose) == ("prepared", ("0000:3b:01.0",), "pod/web")


@pytest.mark.parametrize("how", ["deallocated", "deleted"])
@pytest.mark.parametrize("restart", [False, True], ids=["", "restarted"])
async def test_a_device_that_is_still_prepared_is_refused_to_the_next_claim(
    node: DriverHost, how: str, restart: bool,
) -> None:
    info, first = await node.registered(), await node.allocate("blue", VF0)
    await node.client.prepare(info, first)
    await (node.deallocate("blue") if how == "deallocated" else node.delete("blue"))
    second = await node.allocate("green", VF0)
    for _ in range(2):
        answer = (await node.client.prepare(info, second))[second["uid"]]
        assert answer.error.startswith(f"Held: {HOST}/{VF0} is held by ")
        assert "blue" in answer.error
        assert " in here since " in answer.error
        assert list(answer.devices) == []
        if restart:
            await node.kill()
            await node.start()
            info = await node.registered()
    assert (await node.states())["blue"] == "prepared"
    assert await node.taints() == CONTESTED
    for kind in ("ResourceClaim", "Pod"):
        assert any("blue" in message and "unprepared" in message for message in await node.events(kind)), kind
    assert (await node.client.unprepare(info, first))[first["uid"]].error == ""
    answer = (await node.client.prepare(info, second))[second["uid"]]
    assert answer.error == ""
    await node.settle()
    assert await node.states() == {"green": "prepared"}
    assert await node.taints() == {}


async def test_bookings_that_are_outdated_are_not_in_the_way(node: DriverHost) -> None:
    """The claim was deallocated before it was prepared, or released, and no mirror has removed its booking yet."""
    info, first = await node.registered(), await node.allocate("blue", VF0)
    await node.client.prepare(info, first)
    await node.client.unprepare(info, first)
    await node.deallocate("blue")
    second = await node.allocate("green", VF0)
    assert (await node.client.prepare(info, second))[second["uid"]].error == ""
    assert await node.states() == {"green": "prepared"}


async def test_a_claim_that_was_allocated_a_device_twice_has_it_once(node: DriverHost) -> None:
    """A scheduler that allocates a device to two claims: both statuses contain it, one of them is prepared."""
    info = await node.registered()
    first, second = await node.allocate("blue", VF0), await node.allocate("green", VF0)
    errors = [(await node.client.prepare(info, claim))[claim["uid"]].error for claim in (first, second)]
    assert errors[0] == ""
    assert errors[1].startswith("Held: ")
    assert (await node.states())["blue"] == "prepared"


async def test_two_calls_at_once_for_one_device(node: DriverHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is replaced at the revision that was read: another writer in between makes the call read it again."""
    info, claim = await node.registered(), await node.allocate("gold", VF0)
    replace, done = Memory.replace, list[bool]()

    async def interrupted(self: Memory, kind: kinds.Kind, obj: kinds.Object, **more: object) -> kinds.Object:
        if kind == kinds.LEDGER_PAGE and not done:
            done.append(True)
            other = await node.allocate("silver", VF1, settled=False)
            await node.driver._book(await node.store.get(kinds.RESOURCE_CLAIM, other["name"], "here"))
            with pytest.raises(Conflict):
                await replace(self, kind, obj)
            raise Conflict("the page was changed meanwhile")
        return await replace(self, kind, obj)

    monkeypatch.setattr(Memory, "replace", interrupted)
    assert (await node.client.prepare(info, claim))[claim["uid"]].error == ""
    page = await book.read(node.store, HOST)
    assert {(one.holder.name, one.state) for one in page.bookings} == {("gold", "prepared"), ("silver", "booked")}


async def test_hardware_that_another_driver_published_first_is_refused(node: DriverHost) -> None:
    """One function under two names: kube-scheduler does not know that, and the page does."""
    await node.store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "theirs"}, "spec": {
        "driver": "other.example.com", "nodeName": HOST, "pool": {"name": HOST, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "nic", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:3b:01.0"}}}]}})
    info, theirs = await node.registered(), await node.allocate("blue", "nic", driver="other.example.com")
    await node.driver._book(await node.store.get(kinds.RESOURCE_CLAIM, theirs["name"], "here"))
    claim = await node.allocate("green", VF0)
    error = (await node.client.prepare(info, claim))[claim["uid"]].error
    assert error.startswith(f"HardwareHeld: {HOST}/{VF0}, which is the same hardware (0000:3b:01.0) as other.example.com/")
    assert "blue" in error
    assert node.drivers() == ["iavf", "iavf"]
    await node.delete("blue")
    assert (await node.client.prepare(info, claim))[claim["uid"]].error == ""
