"""Fields of type Time and MicroTime by kind, and their normal form: clients send "2026-01-01T00:00:00+00:00" or "....000Z" for
what they read as "2026-01-01T00:00:00Z", and the API server stores and compares times in the last form, as Kubernetes' decoder
does. Called by `known_fields.normalize` for every object and patched object that a client sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Union

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest, shortened

_NORMAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
ZERO = datetime(1, 1, 1, tzinfo=UTC)  # Go's zero time, which Kubernetes writes as null

Write = Callable[[datetime], str]
TimeTree = Mapping[str, Union["TimeTree", Write]]  # field -> how its time is written, or the fields below; lists item by item


def seconds(moment: datetime) -> str:
    """metav1.Time: whole seconds."""
    return f"{moment.replace(tzinfo=None, microsecond=0).isoformat()}Z"


def microseconds(moment: datetime) -> str:
    """metav1.MicroTime."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


METADATA: TimeTree = {"creationTimestamp": seconds, "deletionTimestamp": seconds, "managedFields": {"time": seconds}}
TEMPLATE: TimeTree = {"metadata": METADATA}
_CONDITIONS: TimeTree = {"lastTransitionTime": seconds, "lastProbeTime": seconds, "lastHeartbeatTime": seconds}
_CONDITION_STATUS: TimeTree = {"status": {"conditions": _CONDITIONS}}
_CONTAINER_STATE: TimeTree = {"running": {"startedAt": seconds}, "terminated": {"startedAt": seconds, "finishedAt": seconds}}
_CONTAINER_STATUSES: TimeTree = {"state": _CONTAINER_STATE, "lastState": _CONTAINER_STATE}
_TAINT: TimeTree = {"timeAdded": seconds}
_PHASES: TimeTree = {"phaseTransitionTimestamp": seconds}
_MIGRATION_STATE: TimeTree = {"startTimestamp": seconds, "endTimestamp": seconds, "targetNodeDomainReadyTimestamp": seconds}

FIELDS: Mapping[Kind, TimeTree] = {
    kinds.NAMESPACE: _CONDITION_STATUS,
    kinds.NODE: {"spec": {"taints": _TAINT}, **_CONDITION_STATUS},
    kinds.POD: {"status": {
        "startTime": seconds, "conditions": _CONDITIONS, "containerStatuses": _CONTAINER_STATUSES,
        "initContainerStatuses": _CONTAINER_STATUSES, "ephemeralContainerStatuses": _CONTAINER_STATUSES}},
    kinds.EVENT: {"firstTimestamp": seconds, "lastTimestamp": seconds, "eventTime": microseconds,
                  "series": {"lastObservedTime": microseconds}},
    kinds.LEASE: {"spec": {"acquireTime": microseconds, "renewTime": microseconds}},
    kinds.RESOURCE_CLAIM: {"status": {"allocation": {"allocationTimestamp": seconds}, "devices": {"conditions": _CONDITIONS}}},
    kinds.RESOURCE_CLAIM_TEMPLATE: {"spec": TEMPLATE},
    kinds.RESOURCE_SLICE: {"spec": {"devices": {"taints": _TAINT, "basic": {"taints": _TAINT}}}},  # basic: before v1beta2
    kinds.DEVICE_TAINT_RULE: {"spec": {"taint": _TAINT}, **_CONDITION_STATUS},
    kinds.POOL_STATUS_REQUEST: _CONDITION_STATUS,
    kinds.VMI: {"status": {
        "conditions": _CONDITIONS, "phaseTransitionTimestamps": _PHASES, "failedLaunches": {"time": seconds},
        "migrationState": _MIGRATION_STATE}},
    kinds.VM: {"spec": {"template": TEMPLATE, "resourceClaimTemplates": {"spec": TEMPLATE}},
               "status": {"conditions": _CONDITIONS, "startFailure": {"retryAfterTimestamp": seconds}}},
    kinds.MIGRATION: {"status": {"conditions": _CONDITIONS, "phaseTransitionTimestamps": _PHASES,
                                 "migrationState": _MIGRATION_STATE}},
    kinds.KUBEVIRT: _CONDITION_STATUS,
}
_TREES: Mapping[Kind, TimeTree] = {kind: {"metadata": METADATA, **FIELDS.get(kind, {})} for kind in kinds.ALL}


def normalize_times(kind: Kind, obj: Object, what: str) -> None:
    """Write the times of an object in their normal form, in place. BadRequest, which begins with `what`, names a field that is
    not a time. A zero time is removed, as null is."""
    _normalize(obj, _TREES[kind], "", what)


def _normalize(value: Any, tree: TimeTree, path: str, what: str) -> None:
    if isinstance(value, list):
        for place, item in enumerate(value):
            _normalize(item, tree, f"{path}[{place}]", what)
        return
    if not isinstance(value, dict):
        return  # a wrong type, which is reported elsewhere
    for name, below in tree.items():
        inner = value.get(name)
        if inner is None:
            continue
        here = f"{path}.{name}" if path else name
        if not callable(below):
            _normalize(inner, below, here, what)
        elif (text := _normal(inner, below, here, what)) is not None:
            value[name] = text
        else:
            del value[name]


def _normal(value: Any, write: Write, path: str, what: str) -> str | None:
    moment = parse(value) if isinstance(value, str) else None
    if moment is None:
        raise BadRequest(f"{what}: {path}: parsing time {shortened(repr(value))}: must be a time as RFC 3339 writes it, for "
                         "example 2026-01-01T00:00:00Z")
    return None if moment == ZERO else write(moment)


def parse(text: str) -> datetime | None:
    """A time of RFC 3339, in UTC; None if it is none. Digits after the microseconds are dropped."""
    try:
        if _NORMAL.fullmatch(text):
            return datetime.fromisoformat(text)
        match = _RFC3339.fullmatch(text)
        if match is None:
            return None
        *whole, fraction, sign, hours, minutes = match.groups()
        year, month, day, hour, minute, second = map(int, whole)
        micro = int(((fraction or "") + "000000")[:6])
        zone = UTC if sign is None else timezone((1 if sign == "+" else -1) * timedelta(hours=int(hours), minutes=int(minutes)))
        return datetime(year, month, day, hour, minute, second, micro, zone).astimezone(UTC)
    except (ValueError, OverflowError):  # no such day or hour; outside of the years 1 to 9999 in UTC
        return None
