"""GPUs and host devices by claim, plugged into a running VM and unplugged from it, embedded and on a real control plane where
kube-scheduler allocates the claims and kube-controller-manager creates those of templates. The test types kubectl, and what
docs/device-hotplug.md says, and reads."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.nic_changes import NEVER, TEMPLATE
from tests.e2e.nic_story import Story, story_of
from tests.e2e.process import ROOT, until

pytestmark = pytest.mark.kubectl
API = "resource.k8s.io/v1"
CARD = {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "fast-vf"}}]}}
OBJECTS = json.dumps({"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"}, "spec": {"spec": CARD}},
    {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": CARD}]})
LISTS = {"gpus": "gpuStatuses", "hostDevices": "hostDeviceStatuses"}


@pytest.fixture(params=MODES)
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    for made in story_of(in_mode(request, tmp_path, simulate="2x4")):
        made.begin(NEVER)
        made.kubectl("apply", "-f", "-", stdin=OBJECTS)
        yield made


def plug(story: Story, name: str, list_: str = "gpus", **claim: str) -> None:
    spec = story.get("vm", "blue")["spec"]["template"]["spec"]
    entry = {"name": name, "claimName": name, "requestName": "card"}
    story.patch(json.dumps([
        {"op": "add", "path": f"{TEMPLATE}/resourceClaims", "value": [
            *(spec.get("resourceClaims") or ()), {"name": name, **(claim or {"resourceClaimTemplateName": "one-gpu"})}]},
        {"op": "add", "path": f"{TEMPLATE}/domain/devices/{list_}", "value": [
            *(spec["domain"]["devices"].get(list_) or ()), entry]}]))


def unplug(story: Story, name: str, list_: str = "gpus") -> None:
    spec = story.get("vm", "blue")["spec"]["template"]["spec"]
    story.patch(json.dumps([
        {"op": "replace", "path": f"{TEMPLATE}/resourceClaims", "value": [
            entry for entry in spec["resourceClaims"] if entry["name"] != name]},
        {"op": "replace", "path": f"{TEMPLATE}/domain/devices/{list_}", "value": [
            entry for entry in spec["domain"]["devices"][list_] if entry["name"] != name]}]))


def status(story: Story, name: str, list_: str = "gpus") -> Any:
    found = (story.vmi()["status"].get("deviceStatus") or {}).get(LISTS[list_]) or ()
    return next((entry for entry in found if entry["name"] == name), {})


def plugged(story: Story, name: str, list_: str = "gpus") -> bool:
    """The status says so, and the domain has it."""
    entry = status(story, name, list_)
    if (entry.get("hotplugDevice") or {}).get("phase") != "Attached":
        return False
    [xml] = [xml for key, xml in story.up.domains().items() if key.startswith(story.uid)]
    return f'name="ua-dra-{"gpu" if list_ == "gpus" else "hostdevice"}-{name}"' in xml


def held(story: Story) -> list[tuple[str, str]]:
    return sorted((page["metadata"]["name"], entry["device"]["device"]) for page in story.get("ledgerpages")["items"]
                  for entry in page["spec"].get("bookings") or ())


def free(story: Story, *claims: str) -> bool:
    """No device is held, and only these claims exist."""
    left = {claim["metadata"]["name"] for claim in story.get("resourceclaims")["items"]}
    return not held(story) and left == {"mine", *claims} and not story.get("pods", "-l", "kubevirt.io=hotplug-claim")["items"]


def test_devices_come_and_go_by_claim(story: Story) -> None:
    plug(story, "fast")
    until(lambda: plugged(story, "fast"), "blue has the GPU")
    [pod] = story.get("pods", "-l", "kubevirt.io=hotplug-claim")["items"]
    assert pod["spec"]["nodeName"] == story.source
    given = status(story, "fast")["deviceResourceClaimStatus"]
    assert held(story) == [(story.source, given["name"])]
    assert "DevicePlugged" in story.events()
    plug(story, "disk", "hostDevices", resourceClaimName="mine")
    until(lambda: plugged(story, "disk", "hostDevices"), "a claim by name, too")
    assert [claim["name"] for claim in story.vmi()["spec"]["resourceClaims"]] == ["fast", "disk"]

    unplug(story, "fast")
    until(lambda: not status(story, "fast"), "blue has lost the GPU")
    until(lambda: len(held(story)) == 1, "it is free")
    unplug(story, "disk", "hostDevices")
    until(lambda: free(story), "the device of the claim is free, too, and the claim of the template is deleted")
    assert "DeviceUnplugged" in story.events()
    assert [claim["name"] for claim in story.vmi()["spec"]["resourceClaims"]] == ["fast", "disk"], "append-only"
    assert not story.condition("DevicesPlugged")
    story.untouched()


def test_plug_waits_for_the_host_of_the_vm_and_survives_a_kill(story: Story) -> None:
    full = json.dumps({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "full"}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": story.source},
            "resourceClaims": [{"name": f"c{number}", "resourceClaimTemplateName": "one-gpu"} for number in range(4)],
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"gpus": [
                {"name": f"g{number}", "claimName": f"c{number}", "requestName": "card"} for number in range(4)]}}}})
    story.up.ok("apply", "-f", "-", stdin=full)
    until(lambda: story.up.phase("full") == "Running", "the devices of the host are held")
    before = held(story)
    plug(story, "fast")
    until(lambda: story.condition("DevicesPlugged").get("reason") == "NoFreeDeviceOnHost", "it says what it waits for")
    assert (held(story), status(story, "fast")) == (before, {}), "the other host is not asked"
    unplug(story, "fast")
    until(lambda: not story.condition("DevicesPlugged"), "the plug is cancelled")
    until(lambda: not story.get("pods", "-l", "kubevirt.io=hotplug-claim")["items"], "its attachment pod is gone")

    plug(story, "fast")
    until(lambda: story.condition("DevicesPlugged").get("reason") == "NoFreeDeviceOnHost", "it waits again")
    story.kubectl("delete", "vmi", "full", "--wait=false")
    story.up.kill()
    story.up.start()
    until(lambda: plugged(story, "fast"), "blue has the GPU")
    unplug(story, "fast")
    story.up.kill()
    story.up.start()
    until(lambda: free(story), "nothing is left of it")
    story.untouched()


def test_commands_of_the_page(story: Story) -> None:
    page = (ROOT / "docs" / "device-hotplug.md").read_text()
    blocks = [block.strip() for block in re.findall(r"((?:^    .*\n)+)", page, re.MULTILINE)]
    commands = [line for block in blocks for line in (
        block.replace("\n", " ") if block.startswith("kubectl") else block).splitlines()]
    assert len(commands) == 5
    for command in commands:
        program, *words = shlex.split(command)
        (story.kubectl if program == "kubectl" else story.up.ok)(*words)
        if program == "kubectl":
            wanted = '"add"' in command
            until(lambda wanted=wanted: plugged(story, "fast") is wanted, command)  # type: ignore[misc]
    until(lambda: free(story), "nothing is left of it")
    story.untouched()
