"""What a selector really costs on a device: the compiled selector counts only where its estimate is beyond the limit."""

from __future__ import annotations

from outfitter.cel import Selector, checker, closures, macro_expansion, runtime_cost
from outfitter.cel.closures import LIMIT, Frame
from outfitter.cel.compiler import Compiler
from outfitter.cel.declarations import NEWEST
from outfitter.cel.device import CelDevice
from outfitter.cel.lexer import Source
from outfitter.cel.values import OutOfBudget
from outfitter.errors import EvaluationError


def cost_on(selector: Selector, device: CelDevice) -> int:
    """What the selector really costs on a device, in Kubernetes' units, whatever it answers."""
    expanded = macro_expansion.expand(selector.tree)
    checker.check(Source(selector.text), expanded, NEWEST)
    compiler = Compiler(runtime_cost.by_place(expanded))
    run = compiler.compile(selector.tree)
    frame: Frame = [device, LIMIT, *(None,) * compiler.slots]
    try:
        run(frame)
    except (EvaluationError, OutOfBudget):
        pass
    return LIMIT - int(frame[closures.BUDGET])
