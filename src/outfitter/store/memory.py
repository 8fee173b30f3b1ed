"""The home in memory: all the manners of an API server's storage, and nothing on disk.

A write is worked out as a `Draft` against the newest state, including writes that are still on their way to the disk; it
is seen by readers and watchers only when it is safe. Here that is at once; `sqlite` waits for its journal."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from outfitter.api import patch as patches
from outfitter.api import write_request
from outfitter.api.kinds import Kind, Object
from outfitter.errors import AlreadyExists, BadRequest, Cause, Conflict, Expired, Invalid, NotFound, OutfitterError, Unsupported
from outfitter.store import base
from outfitter.store.clock import Clock, SystemClock, rfc3339
from outfitter.store.id_generator import IdGenerator
from outfitter.store.watch_cache import Key, ObjectChange, Record, Selection, WatchCache, Watcher, own_copy

T = TypeVar("T")
ShelfName = tuple[str, str]  # group, plural
PROPAGATION: Mapping[base.Propagation, str] = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


class OpenRules:
    """No rules: everything is admitted, nothing lingers."""

    def admit(self, change: write_request.WriteRequest) -> Object:
        return change.new

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        return 0

    def holds(self, kind: Kind, obj: Object) -> bool:
        return False


class Memory:
    """Objects in memory. Reads give what is committed; every write goes through `write`."""

    atomic = True

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        names: IdGenerator | None = None,
        rules: base.Rules | None = None,
        keep: int = 8192,
        keep_bytes: int = 64 << 20,
        revision: int = 0,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.names = names or IdGenerator()
        self.rules: base.Rules = rules or OpenRules()
        self.revision = revision  # of the newest change that readers can see
        self._issued = revision  # the highest revision given to a write
        self._keep, self._keep_bytes = keep, keep_bytes
        self._floor = revision  # nothing before this is known
        self._shelves: dict[ShelfName, WatchCache] = {}
        self._closed = False

    # -- reading

    def shelf(self, kind: Kind) -> WatchCache:
        name = (kind.group, kind.plural)
        if name not in self._shelves:
            self._shelves[name] = WatchCache(kind, self._floor, self._keep, self._keep_bytes)
        return self._shelves[name]

    def peek(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        """The committed record, without waiting and without a copy."""
        return self.shelf(kind).records.get((namespace if kind.namespaced else "", name))

    def latest(self, kind: Kind, name: str, namespace: str = "") -> Record | None:
        """The newest record, committed or on its way."""
        return self.peek(kind, name, namespace)

    def newest(self, kind: Kind) -> dict[Key, Record]:
        """Every newest record of a kind, committed or on its way."""
        return dict(self.shelf(kind).records)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return self.record(kind, name, namespace).object()

    def record(self, kind: Kind, name: str, namespace: str = "") -> Record:
        record = self.peek(kind, name, namespace)
        if record is None:
            raise missing(kind, name)
        return record

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> base.Listing:
        selection = Selection(kind, namespace, labels, fields)
        records, revision, more, left = self.slice(kind, selection, limit=limit, continue_=continue_)
        return base.Listing([record.object() for record in records], str(revision), more, left)

    def slice(
        self, kind: Kind, selection: Selection, *, limit: int = 0, continue_: str = "", at: int | None = None
    ) -> tuple[Sequence[Record], int, str, int | None]:
        """Part of a list as records: the records, the revision of the whole, the token for the rest, how many are left."""
        shelf, start = self.shelf(kind), None
        if continue_:
            at, start = _continued(continue_)
        if at is not None and (at < shelf.compacted or at > self.revision):
            raise Expired(
                "The provided continue parameter is too old to display a consistent list result: list again without it"
                if continue_
                else f"too old resource version: {at} ({shelf.compacted})"
            )
        revision = self.revision if at is None else at
        found = [record for record in shelf.at(revision, selection.namespace, start) if record in selection]
        if not limit or len(found) <= limit:
            return found, revision, "", None
        page = found[:limit]
        token = msgspec.json.encode({"rv": revision, "start": page[-1].key})
        return page, revision, base64.urlsafe_b64encode(token).decode(), len(found) - limit

    def follow(self, kind: Kind, selection: Selection, since: int) -> Watcher:
        """A watch as a position to read from. Expired when the log does not reach back that far, or when `since` lies in the
        future (the data is older than what the caller saw: a restored backup)."""
        shelf = self.shelf(kind)
        if since < shelf.compacted or since > self.revision:
            raise Expired(f"too old resource version: {since} ({max(shelf.compacted, self.revision)})")
        return Watcher(shelf, selection, since)

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncIterator[base.Event]:
        watcher = self.follow(kind, Selection(kind, namespace, labels, fields), revision_number(since))
        due = asyncio.Event()
        bell = asyncio.create_task(self._ring(watcher, due)) if bookmarks else None
        try:
            while not watcher.ended:
                steps = await watcher.next()
                if watcher.lost:
                    raise Expired("the watcher was too slow and lost its place: list again")
                told = max(watcher.revision, self.revision)  # now: while the steps are handed out, more may happen
                for type_, step in steps:
                    yield base.Event(type_, step.object(type_))
                if due.is_set() and not watcher.ended:
                    due.clear()
                    yield base.Event("BOOKMARK", bookmark(kind, told))
        finally:
            watcher.close()
            if bell is not None:
                bell.cancel()

    async def _ring(self, watcher: Watcher, due: asyncio.Event, every: float = 60.0) -> None:
        while True:
            await self.clock.sleep(every)
            due.set()
            watcher.wake()

    # -- writing

    async def write(
        self, work: Callable[[Draft], T], *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES
    ) -> T:
        """Work out changes against the newest state, then make all of them at once. Whatever `work` raises, nothing
        happened. `work` must not wait."""
        draft = Draft(self, self._issued, dry_run=dry_run, by=by)
        try:
            result = work(draft)
        except OutfitterError:
            await self._settled()  # it may stand on a write that is not safe yet
            raise
        if dry_run or not draft.steps:
            await self._settled()
            return result
        if (safe := self._begin(draft)) is not None:
            await safe
        return result

    async def _settled(self) -> None:
        """Wait until all that `latest` shows is safe."""

    def _begin(self, draft: Draft) -> asyncio.Future[None] | None:
        """Make its changes; what to wait for until they are safe."""
        self._issued = draft.revision
        return self._persist(draft.steps)

    def _persist(self, steps: Sequence[ObjectChange]) -> asyncio.Future[None] | None:
        self._publish(steps)
        return None

    @property
    def busy(self) -> bool:
        """Something is not safe yet."""
        return False

    def _publish(self, steps: Sequence[ObjectChange]) -> None:
        touched: dict[ShelfName, None] = {}
        for step in steps:
            record = step.next or step.previous
            assert record is not None
            self.shelf(record.kind).publish(step)
            touched[record.kind.group, record.kind.plural] = None
            self.revision = step.revision
        for name in touched:
            for watcher in self._shelves[name].watchers:
                watcher.wake()

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        return (await self.write(lambda draft: draft.create(kind, obj), dry_run=dry_run)).object()

    async def jot(self, kind: Kind, obj: Object) -> None:
        await self.create(kind, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        return (await self.write(lambda draft: draft.replace(kind, obj, subresource), dry_run=dry_run)).object()

    async def patch(
        self,
        kind: Kind,
        name: str,
        patch: Any,
        namespace: str = "",
        *,
        how: base.PatchType = "merge",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        record = await self.write(
            lambda draft: draft.change(kind, name, namespace, lambda old: patched(kind, old, patch, how), subresource),
            dry_run=dry_run,
        )
        return record.object()

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        revision: str | None = None,
        propagation: base.Propagation | None = None,
        grace: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        record, _ = await self.write(
            lambda draft: draft.delete(kind, name, namespace, uid=uid, revision=revision, propagation=propagation, grace=grace),
            dry_run=dry_run,
        )
        return record.object()

    async def commit(self, writes: Sequence[base.Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        def work(draft: Draft) -> Sequence[Record | None]:
            return [draft.apply(write) for write in writes]

        return [record.object() if record else None for record in await self.write(work, dry_run=dry_run)]

    async def close(self) -> None:
        self._closed = True
        for shelf in self._shelves.values():
            for watcher in list(shelf.watchers):
                watcher.end()


class Draft:
    """Changes being worked out: reads see the newest state with these changes in it."""

    def __init__(
        self, store: Memory, issued: int, *, dry_run: bool = False, by: write_request.Writer = write_request.OURSELVES
    ) -> None:
        self._store, self._dry_run, self._by = store, dry_run, by
        self._overlay: dict[tuple[Kind, str, str], Record | None] = {}
        self.revision = self._issued = issued
        self.steps: list[ObjectChange] = []

    def find(self, kind: Kind, name: str, namespace: str) -> Record | None:
        place = (kind, namespace, name)
        if place in self._overlay:
            return self._overlay[place]
        return self._store.latest(kind, name, namespace)

    def look(self, kind: Kind, namespace: str, name: str) -> Object | None:
        record = self.find(kind, name, namespace)
        return record.object() if record else None

    def every(self, kind: Kind) -> list[Object]:
        found: dict[Key, Record | None] = {**self._store.newest(kind)}
        found |= {(namespace, name): record for (its, namespace, name), record in self._overlay.items() if its == kind}
        return [record.object() for record in found.values() if record is not None]

    def _admit(self, verb: Literal["create", "update", "delete"], kind: Kind, new: Object, old: Object | None,
               subresource: str = "") -> Object:
        change = write_request.WriteRequest(verb, kind, new, old, subresource, self.look, self.every, self._by)
        return self._store.rules.admit(change)

    def need(self, kind: Kind, name: str, namespace: str) -> Record:
        record = self.find(kind, name, namespace)
        if record is None:
            raise missing(kind, name)
        return record

    def apply(self, write: base.Write) -> Record | None:
        match write:
            case base.Create(kind, obj, uid):
                return self.create(kind, obj, uid)
            case base.Replace(kind, obj, subresource):
                return self.replace(kind, obj, subresource)
            case base.Delete(kind, name, namespace, revision, uid):
                self.delete(kind, name, namespace, revision=revision, uid=uid)
                return None
            case base.Check(kind, name, namespace, revision):
                record = self.find(kind, name, namespace)
                if (str(record.revision) if record else "") != revision:
                    raise Conflict(f'{kind.resource} "{name}" was expected at revision {revision or "none"} and is at '
                                   f"{record.revision if record else 'none'}: read again and retry")
                return None

    def create(self, kind: Kind, obj: Object, uid: str = "") -> Record:
        new = own_copy(obj)
        meta = new.setdefault("metadata", {})
        new.setdefault("apiVersion", kind.api_version)
        new.setdefault("kind", kind.kind)
        if meta.get("resourceVersion"):
            raise BadRequest("resourceVersion should not be set on objects to be created")
        for field in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            meta.pop(field, None)
        if not kind.namespaced:
            meta.pop("namespace", None)
        elif not meta.get("namespace"):
            raise required(kind, meta.get("name", ""), "metadata.namespace", f"a {kind.kind} lives in a namespace; name it")
        self._name(kind, meta)
        meta["uid"] = uid or self._store.names.uid()
        meta["creationTimestamp"] = rfc3339(self._store.clock.now())
        if kind.counts_generations:
            meta["generation"] = 1
        if kind.has_status and not kind.status_at_create:
            new.pop("status", None)
        if self.find(kind, meta["name"], meta.get("namespace", "")) is not None:
            raise AlreadyExists(f'{kind.resource} "{meta["name"]}" already exists')
        new = self._admit("create", kind, new, None)
        return self._put(kind, new, None)

    def _name(self, kind: Kind, meta: dict[str, Any]) -> None:
        if meta.get("name"):
            return
        prefix = meta.get("generateName")
        if not prefix:
            raise required(kind, "", "metadata.name", "name or generateName is required")
        for _ in range(8):
            meta["name"] = prefix[:58] + self._store.names.suffix()
            if self.find(kind, meta["name"], meta.get("namespace", "")) is None:
                return

    def replace(self, kind: Kind, obj: Object, subresource: str = "") -> Record:
        meta = obj.get("metadata") or {}
        if not meta.get("name"):
            raise BadRequest("metadata.name: the object to replace has no name")
        if not meta.get("resourceVersion") and not kind.builtin:
            message = "Invalid value: 0: must be specified for an update"
            raise Invalid(f'{kind.resource} "{meta["name"]}" is invalid: metadata.resourceVersion: {message}',
                          [Cause("metadata.resourceVersion", message)])
        return self.change(kind, meta["name"], meta.get("namespace", ""), lambda _: own_copy(obj), subresource)

    def change(
        self, kind: Kind, name: str, namespace: str, make: Callable[[Object], Object], subresource: str = ""
    ) -> Record:
        """Replace an object by what `make` makes of it."""
        if subresource == "status" and not kind.has_status:
            raise NotFound(f"{kind.resource} have no status of their own to write; write the object")
        record = self.need(kind, name, namespace if kind.namespaced else "")
        old = record.object()
        new = make(old if subresource == "status" else record.object())
        self._check_identity(kind, record, old, new)
        if subresource == "status":  # the rest is the very same: nobody has to look at it again
            new = {**old, "metadata": dict(old["metadata"]), "status": new.get("status")}
            if new["status"] is None:
                del new["status"]
        elif not subresource and kind.has_status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = record.object()["status"]
        new = self._admit("update", kind, new, old, subresource)
        meta = new["metadata"]
        if patches.same(new, old):
            return record
        if kind.counts_generations and subresource != "status" and not patches.same(_content(new), _content(old)):
            meta["generation"] = old["metadata"].get("generation", 0) + 1
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or self._store.rules.holds(kind, new)
        if meta.get("deletionTimestamp") and not held:
            return self._remove(kind, new, record)
        return self._put(kind, new, record)

    def _check_identity(self, kind: Kind, record: Record, old: Object, new: Object) -> None:
        was, meta = old["metadata"], new.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise BadRequest(f'{kind.resource} "{record.key[1]}": metadata: it is an object, not {type(meta).__name__}')
        new.setdefault("apiVersion", old["apiVersion"])
        new.setdefault("kind", old["kind"])
        if meta.get("resourceVersion") and meta["resourceVersion"] != was["resourceVersion"]:
            raise stale(kind, record.key[1])
        if meta.get("uid") and meta["uid"] != was["uid"]:
            raise Conflict(f'Operation cannot be fulfilled on {kind.resource} "{record.key[1]}": Precondition failed: UID in '
                           f"precondition: {meta['uid']}, UID in object meta: {was['uid']}")
        causes = [
            Cause(f"metadata.{field}", f'Invalid value: "{meta[field]}": field is immutable; it is "{was.get(field, "")}"')
            for field in ("name", "namespace", "creationTimestamp")
            if meta.get(field) and meta[field] != was.get(field)
        ]
        finalizers = meta.get("finalizers") if was.get("deletionTimestamp") else None
        if isinstance(finalizers, list) and (late := [one for one in finalizers if one not in (was.get("finalizers") or ())]):
            message = f"Forbidden: no new finalizers can be added if the object is being deleted, found new: {late}"
            causes.append(Cause("metadata.finalizers", message, "FieldValueForbidden"))
        if causes:
            raise Invalid(f'{kind.resource} "{record.key[1]}" is invalid: {causes[0].field}: {causes[0].message}', causes)
        for field in ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion",
                      "deletionTimestamp", "deletionGracePeriodSeconds"):
            if field in was:
                meta[field] = was[field]
            else:
                meta.pop(field, None)

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        revision: str | None = None,
        propagation: base.Propagation | None = None,
        grace: int | None = None,
    ) -> tuple[Record, bool]:
        """The record as it was last, and whether it is gone (or lingers)."""
        record = self.need(kind, name, namespace if kind.namespaced else "")
        if uid and uid != record.uid:
            raise Conflict(f'Precondition failed: UID in precondition: {uid}, UID in object meta: {record.uid}')
        if revision and revision != str(record.revision):
            raise Conflict(f"Precondition failed: ResourceVersion in precondition: {revision}, ResourceVersion in object "
                           f"meta: {record.revision}")
        obj = self._admit("delete", kind, record.object(), record.object())
        meta = obj["metadata"]
        finalizers = list(meta.get("finalizers") or [])
        if propagation:  # the last word counts
            finalizers = [finalizer for finalizer in finalizers if finalizer not in PROPAGATION.values()]
            finalizers += [PROPAGATION[propagation]] if propagation in PROPAGATION else []
        seconds = self._store.rules.grace(kind, obj, grace)
        if not finalizers and not seconds and not self._store.rules.holds(kind, obj):
            return self._remove(kind, obj, record), True
        lingering = meta.get("deletionTimestamp")
        if lingering and finalizers == meta.get("finalizers", []) and seconds >= meta.get("deletionGracePeriodSeconds", 0):
            return record, False
        meta["finalizers"] = finalizers
        if not finalizers:
            del meta["finalizers"]
        if not lingering:
            meta["deletionTimestamp"] = rfc3339(self._store.clock.now())
            if kind.counts_generations:
                meta["generation"] = meta.get("generation", 0) + 1
        meta["deletionGracePeriodSeconds"] = seconds
        return self._put(kind, obj, record), False

    def _put(self, kind: Kind, obj: Object, previous: Record | None) -> Record:
        record = self._record(kind, obj, previous)
        self._overlay[(kind, *record.key)] = record
        self.steps.append(ObjectChange(self._before(previous), record))
        return record

    def _before(self, previous: Record | None) -> Record | None:
        """What an object was before this draft. Several writes of it in one commit (the object, then its status) are one
        change: nobody could have seen it in between."""
        if previous is not None and previous.revision > self._issued:
            for place in reversed(range(len(self.steps))):
                if self.steps[place].next is previous:
                    return self.steps.pop(place).previous
        return previous

    def _remove(self, kind: Kind, obj: Object, previous: Record) -> Record:
        record = self._record(kind, obj, previous)
        self._overlay[(kind, *record.key)] = None
        self.steps.append(ObjectChange(previous, record, gone=True))
        return record

    def _record(self, kind: Kind, obj: Object, previous: Record | None) -> Record:
        if self._dry_run:  # the next number will be somebody else's
            return Record(kind, obj, previous.revision if previous else 0)
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        return Record(kind, obj, self.revision)


def _content(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def patched(kind: Kind, old: Object, patch: Any, how: base.PatchType) -> Object:
    if how == "json":
        return patches.json(old, patch)
    if how == "strategic" and not kind.builtin:
        raise Unsupported(f"{kind.resource} take no strategic merge patch, as Kubernetes knows no merge keys of theirs; "
                          "send a merge or a JSON patch")
    if not isinstance(patch, dict):
        raise BadRequest(f"a {how} patch is an object, not {type(patch).__name__}")
    return patches.strategic(old, patch) if how == "strategic" else patches.merge(old, patch)  # type: ignore[no-any-return]


def required(kind: Kind, name: str, field: str, why: str) -> Invalid:
    message = f"Required value: {why}"
    return Invalid(f'{kind.kind}{"." + kind.group if kind.group else ""} "{name}" is invalid: {field}: {message}',
                   [Cause(field, message, "FieldValueRequired")])


def missing(kind: Kind, name: str) -> NotFound:
    return NotFound(f'{kind.resource} "{name}" not found')


def stale(kind: Kind, name: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {kind.resource} "{name}": the object has been modified; please apply '
                    "your changes to the latest version and try again")


def revision_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise BadRequest(f"resourceVersion: Invalid value: {text!r}: it is the number that an earlier answer carried")
    return int(text)


def bookmark(kind: Kind, revision: int) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind,
            "metadata": {"resourceVersion": str(revision), "creationTimestamp": None}}


def _continued(token: str) -> tuple[int, tuple[str, str]]:
    try:
        value = msgspec.json.decode(base64.urlsafe_b64decode(token.encode()))
        namespace, name = value["start"]
        return int(value["rv"]), (str(namespace), str(name))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"continue key is not valid: {token!r} did not come from a list") from error
