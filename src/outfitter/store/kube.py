"""The backend in a cluster: a Kubernetes API server as a `base.Store`. Objects travel as plain dicts, so that fields that we
do not know survive.

Maps the store's calls to REST paths; the server itself admits, defaults and persists. Errors and retries are those of
`rest_client`. Called by the app in cluster mode and by the CLI."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import quote

import outfitter
from outfitter import errors
from outfitter.api.kinds import Kind, Object
from outfitter.store import base
from outfitter.store.clock import Clock
from outfitter.store.http import object_decoder
from outfitter.store.request_limiter import RequestLimiter
from outfitter.store.rest_client import Decode, RestClient
from outfitter.store.rest_config import RestConfig

log = logging.getLogger(__name__)
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PATCHES: dict[base.PatchType, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
APPLY = "application/apply-patch+yaml"  # JSON is YAML too


class Kube:
    """The store in a cluster. Delete reads the object first, because most kinds answer a delete with a Status only; not for a
    caller that knows its uid."""

    atomic = False

    def __init__(
        self,
        access: RestConfig,
        *,
        clock: Clock,
        user_agent: str = f"outfitter/{outfitter.__version__}",
        field_validation: str = "",
        warn: Callable[[str], None] | None = None,
        limiter: RequestLimiter | None = None,
        managed_fields: bool = True,
    ) -> None:
        """`field_validation` is what the server does about unknown fields in a write (Strict, Warn, Ignore); `warn` receives
        the server's warnings. `limiter`: shared with other clients of the server. `managed_fields`: whether objects of the most
        frequent kinds have their managedFields (`object_decoder`)."""
        self.limiter = limiter or RequestLimiter(clock)
        self._client = RestClient(access, self.limiter, clock=clock, user_agent=user_agent, warn=warn)
        self._validation = {"fieldValidation": field_validation}
        self._streams_lists = True  # as far as is known of the server
        self._shortened = frozenset[Kind]() if managed_fields else object_decoder.KINDS

    @property
    def access(self) -> RestConfig:
        return self._client.config

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return await self._client.request("GET", _path_of(kind, namespace, name), decode=self._decode(kind))

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> base.Listing:
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": limit or "", "continue": continue_}
        answer = await self._client.request("GET", _path(kind, namespace), query)
        items: list[Object] = answer.get("items") or []
        for item in items:  # the server omits both in list items
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.kind)
        meta = answer.get("metadata") or {}
        return base.Listing(
            items, meta.get("resourceVersion", ""), meta.get("continue", ""), meta.get("remainingItemCount")
        )

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        path = _path(kind, _namespace(kind, obj))
        return await self._client.request("POST", path, {**self._validation, **_dry(dry_run)}, _whole(kind, obj),
                                          decode=self._decode(kind))

    async def create_unsynced(self, kind: Kind, obj: Object) -> None:
        await self.create(kind, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        name = (obj.get("metadata") or {}).get("name")
        if not name:
            _missing(kind, "metadata.name", "name the object to replace")
        path = _path_of(kind, _namespace(kind, obj), name, subresource)
        return await self._client.request("PUT", path, {**self._validation, **_dry(dry_run)}, _whole(kind, obj),
                                          decode=self._decode(kind))

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
        path = _path_of(kind, namespace, name, subresource)
        return await self._client.request("PATCH", path, {**self._validation, **_dry(dry_run)}, patch, PATCHES[how],
                                          decode=self._decode(kind))

    async def apply(self, kind: Kind, obj: Object, *, field_manager: str, dry_run: bool = False) -> Object:
        """Server-side apply: the fields of `obj` become as written, and belong to `field_manager`; fields of others stay."""
        path = _path_of(kind, _namespace(kind, obj), obj["metadata"]["name"])
        query = {**self._validation, **_dry(dry_run), "fieldManager": field_manager, "force": "true"}
        return await self._client.request("PATCH", path, query, _whole(kind, obj), APPLY)

    async def call_subresource(self, kind: Kind, name: str, action: str, options: Object, namespace: str = "") -> None:
        """PUT to a subresource that performs an action (start, pause); the answer is ignored."""
        await self._client.request("PUT", _path_of(kind, namespace, name, action), body=options, decode=lambda _: {})

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
        path = _path_of(kind, namespace, name)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", revision)) if value is not None}
        if preconditions:
            options["preconditions"] = preconditions
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if dry_run:
            options["dryRun"] = ["All"]
        known: Object = {"metadata": {"name": name, "uid": uid, **({"namespace": namespace} if namespace else {})}}
        existing = await self._client.request("GET", path) if uid is None else known
        answer = await self._client.request("DELETE", path, body=options)
        return existing if answer.get("kind") == "Status" else answer

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncGenerator[base.Event, None]:
        query = {"watch": "true", "resourceVersion": since, "labelSelector": labels, "fieldSelector": fields,
                 "allowWatchBookmarks": "true" if bookmarks else ""}
        async for event in self._events(kind, await self._client.open_lines(_path(kind, namespace), query)):
            yield event

    async def stream_list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[base.Event, None] | None:
        """As `base.StreamingStore`: Kubernetes has it behind the feature gate WatchList. A server that refuses it is not asked
        again by this process."""
        if not self._streams_lists:
            return None
        query = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan",
                 "allowWatchBookmarks": "true", "labelSelector": labels, "fieldSelector": fields}
        try:
            lines = await self._client.open_lines(_path(kind, namespace), query)
        except (errors.Invalid, errors.BadRequest) as error:
            log.info("%s does not stream lists (%s): they are read in pages", self.access.server, error)
            self._streams_lists = False
            return None
        except errors.Forbidden:  # the list reports which right is missing
            return None
        return self._events(kind, lines)

    async def _events(self, kind: Kind, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[base.Event, None]:
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield self._event(kind, line)

    async def commit(self, writes: Sequence[base.Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        raise errors.MethodNotAllowed(
            f"{self.access.server} cannot write {len(writes)} objects in one step: a Kubernetes API server replaces one"
            " object at a time, at the revision at which it was read; check `atomic` of the store first"
        )

    async def table(
        self, kind: Kind, namespace: str = "", name: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Object:
        """One object or (None) all of a kind, as the server's Table for printing."""
        path = _path(kind, namespace) if name is None else _path_of(kind, namespace, name)
        return await self._client.request("GET", path, {"labelSelector": labels, "fieldSelector": fields}, accept=TABLE)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of one request, whatever the status: for callers that know the server's API themselves.
        Unavailable when there is no answer."""
        return await self._client.raw(method, path, query=query, body=body, headers=headers)

    async def close(self) -> None:
        await self._client.close()

    def _decode(self, kind: Kind) -> Decode:
        return object_decoder.decode_object if kind in self._shortened else object_decoder.decode

    def _event(self, kind: Kind, line: bytes) -> base.Event:
        shortened = kind in self._shortened
        event = self._client.decode(line, object_decoder.decode_event if shortened else object_decoder.decode)
        obj, type_ = event.get("object") or {}, event.get("type")
        if type_ == "ERROR":
            raise self._client.status_error(int(obj.get("code") or 500), obj, {})
        if type_ not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise errors.Unavailable(f"{self.access.server} sent a change of {kind.resource} of unknown type {type_!r}")
        return base.Event(type_, obj)


def _path(kind: Kind, namespace: str = "") -> str:
    """The path of a kind's collection."""
    return kind.path(quote(namespace, safe=""))


def _path_of(kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
    """The path of one object. No object is called "." or "..", which would lead to the collection."""
    if name in ("", ".", ".."):
        raise errors.NotFound(f'{kind.resource} "{name}" not found')
    if kind.namespaced and not namespace:
        _missing(kind, "metadata.namespace", f"name the namespace of {kind.singular} {name!r}")
    path = kind.path(quote(namespace, safe=""), quote(name, safe=""))
    return f"{path}/{subresource}" if subresource else path


def _namespace(kind: Kind, obj: Object) -> str:
    if not kind.namespaced:
        return ""
    namespace: str = (obj.get("metadata") or {}).get("namespace") or ""
    if not namespace:
        _missing(kind, "metadata.namespace", f"a {kind.kind} is namespaced; name its namespace")
    return namespace


def _missing(kind: Kind, field: str, why: str) -> NoReturn:
    cause = errors.Cause(field, why, "FieldValueRequired")
    raise errors.Invalid(f"{kind.kind} is invalid: {field}: Required value: {why}", [cause])


def _whole(kind: Kind, obj: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


def _dry(dry_run: bool) -> Mapping[str, str | int]:
    return {"dryRun": "All"} if dry_run else {}
