"""The vocabulary of the device assignment cases: areas assign, plugin, topology, readers and driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.cases.vocabulary import Check, anything, chosen, each, keys, values

AREAS = ("assign", "plugin", "topology", "readers", "driver")
PLUGIN_METHODS = ("GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "PreStartContainer")
DRIVER_METHODS = ("NodePrepareResources", "NodeUnprepareResources")
OF_PODS = ("written", "listed", "started", "unlisted", "failed", "gone")  # items of `order`
WATCHED, SYNCED = ("ADDED", "DELETED"), "INITIAL_SYNC_COMPLETE"
HEALTH = ("Healthy", "Unhealthy", "Unknown")


# -- values


def _a(kind: type | tuple[type, ...], words: str) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            yield f"{path}: {words} is expected here, not {value!r}"

    return check


def _scalar(value: Any, path: str) -> Iterator[str]:
    """A text that YAML may read as another value: 404, no."""
    if value is None or isinstance(value, Mapping | list):
        yield f"{path}: a text is expected here, not {value!r}"


_BOOLEAN, _TEXT, _COUNT = _a(bool, "true or false"), _a(str, "a text"), _a(int, "a number")
_NAME = _a((str, int), "a name")  # ids may be numbers
_NAMES, _TEXTS, _FRAGMENTS = each(_NAME), each(_TEXT), each(_scalar)


def _one_of(*known: Any) -> Check:
    def check(value: Any, path: str) -> Iterator[str]:
        if value not in known:
            yield f'unknown word "{value}" in {path}; known are: {", ".join(map(str, known))}'

    return check


def _either(words: str, *checks: Check) -> Check:
    """What one of the checks accepts; if none does, what the last says about a mapping or list of the format."""

    def check(value: Any, path: str) -> Iterator[str]:
        found = [list(check(value, path)) for check in checks]
        if all(found):
            yield from found[-1] if isinstance(value, Mapping | list) else [f"{path}: {words} is expected here, not {value!r}"]

    return check


def _required(needed: Iterable[str], check: Check) -> Check:
    def checked(value: Any, path: str) -> Iterator[str]:
        yield from check(value, path)
        if isinstance(value, Mapping):
            yield from (f'{path}: the key "{key}" is missing' for key in needed if key not in value)

    return checked


def _null_or(check: Check) -> Check:
    def checked(value: Any, path: str) -> Iterator[str]:
        if value is not None:
            yield from check(value, path)

    return checked


_SET = _either("a set of ids", _COUNT, _NAMES, _required(("n", "of"), keys({"n": _COUNT, "of": _NAMES})))
_DEVICES = values(_SET)  # resource -> set
_IDS = values(_NAMES)  # resource -> ids
_CONTAINER_DEVICES = _either("any, or a mapping of containers", _one_of("any"), values(_either(
    "any, or a mapping of resources", _one_of("any"), _DEVICES)))


# -- given


_PLUGIN: Mapping[str, Check] = {
    "resource": _TEXT, "devices": values(each(_COUNT)), "unhealthy": _NAMES, "node": _TEXT, "version": _TEXT, "prefers": _NAMES,
    **dict.fromkeys(("prestart", "running", "returns"), _BOOLEAN), "via": _one_of("register", "watcher"),
    "empty": each(_one_of("Allocate")), "fails": keys(dict.fromkeys(PLUGIN_METHODS, _scalar)),
}
_DRIVER: Mapping[str, Check] = {
    "driver": _TEXT, "devices": _NAMES, "node": _TEXT, "services": _TEXTS, "health_timeout": _a((int, float), "a number"),
    **dict.fromkeys(("cdi", "running"), _BOOLEAN), "health": values(_one_of(*HEALTH)),
    "fails": keys(dict.fromkeys(DRIVER_METHODS, _either("a text, or a text for each claim", _scalar, values(_scalar)))),
    "skips": keys(dict.fromkeys(DRIVER_METHODS, _TEXTS)),
}
_CONTAINERS = each(_required(["name"], keys({
    "name": _TEXT, "limits": values(_COUNT), "assigned": _IDS, "claims": _TEXTS, "restart": _one_of("Always")})))
_PODS = each(_required(("name", "containers"), keys({
    **dict.fromkeys(("name", "namespace", "node"), _TEXT), **dict.fromkeys(("init", "containers"), _CONTAINERS),
    "claims": values(_TEXT)})))
_RESULT = ("request", "driver", "device")
_CLAIMS = values(_required(["results"], keys({"results": each(_required(_RESULT, keys(dict.fromkeys(_RESULT, _NAME))))})))
_GIVEN = keys({
    "nodes": values(keys({
        "numa": each(_COUNT), "options": values(_scalar), "distances": each(each(_COUNT)), "scope": _one_of("container", "pod"),
        "policy": _one_of("none", "best-effort", "restricted", "single-numa-node")})),
    "plugins": values(_required(["resource"], keys(_PLUGIN))), "drivers": values(_required(["driver"], keys(_DRIVER))),
    "claims": _CLAIMS, "pods": _PODS,
})


# -- expect


def _expect(value: Any, path: str) -> Iterator[str]:
    return _EXPECT(value, path)


def _sequence(value: Any, path: str) -> Iterator[str]:
    """Items of an order; which plugins and drivers there are is checked with the whole case."""
    yield from _TEXTS(value, path)
    for item in value if isinstance(value, list) else ():
        verb, _, name = str(item).partition(" ")
        if verb not in (*OF_PODS, *PLUGIN_METHODS, *DRIVER_METHODS) or not name:
            yield (f'unknown item "{item}" in {path}; known are: '
                   f'{", ".join(f"{verb} POD" for verb in OF_PODS)}, and METHOD NAME of a plugin or driver')


def _event(value: Any, path: str) -> Iterator[str]:
    kind, _, name = str(value).partition(" ")
    if value != SYNCED and (kind not in WATCHED or not name):
        yield f'unknown event "{value}" in {path}; known are: {", ".join(f"{kind} POD" for kind in WATCHED)}, {SYNCED}'


_PREFERRED = keys({"available": _SET, "must": _SET, "size": _COUNT})
_CALLS = values(keys({
    "GetDevicePluginOptions": _COUNT,
    "GetPreferredAllocation": _either("a number, or a list of calls", _COUNT, each(_PREFERRED)),
    **dict.fromkeys(("Allocate", "PreStartContainer"), _either("a number, or a list of calls", _COUNT, each(_SET))),
    **dict.fromkeys(DRIVER_METHODS, _either("a number, or a list of calls", _COUNT, each(_TEXTS))),
}))
_READERS = keys({
    "node": _TEXT, "list": values(_CONTAINER_DEVICES), "get": values(_null_or(_CONTAINER_DEVICES)), "allocatable": _DEVICES,
    "numa": values(values(each(_COUNT))), "cpus": values(values(each(_COUNT))),
    "claims": values(values(values(values(_TEXTS)))), "pods": _TEXTS, "by_uid": values(_BOOLEAN), "watch": each(_event),
    "cni": each(_required(("pod", "knows", "devices"), keys({"pod": _TEXT, "knows": _TEXTS, "devices": _null_or(_DEVICES)}))),
})
_POD = keys({
    "phase": _one_of("Pending", "Running", "Succeeded", "Failed"), "reason": _either("a reason, or a list", _TEXT, _TEXTS),
    "contains": _FRAGMENTS, "assigned": values(_DEVICES), "rejections": _COUNT, "labels": values(_TEXT),
    "health": values(values(values(_one_of(*HEALTH)))), **dict.fromkeys(("started", "unchanged", "gone"), _BOOLEAN)})
_EXPECT: Check = keys({
    "pods": values(_POD), "within": each(_TEXTS), "apart": each(_TEXTS),
    "nodes": values(keys(dict.fromkeys(("capacity", "allocatable"), values(_null_or(_COUNT))))),
    "calls": _CALLS, "order": each(_sequence), "readers": _READERS, "checkpoint": values(values(_DEVICES)),
    "error": keys({"field": _TEXT, "contains": _FRAGMENTS}),
    "notified": values(keys({"registered": _BOOLEAN, "contains": _FRAGMENTS})), "slices": values(_COUNT),
    "any_of": each(_expect),
})


# -- when


_AGENT = keys({"node": _TEXT, "checkpoint": _one_of("kept", "lost", "corrupt", "torn", "stale")})
_STEPS: Mapping[str, Check] = {
    "create": keys({"pods": _PODS, "claims": _CLAIMS}),
    "delete": _required(["pod"], keys({"pod": _TEXT})),
    "finish": _required(("pod", "phase"), keys({"pod": _TEXT, "phase": _one_of("Succeeded", "Failed")})),
    "race": _required(["pod"], keys({"pod": _TEXT, "labels": values(_TEXT), "assigned": values(_IDS)})),
    "api": _required(["agent"], keys({"agent": _one_of("read_only", "away", "back")})),
    **dict.fromkeys(("start_plugin", "stop_plugin", "update_plugin"),
                    _required(["plugin"], keys({"plugin": _TEXT, **_PLUGIN}))),
    "register": _required(["resource"], keys(dict.fromkeys(("resource", "version", "endpoint", "node"), _TEXT))),
    **dict.fromkeys(("start_driver", "stop_driver", "update_driver"), _required(["driver"], keys(_DRIVER))),
    **dict.fromkeys(("stop_agent", "start_agent", "restart_agent"), _AGENT),
    "watch": keys({"node": _TEXT}),
    "advance": _required(["seconds"], keys({"seconds": _a((int, float), "a number")})),
}


def _step(value: Any, path: str) -> Iterator[str]:
    yield from chosen("op", dict.fromkeys(_STEPS, anything), "op")(value, path)
    if isinstance(value, Mapping) and value.get("op") in _STEPS:
        rest = {key: inner for key, inner in value.items() if key not in ("op", "expect")}
        yield from _STEPS[str(value["op"])](rest, path)
        yield from _EXPECT(value.get("expect"), f"{path}.expect")


# -- the whole


_KEYS = keys({"name": _TEXT, "area": _TEXT, "basis": _one_of("document", "kubelet", "better"), "note": anything,
              "given": _GIVEN, "when": each(_step), "expect": _EXPECT})


def CASE(value: Any, path: str) -> Iterator[str]:
    wrong = list(_KEYS(value, path))
    yield from wrong
    if not wrong and isinstance(value, Mapping):
        yield from _unknown_names(value)


def _unknown_names(case: Mapping[str, Any]) -> Iterator[str]:
    """Nodes, plugins, drivers and claims that a case names and does not have."""
    given, steps = case.get("given") or {}, case.get("when") or []
    nodes, plugins, drivers = given.get("nodes") or {"n1": {}}, given.get("plugins") or {}, given.get("drivers") or {}
    claims: set[str] = set()

    def known(kind: str, name: Any, names: Iterable[str], path: str) -> Iterator[str]:
        if name not in names:
            yield f'unknown {kind} "{name}" in {path}; known are: {", ".join(sorted(map(str, names)))}'

    def objects(holder: Mapping[str, Any], path: str) -> Iterator[str]:
        claims.update(holder.get("claims") or {})
        for index, pod in enumerate(holder.get("pods") or ()):
            yield from known("node", pod.get("node", next(iter(nodes))), nodes, f"{path}.pods[{index}]")
            for claim in (pod.get("claims") or {}).values():
                yield from known("claim", claim, claims, f"{path}.pods[{index}]")

    def expected(expect: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, methods in (expect.get("calls") or {}).items():
            yield from known("plugin or driver", name, {*plugins, *drivers}, f"{path}.calls")
            of_it = PLUGIN_METHODS if name in plugins else DRIVER_METHODS
            for method in methods or () if name in {*plugins, *drivers} else ():
                yield from known("method", method, of_it, f"{path}.calls.{name}")
        for verb, _, name in (item.partition(" ") for sequence in expect.get("order") or () for item in sequence):
            if verb not in OF_PODS:
                yield from known("plugin or driver", name, plugins if verb in PLUGIN_METHODS else drivers, f"{path}.order")
        for name in expect.get("notified") or ():
            yield from known("plugin or driver", name, {*plugins, *drivers}, f"{path}.notified")
        for name in (*(expect.get("nodes") or ()), *filter(None, [(expect.get("readers") or {}).get("node")])):
            yield from known("node", name, nodes, path)
        for index, other in enumerate(expect.get("any_of") or ()):
            yield from expected(other or {}, f"{path}.any_of[{index}]")

    for name, node in nodes.items():
        size, rows = len((node or {}).get("numa") or [0]), (node or {}).get("distances") or ()
        if rows and [len(row) for row in rows] != [size] * size:
            yield f"given.nodes.{name}.distances: {size} rows of {size} numbers are expected, one for each of numa"
    for kind, players in (("plugins", plugins), ("drivers", drivers)):
        for name, player in players.items():
            yield from known("node", player.get("node", next(iter(nodes))), nodes, f"given.{kind}.{name}")
    yield from objects(given, "given")
    for index, step in enumerate(steps):
        path = f"when[{index}]"
        yield from objects(step, path)
        if "plugin" in step:
            yield from known("plugin", step["plugin"], plugins, path)
        if "driver" in step:
            yield from known("driver", step["driver"], drivers, path)
        if "node" in step:
            yield from known("node", step["node"], nodes, path)
        yield from expected(step.get("expect") or {}, f"{path}.expect")
    yield from expected(case.get("expect") or {}, "expect")
