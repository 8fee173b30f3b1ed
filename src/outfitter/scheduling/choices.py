"""How the scheduler of a server chooses: its policy and its feature gates. The server keeps them as an object, so that whoever
asks it what would happen (`outfit plan`, `outfit why`) answers by the same rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api import kinds
from outfitter.errors import Invalid
from outfitter.scheduling.features import Features
from outfitter.scheduling.score import POLICIES, Policy

NAME, NAMESPACE = "outfitter-scheduling", "kube-system"


@dataclass(frozen=True, slots=True)
class Choices:
    policy: Policy = "pack"
    gates: Mapping[str, bool] = field(default_factory=dict)  # those that were switched
    features: Features = field(default_factory=lambda: Features.of({}))

    @classmethod
    def of(cls, policy: str, gates: Mapping[str, bool]) -> Choices:
        found = next((each for each in POLICIES if each == policy), None)
        if found is None:
            raise Invalid(f"scheduling.policy: {policy!r} is none of {', '.join(POLICIES)}")
        return cls(found, dict(gates), Features.of(gates))

    @classmethod
    def read(cls, obj: Mapping[str, Any]) -> Choices:
        data = obj.get("data") or {}
        return cls.of(data.get("policy") or "pack", json.loads(data.get("features") or "{}"))

    def to_object(self) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": kinds.CONFIG_MAP.kind, "metadata": {"name": NAME, "namespace": NAMESPACE},
                "data": {"policy": self.policy, "features": json.dumps(dict(self.gates), sort_keys=True)}}
