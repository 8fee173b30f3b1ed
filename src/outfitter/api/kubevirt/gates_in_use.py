"""Which VMIs depend on feature gates that are off: they keep what they have, new ones like them are refused, and a version of
outfitter without the gates would lose them. Pure; called by the KubeVirt controller and by `outfit doctor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import feature_gates, vm
from outfitter.api.kubevirt.feature_gates import Gates

EITHER = " and ".join(feature_gates.OF_DOCUMENT)


def ended(instance: Object) -> bool:
    return (instance.get("status") or {}).get("phase") in vm.FINAL


def gates_of(instance: Object) -> list[str]:
    """The gates that a VMI depends on; EITHER: its claims depend on one of two."""
    if ended(instance):
        return []
    spec = instance.get("spec") or {}
    claims = [str(entry.get("name")) for entry in spec.get("resourceClaims") or ()]
    alone = feature_gates.disallowed_claims(spec, claims, Gates(off=frozenset(feature_gates.OF_DOCUMENT)))
    return [*feature_gates.used(spec), *([EITHER] if alone else [])]


def closed_in_use(gates: Gates, users: Callable[[str], Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    """Gates that are off and the VMIs that depend on them. `users`: those of a gate, as namespace/name."""
    off = gates.closed(feature_gates.KNOWN)
    every = [*off, *([EITHER] if set(off).issuperset(feature_gates.OF_DOCUMENT) else [])]
    return [(gate, found) for gate in every if (found := users(gate))]
