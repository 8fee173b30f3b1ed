"""The rights of each role, as they are written: nothing that would let a role take more than it has, and nothing that no role
needs. That they are enough, and all used, is seen where the roles run (`tests/e2e/test_cluster_docs.py`, and the other cluster
tests)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, vm_actions, vmi_actions
from outfitter.api.kubevirt.attachment_pods import Attachment
from outfitter.controllers import vm_claims
from outfitter.controllers.manager import ControllerContext
from outfitter.controllers.migrations import target_claims
from outfitter.install import manifests, names, rbac, user_roles
from outfitter.install.names import InstallOptions
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.node.agent_host import AgentHost
from outfitter.node.launchers import Launchers
from outfitter.roles import hosts as host_setup
from outfitter.roles.controller import cluster_controllers
from outfitter.roles.node import HostAgents, device_plugins, dra_plugins
from outfitter.roles.settings import Settings
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory

ROLES = {
    names.CONTROLLER: rbac.controller(),
    names.WEBHOOK: rbac.webhook(),
    names.NODE: rbac.node(),
    names.SIMULATION: rbac.simulation(),
}
SPECIAL = {"*", "escalate", "bind", "impersonate", "approve", "sign", "deletecollection"}


def rights(rules: tuple[Object, ...]) -> Iterator[tuple[str, str, str]]:
    """Group, resource and verb of each right."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_right_by_which_it_gets_others(role: str) -> None:
    given = ROLES[role]
    everything = [*rights(given.cluster), *rights(given.own), *rights(given.system)]
    assert not SPECIAL & {verb for _, _, verb in everything}
    assert not [one for one in everything if "*" in one]
    assert not [one for one in everything if one[0] == "rbac.authorization.k8s.io" or one[1] == "serviceaccounts/token"]
    assert len(everything) == len(set(everything)), "a right is granted twice"


@pytest.mark.parametrize("role", [names.CONTROLLER, names.WEBHOOK, names.NODE])
def test_no_role_of_a_real_cluster_reads_secrets_of_users(role: str) -> None:
    assert not [one for one in rights(ROLES[role].cluster) if one[1] == "secrets"]
    assert all(rule.get("resourceNames") == [names.CERTIFICATE] for rule in ROLES[role].own if "secrets" in rule["resources"])


def test_a_node_agent_creates_no_pods_and_writes_no_node() -> None:
    written = {(resource, verb) for _, resource, verb in rights(rbac.node().cluster) if verb not in ("get", "list", "watch")}
    assert not [one for one in written if one[0].split("/")[0] in ("pods", "nodes", "virtualmachines")]


def test_a_node_agent_reads_claims_and_vms_of_the_cluster_on_no_real_node() -> None:
    read = {(resource, verb) for _, resource, verb in rights(rbac.node().cluster)}
    assert [verb for resource, verb in sorted(read) if resource == kinds.RESOURCE_CLAIM.plural] == ["get"]
    unread = {kind.plural for kind in (kinds.VM, kinds.MIGRATION, kinds.SECRET)}
    assert not [one for one in read if one[0].split("/")[0] in unread]


@dataclasses.dataclass(frozen=True)
class Watching:
    """A role as it is started, and its rights."""

    rights: Sequence[rbac.Rights]
    role: str
    companion: bool = False


def kubelet_host(folder: Path) -> list[AgentHost]:
    """This host, with nothing on it, as the agent of a kubelet's node has it."""
    host = host_setup.this_host("n1", Launchers(folder / "kubelet"), folder, folder, empty=True)
    assert host is not None
    return [dataclasses.replace(host, kubelet=True)]


WATCHING = {
    "controller": Watching([rbac.controller()], "controller"),
    "controller beside KubeVirt": Watching([rbac.companion_controller()], "controller", companion=True),
    "node agent": Watching([rbac.node()], "node"),
    "node agent beside KubeVirt": Watching([rbac.beside_kubevirt(rbac.node())], "node", companion=True),
    "simulated nodes": Watching([rbac.node(), rbac.simulation()], "simulation"),
}


@pytest.mark.parametrize("name", WATCHING)
def test_a_role_may_watch_what_it_watches_and_no_more(name: str, tmp_path: Path) -> None:
    case, clock = WATCHING[name], ManualClock()
    context = ControllerContext(Memory(clock=clock), clock=clock)
    if case.role == "controller":
        cluster_controllers(context, config.DEFAULT, companion=case.companion)
    else:
        simulated = host_setup.simulated_hosts(hosts_file.from_argument("1x1").hosts)
        hosts = simulated if case.role == "simulation" else kubelet_host(tmp_path)
        agents = HostAgents(context, hosts, vms=not case.companion)
        dra_plugins(context, agents, tmp_path)
        device_plugins(context, agents, Settings(device_plugin=True, companion=case.companion, kubelet_dir=tmp_path))
    granted = {resource for each in case.rights for _, resource, verb in rights(each.cluster) if verb == "watch"}
    assert granted == {kind.plural for kind in context.informers}


VM = {"metadata": {"name": "blue", "namespace": "lab", "uid": "u"}, "spec": {}}
POD = {"metadata": {"name": "launcher", "namespace": "lab", "uid": "p"}, "spec": {"nodeName": "n1"}}
OWNED = {
    "what a VM owns": vm_claims.owner_reference(VM),
    "a claim of a migration's target":
        target_claims.owned_by({"metadata": {}}, POD)["metadata"]["ownerReferences"][0],
    "a pod that holds a plugged device":
        attachment_pods.build(POD, VM, Attachment("claim", "gpu"))["metadata"]["ownerReferences"][0],
}


@pytest.mark.parametrize("name", OWNED)
def test_an_owner_that_waits_for_what_it_owns_may_be_named(name: str) -> None:
    """The admission plugin OwnerReferencesPermissionEnforcement asks for it (`test_rights_cluster.py`)."""
    owner = OWNED[name]
    assert owner["blockOwnerDeletion"]
    [plural] = [kind.plural for kind in kinds.ALL if (kind.kind, kind.api_version) == (owner["kind"], owner["apiVersion"])]
    assert (f"{plural}/finalizers", "update") in {(resource, verb) for _, resource, verb in rights(rbac.controller().cluster)}


def test_only_the_controller_changes_what_is_allocated() -> None:
    holders = [role for role, given in ROLES.items() if "resourceclaims/binding" in {one[1] for one in rights(given.cluster)}]
    assert holders == [names.CONTROLLER]


def test_rights_that_cannot_be_limited_to_a_name_are_limited_to_a_namespace() -> None:
    """Objects that a role would have to create by name are created by the installation."""
    created = {
        resource for role in ROLES.values() for _, resource, verb in rights((*role.cluster, *role.system)) if verb == "create"
    }
    assert not created & {"configmaps", "secrets", "leases", "deviceclasses"}


def test_users_get_every_action_that_is_served() -> None:
    edit = next(obj for obj in user_roles.objects() if obj["metadata"]["name"] == user_roles.EDIT)
    served = {f"virtualmachines/{action}" for action in vm_actions.ACTIONS} | {
        f"virtualmachineinstances/{action}" for action in vmi_actions.ACTIONS
    }
    assert {resource for group, resource, verb in rights(tuple(edit["rules"])) if group == vm_actions.GROUP} == served


def test_an_admin_of_a_namespace_gets_nothing_of_the_cluster() -> None:
    cluster = {kind.plural for kind in kinds.ALL if not kind.namespaced}
    for obj in user_roles.objects():
        if any(label.startswith("rbac.authorization.k8s.io/aggregate-to") for label in obj["metadata"]["labels"]):
            assert not cluster & {resource for _, resource, _ in rights(tuple(obj["rules"]))}
            assert not [
                resource for _, resource, _ in rights(tuple(obj["rules"])) if resource.endswith(("/status", "/finalizers"))
            ]


@pytest.mark.parametrize("namespace", [names.NAMESPACE, rbac.KUBE_SYSTEM])
def test_all_objects_have_our_label_and_unique_names(namespace: str) -> None:
    objects = manifests.objects(InstallOptions(namespace=namespace, simulation=True))
    assert all(names.managed(obj) for obj in objects)
    keys = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for obj in objects]
    assert len(keys) == len(set(keys))
