"""An example of plug-ins for outfitter's scheduler. Pods and hosts carry a label `team`.

It imports nothing of outfitter: a plug-in is any object with a name and the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LABEL = "team"


def team(thing: Mapping[str, Any]) -> str | None:
    label: str | None = (thing["metadata"].get("labels") or {}).get(LABEL)
    return label


class KeepApart:
    """A filter: a host of one team is not for the pods of another. What carries no label is for all."""

    name = "keep-apart"

    def filter(self, pod: Mapping[str, Any], node: Mapping[str, Any], devices: Sequence[Any]) -> str | None:
        if team(pod) and team(node) and team(pod) != team(node):
            return f"the host is for team {team(node)}, the pod is of team {team(pod)}"
        return None


class OwnHosts:
    """A scorer: a team fills its own hosts before those that are for all."""

    name = "own-hosts"

    def score(self, pod: Mapping[str, Any], node: Mapping[str, Any], devices: Sequence[Any]) -> float:
        return 100.0 if team(pod) and team(pod) == team(node) else 0.0
