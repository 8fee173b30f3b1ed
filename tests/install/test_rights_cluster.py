"""Rights on a real API server, with tokens: an admin of a namespace, a node agent, the controller. What must not be done is
tried."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Forbidden, Invalid
from outfitter.install import names
from outfitter.store import kubeconfig, pki
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import control_planes, kubernetes
from tests.e2e.process import typed, until

pytestmark = pytest.mark.cluster
TEAM = "team"
DRIVER = "pci.outfitter.dev"
OWNERS = ["--enable-admission-plugins=OwnerReferencesPermissionEnforcement"]  # as in OpenShift
AGENT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "agent"},
    "spec": {"serviceAccountName": names.NODE, "nodeName": "n1", "containers": [{"name": "node", "image": "none"}]},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    folder = tmp_path_factory.mktemp("rights")
    with control_planes.started(folder, controllers=True, learn=(), apiserver_flags=OWNERS) as running:
        done = typed("install", "--apply", kubeconfig=running.kubeconfig)
        assert done.code == 0, done.err
        # The webhook does not run here: what it would refuse is not what is tried.
        running.kubectl("delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", names.WEBHOOK_CONFIGURATION)
        running.kubectl("create", "namespace", TEAM)
        running.kubectl("-n", TEAM, "create", "serviceaccount", "ann")
        running.kubectl("-n", TEAM, "create", "rolebinding", "ann", "--clusterrole=admin", f"--serviceaccount={TEAM}:ann")
        question = ("auth", "can-i", "create", kinds.VM.resource, "-n", TEAM, f"--as=system:serviceaccount:{TEAM}:ann")
        until(lambda: "yes" in running.kubectl(*question).stdout, "Kubernetes aggregates the roles")
        running.request("POST", f"/api/v1/namespaces/{names.NAMESPACE}/pods", AGENT)
        yield running


def access(cluster: kubernetes.Cluster, namespace: str, account: str, **bound: Any) -> Kube:
    """As a service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200, **bound}}
    token = json.loads(cluster.request("POST", path, request))["status"]["token"]
    file = cluster.folder / f"{account}.{len(bound)}.kubeconfig"
    ca = (cluster.folder / "pki" / "ca.crt").read_bytes()
    pki.save_private(file, json.dumps(pki.kubeconfig(cluster.server, ca=ca, token=token)).encode())
    clock = SystemClock()
    return Kube(kubeconfig.load(file, clock=clock), clock=clock)


async def allowed(user: Kube, verb: str, resource: str, *, namespace: str = "", group: str = "", subresource: str = "") -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    status, _, answer = await user.raw(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        body=json.dumps(review).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert status == 201, answer
    return bool(json.loads(answer)["status"]["allowed"])


@pytest.fixture
async def admin(cluster: kubernetes.Cluster) -> AsyncIterator[Kube]:
    """The admin of one namespace."""
    user = access(cluster, TEAM, "ann")
    yield user
    await user.close()


@pytest.fixture
async def administrator(cluster: kubernetes.Cluster) -> AsyncIterator[Kube]:
    kube = Kube(cluster.access(), clock=SystemClock())
    yield kube
    await kube.close()


def vm(namespace: str) -> Object:
    return {
        "metadata": {"name": "blue", "namespace": namespace},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
    }


def vmi(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": TEAM}, "spec": {"domain": {"devices": {}}}}


CLAIM = {"spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": DRIVER}}]}}}


async def test_an_admin_of_a_namespace_needs_no_one_for_a_vm_with_a_device(admin: Kube) -> None:
    place = {"namespace": TEAM}
    await admin.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "nic", **place}, "spec": CLAIM})
    await admin.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "nic", **place}, **CLAIM})
    await admin.create(kinds.VM, vm(TEAM))
    await admin.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Always"}}, TEAM)
    for action in ("start", "stop", "restart"):
        assert await allowed(admin, "update", kinds.VM.plural, group="subresources.kubevirt.io", subresource=action, **place)
    assert (await admin.list(kinds.DEVICE_CLASS)).items
    await admin.list(kinds.FLAVOR)
    await admin.delete(kinds.VM, "blue", TEAM)
    await admin.delete(kinds.RESOURCE_CLAIM, "nic", TEAM)


async def test_an_admin_of_a_namespace_can_touch_nothing_else(admin: Kube, administrator: Kube) -> None:
    await administrator.create(kinds.VM, {**vm(TEAM), "metadata": {"name": "red", "namespace": TEAM}})
    await administrator.create(kinds.LEDGER_PAGE, {"metadata": {"name": "n9"}, "spec": {"bookings": []}})
    tried = {
        "a VM elsewhere": admin.create(kinds.VM, vm("default")),
        "the VMs elsewhere": admin.list(kinds.VM, "default"),
        "the status of a VM": admin.patch(kinds.VM, "red", {"status": {"ready": True}}, TEAM, subresource="status"),
        "the status of a VMI": admin.patch(kinds.VMI, "red", {"status": {"phase": "Running"}}, TEAM, subresource="status"),
        "pages": admin.list(kinds.LEDGER_PAGE),
        "a page": admin.patch(kinds.LEDGER_PAGE, "n9", {"spec": {"bookings": []}}),
        "a slice": admin.create(kinds.RESOURCE_SLICE, slice_("n9")),
        "slices": admin.list(kinds.RESOURCE_SLICE),
        "inventories": admin.list(kinds.HOST_INVENTORY),
        "history": admin.list(kinds.PAST_BOOKING),
        "a flavor": admin.create(kinds.FLAVOR, {"metadata": {"name": "all"}, "spec": {}}),
        "a node": admin.patch(kinds.NODE, "n1", {"metadata": {"labels": {"a": "b"}}}),
        "claims elsewhere": admin.list(kinds.RESOURCE_CLAIM, "default"),
        "the allocation of a claim": admin.patch(kinds.RESOURCE_CLAIM, "nic", {"status": {}}, TEAM, subresource="status"),
        "the key of the webhook": admin.get(kinds.SECRET, names.CERTIFICATE, names.NAMESPACE),
        "a pod of the installation": admin.create(
            kinds.POD, {"metadata": {"name": "p", "namespace": names.NAMESPACE}, "spec": {}}
        ),
    }
    done = await asyncio.gather(*tried.values(), return_exceptions=True)
    assert [what for what, outcome in zip(tried, done, strict=True) if not isinstance(outcome, Forbidden)] == []


def slice_(node: str, driver: str = DRIVER) -> Object:
    return {
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }


def named(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


def past(name: str, host: str) -> Object:
    return named(
        name,
        host=host,
        device={"driver": DRIVER, "pool": host, "device": "a"},
        request="nic",
        how="released",
        booked="2026-01-01T00:00:00Z",
        holder={"kind": "ResourceClaim", "namespace": TEAM, "name": "c", "uid": "u"},
    )


@pytest.fixture
async def agent(cluster: kubernetes.Cluster) -> AsyncIterator[Kube]:
    """The agent of node n1, with the token of its pod."""
    user = access(cluster, names.NAMESPACE, names.NODE, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "agent"})
    yield user
    await user.close()


async def test_a_node_agent_writes_for_its_own_node_only(cluster: kubernetes.Cluster, agent: Kube, administrator: Kube) -> None:
    pool = "shared-0123456789abcdef.pools.outfitter.dev"
    mine: list[tuple[Kind, Object]] = [
        (kinds.RESOURCE_SLICE, slice_("n1")),
        (kinds.LEDGER_PAGE, named("n1", bookings=[])),
        (kinds.LEDGER_PAGE, named(pool, bookings=[])),
        (kinds.HOST_INVENTORY, named("n1")),
        (kinds.PROVIDER_TREE, named("n1", providers=[])),
        (kinds.PAST_BOOKING, past("a", "n1")),
        (kinds.PAST_BOOKING, past("b", pool)),
    ]
    others: list[tuple[Kind, Object, str]] = [
        (kinds.RESOURCE_SLICE, slice_("n2"), "publishes devices of its own node"),
        (kinds.RESOURCE_SLICE, slice_("n1", "gpu.example.com"), "of the driver pci.outfitter.dev only"),
        (kinds.LEDGER_PAGE, named("n2", bookings=[]), "the page of its own node"),
        (kinds.HOST_INVENTORY, named("n2"), "the inventory of its own node"),
        (kinds.PROVIDER_TREE, named("n2", providers=[]), "the provider tree of its own node"),
        (kinds.PAST_BOOKING, past("c", "n2"), "bookings of its own node"),
    ]
    for kind, obj in mine:
        made = await agent.create(kind, obj)
        await agent.replace(kind, made)
    for kind, obj, message in others:
        with pytest.raises(Forbidden, match=message):
            await agent.create(kind, obj)
        made = await administrator.create(kind, obj)
        with pytest.raises(Forbidden, match="cannot delete" if kind == kinds.LEDGER_PAGE else message):
            await agent.delete(kind, made["metadata"]["name"])
        with pytest.raises(Forbidden, match=message):
            await agent.replace(kind, made)
    for kind, obj in mine:
        if kind != kinds.LEDGER_PAGE:  # of no node may an agent delete the page
            await agent.delete(kind, obj["metadata"]["name"])


async def test_a_node_agent_reports_on_its_own_vmis_only(agent: Kube, administrator: Kube) -> None:
    for name, status in (
        ("here", {"nodeName": "n1"}),
        ("coming", {"activePods": {"u1": "n1"}}),
        ("there", {"nodeName": "n2"}),
        ("nowhere", {}),
    ):
        await administrator.create(kinds.VMI, vmi(name))
        await administrator.patch(kinds.VMI, name, {"status": {"phase": "Scheduled", **status}}, TEAM, subresource="status")
    for name in ("here", "coming"):
        await agent.patch(kinds.VMI, name, {"status": {"phase": "Running"}}, TEAM, subresource="status")
    for name in ("there", "nowhere"):
        with pytest.raises(Forbidden, match="VMIs of its own node only"):
            await agent.patch(kinds.VMI, name, {"status": {"phase": "Running"}}, TEAM, subresource="status")


async def test_a_token_that_names_no_node_writes_nothing(cluster: kubernetes.Cluster) -> None:
    unbound = access(cluster, names.NAMESPACE, names.NODE)
    try:
        with pytest.raises(Forbidden, match="names no node"):
            await unbound.create(kinds.LEDGER_PAGE, named("n3", bookings=[]))
    finally:
        await unbound.close()


async def test_the_controller_reserves_claims_and_allocates_none(cluster: kubernetes.Cluster, administrator: Kube) -> None:
    """The rights of Kubernetes 1.36 on a claim's status: binding for reservedFor, driver for devices."""
    controller = access(cluster, names.NAMESPACE, names.CONTROLLER)
    node = access(cluster, names.NAMESPACE, names.NODE)
    await administrator.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "kept", "namespace": TEAM}, **CLAIM})
    result = {"driver": DRIVER, "pool": "n1", "device": "a", "request": "nic"}
    user = {"resource": "pods", "name": "p", "uid": "u"}
    await administrator.patch(
        kinds.RESOURCE_CLAIM,
        "kept",
        {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}},
        TEAM,
        subresource="status",
    )
    try:
        await controller.patch(
            kinds.RESOURCE_CLAIM, "kept", {"status": {"reservedFor": [{**user, "name": "q"}]}}, TEAM, subresource="status"
        )
        with pytest.raises(Forbidden):
            await node.patch(kinds.RESOURCE_CLAIM, "kept", {"status": {"reservedFor": []}}, TEAM, subresource="status")
        device = {"driver": DRIVER, "pool": "n1", "device": "a"}
        with pytest.raises(Invalid, match="resourceclaims/driver"):
            await controller.patch(kinds.RESOURCE_CLAIM, "kept", {"status": {"devices": [device]}}, TEAM, subresource="status")
    finally:
        await controller.close()
        await node.close()


async def test_the_controller_may_name_owners_that_wait_for_what_they_own(
    cluster: kubernetes.Cluster, administrator: Kube
) -> None:
    controller = access(cluster, names.NAMESPACE, names.CONTROLLER)
    node = access(cluster, names.NAMESPACE, names.NODE)
    launcher = {"metadata": {"name": "launcher", "namespace": TEAM},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]}}
    owners = [(kinds.VM, await administrator.create(kinds.VM, {**vm(TEAM), "metadata": {"name": "owner", "namespace": TEAM}})),
              (kinds.VMI, await administrator.create(kinds.VMI, vmi("owner"))),
              (kinds.POD, await administrator.create(kinds.POD, launcher))]

    def owned(kind: Kind, owner: Object, name: str) -> Object:
        reference = {"apiVersion": kind.api_version, "kind": kind.kind, "name": owner["metadata"]["name"],
                     "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
        return {"metadata": {"name": name, "namespace": TEAM, "ownerReferences": [reference]}, **CLAIM}

    try:
        for kind, owner in owners:
            made = await controller.create(kinds.RESOURCE_CLAIM, owned(kind, owner, f"of-a-{kind.singular}"))
            assert made["metadata"]["ownerReferences"][0]["blockOwnerDeletion"]
        assert not await allowed(node, "update", "pods", subresource="finalizers", namespace=TEAM)
    finally:
        await controller.close()
        await node.close()
