"""Checks bookings against published limits: capacity of shared devices, and shared counters of pools. Called by `page.Page`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.booking import Booking, Limits
from outfitter.cel.library import quantity
from outfitter.cel.library.quantity import Quantity
from outfitter.errors import AlreadyHeld, Cause, Invalid, Unsatisfiable

NOTHING = quantity.from_int(0)


def check_shares(fresh: Sequence[Booking], there: Mapping[DeviceId, Sequence[Booking]], limits: Limits) -> None:
    """Checks that each device has capacity for all bookings on it (`there`, which includes `fresh`). AlreadyHeld names the
    other holders, Unsatisfiable what is not published."""
    shares = [booking for booking in fresh if booking.shared]
    for device in dict.fromkeys(booking.device for booking in shares):
        if device not in limits.capacity:
            raise Unsatisfiable(f"{device.short} cannot be shared: it publishes no capacity")
        _fits(
            device.short,
            there[device],
            [share for share in shares if share.device == device],
            _capacity,
            limits.capacity[device],
        )


def check_counters(fresh: Sequence[Booking], before: Sequence[Booking], limits: Limits) -> None:
    """Checks the shared counters of pools for `before` and `fresh` together. Errors as of `check_shares`."""
    pools = dict.fromkeys((booking.device.driver, booking.device.pool, name) for booking in fresh if booking.counted
                          for name in _sets(booking))
    all_bookings = [*before, *fresh] if pools else []
    for driver, pool, name in pools:
        def uses(booking: Booking, at: tuple[str, str, str] = (driver, pool, name)) -> Mapping[str, Any]:
            device = booking.device
            return (_sets(booking).get(at[2]) or {}) if (device.driver, device.pool) == at[:2] else {}

        _fits(f"counter set {name} of {pool}", all_bookings, fresh, uses, limits.counters.get((driver, pool, name), {}))


def _capacity(booking: Booking) -> Mapping[str, Any]:
    return (booking.amount.get("capacity") or {}) if booking.shared else {}


def _sets(booking: Booking) -> Mapping[str, Any]:
    return booking.amount.get("counters") or {}


def _fits(what: str, all_bookings: Sequence[Booking], fresh: Sequence[Booking], uses: Callable[[Booking], Mapping[str, Any]],
          limits: Mapping[str, str]) -> None:
    """Checks the total use of `all_bookings`, which include `fresh`, against the limits."""
    for name in dict.fromkeys(name for booking in fresh for name in uses(booking)):
        if name not in limits:
            raise Unsatisfiable(f"{name} of {what} is not published")
        limit = _amount(limits[name], f"the published {name} of {what}")
        total, wanted = (_sum(bookings, uses, name, what) for bookings in (all_bookings, fresh))
        if wanted > limit:
            raise Unsatisfiable(f"{name} of {what}: {wanted} wanted and {limit} published")
        if total > limit:
            asking = {booking.key for booking in fresh}
            others = [booking for booking in all_bookings if booking.key not in asking and name in uses(booking)]
            left = max(limit - (total - wanted), NOTHING)
            raise AlreadyHeld(f"{name} of {what}: {wanted} wanted and {left} of {limit} left; the rest",
                              by=", ".join(dict.fromkeys(str(booking.holder) for booking in others)),
                              since=min(booking.since for booking in others))


def _sum(bookings: Iterable[Booking], uses: Callable[[Booking], Mapping[str, Any]], name: str, what: str) -> Quantity:
    parts = [_amount(used[name], f"{name} of {what} for {booking.holder}")
             for booking in bookings if name in (used := uses(booking))]
    return sum(parts, NOTHING)


def _amount(text: Any, what: str) -> Quantity:
    """A quantity of zero or more. Invalid: `what` names it."""
    try:
        value = quantity.parse(str(text))
    except ValueError as error:
        raise Invalid(f"{what}: {error}", [Cause("amount", f"Invalid value: {error}")]) from error
    if value < NOTHING:
        message = f"Invalid value: {text}: must be at least 0"
        raise Invalid(f"{what}: {message}", [Cause("amount", message)])
    return value
