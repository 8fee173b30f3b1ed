"""`/pods` over HTTP on a unix socket, for readers on the node itself: `pods-api/http.sock` below the kubelet's folder. A
process that may open the socket may read, so its permissions are those of the other readers' sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import uvicorn
from uvicorn.server import ServerState

from outfitter.errors import MethodNotAllowed, NotFound, OutfitterError, StartupRefused
from outfitter.node.kubelet.unix_server import LONGEST, SocketModes
from outfitter.node.readers.pods_page import PodsPage

AT_ONCE = 64  # connections; more are answered 503
JSON = [(b"content-type", b"application/json")]


class PodsSocket:
    def __init__(self, page: PodsPage, path: Path, modes: SocketModes) -> None:
        self.path, self._page, self._modes = path, page, modes
        self._server: asyncio.Server | None = None
        self._state = ServerState()
        self._inode = 0

    async def start(self) -> None:
        """StartupRefused: the socket cannot be created."""
        if len(os.fsencode(self.path)) > LONGEST:
            raise StartupRefused(f"{self.path} is too long for a unix socket, which has at most {LONGEST} characters: "
                                 "use a shorter --kubelet-dir")
        config = uvicorn.Config(self._answer, ws="none", lifespan="off", log_config=None, access_log=False, interface="asgi3",
                                proxy_headers=False, limit_concurrency=AT_ONCE)
        config.load()
        protocol: Any = config.http_protocol_class
        new = self.path.with_name(f".{self.path.name}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.parent.chmod(self._modes.folder)
            new.unlink(missing_ok=True)
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: protocol(config=config, server_state=self._state, app_state={}), str(new))
            new.chmod(self._modes.socket)
            self._inode = new.stat().st_ino
            new.replace(self.path)
        except OSError as error:
            raise StartupRefused(f"the socket {self.path} cannot be created: {error}") from error

    def is_served(self) -> bool:
        return self._server is not None and os.path.lexists(self.path)

    async def stop(self, grace: float) -> None:
        """Answers in progress have `grace` seconds; watches are ended."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            _, watches = await asyncio.wait(tasks, timeout=min(grace, 0.1))
            for task in watches:
                task.cancel()

    async def _answer(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        try:
            if scope["path"].rstrip("/") != "/pods":
                raise NotFound("there is /pods, and /pods?watch=true")
            if scope["method"] != "GET":
                raise MethodNotAllowed("only GET is allowed")
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            if self._page.watches(query):
                await self._watch(query, receive, send)
                return
            status, body = 200, self._page.pod_list(query)
        except OutfitterError as error:
            status = error.status
            body = msgspec.json.encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                        "message": error.message, "reason": error.kube_reason, "code": error.status})
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*JSON, length]})
        await send({"type": "http.response.body", "body": body})

    async def _watch(self, query: Mapping[str, str], receive: Any, send: Any) -> None:
        events = self._page.watch(query)
        piece = await anext(events)
        gone = asyncio.create_task(_until_gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        try:
            while True:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                following = asyncio.ensure_future(anext(events))
                await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    following.cancel()
                    await asyncio.wait({following})
                    return
                piece = following.result()
        except StopAsyncIteration:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            await events.aclose()


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
