"""The lines that two node agents exchange before they pass bytes on: for which socket of the target's pod a connection is.
Pure.

    -> outfitter-migration/1 memory     <- ok
    -> outfitter-migration/1 libvirt    <- no the launcher does not listen"""

from __future__ import annotations

from outfitter.api.launcher import launcher_paths

GREETING = "outfitter-migration/1"
PROBE = "probe"  # no socket: only whether the target accepts the connection
ACCEPTED = b"ok\n"
MAX_LINE = 512  # bytes


def hello(channel: str) -> bytes:
    return f"{GREETING} {channel}\n".encode()


def parse_hello(line: bytes) -> str | None:
    """The channel; None: it is not such a line."""
    greeting, _, channel = line.decode(errors="replace").strip().partition(" ")
    return channel if greeting == GREETING and channel in (PROBE, *launcher_paths.CHANNELS) else None


def refused(why: str) -> bytes:
    return f"no {why}".replace("\n", " ").encode()[:MAX_LINE - 1] + b"\n"


def refusal(line: bytes) -> str:
    """Why a connection was refused; "" if it was accepted."""
    if line == ACCEPTED:
        return ""
    return line.decode(errors="replace").strip().removeprefix("no ") or "it closed the connection"
