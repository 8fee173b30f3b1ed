"""The vocabulary of the device assignment cases: areas assign, plugin, topology, readers and driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.cases.vocabulary import Check, anything, chosen, each, keys, plain, values, word

AREAS = ("assign", "plugin", "topology", "readers", "driver")



def _boolean(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{path}: true or false is expected here, not {value!r}"


_PLUGIN: Mapping[str, Check] = {
    **dict.fromkeys(("resource", "devices", "unhealthy", "node", "version", "prefers"), anything),
    **dict.fromkeys(("prestart", "running", "returns"), _boolean),
    "via": word("register", "watcher"), "empty": word("Allocate"),
    "fails": plain("Allocate", "GetPreferredAllocation", "PreStartContainer", "GetDevicePluginOptions"),
}
_METHODS = plain("NodePrepareResources", "NodeUnprepareResources")
_DRIVER: Mapping[str, Check] = {
    **dict.fromkeys(("driver", "devices", "node", "services", "health_timeout"), anything),
    **dict.fromkeys(("cdi", "running"), _boolean),
    "health": values(word("Healthy", "Unhealthy", "Unknown")), "fails": _METHODS, "skips": _METHODS,
}
_CONTAINERS = each(keys({**dict.fromkeys(("name", "limits", "assigned", "claims"), anything), "restart": word("Always")}))
_PODS = each(keys({"name": anything, "namespace": anything, "node": anything, "init": _CONTAINERS, "containers": _CONTAINERS,
                   "claims": anything}))
_CLAIMS = values(keys({"results": each(plain("request", "driver", "device"))}))
_GIVEN = keys({
    "nodes": values(keys({**dict.fromkeys(("numa", "options", "distances"), anything), "scope": word("container", "pod"),
                          "policy": word("none", "best-effort", "restricted", "single-numa-node")})),
    "plugins": values(keys(_PLUGIN)), "drivers": values(keys(_DRIVER)), "claims": _CLAIMS, "pods": _PODS,
})


def _expect(value: Any, path: str) -> Iterator[str]:
    return _EXPECT(value, path)


_READERS = keys({
    **dict.fromkeys(("node", "list", "get", "allocatable", "numa", "cpus", "claims", "pods", "by_uid", "watch"), anything),
    "cni": each(plain("pod", "knows", "devices")),
})
_EXPECT: Check = keys({
    "pods": values(keys({
        **dict.fromkeys(("reason", "contains", "assigned", "rejections", "labels", "health"), anything),
        **dict.fromkeys(("started", "unchanged", "gone"), _boolean),
        "phase": word("Pending", "Running", "Succeeded", "Failed")})),
    "within": anything, "apart": anything, "nodes": values(plain("capacity", "allocatable")), "calls": anything,
    "order": anything, "readers": _READERS, "checkpoint": anything, "error": plain("field", "contains"),
    "notified": values(plain("registered", "contains")), "slices": anything,
    "any_of": each(_expect),
})
_STEPS: Mapping[str, Check] = {
    "create": keys({"pods": _PODS, "claims": _CLAIMS}),
    "delete": plain("pod"),
    "finish": keys({"pod": anything, "phase": word("Succeeded", "Failed")}),
    "race": plain("pod", "labels", "assigned"),
    "api": keys({"agent": word("read_only", "away", "back")}),
    **dict.fromkeys(("start_plugin", "stop_plugin", "update_plugin"), keys({"plugin": anything, **_PLUGIN})),
    "register": plain("resource", "version", "endpoint", "node"),
    **dict.fromkeys(("start_driver", "stop_driver", "update_driver"), keys({**_DRIVER, "driver": anything})),
    **dict.fromkeys(("stop_agent", "start_agent", "restart_agent"), keys({
        "node": anything, "checkpoint": word("kept", "lost", "corrupt", "torn", "stale")})),
    "watch": plain("node"),
    "advance": plain("seconds"),
}


def _step(value: Any, path: str) -> Iterator[str]:
    yield from chosen("op", dict.fromkeys(_STEPS, anything), "op")(value, path)
    if isinstance(value, Mapping) and value.get("op") in _STEPS:
        rest = {key: inner for key, inner in value.items() if key not in ("op", "expect")}
        yield from _STEPS[str(value["op"])](rest, path)
        yield from _EXPECT(value.get("expect"), f"{path}.expect")


CASE = keys({"name": anything, "area": anything, "basis": anything, "note": anything, "given": _GIVEN,
             "when": each(_step), "expect": _EXPECT})
