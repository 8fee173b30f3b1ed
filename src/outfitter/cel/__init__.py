"""Kubernetes' expression language for device selectors: compile once, then ask it of many devices.

It must not know a noun of ours, read a clock or touch the host, and it never guesses: what is not supported is refused
by name when the selector is compiled. Called by `api`, which refuses bad selectors, and by `scheduling`, which asks
`Selector.matches`. Text goes lexer -> parser -> checker -> cost -> compiler, and `evaluator` leads it; to add a function,
begin at `declarations.py`."""

from __future__ import annotations

from outfitter.cel.closures import LIMIT
from outfitter.cel.declarations import NEWEST, CelFeatures
from outfitter.cel.device import CelDevice
from outfitter.cel.evaluator import Selector, compile_selector
from outfitter.cel.library.quantity import Quantity
from outfitter.cel.library.semver import Semver
from outfitter.errors import EvaluationError

__all__ = [
    "LIMIT",
    "NEWEST",
    "CelDevice",
    "CelFeatures",
    "EvaluationError",
    "Quantity",
    "Selector",
    "Semver",
    "compile_selector",
]
