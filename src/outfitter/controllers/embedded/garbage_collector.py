"""Deletes what has no owner any more, in embedded mode (a cluster has its own controller): dependents of deleted owners, the
content of namespaces that are going.

An owner is gone when the store has none of its uid, not when an informer has not seen it. Nothing but metadata is read, so that
an object that cannot be read otherwise is an owner, and is deleted, like any other."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.api.validate.readable import UnreadableObject
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import NotFound
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
# Not collected by their owner: history has none, and events, as in Kubernetes, expire. There are many of both.
UNOWNED = (kinds.PAST_BOOKING, kinds.EVENT)


class GarbageCollector:
    """Keys are "plural.group|namespace|name"."""

    name = "garbage_collector"

    def __init__(self, context: ControllerContext, served: Iterable[Kind] = kinds.ALL) -> None:
        self._context, self._store = context, context.raw_store
        self.queue = WorkQueue(context.clock)
        self._namespaced = tuple(kind for kind in served if kind.namespaced)
        self._kinds = {kind.resource: kind for kind in served if kind not in UNOWNED}
        self._informers = [(kind, context.informer(kind)) for kind in self._kinds.values()]
        for kind, informer in self._informers:
            informer.add_index("owner", _owner_uids)
            informer.on_change(functools.partial(self._changed, kind))
            informer.on_unreadable(functools.partial(self._unreadable, kind))

    def _changed(self, kind: Kind, old: Object | None, new: Object | None) -> None:
        obj = new or old
        assert obj is not None
        meta = obj["metadata"]
        if new is None or meta.get("deletionTimestamp"):
            for dependent_kind, dependent in self._dependents(meta["uid"]):
                self.queue.add(_key(dependent_kind, dependent))
            if kind.namespaced and self._is_going(meta.get("namespace", "")):
                self.queue.add(_key_of(kinds.NAMESPACE, "", meta["namespace"]))
        # An object under foreground deletion waits for its dependents: they wake it when they are deleted or lose the
        # reference.
        for reference in _lost(old, new):
            owner_kind = self._kind(reference)
            if owner_kind:
                namespace = meta.get("namespace", "") if owner_kind.namespaced else ""
                self.queue.add(_key_of(owner_kind, namespace, reference["name"]))
        # An owner that is deleted wakes the dependents that are known; the others are enqueued when they are created.
        if new is not None and (kind == kinds.NAMESPACE or meta.get("deletionTimestamp")
                                or (meta.get("ownerReferences") and (old is None or _owner_uids(old) != _owner_uids(new)))):
            self.queue.add(_key(kind, obj))

    def _unreadable(self, kind: Kind, key: str) -> None:
        if key in self._context.informer(kind).unreadable:
            self.queue.add(_key_of(kind, *split_key(key)))

    def _is_going(self, namespace: str) -> bool:
        known = self._context.informer(kinds.NAMESPACE).readable(namespace)
        return known is not None and bool(known["metadata"].get("deletionTimestamp"))

    def _dependents(self, uid: str) -> list[tuple[Kind, Object]]:
        found = [(kind, obj) for kind, informer in self._informers for obj in informer.by("owner", uid)]
        return found + [(kind, each.object) for kind, informer in self._informers if informer.unreadable
                        for each in informer.unreadable.values()
                        if readable.metadata_problem(kind, each.object) is None and uid in _owner_uids(each.object)]

    def _kind(self, reference: Object) -> Kind | None:
        return kinds.of_object(reference, self._kinds.values())

    async def reconcile(self, key: str) -> float | None:
        resource, namespace, name = key.split("|")
        kind = self._kinds[resource]
        try:
            obj = await self._store.get(kind, name, namespace)
        except NotFound:
            return None
        _check_metadata(kind, obj)
        meta = obj["metadata"]
        if meta.get("deletionTimestamp"):
            if kind == kinds.NAMESPACE:
                return await self._empty(obj)
            await self._let_go(kind, obj)
            return None
        await self._collect(kind, obj)
        return None

    async def _collect(self, kind: Kind, obj: Object) -> None:
        """Delete what had owners and has none left; drop references to owners that are gone when others remain."""
        meta = obj["metadata"]
        references = meta.get("ownerReferences") or []
        left = [reference for reference in references if await self._alive(reference, meta.get("namespace", ""))]
        if not references or len(left) == len(references):
            return
        if left:
            change = {"metadata": {"ownerReferences": left, "resourceVersion": meta["resourceVersion"]}}
            await self._store.patch(kind, meta["name"], change, meta.get("namespace", ""))
        else:
            await self._store.delete(kind, meta["name"], meta.get("namespace", ""), uid=meta["uid"],
                                     revision=meta["resourceVersion"], propagation="Background")

    async def _alive(self, reference: Object, namespace: str) -> bool:
        kind = self._kind(reference)
        if kind is None:
            return True  # a kind that is not stored here: its owner cannot be checked
        if kind.namespaced and not namespace:
            return True  # a namespaced owner without a namespace: it cannot be checked either
        try:
            owner = await self._store.get(kind, reference["name"], namespace if kind.namespaced else "")
        except NotFound:
            return False
        _check_metadata(kind, owner)
        meta = owner["metadata"]
        waits = meta.get("deletionTimestamp") and FOREGROUND in (meta.get("finalizers") or ())
        return bool(meta["uid"] == reference["uid"] and not waits)

    async def _let_go(self, kind: Kind, obj: Object) -> None:
        """Finalizers that are ours: foreground waits until no dependent is left, orphan takes the owner off them."""
        meta = obj["metadata"]
        finalizers = list(meta.get("finalizers") or ())
        dependents = self._dependents(meta["uid"])
        if ORPHAN in finalizers:
            for dependent_kind, dependent in dependents:
                theirs = dependent["metadata"]
                left = [reference for reference in theirs["ownerReferences"] if reference["uid"] != meta["uid"]]
                change = {"metadata": {"ownerReferences": left or None, "resourceVersion": theirs["resourceVersion"]}}
                await self._store.patch(dependent_kind, theirs["name"], change, theirs.get("namespace", ""))
            finalizers.remove(ORPHAN)
        if FOREGROUND in finalizers:
            for dependent_kind, dependent in dependents:
                if not dependent["metadata"].get("deletionTimestamp"):
                    self.queue.add(_key(dependent_kind, dependent))
            if all(self._waits_for(dependent, meta["uid"]) for _, dependent in dependents):
                finalizers.remove(FOREGROUND)
        if finalizers != list(meta.get("finalizers") or ()):
            change = {"metadata": {"finalizers": finalizers or None, "resourceVersion": meta["resourceVersion"]}}
            await self._store.patch(kind, meta["name"], change, meta.get("namespace", ""))

    def _waits_for(self, dependent: Object, uid: str) -> bool:
        """Whether an object under foreground deletion waits, itself or through its dependents, for its owner of that uid: the
        two own each other, and one must go first."""
        seen: set[str] = set()
        waiting = [dependent]
        while waiting:
            meta = waiting.pop()["metadata"]
            if not meta.get("deletionTimestamp") or FOREGROUND not in (meta.get("finalizers") or ()) or meta["uid"] in seen:
                continue
            if meta["uid"] == uid:
                return True
            seen.add(meta["uid"])
            waiting += [obj for _, obj in self._dependents(meta["uid"])]
        return False

    async def _empty(self, namespace: Object) -> float | None:
        """Delete everything in a namespace that is being deleted, then remove its finalizer. When it is still there after it
        was looked through, all that was found is in it and not in another one of the same name."""
        name, left = namespace["metadata"]["name"], 0
        found = [(kind, obj) for kind in self._namespaced for obj in (await self._store.list(kind, name)).items]
        if (await self._store.get(kinds.NAMESPACE, name))["metadata"]["uid"] != namespace["metadata"]["uid"]:
            return None
        for kind, obj in found:
            left += 1
            if not obj["metadata"].get("deletionTimestamp"):
                try:
                    await self._store.delete(kind, obj["metadata"]["name"], name, uid=obj["metadata"]["uid"],
                                             propagation="Background")
                except NotFound:
                    left -= 1
        if left:
            return 0.2
        if (found_wrong := readable.unreadable(kinds.NAMESPACE, namespace)) is not None:
            raise found_wrong.error()
        if namespace["spec"].get("finalizers"):
            namespace["spec"]["finalizers"] = [word for word in namespace["spec"]["finalizers"] if word != "kubernetes"]
            await self._store.replace(kinds.NAMESPACE, namespace, subresource="finalize")
        return None


def _check_metadata(kind: Kind, obj: Object) -> None:
    if (wrong := readable.metadata_problem(kind, obj)) is not None:
        raise UnreadableObject(kind, key_of(obj), obj, wrong).error()


def _owner_uids(obj: Object) -> list[str]:
    return [reference["uid"] for reference in obj["metadata"].get("ownerReferences") or ()]


def _lost(old: Object | None, new: Object | None) -> list[Object]:
    """References to owners that an object had and no longer has."""
    left = _owner_uids(new) if new is not None else ()
    return [reference for reference in (old["metadata"].get("ownerReferences") or () if old is not None else ())
            if reference["uid"] not in left]


def _key(kind: Kind, obj: Object) -> str:
    return _key_of(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _key_of(kind: Kind, namespace: str, name: str) -> str:
    return f"{kind.resource}|{namespace}|{name}"
