"""Which parts of resource.k8s.io are switched on. What is off is refused or left out exactly as Kubernetes does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from outfitter.api import dra_feature_gates
from outfitter.errors import Invalid


@dataclass(frozen=True, slots=True)
class Features:
    """The defaults are those of Kubernetes 1.37."""

    admin_access: bool = True
    prioritized_list: bool = True  # firstAvailable
    partitionable_devices: bool = True  # shared counters, and nodes chosen by each device
    device_taints: bool = True
    device_binding_and_status: bool = True  # binding conditions
    consumable_capacity: bool = True  # shares of a device
    fractional_capacity_range: bool = False  # steps below one in a device's request policy
    list_type_attributes: bool = False
    compatibility_groups: bool = False
    derived_attributes: bool = False
    optional_node_operations: bool = False
    device_taint_rules: bool = True  # taints that an administrator puts on devices
    extended_resources: bool = True  # a container's extended resources from devices of the class that maps them

    @classmethod
    def of(cls, switched: Mapping[str, bool]) -> Features:
        """From Kubernetes' gates ({"DRAAdminAccess": False}); what is not named is as it is by default here."""
        unknown = sorted(switched.keys() - dra_feature_gates.DEVICE_GATES.keys())
        if unknown:
            raise Invalid(f"features: {', '.join(unknown)} is not known; known are {', '.join(dra_feature_gates.DEVICE_GATES)}")
        return cls(**{field: switched.get(gate, default) for gate, (field, default) in dra_feature_gates.DEVICE_GATES.items()})

    @classmethod
    def only(cls, words: Mapping[str, Any]) -> Features:
        """From Kubernetes' words ({"AdminAccess": true}); what is not named is off."""
        known = {"".join(part.capitalize() for part in field.name.split("_")): field.name for field in fields(cls)}
        if unknown := sorted(words.keys() - known.keys()):
            raise Invalid(f"features: {', '.join(unknown)} is not known; known are {', '.join(known)}")
        return cls(**{name: bool(words.get(word)) for word, name in known.items()})
