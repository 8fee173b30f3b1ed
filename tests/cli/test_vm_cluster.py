"""`outfit vm` on a Kubernetes API server, which has no actions on VMs: the same rules say what is written from here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter.api.kinds import Object
from tests import kubernetes
from tests.e2e.process import Typed, typed

pytestmark = pytest.mark.cluster
PLACE = "vm-words"


class ClusterCli:
    def __init__(self, cluster: kubernetes.Cluster) -> None:
        self._cluster = cluster

    def say(self, *words: str, code: int = 0) -> Typed:
        done = typed("vm", *words, "-n", PLACE, kubeconfig=self._cluster.kubeconfig)
        assert done.code == code, done
        return done

    def kubectl(self, *words: str, stdin: str = "") -> str:
        done = self._cluster.kubectl(*words, stdin=stdin)
        assert done.returncode == 0, done
        return done.stdout

    def get(self, kind: str, name: str) -> Any:
        return json.loads(self.kubectl("get", "-n", PLACE, kind, name, "-o", "json"))

    def vm(self, name: str, strategy: str, *, runs: bool = False) -> None:
        template: Object = {"spec": {"domain": {"devices": {}}}}
        made = self._create("VirtualMachine", name, {"runStrategy": strategy, "template": template})
        if runs:
            owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "controller": True,
                     "uid": made["metadata"]["uid"]}
            self._create("VirtualMachineInstance", name, template["spec"], ownerReferences=[owner])
            self.kubectl("patch", "-n", PLACE, "vmi", name, "--subresource=status", "--type=merge", "-p",
                         '{"status": {"phase": "Running"}}')

    def _create(self, kind: str, name: str, spec: Object, **meta: object) -> Any:
        body = {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": name, "namespace": PLACE, **meta},
                "spec": spec}
        return json.loads(self.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(body)))


@pytest.fixture
def cli(cluster: kubernetes.Cluster) -> Iterator[ClusterCli]:
    made = ClusterCli(cluster)
    made.kubectl("create", "namespace", PLACE)
    yield made
    made.kubectl("delete", "-n", PLACE, "vm,vmi", "--all")
    made.kubectl("delete", "namespace", PLACE, "--wait=false")


def test_what_is_asked_is_written_by_the_same_rules(cli: ClusterCli) -> None:
    cli.vm("still", "Manual")
    cli.vm("halted", "Halted")
    cli.vm("runs", "Manual", runs=True)
    assert "dry run" in cli.say("start", "still", "--dry-run").out
    assert "status" not in cli.get("vm", "still")
    cli.say("start", "still")
    assert cli.get("vm", "still")["status"]["stateChangeRequests"] == [{"action": "Start"}]
    assert "Start already underway" in cli.say("start", "still", code=1).err
    cli.say("stop", "still")
    assert not cli.get("vm", "still")["status"].get("stateChangeRequests"), "it is cancelled"
    cli.say("start", "halted", "--paused", "--dry-run")
    assert (cli.get("vm", "halted")["spec"]["runStrategy"], cli.get("vm", "halted").get("status")) == ("Halted", None)
    cli.say("start", "halted", "--paused")
    halted = cli.get("vm", "halted")
    assert halted["spec"]["runStrategy"] == "Always"
    assert halted["status"]["stateChangeRequests"] == [{"action": "Start", "data": {"paused": "true"}}]

    cli.say("pause", "runs", "--dry-run")
    assert "stateChangeRequests" not in cli.get("vmi", "runs")["status"]
    cli.say("pause", "runs")
    assert [each["action"] for each in cli.get("vmi", "runs")["status"]["stateChangeRequests"]] == ["Pause"]
    assert "VMI is already paused" in cli.say("pause", "runs", code=1).err
    cli.say("stop", "runs", "--grace-period", "5")
    uid = cli.get("vmi", "runs")["metadata"]["uid"]
    assert cli.get("vm", "runs")["status"]["stateChangeRequests"] == [{"action": "Stop", "uid": uid}]
    assert cli.get("vmi", "runs")["spec"]["terminationGracePeriodSeconds"] == 5
