"""NICs by claim, plugged into a running VM and unplugged from it, embedded and on a real control plane where kube-scheduler
allocates the claims and kube-controller-manager creates those of templates. An attachment pod on the host of the VM holds each.
The test types kubectl and reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.nic_changes import CARDS, NEVER, SOON, TEMPLATE
from tests.e2e.nic_story import Story, story_of
from tests.e2e.process import until

pytestmark = pytest.mark.kubectl
VF = {"devices": {"requests": [{"name": "vf", "exactly": {"deviceClassName": "fast-vf"}}]}}
TWO = {"devices": {"requests": [{"name": name, "exactly": {"deviceClassName": "fast-vf"}} for name in ("vf", "second")]}}
API = "resource.k8s.io/v1"
OBJECTS = json.dumps({"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "one-vf"}, "spec": {"spec": VF}},
    {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": {"name": "two-vfs"}, "spec": {"spec": TWO}},
    {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": VF}]})


@pytest.fixture(params=MODES)
def plumbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """Nodes that plug in place."""
    yield from story_of(in_mode(request, tmp_path, simulate="2x4"))


@pytest.fixture(params=MODES)
def unplumbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """Nodes whose plumbing is switched off."""
    (tmp_path / "outfitter.yaml").write_text("plug_in_place: false\n")
    yield from story_of(in_mode(request, tmp_path, "--config", str(tmp_path / "outfitter.yaml"), simulate="2x4"))


def begin(story: Story, grace: str = NEVER) -> Story:
    story.begin(grace)
    story.kubectl("apply", "-f", "-", stdin=OBJECTS)
    return story


def plug(story: Story, name: str, claim: str, request: str = "vf", **entry: str) -> None:
    """A NIC on a request of a claim. `entry`: what the claim is, if the VM does not have it yet."""
    spec = story.get("vm", "blue")["spec"]["template"]["spec"]
    claims = [*(spec.get("resourceClaims") or ()), *([{"name": claim, **entry}] if entry else [])]
    story.patch(json.dumps([
        {"op": "add", "path": f"{TEMPLATE}/resourceClaims", "value": claims},
        {"op": "add", "path": f"{TEMPLATE}/networks/-", "value": {
            "name": name, "resourceClaim": {"claimName": claim, "requestName": request}}},
        {"op": "add", "path": f"{CARDS}/-", "value": {"name": name, "sriov": {}}}]))


def attachments(story: Story) -> list[Any]:
    return list(story.get("pods", "-l", "kubevirt.io=hotplug-claim")["items"])


def claims(story: Story) -> dict[str, Any]:
    return {claim["metadata"]["name"]: claim for claim in story.get("resourceclaims")["items"]}


def held(story: Story) -> list[str]:
    """The devices on the pages of all hosts."""
    pages = story.get("ledgerpages")["items"]
    return sorted(entry["device"]["device"] for page in pages for entry in page["spec"].get("bookings") or ())


def in_guest(story: Story, name: str) -> bool:
    return "domain" in story.sources(name)


def test_claim_from_a_template_is_held_while_its_nic_is_plugged(plumbed: Story) -> None:
    story = begin(plumbed)
    plug(story, "fast", "net", resourceClaimTemplateName="one-vf")
    until(lambda: in_guest(story, "fast"), "blue has the NIC")
    [pod] = attachments(story)
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"]["outfitter.dev/claim"]) == (story.source, "net")
    [(name, claim)] = [(name, claim) for name, claim in claims(story).items() if name != "mine"]
    assert [user["name"] for user in claim["status"]["reservedFor"]] == [pod["metadata"]["name"]]
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert held(story) == [result["device"]]

    def status() -> Any:
        found = (story.vmi()["status"].get("deviceStatus") or {}).get("interfaceStatuses") or ()
        return next((each["deviceResourceClaimStatus"] for each in found if each["name"] == "fast"), {})

    until(lambda: status().get("resourceClaimName") == name, "the status of the VMI names its device")
    assert status()["name"] == result["device"]

    story.unplug("fast")
    until(lambda: not in_guest(story, "fast"), "blue has lost the NIC")
    until(lambda: not attachments(story), "its attachment pod is gone")
    until(lambda: list(claims(story)) == ["mine"], "the claim of the template is deleted")
    until(lambda: not held(story), "the device is free")
    until(lambda: not status(), "the status of the VMI does not name it any more")
    spec = story.get("vm", "blue")["spec"]["template"]["spec"]
    assert ([network["name"] for network in spec["networks"]], spec.get("resourceClaims")) == (["default"], None)
    story.untouched()
    assert story.migrations() == []

    plug(story, "fast", "net", resourceClaimTemplateName="one-vf")
    until(lambda: in_guest(story, "fast"), "it is plugged again")
    story.untouched()


def test_named_claim_stays_and_is_free_after_the_unplug(plumbed: Story) -> None:
    story = begin(plumbed)
    plug(story, "fast", "net", resourceClaimName="mine")
    until(lambda: in_guest(story, "fast"), "blue has the NIC")
    assert [user["name"] for user in claims(story)["mine"]["status"]["reservedFor"]] == [
        pod["metadata"]["name"] for pod in attachments(story)]
    story.unplug("fast")
    until(lambda: not attachments(story), "its attachment pod is gone")
    until(lambda: not (claims(story)["mine"].get("status") or {}).get("allocation"), "the claim is free")
    until(lambda: not held(story), "the device is free")
    story.untouched()


def test_two_nics_of_one_claim_share_an_attachment_pod(plumbed: Story) -> None:
    story = begin(plumbed)
    plug(story, "fast", "net", resourceClaimTemplateName="two-vfs")
    plug(story, "slow", "net", "second")
    until(lambda: in_guest(story, "fast") and in_guest(story, "slow"), "blue has both NICs")
    assert (len(attachments(story)), len(held(story)), len(claims(story))) == (1, 2, 2)
    story.unplug("fast")
    until(lambda: not in_guest(story, "fast"), "blue has lost one NIC")
    assert (len(attachments(story)), len(held(story))) == (1, 2)
    story.unplug("slow")
    until(lambda: not attachments(story) and not held(story), "with the last NIC the claim is released")
    until(lambda: list(claims(story)) == ["mine"], "and deleted")
    story.untouched()


def test_claim_without_a_free_device_waits_and_is_cancelled(plumbed: Story) -> None:
    story = begin(plumbed)
    full = json.dumps({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "full"}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": story.source},
            "resourceClaims": [{"name": f"c{number}", "resourceClaimTemplateName": "two-vfs"} for number in range(2)],
            "networks": [{"name": f"n{number}", "resourceClaim": {"claimName": f"c{number}", "requestName": "vf"}}
                         for number in range(2)],
            "domain": {"memory": {"guest": "1Gi"},
                       "devices": {"interfaces": [{"name": f"n{number}", "sriov": {}} for number in range(2)]}}}})
    story.up.ok("apply", "-f", "-", stdin=full)
    until(lambda: story.up.phase("full") == "Running", "the VFs of the host are held")
    before = held(story)
    plug(story, "fast", "net", resourceClaimTemplateName="one-vf")
    until(lambda: story.condition("InterfacesReady").get("reason") == "VfNotBooked", "it says what it waits for")
    assert "claim net is not held" in story.message("InterfacesReady")
    assert (in_guest(story, "fast"), held(story)) == (False, before)
    story.unplug("fast")
    until(lambda: not attachments(story), "the plug is cancelled, and its attachment pod is gone")
    until(lambda: len(claims(story)) == 3, "its claim, too")
    until(lambda: not story.condition("InterfacesReady"), "nothing waits any more")
    assert held(story) == before
    story.untouched()


def test_attachment_pod_that_is_deleted_by_hand_is_unplugged_first(plumbed: Story) -> None:
    story = begin(plumbed)
    plug(story, "fast", "net", resourceClaimTemplateName="one-vf")
    until(lambda: in_guest(story, "fast"), "blue has the NIC")
    [pod] = attachments(story)
    story.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    until(lambda: [each["metadata"]["uid"] for each in attachments(story)] not in ([], [pod["metadata"]["uid"]]),
          "another one is created")
    until(lambda: in_guest(story, "fast") and len(held(story)) == 1, "the NIC is plugged again, with one device")
    until(lambda: len(claims(story)) == 2, "the claim of the first pod is gone")
    story.untouched()


def test_where_nothing_is_plugged_in_place_a_migration_does_it(unplumbed: Story) -> None:
    story = begin(unplumbed, SOON)
    plug(story, "fast", "net", resourceClaimTemplateName="one-vf")
    until(lambda: 'NIC "fast" is a VF that is to be plugged' in story.message(), "it says why it migrates")
    until(lambda: story.host() == story.other, "blue has migrated")
    until(lambda: in_guest(story, "fast"), "blue has the NIC")
    until(lambda: [job["status"]["phase"] for job in story.migrations()] == ["Succeeded"], "by one migration")
    assert attachments(story) == []
    until(lambda: len(held(story)) == 1, "one device is held")
    story.untouched()
