"""What the KubeVirt object says, for those who act on it. Without one, everything has its default."""

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
    """The KubeVirt object, read."""

    gates: Gates = field(default_factory=Gates)
    permitted: frozenset[str] | None = None  # resource names that a machine may ask for by deviceName; None: any
    rollout: str = STRATEGIES[0]
    update_methods: tuple[str, ...] = ()
    plugins: Mapping[str, str] = field(default_factory=dict)  # network binding plugin -> its network definition; "": has none
    namespace: str = HOME

    def ours(self, user: str) -> bool:
        """Whether a writer belongs to the system itself. Our own loops in this process have no name."""
        return not user or user in (f"system:serviceaccount:{self.namespace}:{account}" for account in ACCOUNTS)


def read_config(kubevirt: Mapping[str, Any] | None) -> KubeVirtConfig:
    if kubevirt is None:
        return KubeVirtConfig()
    spec = kubevirt.get("spec") or {}
    given = spec.get("configuration") or {}
    developer = given.get("developerConfiguration") or {}
    return KubeVirtConfig(
        feature_gates.listed(developer.get("featureGates") or (), developer.get("disabledFeatureGates") or ()),
        _permitted(given.get("permittedHostDevices")),
        given.get("vmRolloutStrategy") or STRATEGIES[0],
        tuple((spec.get("workloadUpdateStrategy") or {}).get("workloadUpdateMethods") or ()),
        {name: str((plugin or {}).get("networkAttachmentDefinition") or "")
         for name, plugin in ((given.get("network") or {}).get("binding") or {}).items()},
        kubevirt["metadata"].get("namespace") or HOME,
    )


def _permitted(given: Mapping[str, Any] | None) -> frozenset[str] | None:
    if given is None:
        return None
    return frozenset(str(entry.get("resourceName")) for list_ in PERMITTED for entry in given.get(list_) or ())


def active_kubevirt(objects: Iterable[Object]) -> Object | None:
    """The KubeVirt object that counts: the oldest. The door lets in only one, but two may have been stored before it did."""
    return min(objects, default=None, key=lambda obj: (
        str(obj["metadata"].get("creationTimestamp")), str(obj["metadata"].get("namespace")), str(obj["metadata"]["name"])))
