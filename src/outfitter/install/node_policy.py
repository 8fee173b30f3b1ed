"""The ValidatingAdmissionPolicy that binds a node agent to its node, which RBAC cannot: a host that was taken over publishes no
devices for another, frees no booking of another and reports on no VM of another. The node is the one in the agent's token,
which the API server puts there for a token that is bound to a pod."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import POOLS
from outfitter.install import names
from outfitter.install.names import InstallOptions

GROUP = "admissionregistration.k8s.io"
NODE = "variables.node"
SUBJECT = "variables.subject"  # the object as it will be; of a delete, as it was

# Kind -> what must hold of an object of it that a node agent writes, and the message when it does not.
RULES: dict[Kind, tuple[str, str]] = {
    kinds.RESOURCE_SLICE: (
        f'{SUBJECT}.spec.driver == "{DRIVER}" && ({SUBJECT}.spec.?nodeName.orValue("") == {NODE} '
        f'|| (request.operation == "DELETE" && {SUBJECT}.spec.pool.name == {NODE}))',
        f"a node agent publishes devices of its own node and of the driver {DRIVER} only",
    ),
    kinds.LEDGER_PAGE: (
        f'request.name == {NODE} || request.name.endsWith("{POOLS}")',
        "a node agent writes the page of its own node, and of pools that no node owns, only",
    ),
    kinds.PAST_BOOKING: (
        f'{SUBJECT}.spec.host == {NODE} || {SUBJECT}.spec.host.endsWith("{POOLS}")',
        "a node agent records bookings of its own node only",
    ),
    kinds.HOST_INVENTORY: (f"request.name == {NODE}", "a node agent writes the inventory of its own node only"),
    kinds.PROVIDER_TREE: (f"request.name == {NODE}", "a node agent writes the provider tree of its own node only"),
    kinds.VMI: (
        f'oldObject.?status.?nodeName.orValue("") == {NODE} || {NODE} in '
        "oldObject.?status.?activePods.orValue({}).map(uid, oldObject.status.activePods[uid])",
        "a node agent reports on VMIs of its own node only",
    ),
}
BY_STATUS = (kinds.VMI,)  # kinds of which an agent writes nothing but the status


def objects(options: InstallOptions) -> list[Object]:
    account = f"system:serviceaccount:{options.namespace}:{names.NODE}"
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_resource_rule(kind) for kind in RULES]},
        "matchConditions": [{"name": "node-agent", "expression": f'request.userInfo.username == "{account}"'}],
        "variables": [
            {"name": "node", "expression": "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"},
            {"name": "subject", "expression": 'request.operation == "DELETE" ? oldObject : object'},
        ],
        "validations": [
            {
                "expression": f'{NODE} != ""',
                "reason": "Forbidden",
                "message": "the token of this node agent names no node: it must be that of a pod that is scheduled to a node",
            },
            *(
                {
                    "expression": f'request.resource.resource != "{kind.plural}" || ({expression})',
                    "reason": "Forbidden",
                    "message": message,
                }
                for kind, (expression, message) in RULES.items()
            ),
        ],
    }
    meta = names.metadata(names.NODE, "node")
    return [
        {"apiVersion": f"{GROUP}/v1", "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec},
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": meta,
            "spec": {"policyName": names.NODE, "validationActions": ["Deny"]},
        },
    ]


def _resource_rule(kind: Kind) -> Object:
    status = kind in BY_STATUS
    return {
        "apiGroups": [kind.group],
        "apiVersions": ["*"],
        "resources": [f"{kind.plural}/status" if status else kind.plural],
        "operations": ["UPDATE"] if status else ["CREATE", "UPDATE", "DELETE"],
    }
