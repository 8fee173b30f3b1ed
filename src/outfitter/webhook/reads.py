"""The other objects that the rules of a write look up, read from the API server. Rules are plain functions that cannot wait:
they run, what they looked up and was not read yet is read, and they run again.

Kinds that many VMs refer to are cached (`CACHED`); what protects a page is read at each review. Namespaces and Secrets are
taken to exist: the API server has checked the namespace, and the webhook has no right to read Secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import NotFound, TooLarge
from outfitter.store.base import Store
from outfitter.store.informer import Informer

T = TypeVar("T")
CACHED = (kinds.KUBEVIRT, kinds.DEVICE_CLASS, kinds.RESOURCE_CLAIM_TEMPLATE)
READ_ANEW = (kinds.KUBEVIRT, kinds.LEDGER_PAGE)  # writes of these use no cache: what they decide must not be out of date
ASSUMED = (kinds.NAMESPACE, kinds.SECRET)
MAX_READS = 512  # objects that the rules of one write may look up
AT_ONCE = 16
PAGE = 500  # objects per list request

Caches = Mapping[Kind, Informer[Object]]


class Lookup(NamedTuple):
    """One get or list of other objects."""

    kind: Kind
    namespace: str = ""
    name: str = ""  # "": a list
    indexed: str = ""  # of those with this value in the kind's indexed field; "": of all


class ReadObject:
    """A listed object, as rules take it."""

    __slots__ = ("_object", "derived")

    def __init__(self, obj: Object) -> None:
        self._object = obj
        self.derived: Any = None

    def object(self) -> Object:
        return self._object


class AdmissionReads:
    """What the rules of one write have looked up."""

    def __init__(self, store: Store, caches: Caches, written: Kind) -> None:
        self._store = store
        self._caches: Caches = {} if written in READ_ANEW else caches
        self._found: dict[Lookup, Any] = {}
        self._wanted: set[Lookup] = set()

    async def settled(self, decide: Callable[[], T]) -> T:
        """What `decide` returns or raises when all that it looks up has been read. TooLarge: it never ends."""
        while True:
            self._wanted.clear()
            try:
                result = decide()
            except Exception:
                if not self._wanted:
                    raise
            else:
                if not self._wanted:
                    return result
            await self._read(list(self._wanted))

    # -- what rules call

    def look(self, kind: Kind, namespace: str, name: str) -> Object | None:
        if kind in ASSUMED:
            return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}
        if kind in self._caches:
            return self._caches[kind].readable(f"{namespace}/{name}" if namespace else name)
        found: Object | None = self._get(Lookup(kind, namespace, name))
        return found

    def every(self, kind: Kind) -> Iterable[Object]:
        if kind in self._caches:
            return self._caches[kind].items()
        return [read.object() for read in self._get(Lookup(kind)) or ()]

    def indexed(self, kind: Kind, value: str) -> Iterable[ReadObject]:
        found: list[ReadObject] = self._get(Lookup(kind, indexed=value)) or []
        return found

    def _get(self, lookup: Lookup) -> Any:
        if lookup not in self._found:
            self._wanted.add(lookup)
        return self._found.get(lookup)

    # -- reading

    async def _read(self, wanted: list[Lookup]) -> None:
        if len(self._found) + len(wanted) > MAX_READS:
            raise TooLarge(f"the rules of this write look up more than {MAX_READS} other objects: write less at once")
        for start in range(0, len(wanted), AT_ONCE):
            await asyncio.gather(*map(self._read_one, wanted[start:start + AT_ONCE]))

    async def _read_one(self, lookup: Lookup) -> None:
        kind = lookup.kind
        if lookup.name:
            try:
                self._found[lookup] = await self._store.get(kind, lookup.name, lookup.namespace)
            except NotFound:
                self._found[lookup] = None
        elif lookup.indexed and kind.indexed in kind.selectable:
            self._found[lookup] = await self._list(kind, f"{kind.indexed}={lookup.indexed}")
        else:
            self._found[lookup] = [read for read in await self._list(kind)
                                   if not lookup.indexed or _value(read.object(), kind.indexed) == lookup.indexed]

    async def _list(self, kind: Kind, fields: str = "") -> list[ReadObject]:
        out: list[ReadObject] = []
        continue_ = ""
        while True:
            part = await self._store.list(kind, fields=fields, limit=PAGE, continue_=continue_)
            out += map(ReadObject, part.items)
            if not (continue_ := part.continue_):
                return out


def _value(obj: Any, path: str) -> Any:
    for word in path.split("."):
        obj = obj.get(word) if isinstance(obj, dict) else None
    return obj
