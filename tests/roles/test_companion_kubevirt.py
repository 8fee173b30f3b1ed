"""Companion mode with KubeVirt itself (make judges): virt-controller and virt-api on a real control plane, our roles beside
them with the tokens of their service accounts and the rights of `outfit install --apply --companion`. A VM of KubeVirt gets a
device of our driver: kube-scheduler allocates it, our ledger books it, our driver prepares it when the kubelet calls. The
kubelet is played by a client of the published protobuf files, virt-handler with its user; the hardware is a folder in place of
/sys. The audit log shows who wrote which field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.install import names
from outfitter.store.clock import SystemClock, rfc3339
from tests import control_planes, kubernetes
from tests.cluster_roles import ACCOUNTS, NAMESPACE, ClusterRoles, RoleRun
from tests.e2e.process import outfit, until
from tests.node.kubelet import driver_host, kubelet_client, real_kubelet
from tests.node.kubelet.claim_kubelet import HostFolders
from tests.node.kubelet.kubelet_client import KubeletClient
from tests.roles import audit_writes, kubevirt_control_plane
from tests.roles.audit_writes import FieldWrite
from tests.roles.kubevirt_control_plane import KubeVirtControlPlane

pytestmark = [pytest.mark.judges, pytest.mark.time_limit(1800)]
NODE, DRIVER = "node-a", "pci.outfitter.dev"
HOST = f"""
hosts:
- name: {NODE}
  numa: [{{id: 0, cpus: 0-3, memory: 8Gi}}]
  pci:
  - {{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: vfio-pci, iommuGroup: 20, numa: 0}}
"""
DEVICE = "pci-0000-65-00-0"
AMOUNTS = {"cpu": "8", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi", "hugepages-2Mi": "0",
           **{f"devices.kubevirt.io/{name}": "100" for name in ("kvm", "tun", "vhost-net")}}
NODE_OBJECT = {
    "apiVersion": "v1", "kind": "Node",
    "metadata": {"name": NODE, "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                                          "kubernetes.io/hostname": NODE}},
    "status": {"capacity": AMOUNTS, "allocatable": AMOUNTS, "conditions": [{"type": "Ready", "status": "True"}]},
}
# Of virt-handler, which also reports machine types and CPU models that its node's libvirt has.
LABELS = {"kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true"}
CLAIMS: list[Object] = [
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}},
    {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
     "metadata": {"name": "one-gpu", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": [
         {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}},
]
VM = {
    "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "blue", "namespace": "default"},
    "spec": {"runStrategy": "Always", "template": {"spec": {
        "terminationGracePeriodSeconds": 0, "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "one-gpu"}],
        "domain": {"resources": {"requests": {"memory": "64Mi"}}, "devices": {
            "gpus": [{"name": "gpu", "claimName": "mine", "requestName": "gpu"}]}}}}},
}
OURS = f"system:serviceaccount:{NAMESPACE}:"
THEIRS = f"system:serviceaccount:{kubevirt_control_plane.NAMESPACE}:"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    if real_kubelet.no_namespace():
        pytest.skip(real_kubelet.NO_NAMESPACE)
    folder = tmp_path_factory.mktemp("plane")
    with control_planes.started(folder, scheduler=True, controllers=True, learn=(),
                                apiserver_flags=audit_writes.flags(folder)) as running:
        yield running


class SharedCluster:
    """A cluster with KubeVirt and its companion, and one node."""

    def __init__(self, plane: kubernetes.Cluster, programs: Path, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.kubevirt = KubeVirtControlPlane(plane, programs, folder / "kubevirt")
        self.roles = ClusterRoles(plane, folder / "roles")
        self.kubelet_folder = folder / "kubelet"
        self.client = KubeletClient(kubelet_client.published_definitions() or kubelet_client.our_definitions())
        (self.kubelet_folder / "plugins_registry").mkdir(parents=True)
        self.host = HostFolders(folder / "host", HOST)

    def start(self) -> None:
        kubevirt = self.kubevirt
        kubevirt.install()
        kubevirt.start_controller()
        kubevirt.start_api()
        kubevirt.kubectl("create", "-f", "-", stdin=json.dumps(NODE_OBJECT))
        self.heartbeat()
        [port] = kubernetes.free_ports(1)
        done = outfit("install", "--apply", "--companion", "--webhook-url", f"https://localhost:{port}", home=self.folder,
                      kubeconfig=self.plane.kubeconfig)
        assert done.returncode == 0, done.stdout + done.stderr
        self.roles.start("webhook", "--address", f"127.0.0.1:{port}").ready()
        self.controller = self.start_controller()
        self.node = self.start_node()

    def start_controller(self) -> RoleRun:
        return self.roles.start("controller", "--companion").ready()

    def start_node(self) -> RoleRun:
        """With the token of the DaemonSet's pod on the node."""
        def look() -> Object | None:
            pods = self.items("pods", "-n", NAMESPACE)
            return next((pod for pod in pods if pod["metadata"]["name"].startswith(names.NODE)
                         and pod["spec"].get("nodeName") == NODE), None)

        pod = until(look, "the DaemonSet has a pod on the node") or {}
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        return self.roles.start("node", "--companion", "--node-name", NODE, "--kubelet-dir", str(self.kubelet_folder),
                                kubeconfig=self.roles.kubeconfig(ACCOUNTS["node"], bound),
                                before=self.host.enter).ready()

    def stop(self) -> None:
        self.roles.stop()
        self.kubevirt.stop()

    def logs(self) -> str:
        there = self.plane.kubectl("get", "vm,vmi,pods,resourceclaims,events").stdout
        return "\n".join([there, self.roles.logs(), *(self.kubevirt.log(name) for name in kubevirt_control_plane.PROGRAMS)])

    # -- what is there

    def items(self, *words: str) -> list[Object]:
        found: list[Object] = json.loads(self.kubevirt.kubectl("get", *words, "-o", "json"))["items"]
        return found

    def get(self, *words: str) -> Object:
        found: Object = json.loads(self.kubevirt.kubectl("get", *words, "-o", "json"))
        return found

    def until(self, look: Any, what: str) -> Any:
        def checked() -> Any:
            self.kubevirt.check()
            return look()

        try:
            return until(checked, what)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def launcher_pod(self) -> Object | None:
        pods = [pod for pod in self.items("pods", "-l", "kubevirt.io=virt-launcher") if pod["spec"].get("nodeName")]
        return pods[0] if pods else None

    def bookings(self) -> list[tuple[str, str]]:
        page = self.get("ledgerpages", NODE)
        return [(booking["device"]["device"], booking["state"]) for booking in page["spec"].get("bookings") or ()]

    def type(self, *words: str) -> str:
        done = outfit(*words, home=self.folder, kubeconfig=self.plane.kubeconfig)
        return done.stdout + done.stderr

    # -- what virt-handler and the kubelet do

    def heartbeat(self) -> None:
        self.kubevirt.patch("handler", f"node/{NODE}", {"metadata": {"labels": LABELS, "annotations": {
            "kubevirt.io/heartbeat": rfc3339(SystemClock().now())}}})

    def pod_runs(self, pod: Object) -> None:
        now = rfc3339(SystemClock().now())
        statuses = [{"name": container["name"], "image": container["image"], "imageID": "", "ready": True, "started": True,
                     "restartCount": 0, "state": {"running": {"startedAt": now}}} for container in pod["spec"]["containers"]]
        patch = {"status": {
            "phase": "Running", "containerStatuses": statuses, "podIPs": [{"ip": "10.1.0.2"}], "podIP": "10.1.0.2",
            "conditions": [{"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "Ready")]}}
        self.kubevirt.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=strategic", "-p",
                              json.dumps(patch), f"--as=system:node:{NODE}", "--as-group=system:masters")

    def vmi_status(self, phase: str) -> None:
        """virt-handler may update VMIs, not get them."""
        def written() -> bool:
            vmi = self.get("vmi", "blue")
            vmi["status"]["phase"] = phase
            words = ("replace", "-f", "-", f"--as={kubevirt_control_plane.user('handler')}")
            done = self.plane.kubectl(*words, stdin=json.dumps(vmi))
            assert done.returncode == 0 or "the object has been modified" in done.stderr, done.stderr
            return done.returncode == 0

        self.until(written, f"the VMI is {phase}")

    def claim_of(self, pod: Object) -> dict[str, str]:
        """As the kubelet names it."""
        [made] = pod["status"]["resourceClaimStatuses"]
        claim = self.get("resourceclaim", made["resourceClaimName"])
        return {"namespace": "default", "name": claim["metadata"]["name"], "uid": claim["metadata"]["uid"]}

    async def kubelet_prepares(self, claim: dict[str, str]) -> list[str]:
        """The CDI ids of its devices."""
        info = await self.client.register(self.kubelet_folder / "plugins_registry" / f"{DRIVER}-reg.sock")
        answer = (await self.client.prepare(info, claim))[claim["uid"]]
        assert answer.error == "", answer.error
        return [id_ for device in answer.devices for id_ in device.cdi_device_ids]

    async def kubelet_unprepares(self, claim: dict[str, str]) -> None:
        info = await self.client.register(self.kubelet_folder / "plugins_registry" / f"{DRIVER}-reg.sock")
        assert (await self.client.unprepare(info, claim))[claim["uid"]].error == ""


@pytest.fixture
def shared(plane: kubernetes.Cluster) -> Iterator[SharedCluster]:
    programs = kubevirt_control_plane.programs()
    if programs is None:
        pytest.skip("needs KubeVirt's programs; scripts/kubevirt builds them")
    with driver_host.short_folder() as folder:
        cluster = SharedCluster(plane, programs, folder)
        try:
            cluster.start()
            yield cluster
        finally:
            print(cluster.logs())
            cluster.stop()


def test_a_vm_of_kubevirt_with_a_device_of_ours(shared: SharedCluster) -> None:
    kubevirt = shared.kubevirt
    shared.until(lambda: shared.items("resourceslices"), "the device is published")
    kubevirt.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": CLAIMS}))
    kubevirt.kubectl("create", "-f", "-", stdin=json.dumps(VM))

    # virt-controller makes VMI and launcher pod, kube-scheduler allocates, our ledger books, our driver prepares.
    pod = shared.until(shared.launcher_pod, "the launcher pod is scheduled")
    shared.until(lambda: shared.bookings() == [(DEVICE, "booked")], "the device is booked")
    claim = shared.claim_of(pod)
    assert asyncio.run(shared.kubelet_prepares(claim)) == [f"{DRIVER}/device={claim['uid']}-{DEVICE}"]
    assert shared.bookings() == [(DEVICE, "prepared")]
    shared.pod_runs(pod)
    shared.until(lambda: shared.get("vmi", "blue")["status"]["phase"] == "Scheduled", "virt-controller hands the VMI over")
    shared.vmi_status("Running")

    # What serves it.
    [device] = json.loads(shared.type("devices", "-o", "json"))
    [holder] = device["holders"]
    assert (device["state"], holder["purpose"], holder["state"]) == ("held", "vmi/blue", "prepared")
    assert "vmi/blue runs on node-a: nothing is wrong" in shared.type("why", "vmi/blue")
    doctor = shared.type("doctor")
    assert f"KubeVirt runs in namespace {kubevirt_control_plane.NAMESPACE}, outfitter is its companion" in doctor
    assert "outfitter_" in shared.controller.metrics()

    # Restarts of our roles change nothing.
    shared.controller.kill()
    shared.node.kill()
    shared.controller, shared.node = shared.start_controller(), shared.start_node()
    assert shared.bookings() == [(DEVICE, "prepared")]

    # The VM is stopped: all is free.
    kubevirt.kubectl("patch", "vm", "blue", "--type=merge", "-p", json.dumps({"spec": {"runStrategy": "Halted"}}))
    shared.until(lambda: shared.get("vmi", "blue")["metadata"].get("deletionTimestamp"), "virt-controller deletes the VMI")
    shared.vmi_status("Succeeded")
    asyncio.run(shared.kubelet_unprepares(claim))
    kubevirt.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--ignore-not-found")
    shared.until(lambda: shared.bookings() == [], "the device is free")
    shared.until(lambda: not shared.items("vmi"), "the VMI is gone")
    assert shared.roles.forbidden() == []
    check_writes(audit_writes.read(shared.plane.folder))


def check_writes(writes: list[FieldWrite]) -> None:
    """No user of ours wrote an object of KubeVirt's or a pod, and no field of any object was written by both."""
    ours = [write for write in writes if write.user.startswith(OURS)]
    theirs = [write for write in writes if write.user.startswith(THEIRS)]
    assert {write.resource for write in ours} >= {"ledgerpages.outfitter.dev", "resourceslices.resource.k8s.io"}
    assert {write.resource for write in theirs} >= {
        "virtualmachines.kubevirt.io", "virtualmachineinstances.kubevirt.io", "pods"}
    assert [write for write in ours if write.resource.endswith("kubevirt.io") or write.resource == "pods"] == []
    assert {(write.resource, write.object, write.path) for write in ours} & {
        (write.resource, write.object, write.path) for write in theirs} == set()
