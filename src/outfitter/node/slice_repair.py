"""What other writers did to the ResourceSlices of a host, and how soon they are repaired. Pure; called by the host audit and
the slice publisher.

A slice is the host's if it has the host's driver and either its node or its pool. Others are left alone."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api.kinds import Object
from outfitter.node.agent_host import AgentHost

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds from a repair until the next: doubled each time
QUIET = 600.0  # seconds without a repair after which the next one is done at once again
NAMED = 3  # devices that a finding names


class SliceFindingCode(enum.StrEnum):
    """The reason of the event and the label of the metric: it does not change once released."""

    DELETED = "SliceDeleted"
    CHANGED = "SliceChanged"
    FOREIGN = "SliceForeign"


@dataclass(frozen=True, slots=True)
class SliceFinding:
    code: SliceFindingCode
    slice: str  # its name
    what: str = ""  # what is different in it

    def __str__(self) -> str:
        if self.code is SliceFindingCode.DELETED:
            return f"ResourceSlice {self.slice} was deleted: it is published again"
        if self.code is SliceFindingCode.CHANGED:
            return f"ResourceSlice {self.slice} was changed by another writer ({self.what}): it is published as it was"
        return f"ResourceSlice {self.slice} of another writer is in this host's pool ({self.what}): it is deleted"


def places(part: Object) -> set[str]:
    """The hosts that a slice may belong to: its node, and the one of its pool's name."""
    spec = part.get("spec") or {}
    pool = spec.get("pool")
    return {spec.get("nodeName") or "", (pool.get("name") if isinstance(pool, dict) else "") or ""}


def is_of(host: AgentHost, part: Object) -> bool:
    """Whether a slice is the host's to write. Kubernetes' library for drivers goes by driver and node alone; a slice with the
    same driver and pool, tied to another node or to none, would hide the host's devices just as well."""
    return (part.get("spec") or {}).get("driver") == host.driver and host.name in places(part)


def owners(part: Object) -> set[str]:
    return {owner["uid"] for owner in part["metadata"].get("ownerReferences") or ()}


def findings(published: Mapping[str, Object], stored: Sequence[Object], node_uid: str) -> list[SliceFinding]:
    """What differs between slices as they were published (name -> spec; owned by that Node) and as they are."""
    there = {part["metadata"]["name"]: part["spec"] for part in stored}
    disowned = {part["metadata"]["name"] for part in stored if owners(part) != {node_uid}}
    out = [SliceFinding(SliceFindingCode.DELETED, name) for name in published if name not in there]
    for name, spec in there.items():
        if name not in published:
            generation = (spec.get("pool") or {}).get("generation", 0)
            out.append(SliceFinding(SliceFindingCode.FOREIGN, name, f"generation {generation}, {_devices(spec)}"))
        elif spec != published[name]:
            out.append(SliceFinding(SliceFindingCode.CHANGED, name, _difference(published[name], spec)))
        elif name in disowned:
            out.append(SliceFinding(SliceFindingCode.CHANGED, name, "changed owner"))
    return out


def _devices(spec: Object) -> str:
    names = sorted(_by_name(spec))
    return f"devices {_few(names)}" if names else "without devices"


def _difference(before: Object, after: Object) -> str:
    old, new = _by_name(before), _by_name(after)
    kinds = (("missing", old.keys() - new.keys()), ("unknown", new.keys() - old.keys()),
             ("changed", {name for name in old.keys() & new.keys() if old[name] != new[name]}))
    texts = [f"{word} devices: {_few(sorted(names))}" for word, names in kinds if names]
    others = sorted(key for key in before.keys() | after.keys() if key != "devices" and before.get(key) != after.get(key))
    return "; ".join([*texts, *([f"changed fields: {', '.join(others)}"] if others else [])]) or "order of its devices"


def _by_name(spec: Object) -> dict[str, object]:
    """Devices by name. Another writer may have written anything that the API server accepts."""
    return {str(device["name"]): device for device in spec.get("devices") or ()
            if isinstance(device, dict) and "name" in device}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


@dataclass(slots=True)
class RepairBackoff:
    """When the slices of a host may be repaired again, in monotonic seconds: the first time at once, then later and later as
    long as another writer goes on, so that two writers do not drive up the pool's generation without end."""

    repairs: int = 0
    last: float = 0.0

    def delay(self, now: float) -> float:
        """Seconds from now until the next repair."""
        if not self.repairs or now - self.last >= QUIET:
            return 0.0
        wait = min(FIRST_DELAY * (1 << min(self.repairs - 1, 10)), LONGEST_DELAY)
        return max(0.0, self.last + wait - now)

    def repaired(self, now: float) -> None:
        self.repairs = 1 if now - self.last >= QUIET else self.repairs + 1
        self.last = now


def codes(found: Iterable[SliceFinding]) -> dict[SliceFindingCode, str]:
    """The findings of each code as one text."""
    out: dict[SliceFindingCode, str] = {}
    for finding in found:
        out[finding.code] = f"{out[finding.code]}; {finding}" if finding.code in out else str(finding)
    return out
