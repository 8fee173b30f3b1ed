"""HTTP to one Kubernetes API server: sends requests with the credentials of a `RestConfig`, decodes answers, turns a Status
into one of our errors with the server's own message, and retries.

Only requests that cannot have written anything are retried: reads after a broken connection, and any request that the server
answered with 429. When the next one may be sent is the limiter's to say, for all requests of the process. Knows paths and
verbs, no kinds. Called by `kube.Kube` alone."""

from __future__ import annotations

import asyncio
import io
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from outfitter import errors
from outfitter.api.kinds import Object
from outfitter.store.clock import Clock
from outfitter.store.request_limiter import LONGEST_WAIT, RequestLimiter
from outfitter.store.rest_config import RestConfig

BACKOFF = (0.1, 0.4, 1.6)  # seconds before each retry
ANSWER_TIMEOUT = 75.0  # seconds without a byte; the server itself gives up on a request after 60
CONNECT_TIMEOUT = 10.0
LARGE_BODY = 1 << 20  # bytes; a larger body is streamed, so that the event loop is not blocked
KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))  # a dead peer ends a silent watch in 60 s

JSON = "application/json"
BUSY = (429, 503)
NO_PATH = b"404 page not found"  # of kube-apiserver, for a group or version that it does not have
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
_API = re.compile(r"/apis/([^/]+/[^/]+)/")
_LAST_ATTEMPT = "the last attempt returns or raises"


class RestClient:
    """`warn` receives the text of each Warning header of the server."""

    def __init__(
        self, config: RestConfig, limiter: RequestLimiter, *, clock: Clock, user_agent: str,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.config, self.limiter = config, limiter
        self._clock = clock
        self._user_agent = user_agent
        self._warn = warn
        self._session: aiohttp.ClientSession | None = None
        self._call_timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=ANSWER_TIMEOUT)
        self._watch_timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        content: str = JSON,
        *,
        accept: str = JSON,
        may_be_empty: bool = False,
    ) -> Object:
        """The object that the server answers. `may_be_empty`: a success without a body is returned as {}."""
        headers = {"Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = content
            data = msgspec.json.encode(body)
        url = self._url(path, query or {})
        for wait in (*BACKOFF, None):
            response, payload = await self._attempt(method, url, headers=headers, body=data)
            self._report_warnings(response)
            if response.status < 300:
                return self.decode(payload) if payload or not may_be_empty else {}
            await self._wait_or_raise(method, response, payload, wait)
        raise AssertionError(_LAST_ATTEMPT)

    async def open_lines(self, path: str, query: Mapping[str, str | int]) -> AsyncGenerator[bytes, None]:
        """The lines of a GET that is answered as a stream (a watch), until the server ends it. The caller closes the
        generator, which closes the connection."""
        return _lines(await self._open_stream(path, query))

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of one request, whatever the status. Unavailable when there is no answer."""
        url = self._url(path, query or {})
        response, payload = await self._attempt(method, url, headers={"Accept": JSON, **(headers or {})}, body=body)
        return response.status, response.headers, payload

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # the event loop closes the connections in its next iteration

    def decode(self, payload: bytes) -> Object:
        try:
            return msgspec.json.decode(payload, type=dict)
        except msgspec.DecodeError as error:
            raise errors.Unavailable(
                f"{self.config.server} answered something that is not a Kubernetes object ({error}):"
                f" {payload[:200].decode(errors='replace')}"
            ) from error

    def status_error(self, code: int, status: Object, headers: Mapping[str, str]) -> errors.OutfitterError:
        """A Status of the server as one of our errors. 5xx is Unavailable, as the request may have been executed."""
        details = status.get("details") or {}
        message = status.get("message") or status.get("reason") or f"{self.config.server} answered {code}"
        if code == 429 or code >= 500:
            return errors.Unavailable(message, _retry_after(status, headers) or 1.0)
        if code == 422:
            causes = [
                errors.Cause(
                    cause.get("field", ""), cause.get("message", ""), cause.get("reason") or "FieldValueInvalid"
                )
                for cause in details.get("causes") or ()
            ]
            which = ".".join(filter(None, (details.get("kind"), details.get("group"))))
            title = f'{which} "{details["name"]}" is invalid' if which and details.get("name") else ""
            return errors.Invalid(message, causes, title=title)
        if code == 409 and status.get("reason") == "AlreadyExists":
            return errors.AlreadyExists(message)
        if code == 403 and any(cause.get("reason") == "NamespaceTerminating" for cause in details.get("causes") or ()):
            return errors.Terminating(message)
        return BY_CODE.get(code, errors.BadRequest)(message)

    def _report_warnings(self, response: aiohttp.ClientResponse) -> None:
        for line in response.headers.getall("Warning", ()) if self._warn else ():
            if self._warn and (warning := _WARNING.match(line)):
                self._warn(re.sub(r"\\(.)", r"\1", warning["text"]))

    async def _open_stream(self, path: str, query: Mapping[str, str | int]) -> aiohttp.ClientResponse:
        url = self._url(path, query)
        for wait in (*BACKOFF, None):
            response, payload = await self._attempt("GET", url, headers={"Accept": JSON}, body=None, stream=True)
            if response.status < 300:
                return response
            await self._wait_or_raise("GET", response, payload, wait)
        raise AssertionError(_LAST_ATTEMPT)

    async def _wait_or_raise(
        self, method: str, response: aiohttp.ClientResponse, payload: bytes, wait: float | None
    ) -> None:
        """Return when a retry is allowed, else raise the server's error. A server that is too busy is waited for by the
        limiter, before any request is sent."""
        code, status = response.status, self._status(response.status, payload, response.url.path)
        error = self.status_error(code, status, response.headers)
        retryable = code == 429 or (code == 503 and method == "GET")
        if wait is None or not retryable or not isinstance(error, errors.Unavailable) or error.retry_after > LONGEST_WAIT:
            raise error
        if not _is_busy(code, status, response.headers):
            await self._clock.sleep(wait)

    def _record(self, method: str, response: aiohttp.ClientResponse, payload: bytes) -> None:
        """Tell the limiter how the server answered."""
        code = response.status
        if code in BUSY and _is_busy(code, status := self._status(code, payload), response.headers):
            self.limiter.refused(method, code, _retry_after(status, response.headers))
        else:
            self.limiter.answered(method, code)

    async def _attempt(
        self, method: str, url: URL, *, headers: Mapping[str, str], body: bytes | None, stream: bool = False
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The server's answer, whatever its status; a read is retried when the connection breaks. The caller reads and closes
        a successful stream."""
        for wait in (*BACKOFF, None):
            try:
                async with self.limiter.slot(counted=not stream):
                    response = await self._send(method, url, headers, body, stream=stream)
                    if stream and response.status < 300:
                        self.limiter.answered(method, response.status)
                        return response, b""
                    async with response:
                        payload = await response.read()
                self._record(method, response, payload)
                return response, payload
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.limiter.failed(method)
                if method != "GET" or wait is None:
                    raise _connection_error(self.config.server, error) from error
            await self._clock.sleep(wait)
        raise AssertionError(_LAST_ATTEMPT)

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> aiohttp.ClientResponse:
        """One request; a second one when the server answers 401 and a newer credential can be had."""
        renewed = False
        while True:
            credential = await self.config.credential()
            all_headers = self.config.headers_for(credential)
            all_headers.update(headers)
            response = await self._open_session().request(
                method,
                url,
                data=io.BytesIO(body) if body and len(body) > LARGE_BODY else body,
                headers=all_headers,
                ssl=self.config.tls(credential) or True,
                server_hostname=self.config.server_name or None,
                proxy=self.config.proxy or None,
                timeout=self._watch_timeout if stream else self._call_timeout,
                allow_redirects=False,
            )
            if response.status != 401 or renewed or not await self.config.renew(credential):
                return response
            renewed = True
            response.release()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_keepalive_socket),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": self._user_agent},
                # Compressing costs both sides more than a local network does.
                skip_auto_headers=("Accept-Encoding", "Content-Type"),
                middlewares=(_no_retry,),
            )
        return self._session

    def _url(self, path: str, query: Mapping[str, str | int]) -> URL:
        text = urlencode({key: value for key, value in query.items() if value != ""}, quote_via=quote)
        return URL(f"{self.config.server}{path}{'?' + text if text else ''}", encoded=True)

    def _status(self, code: int, payload: bytes, path: str = "") -> Object:
        """The Status of an answer that is an error."""
        if code == 404 and payload.strip() == NO_PATH and (api := _API.match(path)):
            return {"message": f"{self.config.server} does not serve {api[1]}: outfit doctor says what this cluster lacks"}
        try:
            status = msgspec.json.decode(payload, type=dict)
        except msgspec.DecodeError:
            status = {}
        if status.get("kind") != "Status":  # the answer of a proxy, or of a server that is not Kubernetes
            text = payload[:200].decode(errors="replace").strip()
            status = {"message": f"{self.config.server} answered {code}" + (f": {text}" if text else "")}
        return status


def _retry_after(status: Object, headers: Mapping[str, str]) -> float:
    """The seconds for which a server asks to be left alone; 0: it does not say."""
    header, details = headers.get("Retry-After", ""), status.get("details") or {}
    return float(details.get("retryAfterSeconds") or (int(header) if header.isascii() and header.isdigit() else 0))


def _is_busy(code: int, status: Object, headers: Mapping[str, str]) -> bool:
    """Whether the server itself is. 503 without a delay comes from a server behind it, which may be the only one away."""
    return code == 429 or (code == 503 and _retry_after(status, headers) > 0)


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
        raise _connection_error(str(response.url.origin()), error) from error
    finally:
        _abort(response)
    if b"".join(pending).strip():
        raise errors.Unavailable(f"{response.url.origin()} ended the watch in the middle of a change; watch again")


def _abort(response: aiohttp.ClientResponse) -> None:
    """Close the connection without a TLS shutdown, which would outlive the caller and is of no use to the server."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _no_retry(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Without this, aiohttp repeats a PUT or DELETE whose connection broke. The first may have been executed, and the second
    would then be answered with Conflict or NotFound because of our own write."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error) or type(error).__name__) from error


def _connection_error(server: str, error: Exception) -> errors.Unavailable:
    root: BaseException = error  # the operating system's error, without aiohttp's description of its own objects
    while root.__cause__ is not None:
        root = root.__cause__
    number = root.errno if isinstance(root, OSError) and not isinstance(root, ssl.SSLError) else None
    reason = os.strerror(number) if number and number > 0 else str(root) or type(root).__name__
    return errors.Unavailable(f"{server} cannot be reached or broke off: {reason}")


def _keepalive_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    new = socket.socket(info[0], info[1], info[2])
    new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            new.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return new
