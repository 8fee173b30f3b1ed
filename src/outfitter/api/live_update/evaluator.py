"""Puts the contributions of all kinds of devices together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter.api import patch
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs
from outfitter.api.live_update import spec_fields
from outfitter.api.live_update.claimed_devices import ClaimedDevices
from outfitter.api.live_update.contribution import NEEDS, Contributor, MigrationNeed, RunningVm
from outfitter.api.live_update.nics import Nics
from outfitter.api.rejection import Rejection

CONTRIBUTORS: tuple[Contributor, ...] = (Nics(), ClaimedDevices())
CLAIMS = "resourceClaims"
AT_START = ("startStrategy",)  # counts at the start alone


@dataclass(frozen=True, slots=True)
class Evaluation:
    live: Mapping[str, Any] = field(default_factory=dict)  # field of the VMI's spec -> its new value
    migration: tuple[str, ...] = ()  # fields that take effect in place or by a migration
    restart: tuple[str, ...] = ()  # fields that wait for a restart
    template: Mapping[str, Any] = field(default_factory=dict)  # field of the VM's template -> its value without what is gone
    refused: Mapping[str, Rejection] = field(default_factory=dict)  # why fields of `restart` wait, where that is not obvious
    staged: bool = False  # everything waits for a restart: vmRolloutStrategy is Stage

    def vmi_patch(self) -> Object:
        """A merge patch of the VMI's spec."""
        return _merged(self.live)

    def template_patch(self) -> Object:
        """A merge patch of the template's spec."""
        return _merged(self.template)


NOTHING = Evaluation()


def evaluate(running: RunningVm, contributors: Sequence[Contributor] = CONTRIBUTORS) -> Evaluation:
    contributions = [contributor.compare(running) for contributor in contributors]
    owned = [path for contributor in contributors for path in contributor.fields]
    have = running.vmi.get("spec") or {}
    live = {path: value for each in contributions for path, value in each.live.items()}
    restart = [path for each in contributions for path in each.restart]
    needed = frozenset().union(*(each.claims for each in contributions))
    later = frozenset().union(*(each.later for each in contributions))
    claims, waiting = _claims(running, needed, live, later)
    if claims is not None:
        live[CLAIMS] = claims
    rest = spec_fields.changed(running.wanted, have, started_with=running.started_with, skip=[*owned, CLAIMS, *AT_START])
    return Evaluation(
        live, tuple(path for each in contributions for path in each.migration), (*restart, *waiting, *rest),
        {path: value for each in contributions for path, value in each.template.items()},
        {path: why for each in contributions for path, why in each.refused.items()}, staged=not running.live)


def _claims(
    running: RunningVm, needed: frozenset[str], live: Mapping[str, Any], later: frozenset[str]
) -> tuple[list[Object] | None, list[str]]:
    """resourceClaims of the VMI with those that are needed by what is copied (`live`), None without any; and those that
    wait."""
    listed, have = running.wanted.get(CLAIMS), (running.vmi.get("spec") or {}).get(CLAIMS)
    known = spec_fields.named_items(have or [])
    new = {name: entry for name, entry in spec_fields.named_items(listed or []).items() if name not in known}
    added = [dict(entry) for name, entry in new.items() if name in needed]
    left = {name: entry for name, entry in spec_fields.named_items(listed or []).items()
            if name not in needed | later or name in known}
    used = {ref.claim for ref in device_refs.request_refs({"spec": patch.merge(running.vmi.get("spec") or {}, _merged(live))})}
    kept = [entry for entry in have or () if entry.get("name") in left or entry.get("name") in used]  # not of unplugged NICs
    waiting = spec_fields.changed(list(left.values()), kept, CLAIMS, started_with=running.started_with)
    return [*(dict(entry) for entry in have or ()), *added] if added else None, list(waiting)


def migration_need(vmi: Object, pod: Mapping[str, Any], contributors: Sequence[Contributor] = CONTRIBUTORS) -> MigrationNeed:
    """The greatest need of all kinds of devices."""
    needs = [contributor.migration(vmi, pod) for contributor in contributors]
    level = max((NEEDS.index(each.level) for each in needs), default=0)
    return MigrationNeed(NEEDS[level], tuple(text for each in needs for text in each.waiting))


def _merged(values: Mapping[str, Any]) -> Object:
    out: Object = {}
    for path, value in values.items():
        place = out
        *above, last = path.split(".")
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value
    return out
