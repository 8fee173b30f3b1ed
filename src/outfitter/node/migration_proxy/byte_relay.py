"""Passes bytes between two connections until one of them ends. Used by both sides of the migration proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

CHUNK = 1 << 18  # bytes that are read at once
KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
UNANSWERED = 20_000  # milliseconds for which sent bytes may be unacknowledged: a node that is gone says nothing


@dataclass(frozen=True, slots=True)
class ByteStream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        self.writer.transport.abort()


def keep_alive(stream: ByteStream) -> None:
    """Have the kernel notice a peer that is gone without a word."""
    connection = stream.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED)


async def relay(one: ByteStream, other: ByteStream) -> None:
    """Until one side closes or breaks: what it sent is delivered, then both are closed. Neither of libvirt's and QEMU's
    protocols goes on in one direction alone."""
    both = [asyncio.ensure_future(_copy(one.reader, other.writer)), asyncio.ensure_future(_copy(other.reader, one.writer))]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        for stream in (one, other):  # before anything is awaited, which may be cancelled
            with contextlib.suppress(OSError):
                stream.writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the reader ends. What its peer does not take any more is dropped: the peer may have sent something before."""
    takes = True
    with contextlib.suppress(OSError):
        while content := await reader.read(CHUNK):
            if takes:
                try:
                    writer.write(content)
                    await writer.drain()
                except OSError:
                    takes = False
