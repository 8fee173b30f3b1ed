"""The configuration in the KubeVirt object as a value; defaults without one. Used by admission and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import feature_gates
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.quantity import to_int

HOME = "kubevirt"  # the namespace of the KubeVirt object and of the accounts that belong to it
STRATEGIES = ("LiveUpdate", "Stage")
METHODS = ("LiveMigrate", "Evict")
PLUG_GRACE, PREPARE_TIMEOUT = 10, 150  # seconds
# Of the KubeVirt object:
PLUG_GRACE_ANNOTATION = "outfitter.dev/nic-hotplug-grace-period-seconds"
PREPARE_TIMEOUT_ANNOTATION = "outfitter.dev/migration-prepare-timeout-seconds"
SECONDS = {PLUG_GRACE_ANNOTATION: PLUG_GRACE, PREPARE_TIMEOUT_ANNOTATION: PREPARE_TIMEOUT}
# Lists of permittedHostDevices, with the field by which each finds its devices.
PERMITTED = {"pciHostDevices": "pciVendorSelector", "mediatedDevices": "mdevNameSelector", "usb": "selectors"}
ACCOUNTS = ("kubevirt-apiserver", "kubevirt-api", "kubevirt-controller", "kubevirt-handler",
            "kubevirt-synchronization-controller", "outfitter")


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """spec.configuration.migrations, with KubeVirt's defaults, and an annotation."""

    per_cluster: int = 5  # migrations that run at a time
    per_node: int = 2  # of these, away from one host
    bandwidth: int = 0  # bytes per second for one migration; 0: no limit
    completion_timeout: int = 150  # seconds per GiB of guest memory
    progress_timeout: int = 150  # seconds without progress
    auto_converge: bool = False  # slow a guest down that writes faster than its memory is copied
    post_copy: bool = False
    prepare_timeout: int = PREPARE_TIMEOUT  # seconds for the agents of target and source from the hand-over to the copy


@dataclass(frozen=True, slots=True)
class KubeVirtConfig:
    """The parts of the KubeVirt object that affect Outfitter."""

    gates: Gates = field(default_factory=Gates)
    permitted: frozenset[str] | None = None  # resource names that deviceName may request; None: any
    rollout: str = STRATEGIES[0]
    update_methods: tuple[str, ...] | None = None  # None: not set, so nothing forbids a migration
    plugins: Mapping[str, str] = field(
        default_factory=dict
    )  # network binding plugin -> its NetworkAttachmentDefinition; "": none
    namespace: str = HOME
    migrations: MigrationSettings = field(default_factory=MigrationSettings)
    plug_grace: int = PLUG_GRACE  # seconds in which a node may plug a NIC in place, before a migration does it

    @property
    def may_migrate(self) -> bool:
        """Whether a change of a running VM may cause its migration: unless methods are listed and LiveMigrate is not."""
        return self.update_methods is None or METHODS[0] in self.update_methods

    def ours(self, user: str) -> bool:
        """Whether a writer is a component of KubeVirt or Outfitter. Our controllers in this process have no user name."""
        return not user or user in (f"system:serviceaccount:{self.namespace}:{account}" for account in ACCOUNTS)


def read_config(kubevirt: Mapping[str, Any] | None) -> KubeVirtConfig:
    if kubevirt is None:
        return KubeVirtConfig()
    spec = kubevirt.get("spec") or {}
    configuration = spec.get("configuration") or {}
    developer, annotations = configuration.get("developerConfiguration") or {}, kubevirt["metadata"].get("annotations") or {}
    return KubeVirtConfig(
        feature_gates.listed(developer.get("featureGates") or (), developer.get("disabledFeatureGates") or ()),
        _permitted(configuration.get("permittedHostDevices")),
        configuration.get("vmRolloutStrategy") or STRATEGIES[0],
        _methods(spec.get("workloadUpdateStrategy")),
        {name: str((plugin or {}).get("networkAttachmentDefinition") or "")
         for name, plugin in ((configuration.get("network") or {}).get("binding") or {}).items()},
        kubevirt["metadata"].get("namespace") or HOME,
        _migrations(configuration.get("migrations") or {}, _seconds(annotations, PREPARE_TIMEOUT_ANNOTATION)),
        _seconds(annotations, PLUG_GRACE_ANNOTATION),
    )


def _migrations(given: Mapping[str, Any], prepare_timeout: int) -> MigrationSettings:
    usual = MigrationSettings()

    def number(name: str, otherwise: int) -> int:
        value = given.get(name)
        return otherwise if value is None else int(value)

    return MigrationSettings(
        number("parallelMigrationsPerCluster", usual.per_cluster), number("parallelOutboundMigrationsPerNode", usual.per_node),
        to_int(str(given.get("bandwidthPerMigration") or 0)), number("completionTimeoutPerGiB", usual.completion_timeout),
        number("progressTimeout", usual.progress_timeout), bool(given.get("allowAutoConverge")),
        bool(given.get("allowPostCopy")), prepare_timeout)


def _methods(strategy: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    listed = (strategy or {}).get("workloadUpdateMethods")
    return None if listed is None else tuple(listed)


def _seconds(annotations: Mapping[str, Any], name: str) -> int:
    text = str(annotations.get(name) or "")
    return int(text) if text.isdecimal() and len(text) < 10 else SECONDS[name]


def _permitted(devices: Mapping[str, Any] | None) -> frozenset[str] | None:
    if devices is None:
        return None
    return frozenset(str(entry.get("resourceName")) for list_ in PERMITTED for entry in devices.get(list_) or ())


def active_kubevirt(objects: Iterable[Object]) -> Object | None:
    """The KubeVirt object in effect: the oldest. Admission allows only one, but a cluster may have several."""
    return min(objects, default=None, key=lambda obj: (
        str(obj["metadata"].get("creationTimestamp")), str(obj["metadata"].get("namespace")), str(obj["metadata"]["name"])))
