"""One HTTP/1.1 connection to a server: sends a request, parses its answer, and is used for the next one when that is over. An
answer is read whole, or as a stream (a watch), whose connection is not used again.

Knows neither TLS, addresses nor retries: `http_pool` opens connections. Every failure is an OSError: the connection is closed
then, and whether the server has executed the request is not known."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Protocol, cast

import httptools

MOST_BUFFERED = 1 << 20  # bytes of a stream that wait for their reader, before the server is made to wait
MOST_HEADERS = 1 << 20  # bytes of an answer's headers
READ_AT_ONCE = 1 << 16  # bytes
WRITE_AT_ONCE = 1 << 20  # bytes of a body that are passed to the transport in one step
ZIPPED = {"gzip": 47, "x-gzip": 47, "deflate": 47}  # Content-Encoding -> wbits of zlib, which finds out which of them it is


class HttpHeaders(Mapping[str, str]):
    """Headers of an answer, by name in upper or lower case. Several of one name are in `all` of it; the first is its value."""

    __slots__ = ("_fields",)

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self._fields = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in fields]

    def all(self, name: str) -> list[str]:
        wanted = name.lower()
        return [value for known, value in self._fields if known == wanted]

    def __getitem__(self, name: str) -> str:
        for value in self.all(name):
            return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self._fields))

    def __len__(self) -> int:
        return len({name for name, _ in self._fields})


class HttpAnswer:
    """Status and headers, and the body: whole, or in chunks while it arrives."""

    __slots__ = ("_connection", "_fields", "_headers", "body", "status")

    def __init__(self, connection: ClientConnection, status: int, fields: list[tuple[bytes, bytes]]) -> None:
        self._connection, self._fields = connection, fields
        self._headers: HttpHeaders | None = None
        self.status = status
        self.body = b""  # of an answer that was read whole

    @property
    def headers(self) -> HttpHeaders:
        if self._headers is None:
            self._headers = HttpHeaders(self._fields)
        return self._headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Of a stream, as they arrive, until it ends or the reader leaves; the connection is closed then."""
        try:
            while (chunk := await self._connection.next_chunk()) is not None:
                yield chunk
        finally:
            self._connection.abort()

    async def read(self) -> bytes:
        """The rest of a stream."""
        return b"".join([chunk async for chunk in self.chunks()])


class _Decoder(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class ClientConnection(asyncio.BufferedProtocol):
    """`released` is called with the connection when an answer is over and the next request may be sent, `lost` when it is
    closed."""

    def __init__(self, released: Callable[[ClientConnection], None], lost: Callable[[ClientConnection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._released, self._lost = released, lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[HttpAnswer] | None = None  # of the request that runs
        self._waiter: asyncio.Future[None] | None = None  # of a reader of a stream
        self._writable: asyncio.Future[None] | None = None  # of a body that the server does not read as fast
        self._broken: OSError | None = None
        self._running = self._streamed = self._paused = False
        self._sent = True  # all of the request
        self._until_closed = False  # the end of the answer is the end of the connection
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0  # of the loop's clock: when the last bytes arrived
        # One buffer: a new one for each read is dear where few bytes arrive. A view, as asyncio fills slices of it.
        self._received = memoryview(bytearray(READ_AT_ONCE))
        # Of the answer that arrives:
        self._answer: HttpAnswer | None = None
        self._fields: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._buffered = 0  # bytes of headers, or of chunks that were not read
        self._decoder: _Decoder | None = None
        self._complete = False

    # -- requests

    @property
    def is_reusable(self) -> bool:
        return self._broken is None and not self._running and self._transport is not None and not self._transport.is_closing()

    async def send(self, head: bytes, body: bytes, *, stream: bool, silence: float | None) -> HttpAnswer:
        """The answer: whole, or with `stream` as soon as its headers are there. `silence`: seconds without a byte after which
        the request fails."""
        assert self._transport is not None
        if self._broken is not None:
            raise self._broken
        self._running, self._streamed, self._sent = True, stream, False
        answered: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._answered = answered
        self._begin_answer()
        if silence is not None:
            self._heard = self._loop.time()
            self._timer = self._loop.call_later(silence, self._look, silence)
        try:
            if len(body) <= WRITE_AT_ONCE:
                self._transport.write(head + body if body else head)
                self._sent = True
            else:
                await self._send_large(self._transport, head, body, answered)
            return await answered
        except BaseException:
            self.abort()
            raise

    async def _send_large(
        self, transport: asyncio.Transport, head: bytes, body: bytes, answered: asyncio.Future[HttpAnswer]
    ) -> None:
        """In parts, so that the loop is not blocked. A server that has answered may not read the rest."""
        transport.write(head)
        view = memoryview(body)
        for start in range(0, len(view), WRITE_AT_ONCE):
            transport.write(view[start : start + WRITE_AT_ONCE])
            self._sent = start + WRITE_AT_ONCE >= len(view)
            while self._writable is not None and not answered.done():
                waited: list[asyncio.Future[Any]] = [self._writable, answered]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                return
            await asyncio.sleep(0)

    async def next_chunk(self) -> bytes | None:
        """What has arrived of a stream since; None: it is over."""
        while not self._chunks:
            if self._broken is not None and not self._complete:
                raise self._broken
            if self._complete:
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._buffered = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def abort(self) -> None:
        """Close without a TLS shutdown, which would outlive the caller and is of no use to the server."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(ConnectionAbortedError("the connection was closed"))

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclasses
        if self._broken is not None:  # it was closed before: asyncio makes a handshake that has not begun when it is cancelled
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
        if not self._running:  # bytes that are no answer to anything
            self.abort()
            return
        try:
            self._parser.feed_data(self._received[:nbytes])
        except (httptools.HttpParserError, zlib.error) as error:
            self._fail(ConnectionError(f"the answer is not HTTP/1.1: {error.__context__ or error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running and self._until_closed and exc is None:
            self._finish()
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError(str(exc or "the server closed the connection")))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # -- the parser

    def on_message_begin(self) -> None:
        if not self._running:
            raise ValueError("it goes on after its end")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))
        self._buffered += len(name) + len(value)
        if self._buffered > MOST_HEADERS:
            raise ValueError("its headers are too long")

    def on_headers_complete(self) -> None:
        self._buffered = 0
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, 103 Early Hints: the answer follows
            return
        self._answer = HttpAnswer(self, status, self._fields)
        length = chunked = False
        for name, value in self._fields:
            key = name.lower()
            if key == b"content-encoding" and (zipped := ZIPPED.get(value.decode("latin-1").strip().lower())):
                self._decoder = zlib.decompressobj(zipped)
            length, chunked = length or key == b"content-length", chunked or key == b"transfer-encoding"
        self._until_closed = not (length or chunked or status in (204, 304))
        if self._streamed and self._answered is not None and not self._answered.done():
            self._answered.set_result(self._answer)

    def on_body(self, body: bytes) -> None:
        if self._decoder is not None and not (body := self._decoder.decompress(body)):
            return
        self._chunks.append(body)
        if self._streamed:
            self._buffered += len(body)
            if self._buffered > MOST_BUFFERED and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
            self._wake()

    def on_message_complete(self) -> None:
        if self._answer is None:  # the end of a 1xx
            self._fields = []
            return
        self._finish()

    # -- state

    def _begin_answer(self) -> None:
        self._answer, self._decoder = None, None
        self._fields, self._chunks, self._buffered = [], [], 0
        self._complete = self._until_closed = False

    def _finish(self) -> None:
        """The answer is complete."""
        answer, answered = self._answer, self._answered
        assert answer is not None
        self._running, self._complete, self._answered = False, True, None
        self._cancel_timer()
        if not self._streamed:
            answer.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._chunks = []
        if self._until_closed or not self._sent or not self._parser.should_keep_alive():
            if self._transport is not None:
                self._transport.abort()
        elif not self._streamed:
            self._released(self)
        if answered is not None and not answered.done():
            answered.set_result(answer)
        self._wake()

    def _fail(self, error: OSError) -> None:
        if self._broken is None:
            self._broken = error
            self._lost(self)
        self._cancel_timer()
        if self._running:
            self._running = False
            if self._answered is not None and not self._answered.done():
                self._answered.set_exception(self._broken)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self, silence: float) -> None:
        """Whether the server has been silent for too long."""
        left = self._heard + silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look, silence)
            return
        self._fail(TimeoutError(f"no answer for {silence:g} s"))
        self.abort()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
