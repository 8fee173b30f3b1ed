"""`outfit node` as a process beside a kubelet, with the rights of an installation: its DRA driver is found, called, killed,
found again, and gone after SIGTERM. The kubelet is played by a client of the published protobuf files. The host of the test has
no device to prepare, so that a claim is booked and then refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from outfitter.api.kinds import Object
from outfitter.install import names
from tests import audit_log, control_planes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import DRIVER
from tests.node.kubelet.kubelet_client import HEALTH, KubeletClient

pytestmark = pytest.mark.cluster
NODE = "this-host"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRoles]:
    folder = tmp_path_factory.mktemp("node-process")
    with control_planes.started(folder / "cluster", learn=(), apiserver_flags=audit_log.flags(folder)) as cluster:
        found = ClusterRoles(cluster, folder / "roles")
        found.install()
        try:
            yield found
        finally:
            found.stop()


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
    roles.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    access, claim = roles.agent_kubeconfig(NODE), allocated_claim(roles)
    with driver_host.short_folder() as folder:
        socket = folder / "plugins_registry" / f"{DRIVER}-reg.sock"
        socket.parent.mkdir()

        def start() -> RoleRun:
            return roles.start("node", "--node-name", NODE, "--kubelet-dir", str(folder), kubeconfig=access).ready()

        node = start()
        for _ in range(2):
            info = await client.register(socket)
            assert (info.name, list(info.supported_versions)) == (DRIVER, ["v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH])
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


OWN = {f"{verb} {selected}" for verb, selected in (
    ("watch", f"ledgerpages metadata.name={NODE}"), ("watch", f"pods spec.nodeName={NODE}"),
    ("watch", f"resourceslices spec.nodeName={NODE}"), ("watch", f"virtualmachineinstances status.nodeName={NODE}"),
    ("list", f"ledgerpages metadata.name={NODE}"), ("list", f"providertrees metadata.name={NODE}"),
    ("list", f"hostinventories metadata.name={NODE}"), ("list", f"resourceslices spec.nodeName={NODE}"))}
# What belongs to no node: pages of pools, and slices of the driver of a pool of which this node has none.
SHARED = {"list ledgerpages spec.host=", f"list resourceslices spec.nodeName=,spec.driver={DRIVER}"}


def test_an_agent_reads_nothing_of_other_nodes(roles: ClusterRoles) -> None:
    """Every list and watch that it made, from the audit log of the API server."""
    asked = [each for each in audit_log.requests(roles.folder.parent) if each.account == names.NODE]
    many = {str(each) for each in asked if each.verb in ("list", "watch")}
    assert many >= OWN, "what it has to read"
    assert many - OWN == SHARED
    assert all(each.name or each.verb != "get" for each in asked if each.resource)


def test_the_writes_of_an_agent(roles: ClusterRoles) -> None:
    """Only our own kinds are replaced whole; of others an agent writes slices, and nothing else here."""
    asked = [each for each in audit_log.requests(roles.folder.parent) if each.account == names.NODE]
    replaced = {each.resource for each in asked if each.verb == "update"}
    assert replaced <= {"ledgerpages", "hostinventories", "providertrees", "pastbookings", "resourceslices"}
    assert "ledgerpages" in replaced


def test_a_prepared_claim_costs_few_requests(roles: ClusterRoles) -> None:
    """Six calls to prepare or unprepare were made above: the claim, the pages of pools, the host's page, and its write."""
    asked = [each for each in audit_log.requests(roles.folder.parent) if each.account == names.NODE]
    counts = Counter(f"{each.verb} {each.resource}" for each in asked)
    prepares, unprepares, starts = 2, 2, 3
    assert counts["get resourceclaims"] == prepares
    assert counts["list ledgerpages"] <= starts + 2 * prepares + unprepares
    assert counts["update ledgerpages"] + counts["create ledgerpages"] <= 3, "booked, prepared, released"
    assert counts["get pods"] <= prepares
