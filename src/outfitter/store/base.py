"""The store's interface: objects by kind, namespace and name, each at a revision. Values and Protocols only.

The only step that is atomic in every backend is replacing one object at the revision at which it was read. A backend that can
do more sets `atomic` and offers `commit` over several objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from outfitter.api.kinds import Kind, Object
from outfitter.api.write_request import WriteRequest

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
PatchType = Literal["merge", "json", "strategic"]
Propagation = Literal["Background", "Foreground", "Orphan"]
INITIAL_EVENTS_END = "k8s.io/initial-events-end"  # annotation of the bookmark after the objects of a streamed list


@dataclass(frozen=True, slots=True)
class Event:
    """One change. A BOOKMARK carries nothing but metadata.resourceVersion: every earlier change has been sent."""

    type: EventType
    object: Object


@dataclass(frozen=True, slots=True)
class Listing:
    items: list[Object]
    revision: str  # a watch from here misses nothing
    continue_: str = ""  # pass it to `list` for the next page of the same, consistent list
    remaining: int | None = None  # objects on later pages; None when the backend does not count them


@dataclass(frozen=True, slots=True)
class Create:
    kind: Kind
    object: Object
    uid: str = ""  # set when another write of the same commit refers to the object; otherwise the backend generates it


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace an object, or one subresource of it. A resourceVersion in it must be the current one; the second write of an
    object in one commit has none."""

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
    """Every call raises the errors of `outfitter.errors`; it has then written nothing, except perhaps after Unavailable."""

    atomic: bool  # this backend supports `commit`

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        """The object, as the caller's own copy. NotFound."""
        ...

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> Listing:
        """All objects at one revision, ordered by namespace and name; of all namespaces when none is given. Expired when the
        revision of a continued list was compacted."""
        ...

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        """AlreadyExists, Invalid, NotFound (the namespace). A resourceVersion in it is rejected and a status is
        ignored, as in Kubernetes."""
        ...

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        """Create an object that no other write depends on (an event) without waiting until it is durable. It becomes durable
        with the next write, and is lost when the process ends before that. Raises what `create` raises."""
        ...

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Conflict when metadata.resourceVersion is given and is not the current one. Without a subresource the stored
        status is kept; with subresource "status" only the status is replaced (for kinds that have one)."""
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
        """Change only the fields that the patch names. A metadata.resourceVersion in a merge patch is a precondition."""
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
        """The object as it was last; of one whose `uid` is given perhaps nothing but its name and uid. It may stay with a
        deletionTimestamp (finalizers, a pod's grace period)."""
        ...

    def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[Event]:
        """Every change after `since`, in order, until the caller stops or the backend ends the stream (then watch again from
        the last revision seen). Expired when `since` was compacted: list again."""
        ...

    async def commit(self, writes: Sequence[Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        """All of the writes or none, durable and visible together. Returns the object after each write, None for Delete and
        Check. Only where `atomic`."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class StreamingStore(Protocol):
    """A backend whose server may send a list as events: neither it nor the client has to hold the list as one answer."""

    async def stream_list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Event] | None:
        """Every object as ADDED, then a BOOKMARK with the annotation INITIAL_EVENTS_END at the revision of the list, then the
        changes after it, as `watch` sends them. None: the server does not do this; list, then watch."""
        ...


class Rules(Protocol):
    """Admission and deletion rules that an embedded backend applies to every write. The app passes them in
    (`api.admission.AdmissionRules`); a real API server has its own."""

    def admit(self, change: WriteRequest) -> Object:
        """The object to store (defaults filled in), or Invalid / Forbidden / NotFound. Must not modify `change.old`."""
        ...

    def fills_in(self, kind: Kind) -> bool:
        """Whether `admit` may change objects of a kind."""
        ...

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        """Grace period of a deleted object in seconds; 0: it is removed at once. `asked` is the gracePeriodSeconds of the
        request, None when it has none."""
        ...

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        """Whether something besides metadata.finalizers keeps a deleted object (spec.finalizers of a namespace)."""
        ...
