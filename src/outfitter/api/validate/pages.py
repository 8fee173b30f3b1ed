"""Changes of a LedgerPage by users: they may change reservations and quarantine (`outfit device reserve`), but not remove
prepared bookings, since the device would be allocated to another VM while the first one still has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.booking import well_formed_bookings
from outfitter.errors import Cause, Forbidden

FEW = 3


def _prepared(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [booking for booking in well_formed_bookings(page) if booking["state"] == "prepared"]


def kept_bookings(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    remaining = _prepared(new)
    if lost := [booking for booking in _prepared(old) if booking not in remaining]:
        yield Cause("spec.bookings", f"Forbidden: {_words(lost)} is prepared: only Outfitter changes its booking; to free a "
                                     "device, delete the VM or the claim that holds it", "FieldValueForbidden")


def _words(bookings: Sequence[Mapping[str, Any]]) -> str:
    texts = [f"{booking['device']['device']} for {booking['holder'].get('purpose') or booking['holder']['name']}"
             for booking in bookings]
    return ", ".join(texts[:FEW]) + (f" and {len(texts) - FEW} more" if len(texts) > FEW else "")


def deletable(page: Mapping[str, Any], *, host_known: bool) -> None:
    """Forbidden: the page has prepared bookings, and its node still exists."""
    name, bookings = page["metadata"]["name"], _prepared(page)
    if not bookings or not host_known:
        return
    raise Forbidden(f'ledgerpages.outfitter.dev "{name}" is forbidden: it records prepared devices of {name}: '
                    f"{_words(bookings)}; without it they would be allocated twice. Delete the VMs "
                    f"or claims first, or the node if the host is gone for good")
