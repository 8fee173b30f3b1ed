"""How much of a device a request uses: its own number, turned into one that the device's policy allows.

Kubernetes reckons steps in whole numbers, or in thousandths where that is switched on; so do we, with the same limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.cel.library import quantity
from outfitter.cel.library.quantity import INT_MAX, NANO, Quantity
from outfitter.errors import Cause, Invalid, Unsatisfiable

MILLI = NANO // 1000
Amounts = Mapping[str, Quantity]  # capacity name -> how much


@dataclass(frozen=True, slots=True)
class Policy:
    default: Quantity | None  # what a request takes that does not say
    values: tuple[Quantity, ...]  # the amounts that can be had, ascending
    low: Quantity | None
    high: Quantity | None
    step: Quantity | None


@dataclass(frozen=True, slots=True)
class Capacity:
    value: Quantity
    policy: Policy | None  # None: any amount


def read(raw: Mapping[str, Any]) -> dict[str, Capacity]:
    """The capacity of one device of a slice. Invalid names the field that is wrong."""
    return {name: Capacity(number(entry.get("value"), f"capacity[{name}].value"), _policy(entry.get("requestPolicy"), name))
            for name, entry in raw.items()}


def number(text: Any, field: str) -> Quantity:
    try:
        return quantity.parse(str(text))
    except ValueError as error:
        raise Invalid(f"{field}: {error}", [Cause(field, str(error))]) from error


def _policy(raw: Mapping[str, Any] | None, name: str) -> Policy | None:
    if raw is None:
        return None
    where, span = f"capacity[{name}].requestPolicy", raw.get("validRange") or {}

    def one(holder: Mapping[str, Any], key: str) -> Quantity | None:
        return number(holder[key], f"{where}.{key}") if holder.get(key) is not None else None

    return Policy(one(raw, "default"), tuple(number(value, f"{where}.validValues") for value in raw.get("validValues") or ()),
                  one(span, "min"), one(span, "max"), one(span, "step"))


def resolve(asked: Amounts, has: Mapping[str, Capacity], driver: str) -> dict[str, Quantity] | None:
    """What is asked for, under the names that the device uses: a name without a domain is the driver's. None: the device
    does not have one of them."""
    out: dict[str, Quantity] = {}
    for name, amount in asked.items():
        domain, slash, short = name.rpartition("/")
        other = short if slash and domain == driver else f"{driver}/{name}" if not slash else name
        known = name if name in has else other
        if known not in has:
            return None
        if known in out:
            raise Unsatisfiable(f"capacity {short} is asked for twice, with and without the driver's name: leave one out")
        out[known] = amount
    return out


def share(asked: Amounts, has: Mapping[str, Capacity], driver: str, *, fractional: bool) -> dict[str, Quantity] | None:
    """What a request takes of each capacity of a device, or None where the device cannot give such amounts.

    Unsatisfiable for a number that no device could be asked for."""
    wanted = resolve(asked, has, driver)
    if wanted is None:
        return None
    out = {}
    for name, capacity in has.items():
        out[name] = amount = _taken(wanted.get(name), capacity, name, fractional)
        if amount.nano < 0:
            raise Unsatisfiable(f"capacity {name}: the amount {amount} is negative: ask for 0 or more")
    if any(_violates(out[name], capacity.policy, fractional) for name, capacity in has.items()):
        return None
    return out


def room(share: Amounts, held: Mapping[str, int], extra: Sequence[int], has: Mapping[str, Capacity]) -> bool:
    """A share fits besides what others hold, and what is taken in the attempt at hand (in the order of the share)."""
    return all(amount.nano + held.get(name, 0) + before <= has[name].value.nano
               for (name, amount), before in zip(share.items(), extra or (0,) * len(share), strict=True))


def _taken(wanted: Quantity | None, capacity: Capacity, name: str, fractional: bool) -> Quantity:
    policy = capacity.policy
    if wanted is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return wanted
    if policy.low is not None:
        return _stepped(wanted, policy, policy.low, name, fractional)
    return next((value for value in policy.values if wanted <= value), wanted)


def _stepped(wanted: Quantity, policy: Policy, low: Quantity, name: str, fractional: bool) -> Quantity:
    """The next amount of the range that is not below what is wanted."""
    if wanted < low:
        return low
    if policy.step is None:
        return wanted
    unit = _unit(policy, fractional)
    step, base = _units(policy.step, unit), _units(low, unit)
    if wanted.nano > INT_MAX * unit or (unit == MILLI and wanted.nano % MILLI):
        raise Unsatisfiable(f"capacity {name}: {wanted} cannot be represented in the steps of the device: ask for less")
    rounded = base + -(-(_units(wanted, unit) - base) // step) * step if step else base
    if rounded > INT_MAX:
        raise Unsatisfiable(f"capacity {name}: {wanted} rounded up to the next step cannot be represented: ask for less")
    return Quantity(rounded * unit, policy.step.format)


def _violates(amount: Quantity, policy: Policy | None, fractional: bool) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.low is None and policy.high is None and policy.step is None:
        return bool(policy.values) and amount not in policy.values
    if policy.high is not None and amount > policy.high:
        return True
    if policy.step is None:
        return False
    unit = _unit(policy, fractional)
    if unit == MILLI and amount.nano % MILLI:
        return True
    step = _units(policy.step, unit)
    return bool(step) and (_units(amount, unit) - _units(policy.low or quantity.from_int(0), unit)) % step != 0


def _unit(policy: Policy, fractional: bool) -> int:
    """Thousandths where they are switched on and every bound of the range is a number of them; else whole numbers."""
    bounds = [bound for bound in (policy.low, policy.high, policy.step) if bound is not None]
    fits = all(bound.nano % MILLI == 0 and abs(bound.nano) <= INT_MAX * MILLI for bound in bounds)
    return MILLI if fractional and fits and (policy.step is None or policy.step.nano >= MILLI) else NANO


def _units(amount: Quantity, unit: int) -> int:
    return -(-amount.nano // unit)
