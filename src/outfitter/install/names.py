"""Names that the objects of an installation share, and the options of one. Roles find their Lease, Secret and ConfigMap by
these names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import outfitter
from outfitter.api.kinds import Object

NAMESPACE = "outfitter-system"
CONTROLLER, WEBHOOK, NODE = "outfitter-controller", "outfitter-webhook", "outfitter-node"  # service accounts and workloads
SIMULATION = "outfitter-simulation"  # the service account of `outfit node --simulate`
WEBHOOK_CONFIGURATION = "outfitter"  # of both webhook configurations
CERTIFICATE = "outfitter-webhook-cert"  # the Secret with CA and serving certificate
CONFIG = "outfitter-config"  # the ConfigMap with the configuration file
LEASE = "outfitter-controller"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
MANAGER = "outfitter"  # the value of MANAGED_BY: what `--remove` removes, and an upgrade prunes
FIELD_MANAGER = "outfitter-install"
SIMULATED = "outfitter.dev/simulated"  # label of nodes that `outfit node --simulate` created: "true"


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """What differs between installations. The defaults are those of `deploy/base`."""

    namespace: str = NAMESPACE
    image: str = f"outfitter:{outfitter.__version__}"
    launcher_image: str = f"outfitter-launcher:{outfitter.__version__}"
    image_pull_policy: str = "IfNotPresent"
    replicas: int = 2  # of the controller and of the webhook
    config: str = ""  # the configuration file (docs/configuration.md)
    simulation: bool = False  # also the service account of `outfit node --simulate`, which plays kubelets
    companion: bool = False  # beside KubeVirt: without its CRDs, its API and webhooks for its kinds
    webhook_url: str | None = None  # where the API server reaches a webhook outside the cluster; None: through the Service


def metadata(name: str, component: str = "", *, namespace: str = "", **more: Any) -> Object:
    """Metadata of an object of ours."""
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels(component), **more}


def labels(component: str = "") -> dict[str, str]:
    return {MANAGED_BY: MANAGER, "app.kubernetes.io/part-of": "outfitter", **({COMPONENT: component} if component else {})}


def managed(obj: Mapping[str, Any]) -> bool:
    """Whether an object is one that we installed."""
    return bool((obj["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER)
