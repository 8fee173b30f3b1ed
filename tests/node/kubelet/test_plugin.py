"""Our DRA driver as the kubelet sees it: registers, prepares and unprepares, twice, after kills, and with bad claims. Played by
a client that is made from the published protobuf files, where they are found, and from ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter.api import kinds
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import DRIVER, HOST, VF0, VF1, DriverHost
from tests.node.kubelet.kubelet_client import HEALTH, KubeletClient


@pytest.fixture(params=["ours", pytest.param("published", marks=pytest.mark.parts)])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[DriverHost]:
    definitions = kubelet_client.our_definitions() if request.param == "ours" else kubelet_client.published_definitions()
    if definitions is None:
        pytest.skip("needs the published protobuf files of the kubelet; scripts/kubelet-protos fetches them")
    async with driver_host.running(KubeletClient(definitions)) as there:
        yield there


async def test_registers(node: DriverHost) -> None:
    info = await node.registered()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH]
    assert info.endpoint == str(node.kubelet_folder / "plugins" / DRIVER / "dra.sock")
    assert node.plugin.registration.registered


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_prepares_and_unprepares_twice(node: DriverHost, version: str) -> None:
    info, claim = await node.registered(), await node.allocate("gold", VF0, VF1)
    for _ in range(2):
        answer = (await node.client.prepare(info, claim, version=version))[claim["uid"]]
        assert answer.error == ""
        assert [(list(device.request_names), device.pool_name, device.device_name, list(device.cdi_device_ids))
                for device in answer.devices] == [
            (["it-0"], HOST, VF0, [f"{DRIVER}/device={claim['uid']}-{VF0}"]),
            (["it-1"], HOST, VF1, [f"{DRIVER}/device={claim['uid']}-{VF1}"])]
        assert await node.states() == {"gold": "prepared"}
        assert node.cdi_files() == [f"{DRIVER}-claim_{claim['uid']}.json"]
        assert node.drivers() == ["vfio-pci", "vfio-pci"]
    for _ in range(2):
        answer = (await node.client.unprepare(info, claim, version=version))[claim["uid"]]
        assert answer.error == ""
        assert await node.states() == {"gold": "released"}
        assert node.cdi_files() == []
        assert node.drivers() == ["iavf", "iavf"]
    assert (await node.client.prepare(info, claim, version=version))[claim["uid"]].error == ""
    assert await node.states() == {"gold": "prepared"}


async def test_unprepares_a_claim_that_is_gone(node: DriverHost) -> None:
    info, claim = await node.registered(), await node.allocate("gold", VF0)
    await node.client.prepare(info, claim)
    await node.delete("gold")
    assert await node.states() == {"gold": "prepared"}
    again = await node.allocate("gold", VF1)  # another claim of the same name
    assert (await node.client.prepare(info, again))[again["uid"]].error == ""
    assert (await node.client.unprepare(info, claim))[claim["uid"]].error == ""
    await node.settle()
    assert {device: booking.state for (_, device), booking in (await node.bookings()).items()} == {VF1: "prepared"}
    assert (await node.client.unprepare(info, {**claim, "uid": "never-prepared"}))["never-prepared"].error == ""


async def test_each_claim_of_a_call_has_its_own_answer(node: DriverHost) -> None:
    info, good = await node.registered(), await node.allocate("gold", VF0)
    missing = {"namespace": "here", "name": "silver", "uid": "uid-silver"}
    answers = await node.client.prepare(info, missing, good)
    assert answers["uid-silver"].error == "ClaimMissing: claim here/silver does not exist"
    assert answers[good["uid"]].error == ""
    assert [device.device_name for device in answers[good["uid"]].devices] == [VF0]


@pytest.mark.parametrize(("case", "error"), [
    ("replaced", "ClaimMissing: claim here/gold was deleted and created again"),
    ("not allocated", "ClaimNotAllocated: claim here/gold is not allocated"),
    ("not reserved", "ClaimNotAllocated: claim here/gold is not reserved for any pod"),
    ("another driver", f"ClaimNotAllocated: claim here/gold has no device of {DRIVER}"),
    ("another node", f"ClaimElsewhere: claim here/gold has {VF0} of node-b, and this is node-a"),
    ("unknown device", "DeviceMissing: pci-none is not known on node-a at the moment: it cannot be prepared"),
])
async def test_a_claim_that_is_not_for_this_host_is_refused(node: DriverHost, case: str, error: str) -> None:
    info = await node.registered()
    results: dict[str, Any] = {"another driver": {"driver": "other.example.com"}, "another node": {"pool": "node-b"}}
    claim = await node.allocate("gold", "pci-none" if case == "unknown device" else VF0, **results.get(case, {}))
    if case == "replaced":
        claim = {**claim, "uid": "earlier"}
    if case == "not allocated":
        await node.deallocate("gold")
    if case == "not reserved":
        await node.store.patch(kinds.RESOURCE_CLAIM, "gold", {"status": {"reservedFor": None}}, "here",
                               subresource="status")
    answer = (await node.client.prepare(info, claim))[claim["uid"]]
    assert answer.error.startswith(error)
    assert list(answer.devices) == []
    assert node.cdi_files() == []


async def test_an_alternative_is_named_by_its_request_and_a_share_by_its_id(node: DriverHost) -> None:
    info = await node.registered()
    claim = await node.allocate("gold", VF0, request="it-0/large", shareID="5dd9dd4f-9c5a-4f4f-8e0e-000000000001")
    [device] = (await node.client.prepare(info, claim))[claim["uid"]].devices
    assert (list(device.request_names), device.share_id) == (["it-0"], "5dd9dd4f-9c5a-4f4f-8e0e-000000000001")
    [device] = (await node.client.prepare(info, claim, version="v1beta1"))[claim["uid"]].devices
    assert list(device.request_names) == ["it-0"]


async def test_after_a_kill_everything_is_found_done(node: DriverHost) -> None:
    info, claim = await node.registered(), await node.allocate("gold", VF0)
    first = (await node.client.prepare(info, claim))[claim["uid"]]
    await node.kill()
    await node.start()
    info = await node.registered()
    assert (await node.client.prepare(info, claim))[claim["uid"]] == first
    await node.kill()
    await node.delete("gold")
    await node.start()
    info = await node.registered()
    assert (await node.client.unprepare(info, claim))[claim["uid"]].error == ""
    await node.settle()
    assert await node.bookings() == {}
    assert node.cdi_files() == []


async def test_files_that_were_removed_are_written_again(node: DriverHost) -> None:
    """Other programs clear /var/run."""
    info, claim = await node.registered(), await node.allocate("gold", VF0)
    await node.client.prepare(info, claim)
    files = [path for name in ("cdi", "metadata") for path in (node.folder / "data" / "hosts" / HOST / name).rglob("*.json")]
    texts = {path: path.read_text() for path in files}
    assert len(texts) == 2
    for path in texts:
        path.unlink()
        assert (await node.client.prepare(info, claim))[claim["uid"]].error == ""
        assert {path: path.read_text() for path in files} == texts
