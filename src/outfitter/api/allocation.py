"""A claim's allocation: which devices were given, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def hosts(allocation: Mapping[str, Any]) -> set[str]:
    """The hosts on which everything that was given can be used: the one that the allocation names, else the pools of the
    devices, which are named after their hosts where nobody says otherwise."""
    if host := named(allocation):
        return {host}
    return {result["pool"] for result in (allocation.get("devices") or {}).get("results") or ()}


def host_of(allocation: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The host on whose page one of the devices stands."""
    return named(allocation) or str(result["pool"])


def named(allocation: Mapping[str, Any]) -> str | None:
    """The one host that an allocation is for, if it says so by name."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return None
