"""Why a VM waits or how it ended, in a code and a few words: the column of a table. The sentence is in the condition's message,
`outfit describe` and `outfit why`. Pure; called by the tables of the API server and by `outfit vm list`.

    short_reason(vmi)     # "TooFewFree: matching devices are not free" """

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import conditions, rejection_conditions
from outfitter.api.rejection import RejectionCode as Code

WAITING = ("Synchronized", "PodScheduled", "DevicesReady", "Ready")  # the most telling first
WITH_CODES = frozenset({"PodScheduled", "Ready"})  # the scheduler and the node agent report rejection codes beside these

CODES: Mapping[Code, str] = {
    Code.NO_HOST: "there is no host",
    Code.POD_INVALID: "the pod is not valid",
    Code.OBJECT_UNREADABLE: "an object cannot be read",
    Code.CLAIM_MISSING: "a claim does not exist",
    Code.CLAIM_NOT_CREATED: "a claim is not created yet",
    Code.CLAIM_NAME_TAKEN: "a claim's name is taken",
    Code.CLAIM_DELETING: "a claim is being deleted",
    Code.CLAIM_IN_USE: "another pod uses its claim",
    Code.CLAIM_DEVICE_TAINTED: "a device of its claim is tainted",
    Code.CLAIM_INVALID: "a claim is not valid",
    Code.REQUEST_MISSING: "its claim lacks a request",
    Code.CLASS_MISSING: "a DeviceClass does not exist",
    Code.FEATURE_DISABLED: "a feature gate is off",
    Code.ASSIGNED_DEVICE_MISSING: "a pre-assigned device is missing",
    Code.ASSIGNED_DEVICE_AMBIGUOUS: "a pre-assigned id is ambiguous",
    Code.POD_GROUP_INCOMPLETE: "its pod group is incomplete",
    Code.POD_GROUP_TOO_FEW_HOSTS: "too few hosts for its pod group",
    Code.NODE_NAME: "it is for another node",
    Code.NODE_CORDONED: "the node is cordoned",
    Code.NODE_NOT_READY: "the node is not ready",
    Code.NODE_PRESSURE: "the node is short of resources",
    Code.NODE_NETWORK_UNAVAILABLE: "the node has no network",
    Code.NODE_TAINTED: "a node taint is not tolerated",
    Code.NODE_SELECTOR: "nodeSelector does not match",
    Code.NODE_AFFINITY: "node affinity does not match",
    Code.INSUFFICIENT_RESOURCE: "too little CPU, memory or other",
    Code.RESOURCE_NOT_OFFERED: "no host offers the resource",
    Code.RESOURCE_UNREADABLE: "a node's amounts are unreadable",
    Code.HOST_EXCLUDED: "a failed host is skipped for now",
    Code.CLAIM_ELSEWHERE: "its claim's devices are elsewhere",
    Code.ASSIGNED_DEVICE_ELSEWHERE: "pre-assigned on another host",
    Code.ASSIGNED_RESOURCE_OFFERED: "the host offers the resource itself",
    Code.PLUGIN_REJECTED: "a plug-in rejects the hosts",
    Code.PLUGIN_FAILED: "a plug-in failed",
    Code.FITS_NOW: "it is scheduled next",
    Code.NO_DEVICES: "no host publishes devices",
    Code.POOL_UPDATING: "a pool is being updated",
    Code.POOL_INVALID: "a pool is not valid",
    Code.NO_MATCH: "no device matches",
    Code.TOO_FEW_FREE: "matching devices are not free",
    Code.TOO_FEW_TOGETHER: "too few devices for all requests",
    Code.SAME_HARDWARE: "two names of one device",
    Code.TOO_MANY_DEVICES: "too many devices for one claim",
    Code.CONSTRAINT_UNMET: "a constraint cannot be fulfilled",
    Code.COUNTER_EXHAUSTED: "a shared counter is used up",
    Code.NO_COMBINATION: "no choice serves all requests",
    Code.SEARCH_LIMIT: "the search was given up",
    Code.SELECTOR_BUDGET: "its selectors cost too much",
    Code.SELECTOR_FALSE: "a selector does not match",
    Code.SELECTOR_ERROR: "a selector has an error",
    Code.ALIAS_MISMATCH: "no device is of the alias",
    Code.HELD: "another holder has the device",
    Code.HARDWARE_HELD: "held under another name",
    Code.RESERVED: "the device is reserved",
    Code.QUARANTINED: "the device is quarantined",
    Code.UNCLEAN: "the device is not clean",
    Code.ASSIGNED_TO_OTHER: "pre-assigned to another pod",
    Code.TAINTED: "the device is tainted",
    Code.CAPACITY_TOO_SMALL: "the device is too small",
    Code.CAPACITY_USED: "too little capacity is left",
    Code.ATTRIBUTE_MISSING: "an attribute is missing",
    Code.NOT_REACHABLE: "not usable on this host",
    Code.NUMA_TOO_FEW_CPUS: "too few CPUs on its NUMA cells",
    Code.NUMA_TOO_FAR: "devices and CPUs are too far apart",
    Code.EXCLUDED: "the PF or a VF of it is held",
    Code.CPU_HELD: "a CPU is held",
    Code.PAGE_CONFLICT: "the booking was rejected",
    Code.DEVICE_NOT_READY: "its driver makes it ready",
    Code.DEVICE_FAILED: "its driver reports a failure",
    Code.DEVICE_READY_TIMEOUT: "not made ready in time",
    Code.DEVICES_GIVEN_BACK: "devices were released again",
    Code.CLAIM_NOT_ALLOCATED: "its claim is not allocated",
    Code.NOT_BOOKED: "its devices are not booked yet",
    Code.DEVICE_MISSING: "the device is not on the host",
    Code.DEVICE_IN_USE: "another VM still has the device",
    Code.DRIVER_NOT_BOUND: "the device's driver is in the way",
    Code.DRIVER_NOT_REGISTERED: "its DRA driver is not registered",
    Code.DRIVER_CALL_FAILED: "its DRA driver failed",
    Code.DRIVER_CALL_PENDING: "its DRA driver does not answer",
    Code.DRIVER_REFUSED: "a DRA driver is not accepted",
    Code.CLAIM_NOT_RESERVED: "its claim is reserved for others",
    Code.IOMMU_GROUP_SHARED: "the host uses its IOMMU group",
    Code.VFS_PRESENT: "the PF has VFs",
    Code.PREPARE_FAILED: "devices could not be prepared",
    Code.RELEASE_FAILED: "devices could not be released",
    Code.DEVICE_PLUGIN_MISSING: "a device plugin is not there",
    Code.DEVICES_UNAVAILABLE: "too few devices of a plugin",
    Code.NO_HEALTHY_DEVICE: "no device of a plugin is healthy",
    Code.DEVICE_UNHEALTHY: "an assigned device is unhealthy",
    Code.TOO_MANY_ASSIGNED: "too many devices are assigned",
    Code.ASSIGNED_TWICE: "a device is assigned twice",
    Code.TOPOLOGY_AFFINITY: "no NUMA alignment of its devices",
    Code.PLUGIN_CALL_FAILED: "a device plugin failed",
    Code.DEVICE_PLUGIN_REFUSED: "a device plugin is not accepted",
    Code.PLUGIN_ANSWER_INVALID: "a device plugin named no device",
    Code.DEVICE_VANISHED: "a device left the bus",
    Code.DEVICE_NOT_PUBLISHED: "a driver withdrew a device",
    Code.NO_PCI_PORT: "its guest has no free PCI port",
    Code.NIC_KEPT_BY_GUEST: "its guest does not release a NIC",
    Code.NIC_NOT_PLUGGED: "a NIC could not be plugged",
    Code.VF_NOT_BOOKED: "no VF is booked for a NIC",
    Code.VM_MIGRATES: "a NIC waits for the end of a migration",
    Code.DEVICE_KEPT_BY_GUEST: "its guest does not release a device",
    Code.DEVICE_NOT_PLUGGED: "a device could not be plugged",
    Code.DEVICE_NOT_BOOKED: "no device is booked for it yet",
    Code.NO_FREE_DEVICE_ON_HOST: "its host has no free device",
    Code.VM_PAUSED: "a device waits until it is resumed",
    Code.VM_STOPS: "it is being stopped",
    Code.PLUG_NOT_IN_PLACE: "its host plugs no devices",
    Code.FLAVOR_DEVICE: "devices of a flavor stay",
    Code.CLAIM_BY_NAME: "a claim by name cannot follow",
    Code.DEVICE_NOT_MIGRATABLE: "a device is not live migratable",
    Code.DEVICE_BY_RESOURCE: "a device is by resource name",
    Code.SEVERAL_MEDIATED_DEVICES: "it has several mediated devices",
    Code.ALIAS_NOT_MIGRATABLE: "an alias is not live_migratable",
    Code.NO_FREE_TWIN: "no free device of the same kind elsewhere",
    Code.NETWORK_NOT_READY: "a network is not attached yet",
    Code.SECRET_MISSING: "a Secret does not exist",
    Code.SOURCES_DISAGREE: "sources name different devices",
    Code.DOMAIN_INVALID: "no domain can be built from it",
    Code.HYPERVISOR_REFUSED: "the hypervisor did not start it",
    Code.HYPERVISOR_AWAY: "the hypervisor does not respond",
    Code.LAUNCHER_AWAY: "its launcher does not respond",
    Code.LAUNCHER_VERSION: "its launcher has another version",
}
REASONS: Mapping[str, str] = {  # of conditions that have no rejection code
    "FailedCreate": "it could not be created",
    "FlavorNotFound": "its flavor does not exist",
    "FlavorChanged": "its flavor was changed",
    "FlavorNotUnderstood": "its flavor is not valid",
    "FailedClaim": "its claim has another owner",
    "Unschedulable": "no host can take it",
    "WaitingForDevices": "its devices are not known yet",
    "FailedResourceClaimCreation": "a claim cannot be created",
    "GuestNotRunning": "it is not running yet",
    "PodTerminating": "its pod is gone",
    "FailedPrepareDevices": "devices could not be prepared",
    "FailedPlugNetworks": "a network cannot be attached",
    "FailedStart": "it could not be started",
    "SyncFailed": "its spec cannot start",
    "DomainFailed": "its domain failed",
    "DomainGone": "its domain is gone",
    "Stopped": "its guest shut down",
    "Deleted": "it was deleted",
    "PausedByUser": "a user paused it",
}


def short_reason(obj: Mapping[str, Any], types: Sequence[str] = WAITING) -> str:
    """The first of these conditions that is False; "" if none is."""
    for type_ in types:
        found = conditions.find(obj, type_)
        if found is not None and found.get("status") == "False":
            codes = rejection_conditions.of(obj) if type_ in WITH_CODES else []
            return in_words(codes[0] if codes else str(found.get("reason") or f"Not{type_}"))
    return ""


def in_words(reason: str) -> str:
    """A rejection code or a condition's reason with what it means, where that is known."""
    meaning = CODES.get(Code(reason)) if reason in _KNOWN else REASONS.get(reason)
    return f"{reason}: {meaning}" if meaning else reason


_KNOWN = frozenset(map(str, Code))
