"""NICs of VMs in pods that a kubelet runs: the dynamic-networks-controller, which the test plays, reports the network in the
pod's network-status, and the node agent has the launcher plug it."""

from __future__ import annotations

import json
from pathlib import Path

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.launcher.launcher_protocol import PlugNic
from outfitter.launcher.simulated import Simulated
from outfitter.node.nic_hotplug import PodNics
from outfitter.node.pods.launcher_request import LauncherRequests
from outfitter.store.clock import SystemClock
from outfitter.store.memory import Memory
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


class RecordingLaunchers:
    """Launchers that plug nothing, and keep what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[PlugNic] = []

    async def plug_nic(self, request: PlugNic) -> None:
        self.asked.append(request)


async def test_nic_by_claim_is_plugged_where_the_pod_has_its_claim(tmp_path: Path) -> None:
    """As after a migration. A pod without the claim gets it by one."""
    store = Memory(clock=SystemClock())
    await store.create(kinds.RESOURCE_SLICE, {"metadata": {"name": "oak"}, "spec": {
        "nodeName": NODE, "driver": "pci.outfitter.dev", "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "vf0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:3b:01.0"}}}]}})
    await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": "default"}, "spec": {
        "devices": {"requests": [{"name": "vf", "exactly": {"deviceClassName": "vf"}}]}}})
    await store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"allocation": {"devices": {"results": [
        {"request": "vf", "driver": "pci.outfitter.dev", "pool": NODE, "device": "vf0"}]}}}}, "default", subresource="status")
    vmi: Object = {"metadata": {"name": "blue", "namespace": "default", "uid": "u"}, "spec": {
        "networks": [{"name": "fast", "resourceClaim": {"claimName": "net", "requestName": "vf"}}],
        "domain": {"devices": {"interfaces": [{"name": "fast", "sriov": {}}]}}}}
    pod: Object = {"metadata": {"name": "launcher", "namespace": "default", "uid": "p"}, "spec": {"nodeName": NODE}}
    host, launchers = app.this_host(NODE, Simulated(), root=tmp_path, empty=True), RecordingLaunchers()
    assert host is not None
    source = PodNics(launchers, LauncherRequests(store))  # type: ignore[arg-type]
    domain = Domain("u", "default_blue", "<domain/>")
    await source.attach(host, pod, vmi, domain, "fast")
    assert launchers.asked == []
    pod["spec"] |= {"resourceClaims": [{"name": "net", "resourceClaimName": "mine"}],
                    "containers": [{"resources": {"claims": [{"name": "net", "request": "vf"}]}}]}
    await source.attach(host, pod, vmi, domain, "fast")
    [request] = launchers.asked
    [wire] = network_info.read(request.network_info).values()
    assert (request.name, wire.network, wire.address) == ("fast", "fast", "0000:3b:01.0")
