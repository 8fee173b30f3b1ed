"""Every object of an installation, in the order in which it is applied: what others refer to comes first, and what makes the
API server call us comes last, so that an interrupted installation stops no one else."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.install import names, node_policy, rbac, user_roles, webhooks, workloads
from outfitter.install.names import InstallOptions
from outfitter.scheduling import config as scheduling_config
from outfitter.scheduling.nova import flavor_claim


def objects(options: InstallOptions) -> list[Object]:
    return [
        workloads.namespace(options),
        *definitions(options),
        *node_policy.objects(options),
        *rbac.objects(options),
        *user_roles.objects(),
        _labelled(flavor_claim.device_class()),
        *published_settings(),
        *workloads.objects(options),
        *webhooks.objects(options),
    ]


def definitions(options: InstallOptions) -> list[Object]:
    """The CRDs; beside KubeVirt without its own."""
    ours = [kind for kind in kinds.ALL if not kind.builtin and kind != kinds.NETWORK_ATTACHMENT]
    return [_labelled(kinds.crd(kind)) for kind in ours if not (options.companion and kind.group == kinds.VM.group)]


def published_settings() -> list[Object]:
    """ConfigMaps in which the controller publishes its aliases and its policy; created here, because a right to create one
    cannot be limited to a name."""
    found = (
        (flavor_claim.ALIASES_CONFIG_MAP, flavor_claim.ALIASES_NAMESPACE),
        (scheduling_config.NAME, scheduling_config.NAMESPACE),
    )
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": names.metadata(name, "controller", namespace=namespace)}
        for name, namespace in found
    ]


def _labelled(obj: Object) -> Object:
    meta = obj["metadata"]
    return {**obj, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **names.labels()}}}
