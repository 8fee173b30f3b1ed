"""The sockets of a node's readers below the kubelet's folder: gRPC on `pod-resources/kubelet.sock` and
`pods-api/pods-api.sock`, `/pods` over HTTP on `pods-api/http.sock`, with the kubelet's permissions: folders 0750, so that
only root and its group reach them. A socket that was removed is created again. Started by the agent of a host without a
kubelet, once its informers are in sync."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from outfitter.errors import OutfitterError
from outfitter.node.kubelet.unix_server import SocketModes, UnixServer
from outfitter.node.readers.node_pods import NodePods
from outfitter.node.readers.pod_resources import PodResourcesService
from outfitter.node.readers.pods_api import PodsService
from outfitter.node.readers.pods_page import PodsPage
from outfitter.node.readers.pods_socket import PodsSocket
from outfitter.node.readers.rate_limit import RateLimit
from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
POD_RESOURCES, PODS_API, PODS_HTTP = "pod-resources/kubelet.sock", "pods-api/pods-api.sock", "pods-api/http.sock"
MODES = SocketModes(folder=0o750, socket=0o755)
CHECK_EVERY = 1.0  # seconds between two looks at the sockets
STOP_GRACE = 1.0  # seconds for calls in progress


class ReaderSockets:
    def __init__(self, pods: NodePods, folder: Path, *, clock: Clock) -> None:
        """`folder`: the kubelet's."""
        self._clock = clock
        self._servers: tuple[UnixServer | PodsSocket, ...] = (
            UnixServer(folder / POD_RESOURCES, PodResourcesService(pods, RateLimit()).handlers(), modes=MODES),
            UnixServer(folder / PODS_API, PodsService(pods, RateLimit()).handlers(), modes=MODES),
            PodsSocket(PodsPage([pods]), folder / PODS_HTTP, MODES))
        self._keeping: asyncio.Task[None] | None = None
        self._reported = ""

    async def start(self) -> None:
        """StartupRefused: a socket cannot be created."""
        for server in self._servers:
            await server.start()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        for server in self._servers:
            await server.stop(STOP_GRACE)

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY)
            for server in self._servers:
                if server.is_served():
                    continue
                try:
                    await server.stop(STOP_GRACE)
                    await server.start()
                    self._reported = ""
                except OutfitterError as error:
                    if error.message != self._reported:
                        log.warning("%s", error.message)
                    self._reported = error.message
