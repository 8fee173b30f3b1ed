"""A write request as admission sees it, and its writer. The embedded backends of the store build these values for
every write; `api.admission` decides on them. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from outfitter.api.kinds import Kind, Object

Look = Callable[[Kind, str, str], Object | None]  # kind, namespace, name -> the object as the write will find it


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and where admission warnings go."""

    user: str = ""  # the authenticated user; "" for our own controllers
    warn: Callable[[str], None] | None = None  # None: warnings are dropped


OURSELVES = Writer()


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One create, update or delete of one object."""

    verb: Literal["create", "update", "delete"]
    kind: Kind
    new: Object  # the object to store; for delete: the object to delete
    old: Object | None
    subresource: str = ""
    look: Look = field(default=lambda kind, namespace, name: None)
    every: Callable[[Kind], Iterable[Object]] = field(
        default=lambda kind: ()
    )  # all objects of a kind; for kinds with few objects
    by: Writer = OURSELVES
