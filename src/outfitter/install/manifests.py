"""Every object of an installation, in the order in which it is applied: what others refer to comes first, and what makes the
API server call us comes last, so that an interrupted installation stops no one else."""

from __future__ import annotations

from outfitter.api.kinds import Object
from outfitter.install import crds, kubevirt_roles, names, node_policy, rbac, user_roles, webhooks, workloads
from outfitter.install.names import InstallOptions
from outfitter.scheduling.nova import flavor_claim


def objects(options: InstallOptions) -> list[Object]:
    return [
        workloads.namespace(options),
        *map(_labelled, crds.definitions(kubevirt=not options.companion)),
        *node_policy.objects(options),
        *rbac.objects(options),
        *user_roles.objects(),
        *([] if options.companion else kubevirt_roles.objects()),
        _labelled(flavor_claim.device_class()),
        aliases(),
        *workloads.objects(options),
        *webhooks.objects(options),
    ]


def aliases() -> Object:
    """The ConfigMap in which the controller publishes its aliases; created here, because a right to create one cannot be
    limited to a name."""
    meta = names.metadata(flavor_claim.ALIASES_CONFIG_MAP, "controller", namespace=flavor_claim.ALIASES_NAMESPACE)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}


def _labelled(obj: Object) -> Object:
    meta = obj["metadata"]
    return {**obj, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **names.labels()}}}
