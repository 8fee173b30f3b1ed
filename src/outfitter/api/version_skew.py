"""Which versions of controllers and node agents work together: an agent has the version of the controllers, or is one minor
version older. docs/upgrade.md says what they exchange. Pure; called by the controllers and by `outfit doctor`."""

from __future__ import annotations

import enum
import re

_VERSION = re.compile(r"([0-9]+)\.([0-9]+)")
OLDEST_AGENT = -1  # minor versions


class SkewCode(enum.StrEnum):
    """The reason of an event about a node, and the code of a log line."""

    AGENT_NEWER = "AgentNewer"  # than the controllers
    AGENT_TOO_OLD = "AgentTooOld"  # more than one minor version behind them


def minor_versions_apart(reference: str, version: str) -> int | None:
    """How many minor versions `version` is newer; a major version counts as many. None: one cannot be read."""
    parsed = [_VERSION.match(text) for text in (reference, version)]
    if parsed[0] is None or parsed[1] is None:
        return None
    (major, minor), (other_major, other_minor) = ((int(each[1]), int(each[2])) for each in (parsed[0], parsed[1]))
    return (other_major - major) * 1000 + other_minor - minor


def agent_skew(controllers: str, agent: str) -> SkewCode | None:
    """None: they work together, or a version cannot be read."""
    apart = minor_versions_apart(controllers, agent)
    if apart is None or OLDEST_AGENT <= apart <= 0:
        return None
    return SkewCode.AGENT_NEWER if apart > 0 else SkewCode.AGENT_TOO_OLD
