"""NICs that come by a migration, because no node plugs them in place: embedded, and on a real control plane where
kube-scheduler places the targets. What a user types is a changed VM, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_up import CLUSTER, MODES, in_mode
from tests.e2e.process import ROOT, Up, until

NETWORKS = ROOT / "examples" / "04-network" / "1-networks.yaml"
HOSTS = (ROOT / "examples" / "hosts" / "one-uplink.yaml").read_text().replace(
    "name: rack", "name: rack\n    count: 2").replace("count: 2, total", "count: 1, total")
DEFAULT: Any = {"name": "default", "masquerade": {}}
POD: Any = {"name": "default", "pod": {}}
RESOURCE = "example.com/fast_vf"


@pytest.fixture(params=MODES)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    hosts, config = tmp_path / "hosts.yaml", tmp_path / "config.yaml"
    hosts.write_text(HOSTS)
    config.write_text("plug_in_place: false\n")
    with in_mode(request, tmp_path, "--config", str(config), simulate=str(hosts)) as running:
        yield running
        assert not running.log()


def vm(name: str, *nics: tuple[Any, str]) -> Any:
    """With the pod network, and these cards on these networks."""
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": meta, "spec": {
        "runStrategy": "Always", "template": {"spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [DEFAULT, *(card for card, _ in nics)]}},
            "networks": [POD, *({"name": card["name"], "multus": {"networkName": network}} for card, network in nics)]}}}}


LAN: tuple[Any, str] = ({"name": "lan", "bridge": {}}, "lan")
FAST: tuple[Any, str] = ({"name": "fast", "sriov": {}}, "fast")


def begin(up: Up, *vms: Any) -> None:
    settings = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {
        "name": "kubevirt", "namespace": "kubevirt", "annotations": {
            "outfitter.dev/nic-hotplug-grace-period-seconds": "1"}}, "spec": {}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubevirt"}}
    up.ok("apply", "-f", str(NETWORKS), "-f", "-", stdin=listed(namespace, settings, *vms))
    names = [each["metadata"]["name"] for each in vms]
    until(lambda: all(up.phase(name) == "Running" for name in names), f"{', '.join(names)} run")


def listed(*objects: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def vmi(up: Up, name: str = "blue") -> Any:
    return json.loads(up.ok("get", "vmi", name, "-o", "json"))


def wanted(up: Up, name: str = "blue") -> Any:
    return json.loads(up.ok("get", "vm", name, "-o", "json"))["spec"]["template"]


def in_guest(up: Up, name: str = "blue") -> list[str]:
    found = vmi(up, name)["status"].get("interfaces") or ()
    return sorted(entry["name"] for entry in found if "domain" in entry.get("infoSource", ""))


def required(up: Up) -> Any:
    return next((each for each in vmi(up)["status"]["conditions"] if each["type"] == "MigrationRequired"), {})


@pytest.mark.thorough  # it waits for the grace period
def test_a_bridge_nic_comes_and_goes_with_a_migration(up: Up) -> None:
    begin(up, vm("blue"))
    first = vmi(up)
    up.ok("apply", "-f", "-", stdin=listed(vm("blue", LAN)))
    until(lambda: in_guest(up) == ["default", "lan"] and not required(up), "the NIC is plugged")
    moved = vmi(up)
    assert moved["metadata"]["uid"] == first["metadata"]["uid"]
    assert moved["status"]["nodeName"] != first["status"]["nodeName"]
    assert len(up.ok("get", "vmim", "-o", "name").split()) == 1
    assert "RestartRequired" not in up.ok("get", "vm", "blue", "-o", "yaml")

    up.ok("apply", "-f", "-", stdin=listed(vm("blue", ({**LAN[0], "state": "absent"}, "lan"))))
    until(lambda: [each["name"] for each in vmi(up)["spec"]["networks"]] == ["default"], "the NIC is unplugged")
    until(lambda: "networkName" not in str(wanted(up)), "it leaves the template")
    assert vmi(up)["status"]["nodeName"] == first["status"]["nodeName"]


def test_a_vf_is_waited_for_with_the_reason(up: Up, request: pytest.FixtureRequest) -> None:
    """The only VF of the other host is held: the condition and why say that, and the NIC comes when it is free."""
    begin(up, vm("blue"), vm("one", FAST), vm("two", FAST))
    up.ok("apply", "-f", "-", stdin=listed(vm("blue", FAST)))
    until(lambda: RESOURCE in str(required(up).get("message")), "the condition names what is missing")
    assert (required(up)["status"], required(up)["reason"]) == ("True", "AutoMigrationDueToLiveUpdate")
    assert in_guest(up) == ["default"]
    why = up.ok("why", "vm/blue")
    assert RESOURCE in why
    here = vmi(up)["status"]["nodeName"]
    assert "held by vmi/" in why or request.node.callspec.params["up"] == CLUSTER
    holder = next(name for name in ("one", "two") if vmi(up, name)["status"]["nodeName"] != here)
    up.ok("delete", "vm", holder)
    until(lambda: in_guest(up) == ["default", "fast"] and not required(up), "the NIC is plugged")
    assert vmi(up)["status"]["nodeName"] != here
