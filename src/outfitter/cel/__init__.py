"""CEL, Kubernetes' expression language, for device selectors: compile once, then evaluate on many devices.

Knows no kind of ours, reads no clock and touches no host. An unsupported construct is rejected by name when the selector is
compiled. Called by `api`, which rejects invalid selectors, and by `scheduling`, which calls `Selector.matches`. The stages are
lexer -> parser -> macro_expansion -> checker -> cost_estimate -> compiler; `evaluator` runs them. To add a function, start at
`declarations.py`.

>>> from outfitter.cel import CelDevice, compile_selector
>>> selector = compile_selector('device.attributes["gpu.example.com"].model == "A100"')
>>> device = CelDevice.from_slice("gpu.example.com", {"attributes": {"model": {"string": "A100"}}})
>>> selector.matches(device)
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outfitter.cel.closures import LIMIT
    from outfitter.cel.declarations import NEWEST, CelFeatures
    from outfitter.cel.device import CelDevice
    from outfitter.cel.evaluator import CostMeter, Selector, compile_selector
    from outfitter.cel.library.quantity import Quantity
    from outfitter.cel.library.semver import Semver
    from outfitter.cel.optional_spelling import optional_spelling
    from outfitter.errors import EvaluationError

__all__ = [
    "LIMIT",
    "NEWEST",
    "CelDevice",
    "CelFeatures",
    "CostMeter",
    "EvaluationError",
    "Quantity",
    "Selector",
    "Semver",
    "compile_selector",
    "optional_spelling",
]

# Imported when first used: a process that only reads quantities does not load a compiler.
_MODULES = {
    "LIMIT": "cel.closures",
    "NEWEST": "cel.declarations",
    "CelDevice": "cel.device",
    "CelFeatures": "cel.declarations",
    "CostMeter": "cel.evaluator",
    "EvaluationError": "errors",
    "Quantity": "cel.library.quantity",
    "Selector": "cel.evaluator",
    "Semver": "cel.library.semver",
    "compile_selector": "cel.evaluator",
    "optional_spelling": "cel.optional_spelling",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"outfitter.{_MODULES[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value
