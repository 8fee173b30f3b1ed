"""VMs with network cards, from their definitions to the domain: what they get, what they wait for, what they released."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import Invalid
from outfitter.inventory.simulation import hosts_file
from outfitter.store.clock import ManualClock
from tests.controllers.scenario import Scene
from tests.rejected import Code

HOSTS = """
hosts:
- name: rack
  count: 2
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1572, class: 020000, driver: i40e, interface: ens1f0,
     vfs: {count: 3, product: 154c}}
- name: other
  bridges: [{name: br0}]
"""
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


@contextlib.asynccontextmanager
async def scenery() -> AsyncIterator[Scene]:
    hosts, clock = app.simulated_hosts(hosts_file.parse(HOSTS, "hosts").hosts), ManualClock()
    async with app.embedded(hosts=hosts, clock=clock) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        await scene.create(kinds.DEVICE_CLASS, "vf", {"extendedResourceName": "x.com/vf", "selectors": [{"cel": {
            "expression": 'device.attributes["pci.outfitter.dev"].kind == "VF"'}}]})
        yield scene


async def definition(scene: Scene, name: str, resource: str = "", **config: Any) -> None:
    meta: Object = {"annotations": {RESOURCE: resource}} if resource else {}
    await scene.create(kinds.NETWORK_ATTACHMENT, name, {"config": json.dumps(config)}, **meta)


async def machine(scene: Scene, name: str, networks: dict[str, tuple[Object, Object]], **more: Any) -> Object:
    """`networks`: for each its source and its binding."""
    devices = {"interfaces": [{"name": each, **binding} for each, (_, binding) in networks.items()], **more.pop("devices", {})}
    return await scene.create(kinds.VMI, name, {
        "networks": [{"name": each, **source} for each, (source, _) in networks.items()],
        "domain": {"memory": {"guest": "64Mi"}, "devices": devices}, **more})


def multus(name: str) -> Object:
    return {"multus": {"networkName": name}}


SRIOV: Object = {"sriov": {}}


async def functions(scene: Scene) -> dict[str, str]:
    """Alias -> slot and function on the host, of everything that runs."""
    out = {}
    for domain in await scene.domains():
        for path in ("devices/interface", "devices/hostdev"):
            for each in ET.fromstring(domain.xml).iterfind(path):
                alias, source = each.find("alias"), each.find("source/address")
                assert alias is not None
                out[alias.get("name", "")] = "" if source is None else source.get("slot", "") + source.get("function", "")
    return out


async def test_each_nic_gets_a_function_and_all_sources_agree() -> None:
    async with scenery() as scene:
        await definition(scene, "fast", "x.com/vf", type="sriov")
        await definition(scene, "tagged", "x.com/vf", type="sriov", vlan=9)
        await machine(scene, "blue", {"b": (multus("tagged"), SRIOV), "a": (multus("fast"), SRIOV)},
                      devices={"hostDevices": [{"name": "h", "deviceName": "x.com/vf"}]})
        blue = await scene.running("blue")
        assert await functions(scene) == {
            "ua-hostdevice-h": "0x010x0", "ua-sriov-b": "0x010x1", "ua-sriov-a": "0x010x2"}, "each once, in this order"
        pod = await scene.pod("blue")
        told = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"])
        assert [(each["name"], each["device-info"]["pci"]["pci-address"]) for each in told] == [
            ("here/tagged", "0000:3b:01.1"), ("here/fast", "0000:3b:01.2")]
        assert blue["status"]["interfaces"] == [
            {"name": name, "mac": each["mac"], "infoSource": "domain, multus-status", "linkState": "up",
             "podInterfaceName": each["interface"]} for name, each in zip("ba", told, strict=True)]
        asked = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
        assert [each["interface"] for each in asked] == [each["interface"] for each in told]
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()


async def test_a_card_by_claim_and_one_behind_the_host() -> None:
    async with scenery() as scene:
        await scene.create(kinds.RESOURCE_CLAIM_TEMPLATE, "one", {"spec": {"devices": {"requests": [
            {"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}})
        await machine(scene, "blue", {"up": ({"resourceClaim": {"claimName": "c", "requestName": "nic"}}, SRIOV),
                                      "default": ({"pod": {}}, {"masquerade": {}, "state": "down"})},
                      resourceClaims=[{"name": "c", "resourceClaimTemplateName": "one"}])
        blue = await scene.running("blue")
        assert await functions(scene) == {"ua-sriov-up": "0x010x0", "ua-default": ""}
        up, default = blue["status"]["interfaces"]
        assert (up["infoSource"], default["infoSource"], default["linkState"]) == ("domain", "domain", "down")
        assert "podInterfaceName" not in up
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()


async def test_a_bridge_is_looked_for_where_there_is_one() -> None:
    async with scenery() as scene:
        await definition(scene, "lan", "bridge.network.kubevirt.io/br0", type="bridge", bridge="br0")
        await machine(scene, "blue", {"lan": (multus("lan"), {"bridge": {}})})
        assert (await scene.running("blue"))["status"]["nodeName"] == "other"
        await definition(scene, "far", "bridge.network.kubevirt.io/br9", type="bridge", bridge="br9")
        await machine(scene, "green", {"far": (multus("far"), {"bridge": {}})})
        await scene.rejected("green", Code.RESOURCE_NOT_OFFERED, resource="bridge.network.kubevirt.io/br9")


WAITS: dict[str, tuple[str, str, list[str]]] = {  # the definition that is named, the condition, and what it says
    "no definition": ("nowhere", "Synchronized", ["failed to locate network attachment definition here/nowhere"]),
    "a definition without a resource": ("poor", "Ready", ["spec.networks[0].multus.networkName", "no resource", RESOURCE]),
    "a resource that no node offers": ("strange", "PodScheduled", ["x.com/strange"]),
    "no function left": ("fast", "PodScheduled", ["x.com/vf", "vmi/"]),
}
REJECTED: dict[str, tuple[Code, Object]] = {
    "a resource that no node offers": (Code.RESOURCE_NOT_OFFERED, {"resource": "x.com/strange"}),
    "no function left": (Code.TOO_FEW_FREE, {"resource": "x.com/vf", "match": 3, "free": 0})}


@pytest.mark.parametrize("name", WAITS)
async def test_what_a_card_waits_for(name: str) -> None:
    named, condition, words = WAITS[name]
    async with scenery() as scene:
        await definition(scene, "poor", type="sriov")
        await definition(scene, "strange", "x.com/strange", type="sriov")
        await definition(scene, "fast", "x.com/vf", type="sriov")
        for number in range(2 if named == "fast" else 0):
            await machine(scene, f"m{number}", {each: (multus("fast"), SRIOV) for each in "abc"})
            await scene.running(f"m{number}")
        await machine(scene, "blue", {"a": (multus(named), SRIOV)})
        said = await scene.waits("blue", condition, *words)
        if name in REJECTED:
            code, detail = REJECTED[name]
            await scene.rejected("blue", code, **detail)
        events = [event["message"] for event in await scene.all(kinds.EVENT) if event["type"] == "Warning"]
        assert any(words[0] in each for each in events), (said, events)


async def test_a_network_that_comes_after_the_pod() -> None:
    async with scenery() as scene:
        await machine(scene, "blue", {"lan": (multus("lan"), {"bridge": {}})}, nodeSelector={"kubernetes.io/hostname": "other"})
        await scene.waits("blue", "Ready", "there is no NetworkAttachmentDefinition here/lan")
        assert await scene.events("FailedPlugNetworks")
        await definition(scene, "lan", type="bridge", bridge="br0")
        await scene.running("blue")
        assert not [each for each in (await scene.find(kinds.VMI, "blue") or {})["status"]["conditions"]
                    if each["status"] == "False"]


async def test_pod_annotations_of_others_do_not_choose_the_function() -> None:
    """A function that is not booked, written on the pod before its VM starts."""
    async with scenery() as scene:
        await machine(scene, "blue", {"fast": (multus("fast"), {**SRIOV, "state": ""})})
        await scene.waits("blue", "Synchronized", "here/fast")
        await definition(scene, "fast", "x.com/vf", type="sriov")
        text = json.dumps({"interfaces": [{"network": "fast", "wire": {"type": "device"}, "deviceInfo": {
            "type": "pci", "pci": {"pci-address": "0000:3b:01.2"}}}]})
        made = scene.store.create

        async def marked(kind: Any, obj: Object, *args: Any, **more: Any) -> Object:
            if kind == kinds.POD:
                obj["metadata"]["annotations"]["kubevirt.io/network-info"] = text
            return await made(kind, obj, *args, **more)

        scene.store.create = marked  # type: ignore[method-assign]
        await scene.running("blue")
        assert await functions(scene) == {"ua-sriov-fast": "0x010x0"}
        assert '"0000:3b:01.0"' in (await scene.pod("blue"))["metadata"]["annotations"]["kubevirt.io/network-info"]


async def test_addresses_are_translated_for_the_pods_network_alone() -> None:
    async with scenery() as scene:
        with pytest.raises(Invalid, match=r"interfaces\[0\]\.name: Masquerade interface only implemented with pod network"):
            await machine(scene, "red", {"a": (multus("lan"), {"masquerade": {}})})
