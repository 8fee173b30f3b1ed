"""The vocabulary of the allocator and expression cases, and of the files that hold them."""

from __future__ import annotations

from tests.cases.vocabulary import anything, each, keys, plain

FILE = plain("format", "source", "costLimit", "cases")
_DEVICE = ("driver", "pool", "device")
_OBJECT = plain("apiVersion", "kind", "metadata", "spec", "status")
FEATURES = plain(
    "AdminAccess", "CompatibilityGroups", "ConsumableCapacity", "DerivedAttributes", "DeviceBindingAndStatus", "DeviceTaints",
    "FractionalCapacityRange", "ListTypeAttributes", "OptionalNodeOperations", "PartitionableDevices", "PrioritizedList",
)
ALLOCATOR = keys({
    "name": anything, "suite": anything, "tags": anything, "observed": anything, "features": FEATURES,
    "node": _OBJECT, "deviceClasses": each(_OBJECT), "resourceSlices": each(_OBJECT), "claims": each(_OBJECT),
    "deviceTaintRules": each(_OBJECT),
    "allocated": keys({
        "devices": each(plain(*_DEVICE)), "sharedDevices": each(plain(*_DEVICE, "shareID")),
        "consumedCapacity": each(plain(*_DEVICE, "consumedCapacity", "shareID")),
    }),
    "expect": keys({"results": each(plain("allocation", "deviceOrder")), "errorContains": anything}, prefixes=("searchSteps",)),
})
CEL = keys({
    "name": anything, "observed": anything, "expression": anything, "driver": anything, "attributes": anything,
    "capacity": anything, "allowMultipleAllocations": anything, "envType": anything,
    "onlyWithFeatures": plain("EnableConsumableCapacity", "EnableListTypeAttributes"),
    "expectMatch": anything, "expectCompileErrorContains": anything, "expectMatchErrorContains": anything,
    "expectMaxCost": anything,
})
