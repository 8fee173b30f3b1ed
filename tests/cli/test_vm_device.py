"""`outfit vm device add` and `remove` with names and claims that cannot be meant: what it is, what would be right, and nothing
is written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.cli.client import Client
from outfitter.cli.vm import devices
from outfitter.errors import CommandFailed
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.controllers.planting import InProcess
from tests.e2e.process import ROOT, ForkedUp, Typed, Up, typed, until
from tests.node.hotplug.test_device_hotplug import TEMPLATE, Story, running

HOSTS, CONFIG = ROOT / "examples" / "hosts" / "two-gpus.yaml", ROOT / "examples" / "config" / "aliases.yaml"
DEVICES = "spec.template.spec.domain.devices"
CARD: Object = {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "pci.outfitter.dev", "selectors": [
    {"cel": {"expression": 'device.attributes["pci.outfitter.dev"].vendor == "10de"'}}]}}]}}
API = "resource.k8s.io/v1"
FLAVOR: Object = {"apiVersion": "outfitter.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "nics"}, "spec": {
    "vcpus": 1, "memory": "1Gi", "extraSpecs": {"pci_passthrough:alias": "nic:2"}}}


def vm(name: str, strategy: str, **lists: list[Object]) -> Object:
    """With a disk, a NIC, a flavor's devices, a GPU and a host device."""
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}, "spec": {
        "runStrategy": strategy, "template": {"spec": {
            "flavor": {"name": "nics"}, "nodeSelector": {"kubernetes.io/hostname": "elm"},
            "volumes": [{"name": "boot", "containerDisk": {"image": "quay.io/containerdisks/fedora"}}],
            "networks": [{"name": "lan", "pod": {}}],
            "resourceClaims": [{"name": each, "resourceClaimTemplateName": "one-gpu"} for each in ("fast", "card")],
            "domain": {"devices": {
                "disks": [{"name": "boot", "disk": {}}], "interfaces": [{"name": "lan", "masquerade": {}}],
                "gpus": [{"name": "fast", "claimName": "fast", "requestName": "card"}],
                "hostDevices": [{"name": "card", "claimName": "card", "requestName": "card"}], **lists}}}}}}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ForkedUp(tmp_path_factory.mktemp("device") / "data", "--config", str(CONFIG), simulate=str(HOSTS)) as made:
        made.ok("apply", "-f", "-", stdin=yaml.safe_dump_all([
            FLAVOR, vm("blue", "Always"), vm("green", "Halted"),
            {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"}, "spec": {"spec": CARD}}]))
        until(lambda: made.phase("blue") == "Running", "blue runs")
        yield made


def spec_of(up: Up, name: str) -> Any:
    return json.loads(up.ok("get", "vm", name, "-o", "json"))["spec"]


class Refused(NamedTuple):
    words: str  # behind `outfit vm device`
    message: tuple[str, ...]  # parts of it: where or which code, what it is, what would be right


FROM = "--template one-gpu"
REFUSED = {
    "a boot disk": Refused("remove blue boot", (
        f"{DEVICES}.disks[0]: boot of blue is a disk and is not unplugged", "stop the VM")),
    "a NIC": Refused("remove blue lan", (f"{DEVICES}.interfaces[0]: lan of blue is a NIC: outfit vm nic remove blue lan",)),
    "a device of a flavor": Refused("remove blue nic-0", (
        "FlavorDevice: nic-0 is a device of the flavor of blue", "stop the VM")),
    "one of a flavor, in a VM that does not run": Refused("remove green nic-0", (
        f"{DEVICES}: green has no GPU or host device nic-0; it has fast, card; devices of flavor nics are not removed",)),
    "no device": Refused("remove blue red", (f"{DEVICES}: blue has no GPU or host device red; it has fast, card",)),
    "one of several": Refused("remove blue fast red", ("blue has no GPU or host device red",)),
    "the disk of a VM that does not run": Refused("remove green boot", (f"{DEVICES}.disks[0]: boot of green is a disk",)),
    "no VM": Refused("remove plum fast", ("there is no VM plum in namespace default",)),
    "the name of a disk": Refused(f"add blue boot {FROM}", (f"{DEVICES}.disks[0].name: blue has a disk boot already; choose",)),
    "the name of a NIC": Refused(f"add blue lan {FROM}", (
        f"{DEVICES}.interfaces[0].name: blue has a NIC lan already; choose",)),
    "the name of a GPU": Refused(f"add blue fast {FROM}", (f"{DEVICES}.gpus[0].name: blue has a GPU fast already; choose",)),
    "the name of a host device": Refused(
        f"add blue card {FROM} --gpu", (f"{DEVICES}.hostDevices[0].name: blue has a host device card already; choose",)),
    "the name of a device of the flavor": Refused(
        f"add blue nic-1 {FROM}", ("FlavorDevice: the flavor of blue has a device nic-1; choose another name",)),
    "a name in a VM that does not run": Refused(f"add green boot {FROM}", (f"{DEVICES}.disks[0].name: green has a disk boot",)),
    "a name that is none": Refused(f"add blue '' {FROM}", (f"{DEVICES}.hostDevices[1].name", "Required value")),
    "no such template": Refused("add blue more --template two-gpus", (
        "spec.template.spec.resourceClaims: there is no ResourceClaimTemplate two-gpus in namespace default",)),
    "no such claim": Refused("add blue more --resource-claim mine", (
        "spec.template.spec.resourceClaims: there is no ResourceClaim mine in namespace default",)),
    "no such claim of the VM": Refused("add blue more --claim mine", (
        "spec.template.spec.resourceClaims: blue has no claim mine; it has fast, card", "--resource-claim mine")),
    "no such claim of the VM, with a request": Refused("add blue more --claim mine --request card", (
        "spec.template.spec.resourceClaims: blue has no claim mine; it has fast, card",)),
    "a claim of the VM whose only request is in use": Refused("add blue more --claim fast", (
        f"{DEVICES}.hostDevices[1]", 'duplicate claimName/requestName pair "fast/card"')),
    "a request that a claim of the VM lacks": Refused("add blue more --claim fast --request other", (
        "--request other: claim fast has no such request; it has card",)),
    "a claim and request that are in use": Refused("add blue more --claim fast --request card", (
        f"{DEVICES}.hostDevices[1]", 'duplicate claimName/requestName pair "fast/card"')),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_it_is_refused_and_nothing_is_written(up: Up, case: Refused) -> None:
    before = [spec_of(up, name) for name in ("blue", "green")]
    done = _typed(up, case.words)
    assert (done.code, done.out) == (1, ""), done
    assert [part for part in case.message if part not in done.err] == [], done.err
    assert [spec_of(up, name) for name in ("blue", "green")] == before


def _typed(up: Up, words: str) -> Typed:
    return typed("vm", "device", *("" if word == "''" else word for word in words.split()), kubeconfig=up.kubeconfig)


def client_of(story: Story) -> Client:
    assert isinstance(story.store, Memory)
    return InProcess(story.store, "default")


async def add(story: Story, device: str, template: str = "one-gpu") -> None:
    source = {"template": template, "resource_claim": None, "claim": None}
    await devices.add(
        client_of(story), "blue", device, source, request=None, gpu=True, wait_=False, timeout=None, dry_run=False)
    await story.settle()


async def remove(story: Story, *names: str) -> None:
    await devices.remove(client_of(story), "blue", names, wait_=False, timeout=None, dry_run=False)
    await story.settle()


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    async with running(tmp_path) as made:
        await made.begin()
        yield made


async def spec(story: Story) -> Any:
    return (await story.store.get(kinds.VM, "blue", "default"))["spec"]


async def test_nothing_is_plugged_into_a_vm_that_is_being_stopped(story: Story) -> None:
    await story.plug("fast", **TEMPLATE)
    story.hypervisor.ignoring_shutdown.add((await story.vmi())["metadata"]["uid"])
    await story.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, "default")
    await story.settle()
    before = await spec(story)
    with pytest.raises(CommandFailed, match=r"^VmStops: blue is being stopped"):
        await add(story, "more")
    with pytest.raises(CommandFailed, match=r"^VmStops: blue is being stopped"):
        await remove(story, "fast")
    assert await spec(story) == before


async def test_device_that_the_guest_keeps_is_neither_removed_again_nor_is_its_name_used(story: Story) -> None:
    await add(story, "fast")
    story.hypervisor.keeping_devices.add((await story.vmi())["metadata"]["uid"])
    await remove(story, "fast")
    before = await spec(story)
    with pytest.raises(CommandFailed, match="fast is removed already, and the running blue still has it"):
        await remove(story, "fast")
    with pytest.raises(CommandFailed, match="fast is removed, and the running blue still has it: wait until"):
        await add(story, "fast")
    assert await spec(story) == before


async def test_claim_that_the_running_vm_had_from_another_template_is_refused(story: Story) -> None:
    one = await story.store.get(kinds.RESOURCE_CLAIM_TEMPLATE, "one-gpu", "default")
    await story.store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {
        "metadata": {"name": "other", "namespace": "default"}, "spec": one["spec"]})
    await add(story, "fast")
    await remove(story, "fast")
    before = await spec(story)
    with pytest.raises(CommandFailed, match="claim fast of the running blue is resourceClaimTemplateName one-gpu"):
        await add(story, "fast", "other")
    assert await spec(story) == before
    await add(story, "fast")
    assert await story.plugged() == ["ua-dra-gpu-fast"], "from the same one it is plugged again"


async def test_name_that_a_gpu_and_a_host_device_have_is_not_guessed() -> None:
    """The API takes such VMs: each list has names of its own, as in KubeVirt."""
    store = Memory(clock=ManualClock())  # takes everything
    made = vm("blue", "Halted", hostDevices=[{"name": "fast", "claimName": "card", "requestName": "card"}])
    await store.create(kinds.VM, {**made, "metadata": {"name": "blue", "namespace": "default"}})
    before = await store.get(kinds.VM, "blue", "default")
    with pytest.raises(CommandFailed, match=r"hostDevices\[0\]: blue has a GPU and a host device fast.* kubectl edit vm blue"):
        await devices.remove(InProcess(store, "default"), "blue", ["fast"], wait_=False, timeout=None, dry_run=False)
    assert await store.get(kinds.VM, "blue", "default") == before


@pytest.mark.parametrize("shape", ["of the template", "of the VM"])
async def test_only_request_of_a_claim_that_the_vm_has_need_not_be_named(shape: str) -> None:
    store = Memory(clock=ManualClock())
    made, request = vm("blue", "Halted", hostDevices=[]), CARD["devices"]["requests"][0]
    if shape == "of the VM":
        made["spec"]["template"]["spec"]["resourceClaims"] = []
        made["spec"]["resourceClaimTemplates"] = [{"name": "card", "spec": {"spec": CARD}}]
    await store.create(kinds.VM, {**made, "metadata": {"name": "blue", "namespace": "default"}})
    client, source = InProcess(store, "default"), {"template": None, "resource_claim": None, "claim": "card"}

    async def plug() -> None:
        await devices.add(client, "blue", "more", source, request=None, gpu=False, wait_=False, timeout=None, dry_run=False)

    if shape == "of the template":
        with pytest.raises(CommandFailed, match="--request is needed: which request of claim card"):
            await plug()  # its ResourceClaimTemplate does not exist yet
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "one-gpu", "namespace": "default"}, "spec": {
            "spec": {"devices": {"requests": [request]}}}})
    await plug()
    spec = (await store.get(kinds.VM, "blue", "default"))["spec"]["template"]["spec"]
    assert spec["domain"]["devices"]["hostDevices"] == [{"name": "more", "claimName": "card", "requestName": "card"}]
