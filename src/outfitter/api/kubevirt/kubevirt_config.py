"""The configuration in the KubeVirt object as a value; defaults without one. Used by admission and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import feature_gates
from outfitter.api.kubevirt.feature_gates import Gates

HOME = "kubevirt"  # the namespace of the KubeVirt object and of the accounts that belong to it
STRATEGIES = ("LiveUpdate", "Stage")
METHODS = ("LiveMigrate", "Evict")
# Lists of permittedHostDevices, with the field by which each finds its devices.
PERMITTED = {"pciHostDevices": "pciVendorSelector", "mediatedDevices": "mdevNameSelector", "usb": "selectors"}
ACCOUNTS = ("kubevirt-apiserver", "kubevirt-api", "kubevirt-controller", "kubevirt-handler",
            "kubevirt-synchronization-controller", "outfitter")


@dataclass(frozen=True, slots=True)
class KubeVirtConfig:
    """The parts of the KubeVirt object that affect Outfitter."""

    gates: Gates = field(default_factory=Gates)
    permitted: frozenset[str] | None = None  # resource names that deviceName may request; None: any
    rollout: str = STRATEGIES[0]
    update_methods: tuple[str, ...] = ()
    plugins: Mapping[str, str] = field(
        default_factory=dict
    )  # network binding plugin -> its NetworkAttachmentDefinition; "": none
    namespace: str = HOME

    def ours(self, user: str) -> bool:
        """Whether a writer is a component of KubeVirt or Outfitter. Our controllers in this process have no user name."""
        return not user or user in (f"system:serviceaccount:{self.namespace}:{account}" for account in ACCOUNTS)


def read_config(kubevirt: Mapping[str, Any] | None) -> KubeVirtConfig:
    if kubevirt is None:
        return KubeVirtConfig()
    spec = kubevirt.get("spec") or {}
    configuration = spec.get("configuration") or {}
    developer = configuration.get("developerConfiguration") or {}
    return KubeVirtConfig(
        feature_gates.listed(developer.get("featureGates") or (), developer.get("disabledFeatureGates") or ()),
        _permitted(configuration.get("permittedHostDevices")),
        configuration.get("vmRolloutStrategy") or STRATEGIES[0],
        tuple((spec.get("workloadUpdateStrategy") or {}).get("workloadUpdateMethods") or ()),
        {name: str((plugin or {}).get("networkAttachmentDefinition") or "")
         for name, plugin in ((configuration.get("network") or {}).get("binding") or {}).items()},
        kubevirt["metadata"].get("namespace") or HOME,
    )


def _permitted(devices: Mapping[str, Any] | None) -> frozenset[str] | None:
    if devices is None:
        return None
    return frozenset(str(entry.get("resourceName")) for list_ in PERMITTED for entry in devices.get(list_) or ())


def active_kubevirt(objects: Iterable[Object]) -> Object | None:
    """The KubeVirt object in effect: the oldest. Admission allows only one, but a cluster may have several."""
    return min(objects, default=None, key=lambda obj: (
        str(obj["metadata"].get("creationTimestamp")), str(obj["metadata"].get("namespace")), str(obj["metadata"]["name"])))
