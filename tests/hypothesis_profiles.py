"""Examples that Hypothesis makes up."""

from __future__ import annotations

import hypothesis
from hypothesis.internal import constants_ast
from hypothesis.internal.conjecture import providers

DRAWN = "_get_local_constants"


def same() -> None:
    """The same at every run and on every host, however slow it is; `pytest --hypothesis-profile search` makes up others."""
    any_speed = hypothesis.settings(deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.register_profile("same", any_speed, derandomize=True)
    hypothesis.settings.register_profile("search", any_speed)
    hypothesis.settings.load_profile("same")
    # It draws numbers and texts that stand in whichever modules are loaded, and so others for the same seed after a test has
    # called a command. There is no setting for that.
    assert hasattr(providers, DRAWN)
    setattr(providers, DRAWN, constants_ast.Constants)
