"""How a role was set in a cluster: by an argument or a variable of its container, or in the configuration file of the ConfigMap
(docs/roles.md). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from outfitter.api.kinds import Object
from outfitter.doctor.reading import Reading

FALSE = ("false", "0", "no", "off")


def setting(readings: Mapping[str, Reading], workload: str, name: str) -> str | None:
    """The value of a setting of a workload as text; None: it is not set. A switch has "true" or "false"."""
    flag = "--" + name.replace("_", "-")
    for container in _containers(readings, workload):
        words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
        for index, word in enumerate(words):
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
            if word == f"--no-{flag[2:]}":
                return "false"
            if word == flag:
                following = words[index + 1] if index + 1 < len(words) else "--"
                return "true" if following.startswith("--") else following
        for variable in container.get("env") or ():
            if variable.get("name") == f"OUTFITTER_{name.upper()}" and variable.get("value"):
                return str(variable["value"])
    value = _section(readings).get(name)
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def switched_on(readings: Mapping[str, Reading], workload: str, name: str, *, default: bool = False) -> bool:
    value = setting(readings, workload, name)
    return default if value is None else value.lower() not in FALSE


def _containers(readings: Mapping[str, Reading], workload: str) -> Iterator[Object]:
    for plural in ("deployments", "daemonsets"):
        for obj in readings[plural].items if plural in readings else ():
            if obj["metadata"]["name"] == workload:
                yield from obj["spec"]["template"]["spec"].get("containers") or ()


def _section(readings: Mapping[str, Reading]) -> Mapping[str, Any]:
    """Section `roles` of the configuration file."""
    for obj in readings["configmaps"].items if "configmaps" in readings else ():
        for text in (obj.get("data") or {}).values():
            try:
                content = yaml.safe_load(text)
            except yaml.YAMLError:
                continue
            section = content.get("roles") if isinstance(content, dict) else None
            if isinstance(section, dict):
                return section
    return {}
