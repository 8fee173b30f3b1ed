"""Pages of the ledger, as far as people may change them: marks are theirs (`outfit device reserve`), what a host handed over
is not. Without its booking a device would go to another machine while the first one still has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.errors import Cause, Forbidden

FEW = 3


def _handed_over(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in (page.get("spec") or {}).get("bookings") or () if each["state"] == "prepared"]


def kept_bookings(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    now = _handed_over(new)
    if lost := [each for each in _handed_over(old) if each not in now]:
        yield Cause("spec.bookings", f"Forbidden: {_words(lost)} was handed over: its booking is outfitter's own; to free a "
                                     "device, delete the machine or the claim that holds it", "FieldValueForbidden")


def _words(bookings: Sequence[Mapping[str, Any]]) -> str:
    said = [f"{each['device']['device']} for {each['holder'].get('purpose') or each['holder']['name']}" for each in bookings]
    return ", ".join(said[:FEW]) + (f" and {len(said) - FEW} more" if len(said) > FEW else "")


def deletable(page: Mapping[str, Any], *, host_known: bool) -> None:
    """Forbidden while anything is handed over, unless its host was given up."""
    name, bookings = page["metadata"]["name"], _handed_over(page)
    if not bookings or not host_known:
        return
    raise Forbidden(f'ledgerpages.outfitter.dev "{name}" is forbidden: it says who holds what on {name}: '
                    f"{_words(bookings)}; without it these devices would be given away twice. Delete the machines "
                    f"or claims first, or the node if the host is gone for good")
