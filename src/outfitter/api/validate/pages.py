"""Pages of the ledger: one that somebody took away would leave its devices to other machines while the first ones have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.errors import Forbidden

FEW = 3


def deletable(page: Mapping[str, Any], *, host_known: bool) -> None:
    """Forbidden while anything stands on it, unless its host was given up."""
    name, bookings = page["metadata"]["name"], (page.get("spec") or {}).get("bookings") or ()
    if not bookings or not host_known:
        return
    raise Forbidden(f'ledgerpages.outfitter.dev "{name}" is forbidden: it says who holds what on {name}: {_names(bookings)}: '
                    "without it these devices would be given away twice. Delete the machines or claims first, or the node "
                    "if the host is gone for good")


def _names(bookings: Sequence[Mapping[str, Any]]) -> str:
    said = [f"{each['device']['device']} for {each['holder'].get('purpose') or each['holder']['name']}" for each in bookings]
    return ", ".join(said[:FEW]) + (f" and {len(said) - FEW} more" if len(said) > FEW else "")
