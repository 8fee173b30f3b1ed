"""Every kind that we serve or watch, as one table: group, version, names and storage properties. Fields are checked in
`validate/`; `served/` has their descriptions and the columns that are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# On the CRDs that we install: the version of outfitter that they were made by.
VERSION_ANNOTATION = "outfitter.dev/version"
# A wire object. Typed views of it are for reading only; changes are patches or edited dicts.
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object, its names and storage properties."""

    group: str  # "" for the core group
    version: str  # the version it is stored and served in; others are converted at the edge
    kind: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = True  # status is a subresource: a write of the object leaves it, a write of status leaves the rest
    older: tuple[str, ...] = ()  # further versions accepted and converted
    selectable: tuple[str, ...] = ()  # field selectors besides metadata.name and metadata.namespace
    status_at_create: bool = False  # a create request may contain status (a node that registers itself)
    status_writes_metadata: bool = False  # a write of status also writes labels, annotations and finalizers
    builtin: bool = True  # built into Kubernetes; False: a CRD, without strategic merge patch
    counts_generations: bool = True  # metadata.generation rises when anything but metadata and status changes
    subresources: tuple[str, ...] = ()  # besides status
    indexed: str = ""  # a field of text by whose value admission finds objects without reading all of them

    def __eq__(self, other: object) -> bool:  # kinds are compared in hot paths; (group, plural, version) is unique
        return self is other or (isinstance(other, Kind) and self.plural == other.plural and self.group == other.group
                                 and self.version == other.version)

    def __hash__(self) -> int:
        return hash((self.group, self.plural))

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def resource(self) -> str:
        """As in error messages: "pods", "resourceclaims.resource.k8s.io"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def versions(self) -> tuple[str, ...]:
        return (self.version, *self.older)

    def api_version_of(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of an object on an API server, or without a name of the collection; without a namespace that of all namespaces."""
        parts = ["", "apis" if self.group else "api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *([name] if name else [])])


DRA_OLDER = ("v1beta2", "v1beta1", "v1alpha3")
INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False, short=("ns",), selectable=("status.phase",),
                 counts_generations=False, subresources=("finalize",), status_writes_metadata=True)
NODE = Kind("", "v1", "Node", "nodes", namespaced=False, short=("no",), selectable=("spec.unschedulable",),
            status_at_create=True, counts_generations=False, status_writes_metadata=True)
POD = Kind("", "v1", "Pod", "pods", short=("po",), categories=("all",), selectable=(
    "spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase",
    "status.podIP", "status.nominatedNodeName"), status_writes_metadata=True, subresources=("binding",),
    indexed="spec.nodeName")
EVENT = Kind("", "v1", "Event", "events", short=("ev",), has_status=False, counts_generations=False,
             selectable=(*(f"involvedObject.{field}" for field in INVOLVED), "reason", "type", "reportingComponent", "source"))
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps", short=("cm",), has_status=False, counts_generations=False)
SECRET = Kind("", "v1", "Secret", "secrets", has_status=False, counts_generations=False, selectable=("type",))
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts", short=("sa",), has_status=False,
                       counts_generations=False)
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases", has_status=False, counts_generations=False)
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False, has_status=False,
                    older=DRA_OLDER)
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", older=DRA_OLDER,
                      counts_generations=False)
RESOURCE_CLAIM_TEMPLATE = Kind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates",
                               has_status=False, older=DRA_OLDER, counts_generations=False)
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False, has_status=False,
                      older=DRA_OLDER, selectable=("spec.nodeName", "spec.driver"), indexed="spec.pool.name")
DEVICE_TAINT_RULE = Kind("resource.k8s.io", "v1beta2", "DeviceTaintRule", "devicetaintrules", namespaced=False,
                         older=("v1alpha3",))
# Asks once for the counts of a driver's pools. A cluster has it from 1.36 on, where the gate DRAResourcePoolStatus is on.
POOL_STATUS_REQUEST = Kind("resource.k8s.io", "v1alpha3", "ResourcePoolStatusRequest", "resourcepoolstatusrequests",
                           namespaced=False, counts_generations=False)
VMI = Kind("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances", short=("vmi", "vmis"),
                categories=("all",), older=("v1alpha3",), builtin=False, selectable=("status.nodeName", "status.phase"))
VM = Kind("kubevirt.io", "v1", "VirtualMachine", "virtualmachines", short=("vm", "vms"), categories=("all",),
               older=("v1alpha3",), builtin=False)
MIGRATION = Kind("kubevirt.io", "v1", "VirtualMachineInstanceMigration", "virtualmachineinstancemigrations",
                 short=("vmim", "vmims"), categories=("all",), older=("v1alpha3",), builtin=False,
                 selectable=("spec.vmiName", "status.phase"), indexed="spec.vmiName")
KUBEVIRT = Kind("kubevirt.io", "v1", "KubeVirt", "kubevirts", short=("kv", "kvs"), categories=("all",), older=("v1alpha3",),
                builtin=False)
NETWORK_ATTACHMENT = Kind("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", "network-attachment-definitions",
                          short=("net-attach-def",), has_status=False, builtin=False)
LEDGER_PAGE = Kind("outfitter.dev", "v1alpha1", "LedgerPage", "ledgerpages", namespaced=False, short=("page", "pages"),
                   has_status=False, builtin=False, selectable=("spec.host",))
PAST_BOOKING = Kind("outfitter.dev", "v1alpha1", "PastBooking", "pastbookings", namespaced=False, short=("past",),
                    has_status=False, builtin=False, selectable=("spec.host",))
PROVIDER_TREE = Kind("outfitter.dev", "v1alpha1", "ProviderTree", "providertrees", namespaced=False, has_status=False,
                     builtin=False)
HOST_INVENTORY = Kind("outfitter.dev", "v1alpha1", "HostInventory", "hostinventories", namespaced=False, short=("inventory",),
                      has_status=False, builtin=False)
FLAVOR = Kind("outfitter.dev", "v1alpha1", "Flavor", "flavors", namespaced=False, has_status=False, builtin=False)
# Free and held devices of a pool, without holders: computed by the aggregated API when it is asked for, and not stored.
POOL_STATUS = Kind("status.outfitter.dev", "v1alpha1", "PoolStatus", "poolstatuses", namespaced=False, has_status=False,
                   builtin=False)

ALL: tuple[Kind, ...] = (
    NAMESPACE, NODE, POD, EVENT, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, LEASE,
    DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, RESOURCE_SLICE, DEVICE_TAINT_RULE, POOL_STATUS_REQUEST, VMI, VM,
    MIGRATION, KUBEVIRT, NETWORK_ATTACHMENT, LEDGER_PAGE, PROVIDER_TREE, HOST_INVENTORY, PAST_BOOKING, FLAVOR,
)


def named(word: str, among: Iterable[Kind] = ALL) -> Kind | None:
    """The kind of a typed word: "pods", "po", "pod", "Pod", "resourceclaims.resource.k8s.io"."""
    low = word.lower()
    for kind in among:
        if low in (kind.plural, kind.singular, kind.resource, *kind.short):
            return kind
    return None


def of_object(obj: Mapping[str, Any], among: Iterable[Kind] = ALL) -> Kind | None:
    """The kind of an object by its apiVersion (any served version) and kind."""
    group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
    for kind in among:
        if kind.kind == obj.get("kind") and kind.group == group and version in kind.versions:
            return kind
    return None
