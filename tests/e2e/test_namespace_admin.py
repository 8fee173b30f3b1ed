"""An admin of a namespace on a real control plane, with the installation and every role as a process: virtctl drives VMs that
run, a stopped VM keeps its claim, and what is not the admin's is refused. All of it with the token of a service account that
has Kubernetes' own ClusterRole `admin` in one namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from tests import control_planes
from tests.cluster_roles import NAMESPACE
from tests.e2e.process import until
from tests.e2e.tenant import OTHER, TEAM, USER, Tenant, virtctl

pytestmark = [pytest.mark.cluster, pytest.mark.time_limit(1800)]
NODE = "node-0"
REQUESTS = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "pci.outfitter.dev"}}]}}
DOMAIN = {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [{"name": "nic0", "claimName": "net", "requestName": "nic"}]}}


def vm(name: str, *, place: str = TEAM, **entry: Any) -> str:
    """With a claim of its own."""
    spec = {"runStrategy": "Halted", "resourceClaimTemplates": [{"name": "net", "spec": {"spec": REQUESTS}, **entry}],
            "template": {"spec": {"domain": DOMAIN}}}
    return json.dumps({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "namespace": place},
                       "spec": spec})


@pytest.fixture(scope="module")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    folder = tmp_path_factory.mktemp("tenant")
    with control_planes.started(folder / "plane", scheduler=True, controllers=True, learn=()) as plane:
        made = Tenant(plane, folder / "roles")
        yield made
        made.roles.stop()
        assert made.roles.forbidden() == []


def test_simulated_nodes_do_not_take_the_pods_of_the_installation(tenant: Tenant) -> None:
    """They only play kubelets: calls of a webhook there would fail."""
    def waiting() -> bool:
        pods = tenant.items(kinds.POD, NAMESPACE)
        return len(pods) == 4 and all("PodScheduled" in json.dumps(pod["status"]) for pod in pods)

    until(waiting, "kube-scheduler has looked at controllers and webhooks")
    assert [pod["spec"].get("nodeName") for pod in tenant.items(kinds.POD, NAMESPACE)] == [None] * 4


def users(claim: Object) -> list[str]:
    return sorted(one["resource"] for one in claim["status"].get("reservedFor") or ())


def device(claim: Object) -> tuple[str, Object]:
    return claim["metadata"]["uid"], claim["status"]["allocation"]


def test_virtctl_drives_vms_that_run_and_a_stopped_vm_keeps_its_device(tenant: Tenant) -> None:
    """There is one device: another VM does not get it while its owner is stopped, and gets it when the owner is deleted."""
    for name in ("blue", "green"):
        done, text = tenant.user("apply", "-f", "-", stdin=vm(name))
        assert done, text
    assert "VM blue was scheduled to start" in tenant.virtctl("start", "blue", "--paused")
    tenant.reach("blue", "Paused")
    tenant.virtctl("unpause", "vm", "blue")
    tenant.reach("blue", "Running")
    tenant.virtctl("pause", "vm", "blue")
    tenant.reach("blue", "Paused")
    tenant.virtctl("unpause", "vmi", "blue")
    tenant.reach("blue", "Running")
    first = tenant.shown("vmi", "blue")["metadata"]["uid"]
    until(lambda: users(tenant.claim("blue")) == ["pods", "virtualmachines"], "the VM and its pod use the claim")
    claim = tenant.claim("blue")

    tenant.virtctl("restart", "blue")
    until(lambda: tenant.shown("vmi", "blue").get("metadata", {}).get("uid", first) != first, "another VMI follows")
    tenant.reach("blue", "Running")
    tenant.virtctl("stop", "blue")
    tenant.reach("blue", "Stopped")
    until(lambda: not tenant.items(kinds.POD, TEAM), "its pod is gone")
    until(lambda: users(tenant.claim("blue")) == ["virtualmachines"], "kube-controller-manager has removed the pod, not the VM")
    tenant.virtctl("start", "green")
    until(lambda: "0/1 nodes are available" in json.dumps([pod["status"] for pod in tenant.items(kinds.POD, TEAM)]),
          "kube-scheduler finds no device for green")
    assert device(tenant.claim("blue")) == device(claim)

    tenant.virtctl("start", "blue")
    tenant.reach("blue", "Running")
    assert device(tenant.claim("blue")) == device(claim)
    assert tenant.user("delete", "vm", "blue")[0]
    tenant.reach("green", "Running")
    assert tenant.user("delete", "vm", "green")[0]
    until(lambda: not tenant.items(kinds.RESOURCE_CLAIM, TEAM), "the claims are deleted with their VMs")
    until(lambda: not [booking for page in tenant.items(kinds.LEDGER_PAGE) for booking in page["spec"].get("bookings") or ()],
          "the page is empty")


def test_a_claim_without_a_vm_is_deallocated(tenant: Tenant) -> None:
    """What kube-controller-manager does when its last pod is gone: the reason why a VM is in `reservedFor` of its claims."""
    plain = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "plain"}, "spec": REQUESTS}
    vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "red"},
           "spec": {"domain": DOMAIN, "resourceClaims": [{"name": "net", "resourceClaimName": "plain"}]}}
    done, text = tenant.user("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": [plain, vmi]}))
    assert done, text
    until(lambda: (tenant.shown("vmi", "red").get("status") or {}).get("phase") == "Running", "red runs")
    assert tenant.shown("resourceclaim", "plain")["status"]["allocation"]
    assert tenant.user("delete", "vmi", "red")[0]
    until(lambda: "allocation" not in (tenant.shown("resourceclaim", "plain").get("status") or {}), "it is deallocated")
    assert tenant.user("delete", "resourceclaim", "plain")[0]


STATUS = ("--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Running", "conditions": []}}')
SPEC = ("--type=merge", "-p", '{"spec": {"bookings": []}}')
REFUSED: dict[str, tuple[str, ...]] = {
    "read VMs of another namespace": ("get", "vm", "-n", OTHER),
    "delete a VM of another namespace": ("delete", "vm", "theirs", "-n", OTHER),
    "read claims of another namespace": ("get", "resourceclaims", "-n", OTHER),
    "create a VM in another namespace": ("create", "-f", "-", "-n", OTHER),
    "read pages": ("get", "ledgerpages"),
    "free a device on a page": ("patch", "ledgerpage", NODE, *SPEC),
    "delete a page": ("delete", "ledgerpage", NODE),
    "read inventories": ("get", "hostinventories"),
    "read history": ("get", "pastbookings"),
    "withdraw devices": ("delete", "resourceslices", "--all"),
    "delete a class": ("delete", "deviceclass", "pci.outfitter.dev"),
    "write a VM's status": ("patch", "vm", "own", *STATUS),
    "taint a node": ("taint", "node", NODE, "mine=yes:NoSchedule"),
    "read our Secrets": ("get", "secrets", "-n", NAMESPACE),
    "switch the webhook off": ("delete", "validatingwebhookconfiguration", "outfitter"),
    "change definitions": ("delete", "crd", "virtualmachines.kubevirt.io"),
}


@pytest.fixture(scope="module")
def owned(tenant: Tenant) -> Tenant:
    assert tenant.user("apply", "-f", "-", stdin=vm("own"))[0]
    assert tenant.plane.kubectl("apply", "-f", "-", stdin=vm("theirs", place=OTHER)).returncode == 0
    tenant.reach("own", "Stopped")
    until(lambda: len(tenant.items(kinds.RESOURCE_CLAIM)) == 2, "both VMs have their claims")
    return tenant


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_the_admins_is_refused(what: str, owned: Tenant) -> None:
    kept = (kinds.VM, kinds.RESOURCE_CLAIM, kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.DEVICE_CLASS)
    before = {kind.plural: [(obj["metadata"]["uid"], obj["spec"]) for obj in owned.items(kind)] for kind in kept}
    done, text = owned.user(*REFUSED[what], stdin=vm("mine", place=OTHER))
    assert not done
    assert f'User "system:serviceaccount:{TEAM}:{USER}" cannot' in text
    assert {kind.plural: [(obj["metadata"]["uid"], obj["spec"]) for obj in owned.items(kind)] for kind in kept} == before


@pytest.mark.parametrize("action", ["start", "stop", "restart"])
def test_virtctl_is_refused_in_another_namespace(action: str, owned: Tenant) -> None:
    done, text = owned.typed_by_user(virtctl(), (action, "theirs", "-n", OTHER))
    assert not done
    assert f'cannot update resource "virtualmachines/{action}"' in text
