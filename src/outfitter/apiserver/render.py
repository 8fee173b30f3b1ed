"""Records as a client wants them: the stored bytes where that will do, else converted, as a Table, or as metadata alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from outfitter.api import versions
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import negotiate, tables
from outfitter.apiserver.negotiate import ResponseFormat
from outfitter.apiserver.paths import RequestPath
from outfitter.apiserver.request import Request, Response
from outfitter.apiserver.status import BadOptions
from outfitter.store.clock import Clock
from outfitter.store.watch_cache import Record

encode = msgspec.json.encode
LARGE = 100_000  # bytes of objects; more are converted beside the event loop
_BESIDE = ThreadPoolExecutor(1, thread_name_prefix="render")  # one at a time: the interpreter runs one thread at a time
INCLUDE = ("None", "Metadata", "Object")


class Renderer:
    """How the objects of one request are shown."""

    def __init__(self, request: Request, clock: Clock, *, streaming: bool = False) -> None:
        self.target: RequestPath = request.target
        self.wanted: ResponseFormat = request.wanted(streaming=streaming)
        self.include = request.text("includeObject") or "Metadata"
        if self.wanted.as_ == "Table" and self.include not in INCLUDE:
            raise BadOptions("TableOptions", "includeObject", f'Unsupported value: "{self.include}": supported values: '
                             '"None", "Metadata", "Object"')
        self._pretty = request.flag("pretty")
        self._clock = clock
        self.plain = self.target.stored and not self.wanted.as_  # stored bytes can be served as they are

    def one(self, record: Record, status: int = 200) -> Response:
        data = record.data if self.plain else encode(self.shown(record.object()))
        return self._answer(data, status)

    def shown(self, stored: Object, *, columns: bool = True) -> Object:
        """One object, decoded, in the version and form asked for."""
        obj = versions.from_stored(self.target.kind, self.target.version, stored)
        if self.wanted.as_ == "Table":
            meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            return self._table([obj], meta, columns=columns)
        return tables.metadata_only(obj, self.wanted.version) if self.wanted.as_ else obj

    def list(self, records: Sequence[Record], meta: Object) -> Response:
        kind = self.target.kind
        if self.plain:
            head = encode({"kind": f"{kind.kind}List", "apiVersion": self.target.api_version, "metadata": meta})
            data = [record.data for record in records] if not kind.builtin else _without_type(kind, records)
            return self._answer(head[:-1] + b',"items":[' + b",".join(data) + b"]}")
        objects = [versions.from_stored(kind, self.target.version, record.object()) for record in records]
        if self.wanted.as_ == "Table":
            return self._answer(encode(self._table(objects, meta)))
        if self.wanted.as_:
            api_version = f"meta.k8s.io/{self.wanted.version}"
            items = [tables.metadata_only(obj, self.wanted.version) for obj in objects]
            return self._answer(encode({"kind": "PartialObjectMetadataList", "apiVersion": api_version, "metadata": meta,
                                        "items": items}))
        items = [_untyped(obj) for obj in objects] if kind.builtin else objects
        return self._answer(encode({"kind": f"{kind.kind}List", "apiVersion": self.target.api_version, "metadata": meta,
                                    "items": items}))

    async def one_beside(self, record: Record, status: int = 200) -> Response:
        """`one`, without keeping the event loop while a large object is converted."""
        return await self._beside([record], lambda: self.one(record, status))

    async def list_beside(self, records: Sequence[Record], meta: Object) -> Response:
        """`list`, without keeping the event loop while a long list is converted."""
        return await self._beside(records, lambda: self.list(records, meta))

    async def _beside(self, records: Sequence[Record], work: Callable[[], Response]) -> Response:
        if (self.plain and self.wanted.media != negotiate.YAML) or sum(len(record.data) for record in records) < LARGE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(_BESIDE, work)

    def value(self, value: Object, status: int = 200) -> Response:
        """Something that is no object of the store, such as a Status."""
        return self._answer(encode(value), status)

    def _table(self, objects: Sequence[Object], meta: Object, *, columns: bool = True) -> Object:
        return tables.table(self.target.kind, objects, meta, now=self._clock.now(), include=self.include,
                            version=self.wanted.version, columns=columns)

    def _answer(self, data: bytes, status: int = 200) -> Response:
        if self.wanted.media == negotiate.YAML:
            return Response(negotiate.to_yaml(data), status, negotiate.YAML)
        return Response(msgspec.json.format(data, indent=2) + b"\n" if self._pretty else data, status)


def _without_type(kind: Kind, records: Sequence[Record]) -> list[bytes]:
    """The items of a list of a built-in kind: kube-apiserver writes apiVersion and kind once, for the list. Of custom resources
    each item has its own. An object begins with both, but for some that were stored by an earlier version."""
    prefix = encode({"apiVersion": kind.api_version, "kind": kind.kind})[:-1] + b","
    return [b"{" + record.data[len(prefix):] if record.data.startswith(prefix) else encode(_untyped(record.object()))
            for record in records]


def _untyped(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
