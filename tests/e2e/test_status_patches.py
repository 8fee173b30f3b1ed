"""What devices cost the API server: of every VM all writes are watched, from its creation to its end, and compared with
those of a VM that has no devices. Whichever way the devices are asked for, they cost two writes more at most."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.errors import OutfitterError
from outfitter.store.kube import Kube
from tests.e2e.process import PATIENCE, ForkedUp, Up, until

MOST = 2
RESOURCE = "vendor.example/vf"
CONFIG = "alias: [{name: nic, vendor_id: '8086', product_id: '1889', device_type: type-VF}]\n"


def _requests(*counts: int) -> Object:
    return {"devices": {"requests": [{"name": f"r{index}", "exactly": {"deviceClassName": "vf", "count": count}}
                                     for index, count in enumerate(counts)]}}


def _object(kind: kinds.Kind, name: str, spec: Object) -> Object:
    place = {"namespace": "default"} if kind.namespaced else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **place}, "spec": spec}


def _claimed(source: Object, *requests: str) -> Object:
    return {"resourceClaims": [{"name": "mine", **source}], "domain": {"devices": {
        "hostDevices": [{"name": request, "claimName": "mine", "requestName": request} for request in requests]}}}


WORLD = [
    _object(kinds.DEVICE_CLASS, "vf", {"extendedResourceName": RESOURCE, "selectors": [{"cel": {
        "expression": 'device.attributes["pci.outfitter.dev"].kind == "VF"'}}]}),
    _object(kinds.RESOURCE_CLAIM_TEMPLATE, "one", {"spec": _requests(1)}),
    _object(kinds.RESOURCE_CLAIM_TEMPLATE, "three", {"spec": _requests(3)}),
    _object(kinds.RESOURCE_CLAIM_TEMPLATE, "both", {"spec": _requests(1, 1)}),
    _object(kinds.RESOURCE_CLAIM, "named", _requests(1)),
    {**_object(kinds.NETWORK_ATTACHMENT, "fast", {"config": '{"type": "sriov"}'}), "metadata": {
        "name": "fast", "namespace": "default", "annotations": {network_info.RESOURCE: RESOURCE}}},
    _object(kinds.FLAVOR, "two-nics", {"vcpus": 1, "memory": "64Mi", "extraSpecs": {"pci_passthrough:alias": "nic:2"}}),
]
# How a VM asks, and how many devices it then has.
WAYS: Mapping[str, tuple[Object, int]] = {
    "template": (_claimed({"resourceClaimTemplateName": "one"}, "r0"), 1),
    "count": (_claimed({"resourceClaimTemplateName": "three"}, "r0"), 3),
    "two-requests": (_claimed({"resourceClaimTemplateName": "both"}, "r0", "r1"), 2),
    "named": (_claimed({"resourceClaimName": "named"}, "r0"), 1),
    "device-name": ({"domain": {"devices": {"gpus": [{"name": "g", "deviceName": RESOURCE}],
                                            "hostDevices": [{"name": "h", "deviceName": RESOURCE}]}}}, 2),
    "mixed": ({**_claimed({"resourceClaimTemplateName": "one"}, "r0"), "domain": {"devices": {"hostDevices": [
        {"name": "r0", "claimName": "mine", "requestName": "r0"}, {"name": "h", "deviceName": RESOURCE}]}}}, 2),
    "network-card": ({"networks": [{"name": "n", "multus": {"networkName": "fast"}}], "domain": {"devices": {
        "interfaces": [{"name": "n", "sriov": {}}]}}}, 1),
    "network-card-and-device": ({"networks": [{"name": "n", "multus": {"networkName": "fast"}}], "domain": {"devices": {
        "interfaces": [{"name": "n", "sriov": {}}], "hostDevices": [{"name": "h", "deviceName": RESOURCE}]}}}, 2),
    "flavor": ({"flavor": {"name": "two-nics"}, "domain": {}}, 2),
}


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Object]]]:
    """Every state that a watcher saw of every VM, one after the other so that none waits for another."""
    folder = tmp_path_factory.mktemp("patches")
    (folder / "config.yaml").write_text(CONFIG)
    with ForkedUp(folder / "data", "--config", str(folder / "config.yaml"), simulate="1x16") as up:
        for obj in WORLD:
            up.ok("apply", "-f", "-", stdin=json.dumps(obj))
        yield asyncio.run(_watched(up, {"plain": {"domain": {}}, **{name: spec for name, (spec, _) in WAYS.items()}}))
        until(lambda: not up.ok("get", "vmi", "-o", "name"), "all of them are gone")
        assert not up.log()


async def _watched(up: Up, machines: Mapping[str, Object]) -> dict[str, list[Object]]:
    seen: dict[str, list[Object]] = defaultdict(list)
    news = asyncio.Event()

    async def watch(store: Kube, since: str) -> None:
        async for event in store.watch(kinds.VMI, "default", since=since):
            seen[event.object["metadata"]["name"]].append({"type": event.type, **event.object})
            news.set()

    async def until_seen(name: str, what: str) -> None:
        while not seen[name] or what not in (seen[name][-1]["type"], (seen[name][-1].get("status") or {}).get("phase")):
            news.clear()
            async with asyncio.timeout(PATIENCE):
                await news.wait()

    async with up.store() as store:
        watching = asyncio.ensure_future(watch(store, (await store.list(kinds.VMI)).revision))
        try:
            for name, spec in machines.items():
                await store.create(kinds.VMI, _object(kinds.VMI, name, spec))
                await until_seen(name, "Running")
            for name in machines:
                await store.delete(kinds.VMI, name, "default")
                await until_seen(name, "DELETED")
        except (OutfitterError, TimeoutError) as error:
            raise AssertionError(f"{error}: {json.dumps(seen, indent=1)}") from error
        finally:
            watching.cancel()
    return seen


def _of_devices(state: Object) -> Any:
    status = state.get("status") or {}
    return status.get("deviceStatus"), [{**one, "lastTransitionTime": ""} for one in status.get("conditions") or ()
                                        if one["type"] == "DevicesReady"]


@pytest.mark.parametrize("name", WAYS)
def test_devices_cost_two_patches_at_most(name: str, lives: dict[str, list[Object]]) -> None:
    life = lives[name]
    status = next(state for state in reversed(life) if state["type"] != "DELETED")["status"]["deviceStatus"]
    assert sum(map(len, status.values())) == WAYS[name][1], "all its devices are in its status"
    told = [after for before, after in pairwise(life) if _of_devices(before) != _of_devices(after)]
    assert 1 <= len(told) <= MOST, [_of_devices(state) for state in told]
    assert len(life) <= len(lives["plain"]) + MOST, [
        (state["type"], state["metadata"].get("finalizers"), state.get("status")) for state in life]


def test_vmi_without_devices_is_written_seldom(lives: dict[str, list[Object]]) -> None:
    """Made, finalizer, waiting, placed, running; and its end: else the comparison with it would prove little."""
    plain = lives["plain"]
    assert [state["type"] for state in plain][0::len(plain) - 1] == ["ADDED", "DELETED"]
    assert len(plain) <= 9, [(state["type"], state.get("status")) for state in plain]
    assert not any((state.get("status") or {}).get("deviceStatus") for state in plain)


MOVES = {"plain": "", "network-card": ""}  # of the others a device cannot move


@pytest.mark.parametrize("name", ["plain", *WAYS])
def test_live_migratable_costs_no_write_of_its_own(name: str, lives: dict[str, list[Object]]) -> None:
    """It is written with the running phase, or before that with the devices on which it depends."""
    states = [(state.get("status") or {}, conditions.find(state, "LiveMigratable")) for state in lives[name]]
    first = next(status for status, found in states if found is not None)
    assert first.get("phase") == "Running" or conditions.is_true({"status": first}, "DevicesReady")
    reason = MOVES.get(name, "HostDeviceNotLiveMigratable")
    running = [found or {} for status, found in states if status.get("phase") == "Running"]
    assert [(one.get("status"), one.get("reason", "")) for one in running] == [
        ("False" if reason else "True", reason)] * len(running)
