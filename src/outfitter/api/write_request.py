"""A write request as admission sees it, and its writer. The embedded backends of the store build these values for
every write; `api.admission` decides on them. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from outfitter.api.kinds import Kind, Object

Look = Callable[[Kind, str, str], Object | None]  # kind, namespace, name -> the object as the write will find it


class StoredObject(Protocol):
    """An object at a revision, which is read only when it is needed."""

    derived: Any  # what was read of it, for the next request; None: nothing yet

    def object(self) -> Object: ...


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
    indexed: Callable[[Kind, str], Iterable[StoredObject]] = field(
        default=lambda kind, value: ()
    )  # the objects of a kind with this value in its indexed field
    by: Writer = OURSELVES
