"""The rights of each role, least first: what its code asks of the API server and nothing else, with the reason where the code
does not show it. A right that is missing makes a role fail, one that is not used is one too many: `tests/install` holds both.

Rights of users are in `user_roles.py`. What RBAC cannot express, that a node agent writes for its own node only, is in
`node_policy.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import aggregated_apis
from outfitter.install import names
from outfitter.install.names import InstallOptions
from outfitter.scheduling.nova import flavor_claim

GROUP = "rbac.authorization.k8s.io"
REGISTRATION = "apiregistration.k8s.io"
READ = "get list watch"
WATCH = "list watch"  # what an informer asks for
KUBE_SYSTEM = "kube-system"
CA = "list watch patch"


@dataclass(frozen=True, slots=True)
class Rights:
    """PolicyRules of one service account."""

    cluster: tuple[Object, ...]  # in every namespace
    own: tuple[Object, ...] = ()  # in the namespace of the installation
    system: tuple[Object, ...] = ()  # in kube-system


def rule(resource: Kind | str, verbs: str, *, subresource: str = "", only: Sequence[str] = (), group: str = "") -> Object:
    """One PolicyRule. `resource` is a kind, or a plural of `group`."""
    plural, group = (resource.plural, resource.group) if isinstance(resource, Kind) else (resource, group)
    return {
        "apiGroups": [group],
        "resources": [f"{plural}/{subresource}" if subresource else plural],
        **({"resourceNames": list(only)} if only else {}),
        "verbs": verbs.split(),
    }


EVENTS = rule(kinds.EVENT, "create patch")
# Bookings of a page that ends are recorded with the same write.
BOOKS = (rule(kinds.LEDGER_PAGE, f"{READ} create update"), rule(kinds.PAST_BOOKING, "get create update"))
# An owner reference with blockOwnerDeletion needs this where OwnerReferencesPermissionEnforcement is on, as in OpenShift.
# Of a pod: the claims of a migration's target, and pods that hold what is plugged into a VM.
OWNS = tuple(rule(kind, "update", subresource="finalizers") for kind in (kinds.VM, kinds.VMI, kinds.POD))


def controller() -> Rights:
    return Rights(
        cluster=(
            EVENTS,
            *BOOKS,
            *OWNS,
            rule(kinds.POD, f"{READ} create patch delete"),  # patch: its networks, when NICs come and go
            rule(kinds.POD, "patch", subresource="status"),  # the readiness gate of a launcher pod
            rule(kinds.NODE, WATCH),
            rule(kinds.VM, f"{READ} patch"),
            rule(kinds.VM, "patch", subresource="status"),
            rule(kinds.VMI, f"{READ} create patch delete"),
            rule(kinds.VMI, "patch", subresource="status"),
            rule(kinds.MIGRATION, f"{READ} create patch delete"),
            rule(kinds.MIGRATION, "patch", subresource="status"),
            rule(kinds.KUBEVIRT, WATCH),
            rule(kinds.KUBEVIRT, "patch", subresource="status"),
            rule(kinds.HOST_INVENTORY, WATCH),  # versions of the agents
            rule(kinds.FLAVOR, WATCH),
            rule(kinds.RESOURCE_CLAIM, f"{READ} create patch delete"),
            # reservedFor of a claim that a VM keeps while it is stopped; Kubernetes 1.36 asks for both.
            rule(kinds.RESOURCE_CLAIM, "patch", subresource="status"),
            rule(kinds.RESOURCE_CLAIM, "patch", subresource="binding"),
            rule(kinds.RESOURCE_CLAIM_TEMPLATE, READ),
            rule(kinds.RESOURCE_SLICE, WATCH),
            rule(kinds.NETWORK_ATTACHMENT, "get"),
            rule(kinds.DEVICE_CLASS, "get", only=[flavor_claim.CLASS]),
        ),
        # `create` cannot be limited to a name.
        own=(rule(kinds.LEASE, "create"), rule(kinds.LEASE, "get update", only=[names.LEASE])),
        # Aliases, where users and `outfit plan` read them; the installation creates the ConfigMap.
        system=(rule(kinds.CONFIG_MAP, "patch", only=[flavor_claim.ALIASES_CONFIG_MAP]),),
    )


def companion_controller() -> Rights:
    """Beside KubeVirt, which alone writes VMs, VMIs and their pods: allocations are copied to the ledger."""
    whole = controller()
    watched = (kinds.RESOURCE_CLAIM, kinds.RESOURCE_SLICE, kinds.NODE, kinds.HOST_INVENTORY)
    reads = (rule(kinds.POD, READ), *(rule(kind, WATCH) for kind in watched))
    return Rights(
        cluster=(EVENTS, *BOOKS, *reads, rule(kinds.DEVICE_CLASS, "get", only=[flavor_claim.CLASS])),
        own=whole.own, system=whole.system)


def webhook() -> Rights:
    versions = [aggregated_apis.api_service(*served) for served in aggregated_apis.SERVED]
    admission = "admissionregistration.k8s.io"
    return Rights(
        cluster=(
            # What the rules of admission look up: some kept in memory, some read when they are needed.
            *(rule(kind, "list watch") for kind in (kinds.KUBEVIRT, kinds.DEVICE_CLASS, kinds.RESOURCE_CLAIM_TEMPLATE)),
            *(rule(kind, "get") for kind in (kinds.LEDGER_PAGE, kinds.NODE, kinds.RESOURCE_CLAIM, kinds.NETWORK_ATTACHMENT)),
            *(rule(kind, "list") for kind in (kinds.POD, kinds.RESOURCE_SLICE, kinds.MIGRATION, kinds.NODE)),
            # To count devices for users who may not read them.
            *(rule(kind, "list") for kind in (kinds.LEDGER_PAGE, kinds.DEVICE_TAINT_RULE)),
            # What virtctl asks of VMs: the caller's right to it is reviewed first.
            *(rule(kind, "get patch") for kind in (kinds.VM, kinds.VMI)),
            rule(kinds.MIGRATION, "create"),
            *(rule(kind, "patch", subresource="status") for kind in (kinds.VM, kinds.VMI)),
            rule("subjectaccessreviews", "create", group="authorization.k8s.io"),
            # Its CA, in what the API server calls it by.
            rule("validatingwebhookconfigurations", CA, group=admission, only=[names.WEBHOOK_CONFIGURATION]),
            rule("mutatingwebhookconfigurations", CA, group=admission, only=[names.WEBHOOK_CONFIGURATION]),
            rule("apiservices", CA, group=REGISTRATION, only=versions),
        ),
        # The installation creates the Secret, empty.
        own=(rule(kinds.SECRET, "get list watch update", only=[names.CERTIFICATE]),),
        # The CA and the headers by which the API server names its users.
        system=(rule(kinds.CONFIG_MAP, "list watch", only=["extension-apiserver-authentication"]),),
    )


def node() -> Rights:
    """Limited to the agent's own node by `node_policy`."""
    return Rights(
        cluster=(
            EVENTS,
            *BOOKS,
            rule(kinds.PAST_BOOKING, "list delete"),  # history expires
            # Objects of its node; one that cannot be read is deleted and written again.
            rule(kinds.PROVIDER_TREE, "get list create update delete"),
            rule(kinds.HOST_INVENTORY, "get list create update delete"),
            rule(kinds.RESOURCE_SLICE, f"{READ} create update delete"),
            rule(kinds.POD, READ),
            rule(kinds.NODE, "get list"),
            rule(kinds.VMI, WATCH),
            rule(kinds.VMI, "patch", subresource="status"),
            rule(kinds.KUBEVIRT, "list"),  # limits of migrations, permittedHostDevices of the device plugin
            # Those of its pods, by name. The driver writes no status of claims: Kubernetes 1.36 asks it for neither `binding`
            # nor `driver`.
            rule(kinds.RESOURCE_CLAIM, "get"),
            rule(kinds.NETWORK_ATTACHMENT, "get"),
        )
    )


def beside_kubevirt(rights: Rights) -> Rights:
    """Without what is KubeVirt's: its APIServices are not written, and of its objects only its settings are read."""
    ours = [aggregated_apis.api_service(*served) for served in aggregated_apis.STATUS]
    rules = []
    for each in rights.cluster:
        [group], verbs = each["apiGroups"], each["verbs"]
        if group == kinds.KUBEVIRT.group and each["resources"] != [kinds.KUBEVIRT.plural]:
            continue
        if group in (kinds.KUBEVIRT.group, REGISTRATION):
            verbs = [verb for verb in verbs if verb in READ.split()]
        rules += [{**each, "verbs": verbs}] if verbs else []
        if group == REGISTRATION:
            rules.append(rule("apiservices", "patch", group=group, only=ours))
    return replace(rights, cluster=tuple(rules))


def simulation() -> Rights:
    """What `outfit node --simulate` needs besides the rights of a node agent, because it plays the kubelets and the networks of
    its nodes. For trying out; not for a cluster with real workloads: it reads Secrets, as a kubelet does."""
    return Rights(
        cluster=(
            rule(kinds.NODE, "create patch"),
            rule(kinds.NODE, "patch", subresource="status"),
            rule(kinds.POD, "patch delete"),
            rule(kinds.POD, "patch", subresource="status"),
            rule(kinds.SECRET, "get"),
            # Claims of all its nodes, and whether the VM that owns one keeps it.
            rule(kinds.RESOURCE_CLAIM, WATCH),
            rule(kinds.VM, "get"),
            # Of devices that DRA drivers which it serves report as unhealthy.
            rule(kinds.DEVICE_TAINT_RULE, "create delete"),
        )
    )


def objects(options: InstallOptions) -> list[Object]:
    """Service accounts, roles and their bindings."""
    accounts = {names.CONTROLLER: controller(), names.WEBHOOK: webhook(), names.NODE: node()}
    if options.companion:
        accounts = {names.CONTROLLER: companion_controller(), names.WEBHOOK: beside_kubevirt(webhook()),
                    names.NODE: beside_kubevirt(node())}
    if options.simulation:
        accounts[names.SIMULATION] = simulation()
    out = [obj for account, rights in accounts.items() for obj in _bound(account, rights, options)]
    if options.simulation:
        out.append(_binding(f"{names.SIMULATION}-node", names.NODE, names.SIMULATION, options))
    return out


def _bound(account: str, rights: Rights, options: InstallOptions) -> list[Object]:
    """A service account and its roles, which have its name: one in each namespace, also where that of the installation is
    kube-system."""
    out = [_service_account(account, options)]
    roles: dict[str, list[Object]] = {}
    for namespace, rules in (("", rights.cluster), (options.namespace, rights.own), (KUBE_SYSTEM, rights.system)):
        if rules:
            roles.setdefault(namespace, []).extend(rules)
    for namespace, all_rules in roles.items():
        out += [_role(account, all_rules, namespace), _binding(account, account, account, options, namespace=namespace)]
    return out


def _service_account(name: str, options: InstallOptions) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.metadata(name, _component(name), namespace=options.namespace),
    }


def _role(name: str, rules: Sequence[Object], namespace: str) -> Object:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": names.metadata(name, _component(name), namespace=namespace),
        "rules": list(rules),
    }


def _binding(name: str, role: str, account: str, options: InstallOptions, *, namespace: str = "") -> Object:
    """Of a role in a namespace, or ("") of the cluster."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": names.metadata(name, _component(account), namespace=namespace),
        "roleRef": {"apiGroup": GROUP, "kind": "Role" if namespace else "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": options.namespace}],
    }


def _component(account: str) -> str:
    return account.removeprefix("outfitter-")
