"""One HTTP connection of the API server: uvicorn's protocol with limits on what a client may send and how long it may take,
which act before the application sees a request. Deadlines are checked by `listener.Listener` once a second.

A refused request is answered with a Status and ends its connection; the reason is counted in `Refusals`."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from outfitter.apiserver import auth, status
from outfitter.errors import BadRequest, HeadersTooLarge, OutfitterError, SlowRequest, shortened

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

    from outfitter.apiserver.listener import Listener

PART = 64 << 10  # bytes that are given to the parser at once
UNSENT = 16 << 10  # bytes beyond which a client that does not read is sent nothing more; TLS transports would hold 512 KiB
MAX_PIPELINED = 16  # requests that may wait on one connection while an earlier one is answered
MAX_LENGTH_DIGITS = 19  # of Content-Length: those of an integer of 64 bits


class HttpConnection(HttpToolsProtocol):
    def __init__(self, listener: Listener, address: str) -> None:
        super().__init__(listener.config, listener.state, {}, asyncio.get_running_loop())
        self.address, self.access_log = address, False
        self.read_deadline = listener.clock.monotonic() + listener.limits.read_header_timeout
        self.write_deadline = math.inf
        self._listener, self._limits, self._clock = listener, listener.limits, listener.clock
        self._peer: Any = None  # the client's certificate
        self._running: RequestResponseCycle | None = None  # the request that is being answered; later ones wait in `pipeline`
        self._released = False
        self._deaf = False  # what still comes is not read: the request was refused, or asked for another protocol
        self._refusal: tuple[str, OutfitterError] | None = None  # set where the parser calls back, sent when it returns
        self._in_head = True  # before or in the headers of a request; False: in its body
        self._head_bytes = self._body_bytes = self._framing = 0
        self._messages = 0

    # -- what comes in

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT)
        tls = transport.get_extra_info("ssl_object")
        self._peer = tls.getpeercert() if tls else None

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._in_head and self.read_deadline == math.inf:
            self.read_deadline = self._clock.monotonic() + self._limits.read_header_timeout
        rest = memoryview(data)
        while rest and not self._deaf:
            in_head = self._in_head
            part = rest[:min(PART, self._limits.max_header_bytes - self._head_bytes) if in_head else PART]
            rest = rest[len(part):]
            messages = self._messages
            self._feed(part)
            if self._deaf:
                return
            if self._in_head:
                self._head_bytes = self._head_bytes + len(part) if self._messages == messages else 0
                if self._head_bytes >= self._limits.max_header_bytes:
                    self._refuse("header_bytes", HeadersTooLarge(
                        f"the request line and headers have more than {self._limits.max_header_bytes} bytes"))
            elif not in_head:
                self._framing += len(part)
                if self._framing > 2 * self._body_bytes + self._limits.max_header_bytes:
                    self._refuse("malformed", BadRequest("the body is sent in chunks of too few bytes"))

    def _feed(self, part: memoryview) -> None:
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._deaf = True  # it is answered as HTTP, and then the connection ends
            if not self._busy:
                self._refuse("malformed", BadRequest("HTTP/1.1 is served, and no upgrade from it"))
        except httptools.HttpParserError as error:
            reason, refused = self._refusal or ("malformed", BadRequest(f"the request is not HTTP/1.1: {_reason(error)}"))
            self._refuse(reason, refused)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {auth.PEER: self._peer}

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._limits.max_header_fields:
            self._stop_parsing("header_fields", HeadersTooLarge(
                f"the request has more than {self._limits.max_header_fields} header fields"))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"content-length" and len(value) > MAX_LENGTH_DIGITS:
            self._stop_parsing("malformed", BadRequest(f"Content-Length has more than {MAX_LENGTH_DIGITS} digits"))
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop_parsing("pipelined_requests", BadRequest(f"more than {MAX_PIPELINED} requests wait for an answer"))
        self._in_head, self._head_bytes, self._body_bytes, self._framing = False, 0, 0, 0
        self.read_deadline = self._clock.monotonic() + self._limits.read_body_timeout
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._messages, self.read_deadline = True, self._messages + 1, math.inf

    # -- what goes out

    @property
    def _busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.write_deadline = self._clock.monotonic() + self._limits.write_timeout

    def resume_writing(self) -> None:
        super().resume_writing()
        self.write_deadline = math.inf

    # -- how it ends

    def check_deadlines(self, now: float) -> None:
        if now >= self.write_deadline:
            self._listener.refusals.add("write_timeout", f"client {self.address} did not read its response for "
                                        f"{self._limits.write_timeout} s ({self._request()}) and was disconnected")
            self.transport.abort()
        elif now >= self.read_deadline and not (self._in_head and self._busy):
            self._expire()

    def _expire(self) -> None:
        self.read_deadline = math.inf
        if not self._in_head:
            self._refuse("read_body_timeout", SlowRequest(
                f"the body was not complete {self._limits.read_body_timeout} s after the headers"))
        elif self._head_bytes:
            self._refuse("read_header_timeout", SlowRequest(
                f"the headers were not complete after {self._limits.read_header_timeout} s"))
        else:
            self._listener.refusals.add("read_header_timeout")
            self.transport.close()

    def finish(self) -> bool:
        """End with the request that is being answered; whether there is one that can be answered."""
        self._deaf = True
        self.pipeline.clear()
        if self._running is not None and self._busy and not self._running.more_body:
            self._running.keep_alive = False
            return not self.flow.write_paused
        if not self.transport.is_closing():
            self.transport.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._deaf, self.read_deadline, self.write_deadline = True, math.inf, math.inf
        self.pipeline.clear()
        if self._running is not None and self._busy:  # uvicorn does so with the newest request alone
            self._abandon(self._running)
        self.release()

    @staticmethod
    def _abandon(cycle: RequestResponseCycle) -> None:
        """The application learns that its client is gone, and what it sends is dropped."""
        cycle.disconnected = True
        cycle.message_event.set()

    def release(self) -> None:
        """It is no longer among the open ones; may be called twice."""
        if not self._released:
            self._released = True
            self._listener.release(self.address)

    def _stop_parsing(self, reason: str, error: OutfitterError) -> None:
        self._refusal = reason, error
        raise error

    def _refuse(self, reason: str, error: OutfitterError) -> None:
        self._deaf = True
        self._listener.refusals.add(reason, f"a request of client {self.address}: {error.message}")
        if self._running is not None and self._busy:
            if self._running.response_started or self._running is not self.cycle:
                self.transport.abort()  # an answer now would be taken for part of another
                return
            self._abandon(self._running)
        body = msgspec.json.encode(status.failure(error))
        head = b"".join(b"%s: %s\r\n" % field for field in self.server_state.default_headers)
        self.transport.write(STATUS_LINE[error.status] + head + b"content-type: application/json\r\ncontent-length: "
                             b"%d\r\nconnection: close\r\n\r\n" % len(body) + body)
        self.transport.close()

    def _request(self) -> str:
        """The request that is being answered, for the log."""
        return shortened(f"{self._running.scope['method']} {self._running.scope['path']!r}", 200) if self._running else ""


def _reason(error: Exception) -> str:
    return shortened(" ".join(str(error).split()) or type(error).__name__, 200)
