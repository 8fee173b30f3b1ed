"""Which versions of controllers and node agents work together."""

from __future__ import annotations

import pytest

from outfitter.api.version_skew import SkewCode, agent_skew, minor_versions_apart

# controllers, agent -> the code
CASES: dict[str, tuple[str, str, SkewCode | None]] = {
    "equal": ("1.4.0", "1.4.0", None),
    "another patch": ("1.4.0", "1.4.7", None),
    "a candidate": ("1.4.0", "1.4.0rc1", None),
    "one behind": ("1.4.0", "1.3.9", None),
    "two behind": ("1.4.0", "1.2.0", SkewCode.AGENT_TOO_OLD),
    "one ahead": ("1.4.0", "1.5.0", SkewCode.AGENT_NEWER),
    "a major version behind": ("2.0.0", "1.9.0", SkewCode.AGENT_TOO_OLD),
    "a major version ahead": ("1.9.0", "2.0.0", SkewCode.AGENT_NEWER),
    "none, as before versions were written": ("1.4.0", "", None),
    "none that can be read": ("1.4.0", "new", None),
}


@pytest.mark.parametrize("name", CASES)
def test_skew(name: str) -> None:
    controllers, agent, code = CASES[name]
    assert agent_skew(controllers, agent) == code


def test_minor_versions_apart() -> None:
    assert [minor_versions_apart("1.4.0", version) for version in ("1.6", "1.4", "1.1.2", "x")] == [2, 0, -3, None]
