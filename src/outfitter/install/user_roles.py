"""Roles of users. View, edit and admin are aggregated into Kubernetes' roles of these names: an admin of a namespace creates
VMs, claims their devices and starts them without asking anyone, and reaches nothing outside the namespace. Claims and claim
templates are in Kubernetes' own roles since 1.34."""

from __future__ import annotations

from collections.abc import Sequence

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.install import names
from outfitter.install.rbac import GROUP, READ, rule

WRITE = "create update patch delete deletecollection"
VIEW, EDIT, ADMIN, OPERATOR, DEFAULT, POOL_STATUS_REQUESTS = (
    f"outfitter:{word}" for word in ("view", "edit", "admin", "operator", "default", "pool-status-requests"))
READS = tuple(rule(kind, READ) for kind in (kinds.VM, kinds.VMI, kinds.MIGRATION))
WRITES = (rule(kinds.VM, WRITE), rule(kinds.VMI, WRITE))
# Who may start a migration is decided by the administrator of the cluster: `kubevirt.io:migrate` of `kubevirt_roles`.
ACTIONS = (
    *(rule(kinds.VM.plural, "update", group=vm_actions.GROUP, subresource=action) for action in vm_actions.ACTIONS),
    *(rule(kinds.VMI.plural, "update", group=vm_actions.GROUP, subresource=action) for action in vmi_actions.ACTIONS),
)


def objects() -> list[Object]:
    return [
        _cluster_role(VIEW, READS, aggregate_to="view"),
        _cluster_role(EDIT, (*READS, *WRITES, *ACTIONS), aggregate_to="edit"),
        _cluster_role(ADMIN, (*READS, *WRITES, *ACTIONS), aggregate_to="admin"),
        # For those who manage devices and flavors without being administrators of the cluster. Bound by the administrator.
        _cluster_role(
            OPERATOR,
            (
                *(
                    rule(kind, READ)
                    for kind in (kinds.HOST_INVENTORY, kinds.PAST_BOOKING, kinds.NODE, kinds.RESOURCE_SLICE, kinds.DEVICE_CLASS)
                ),
                # `outfit device` and `outfit providers` reserve; the bookings of a page are guarded by admission.
                rule(kinds.LEDGER_PAGE, f"{READ} create update"),
                rule(kinds.PROVIDER_TREE, f"{READ} update"),
                rule(kinds.FLAVOR, f"{READ} {WRITE}"),
            ),
        ),
        # Counts as Kubernetes has them, where it does. Bound by the administrator: users who may create these can fill etcd,
        # and may delete those of others.
        _cluster_role(POOL_STATUS_REQUESTS, (rule(kinds.POOL_STATUS_REQUEST, f"{READ} create delete"),)),
        # What every user may choose from, and how much of it is free: names, selectors and counts, no holders; and the version
        # that virtctl asks for.
        _cluster_role(
            DEFAULT,
            (
                rule(kinds.FLAVOR, READ),
                rule(kinds.DEVICE_CLASS, READ),
                rule(kinds.POOL_STATUS, "list"),
                rule("version", "get list", group=vm_actions.GROUP),
            ),
        ),
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": names.metadata(DEFAULT, "users"),
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": DEFAULT},
            "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": "system:authenticated"}],
        },
    ]


def _cluster_role(name: str, rules: Sequence[Object], *, aggregate_to: str = "") -> Object:
    meta = names.metadata(name, "users")
    if aggregate_to:
        meta["labels"][f"{GROUP}/aggregate-to-{aggregate_to}"] = "true"
    return {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": meta, "rules": list(rules)}
