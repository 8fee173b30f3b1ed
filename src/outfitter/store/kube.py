"""A Kubernetes API server as the home of nouns. Objects travel as plain dicts, so that fields we do not know survive.

What goes wrong becomes one of our errors, with the server's own message. Only what cannot have written anything is tried
again: reads after a broken connection, and whatever the server put off with 429."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

import outfitter
from outfitter import errors
from outfitter.api.kinds import Kind, Object
from outfitter.store import base
from outfitter.store.clock import Clock
from outfitter.store.rest_config import RestConfig

BACKOFF = (0.1, 0.4, 1.6)  # seconds before each further try
LONGEST_WAIT = 30.0  # a server that asks for more than this is for the caller to wait for
CALLS = 64  # at a time, watches not counted
ANSWER_TIMEOUT = 75.0  # seconds without a byte; the server itself gives up on a request after 60
CONNECT_TIMEOUT = 10.0
LARGE = 1 << 20  # bytes; a larger body is sent in pieces, so that others get their turn
KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))  # a dead peer ends a silent watch in 60 s

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PATCHES: dict[base.PatchType, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
BY_CODE: dict[int, type[errors.OutfitterError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    410: errors.Expired,
    413: errors.TooLarge,
    415: errors.Unsupported,
}

_WARNING = re.compile(r'\d{3} \S+ "(?P<text>(?:[^"\\]|\\.)*)"')


class Kube:
    """The store in a cluster. Deleting reads the object first, because most kinds are deleted without being shown."""

    atomic = False

    def __init__(
        self,
        access: RestConfig,
        *,
        clock: Clock,
        user_agent: str = f"outfitter/{outfitter.__version__}",
        field_validation: str = "",
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`field_validation` is what the server does about unknown fields in what is written (Strict, Warn, Ignore); `warn`
        hears what the server has to say beside its answers."""
        self._warn = warn
        self._access = access
        self._validation = {"fieldValidation": field_validation}
        self._clock = clock
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(CALLS)
        self._calls = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=ANSWER_TIMEOUT)
        self._watches = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)

    @property
    def access(self) -> RestConfig:
        return self._access

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        return await self._object("GET", _path_of(kind, namespace, name))

    async def list(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0, continue_: str = ""
    ) -> base.Listing:
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": limit or "", "continue": continue_}
        answer = await self._object("GET", _path(kind, namespace), query)
        items: list[Object] = answer.get("items") or []
        for item in items:  # the server leaves out of a list what its head says for all
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.kind)
        meta = answer.get("metadata") or {}
        return base.Listing(
            items, meta.get("resourceVersion", ""), meta.get("continue", ""), meta.get("remainingItemCount")
        )

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        path = _path(kind, _namespace(kind, obj))
        return await self._object("POST", path, {**self._validation, **_dry(dry_run)}, _whole(kind, obj))

    async def jot(self, kind: Kind, obj: Object) -> None:
        await self.create(kind, obj)

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        name = (obj.get("metadata") or {}).get("name")
        if not name:
            _missing(kind, "metadata.name", "name the object to replace")
        path = _path_of(kind, _namespace(kind, obj), name, subresource)
        return await self._object("PUT", path, {**self._validation, **_dry(dry_run)}, _whole(kind, obj))

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
        return await self._object("PATCH", path, {**self._validation, **_dry(dry_run)}, patch, PATCHES[how])

    async def act(self, kind: Kind, name: str, action: str, options: Object, namespace: str = "") -> None:
        """Ask for something to be done with an object, where the server has a place for that."""
        await self._object("PUT", _path_of(kind, namespace, name, action), body=options, silent=True)

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
        seen = await self._object("GET", path)
        answer = await self._object("DELETE", path, body=options)
        return seen if answer.get("kind") == "Status" else answer

    async def watch(
        self, kind: Kind, namespace: str = "", *, since: str, labels: str = "", fields: str = "", bookmarks: bool = False
    ) -> AsyncGenerator[base.Event, None]:
        query = {"watch": "true", "resourceVersion": since, "labelSelector": labels, "fieldSelector": fields,
                 "allowWatchBookmarks": "true" if bookmarks else ""}
        response = await self._stream(_path(kind, namespace), query)
        async with contextlib.aclosing(_lines(response)) as lines:
            async for line in lines:
                yield self._event(kind, line)

    async def commit(self, writes: Sequence[base.Write], *, dry_run: bool = False) -> Sequence[Object | None]:
        raise errors.MethodNotAllowed(
            f"{self._access.server} cannot write {len(writes)} objects in one step: a Kubernetes API server replaces one"
            " object at a time, at the revision at which it was read; ask the store's `atomic` first"
        )

    async def table(
        self, kind: Kind, namespace: str = "", name: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Object:
        """One object or (None) all of a kind, as the table that the server makes of it for people."""
        path = _path(kind, namespace) if name is None else _path_of(kind, namespace, name)
        return await self._object("GET", path, {"labelSelector": labels, "fieldSelector": fields}, accept=TABLE)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request as it is, for those who speak the server's language themselves: whatever it answers comes back.
        Unavailable when it answers nothing."""
        url = self._url(path, query or {})
        response, payload = await self._try(method, url, headers={"Accept": JSON, **(headers or {})}, body=body)
        return response.status, response.headers, payload

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # what was hung up is gone in the loop's next turn

    def _pass_on(self, response: aiohttp.ClientResponse) -> None:
        for line in response.headers.getall("Warning", ()) if self._warn else ():
            if self._warn and (said := _WARNING.match(line)):
                self._warn(re.sub(r"\\(.)", r"\1", said["text"]))

    async def _object(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        content: str = JSON,
        *,
        accept: str = JSON,
        silent: bool = False,
    ) -> Object:
        """`silent`: the server need not say anything when it did it."""
        headers = {"Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = content
            data = msgspec.json.encode(body)
        url = self._url(path, query or {})
        for wait in (*BACKOFF, None):
            response, payload = await self._try(method, url, headers=headers, body=data)
            self._pass_on(response)
            if response.status < 300:
                return self._decode(payload) if payload or not silent else {}
            await self._wait_or_raise(method, response, payload, wait)
        raise AssertionError("the last try waits for nothing")

    async def _stream(self, path: str, query: Mapping[str, str | int]) -> aiohttp.ClientResponse:
        url = self._url(path, query)
        for wait in (*BACKOFF, None):
            response, payload = await self._try("GET", url, headers={"Accept": JSON}, body=None, stream=True)
            if response.status < 300:
                return response
            await self._wait_or_raise("GET", response, payload, wait)
        raise AssertionError("the last try waits for nothing")

    async def _wait_or_raise(
        self, method: str, response: aiohttp.ClientResponse, payload: bytes, wait: float | None
    ) -> None:
        """Wait as long as the server asks when that makes sense, else raise what it said."""
        error = self._error(response.status, payload, response.headers)
        put_off = response.status == 429 or (response.status == 503 and method == "GET")
        if wait is None or not put_off or not isinstance(error, errors.Unavailable) or error.retry_after > LONGEST_WAIT:
            raise error
        await self._clock.sleep(max(error.retry_after, wait))

    async def _try(
        self, method: str, url: URL, *, headers: Mapping[str, str], body: bytes | None, stream: bool = False
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The server's answer, whatever it is; tried again when a read was cut off. A stream that was granted is left to
        the caller to read and close."""
        for wait in (*BACKOFF, None):
            try:
                async with contextlib.nullcontext() if stream else self._slots:
                    response = await self._send(method, url, headers, body, stream=stream)
                    if stream and response.status < 300:
                        return response, b""
                    async with response:
                        return response, await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if method != "GET" or wait is None:
                    raise _lost(self._access.server, error) from error
            await self._clock.sleep(wait)
        raise AssertionError("the last try waits for nothing")

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> aiohttp.ClientResponse:
        """One request; a second one when the server does not know us and a newer credential is to be had."""
        renewed = False
        while True:
            credential = await self._access.credential()
            sent = self._access.headers_for(credential)
            sent.update(headers)
            response = await self._opened().request(
                method,
                url,
                data=io.BytesIO(body) if body and len(body) > LARGE else body,
                headers=sent,
                ssl=self._access.tls(credential) or True,
                server_hostname=self._access.server_name or None,
                proxy=self._access.proxy or None,
                timeout=self._watches if stream else self._calls,
                allow_redirects=False,
            )
            if response.status != 401 or renewed or not await self._access.renew(credential):
                return response
            renewed = True
            response.release()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._user_agent},
                # Compressing costs both sides more than a local network does.
                skip_auto_headers=("Accept-Encoding", "Content-Type"),
                middlewares=(_once,),
            )
        return self._session

    def _url(self, path: str, query: Mapping[str, str | int]) -> URL:
        asked = urlencode({key: value for key, value in query.items() if value != ""}, quote_via=quote)
        return URL(f"{self._access.server}{path}{'?' + asked if asked else ''}", encoded=True)

    def _event(self, kind: Kind, line: bytes) -> base.Event:
        event = self._decode(line)
        obj, what = event.get("object") or {}, event.get("type")
        if what == "ERROR":
            raise self._status(int(obj.get("code") or 500), obj, {})
        if what not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise errors.Unavailable(f"{self._access.server} sent a change of {kind.resource} of unknown type {what!r}")
        return base.Event(what, obj)

    def _decode(self, payload: bytes) -> Object:
        try:
            return msgspec.json.decode(payload, type=dict)
        except msgspec.DecodeError as error:
            raise errors.Unavailable(
                f"{self._access.server} answered something that is not a Kubernetes object ({error}):"
                f" {payload[:200].decode(errors='replace')}"
            ) from error

    def _error(self, code: int, payload: bytes, headers: Mapping[str, str]) -> errors.OutfitterError:
        try:
            status = msgspec.json.decode(payload, type=dict)
        except msgspec.DecodeError:
            status = {}
        if status.get("kind") != "Status":  # a proxy, or no Kubernetes at all
            said = payload[:200].decode(errors="replace").strip()
            status = {"message": f"{self._access.server} answered {code}" + (f": {said}" if said else "")}
        return self._status(code, status, headers)

    def _status(self, code: int, status: Object, headers: Mapping[str, str]) -> errors.OutfitterError:
        """A Status of the server as one of our errors. What may have been written all the same (5xx) is Unavailable."""
        details = status.get("details") or {}
        message = status.get("message") or status.get("reason") or f"{self._access.server} answered {code}"
        if code == 429 or code >= 500:
            header = headers.get("Retry-After", "")
            after = details.get("retryAfterSeconds") or (int(header) if header.isascii() and header.isdigit() else 0)
            return errors.Unavailable(message, float(after or 1))
        if code == 422:
            causes = [
                errors.Cause(
                    cause.get("field", ""), cause.get("message", ""), cause.get("reason") or "FieldValueInvalid"
                )
                for cause in details.get("causes") or ()
            ]
            return errors.Invalid(message, causes)
        if code == 409 and status.get("reason") == "AlreadyExists":
            return errors.AlreadyExists(message)
        if code == 403 and any(cause.get("reason") == "NamespaceTerminating" for cause in details.get("causes") or ()):
            return errors.Terminating(message)
        return BY_CODE.get(code, errors.BadRequest)(message)


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The lines of a stream, however long, until it ends."""
    pending: list[bytes] = []
    try:
        async for chunk in response.content.iter_any():
            head, *rest = chunk.split(b"\n")
            pending.append(head)
            if not rest:
                continue
            *whole, tail = (b"".join(pending), *rest)
            pending = [tail]
            for line in whole:
                if line.strip():
                    yield line
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _lost(str(response.url.origin()), error) from error
    finally:
        _abort(response)
    if b"".join(pending).strip():
        raise errors.Unavailable(f"{response.url.origin()} ended the watch in the middle of a change; watch again")


def _abort(response: aiohttp.ClientResponse) -> None:
    """Hang up at once: a TLS goodbye would outlive the caller, and the server has no use for it."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Without this, aiohttp repeats a PUT or DELETE whose connection broke. The first may have been carried out, and the
    second would then say Conflict or NotFound of our own write."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error) or type(error).__name__) from error


def _lost(server: str, error: Exception) -> errors.Unavailable:
    first: BaseException = error  # what happened, without aiohttp's words about its own objects
    while first.__cause__ is not None:
        first = first.__cause__
    number = first.errno if isinstance(first, OSError) and not isinstance(first, ssl.SSLError) else None
    words = os.strerror(number) if number and number > 0 else str(first) or type(first).__name__
    return errors.Unavailable(f"{server} cannot be reached or broke off: {words}")


def _socket(info: aiohttp.AddrInfoType) -> socket.socket:
    made = socket.socket(info[0], info[1], info[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _path(kind: Kind, namespace: str = "") -> str:
    """Of all of a kind."""
    parts = ["", "apis", kind.group, kind.version] if kind.group else ["", "api", kind.version]
    if kind.namespaced and namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    return "/".join([*parts, kind.plural])


def _path_of(kind: Kind, namespace: str, name: str, subresource: str = "") -> str:
    """Of one object. Names that are steps of a path would lead to all of a kind: nobody has such a name."""
    if name in ("", ".", ".."):
        raise errors.NotFound(f'{kind.resource} "{name}" not found')
    if kind.namespaced and not namespace:
        _missing(kind, "metadata.namespace", f"say in which namespace {kind.singular} {name!r} is")
    return "/".join([_path(kind, namespace), quote(name, safe=""), *([subresource] if subresource else [])])


def _namespace(kind: Kind, obj: Object) -> str:
    if not kind.namespaced:
        return ""
    namespace: str = (obj.get("metadata") or {}).get("namespace") or ""
    if not namespace:
        _missing(kind, "metadata.namespace", f"a {kind.kind} lives in a namespace; name it")
    return namespace


def _missing(kind: Kind, field: str, why: str) -> NoReturn:
    cause = errors.Cause(field, why, "FieldValueRequired")
    raise errors.Invalid(f"{kind.kind} is invalid: {field}: Required value: {why}", [cause])


def _whole(kind: Kind, obj: Object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


def _dry(dry_run: bool) -> Mapping[str, str | int]:
    return {"dryRun": "All"} if dry_run else {}
