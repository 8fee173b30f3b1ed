"""Selectors: compiled once, evaluated on every device. The text is parsed, checked and its cost estimated first, so that an
invalid or too expensive selector is rejected at compile time. Entry point of the package."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from outfitter import errors
from outfitter.cel import checker, cost_estimate, field_usage, lexer, macro_expansion, parser, runtime_cost, values
from outfitter.cel.closures import BUDGET, LIMIT, Frame, Run
from outfitter.cel.compiler import Compiler
from outfitter.cel.declarations import NEWEST, CelFeatures
from outfitter.cel.device import CelDevice
from outfitter.cel.field_usage import Read
from outfitter.cel.lexer import Source
from outfitter.cel.nodes import Node
from outfitter.cel.values import OutOfBudget, Value
from outfitter.errors import EvaluationError

COUNTED = 100  # the cost is counted where it may be higher, as of loops; counting takes time itself


@dataclass(slots=True)
class CostMeter:
    """What several evaluations may still cost together; below zero: more than that."""

    left: int


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression. Stateless, may be shared."""

    text: str
    tree: Node = field(repr=False, compare=False)
    run: Run = field(repr=False, compare=False)
    slots: int = field(repr=False, compare=False)
    max_cost: int = field(compare=False)  # maximum cost on any device, in Kubernetes' units
    counted: bool = field(repr=False, compare=False)  # the cost is counted while it runs; else `max_cost` is taken for it
    reads: tuple[Read, ...] = field(repr=False, compare=False)  # devices with equal values of these get the same result

    def matches(self, device: CelDevice, meter: CostMeter | None = None) -> bool:
        """Evaluate on one device; EvaluationError when that fails."""
        result = self.value(device, meter)
        if result is True or result is False:
            return bool(result)
        raise EvaluationError(
            f"CEL result of type {values.type_name(result)} could not be converted to bool: "
            'end the expression with a comparison, such as == "x"'
        )

    def value(self, device: CelDevice, meter: CostMeter | None = None) -> Value:
        """The result on one device; of any type for an expression that is not a selector. It ends when the meter's cost is
        used up, too."""
        limit = LIMIT if meter is None else min(LIMIT, max(meter.left, 0))
        frame: Frame = [device, limit, *(None,) * self.slots]
        try:
            return self.run(frame)
        except OutOfBudget:
            raise EvaluationError(
                f"actual cost limit exceeded: the expression costs more than {LIMIT} on this device; "
                "loop over fewer items or nest fewer loops"
            ) from None
        except RecursionError:
            raise EvaluationError("the expression nests too deeply to be evaluated") from None
        finally:
            if meter is not None:
                meter.left -= limit - frame[BUDGET] if self.counted else self.max_cost


def compile_selector(text: str, *, features: CelFeatures = NEWEST, limit: int | None = LIMIT) -> Selector:
    """Compile a selector; Invalid names the position, the mistake and what would be right.

    `features` are the enabled ones; stored selectors are read with the newest. `limit` is the maximum estimated cost; None: no
    limit, and `matches` stops at the actual cost on a device."""
    selector = _compiled(text, features)
    if limit is not None and selector.max_cost > limit:
        raise _too_expensive(Source(text), selector.max_cost, limit)
    return selector


@lru_cache(maxsize=1024)
def _compiled(text: str, features: CelFeatures) -> Selector:
    """Cached, as the same few selectors are compiled for each admission and each claim."""
    size = len(text.encode(errors="surrogatepass"))
    if size > lexer.MAX_BYTES:
        message = f"the expression has {size} bytes; at most {lexer.MAX_BYTES} are allowed: split it into several selectors"
        raise errors.Invalid(message, [errors.Cause("expression", message, "FieldValueTooLong")])
    source = Source(text)
    tree = parser.parse(source)
    try:
        expanded = macro_expansion.expand(tree)
        checker.check(source, expanded, features)
        most = cost_estimate.estimate(expanded)
        counted = most > COUNTED
        compiler = Compiler(runtime_cost.by_place(expanded) if counted else None)
        run, reads = compiler.compile(tree), field_usage.reads(tree)
    except RecursionError:
        raise source.invalid(0, "the expression nests too deeply: take brackets away or split it") from None
    return Selector(text, tree, run, compiler.slots, most, counted, reads)


def _too_expensive(source: Source, most: int, limit: int) -> errors.Invalid:
    shown = str(most) if most < cost_estimate.MAX // 100 else "more than can be counted"
    message = (
        f"too complex, exceeds cost limit: the estimate is {shown}, the limit is {limit}. Loops cost the most: look a name up "
        'with device.attributes["domain"].name instead of looping over it, nest fewer loops, compare attributes with literals '
        "instead of with each other, and test with has(...) or in instead of type(...)"
    )
    return source.invalid(0, message)
