"""`outfit node` as a process beside a kubelet, with the rights of an installation: its DRA driver is found, called, killed,
found again, and gone after SIGTERM. The kubelet is played by a client of the published protobuf files. The host of the test has
no device to prepare, so that a claim is booked and then refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from outfitter.api.kinds import Object
from outfitter.install import names
from outfitter.store import pki
from tests import kubernetes
from tests.cluster_roles import NAMESPACE, ClusterRoles, RoleRun
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import DRIVER
from tests.node.kubelet.kubelet_client import KubeletClient

pytestmark = pytest.mark.cluster
NODE = "this-host"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRoles]:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    folder = tmp_path_factory.mktemp("node-process")
    with kubernetes.Cluster(folder / "cluster", learn=()) as cluster:
        found = ClusterRoles(cluster, folder / "roles")
        found.install()
        try:
            yield found
        finally:
            found.stop()


def agent_kubeconfig(roles: ClusterRoles) -> Path:
    """With a token of the agent's pod, which names its node, as a DaemonSet's pod has it."""
    roles.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    roles.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "agent"}, "spec": {
        "nodeName": NODE, "serviceAccountName": names.NODE, "containers": [{"name": "agent", "image": "agent"}]}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
        "expirationSeconds": 7200, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "agent"}}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{names.NODE}/token"
    token = json.loads(roles.cluster.request("POST", path, request))["status"]["token"]
    ca = (roles.cluster.folder / "pki" / "ca.crt").read_bytes()
    file = roles.folder / "agent.kubeconfig"
    pki.save_private(file, json.dumps(pki.kubeconfig(roles.cluster.server, ca=ca, token=token)).encode())
    return file


def allocated_claim(roles: ClusterRoles) -> dict[str, str]:
    requests = [{"name": "nic", "exactly": {"deviceClassName": "any"}}]
    roles.create(CLAIMS, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gold"},
                          "spec": {"devices": {"requests": requests}}})
    claim: Object = json.loads(roles.cluster.request("GET", f"{CLAIMS}/gold"))
    claim["status"] = {"allocation": {"devices": {"results": [
        {"request": "nic", "driver": DRIVER, "pool": NODE, "device": "pci-none"}]}},
        "reservedFor": [{"resource": "pods", "name": "web", "uid": "uid-of-web"}]}
    roles.cluster.request("PUT", f"{CLAIMS}/gold/status", claim)
    return {"namespace": "default", "name": "gold", "uid": claim["metadata"]["uid"]}


def states(roles: ClusterRoles) -> list[str]:
    page = json.loads(roles.cluster.request("GET", f"/apis/outfitter.dev/v1alpha1/ledgerpages/{NODE}"))
    return [booking["state"] for booking in page["spec"]["bookings"]]


async def test_the_driver_of_a_node_agent_that_is_killed_and_stopped(roles: ClusterRoles) -> None:
    client = KubeletClient(kubelet_client.published_definitions() or kubelet_client.our_definitions())
    access, claim = agent_kubeconfig(roles), allocated_claim(roles)
    with driver_host.short_folder() as folder:
        socket = folder / "plugins_registry" / f"{DRIVER}-reg.sock"
        socket.parent.mkdir()

        def start() -> RoleRun:
            return roles.start("node", "--node-name", NODE, "--kubelet-dir", str(folder), kubeconfig=access).ready()

        node = start()
        for _ in range(2):
            info = await client.register(socket)
            assert (info.name, list(info.supported_versions)) == (DRIVER, ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
            answer = (await client.prepare(info, claim))[claim["uid"]]
            assert answer.error.startswith("DeviceMissing: pci-none is not known on this-host")
            assert states(roles) == ["prepared"]  # before the device was looked for
            node.kill()
            with pytest.raises(grpc.aio.AioRpcError):
                await client.register(socket)
            node = start()
        info = await client.register(socket)
        for _ in range(2):
            assert (await client.unprepare(info, claim))[claim["uid"]].error == ""
        assert states(roles) == ["released"]
        assert node.stop() == 0
        assert not list(folder.rglob("*.sock"))
        assert roles.forbidden() == []
