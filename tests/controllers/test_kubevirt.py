"""A gate that is closed while VMs use it: they keep running, new ones are refused, and the KubeVirt object reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Invalid
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene

IN_USE = "DisabledGatesInUse"


async def said(scene: Scene, status: str) -> str:
    async def check() -> Object | None:
        kubevirt = await scene.find(kinds.KUBEVIRT, "kubevirt")
        found = conditions.find(kubevirt or {}, IN_USE)
        return dict(found) if found and found["status"] == status else None

    return str((await scene.reach(check, f"{IN_USE} is {status}"))["message"])


async def gates(scene: Scene, **lists: list[str]) -> None:
    await scene.store.patch(kinds.KUBEVIRT, "kubevirt", {"spec": {"configuration": {"developerConfiguration": lists}}},
                            scene.namespace)


async def test_feature_gate_is_disabled_while_vms_use_it() -> None:
    async with scenes.embedded(vfs=3) as scene:
        await scene.classes()
        await scene.template()
        for name in ("blue", "red"):
            await scene.machine(name)
            await scene.running(name)
        await scene.create(kinds.KUBEVIRT, "kubevirt", {})
        assert "would be admitted again" in await said(scene, "False")
        kubevirt = await scene.find(kinds.KUBEVIRT, "kubevirt")
        assert kubevirt is not None
        assert kubevirt["status"]["phase"] == "Deployed"

        await gates(scene, disabledFeatureGates=["HostDevicesWithDRA"])
        told = await said(scene, "True")
        assert told == ("HostDevicesWithDRA is off and is used by here/blue, here/red: they keep what they have, new ones are "
                        "refused")
        with pytest.raises(Invalid, match="HostDevicesWithDRA"):
            await scene.machine("green")
        assert len(await scene.domains()) == 2

        await scene.delete(kinds.VMI, "blue")
        await scene.gone("blue")
        await scene.delete(kinds.VMI, "red")
        await scene.gone("red")
        await said(scene, "False")
        await gates(scene, disabledFeatureGates=[])
        await scene.machine("green")
        await scene.running("green")


BOTH = ["GPUsWithDRA", "HostDevicesWithDRA"]
CLAIMS = [{"name": "network", "resourceClaimTemplateName": "one-vf"}]
BY_CLAIM = {"networks": [{"name": "n", "resourceClaim": {"claimName": "network", "requestName": "nic"}}],
            "domain": {"devices": {"interfaces": [{"name": "n", "sriov": {}}]}}}


class Gated(NamedTuple):
    off: list[str]
    names: Sequence[str] = ()  # in the refusal; none: it is admitted
    spec: Mapping[str, Any] = MappingProxyType({"domain": {}})
    own: bool = False  # the claim is of the VM


GATED = {
    "both gates of document 000": Gated(BOTH, BOTH),
    "the gate of document 001": Gated(["DynamicResourceAllocation"], ["DynamicResourceAllocation", *BOTH]),
    "the third name": Gated(["DRADevices"], ["DRADevices", *BOTH]),
    "one of two": Gated(["GPUsWithDRA"]),
    "a network": Gated(BOTH, spec=BY_CLAIM),
    "a network whose gate is off": Gated(["NetworkDevicesWithDRA"], ["NetworkDevicesWithDRA"], BY_CLAIM),
    "a network, all off": Gated(["DRADevices"], ["DRADevices", "NetworkDevicesWithDRA"], BY_CLAIM),
    "a claim of the VM": Gated(BOTH, BOTH, own=True),
    "a claim of the VM for a network": Gated(BOTH, spec=BY_CLAIM, own=True),
}


@pytest.mark.parametrize("name", GATED)
async def test_claims_need_a_gate_though_no_device_uses_them(name: str) -> None:
    case = GATED[name]
    async with scenes.embedded(vfs=1) as scene:
        await scene.classes()
        await scene.template()
        await scene.create(kinds.KUBEVIRT, "kubevirt", {})
        await gates(scene, disabledFeatureGates=case.off)
        spec = dict(case.spec) if case.own else {"resourceClaims": CLAIMS, **case.spec}
        own = {"resourceClaimTemplates": CLAIMS} if case.own else {}
        machines: list[tuple[Kind, Object]] = [(kinds.VM, {"runStrategy": "Halted", "template": {"spec": spec}, **own})]
        machines += [] if case.own else [(kinds.VMI, spec)]
        for kind, manifest in machines:
            if not case.names:
                await scene.create(kind, "blue", manifest)
                continue
            with pytest.raises(Invalid) as refused:
                await scene.create(kind, "blue", manifest)
            [cause] = refused.value.causes
            assert [word for word in case.names if word not in cause.message] == []
            root = "spec" if kind == kinds.VMI else "spec.template.spec"
            at = f"{root}.networks" if "networks" in spec else "spec.resourceClaimTemplates" if case.own else (
                f"{root}.resourceClaims")
            assert cause.field == at
            assert not await scene.all(kinds.POD)


async def test_claims_without_a_device_are_kept_when_the_gates_are_closed() -> None:
    async with scenes.embedded(vfs=1) as scene:
        await scene.classes()
        await scene.template()
        await scene.create(kinds.VMI, "blue", {"resourceClaims": CLAIMS, "domain": {}})
        await scene.running("blue")
        await scene.create(kinds.KUBEVIRT, "kubevirt", {})
        await gates(scene, disabledFeatureGates=BOTH[:1])
        await said(scene, "False")
        await gates(scene, disabledFeatureGates=BOTH)
        assert "are off and one is needed by claims of here/blue" in await said(scene, "True")
        assert len(await scene.bookings()) == len(await scene.domains()) == 1


async def test_terminated_vmi_uses_no_gate() -> None:
    async with scenes.embedded(vfs=1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        await scene.create(kinds.KUBEVIRT, "kubevirt", {})
        await gates(scene, disabledFeatureGates=["DRADevices", "HostDevices"])
        assert "HostDevicesWithDRA is off and is used by here/blue; HostDevices is off and is used by here/blue" in await said(
            scene, "True")
        over = {"status": {"phase": "Succeeded"}}
        await scene.store.patch(kinds.VMI, "blue", over, scene.namespace, subresource="status")
        await said(scene, "False")


async def test_a_resource_that_is_not_permitted_gets_no_pod_until_it_is() -> None:
    async with scenes.embedded(vfs=1) as scene:
        await scene.create(kinds.DEVICE_CLASS, "nics", {"extendedResourceName": "acme.test/nic", "selectors": [
            {"cel": {"expression": f'device.attributes["{scene.driver}"].kind == "VF"'}}]})
        await scene.create(kinds.KUBEVIRT, "kubevirt", {"configuration": {"permittedHostDevices": {"pciHostDevices": [
            {"pciVendorSelector": "8086:1889", "resourceName": "acme.test/other"}]}}})
        await scene.create(kinds.VMI, "blue", {"domain": {"devices": {"hostDevices": [
            {"name": "nic0", "deviceName": "acme.test/nic"}]}}})
        await scene.waits("blue", "Synchronized", "hostDevices[0]: HostDevice acme.test/nic is not permitted")
        assert not await scene.all(kinds.POD)
        await scene.store.patch(kinds.KUBEVIRT, "kubevirt", {"spec": {"configuration": {"permittedHostDevices": {
            "pciHostDevices": [{"pciVendorSelector": "8086:1889", "resourceName": "acme.test/nic"}]}}}}, scene.namespace)
        blue = await scene.running("blue")
        assert conditions.find(blue, "Synchronized") is None
        [domain] = await scene.domains()
        assert "ua-hostdevice-nic0" in domain.xml
        assert scenes.addresses(blue) == list(domain.devices), "the scheduler made a claim for it"


@pytest.mark.parametrize("opened", [{"disabledFeatureGates": []}, {"featureGates": ["HostDevicesWithDRA"]}])
async def test_rejected_vmi_starts_when_the_gate_is_enabled(opened: dict[str, list[str]]) -> None:
    async with scenes.embedded(vfs=1) as scene:
        await scene.classes()
        await scene.template()
        await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", "template": {"spec": {
            "resourceClaims": [{"name": "network", "resourceClaimTemplateName": "one-vf"}],
            "domain": {"devices": {"hostDevices": [scenes.device()]}}}}})
        await scene.create(kinds.KUBEVIRT, "kubevirt", {})
        await gates(scene, disabledFeatureGates=["HostDevicesWithDRA"])
        await scene.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Always"}}, scene.namespace)
        await scene.settle()
        assert conditions.is_true(await scene.find(kinds.VM, "blue") or {}, "Failure")
        await gates(scene, **opened)
        await scene.settle()  # no time passes
        blue = await scene.find(kinds.VM, "blue") or {}
        assert blue["status"]["printableStatus"] == "Running"
        assert conditions.find(blue, "Failure") is None
