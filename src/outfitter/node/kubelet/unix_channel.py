"""gRPC channels to plugins, drivers and kubelets on unix sockets."""

from __future__ import annotations

from pathlib import Path

import grpc.aio

LARGEST = 4 << 20  # bytes of a message: gRPC's own limit


def unix_channel(socket: Path, *, largest: int = LARGEST) -> grpc.aio.Channel:
    """A channel with a connection of its own. Otherwise gRPC gives all channels to one address one connection: that to the
    process which served the socket before, while that lives or is just ending. Of a stream that is read slowly at most
    64 KiB, or one message, are taken in advance: gRPC would widen that to several MiB."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=[
        ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", largest),
        ("grpc.http2.bdp_probe", 0)])
