"""A transaction of an embedded backend: computes the changes of one write against the newest state.

Applies what every write in Kubernetes obeys: names and generateName, uid, resourceVersion, generation, immutable metadata,
finalizers, grace periods, the status subresource, admission. Writes nothing itself: `memory.Memory.write` creates it and
persists `changes`. Called by `memory`, `sqlite` and, for subresources, by the embedded API server. No I/O, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from outfitter.api import patch as patches
from outfitter.api import write_request
from outfitter.api.kinds import Kind, Object
from outfitter.errors import AlreadyExists, BadRequest, Cause, Conflict, Invalid, NotFound, Unsupported
from outfitter.store import base, server_metadata, unchanged_parts
from outfitter.store.clock import Clock, rfc3339
from outfitter.store.id_generator import IdGenerator
from outfitter.store.watch_cache import Key, ObjectChange, Record, own_copy

PROPAGATION: Mapping[base.Propagation, str] = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


class TransactionBackend(Protocol):
    """What a transaction reads of its backend. "Latest" includes writes that are accepted and not yet durable."""

    clock: Clock
    names: IdGenerator
    rules: base.Rules

    def latest_record(self, kind: Kind, name: str, namespace: str = "") -> Record | None: ...

    def latest_records(self, kind: Kind) -> dict[Key, Record]: ...

    def latest_indexed(self, kind: Kind, value: str) -> dict[Key, Record]: ...


class Transaction:
    """The changes of one write. Reads see the newest state with these changes applied."""

    def __init__(
        self,
        store: TransactionBackend,
        issued: int,
        *,
        dry_run: bool = False,
        by: write_request.Writer = write_request.OURSELVES,
    ) -> None:
        self._store, self._dry_run, self._by = store, dry_run, by
        self._overlay: dict[tuple[Kind, str, str], Record | None] = {}
        self.revision = self._issued = issued
        self.changes: list[ObjectChange] = []

    def find(self, kind: Kind, name: str, namespace: str) -> Record | None:
        slot = (kind, namespace, name)
        if slot in self._overlay:
            return self._overlay[slot]
        return self._store.latest_record(kind, name, namespace)

    def get_object(self, kind: Kind, namespace: str, name: str) -> Object | None:
        record = self.find(kind, name, namespace)
        return record.object() if record else None

    def list_objects(self, kind: Kind) -> list[Object]:
        records: dict[Key, Record | None] = {**self._store.latest_records(kind)}
        records |= {(namespace, name): record for (its, namespace, name), record in self._overlay.items() if its == kind}
        return [record.object() for record in records.values() if record is not None]

    def indexed_records(self, kind: Kind, value: str) -> list[Record]:
        """The records with this value in the kind's indexed field."""
        records: dict[Key, Record | None] = {**self._store.latest_indexed(kind, value)}
        records |= {(namespace, name): record for (its, namespace, name), record in self._overlay.items() if its == kind}
        return [record for record in records.values() if record is not None and record.indexed == value]

    def _admit(self, verb: Literal["create", "update", "delete"], kind: Kind, new: Object, old: Object | None,
               subresource: str = "") -> Object:
        change = write_request.WriteRequest(
            verb, kind, new, old, subresource, self.get_object, self.list_objects, self.indexed_records, self._by)
        return self._store.rules.admit(change)

    def require(self, kind: Kind, name: str, namespace: str) -> Record:
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
        new = {"apiVersion": kind.api_version, "kind": kind.kind, **own_copy(obj)}  # these first: lists cut them off
        meta = new.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise BadRequest("resourceVersion should not be set on objects to be created")
        for field in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            meta.pop(field, None)
        if not kind.namespaced:
            meta.pop("namespace", None)
        elif not meta.get("namespace"):
            raise required(kind, meta.get("name", ""), "metadata.namespace", f"a {kind.kind} is namespaced; name its namespace")
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
        written = (kind, meta.get("namespace", ""), meta["name"]) in self._overlay  # before in this commit, at its revision
        if not meta.get("resourceVersion") and not kind.builtin and not written:
            message = "Invalid value: 0: must be specified for an update"
            raise Invalid(f'{kind.resource} "{meta["name"]}" is invalid: metadata.resourceVersion: {message}',
                          [Cause("metadata.resourceVersion", message)])
        return self._change(kind, meta["name"], meta.get("namespace", ""),
                            lambda record, old: unchanged_parts.copied(obj, old) if old is record.known else own_copy(obj),
                            subresource, shares=not (subresource or self._dry_run or self._store.rules.fills_in(kind)))

    def change(
        self, kind: Kind, name: str, namespace: str, make: Callable[[Object], Object], subresource: str = ""
    ) -> Record:
        """Replace an object by what `make` returns for it."""
        return self._change(kind, name, namespace,
                            lambda record, old: make(old if subresource == "status" else record.object()), subresource)

    def _change(
        self, kind: Kind, name: str, namespace: str, make: Callable[[Record, Object], Object], subresource: str, *,
        shares: bool = False,
    ) -> Record:
        """`shares`: the old and the new object are those that readers share, if there are readers."""
        if subresource == "status" and not kind.has_status:
            raise NotFound(f"{kind.resource} have no status subresource; write the whole object")
        record = self.require(kind, name, namespace if kind.namespaced else "")
        known = record.known if shares else None
        old = record.object() if known is None else known
        new = make(record, old)
        kept = self._check_identity(kind, record, old, new)
        if subresource == "status":  # everything else is unchanged and needs no comparison
            meta = _status_metadata(kind, new["metadata"], kept)
            new = {**old, "metadata": meta, "status": new.get("status")}
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
            meta["generation"] = _number(old["metadata"].get("generation")) + 1
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or self._store.rules.blocks_deletion(kind, new)
        if meta.get("deletionTimestamp") and not held:
            return self._remove(kind, new, record)
        written = self._put(kind, new, record)
        if known is not None:
            written.share(unchanged_parts.shared(new, known))
        return written

    def _check_identity(self, kind: Kind, record: Record, old: Object, new: Object) -> Object:
        """Sets what only the store sets in the new metadata. Returns the old metadata, repaired."""
        was, meta = old["metadata"], new.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise BadRequest(f'{kind.resource} "{record.key[1]}": metadata: must be an object, not {type(meta).__name__}')
        new.setdefault("apiVersion", kind.api_version)
        new.setdefault("kind", kind.kind)
        kept = server_metadata.repaired(kind, old, meta, self._store)
        if meta.get("resourceVersion") and meta["resourceVersion"] != str(record.revision):
            raise stale(kind, record.key[1])
        if meta.get("uid") and meta["uid"] not in (kept["uid"], was.get("uid")):
            raise Conflict(f'Operation cannot be fulfilled on {kind.resource} "{record.key[1]}": Precondition failed: UID in '
                           f"precondition: {meta['uid']}, UID in object meta: {kept['uid']}")
        causes = [
            Cause(f"metadata.{field}", f'Invalid value: "{meta[field]}": field is immutable; it is "{was.get(field, "")}"')
            for field in ("name", "namespace", "creationTimestamp")
            if meta.get(field) and meta[field] not in (kept.get(field), was.get(field))
        ]
        finalizers = meta.get("finalizers") if kept.get("deletionTimestamp") else None
        had = was["finalizers"] if isinstance(was.get("finalizers"), list) else []
        if isinstance(finalizers, list) and (
            late := [name for name in finalizers if name not in had]
        ):
            message = f"Forbidden: no new finalizers can be added if the object is being deleted, found new: {late}"
            causes.append(Cause("metadata.finalizers", message, "FieldValueForbidden"))
        if causes:
            raise Invalid(f'{kind.resource} "{record.key[1]}" is invalid: {causes[0].field}: {causes[0].message}', causes)
        for field in server_metadata.FIELDS:
            if field in kept:
                meta[field] = kept[field]
            else:
                meta.pop(field, None)
        return kept

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
        """The last record, and whether the object is removed (False: it stays with a deletionTimestamp)."""
        record = self.require(kind, name, namespace if kind.namespaced else "")
        if uid and uid != record.uid:
            raise Conflict(f'Precondition failed: UID in precondition: {uid}, UID in object meta: {record.uid}')
        if revision and revision != str(record.revision):
            raise Conflict(f"Precondition failed: ResourceVersion in precondition: {revision}, ResourceVersion in object "
                           f"meta: {record.revision}")
        obj = self._admit("delete", kind, record.object(), record.object())
        meta = obj["metadata"]
        finalizers = list(meta["finalizers"]) if isinstance(meta.get("finalizers"), list) else []
        if propagation:  # the policy of the last request counts
            finalizers = [finalizer for finalizer in finalizers if finalizer not in PROPAGATION.values()]
            finalizers += [PROPAGATION[propagation]] if propagation in PROPAGATION else []
        seconds = self._store.rules.grace(kind, obj, grace)
        if not finalizers and not seconds and not self._store.rules.blocks_deletion(kind, obj):
            return self._remove(kind, obj, record), True
        terminating = meta.get("deletionTimestamp")
        if terminating and finalizers == meta.get("finalizers", []) and seconds >= _number(
            meta.get("deletionGracePeriodSeconds")
        ):
            return record, False
        meta["finalizers"] = finalizers
        if not finalizers:
            del meta["finalizers"]
        if not terminating:
            meta["deletionTimestamp"] = rfc3339(self._store.clock.now())
            if kind.counts_generations:
                meta["generation"] = _number(meta.get("generation")) + 1
        meta["deletionGracePeriodSeconds"] = seconds
        return self._put(kind, obj, record), False

    def _put(self, kind: Kind, obj: Object, previous: Record | None) -> Record:
        record = self._record(kind, obj, previous)
        self._overlay[(kind, *record.key)] = record
        self.changes.append(ObjectChange(self._before(previous), record))
        return record

    def _before(self, previous: Record | None) -> Record | None:
        """The record before this transaction. Several writes of one object in one commit (the object, then its status) are one
        change, as no reader can see the state in between."""
        if previous is not None and previous.revision > self._issued:
            for slot in reversed(range(len(self.changes))):
                if self.changes[slot].next is previous:
                    return self.changes.pop(slot).previous
        return previous

    def _remove(self, kind: Kind, obj: Object, previous: Record) -> Record:
        record = self._record(kind, obj, previous)
        self._overlay[(kind, *record.key)] = None
        if (before := self._before(previous)) is not None:  # else it was created by this commit
            self.changes.append(ObjectChange(before, record, gone=True))
        return record

    def _record(self, kind: Kind, obj: Object, previous: Record | None) -> Record:
        if self._dry_run:  # a dry run takes no revision
            return Record(kind, obj, previous.revision if previous else 0)
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        return Record(kind, obj, self.revision)


def _status_metadata(kind: Kind, new: Object, old: Object) -> Object:
    """What a write of status makes of the metadata. Most kinds keep it; of the oldest ones only the owners are kept, and only
    those of a pod."""
    if not kind.status_writes_metadata:
        return dict(old)
    if not kind.namespaced:
        return new
    kept = {name: value for name, value in new.items() if name != "ownerReferences"}
    return kept | ({"ownerReferences": old["ownerReferences"]} if "ownerReferences" in old else {})


def _number(value: Any) -> int:
    """A number that the store keeps itself; 0 where a stored object has something else there, which must not prevent its repair
    or deletion."""
    return value if type(value) is int else 0


def _content(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def apply_patch(kind: Kind, old: Object, patch: Any, how: base.PatchType) -> Object:
    if how == "json":
        return patches.json(old, patch)
    if how == "strategic" and not kind.builtin:
        raise Unsupported(
            f"{kind.resource} do not support strategic merge patch, because Kubernetes has no merge keys for custom resources; "
            "send a merge or a JSON patch"
        )
    if not isinstance(patch, dict):
        raise BadRequest(f"a {how} patch must be an object, not {type(patch).__name__}")
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
