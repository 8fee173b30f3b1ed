"""The store as everybody sees it: objects by kind, namespace and name, each at a revision.

The only step that is atomic in every home is replacing one object at the revision at which it was read. A home that can do
more says so (`atomic`) and offers `commit` over several objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from outfitter.api.kinds import Kind, Object
from outfitter.api.write_request import WriteRequest

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
PatchType = Literal["merge", "json", "strategic"]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Event:
    """One change. A BOOKMARK carries nothing but metadata.resourceVersion: all before it has been sent."""

    type: EventType
    object: Object


@dataclass(frozen=True, slots=True)
class Listing:
    items: list[Object]
    revision: str  # a watch from here misses nothing
    continue_: str = ""  # hand it in again for the next part of the same, consistent list
    remaining: int | None = None  # how many are left; None when the home does not say


@dataclass(frozen=True, slots=True)
class Create:
    kind: Kind
    object: Object
    uid: str = ""  # chosen by whoever has to name it elsewhere in the same commit; else the home chooses


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace an object, or one subresource of it. A resourceVersion in it must be the present one."""

    kind: Kind
    object: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    kind: Kind
    name: str
    namespace: str = ""
    revision: str | None = None
    uid: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Writes nothing: the whole commit fails with Conflict unless the object is still at this revision. An empty revision
    means that the object must not exist."""

    kind: Kind
    name: str
    namespace: str
    revision: str


Write = Create | Replace | Delete | Check


class Store(Protocol):
    """Every call raises the errors of `outfitter.errors` and, but for Unavailable, has then written nothing."""

    atomic: bool  # `commit` works here

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        """The object, as the caller's own copy. NotFound."""
        ...

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> Listing:
        """All objects at one revision, in order of namespace and name; every namespace when none is given. Expired when a
        continued list is no longer kept."""
        ...

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        """AlreadyExists, Invalid, NotFound (the namespace). Any resourceVersion and status in it are refused or ignored as
        Kubernetes does."""
        ...

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        """Create something that nobody builds on (an event) without waiting until it is safe: it becomes so with the next write
        that somebody waits for, and may be lost if the process ends before. Rejected as `create` rejects."""
        ...

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Conflict when metadata.resourceVersion is given and is not the present one. Without a subresource the stored
        status stays, with subresource "status" all but the status stays (for kinds that have one)."""
        ...

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Any,
        namespace: str = "",
        *,
        how: PatchType = "merge",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Change what the patch names and nothing else. A metadata.resourceVersion in a merge patch is a precondition."""
        ...

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        revision: str | None = None,
        propagation: Propagation | None = None,
        grace: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """The object as it was last seen. It may linger with a deletionTimestamp (finalizers, a pod's grace)."""
        ...

    def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[Event]:
        """Every change after `since`, in order, until the caller stops or the home ends the stream (then watch again from the
        last revision seen). Expired when `since` is no longer kept: list again."""
        ...

    async def commit(self, writes: Sequence[Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        """All of the writes or none, durable and visible together; the object after each write, None for Delete of a whole
        object and Check. Only where `atomic`."""
        ...

    async def close(self) -> None: ...


class Rules(Protocol):
    """What a home that keeps the objects itself asks before it writes: the nouns' own knowledge, handed in by the app, so
    that every writer passes the same door. A real API server has its own."""

    def admit(self, change: WriteRequest) -> Object:
        """The object to store (defaults filled in), or Invalid / Forbidden / NotFound. Must not change its arguments' `old`."""
        ...

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        """How many seconds a deleted object lingers for somebody to let go of it; 0: it goes at once."""
        ...

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        """Something besides metadata.finalizers keeps a deleted object (a namespace's own finalizers)."""
        ...
