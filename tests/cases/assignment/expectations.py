"""What a case expects, compared with what the product shows: in the API, to plugins, and to readers on the node."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from tests.cases.assignment.pod_view import (
    assigned,
    container_statuses,
    containers,
    has_all,
    pod_name,
    spec_changes,
    started,
)
from tests.cases.assignment.reader_expectations import (
    compare_checkpoint,
    compare_readers,
    matches,
    reader_invariants,
    same_devices,
)
from tests.cases.assignment.steps import StepError
from tests.cases.assignment.world import World

FINAL = ("Succeeded", "Failed")


class Situation:
    """What is read once for all expectations of one moment."""

    def __init__(self, world: World, pods: Mapping[str, Object], events: Sequence[Object], nodes: Mapping[str, Object]) -> None:
        self.world, self.pods, self.events, self.nodes = world, pods, events, nodes
        self.slices: Sequence[Object] = ()
        self.error: StepError | None = None  # of the step
        self.accepted = False  # the step's own expectation has dealt with it
        self.before: Mapping[str, Object] = {}  # pods before the step
        self.calls_from: Mapping[str, int] = {}  # plugin -> its first call that counts
        self.log_from = 0

    @classmethod
    async def read(cls, world: World) -> Situation:
        nodes = {node["metadata"]["name"]: node for node in await world.all(kinds.NODE)}
        out = cls(world, await world.pods(), await world.all(kinds.EVENT), nodes)
        out.slices = await world.all(kinds.RESOURCE_SLICE)
        return out


async def compare(expect: Mapping[str, Any], at: Situation) -> list[str]:
    wrong: list[str] = []
    for word, wanted in expect.items():
        if word == "any_of":
            tried = [await compare(each, at) for each in wanted]
            if all(tried):
                wrong.append(f"none of any_of holds: {json.dumps(tried)}")
        elif word == "readers":
            wrong += await compare_readers(wanted, at.world)
        elif word == "checkpoint":
            wrong += compare_checkpoint(wanted, at.world, at.pods)
        elif word != "error":
            wrong += _WORDS[word](wanted, at)
    if at.error is not None and not _accepts(expect, at.error) and ("error" in expect or not at.accepted):
        wrong.append(f"the step was refused: {at.error} ({', '.join(at.error.fields)})")
    if at.error is None and "error" in expect:
        wrong.append("the step was not refused")
    return wrong


def _accepts(expect: Mapping[str, Any], error: StepError) -> bool:
    if "error" not in expect:
        return any("error" in each for each in expect.get("any_of") or ())
    wanted = expect["error"] or {}
    return any(wanted.get("field", "") in field for field in [*error.fields, *([] if "field" in wanted else [""])]) and all(
        str(part).lower() in str(error).lower() for part in wanted.get("contains") or ())


# -- words


def _pods(wanted: Mapping[str, Mapping[str, Any]], at: Situation) -> list[str]:
    wrong = []
    for name, keys in wanted.items():
        pod = at.pods.get(name)
        if keys.get("gone") or pod is None:
            if (pod is None) is not bool(keys.get("gone")):
                wrong.append(f"pod {name} is {'gone' if pod is None else 'there'}: {pod and pod.get('status')}")
            continue
        for key, value in keys.items():
            if key != "gone" and (found := _POD_KEYS[key](pod, value, at)) is not None:
                wrong.append(f"pod {name}: {key} is {found}, not {json.dumps(value)}; status {json.dumps(pod.get('status'))}")
    return wrong


def _status(pod: Object, key: str) -> Any:
    return (pod.get("status") or {}).get(key)


def _texts(pod: Object, at: Situation) -> str:
    status = pod.get("status") or {}
    out = [status.get("message") or ""]
    out += [(each.get("state") or {}).get("waiting", {}).get("message") or "" for each in container_statuses(pod)]
    for each in [*(status.get("conditions") or ()), *_warnings(pod, at)]:
        out += [each.get("reason") or "", each.get("message") or ""]
    return "\n".join(out).lower()


def _warnings(pod: Object, at: Situation) -> list[Object]:
    return [event for event in at.events if event.get("type") == "Warning"
            and (event.get("involvedObject") or {}).get("uid") == pod["metadata"]["uid"]]


def _assigned_differs(pod: Object, wanted: Any, at: Situation) -> Any:
    have = assigned(pod)
    same = all(same_devices(have.get(name, {}), wanted.get(name) or {}) for name in {*have, *wanted})
    return None if same else have


def _unchanged_differs(pod: Object, wanted: Any, at: Situation) -> Any:
    before = at.before.get(pod_name(pod))
    if before is None:
        return "not there before"
    one, other = ((each["metadata"]["uid"], assigned(each), _status(each, "startTime")) for each in (before, pod))
    return None if (one == other) is bool(wanted) else {"before": one, "now": other}


def _rejections_differ(pod: Object, wanted: Any, at: Situation) -> Any:
    found = sum(int(event.get("count") or 1) for event in _warnings(pod, at) if event.get("reason") == _status(pod, "reason"))
    return None if found == wanted else found


def _health_differs(pod: Object, wanted: Any, at: Situation) -> Any:
    have = {status["name"]: {entry["name"]: {each["resourceID"]: each.get("health") for each in entry.get("resources") or ()}
                             for entry in status.get("allocatedResourcesStatus") or ()}
            for status in _status(pod, "containerStatuses") or ()}
    same = all(have.get(name, {}).get(resource, {}) == {str(key): value for key, value in ids.items()}
               for name, each in wanted.items() for resource, ids in each.items())
    return None if same else have


def _lacks(text: str, wanted: Sequence[Any]) -> str | None:
    return None if all(str(part).lower() in text for part in wanted) else text


def _equals(found: Any, wanted: Any) -> Any:
    allowed = wanted if isinstance(wanted, list) else [wanted]
    return None if found in allowed else json.dumps(found)


_POD_KEYS: Mapping[str, Callable[[Object, Any, Situation], Any]] = {
    "phase": lambda pod, wanted, at: _equals(_status(pod, "phase"), wanted),
    "reason": lambda pod, wanted, at: _equals(_status(pod, "reason"), wanted),
    "contains": lambda pod, wanted, at: _lacks(_texts(pod, at), wanted),
    "assigned": _assigned_differs,
    "started": lambda pod, wanted, at: _equals(started(pod), wanted),
    "unchanged": _unchanged_differs,
    "rejections": _rejections_differ,
    "labels": lambda pod, wanted, at: None if wanted.items() <= (pod["metadata"].get("labels") or {}).items() else (
        pod["metadata"].get("labels")),
    "health": _health_differs,
}


def _devices(pair: str, at: Situation) -> set[tuple[str, str]]:
    pod, _, container = pair.rpartition("/")
    found = assigned(at.pods[pod]).get(container, {}) if pod in at.pods else {}
    return {(resource, each) for resource, ids in found.items() for each in ids}


def _within(wanted: Sequence[Sequence[str]], at: Situation) -> list[str]:
    return [f"{one} is not within {other}: {_devices(one, at)}, {_devices(other, at)}" for one, other in wanted
            if not _devices(one, at) or not _devices(one, at) <= _devices(other, at)]


def _apart(wanted: Sequence[Sequence[str]], at: Situation) -> list[str]:
    wrong = []
    for group in wanted:
        sets = [_devices(each, at) for each in group]
        if len(set().union(*sets)) != sum(map(len, sets)):
            wrong.append(f"{group} have devices in common: {sets}")
    return wrong


def _nodes(wanted: Mapping[str, Mapping[str, Mapping[str, int | None]]], at: Situation) -> list[str]:
    wrong = []
    for name, keys in wanted.items():
        status = at.nodes[name].get("status") or {}
        for field, amounts in keys.items():
            for resource, count in amounts.items():
                found = (status.get(field) or {}).get(resource)
                if (None if count is None else str(count)) != found:
                    wrong.append(f"node {name}: {field} of {resource} is {found}, not {count}")
    return wrong


def _call_matches(method: str, found: Any, wanted: Any) -> bool:
    if method == "GetPreferredAllocation":
        return all(found[key] == value if key == "size" else matches(found[key], value) for key, value in wanted.items())
    if method.startswith("Node"):
        return sorted(found) == sorted(wanted)
    return matches(found, wanted)


def _calls(wanted: Mapping[str, Mapping[str, Any]], at: Situation) -> list[str]:
    wrong = []
    for name, methods in wanted.items():
        calls = at.world.calls(name)[at.calls_from.get(name, 0):]
        for method, expected in methods.items():
            found = [what for each, what in calls if each == method]
            if isinstance(expected, int):
                same = len(found) == expected
            else:
                same = len(found) == len(expected) and all(
                    _call_matches(method, one, other) for one, other in zip(found, expected, strict=True))
            if not same:
                wrong.append(f"{method} of {name} was called with {found}, not {expected}")
    return wrong


def _order(wanted: Sequence[Sequence[str]], at: Situation) -> list[str]:
    log = at.world.log[at.log_from:]
    wrong = []
    for sequence in wanted:
        places = [log.index(item) if item in log else None for item in sequence]
        known = [place for place in places if place is not None]
        if None in places or known != sorted(known):
            wrong.append(f"order {sequence}: {log}")
    return wrong


def _notified(wanted: Mapping[str, Mapping[str, Any]], at: Situation) -> list[str]:
    wrong = []
    for name, keys in wanted.items():
        found = at.world.notified(name)
        if found is None or found[0] is not keys.get("registered", found[0]) or not all(
                str(part).lower() in found[1].lower() for part in keys.get("contains") or ()):
            wrong.append(f"{name} was notified {found}, not {keys}")
    return wrong


def _slices(wanted: Mapping[str, int], at: Situation) -> list[str]:
    have = Counter(part["spec"]["driver"] for part in at.slices)
    return [f"{driver} has {have[driver]} slices, not {count}" for driver, count in wanted.items() if have[driver] != count]


_WORDS: Mapping[str, Callable[[Any, Situation], list[str]]] = {
    "pods": _pods, "within": _within, "apart": _apart, "nodes": _nodes, "calls": _calls, "order": _order, "notified": _notified,
    "slices": _slices,
}


# -- what holds at every moment


async def invariants(at: Situation) -> list[str]:
    wrong = await reader_invariants(at.world, at.pods)
    holders: dict[tuple[str, str, str], list[tuple[str, str, bool]]] = defaultdict(list)
    for name, pod in at.pods.items():
        status = pod.get("status") or {}
        if changed := spec_changes(at.world.created.get(pod["metadata"]["uid"], {}), pod["spec"]):
            wrong.append(f"{name} is not as it was written: {changed}")
        if status.get("phase") == "Running":
            if not has_all(pod):
                wrong.append(f"{name} runs without all of its devices: {assigned(pod)}")
            for container in containers(pod):
                plain = container in (pod["spec"].get("initContainers") or ()) and container.get("restartPolicy") != "Always"
                for resource, ids in assigned(pod).get(container["name"], {}).items():
                    for each in ids:
                        key = pod["spec"]["nodeName"], resource, each
                        wrong += [f"{key} is in {other}/{there} and in {name}/{container['name']}"
                                  for other, there, ended in holders[key] if other != name or not (plain or ended)]
                        holders[key].append((name, container["name"], plain))
        writes = at.world.nodes[pod["spec"]["nodeName"]].can_write
        waits = status.get("phase") in (None, "Pending") and writes and not pod["metadata"].get("deletionTimestamp")
        rejected = status.get("phase") == "Failed" and not started(pod) and pod["metadata"]["uid"] not in at.world.finished
        if (rejected or waits) and (not status.get("reason") or not _texts(pod, at).strip()):
            wrong.append(f"{name} has no reason or message: {status}")
    return wrong
