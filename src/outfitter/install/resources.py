"""The kinds that an installation consists of, in the order of installation; those that the product itself reads are in
`api.kinds`."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest


def _kind(group: str, kind: str, plural: str, *, namespaced: bool = False) -> Kind:
    return Kind(group, "v1", kind, plural, namespaced=namespaced)


RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
CRD = _kind("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions")
DEPLOYMENT = _kind("apps", "Deployment", "deployments", namespaced=True)
INSTALLED: tuple[Kind, ...] = (
    kinds.NAMESPACE,
    CRD,
    _kind(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    _kind(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    kinds.SERVICE_ACCOUNT,
    _kind(RBAC, "ClusterRole", "clusterroles"),
    _kind(RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    _kind(RBAC, "Role", "roles", namespaced=True),
    _kind(RBAC, "RoleBinding", "rolebindings", namespaced=True),
    kinds.DEVICE_CLASS,
    kinds.CONFIG_MAP,
    kinds.SECRET,
    _kind("", "Service", "services", namespaced=True),
    DEPLOYMENT,
    _kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True),
    _kind("apps", "DaemonSet", "daemonsets", namespaced=True),
    _kind("apiregistration.k8s.io", "APIService", "apiservices"),
    _kind(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    _kind(ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
)
# An upgrade does not remove these: their objects would go with them.
KEPT = (kinds.NAMESPACE, CRD)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in INSTALLED}

Key = tuple[Kind, str, str]  # kind, namespace, name


def kind_of(obj: Object) -> Kind:
    try:
        return _BY_NAME[obj["apiVersion"], obj["kind"]]
    except KeyError:
        raise BadRequest(f"{obj['apiVersion']} {obj['kind']} is no kind of an installation") from None


def key_of(obj: Object) -> Key:
    return kind_of(obj), obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def title(key: Key) -> str:
    """As kubectl writes it: "deployment.apps/outfitter-controller", with the namespace."""
    kind, namespace, name = key
    return f"{kind.singular}{f'.{kind.group}' if kind.group else ''}/{name}{f' in {namespace}' if namespace else ''}"
