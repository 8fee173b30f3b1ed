"""Why a pod, a host or a device does not serve: values with a closed list of codes. No text: `rejection_text` renders them.

    Rejection(RejectionCode.HELD, device, holder, since)     # "gpu-7f3c: held by vmi/blue (claim train-0) since 12:04"
    Rejection.of(RejectionCode.TOO_FEW_FREE, request="gpu", wanted=2, match=4, free=1)

Made by filters, the allocators, the ledger's page, the node's prepare and the start of a VM; read by callers that decide what
to do next: they look at `code` and the fields, never at a sentence. docs/rejection-codes.md lists the codes."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from outfitter.api.device import DeviceId
from outfitter.api.kinds import LEDGER_PAGE, Object
from outfitter.api.ledger_page.booking import Booking, Holder, OutOfServiceRecord, OutOfServiceState
from outfitter.api.ledger_page.page_entries import MalformedEntry
from outfitter.api.validate.readable import UnreadableObject
from outfitter.errors import OutfitterError

_Error = TypeVar("_Error", bound=OutfitterError)
EMPTY: Mapping[str, Any] = MappingProxyType({})


class RejectionCode(enum.StrEnum):
    """The value of a member is what JSON, conditions and metrics carry: it does not change once released."""

    # The pod and its claims as a whole: no host is asked.
    NO_HOST = "NoHost"
    POD_INVALID = "PodInvalid"
    OBJECT_UNREADABLE = "ObjectUnreadable"
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_NOT_CREATED = "ClaimNotCreated"
    CLAIM_NAME_TAKEN = "ClaimNameTaken"
    CLAIM_DELETING = "ClaimDeleting"
    CLAIM_IN_USE = "ClaimInUse"
    CLAIM_DEVICE_TAINTED = "ClaimDeviceTainted"
    CLAIM_INVALID = "ClaimInvalid"
    REQUEST_MISSING = "RequestMissing"
    CLASS_MISSING = "ClassMissing"
    FEATURE_DISABLED = "FeatureDisabled"
    ASSIGNED_DEVICE_MISSING = "AssignedDeviceMissing"
    ASSIGNED_DEVICE_AMBIGUOUS = "AssignedDeviceAmbiguous"
    POD_GROUP_INCOMPLETE = "PodGroupIncomplete"
    POD_GROUP_TOO_FEW_HOSTS = "PodGroupTooFewHosts"
    # Filters: the host, whatever devices it has.
    NODE_NAME = "NodeName"
    NODE_CORDONED = "NodeCordoned"
    NODE_NOT_READY = "NodeNotReady"
    NODE_PRESSURE = "NodePressure"
    NODE_NETWORK_UNAVAILABLE = "NodeNetworkUnavailable"
    NODE_TAINTED = "NodeTainted"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    INSUFFICIENT_RESOURCE = "InsufficientResource"
    RESOURCE_NOT_OFFERED = "ResourceNotOffered"
    RESOURCE_UNREADABLE = "ResourceUnreadable"
    HOST_EXCLUDED = "HostExcluded"
    CLAIM_ELSEWHERE = "ClaimElsewhere"
    ASSIGNED_DEVICE_ELSEWHERE = "AssignedDeviceElsewhere"
    ASSIGNED_RESOURCE_OFFERED = "AssignedResourceOffered"
    PLUGIN_REJECTED = "PluginRejected"
    PLUGIN_FAILED = "PluginFailed"
    FITS_NOW = "FitsNow"
    # Allocators: the devices of a host together.
    NO_DEVICES = "NoDevices"
    POOL_UPDATING = "PoolUpdating"
    POOL_INVALID = "PoolInvalid"
    NO_MATCH = "NoMatch"
    TOO_FEW_FREE = "TooFewFree"
    TOO_FEW_TOGETHER = "TooFewTogether"
    TOO_MANY_DEVICES = "TooManyDevices"
    CONSTRAINT_UNMET = "ConstraintUnmet"
    COUNTER_EXHAUSTED = "CounterExhausted"
    SAME_HARDWARE = "SameHardware"
    NO_COMBINATION = "NoCombination"
    SEARCH_LIMIT = "SearchLimit"
    SELECTOR_BUDGET = "SelectorBudget"
    # Allocators: one device.
    SELECTOR_FALSE = "SelectorFalse"
    SELECTOR_ERROR = "SelectorError"
    ALIAS_MISMATCH = "AliasMismatch"
    HELD = "Held"
    HARDWARE_HELD = "HardwareHeld"
    RESERVED = "Reserved"
    QUARANTINED = "Quarantined"
    UNCLEAN = "Unclean"
    ASSIGNED_TO_OTHER = "AssignedToOther"
    TAINTED = "Tainted"
    CAPACITY_TOO_SMALL = "CapacityTooSmall"
    CAPACITY_USED = "CapacityUsed"
    ATTRIBUTE_MISSING = "AttributeMissing"
    NOT_REACHABLE = "NotReachable"
    # NUMA
    NUMA_TOO_FEW_CPUS = "NumaTooFewCpus"
    NUMA_TOO_FAR = "NumaTooFar"
    # The ledger's page, at the moment of booking.
    EXCLUDED = "Excluded"
    CPU_HELD = "CpuHeld"
    PAGE_CONFLICT = "PageConflict"
    # Between allocation and binding: the driver makes the device ready.
    DEVICE_NOT_READY = "DeviceNotReady"
    DEVICE_FAILED = "DeviceFailed"
    DEVICE_READY_TIMEOUT = "DeviceReadyTimeout"
    DEVICES_GIVEN_BACK = "DevicesGivenBack"
    # Prepare and release, on the node.
    CLAIM_NOT_ALLOCATED = "ClaimNotAllocated"
    CLAIM_NOT_RESERVED = "ClaimNotReserved"
    NOT_BOOKED = "NotBooked"
    DEVICE_MISSING = "DeviceMissing"
    DEVICE_IN_USE = "DeviceInUse"
    DRIVER_NOT_BOUND = "DriverNotBound"
    DRIVER_NOT_REGISTERED = "DriverNotRegistered"
    DRIVER_CALL_FAILED = "DriverCallFailed"
    DRIVER_CALL_PENDING = "DriverCallPending"
    DRIVER_REFUSED = "DriverRefused"
    IOMMU_GROUP_SHARED = "IommuGroupShared"
    VFS_PRESENT = "VfsPresent"
    PREPARE_FAILED = "PrepareFailed"
    RELEASE_FAILED = "ReleaseFailed"
    # Device plugins, at the admission of a pod by its node.
    DEVICE_PLUGIN_MISSING = "DevicePluginMissing"
    DEVICES_UNAVAILABLE = "DevicesUnavailable"
    NO_HEALTHY_DEVICE = "NoHealthyDevice"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    TOO_MANY_ASSIGNED = "TooManyAssigned"
    ASSIGNED_TWICE = "AssignedTwice"
    TOPOLOGY_AFFINITY = "TopologyAffinity"
    PLUGIN_CALL_FAILED = "PluginCallFailed"
    DEVICE_PLUGIN_REFUSED = "DevicePluginRefused"
    PLUGIN_ANSWER_INVALID = "PluginAnswerInvalid"
    # A running VM.
    DEVICE_VANISHED = "DeviceVanished"
    DEVICE_NOT_PUBLISHED = "DeviceNotPublished"
    NO_PCI_PORT = "NoPciPort"
    NIC_KEPT_BY_GUEST = "NicKeptByGuest"
    NIC_NOT_PLUGGED = "NicNotPlugged"
    VF_NOT_BOOKED = "VfNotBooked"
    VM_MIGRATES = "VmMigrates"
    NO_FREE_DEVICE_ON_HOST = "NoFreeDeviceOnHost"
    DEVICE_NOT_BOOKED = "DeviceNotBooked"
    DEVICE_NOT_PLUGGED = "DeviceNotPlugged"
    DEVICE_KEPT_BY_GUEST = "DeviceKeptByGuest"
    VM_PAUSED = "VmPaused"
    VM_STOPS = "VmStops"
    PLUG_NOT_IN_PLACE = "PlugNotInPlace"
    FLAVOR_DEVICE = "FlavorDevice"
    # Live migration: one device of a running VM.
    CLAIM_BY_NAME = "ClaimByName"
    DEVICE_NOT_MIGRATABLE = "DeviceNotMigratable"
    DEVICE_BY_RESOURCE = "DeviceByResource"
    SEVERAL_MEDIATED_DEVICES = "SeveralMediatedDevices"
    ALIAS_NOT_MIGRATABLE = "AliasNotMigratable"
    NO_FREE_TWIN = "NoFreeTwin"
    # Start of the VM.
    NETWORK_NOT_READY = "NetworkNotReady"
    SECRET_MISSING = "SecretMissing"
    SOURCES_DISAGREE = "SourcesDisagree"
    DOMAIN_INVALID = "DomainInvalid"
    HYPERVISOR_REFUSED = "HypervisorRefused"
    HYPERVISOR_AWAY = "HypervisorAway"
    LAUNCHER_AWAY = "LauncherAway"
    LAUNCHER_VERSION = "LauncherVersion"


# Another holder, an administrator or a pod that waits has the device.
TAKEN = frozenset({RejectionCode.HELD, RejectionCode.HARDWARE_HELD, RejectionCode.RESERVED, RejectionCode.QUARANTINED,
                   RejectionCode.UNCLEAN, RejectionCode.ASSIGNED_TO_OTHER})
UNLIKE = frozenset({RejectionCode.SELECTOR_FALSE, RejectionCode.ALIAS_MISMATCH})  # the device is not what is asked for
OUT_OF_SERVICE: Mapping[OutOfServiceState, RejectionCode] = {
    "reserved": RejectionCode.RESERVED, "quarantined": RejectionCode.QUARANTINED, "unclean": RejectionCode.UNCLEAN}


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason. Which keys `detail` has depends on the code alone; numbers are int, lists are tuples."""

    code: RejectionCode
    device: DeviceId | None = None  # None: not about one device
    holder: Holder | None = None  # who has it
    since: str = ""  # RFC 3339, as stored
    detail: Mapping[str, Any] = field(default_factory=lambda: EMPTY, hash=False)
    causes: tuple[Rejection, ...] = ()  # what this one follows from, where that is a rejection itself

    @classmethod
    def of(cls, code: RejectionCode, device: DeviceId | None = None, **detail: Any) -> Rejection:
        return cls(code, device, detail=detail)

    def __getitem__(self, key: str) -> Any:
        return self.detail[key]

    def to_object(self) -> Object:
        """For programs; the message is added by the renderer (`rejection_text.to_object`)."""
        out: Object = {"code": str(self.code)}
        if self.device is not None:
            out["device"] = {"driver": self.device.driver, "pool": self.device.pool, "name": self.device.device}
        if self.holder is not None:
            out["holder"] = self.holder.to_object()
        if self.since:
            out["since"] = self.since
        if self.detail:
            out["detail"] = _plain(self.detail)
        return out

    def about(self, device: DeviceId) -> Rejection:
        return replace(self, device=device)

    def with_detail(self, **more: Any) -> Rejection:
        return replace(self, detail={**self.detail, **more})


def held(booking: Booking) -> Rejection:
    """A device that a booking on a page holds."""
    return Rejection(RejectionCode.HELD, booking.device, booking.holder, booking.since)


def hardware_held(device: DeviceId, hardware: Iterable[str], booking: Booking) -> Rejection:
    """A device whose hardware a booking holds under another name."""
    return Rejection(RejectionCode.HARDWARE_HELD, device, booking.holder, booking.since,
                     {"hardware": tuple(sorted(hardware)), "other": str(booking.device)})


def out_of_service(which: OutOfServiceState, record: OutOfServiceRecord) -> Rejection:
    """A device that was reserved, quarantined or is not clean."""
    detail = {key: value for key, value in (("reason", record.reason), ("by", record.by)) if value}
    return Rejection(OUT_OF_SERVICE[which], record.device, since=record.since, detail=detail)


def unreadable(found: UnreadableObject) -> Rejection:
    """A stored object that is skipped because it cannot be read."""
    return Rejection.of(RejectionCode.OBJECT_UNREADABLE, kind=found.kind.kind, name=found.key, field=found.cause.field,
                        message=found.error().message)


def undetermined(page: str, entries: Iterable[MalformedEntry]) -> Rejection:
    """A page with an entry that names no device, so that any of its devices may be held."""
    entry = next(iter(entries))
    return Rejection.of(RejectionCode.OBJECT_UNREADABLE, kind=LEDGER_PAGE.kind, name=page, field=entry.field,
                        message=f"{entry}; repair it: kubectl edit {LEDGER_PAGE.resource} {page}")


def carrying(error: _Error, code: RejectionCode) -> _Error:
    """The error, with a code for its caller. Its message is about fields and addresses, and is the rejection's too."""
    error.rejection = Rejection.of(code, message=error.message)
    return error


def of_error(error: OutfitterError, code: RejectionCode) -> Rejection:
    """The rejection that an error reports; with this code if it carries none."""
    rejection: Rejection | None = error.rejection
    return rejection or Rejection.of(code, message=error.message)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
