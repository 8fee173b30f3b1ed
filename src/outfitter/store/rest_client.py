"""HTTP to one Kubernetes API server: sends requests with the credentials of a `RestConfig`, decodes answers, turns a Status
into one of our errors with the server's own message, and retries.

Only requests that cannot have written anything are retried: reads after a broken connection, and any request that the server
answered with 429. When the next one may be sent is the limiter's to say, for all requests of the process. Knows paths and
verbs, no kinds. Called by `kube.Kube` alone."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from outfitter import errors
from outfitter.api.kinds import Object
from outfitter.store.clock import Clock
from outfitter.store.http import object_decoder
from outfitter.store.http.client_connection import HttpAnswer
from outfitter.store.http.http_pool import HttpPool
from outfitter.store.request_limiter import LONGEST_WAIT, RequestLimiter
from outfitter.store.rest_config import Credential, RestConfig

BACKOFF = (0.1, 0.4, 1.6)  # seconds before each retry
ANSWER_TIMEOUT = 75.0  # seconds without a byte; the server itself gives up on a request after 60
WITH_BODY = ("POST", "PUT", "PATCH")  # methods whose requests name the length of their body, be it 0

Decode = Callable[[bytes], Object]  # raises msgspec.DecodeError
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
_UNSAFE = re.compile(r"[\r\n\0]")  # in a header: it would begin another one
_NOT_IN_TARGET = re.compile(r"[\x00-\x20\x7f]")
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
        self._pool = HttpPool(config.server, proxy=config.proxy, server_name=config.server_name)
        self._common: tuple[Credential, bytes] | None = None  # headers of every request, and the credential in them

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        content: str = JSON,
        *,
        accept: str = JSON,
        decode: Decode = object_decoder.decode,
    ) -> Object:
        """The object that the server answers."""
        headers = {"Accept": accept}
        data = None
        if body is not None:
            headers["Content-Type"] = content
            data = msgspec.json.encode(body)
        target = self._target(path, query)
        for wait in (*BACKOFF, None):
            answer = await self._attempt(method, target, headers=headers, body=data)
            if self._warn is not None:
                self._report_warnings(answer)
            if answer.status < 300:
                return self.decode(answer.body, decode)
            await self._wait_or_raise(method, path, answer, wait)
        raise AssertionError(_LAST_ATTEMPT)

    async def open_lines(self, path: str, query: Mapping[str, str | int]) -> AsyncGenerator[bytes, None]:
        """The lines of a GET that is answered as a stream (a watch), until the server ends it. The caller closes the
        generator, which closes the connection."""
        return _lines(await self._open_stream(path, query), self.config.server)

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
        answer = await self._attempt(method, self._target(path, query), headers={"Accept": JSON, **(headers or {})}, body=body)
        return answer.status, answer.headers, answer.body

    async def close(self) -> None:
        await self._pool.close()

    def decode(self, payload: bytes, decode: Decode = object_decoder.decode) -> Object:
        try:
            return decode(payload)
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

    def _report_warnings(self, answer: HttpAnswer) -> None:
        for line in answer.headers.all("Warning"):
            if self._warn and (warning := _WARNING.match(line)):
                self._warn(re.sub(r"\\(.)", r"\1", warning["text"]))

    async def _open_stream(self, path: str, query: Mapping[str, str | int]) -> HttpAnswer:
        target = self._target(path, query)
        for wait in (*BACKOFF, None):
            answer = await self._attempt("GET", target, headers={"Accept": JSON}, body=None, stream=True)
            if answer.status < 300:
                return answer
            await self._wait_or_raise("GET", path, answer, wait)
        raise AssertionError(_LAST_ATTEMPT)

    async def _wait_or_raise(self, method: str, path: str, answer: HttpAnswer, wait: float | None) -> None:
        """Return when a retry is allowed, else raise the server's error. A server that is too busy is waited for by the
        limiter, before any request is sent."""
        code, status = answer.status, self._status(answer.status, answer.body, path)
        error = self.status_error(code, status, answer.headers)
        retryable = code == 429 or (code == 503 and method == "GET")
        if wait is None or not retryable or not isinstance(error, errors.Unavailable) or error.retry_after > LONGEST_WAIT:
            raise error
        if not _is_busy(code, status, answer.headers):
            await self._clock.sleep(wait)

    def _record(self, method: str, answer: HttpAnswer) -> None:
        """Tell the limiter how the server answered."""
        code = answer.status
        if code in BUSY and _is_busy(code, status := self._status(code, answer.body), answer.headers):
            self.limiter.refused(method, code, _retry_after(status, answer.headers))
        else:
            self.limiter.answered(method, code)

    async def _attempt(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes | None, stream: bool = False
    ) -> HttpAnswer:
        """The server's answer, whatever its status; a read is retried when the connection breaks. The caller reads and closes
        a successful stream."""
        for wait in (*BACKOFF, None):
            try:
                await self.limiter.begin(counted=not stream)
                try:
                    answer = await self._send(method, target, headers, body, stream=stream)
                    if stream and answer.status < 300:
                        self.limiter.answered(method, answer.status)
                        return answer
                    if stream:
                        answer.body = await answer.read()
                finally:
                    self.limiter.end(counted=not stream)
                self._record(method, answer)
                return answer
            except OSError as error:
                self.limiter.failed(method)
                if method != "GET" or wait is None:
                    raise _connection_error(self.config.server, error) from error
            await self._clock.sleep(wait)
        raise AssertionError(_LAST_ATTEMPT)

    async def _send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, stream: bool
    ) -> HttpAnswer:
        """One request; a second one when the server answers 401 and a newer credential can be had."""
        renewed = False
        while True:
            credential = await self.config.credential()
            head = self._head(method, target, credential, headers, body)
            answer = await self._pool.send(head, body or b"", self.config.tls(credential), stream=stream,
                                           silence=None if stream else ANSWER_TIMEOUT)
            if answer.status != 401 or renewed or not await self.config.renew(credential):
                return answer
            renewed = True
            if stream:
                await answer.read()

    def _head(
        self, method: str, target: str, credential: Credential, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        """The first line and the headers of a request."""
        if self._common is None or self._common[0] != credential:
            # Nothing asks for compressed answers: they cost both sides more than a local network does.
            self._common = credential, _fields([*self._pool.fixed_headers(), ("User-Agent", self._user_agent),
                                                *self.config.headers_for(credential)])
        length = b"Content-Length: %d\r\n" % len(body or b"") if body or method in WITH_BODY else b""
        return b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (
            method.encode(), target.encode(), self._common[1], _fields(headers.items()), length)

    def _target(self, path: str, query: Mapping[str, str | int] | None) -> str:
        text = urlencode({key: value for key, value in query.items() if value != ""}, quote_via=quote) if query else ""
        target = self._pool.target(f"{path}?{text}" if text else path)
        if _NOT_IN_TARGET.search(target):
            raise errors.BadRequest(f"{target!r} is not the path of a request: quote its spaces and control characters")
        return target

    def _status(self, code: int, payload: bytes, path: str = "") -> Object:
        """The Status of an answer that is an error."""
        if code == 404 and payload.strip() == NO_PATH and (api := _API.match(path)):
            return {"message": f"{self.config.server} does not serve {api[1]}: outfit doctor says what this cluster lacks"}
        try:
            status = object_decoder.decode(payload)
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


async def _lines(answer: HttpAnswer, server: str) -> AsyncGenerator[bytes, None]:
    """The lines of a stream, however long, until it ends."""
    pending: list[bytes] = []
    try:
        async with contextlib.aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                head, *rest = chunk.split(b"\n")
                pending.append(head)
                if not rest:
                    continue
                *whole, tail = (b"".join(pending), *rest)
                pending = [tail]
                for line in whole:
                    if line.strip():
                        yield line
    except OSError as error:
        raise _connection_error(server, error) from error
    if b"".join(pending).strip():
        raise errors.Unavailable(f"{server} ended the watch in the middle of a change; watch again")


def _fields(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as they are sent."""
    lines = []
    for name, value in headers:
        if _UNSAFE.search(name) or _UNSAFE.search(value):
            raise errors.BadRequest(f"the header {name!r} has a line break or a null character in it")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


def _connection_error(server: str, error: OSError) -> errors.Unavailable:
    number = error.errno if not isinstance(error, ssl.SSLError) else None
    reason = os.strerror(number) if number and number > 0 else str(error) or type(error).__name__
    return errors.Unavailable(f"{server} cannot be reached or broke off: {reason}")
