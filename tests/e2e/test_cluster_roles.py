"""The product on a real control plane, each role a process with the token of its service account: kube-scheduler allocates, the
node agent plays the kubelets of simulated nodes. Processes are killed and restarted in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.install.names import InstallOptions
from outfitter.install.webhooks import objects as webhook_objects
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import NAMESPACE, ClusterRoles, RoleRun
from tests.cluster_watch import ClusterWatch
from tests.e2e.process import EXAMPLE, until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def installed(control_plane: kubernetes.Cluster, tmp_path_factory: pytest.TempPathFactory) -> ClusterRoles:
    return ClusterRoles(control_plane, tmp_path_factory.mktemp("roles")).installed()


@pytest.fixture
def roles(installed: ClusterRoles, tmp_path: Path) -> Iterator[ClusterRoles]:
    started = ClusterRoles(installed.cluster, tmp_path)
    try:
        yield started
    finally:
        started.stop()
        print(started.logs())
        for path in ("/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices"):  # no host without an agent is left
            installed.cluster.request("DELETE", path)


def kubectl(roles: ClusterRoles, *words: str, stdin: str = "") -> str:
    done = roles.cluster.kubectl(*words, stdin=stdin)
    assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def items(roles: ClusterRoles, kind: Kind) -> list[Object]:
    """All of a kind, in all namespaces."""
    found: list[Object] = json.loads(roles.cluster.request("GET", kind.path()))["items"]
    return found


def running(roles: ClusterRoles, name: str) -> Object:
    def look() -> Object | None:
        found = [vmi for vmi in items(roles, kinds.VMI) if vmi["metadata"]["name"] == name]
        return found[0] if found and (found[0].get("status") or {}).get("phase") == "Running" else None

    return until(look, f"{name} runs\n{roles.logs()}") or {}


def bookings(roles: ClusterRoles) -> list[str]:
    pages = items(roles, kinds.LEDGER_PAGE)
    return [booking["device"]["device"] for page in pages for booking in page["spec"].get("bookings") or ()]


def address(vmi: Object) -> str:
    [[entry]] = vmi["status"]["deviceStatus"].values()
    found: str = entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
    return found


def leader(roles: ClusterRoles) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/outfitter-controller"
    lease = json.loads(roles.cluster.request("GET", path))
    return str(lease["spec"].get("holderIdentity") or "")


def leads(run: RoleRun) -> bool:
    return "outfitter_leader 1.0" in run.metrics()


def test_vms_keep_their_devices_over_kills_and_restarts_of_every_role(roles: ClusterRoles) -> None:
    first = roles.start("controller", name="controller-a").ready()
    first.until_said("the controllers run")
    second, node = roles.start("controller", name="controller-b").ready(), roles.start("node", "--simulate", "2x1").ready()
    kubectl(roles, "apply", "-f", str(EXAMPLE))
    before = {name: running(roles, name) for name in ("blue", "green")}
    assert {part["spec"]["driver"] for part in items(roles, kinds.RESOURCE_SLICE)} == {"pci.outfitter.dev"}
    assert len(bookings(roles)) == 2

    assert (leads(first), leads(second)) == (True, False)
    held_by = leader(roles)
    first.kill()
    second.until_said("the controllers run")
    assert leader(roles) != held_by
    node.kill()
    kubectl(roles, "delete", "vmi", "green", "--wait=false")  # no agent runs: it waits until one does
    node = roles.start("node", "--simulate", "2x1").ready()
    until(lambda: len(bookings(roles)) == 1, "the device of green is free")
    after = running(roles, "blue")
    assert (address(after), after["metadata"]["uid"], after["status"]["nodeName"]) == (
        address(before["blue"]), before["blue"]["metadata"]["uid"], before["blue"]["status"]["nodeName"])
    assert [vmi["metadata"]["name"] for vmi in items(roles, kinds.VMI)] == ["blue"]

    kubectl(roles, "delete", "vmi", "blue")
    until(lambda: not bookings(roles), "all devices are free")
    until(lambda: not items(roles, kinds.RESOURCE_CLAIM), "all claims are gone")
    assert (second.stop(), node.stop()) == (0, 0)
    assert leader(roles) == ""  # given back: the next need not wait
    assert not [line for run in roles.runs for line in run.lines() if line["level"] == "error"]
    assert roles.forbidden() == []


VMS = 20
BATCH: Object = {"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "vf-of-batch"}, "spec": {"selectors": [
        {"cel": {"expression": 'device.attributes["pci.outfitter.dev"].kind == "VF"'}}]}},
    {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
     "metadata": {"name": "one-of-batch", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": [
         {"name": "nic", "exactly": {"deviceClassName": "vf-of-batch"}}]}}}},
    *({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": f"vm-{number}", "namespace": "default"},
       "spec": {"runStrategy": "Always", "template": {"spec": {
           "resourceClaims": [{"name": "net", "resourceClaimTemplateName": "one-of-batch"}], "domain": {"devices": {
               "hostDevices": [{"name": "nic0", "claimName": "net", "requestName": "nic"}]}}}}}} for number in range(VMS))]}


def test_the_next_leader_goes_on_with_a_batch_and_does_nothing_twice(roles: ClusterRoles) -> None:
    """The leader is killed in the middle of a batch of VMs; what it had begun is finished by the next."""
    first = roles.start("controller", name="controller-a").ready()
    first.until_said("the controllers run")
    second, node = roles.start("controller", name="controller-b").ready(), roles.start("node", "--simulate", "4x8").ready()

    async def batch() -> None:
        clock = SystemClock()
        store = Kube(roles.cluster.access(), clock=clock)
        try:
            async with ClusterWatch(store) as seen:
                creating = asyncio.create_task(asyncio.to_thread(kubectl, roles, "create", "-f", "-", stdin=json.dumps(BATCH)))
                await seen.until(lambda: len(seen.allocated) >= VMS // 4, f"{VMS // 4} claims are allocated")
                first.kill()
                await creating
                assert len(seen.running) < VMS, "the next leader has nothing to do"
                await seen.until(lambda: len(seen.running) == VMS, f"{VMS} VMs run\n{roles.logs()}")
                assert (await seen.settled_differences(), seen.twice()) == ([], [])
                assert len(seen.live[kinds.POD]) == len(seen.live[kinds.RESOURCE_CLAIM]) == VMS
        finally:
            await store.close()

    asyncio.run(batch())
    assert (leads(second), node.process.poll()) == (True, None)
    kubectl(roles, "delete", "-f", "-", stdin=json.dumps(BATCH))
    until(lambda: not bookings(roles), "all devices are free")
    until(lambda: not items(roles, kinds.RESOURCE_CLAIM), "all claims are gone")
    assert not [line for run in (second, node) for line in run.lines() if line["level"] == "error"]
    assert roles.forbidden() == []


def test_health_and_metrics(roles: ClusterRoles) -> None:
    controller = roles.start("controller").ready()
    controller.until_said("the controllers run")
    assert controller.healthy("/healthz")
    assert controller.healthy("/livez")
    assert controller.healthy("/readyz")
    assert not controller.healthy("/elsewhere")
    assert leads(controller)
    assert 'workqueue_depth{name="vmi"}' in controller.metrics()


def test_a_second_controller_without_leader_election_is_refused(roles: ClusterRoles) -> None:
    first = roles.start("controller", "--no-leader-elect", name="controller-a").ready()
    second = roles.start("controller", "--no-leader-elect", name="controller-b")
    assert second.end() == 1
    [refusal] = [line for line in second.lines() if line["level"] == "error"]
    assert refusal["code"] == "outfitter.startup.refused"
    assert "--leader-elect" in refusal["message"]
    assert first.stop() == 0


def test_a_user_without_rights_is_told_which_are_missing(roles: ClusterRoles) -> None:
    roles.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "guest"}})
    access = roles.kubeconfig("guest")
    for role, words in (("controller", ()), ("node", ("--simulate", "1x1"))):
        refused = roles.start(role, *words, kubeconfig=access)
        assert refused.end() == 1
        [line] = [line for line in refused.lines() if line["level"] == "error"]
        assert f"system:serviceaccount:{NAMESPACE}:guest" in line["message"]
        assert f"ClusterRole outfitter-{role}" in line["message"]


def test_an_agent_whose_host_is_no_node_is_refused(roles: ClusterRoles) -> None:
    refused = roles.start("node", "--node-name", "nowhere")
    assert refused.end() == 1
    assert "no such Node" in refused.said
    assert "--node-name" in refused.said


def test_a_simulated_host_does_not_take_the_name_of_a_real_node(roles: ClusterRoles) -> None:
    roles.create("/api/v1/nodes", {"metadata": {"name": "real-0"}})
    hosts = roles.folder / "hosts.yaml"
    hosts.write_text("hosts:\n- name: real-0\n  numa: [{id: 0, cpus: 0-3, memory: 4Gi}]\n  pci: []\n")
    refused = roles.start("node", "--simulate", str(hosts))
    assert refused.end() == 1
    assert "real-0 has the name of a Node that is not simulated" in refused.said
    kubectl(roles, "delete", "node", "real-0")


def test_running_vms_do_without_the_webhook(roles: ClusterRoles) -> None:
    """With it away nothing new gets in; what runs is observed, stopped and released."""
    webhook = roles.start("webhook", "--address", "127.0.0.1:0").ready()
    url = webhook.until_said("it listens on").rpartition(" ")[2]
    options = InstallOptions(namespace=NAMESPACE, webhook_url=url)
    called = [obj for obj in webhook_objects(options) if obj["kind"].endswith("WebhookConfiguration")]
    kubectl(roles, "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": called}))
    try:
        gpu = {"name": "g", "claimName": "none", "requestName": "r"}
        bad = json.dumps({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "bad"},
                          "spec": {"domain": {"devices": {"gpus": [gpu]}}}})

        def refused(words: str) -> bool:
            done = roles.cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=bad)
            return done.returncode != 0 and words in done.stderr

        until(lambda: refused("spec.resourceClaims"), "the API server asks the webhook")
        controller, node = roles.start("controller").ready(), roles.start("node", "--simulate", "2x1").ready()
        kubectl(roles, "apply", "-f", str(EXAMPLE))
        before = {name: running(roles, name) for name in ("blue", "green")}
        webhook.kill()
        assert refused("failed calling webhook")
        kubectl(roles, "delete", "vmi", "green")
        until(lambda: len(bookings(roles)) == 1, "the device of green is free")
        node.kill()
        node = roles.start("node", "--simulate", "2x1").ready()
        after = running(roles, "blue")
        assert after["metadata"]["uid"] == before["blue"]["metadata"]["uid"]
        kubectl(roles, "delete", "vmi", "blue")
        until(lambda: not bookings(roles), "all devices are free")
        assert (controller.stop(), node.stop(), roles.forbidden()) == (0, 0, [])
    finally:
        for obj in called:
            kubectl(roles, "delete", obj["kind"], obj["metadata"]["name"], "--ignore-not-found")
