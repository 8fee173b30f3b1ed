"""The configuration of the scheduler: its policy, and which features of resource.k8s.io are enabled. The server stores it as a
ConfigMap, so that `outfit plan` and `outfit why` decide by the same rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from outfitter.api import dra_feature_gates, kinds
from outfitter.errors import Invalid
from outfitter.scheduling.score import POLICIES, Policy

NAME, NAMESPACE = "outfitter-scheduling", "kube-system"


@dataclass(frozen=True, slots=True)
class Features:
    """The parts of resource.k8s.io that are enabled, with the defaults of Kubernetes 1.37. What is disabled is rejected or
    ignored exactly as Kubernetes does it."""

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
    device_assignment: bool = True  # agents assign devices of device plugins, and write that into the pod
    extended_resources: bool = True  # a container's extended resources from devices of the class that maps them

    @classmethod
    def of(cls, switched: Mapping[str, bool]) -> Features:
        """From Kubernetes' gates ({"DRAAdminAccess": False}); what is not named is as it is by default here."""
        unknown = sorted(switched.keys() - dra_feature_gates.DEVICE_GATES.keys())
        if unknown:
            raise Invalid(f"features: {', '.join(unknown)} is not known; known are {', '.join(dra_feature_gates.DEVICE_GATES)}")
        return cls(**{name: switched.get(gate, default) for gate, (name, default) in dra_feature_gates.DEVICE_GATES.items()})

    @classmethod
    def only(cls, words: Mapping[str, Any]) -> Features:
        """From Kubernetes' words ({"AdminAccess": true}); what is not named is off."""
        known = {"".join(part.capitalize() for part in item.name.split("_")): item.name for item in fields(cls)}
        if unknown := sorted(words.keys() - known.keys()):
            raise Invalid(f"features: {', '.join(unknown)} is not known; known are {', '.join(known)}")
        return cls(**{name: bool(words.get(word)) for word, name in known.items()})


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    policy: Policy = "pack"
    gates: Mapping[str, bool] = field(default_factory=dict)  # those that were switched
    features: Features = field(default_factory=lambda: Features.of({}))

    @classmethod
    def of(cls, policy: str, gates: Mapping[str, bool]) -> SchedulingConfig:
        found = next((each for each in POLICIES if each == policy), None)
        if found is None:
            raise Invalid(f"scheduling.policy: {policy!r} is none of {', '.join(POLICIES)}")
        return cls(found, dict(gates), Features.of(gates))

    @classmethod
    def read(cls, obj: Mapping[str, Any]) -> SchedulingConfig:
        data = obj.get("data") or {}
        return cls.of(data.get("policy") or "pack", json.loads(data.get("features") or "{}"))

    def to_object(self) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": kinds.CONFIG_MAP.kind, "metadata": {"name": NAME, "namespace": NAMESPACE},
                "data": {"policy": self.policy, "features": json.dumps(dict(self.gates), sort_keys=True)}}
