"""/healthz, /livez, /readyz and /metrics of a role over plain HTTP, for the kubelet's probes and for Prometheus. Nothing here
changes anything or shows an object; the answers name no user and no device."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from uvicorn.server import ServerState

from outfitter.apiserver.health import ENDPOINTS, Health
from outfitter.apiserver.request import Response
from outfitter.errors import NotFound, StartupRefused
from outfitter.metrics import process_metrics
from outfitter.roles.process import RoleProcess

log = logging.getLogger(__name__)
AT_ONCE = 64  # connections; more are answered 503
PLAIN = "text/plain; charset=utf-8"


class HealthServer:
    """Serves one process, in its event loop."""

    def __init__(self, process: RoleProcess) -> None:
        self._process = process
        self._server: asyncio.Server | None = None
        self._state = ServerState()

    async def start(self, host: str, port: int) -> None:
        config = uvicorn.Config(self._answer, ws="none", lifespan="off", log_config=None, access_log=False, interface="asgi3",
                                proxy_headers=False, limit_concurrency=AT_ONCE)
        config.load()
        protocol: Any = config.http_protocol_class
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: protocol(config=config, server_state=self._state, app_state={}), host or None, port)
        except OSError as error:
            raise StartupRefused(f"health and metrics cannot be served on {host}:{port}: {error.strerror}; set another "
                                 "--health-address, or port 0 for a free one") from error
        where = self._server.sockets[0].getsockname()
        log.info("health and metrics at http://%s:%d", f"[{where[0]}]" if ":" in where[0] else where[0], where[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in list(self._state.connections):
                connection.shutdown()

    async def _answer(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        response = self._response(scope)
        headers = [(b"content-type", response.content_type.encode()), (b"content-length", str(len(response.data)).encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.data})

    def _response(self, scope: Mapping[str, Any]) -> Response:
        words = [word for word in str(scope["path"]).split("/") if word]
        if scope["method"] not in ("GET", "HEAD"):
            return Response(b"only GET and HEAD\n", 405, PLAIN)
        if words == ["metrics"]:
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            body, media = (self._process.metrics or process_metrics)(accept)
            return Response(body, 200, media)
        if words and words[0] in ENDPOINTS:
            started = {"started": lambda: self._process.started}
            health = Health(self._process.live_checks, {**started, **self._process.ready_checks})
            try:
                return health.answer(words, parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            except NotFound as error:
                return Response(f"{error}\n".encode(), 404, PLAIN)
        return Response(b"there are /healthz, /livez, /readyz and /metrics\n", 404, PLAIN)
