"""NICs of VMs in pods that a kubelet runs: the dynamic-networks-controller, which the test plays, reports the network in the
pod's network-status, and the node agent has the launcher plug it."""

from __future__ import annotations

import json

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from tests.node.test_kubelet_pods import NODE, Place, place

__all__ = ["place"]  # the fixture
POD_INTERFACE = network_info.interface_name("red")


async def change(place: Place, state: str = "") -> None:
    """As the VM controller copies it from the VM."""
    card: Object = {"name": "red", "bridge": {}, **({"state": state} if state else {})}
    await place.store.patch(kinds.VMI, "blue", {"spec": {
        "networks": [{"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "lan"}}],
        "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, card]}}}}, "default")


async def report(place: Place, *networks: Object) -> None:
    [pod] = (await place.store.list(kinds.POD)).items
    first = {"name": "cni", "interface": "eth0", "default": True}
    await place.store.patch(kinds.POD, pod["metadata"]["name"], {"metadata": {"annotations": {
        network_info.STATUS: json.dumps([first, *networks])}}}, "default")


async def test_nic_is_plugged_by_the_launcher_once_the_pod_has_its_network(place: Place) -> None:
    async with place.product() as product:
        await place.vmi(networks=[{"name": "default", "pod": {}}], domain={
            "memory": {"guest": "32Mi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}})
        uid = (await place.phase("Running"))["metadata"]["uid"]
        hypervisor = product.hosts[0].hypervisor

        async def nics() -> dict[str, str]:
            return {nic.name: nic.tap for nic in (await hypervisor.domains())[uid].nics}

        async def sources() -> dict[str, str]:
            vmi = await place.store.get(kinds.VMI, "blue", "default")
            return {entry["name"]: entry.get("infoSource", "") for entry in vmi["status"].get("interfaces") or ()}

        async def has(wanted: dict[str, set[str]]) -> bool:
            found = {name: set(filter(None, text.split(", "))) for name, text in (await sources()).items()}
            return found == wanted

        await report(place)
        await change(place)

        async def pending() -> bool:
            vmi = await place.store.get(kinds.VMI, "blue", "default")
            return (conditions.find(vmi, "MigrationRequired") or {}).get("status") == "False"

        await place.reach(pending, "the node has time to do it in place")
        assert list(await nics()) == ["default"], "the pod has no network for it yet"
        await report(place, {"name": "default/lan", "interface": POD_INTERFACE, "mac": "02:00:00:00:00:0a"})
        await place.reach(lambda: has({"default": {"domain"}, "red": {"multus-status", "domain"}}), "it is plugged")
        assert (await nics())["red"] == "tap" + POD_INTERFACE.removeprefix("pod"), "on the tap in the pod"

        async def required() -> bool:
            vmi = await place.store.get(kinds.VMI, "blue", "default")
            return conditions.find(vmi, "MigrationRequired") is None

        await place.reach(required, "no migration is required")
        await change(place, "down")

        async def down() -> bool:
            return [nic.link_up for nic in (await hypervisor.domains())[uid].nics if nic.name == "red"] == [False]

        await place.reach(down, "its link is down")
        await change(place, "absent")
        await place.reach(lambda: has({"default": {"domain"}, "red": {"multus-status"}}), "the guest has released it")
        assert list(await nics()) == ["default"]
        await report(place)
        await place.reach(lambda: gone(place), "nothing is left of it")
        assert not (await place.store.list(kinds.MIGRATION)).items
        assert (await place.phase("Running"))["status"]["nodeName"] == NODE


async def gone(place: Place) -> bool:
    vmi = await place.store.get(kinds.VMI, "blue", "default")
    entries = [entry for entry in vmi["status"].get("interfaces") or () if entry["name"] == "red" and entry.get("infoSource")]
    return not entries
