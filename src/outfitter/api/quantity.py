"""Kubernetes quantities as integers."""

from __future__ import annotations

import functools

from outfitter.cel.library import quantity
from outfitter.errors import Invalid


@functools.lru_cache(maxsize=1024)  # of VMs and nodes many have the same
def to_int(text: str) -> int:
    """ "2Gi" -> 2147483648, rounded up to a whole number."""
    try:
        amount = quantity.parse(text)
    except ValueError as error:
        raise Invalid(f"{text!r} is not a quantity: write a number with a unit, such as 512Mi or 2Gi") from error
    return -(-amount.nano // quantity.NANO)
