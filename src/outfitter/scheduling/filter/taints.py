"""Taints of devices, and who may have a device all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from outfitter.api.device import DeviceId

Taint = Mapping[str, Any]
Toleration = Mapping[str, Any]
# Keys of taints that our driver publishes of what a page records: the page is read by everyone who decides, and is sooner.
RECORDED_ON_PAGE = frozenset(f"outfitter.dev/{word}" for word in ("reserved", "quarantined", "unclean", "held"))
RULE = "rule"  # key of a taint by a DeviceTaintRule, beside Kubernetes' own: the rule's name
KEEPS_AWAY = ("NoSchedule", "NoExecute")  # the effects that keep new pods away


def ruled(rules: Sequence[Mapping[str, Any]], driver: str, pool: str, device: str) -> list[Taint]:
    """The taints that DeviceTaintRules put on a device. A rule without a selector is for no device, an empty one for all."""
    if not rules:
        return []
    wanted = {"driver": driver, "pool": pool, "device": device}
    out: list[Taint] = []
    for rule in rules:
        spec = rule.get("spec") or {}
        selector = spec.get("deviceSelector")
        if selector is not None and spec.get("taint") and all(
                selector.get(key) in (None, value) for key, value in wanted.items()):
            out.append({**spec["taint"], RULE: rule["metadata"]["name"]})
    return out


def ruled_device(rules: Sequence[Mapping[str, Any]], device: DeviceId) -> list[Taint]:
    return ruled(rules, device.driver, device.pool, device.device)


def detail(taints: Sequence[Taint]) -> dict[str, Any]:
    """The taints as details of a rejection: their text, and the DeviceTaintRules that put them on the device."""
    names = rules(taints)
    return {"taint": ", ".join(map(text, taints)), **({"rules": names} if names else {})}


def rules(untolerated: Iterable[Taint | None]) -> tuple[str, ...]:
    """The DeviceTaintRules among what keeps devices back."""
    return tuple(sorted({str(taint[RULE]) for taint in untolerated if taint is not None and RULE in taint}))


def text(taint: Taint) -> str:
    """ "key=value:effect", as kubectl writes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect')}"


def untolerated_taint(taints: Sequence[Taint], tolerations: Sequence[Toleration], now: datetime | None = None) -> Taint | None:
    """The first taint that keeps a request away, or None. With `now` that is also one which would send it away at once."""
    for taint in taints:
        if taint.get("effect") not in KEEPS_AWAY:
            continue
        if not any(_tolerates(one, taint) for one in tolerations):
            return taint
        if now is not None and taint["effect"] == "NoExecute" and left(taint, tolerations, now) == 0:
            return taint
    return None


def left(taint: Taint, tolerations: Sequence[Toleration], now: datetime, since: datetime | None = None) -> float | None:
    """For how many seconds a NoExecute taint is tolerated; None: for ever. They count from when the taint was added, as in
    Kubernetes. `since`: the start where the taint has no time; without it none are left."""
    mine = [one for one in tolerations if _tolerates(one, taint)]
    limits = [float(one["tolerationSeconds"]) for one in mine if one.get("tolerationSeconds") is not None]
    if mine and not limits:
        return None
    began = moment(taint.get("timeAdded")) or since
    return max(min(limits) - (now - began).total_seconds(), 0.0) if limits and began is not None else 0.0


def moment(text: object) -> datetime | None:
    """A timestamp of another writer; None: it is none, or nothing that could be understood."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


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
