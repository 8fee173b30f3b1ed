"""The vocabulary of the device assignment cases: areas assign, plugin, topology, readers and driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.cases.vocabulary import Check, anything, chosen, each, keys, plain, values

AREAS = ("assign", "plugin", "topology", "readers", "driver")

_PLUGIN = ("resource", "devices", "unhealthy", "node", "version", "via", "prestart", "prefers", "fails", "empty", "running",
           "returns")
_DRIVER = ("driver", "devices", "node", "services", "health", "health_timeout", "cdi", "fails", "skips", "running")
_CONTAINERS = each(plain("name", "limits", "assigned", "claims", "restart"))
_PODS = each(keys({"name": anything, "namespace": anything, "node": anything, "init": _CONTAINERS, "containers": _CONTAINERS,
                   "claims": anything}))
_CLAIMS = values(keys({"results": each(plain("request", "driver", "device"))}))
_GIVEN = keys({
    "nodes": values(plain("numa", "policy", "scope", "options", "distances")), "plugins": values(plain(*_PLUGIN)),
    "drivers": values(plain(*_DRIVER)), "claims": _CLAIMS, "pods": _PODS,
})


def _expect(value: Any, path: str) -> Iterator[str]:
    return _EXPECT(value, path)


_READERS = keys({
    **dict.fromkeys(("node", "list", "get", "allocatable", "numa", "cpus", "claims", "pods", "by_uid", "watch"), anything),
    "cni": each(plain("pod", "knows", "devices")),
})
_EXPECT: Check = keys({
    "pods": values(plain("phase", "reason", "contains", "assigned", "started", "unchanged", "rejections", "labels", "health",
                         "gone")),
    "within": anything, "apart": anything, "nodes": values(plain("capacity", "allocatable")), "calls": anything,
    "order": anything, "readers": _READERS, "checkpoint": anything, "error": plain("field", "contains"),
    "notified": values(plain("registered", "contains")), "slices": anything,
    "any_of": each(_expect),
})
_STEPS: Mapping[str, Check] = {
    "create": keys({"pods": _PODS, "claims": _CLAIMS}),
    "delete": plain("pod"),
    "finish": plain("pod", "phase"),
    "race": plain("pod", "labels", "assigned"),
    "api": plain("agent"),
    **dict.fromkeys(("start_plugin", "stop_plugin", "update_plugin"), plain("plugin", *_PLUGIN)),
    "register": plain("resource", "version", "endpoint", "node"),
    **dict.fromkeys(("start_driver", "stop_driver", "update_driver"), plain("driver", *_DRIVER)),
    **dict.fromkeys(("stop_agent", "start_agent", "restart_agent"), plain("node", "checkpoint")),
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
