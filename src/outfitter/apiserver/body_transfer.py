"""Bodies in transfer: those of requests are read up to the limit, large ones of responses are sent in parts as the client
reads them, and the large ones together are bounded, so that many clients cannot take the memory of the server. Called by
`app`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from outfitter.apiserver import negotiate
from outfitter.errors import BadRequest, TooLarge, TooManyRequests

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
SMALL = 64 << 10  # bytes of a body that is not counted
PART = 32 << 10  # bytes that are sent at once


class InflightBytes:
    """Counts the bytes of large bodies in flight."""

    def __init__(self, limit: int, refused: Callable[[str, str], None] = lambda reason, message: None) -> None:
        """`refused` is called with reason and message."""
        self.taken = 0
        self._limit, self._refused = limit, refused

    @contextlib.contextmanager
    def transfer(self) -> Iterator[Transfer]:
        current = Transfer(self)
        try:
            yield current
        finally:
            self.taken -= current.size

    def check(self, more: int) -> None:
        """A single body is never too large for the limit; TooManyRequests: there are others."""
        if self.taken and self.taken + more > self._limit:
            message = f"bodies of other requests take {self.taken} of {self._limit} bytes; try again later"
            self._refused("max_inflight_bytes", message)
            raise TooManyRequests(message)


class Transfer:
    """One request and its response."""

    def __init__(self, inflight: InflightBytes) -> None:
        self._inflight, self.size = inflight, 0

    def grow(self, size: int) -> None:
        """The body has this size, or more."""
        if size > max(self.size, SMALL):
            self._inflight.check(size - self.size)
            self._inflight.taken += size - self.size
            self.size = size


async def read(
    headers: Mapping[bytes, bytes], receive: Receive, transfer: Transfer, most: int = negotiate.MAX_BODY
) -> bytes:
    """The body of a request, of at most so many bytes."""
    given = headers.get(b"content-length", b"0").strip()
    too_large = TooLarge(f"Request entity too large: limit is {most}")
    if not given.isdigit():
        raise BadRequest("Content-Length is not a whole number")
    digits = given.lstrip(b"0") or b"0"
    if len(digits) > len(str(most)) or int(digits) > most:
        raise too_large
    transfer.grow(int(digits))
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client went away before its request was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise too_large
        transfer.grow(size)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def send_parts(send: Send, data: bytes, *, more: bool) -> None:
    """Send a body, or a piece of one if there is `more`, no faster than the client reads it."""
    start = 0
    while len(data) - start > PART:
        await send({"type": "http.response.body", "body": data[start:start + PART], "more_body": True})
        start += PART
    await send({"type": "http.response.body", "body": data[start:], "more_body": more})
