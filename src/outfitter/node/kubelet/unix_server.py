"""A gRPC server on a unix socket that, unless other modes are given, only its own user can reach. The socket appears under
its name when it is ready to be called, and replaces what a killed process left there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from outfitter.errors import StartupRefused

LONGEST = 107  # bytes of the path of a unix socket on Linux


@dataclass(frozen=True, slots=True)
class SocketModes:
    """Permissions of a socket and of its folder, which is created; a folder of 0 belongs to others and is left alone."""

    folder: int
    socket: int


PRIVATE, FOUND = SocketModes(0o700, 0o600), SocketModes(0, 0o600)


class UnixServer:
    def __init__(
        self, path: Path, handlers: Sequence[grpc.GenericRpcHandler], *, own_folder: bool = False,
        modes: SocketModes | None = None,
    ) -> None:
        """`own_folder`: the folder is the server's own, and is created."""
        self.path, self._handlers = path, handlers
        self._modes = modes or (PRIVATE if own_folder else FOUND)
        self._server: grpc.aio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """StartupRefused: the socket cannot be created."""
        # The kubelet ignores names with a dot in front, so it cannot see the socket before it is served.
        new = self.path.with_name(f".{self.path.name.removesuffix('.sock')}")
        if len(os.fsencode(self.path)) > LONGEST:
            raise StartupRefused(f"{self.path} is too long for a unix socket, which has at most {LONGEST} characters: "
                                 "use a shorter --kubelet-dir")
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(list(self._handlers))
        try:
            if self._modes.folder:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.parent.chmod(self._modes.folder)
            new.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{new}")
            new.chmod(self._modes.socket)
            await server.start()
            inode = new.stat().st_ino
            new.replace(self.path)
        except (OSError, RuntimeError) as error:  # gRPC raises RuntimeError when it cannot bind
            await server.stop(None)
            raise StartupRefused(f"the socket {self.path} cannot be created: {error}; outfit node must be allowed to write "
                                 "there") from error
        self._server, self._inode = server, inode

    def is_served(self) -> bool:
        """Whether there is a socket. One that a newer process put in the place of ours counts."""
        return self._server is not None and os.path.lexists(self.path)

    async def stop(self, grace: float) -> None:
        """No new call is accepted; calls in progress have `grace` seconds."""
        if self._server is None:
            return
        server, self._server = self._server, None
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        await server.stop(grace)
        await asyncio.sleep(0)
