"""A NIC that a user adds to a running VM, from `kubectl patch vm` to the NIC in the guest, embedded and on a real control plane
where kube-scheduler places the targets of migrations. The test types kubectl and reads; where the nodes' own plumbing is
switched off it also plays the dynamic-networks-controller, which writes a pod's network-status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import nic_changes
from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.nic_changes import NEVER, RESOURCE, SOON
from tests.e2e.nic_story import ASKED, Story, story_of
from tests.e2e.process import ForkedUp, until

pytestmark = pytest.mark.kubectl


@pytest.fixture(params=MODES)
def plumbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """Nodes that plug in place."""
    yield from story_of(in_mode(request, tmp_path, simulate="2x4"))


@pytest.fixture(params=MODES)
def unplumbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """Nodes whose plumbing is switched off."""
    (tmp_path / "outfitter.yaml").write_text("plug_in_place: false\n")
    yield from story_of(in_mode(request, tmp_path, "--config", str(tmp_path / "outfitter.yaml"), simulate="2x4"))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Story]:
    yield from story_of(ForkedUp(tmp_path / "data", simulate="2x4"))


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """VM blue, which no test of this fixture changes."""
    for story in story_of(ForkedUp(tmp_path_factory.mktemp("refusing") / "data", simulate="2x4")):
        yield story.begin(NEVER)


def test_in_place_there_is_no_migration(plumbed: Story) -> None:
    story = plumbed.begin(NEVER)
    story.plug("lan", bridge={})
    until(lambda: story.sources("lan") == {"domain", "multus-status"}, "blue has the NIC")
    until(lambda: "NetworkInterfacePlugged" in story.events(), "it is reported")
    story.unplug("lan")
    until(lambda: not story.sources("lan"), "blue has lost the NIC")
    until(lambda: "lan" not in story.template_networks(), "it is gone from the template, too")
    story.untouched()
    assert (story.host(), story.migrations()) == (story.source, [])


def test_nic_without_a_binding_is_a_bridge(embedded: Story) -> None:
    story = embedded.begin(NEVER)
    story.patch(nic_changes.plug("lan", "lan"))
    until(lambda: story.sources("lan") == {"domain", "multus-status"}, "blue has the NIC")
    assert "bridge" in next(line for line in story.up.ok("vm", "nic", "list", "blue").splitlines() if line.startswith("lan"))
    story.unplug("lan")
    until(lambda: "lan" not in story.template_networks(), "it is unplugged as one")
    story.untouched()


def test_dynamic_networks_controller_plugs_without_a_migration(unplumbed: Story) -> None:
    story = unplumbed.begin(NEVER)
    story.plug("lan", bridge={})
    until(lambda: [one["name"] for one in story.listed(ASKED)] == ["lan"], "the pod is to have the network")
    until(lambda: story.condition("MigrationRequired").get("status") == "False", "a migration is pending")
    assert "domain" not in story.sources("lan")
    story.dynamic_networks_controller()
    until(lambda: story.sources("lan") == {"domain", "multus-status"}, "blue has the NIC")
    story.untouched()

    story.unplug("lan")
    until(lambda: story.listed(ASKED) == [], "the pod is not to have the network any more")
    until(lambda: "domain" not in story.sources("lan"), "the guest has lost the NIC")
    story.dynamic_networks_controller()
    until(lambda: not story.sources("lan"), "the pod has lost the network")
    story.untouched()
    assert (story.host(), story.migrations()) == (story.source, [])


def test_without_plumbing_the_vm_migrates_after_the_grace_period(unplumbed: Story) -> None:
    story = unplumbed.begin(SOON)
    story.plug("lan", bridge={})
    until(lambda: story.host() == story.other, "blue has migrated")
    until(lambda: story.sources("lan") == {"domain", "multus-status"}, "blue has the NIC")
    until(lambda: [job["status"]["phase"] for job in story.migrations()] == ["Succeeded"], "by one migration")
    story.untouched()
    until(lambda: {"MigrationRequired", "Migrated"} <= story.events(), "it is reported")

    story.unplug("lan")
    until(lambda: not story.sources("lan"), "blue has lost the NIC")
    until(lambda: "lan" not in story.template_networks(), "it is gone from the template, too")
    story.untouched()
    assert story.host() == story.source


def test_vf_that_no_other_host_has_is_waited_for(unplumbed: Story) -> None:
    story = unplumbed.begin(SOON)
    story.up.ok("apply", "-f", "-", stdin=nic_changes.holder_of_vfs(story.other, 4))
    until(lambda: story.up.phase("full") == "Running", "the VFs of the other host are held")
    story.plug("fast", sriov={})
    until(lambda: "waits for a host" in (text := story.message()) and RESOURCE in text, "it says what it waits for")
    required = story.condition("MigrationRequired")
    assert (required["status"], required["reason"]) == ("True", "AutoMigrationDueToLiveUpdate")
    assert "domain" not in story.sources("fast")
    why = story.up.ok("why", "vm/blue")
    assert f"{story.other}: resource {RESOURCE} wants 1: 4 match, 0 free" in why
    assert (story.host(), story.vmi()["metadata"]["uid"]) == (story.source, story.uid)
    story.kubectl("delete", "vmi", "full")
    until(lambda: story.host() == story.other, "blue has migrated")
    until(lambda: "domain" in story.sources("fast"), "blue has the NIC")
    until(lambda: [job["status"]["phase"] for job in story.migrations()] == ["Succeeded"], "by one migration")
    story.untouched()


@pytest.mark.parametrize("what", nic_changes.BAD_CHANGES)
def test_bad_change_is_refused_by_its_field(what: str, refusing: Story) -> None:
    """On a real API server: tests/e2e/test_nic_namespace_admin.py."""
    change, before = nic_changes.BAD_CHANGES[what], refusing.get("vm", "blue")["spec"]
    text = refusing.kubectl.refused("patch", "vm", "blue", "--type=json", "-p", change.patch)
    assert change.field in text
    assert change.why in text
    assert refusing.get("vm", "blue")["spec"] == before
    refusing.untouched()


def test_network_that_does_not_exist_is_reported_and_waited_for(plumbed: Story) -> None:
    story = plumbed.begin(NEVER)
    story.patch(nic_changes.plug("wan", "wan", bridge={}))
    until(lambda: "default/wan" in story.message("InterfacesReady"), "what is missing is reported")
    assert story.condition("InterfacesReady")["reason"] == "NetworkNotReady"
    assert "default/wan" in story.up.ok("why", "vm/blue")
    assert not story.sources("wan")
    story.kubectl("apply", "-f", "-", stdin=nic_changes.NETWORKS.replace("lan", "wan"))
    until(lambda: story.sources("wan") == {"domain", "multus-status"}, "it is plugged once the network is there")
    until(lambda: not story.condition("InterfacesReady"), "nothing waits any more")
    story.untouched()
    assert story.migrations() == []


def test_migration_to_the_own_host_or_a_second_one_is_refused(embedded: Story) -> None:
    story = embedded.begin(NEVER, speed="1Mi")
    text = story.kubectl.refused("create", "-f", "-", stdin=nic_changes.migration("first", story.source))
    assert "spec.addedNodeSelector[kubernetes.io/hostname]" in text
    assert f"runs on {story.source} already" in text
    story.kubectl("create", "-f", "-", stdin=nic_changes.migration("first"))
    text = story.kubectl.refused("create", "-f", "-", stdin=nic_changes.migration("second"))
    assert "spec.vmiName" in text
    assert "in-flight migration detected: migration first of this VMI" in text
    assert [job["metadata"]["name"] for job in story.migrations()] == ["first"]


def test_nothing_is_plugged_while_the_vm_migrates(plumbed: Story) -> None:
    story = plumbed.begin(NEVER, speed="1Mi")
    story.kubectl("create", "-f", "-", stdin=nic_changes.migration("slow"))
    until(lambda: story.get("vmim", "slow").get("status", {}).get("phase") == "Running", "blue migrates")
    story.plug("lan", bridge={})
    until(lambda: "lan" in story.kubectl("get", "vmi", "blue", "-o", "jsonpath={.spec.networks}"), "the VMI is to have it")
    until(lambda: story.condition("InterfacesReady").get("reason") == "VmMigrates", "it says why it waits")
    assert 'NIC "lan" is to be plugged' in story.message("InterfacesReady")
    assert "VmMigrates" in story.up.ok("why", "vm/blue")
    assert not story.sources("lan")
    story.kubectl("delete", "vmim", "slow", "--wait=false")
    until(lambda: story.sources("lan") == {"domain", "multus-status"}, "it is plugged afterwards")
    until(lambda: not story.condition("InterfacesReady"), "nothing waits any more")
    assert story.host() == story.source
    story.untouched()


def test_migration_to_a_full_host_waits_with_the_reason(plumbed: Story) -> None:
    story = plumbed.begin(NEVER)
    story.up.ok("apply", "-f", "-", stdin=nic_changes.holder_of_memory(story.other))
    until(lambda: story.up.phase("full") == "Running", "the other host is full")
    story.kubectl("create", "-f", "-", stdin=nic_changes.migration("away", story.other))

    def waits() -> Any:
        found = story.get("vmim", "away").get("status", {}).get("conditions") or ()
        return next((each for each in found if each.get("reason") == "TargetUnschedulable"), None)

    until(waits, "it says that no host can take it")
    assert f"{story.other}: 638Mi of 64Gi memory free" in story.up.ok("why", "vmim/away")
    assert (story.host(), story.up.phase("blue")) == (story.source, "Running")
    story.kubectl("delete", "vmim", "away")
    until(lambda: len(story.get("pods", "-l", "kubevirt.io=virt-launcher")["items"]) == 2, "the target's pod is gone")
    story.untouched()
