"""Feature gates of resource.k8s.io, by the names that Kubernetes gives them."""

from __future__ import annotations

from collections.abc import Mapping

# Gate -> what it switches (a field of `scheduling.config.Features`), and its default.
DEVICE_GATES: Mapping[str, tuple[str, bool]] = {
    "DRAAdminAccess": ("admin_access", True),
    "DRAPrioritizedList": ("prioritized_list", True),
    "DRAPartitionableDevices": ("partitionable_devices", True),
    "DRADeviceTaints": ("device_taints", True),
    "DRADeviceTaintRules": ("device_taint_rules", True),
    "DRADeviceBindingConditions": ("device_binding_and_status", True),
    "DRAConsumableCapacity": ("consumable_capacity", True),
    "DRAExtendedResource": ("extended_resources", True),
    "DeviceAssignment": ("device_assignment", True),  # ours: docs/device-assignment.md
    "DRAListTypeAttributes": ("list_type_attributes", True),
    "DRAFractionalCapacityRange": ("fractional_capacity_range", False),
    "DRADeviceCompatibilityGroups": ("compatibility_groups", False),
    "DRADerivedAttributes": ("derived_attributes", False),
    "DRAOptionalNodeOperations": ("optional_node_operations", False),
}
