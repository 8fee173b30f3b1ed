"""Taints of devices, and who may have a device all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Taint = Mapping[str, Any]
Toleration = Mapping[str, Any]
KEEPS_AWAY = ("NoSchedule", "NoExecute")  # the effects that stand in the way of somebody new


def ruled(rules: Iterable[Mapping[str, Any]], driver: str, pool: str, device: str) -> list[Taint]:
    """The taints that DeviceTaintRules put on a device. A rule without a selector is for no device, an empty one for all."""
    wanted = {"driver": driver, "pool": pool, "device": device}
    out = []
    for rule in rules:
        spec = rule.get("spec") or {}
        selector = spec.get("deviceSelector")
        if selector is not None and spec.get("taint") and all(
                selector.get(key) in (None, value) for key, value in wanted.items()):
            out.append(spec["taint"])
    return out


def unbearable(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps a request away, or None."""
    for taint in taints:
        if taint.get("effect") in KEEPS_AWAY and not any(_tolerates(one, taint) for one in tolerations):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """What a toleration does not say fits everything."""
    if (toleration.get("effect") or taint.get("effect")) != taint.get("effect"):
        return False
    if (toleration.get("key") or taint.get("key")) != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return (toleration.get("value") or "") == (taint.get("value") or "")
    return False
