"""The roles that KubeVirt ships, by its names, so that bindings to them work here: of its groups `kubevirt.io` and
`subresources.kubevirt.io`, with all their resources, also those that are not served. An admin of a namespace changes VMs and
reads migrations, and creates none: `kubevirt.io:migrate` is bound by the administrator of the cluster alone. Beside KubeVirt,
which has them itself, they are not installed."""

from __future__ import annotations

from collections.abc import Sequence

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm_actions
from outfitter.install import names
from outfitter.install.rbac import GROUP, READ, rule

READ_WRITE = f"{READ} create update patch delete"
DEFAULT, ADMIN, EDIT, VIEW, MIGRATE = (f"kubevirt.io:{word}" for word in ("default", "admin", "edit", "view", "migrate"))
OBJECTS = ("virtualmachines", "virtualmachineinstances", "virtualmachineinstancepresets", "virtualmachineinstancereplicasets")
MIGRATIONS = kinds.MIGRATION.plural
_VMI_READ = ("guestosinfo", "filesystemlist", "userlist", "sev/fetchcertchain", "sev/querylaunchmeasurement", "objectgraph")
_VMI_CONSOLES = ("console", "vnc", "portforward", "usbredir")
_VMI_ACTIONS = ("pause", "unpause", "addvolume", "removevolume", "freeze", "unfreeze", "softreboot", "reset",
                "sev/setupsession", "sev/injectlaunchsecret", "evacuate/cancel")
_VM_READ = ("expand-spec", "portforward", "objectgraph")
_VM_ACTIONS = ("start", "stop", "restart", "addvolume", "removevolume", "memorydump", "removememorydump", "evacuate/cancel")


def objects() -> list[Object]:
    used = (*_subresources("virtualmachineinstances", (*_VMI_CONSOLES, *_VMI_READ), "get"),
            *_subresources("virtualmachineinstances", _VMI_ACTIONS, "update"),
            *_subresources("virtualmachines", _VM_READ, "get"), *_subresources("virtualmachines", _VM_ACTIONS, "update"),
            rule("expand-vm-spec", "update", group=vm_actions.GROUP))
    reads = (rule(MIGRATIONS, READ, group=kinds.VM.group),)
    settings = (rule(kinds.KUBEVIRT, "get list"),)
    screenshot = tuple(_subresources("virtualmachineinstances", ("vnc/screenshot",), "get"))
    return [
        _role(DEFAULT, (*settings, rule("version", "get list", group=vm_actions.GROUP),
                        rule("guestfs", "get list", group=vm_actions.GROUP))),
        _role(ADMIN, (*used, *screenshot, *_all(f"{READ_WRITE} deletecollection"), *reads), "admin"),
        _role(EDIT, (*used, *_all(READ_WRITE), *reads, *settings), "edit"),
        _role(VIEW, (*settings, *_subresources("virtualmachines", ("expand-spec", "objectgraph"), "get"),
                     *_subresources("virtualmachineinstances", _VMI_READ, "get"),
                     rule("expand-vm-spec", "update", group=vm_actions.GROUP), *_all(READ), *reads), "view"),
        _role(MIGRATE, (*_subresources("virtualmachines", ("migrate",), "update"),
                        rule(MIGRATIONS, f"{READ_WRITE} deletecollection", group=kinds.VM.group))),
        {
            "apiVersion": f"{GROUP}/v1", "kind": "ClusterRoleBinding", "metadata": names.metadata(DEFAULT, "users"),
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": DEFAULT},
            "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": "system:authenticated"}],
        },
    ]


def _subresources(plural: str, subresources: Sequence[str], verbs: str) -> list[Object]:
    return [rule(plural, verbs, group=vm_actions.GROUP, subresource=each) for each in subresources]


def _all(verbs: str) -> list[Object]:
    return [rule(plural, verbs, group=kinds.VM.group) for plural in OBJECTS]


def _role(name: str, rules: Sequence[Object], aggregate_to: str = "") -> Object:
    meta = names.metadata(name, "users")
    if aggregate_to:
        meta["labels"][f"{GROUP}/aggregate-to-{aggregate_to}"] = "true"
    return {"apiVersion": f"{GROUP}/v1", "kind": "ClusterRole", "metadata": meta, "rules": list(rules)}
