"""The rights of each role, as they are written: nothing that would let a role take more than it has, and nothing that no role
needs. That they are enough, and all used, is seen where the roles run (`test_rights_used.py`, and the cluster tests)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.install import manifests, names, rbac, user_roles
from outfitter.install.names import InstallOptions

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


def test_all_objects_have_our_label_and_unique_names() -> None:
    objects = manifests.objects(InstallOptions(simulation=True))
    assert all(names.managed(obj) for obj in objects)
    keys = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for obj in objects]
    assert len(keys) == len(set(keys))
