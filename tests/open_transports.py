"""Connections that a test leaves open fail that test, and those that it has closed are given the time to end.

asyncio reports a connection that is open when its event loop is closed once the garbage collector finds it, minutes later and
in whichever test runs then. TLS connections are closed by both sides: one that was closed at the end of a test may still wait
for the other side's part. So an event loop first waits for those, and names the others before it is closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

PATIENCE = 60.0  # seconds; the other side of a connection ends it in a fraction of one
_close = asyncio.SelectorEventLoop.close


def pytest_configure() -> None:
    """For as long as this process lives: a test may run pytest within it, which must not end it."""
    asyncio.SelectorEventLoop.close = _close_when_ended  # type: ignore[method-assign,assignment]


def _close_when_ended(loop: asyncio.BaseEventLoop) -> None:
    left: list[str] = []
    try:
        if not loop.is_closed() and not loop.is_running():
            left = _end_connections(loop)
    finally:
        _close(loop)
    if left:
        raise ResourceWarning(f"left open at the end of the event loop: {', '.join(left)}")


def _end_connections(loop: asyncio.BaseEventLoop) -> list[str]:
    """Those that were not closed, as text."""
    deadline = time.monotonic() + PATIENCE
    while (transports := _transports(loop)) and any(map(_ending, transports)) and time.monotonic() < deadline:
        loop.run_until_complete(asyncio.sleep(0.001))
    left = [_text(transport) for transport in transports]
    for transport in transports:
        transport.abort()
    if left:
        loop.run_until_complete(asyncio.sleep(0))  # asyncio closes sockets in the next iteration
    return left


def _transports(loop: asyncio.BaseEventLoop) -> list[asyncio.Transport]:
    """Of sockets that are open."""
    known: Mapping[int, asyncio.Transport] = getattr(loop, "_transports", {})
    return [transport for transport in list(known.values()) if getattr(transport, "_sock", None) is not None]


def _ending(transport: asyncio.Transport) -> bool:
    return transport.is_closing() or _secured(transport).is_closing()


def _secured(transport: asyncio.Transport) -> asyncio.Transport:
    """What the code that uses the connection has of it: with TLS, a transport on top of the socket's."""
    return getattr(transport.get_protocol(), "_app_transport", None) or transport


def _text(transport: asyncio.Transport) -> str:
    state = "closing" if _ending(transport) else "open"
    return (f"{state} connection of {type(_secured(transport).get_protocol()).__name__} from "
            f"{transport.get_extra_info('sockname')} to {transport.get_extra_info('peername')}")
