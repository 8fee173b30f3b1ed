"""What the API server sends to the webhook, and what it does while the webhook is away, with the reason. `install` makes the
webhook configurations of it.

Kinds of Kubernetes (pods, claims, slices) are not sent: the API server checks them by its own rules, which the embedded one
copies. So nothing but our own kinds waits for the webhook, and it never keeps a cluster from starting pods. Deletes are sent
for pages alone, and updates by our own service accounts not at all: running VMs are observed, stopped and deleted while the
webhook is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import reattached_devices

CONFIGURATION = "outfitter"  # the name of both webhook configurations
ACCOUNTS = ("outfitter-controller", "outfitter-node", "outfitter-simulation", "outfitter-webhook")
VALIDATE, MUTATE = "/validate", "/mutate"
TIMEOUT = 10  # seconds that the API server waits for an answer
KUBEVIRT_GROUP = kinds.VM.group


@dataclass(frozen=True, slots=True)
class WebhookRule:
    """Kinds and operations that are sent, and what happens to them while the webhook is away."""

    name: str
    kinds: tuple[Kind, ...]
    operations: tuple[str, ...]
    failure_policy: str  # Fail: refused while the webhook is away; Ignore: admitted unseen
    reason: str  # of the failure policy
    subresource: str = ""
    mutating: bool = False
    own: tuple[str, ...] = ()  # operations of our own service accounts that are sent too
    new_spec: bool = False  # an update that keeps the spec is not sent
    annotation: str = ""  # but one that sets or changes this annotation is

    def entry(self, client: Object, namespace: str, sent: tuple[Kind, ...]) -> Object:
        """An entry of a webhook configuration, for these of its kinds. `client`: how the API server reaches the webhook."""
        return {
            "name": f"{self.name}.{kinds.LEDGER_PAGE.group}",
            "clientConfig": client,
            "rules": [{"apiGroups": [kind.group], "apiVersions": [kind.version],
                       "resources": [f"{kind.plural}/{self.subresource}" if self.subresource else kind.plural],
                       "operations": list(self.operations), "scope": "Namespaced" if kind.namespaced else "Cluster"}
                      for kind in sent],
            "matchConditions": self._conditions(namespace),
            "failurePolicy": self.failure_policy,
            "matchPolicy": "Equivalent",  # an older version is converted to the one above
            "sideEffects": "None",  # a dry run is answered as every other request
            "timeoutSeconds": TIMEOUT,
            "admissionReviewVersions": ["v1"],
        }

    def _conditions(self, namespace: str) -> list[Object]:
        listed = ", ".join(f"'{account}'" for account in own_accounts(namespace))
        of_user = f"!(request.userInfo.username in [{listed}])"
        if self.own:
            of_user = f"request.operation in [{', '.join(map(repr, self.own))}] || {of_user}"
        conditions = [{"name": "not-by-outfitter", "expression": of_user}]
        if self.new_spec:
            changed = f" || ({_sets(self.annotation)})" if self.annotation else ""
            conditions.append({"name": "new-spec", "expression":
                               "request.operation != 'UPDATE' || !has(object.spec) || !has(oldObject.spec) "
                               f"|| object.spec != oldObject.spec{changed}"})
        return conditions


def _sets(annotation: str) -> str:
    """The expression for an update that sets an annotation, or changes it."""
    return (f"has(object.metadata.annotations) && '{annotation}' in object.metadata.annotations "
            f"&& !(has(oldObject.metadata.annotations) && '{annotation}' in oldObject.metadata.annotations "
            f"&& oldObject.metadata.annotations['{annotation}'] == object.metadata.annotations['{annotation}'])")


WRITES = ("CREATE", "UPDATE")
RULES = (
    WebhookRule(
        "vms", (kinds.VM, kinds.VMI, kinds.MIGRATION), WRITES, "Fail",
        "what is stored is started: an invalid VM must not be. Running VMs need no write that is sent",
        own=("CREATE",), new_spec=True, annotation=reattached_devices.DECLARED),
    WebhookRule(
        "status", (kinds.VM, kinds.VMI, kinds.MIGRATION, kinds.KUBEVIRT), ("UPDATE",), "Fail",
        "controllers act on status; only users who write it by hand are sent", subresource="status"),
    WebhookRule(
        "pages", (kinds.LEDGER_PAGE,), (*WRITES, "DELETE"), "Fail",
        "a booking that a user removes while it is held would let a device be allocated twice"),
    WebhookRule(
        "configuration", (kinds.KUBEVIRT, kinds.FLAVOR), WRITES, "Fail",
        "an invalid configuration or flavor would stop every VM that uses it from starting", new_spec=True),
    WebhookRule(
        "inventory", (kinds.PROVIDER_TREE, kinds.HOST_INVENTORY, kinds.PAST_BOOKING), WRITES, "Fail",
        "hosts write these; a user who edits one by hand can wait"),
    WebhookRule(
        "defaults", (kinds.VMI,), ("CREATE",), "Ignore",
        "the VMI controller sets what is missing; an invalid VMI is refused by rule vms", mutating=True, own=("CREATE",)),
)


def own_accounts(namespace: str) -> tuple[str, ...]:
    """The users as which our roles write."""
    return tuple(f"system:serviceaccount:{namespace}:{account}" for account in ACCOUNTS)


def entries(
    namespace: str, client: Callable[[str], Object], *, mutating: bool, companion: bool = False
) -> list[Object]:
    """`webhooks` of a ValidatingWebhookConfiguration or (`mutating`) a MutatingWebhookConfiguration of an installation in this
    namespace. `client`: the clientConfig of a path. `companion`: KubeVirt's kinds have its own webhook."""
    path, out = MUTATE if mutating else VALIDATE, []
    for rule in RULES:
        sent = tuple(kind for kind in rule.kinds if not (companion and kind.group == KUBEVIRT_GROUP))
        if rule.mutating == mutating and sent:
            out.append(rule.entry(client(path), namespace, sent))
    return out
