"""The vocabulary of the VM cases: admission, render, status, domainxml, hotplug and migration."""

from __future__ import annotations

from collections.abc import Mapping

from tests.cases.vocabulary import Check, anything, chosen, each, keys, or_scalar, plain

CONFIG_KEYS = (
    "featureGates", "disabledFeatureGates", "gateDefaults",
    "operation", "user",  # admission
    "permittedHostDevices", "renderFor",  # render
    "deviceSource",  # domainxml
    "reconciles",  # status
    "vmRolloutStrategy", "workloadUpdateMethods", "gracePeriodSeconds", "parallelMigrationsPerCluster", "newMigrationPhase",
    "failMigrationsAfterSeconds", "startVMs", "playNodes", "stageSeconds",  # hotplug, migration
)
CONFIG = keys({**dict.fromkeys(CONFIG_KEYS, anything), "failMigrations": plain("at", "times")})

_OBJECT = plain("apiVersion", "kind", "metadata", "spec", "status")
_DATA = plain("apiVersion", "kind", "metadata", "data", "binaryData", "stringData", "type", "immutable")
_RIGHTS = plain("apiVersion", "kind", "metadata", "rules", "roleRef", "subjects", "aggregationRule")
KINDS: Mapping[str, Check] = {
    **dict.fromkeys((
        "VirtualMachineInstance", "VirtualMachine", "VirtualMachineInstanceMigration", "KubeVirt", "Pod", "Node", "Namespace",
        "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "DeviceTaintRule", "ResourceQuota",
        "NetworkAttachmentDefinition",
    ), _OBJECT),
    **dict.fromkeys(("ConfigMap", "Secret", "ServiceAccount"), _DATA),
    **dict.fromkeys(("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"), _RIGHTS),
    "LauncherEnv": plain("kind", "env"),
    "LauncherFiles": plain("kind", "files"),
}
GIVEN = each(chosen("kind", KINDS, "kind"))
_CREATED = each(chosen("kind", {kind: check for kind, check in KINDS.items() if not kind.startswith("Launcher")}, "kind"))

_ERROR = plain("messageContains")
_CHANGE = each(plain("kind", "name", "namespace", "patch"))
_ANNOTATION = each(plain("kind", "name", "namespace", "key", "equals"))
_COUNTED = ("kind", "name", "namespace", "match")
THEN: Mapping[str, Check] = {
    "conditions": each(plain("kind", "name", "namespace", "type", "status", "reason", "messageContains")),
    "noConditions": each(plain("kind", "name", "namespace", "type", "status", "reason")),
    "fieldEquals": each(plain("kind", "name", "namespace", "path", "equals")),
    "annotationJSON": _ANNOTATION,
    "annotationEquals": _ANNOTATION,
    "annotationAbsent": _ANNOTATION,
    **dict.fromkeys(("count", "countAtMost"), each(plain(*_COUNTED, "equals", "atMost"))),
    "objects": each(anything),
    "noObjects": each(anything),
    "unchanged": each(plain("kind", "name", "namespace", "path")),
    "rbac": each(plain("role", "resource", "can", "cannot")),
    "refused": plain("status", "field", "messageContains", "optional"),
    "orError": anything,
}
DO: Mapping[str, Check] = {
    "apply": _CHANGE, "applyStatus": _CHANGE, "create": _CREATED, "restart": anything, "user": anything,
    "delete": each(plain("apiVersion", "kind", "name", "namespace", "metadata", "spec", "status")),
}
STEPS = each(keys({"at": anything, "do": keys(DO), "then": keys(THEN)}))
# Area migration has the words of hotplug and these.
MIGRATION_STEPS = each(keys({
    "at": anything,
    "do": keys({**DO, "drain": anything, "undrain": anything}),
    "then": keys({
        **THEN, "held": each(plain("node", "device", "by")),
        "plan": each(keys({"vmi": anything, "possible": anything, "to": anything, "reasonContains": anything,
                           "devices": each(plain("name", "how", "reasonContains"))})),
    }),
}))

# What an area may expect. "orError" stands beside the others: an error in place of the rest is as good.
EXPECT: Mapping[str, Check] = {
    "admission": keys({
        "allowed": anything, "field": anything, "messageContains": anything, "fieldAny": anything, "causeCount": anything,
        "causes": each(plain("field", "fieldAny", "messageContains")),
    }),
    "render": keys({
        "pod": anything, "exact": each(plain("path", "equals")), "absent": each(anything), "annotationJSON": anything,
        "absentAnnotations": each(anything), "onlyContainerWithClaims": anything, "delta": anything, "error": _ERROR,
        "orError": anything,
    }),
    "status": keys({
        "deviceStatus": anything, "deviceStatusNotContains": anything, "ready": anything, "patchesAtMost": anything,
        "retried": anything, "warningEvent": or_scalar(plain("reason", "messageContains")), "crashes": anything,
        "orError": anything,
    }),
    "domainxml": keys({
        "xpathAssertions": each(plain("xpath", "equals", "count")), "error": _ERROR, "orError": anything,
    }),
    "hotplug": keys({"steps": STEPS}),
    "migration": keys({"steps": MIGRATION_STEPS}),
}


def case(area: str) -> Check:
    return keys({
        "name": anything, "area": anything, "basis": anything, "tier": anything, "refs": anything, "note": anything,
        "config": CONFIG, "given": GIVEN, "expect": EXPECT[area],
    })
