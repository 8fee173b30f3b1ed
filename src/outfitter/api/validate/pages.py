"""Pages of the ledger, as far as people may change them: marks are theirs (`outfit device reserve`), bookings are not. One that
somebody took away would leave its device to another machine while the first one still has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.errors import Cause, Forbidden

FEW = 3


def same_bookings(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    if ((new.get("spec") or {}).get("bookings") or []) != ((old.get("spec") or {}).get("bookings") or []):
        yield Cause("spec.bookings", "Forbidden: bookings are written by outfitter alone, with what happens to machines and "
                                     "claims; to free a device, delete the machine or the claim that holds it",
                    "FieldValueForbidden")


def deletable(page: Mapping[str, Any], *, host_known: bool) -> None:
    """Forbidden while anything stands on it, unless its host was given up."""
    name, bookings = page["metadata"]["name"], (page.get("spec") or {}).get("bookings") or ()
    if not bookings or not host_known:
        return
    said = [f"{each['device']['device']} for {each['holder'].get('purpose') or each['holder']['name']}" for each in bookings]
    more = f" and {len(said) - FEW} more" if len(said) > FEW else ""
    raise Forbidden(f'ledgerpages.outfitter.dev "{name}" is forbidden: it says who holds what on {name}: '
                    f"{', '.join(said[:FEW])}{more}; without it these devices would be given away twice. Delete the machines "
                    f"or claims first, or the node if the host is gone for good")
