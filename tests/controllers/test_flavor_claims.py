"""VMs with flavors, from the objects that people write to the domain that runs."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import Invalid
from outfitter.scheduling.explain import claim as explain_claim
from outfitter.scheduling.explain import vm
from outfitter.scheduling.nova import flavor_claim
from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.controllers.numa_hosts import CONFIG, HOSTS, flavor, machine, scene
from tests.controllers.scenario import addresses, on_roles
from tests.rejected import Code


async def test_vmi_gets_the_devices_of_its_flavor() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1, nic:2", vcpus=4, memory="3Gi")
        await machine(here, "blue", "large")
        blue = await here.running("blue")
        entries = blue["status"]["deviceStatus"]["hostDeviceStatuses"]
        assert [entry["name"] for entry in entries] == ["gpu-0", "nic-0", "nic-1"]
        assert addresses(blue) == ["0000:17:00.0", "0000:3b:01.0", "0000:3b:01.1"]
        assert blue["spec"] == {"flavor": {"name": "large"}, "domain": {}}
        assert blue["status"]["nodeName"] == "elm"
        (domain,) = await here.domains()
        assert domain.devices == tuple(addresses(blue))
        assert re.search(r"<vcpu[^>]*>4</vcpu>", domain.xml)
        assert str(3 << 30) in domain.xml
        (claim,) = await here.all(kinds.RESOURCE_CLAIM)
        assert [(request["name"], request["exactly"]["count"]) for request in claim["spec"]["devices"]["requests"]] == [
            ("gpu", 1), ("nic", 2)]
        assert claim["metadata"]["ownerReferences"][0]["name"] == "blue"
        await here.check_books()
        await here.delete(kinds.VMI, "blue")
        await here.gone("blue")
        await here.empty()


async def test_an_alias_asks_for_the_standard_classes_of_network_devices() -> None:
    conf = """
report_in_placement: true
report_networks: true
pci_in_placement: true
device_spec:
- {address: 0000:3b:00.0, product_id: 1592, physical_network: fabric}
- {vendor_id: 8086, product_id: 1889, resource_class: VDPA_NETDEV}
alias:
- {name: port, resource_class: PCI_NETDEV, device_type: type-PF}
- {name: vdpa, resource_class: vdpa_netdev}
"""
    hosts = """
hosts:
- name: elm
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 0, product: 1889, total: 8}}
  - {address: 0000:d8:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 2, product: 1889}}
"""
    async with scene(conf, hosts) as here:
        await flavor(here, "ports", "port:1, vdpa:1")
        await machine(here, "blue", "ports")
        assert addresses(await here.running("blue")) == ["0000:3b:00.0", "0000:d8:01.0"]


async def test_spec_has_precedence_over_the_flavor() -> None:
    async with scene() as here:
        await flavor(here, "large", vcpus=4, memory="3Gi")
        await machine(here, "blue", "large", {"cpu": {"cores": 3}, "memory": {"guest": "1Gi"}})
        await here.running("blue")
        (domain,) = await here.domains()
        assert re.search(r"<vcpu[^>]*>3</vcpu>", domain.xml)
        assert str(1 << 30) in domain.xml
        assert await here.all(kinds.RESOURCE_CLAIM) == []  # nothing that would need one


async def test_vmi_waits_until_its_flavor_exists() -> None:
    async with scene() as here:
        await machine(here, "blue", "large")
        assert await here.waits("blue", "Synchronized", "flavor large does not exist")
        assert await here.events("FlavorNotFound") == ["flavor large does not exist; the VMI goes on when it does"]
        assert await here.all(kinds.POD) == []
        await flavor(here, "small", "gpu:1")  # another one changes nothing
        await here.waits("blue", "Synchronized", "flavor large does not exist")
        await flavor(here, "large", "gpu:1")
        blue = await here.running("blue")
        assert len(addresses(blue)) == 1
        assert await here.condition("blue", "Synchronized") is None
        assert len(await here.events("FlavorNotFound")) == 1


async def test_changed_flavor_does_not_change_a_vmi() -> None:
    async with scene() as here:
        old = await flavor(here, "large", "gpu:1")
        await machine(here, "blue", "large")
        before = await here.running("blue")
        await here.store.replace(kinds.FLAVOR, {**old, "spec": {"vcpus": 8, "memory": "1Gi", "extraSpecs": {}}})
        await machine(here, "green", "large")
        green = await here.running("green")
        blue = await here.find(kinds.VMI, "blue")
        assert blue is not None
        assert blue["status"]["flavor"] == before["status"]["flavor"]
        assert addresses(blue) == addresses(before)
        assert "deviceStatus" not in green["status"]
        await here.delete(kinds.FLAVOR, "large")
        await here.store.patch(kinds.VMI, "blue", {"metadata": {"labels": {"a": "b"}}}, "here")
        assert (await here.running("blue"))["status"]["flavor"] == before["status"]["flavor"]


async def test_who_comes_too_late_waits_with_a_reason_for_each_device() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        for name in ("a", "b", "c", "d"):
            await machine(here, name, "large")
        for name in ("a", "b", "c"):
            await here.running(name)
        await here.rejected("d", Code.TOO_FEW_FREE, alias="gpu", wanted=1, free=0)
        message = await here.waits("d", "PodScheduled")
        assert all(word in message for word in ("elm", "oak", "vmi/"))
        await here.delete(kinds.VMI, "a")
        await here.running("d")
        await here.check_books()


@pytest.mark.parametrize("meanwhile", ["nothing", "the flavor goes", "the flavor changes"])
async def test_claim_deleted_while_its_vmi_waits_is_recreated(meanwhile: str) -> None:
    async with scene() as here:
        made = await flavor(here, "large", "gpu:2")
        await machine(here, "a", "large")
        await here.running("a")
        await machine(here, "b", "large")
        await here.rejected("b", Code.TOO_FEW_FREE, alias="gpu", wanted=2)
        record = (await here.find(kinds.VMI, "b") or {})["status"]["flavor"]
        if meanwhile == "the flavor goes":
            await here.delete(kinds.FLAVOR, "large")
        elif meanwhile == "the flavor changes":
            other = {**made["spec"], "extraSpecs": {"pci_passthrough:alias": "gpu:1"}}
            made = await here.store.replace(kinds.FLAVOR, {**made, "spec": other})
        await here.delete(kinds.RESOURCE_CLAIM, record["claimName"])
        await here.delete(kinds.VMI, "a")
        if meanwhile == "the flavor goes":
            await here.waits("b", "Synchronized", "flavor large does not exist")
            await flavor(here, "large", "gpu:2")
        elif meanwhile == "the flavor changes":
            await here.waits("b", "Synchronized", f"claim {record['claimName']} was deleted", "flavor large is no longer what")
            assert await here.find(kinds.RESOURCE_CLAIM, record["claimName"]) is None
            other = {**made["spec"], "extraSpecs": {"pci_passthrough:alias": "gpu:2"}}
            await here.store.replace(kinds.FLAVOR, {**made, "spec": other})
        blue = await here.running("b")
        assert blue["status"]["flavor"]["devices"] == record["devices"]
        assert len(addresses(blue)) == 2
        assert await here.condition("b", "Synchronized") is None
        await here.check_books()


async def test_a_single_gpu_goes_where_there_are_fewest() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        await machine(here, "a", "large")
        assert (await here.running("a"))["status"]["nodeName"] == "oak"


async def test_each_from_another_card() -> None:
    async with scene() as here:
        await flavor(here, "apart", "nic:2", extraSpecs={"group_policy": "isolate"})
        await flavor(here, "three", "nic:3", extraSpecs={"group_policy": "isolate"})
        await machine(here, "blue", "apart")
        assert addresses(await here.running("blue")) == ["0000:3b:01.0", "0000:d8:01.0"]
        claim = next(iter(await here.all(kinds.RESOURCE_CLAIM)))
        assert claim["spec"]["devices"]["constraints"] == [{"requests": ["nic"], "distinctAttribute": flavor_claim.PROVIDER}]
        await machine(here, "green", "three")
        await here.rejected("green", Code.TOO_FEW_FREE, alias="nic", wanted=3, match=4, free=2)


async def test_a_device_that_a_rule_taints_is_not_given() -> None:
    async with scene() as here:
        await here.create(kinds.DEVICE_TAINT_RULE, "broken", {
            "deviceSelector": {"driver": "pci.outfitter.dev", "pool": "oak"},
            "taint": {"key": "example.com/broken", "effect": "NoSchedule"}})
        await flavor(here, "large", "gpu:1")
        await machine(here, "a", "large")
        assert (await here.running("a"))["status"]["nodeName"] == "elm"  # though oak has fewer
        await machine(here, "b", "large", nodeSelector={"kubernetes.io/hostname": "oak"})
        await here.rejected("b", Code.TOO_FEW_FREE, alias="gpu", wanted=1, match=1, free=0)


async def test_vmi_with_a_claim_and_a_flavor() -> None:
    """The flavor is served first, and the other claim never gets the same device."""
    async with scene(hosts=HOSTS.replace("- name: oak", "- name: zoak")) as here:
        await flavor(here, "large", "gpu:1")
        driver = "pci.outfitter.dev"
        await here.create(kinds.RESOURCE_CLAIM, "mine", {"devices": {"requests": [{"name": "any", "exactly": {
            "deviceClassName": driver, "selectors": [{"cel": {
                "expression": f'device.attributes["{driver}"].vendor == "10de"'}}]}}]}})
        await machine(here, "blue", "large", {"devices": {"hostDevices": [
            {"name": "gpu-0", "claimName": "own", "requestName": "any"}]}},
            resourceClaims=[{"name": "own", "resourceClaimName": "mine"}])
        blue = await here.running("blue")
        entries = blue["status"]["deviceStatus"]["hostDeviceStatuses"]
        assert [entry["name"] for entry in entries] == ["gpu-0", "gpu-2-0"]  # no two of a name
        assert len(set(addresses(blue))) == 2
        assert blue["status"]["nodeName"] == "elm"
        await here.check_books()


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an alias that was not defined": ({"extraSpecs": {"pci_passthrough:alias": "gpo:1"}},
                                     "spec.extraSpecs[pci_passthrough:alias]", "defined are gpu, near gpu, nic"),
    "no list of aliases": ({"extraSpecs": {"pci_passthrough:alias": "gpu"}},
                           "spec.extraSpecs[pci_passthrough:alias]", "no list of alias:count"),
    "more than a VM can have": ({"extraSpecs": {"pci_passthrough:alias": "gpu:33"}},
                                     "spec.extraSpecs[pci_passthrough:alias]", "one VM can have 32"),
    "a policy that is none": ({"extraSpecs": {"hw:pci_numa_affinity_policy": "close"}},
                              "spec.extraSpecs[hw:pci_numa_affinity_policy]", "none of required"),
    "a group policy that is none": ({"extraSpecs": {"group_policy": "apart"}}, "spec.extraSpecs[group_policy]", "isolate"),
    "more cells than CPUs": ({"extraSpecs": {"hw:numa_nodes": "3"}}, "spec.extraSpecs[hw:numa_nodes]", "1 to 2"),
    "no CPUs": ({"vcpus": 0}, "spec.vcpus", "from 1"),
    "memory that is no amount": ({"memory": "much"}, "spec.memory", "such as 2Gi"),
    "an extra spec that is no text": ({"extraSpecs": {"hw:numa_nodes": 2}}, "spec.extraSpecs.hw:numa_nodes", "must be text"),
    "a field of the wrong kind": ({"vcpus": "two"}, "spec.vcpus", "whole number"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_invalid_flavor_is_rejected_at_admission(name: str) -> None:
    spec, field, words = REFUSED[name]
    async with scene() as here:
        with pytest.raises(Invalid) as caught:
            await here.create(kinds.FLAVOR, "f", {"vcpus": 2, "memory": "1Gi", **spec})
        assert [cause.field for cause in caught.value.causes] == [field]
        assert words in caught.value.message


async def test_all_mistakes_of_a_flavor_are_reported_at_once() -> None:
    """Amounts, extra specs and fields of the wrong kind alike."""
    async with scene() as here:
        with pytest.raises(Invalid) as caught:
            await here.create(kinds.FLAVOR, "f", {"memory": "much", "disk": 7, "extraSpecs": {
                "pci_passthrough:alias": "gpo:1", "group_policy": "apart", "hw:numa_nodes": 2, "hw:cpu_policy": "mine"}})
        assert [cause.field for cause in caught.value.causes] == [
            "spec.disk", "spec.extraSpecs.hw:numa_nodes", "spec.vcpus", "spec.memory", "spec.extraSpecs[pci_passthrough:alias]",
            "spec.extraSpecs[group_policy]", "spec.extraSpecs[hw:cpu_policy]"]


async def test_flavor_with_a_removed_alias_starts_no_vmi_but_can_be_changed(tmp_path: Path) -> None:
    async with scene(data=tmp_path) as here:
        await flavor(here, "large", "gpu:1")
    async with scene(CONFIG.replace("name: gpu,", "name: gpux,"), data=tmp_path) as here:
        await machine(here, "blue", "large")
        await here.waits("blue", "Synchronized", "flavor large", "PCI alias gpu is not defined")
        await here.store.patch(kinds.FLAVOR, "large", {"metadata": {"labels": {"old": "yes"}}})
        with pytest.raises(Invalid, match="PCI alias gpu is not defined; defined are gpux"):
            await here.store.patch(kinds.FLAVOR, "large", {"spec": {"vcpus": 3}})
        await here.store.patch(kinds.FLAVOR, "large", {"spec": {"extraSpecs": {"pci_passthrough:alias": "gpux:1"}}})
        assert len(addresses(await here.running("blue"))) == 1


async def test_flavor_of_a_vmi_is_immutable() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        await machine(here, "blue", "large")
        blue = await here.running("blue")
        with pytest.raises(Invalid, match=r"spec\.flavor: Invalid value: field is immutable"):
            await here.store.replace(kinds.VMI, {**blue, "spec": {**blue["spec"], "flavor": {"name": "small"}}})
        with pytest.raises(Invalid, match="reserved for the claim of the flavor"):
            await machine(here, "green", "large", resourceClaims=[{"name": "flavor", "resourceClaimName": "x"}])


async def test_vm_passes_its_flavor_to_its_vmi() -> None:
    """Each start is a VM of its own, made from the flavor as it is then; when it is stopped the devices are free."""
    async with scene() as here:
        await flavor(here, "large", "gpu:1")
        await here.create(kinds.VM, "blue", {"runStrategy": "Always", "template": {"spec": {
            "flavor": {"name": "large"}, "domain": {}}}})
        first = await here.running("blue")
        assert len(addresses(first)) == 1
        await here.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, "here")
        await here.gone("blue")
        assert await here.bookings() == []
        await here.store.patch(kinds.FLAVOR, "large", {"spec": {"extraSpecs": {"pci_passthrough:alias": "nic:2"}}})
        await here.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Always"}}, "here")
        assert len(addresses(await here.running("blue"))) == 2


async def test_a_status_that_was_lost_is_written_again_from_the_page() -> None:
    async with scene() as here:
        await flavor(here, "near", "near gpu:1", extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "near")
        blue = await here.running("blue")
        (claim,) = await here.all(kinds.RESOURCE_CLAIM)
        before = claim["status"]["allocation"]
        await here.store.replace(kinds.RESOURCE_CLAIM, {**claim, "status": {}}, subresource="status")

        async def again() -> Object | None:
            (now,) = await here.all(kinds.RESOURCE_CLAIM)
            return (now.get("status") or {}).get("allocation")

        after = await here.reach(again, "the allocation is back")
        assert after["devices"]["results"] == before["devices"]["results"]
        assert after["devices"]["config"][-1] == before["devices"]["config"][-1]  # where the guest's cells lie
        assert (await here.running("blue"))["status"]["flavor"] == blue["status"]["flavor"]


async def test_why_reports_numa_cells_and_a_missing_flavor() -> None:
    async with scene() as here:
        await machine(here, "green", "nothing")
        await flavor(here, "near", "near gpu:1", extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "near")
        await here.running("blue")
        await here.waits("green", "Synchronized", "nothing")
        cluster = await here.cluster_objects()
        (claim,) = cluster.claims
        assert any("NUMA cells 0 of oak, with 2 CPUs of cell 0 (0-1) for itself" in line
                   for line in explain_claim.claim(cluster, claim).text())
        green = await here.find(kinds.VMI, "green")
        assert green is not None
        assert vm.instance(cluster, green).text() == [
            "vmi/green has no pod yet: flavor nothing does not exist; the VMI goes on when it does"]


@pytest.mark.cluster
async def test_kube_scheduler_gives_what_the_aliases_mean(control_plane: kubernetes.Cluster, tmp_path: Path) -> None:
    """The claim is all that it knows: class, traits and kind by selectors, isolation and one NUMA node by constraints."""
    word = f"s{uuid.uuid4().hex[:8]}"
    hosts = HOSTS.replace("name: elm", f"name: {word}-elm").replace("name: oak", f"name: {word}-oak")
    settings = tmp_path / "config.yaml"
    settings.write_text(CONFIG)
    roles = ClusterRoles(control_plane, tmp_path / "roles")
    try:
        await asyncio.to_thread(roles.start("controller", "--config", str(settings)).ready)
        async with on_roles(roles, word, hosts, "--config", str(settings)) as here:
            pinned = {"group_policy": "isolate", "hw:cpu_policy": "dedicated"}
            await flavor(here, f"{word}-apart", "gpu:1, nic:2", extraSpecs={"group_policy": "isolate"})
            await flavor(here, f"{word}-near", "near gpu:2", extraSpecs=pinned)
            await machine(here, "blue", f"{word}-apart")
            blue = await here.running("blue")
            assert [entry["name"] for entry in blue["status"]["deviceStatus"]["hostDeviceStatuses"]] == [
                "gpu-0", "nic-0", "nic-1"]
            gpu, *nics = addresses(blue)
            assert gpu in ("0000:17:00.0", "0000:ca:00.0")
            assert sorted(nic[:7] for nic in nics) == ["0000:3b", "0000:d8"]
            await machine(here, "green", f"{word}-near")  # two GPUs on one NUMA node: no host has them
            await here.waits("green", "PodScheduled", "cannot allocate all claims")
            told = await here.reach(lambda: here.events("FlavorNotExact"), "what the flavor cannot have is told")
            assert told == [
                f"flavor {word}-near asks for more than kube-scheduler knows of: dedicated CPUs are not booked, so another "
                "VM may have the same"]
            await here.check_books()
            for name in ("blue", "green"):
                await here.delete(kinds.VMI, name)
            await here.gone("blue", "green")
            await here.empty()
            for name in (f"{word}-apart", f"{word}-near"):
                await here.store.delete(kinds.FLAVOR, name)
        assert roles.forbidden() == []
    finally:
        roles.stop()


async def test_a_device_that_was_assigned_to_a_pod_is_not_given_to_a_flavor() -> None:
    """Nor is one whose pod waits for something else than the device; and when that pod goes the device is free."""
    async with scene() as here:
        await here.create(kinds.DEVICE_CLASS, "gpu", {"extendedResourceName": "example.com/gpu", "selectors": [
            {"cel": {"expression": 'device.driver == "pci.outfitter.dev"'}}]})
        await flavor(here, "one", "gpu:1")
        await here.create(kinds.POD, "huge", {"containers": [{
            "name": "main", "resources": {"requests": {"cpu": "100"}, "limits": {"example.com/gpu": "1"}},
            "assignedDevices": [{"resourceName": "example.com/gpu", "deviceIDs": ["oak/pci-0000-17-00-0"]}]}]})
        await machine(here, "blue", "one", nodeSelector={"kubernetes.io/hostname": "oak"})
        await here.waits("blue", "PodScheduled", "huge")
        await here.rejected("blue", Code.TOO_FEW_FREE, alias="gpu", wanted=1, match=1, free=0)
        await here.delete(kinds.POD, "huge")
        assert addresses(await here.running("blue")) == ["0000:17:00.0"]
