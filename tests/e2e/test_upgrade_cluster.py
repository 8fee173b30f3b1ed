"""Upgrades and rollbacks of a running cluster, with the roles as processes: releases side by side, the previous release's roles
before and after, and the feature gates of document 000 switched off under a running VM."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.install import crds
from tests import control_planes, kubernetes
from tests.apiserver.aggregated.test_aggregation_layer import Aggregation
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.controllers.scenario import hosts_text
from tests.e2e.process import typed, until
from tests.install import previous_release, releases

pytestmark = pytest.mark.cluster
DRA = "resource.k8s.io/v1"
ADDED = {"ofALaterVersion": {"any": ["thing", 1]}}  # a field that no version knows yet
GATES = ["GPUsWithDRA", "HostDevicesWithDRA", "NetworkDevicesWithDRA"]


class UpgradedCluster:
    """A control plane on which releases are exchanged, and what a user does there."""

    def __init__(self, cluster: kubernetes.Cluster) -> None:
        self.cluster = cluster

    def get(self, kind: Kind, name: str) -> Object:
        return dict(json.loads(self.cluster.request("GET", kind.path("default", name))))

    def all(self, kind: Kind) -> list[Object]:
        return list(json.loads(self.cluster.request("GET", kind.path("default")))["items"])

    def kubectl(self, *words: str, stdin: str = "") -> str:
        done = self.cluster.kubectl(*words, stdin=stdin)
        assert done.returncode == 0, done
        return done.stdout

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def template(self) -> None:
        """A claim template for a VF of any host."""
        self.apply(
            {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "vf"}, "spec": {"selectors": [{"cel": {
                "expression": 'device.attributes[device.driver].?kind.orValue("") == "VF"'}}]}},
            {"apiVersion": DRA, "kind": "ResourceClaimTemplate", "metadata": {"name": "one-vf"}, "spec": {"spec": {
                "devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}}})

    def patch(self, kind: Kind, name: str, change: Object, *words: str) -> None:
        self.kubectl("patch", kind.plural, name, "--type=merge", "-p", json.dumps(change), *words)

    def running(self, name: str) -> Object:
        def look() -> Object | None:
            vmi = self.get(kinds.VMI, name)
            return vmi if (vmi.get("status") or {}).get("phase") == "Running" else None

        return until(look, f"{name} runs") or {}

    def state(self, name: str) -> dict[str, Any]:
        """What a running VM consists of, without what any write changes."""
        vmi = self.running(name)
        page = self.get(kinds.LEDGER_PAGE, vmi["status"]["nodeName"])
        held = [booking for booking in page["spec"]["bookings"] if booking["holder"].get("purpose") == f"vmi/{name}"]
        assert held
        return {"uid": vmi["metadata"]["uid"], "devices": vmi["status"]["deviceStatus"], "bookings": held}

    def delete(self, *names: str) -> None:
        self.kubectl("delete", "vmi", *names, "--wait=false")
        until(lambda: not any(map(self.all, (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM))), "nothing is left")
        until(lambda: not any(page["spec"]["bookings"] for page in self.all(kinds.LEDGER_PAGE)), "nothing is booked")


def vmi(name: str, node: str = "", *, devices: bool = True) -> Object:
    spec: Object = {"domain": {"memory": {"guest": "1Gi"}, "devices": {}}}
    if devices:
        spec["resourceClaims"] = [{"name": "net", "resourceClaimTemplateName": "one-vf"}]
        spec["domain"]["devices"]["hostDevices"] = [{"name": "nic", "claimName": "net", "requestName": "nic"}]
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec,
            "metadata": {"name": name, "namespace": "default"}}


@pytest.fixture
def here(control_plane: kubernetes.Cluster, tmp_path: Path) -> Iterator[UpgradedCluster]:
    yield UpgradedCluster(control_plane)
    ClusterRoles(control_plane, tmp_path / "roles").install()  # today's definitions, and no webhook
    control_planes.clear(control_plane)


@pytest.fixture
def roles(control_plane: kubernetes.Cluster, here: UpgradedCluster, tmp_path: Path) -> Iterator[ClusterRoles]:
    """Of an installation of the version under test, without webhook."""
    started = ClusterRoles(control_plane, tmp_path / "roles")
    started.installed()
    try:
        yield started
    finally:
        started.stop()


def test_versions_side_by_side(here: UpgradedCluster, roles: ClusterRoles, tmp_path: Path) -> None:
    """Controllers two minor versions ahead, and agents two behind them, one behind, and newer: all work, and the two that are
    not supported are reported with a code. Fields that no writer knows outlive them all."""
    controllers = releases.minor_version(2)
    agents = {"behind-0": 0, "next-0": 1, "newer-0": 3}  # node -> minor versions newer than the one under test
    roles.start("controller", release=releases.renumbered(tmp_path, controllers)).ready()
    runs = [_agent(roles, tmp_path, name, releases.renumbered(tmp_path, releases.minor_version(more)) if more else None)
            for name, more in agents.items()]
    for run in runs:
        run.ready()
    assert {name: here.get(kinds.HOST_INVENTORY, name)["spec"]["agentVersion"] for name in agents} == {
        name: releases.minor_version(more) for name, more in agents.items()}

    def reported() -> dict[str, str]:
        events = json.loads(here.kubectl("get", "events", "-A", "-o", "json"))["items"]
        return {event["involvedObject"]["name"]: event["reason"] for event in events if event["reason"].startswith("Agent")}

    until(lambda: len(reported()) == 2, "two agents are reported")
    here.template()
    here.apply(*(vmi(f"on-{name}", name) for name in agents))
    for name in agents:
        assert here.running(f"on-{name}")["status"]["nodeName"] == name
        here.patch(kinds.LEDGER_PAGE, name, {"spec": ADDED})
        here.patch(kinds.VMI, f"on-{name}", {"status": ADDED}, "--subresource=status")
    assert reported() == {"behind-0": "AgentTooOld", "newer-0": "AgentNewer"}
    lease = json.loads(here.kubectl("-n", "outfitter-system", "get", "lease", "outfitter-controller", "-o", "json"))
    assert lease["metadata"]["annotations"][kinds.VERSION_ANNOTATION] == controllers
    found = json.loads(typed("doctor", "-o", "json", kubeconfig=here.cluster.kubeconfig).out)["findings"]
    wrong = {(finding["code"], finding["subject"]) for finding in found if finding["level"] == "error"}
    assert {("cluster-version-skew", "node/behind-0"), ("cluster-version-skew", "node/newer-0")} <= wrong
    assert ("cluster-version-skew", "node/next-0") not in wrong
    for name in agents:
        assert here.get(kinds.VMI, f"on-{name}")["status"]["ofALaterVersion"] == ADDED["ofALaterVersion"]
    here.delete(*(f"on-{name}" for name in agents))
    assert [here.get(kinds.LEDGER_PAGE, name)["spec"]["ofALaterVersion"] for name in agents] == [ADDED["ofALaterVersion"]] * 3
    assert roles.forbidden() == []


def _agent(roles: ClusterRoles, folder: Path, name: str, release: Path | None) -> RoleRun:
    """A node agent with one simulated host."""
    hosts = folder / f"{name}.yaml"
    hosts.write_text(hosts_text(name.removesuffix("-0"), 4))  # which adds it
    return roles.start("node", "--simulate", str(hosts), name=f"agent-{name}", release=release)


def test_the_roles_of_the_previous_release_are_exchanged_under_running_vms(
    here: UpgradedCluster, roles: ClusterRoles, tmp_path: Path
) -> None:
    """Everything of the previous release; then its agent with today's controllers; then today's agent; then its agent again.
    VMs of each time run on with what they have, and all of them can be deleted at the end."""
    release = releases.previous(tmp_path)
    if release is None:
        pytest.skip("needs the history of a clone, with the previous release in it")
    here.template()
    controller = roles.start("controller", release=release, name="controller-before").ready()
    agent = _agent(roles, tmp_path, "host", release).ready()
    here.apply(vmi("first"))
    states = {"first": here.state("first")}
    for name, new_controller, new_agent in (("second", True, False), ("third", True, True), ("fourth", True, False)):
        if new_controller and "before" in controller.name:
            controller.stop()
            controller = roles.start("controller").ready()
        agent.stop()
        agent = _agent(roles, tmp_path, "host", None if new_agent else release).ready()
        here.apply(vmi(name))
        states[name] = here.state(name)
        assert {vm: here.state(vm) for vm in states} == states, f"after the exchange before {name}"
    here.delete(*states)
    assert roles.forbidden() == []


def test_gates_are_switched_off_before_a_rollback(here: UpgradedCluster, tmp_path: Path) -> None:
    """As document 000 asks for: gate off, VMIs that use DRA devices deleted, definitions of the previous release back. What
    needs no gate runs on, and nothing is lost."""
    layer = Aggregation(here.cluster, tmp_path / "roles", "--simulation")
    roles = layer.roles
    try:
        roles.start("controller").ready()
        roles.start("node", "--simulate", "1x4").ready()
        here.template()
        meta = {"name": "kubevirt", "namespace": "default"}
        here.apply({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": meta}, vmi("blue"),
                   vmi("plain", devices=False))
        before, plain = here.state("blue"), here.running("plain")["metadata"]["uid"]
        here.patch(kinds.KUBEVIRT, "kubevirt", {"spec": {"configuration": {"developerConfiguration": {
            "disabledFeatureGates": GATES}}}})
        until(lambda: "default/blue" in str(_in_use(here).get("message")), "the VM is named")

        def refused() -> str:
            done = here.cluster.kubectl("create", "-f", "-", stdin=json.dumps(vmi("green")))
            if done.returncode == 0:  # the webhook has not seen the gate yet
                here.kubectl("delete", "vmi", "green")
            return done.stderr

        assert "HostDevicesWithDRA" in until(refused, "a new one is refused")
        assert here.state("blue") == before, "the running one keeps what it has"
        [blocking] = [each for each in _findings(here) if each["level"] == "warning"]
        assert (blocking["subject"], "default/blue" in blocking["message"]) == ("gate/HostDevicesWithDRA", True)
        here.kubectl("delete", "vmi", "blue")
        until(lambda: _in_use(here).get("status") == "False", "no VMI uses a gate that is off")
        until(lambda: not any(page["spec"]["bookings"] for page in here.all(kinds.LEDGER_PAGE)), "its device is free")
        assert [each["level"] for each in _findings(here)] == ["ok"]
        kept = _listed(here, (*crds.KUBEVIRT, *crds.OURS))
        for kind in (*crds.KUBEVIRT, *crds.OURS):
            versions = previous_release.definition(kind, kind.version)["spec"]["versions"]
            here.kubectl("patch", "crd", kind.resource, "--type=merge", "-p", json.dumps({"spec": {"versions": versions}}))
        until(lambda: _listed(here, kept) == kept, "all objects are served again, and none is lost")
        assert here.running("plain")["metadata"]["uid"] == plain
        assert kept[kinds.PAST_BOOKING], "the history has what it held"
        assert roles.forbidden() == []
        here.delete("plain")
    finally:
        roles.stop()


def _listed(here: UpgradedCluster, served: Iterable[Kind]) -> dict[Kind, set[str]]:
    """The uids of all objects; none while the API server exchanges definitions."""
    try:
        return {kind: {obj["metadata"]["uid"] for obj in here.all(kind)} for kind in served}
    except urllib.error.HTTPError:
        return {}


def _in_use(here: UpgradedCluster) -> Object:
    return dict(conditions.find(here.get(kinds.KUBEVIRT, "kubevirt"), conditions.GATES_IN_USE) or {})


def _findings(here: UpgradedCluster) -> list[Object]:
    found = json.loads(typed("doctor", "-o", "json", kubeconfig=here.cluster.kubeconfig).out)["findings"]
    return [finding for finding in found if finding["code"] == "cluster-gates-in-use"]
