"""Keeps the driver's two sockets in the kubelet's folder: `plugins/DRIVER/dra.sock`, which the kubelet calls, and
`plugins_registry/DRIVER-reg.sock`, by which it finds the driver. A socket that was removed, with its folder or alone, is
created again; the kubelet then registers the driver again. Started and stopped by `outfit node`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from outfitter.api.kinds import Object
from outfitter.errors import OutfitterError
from outfitter.node.kubelet.claim_driver import ClaimDriver
from outfitter.node.kubelet.health_service import HealthService
from outfitter.node.kubelet.services import DraService, RegistrationService
from outfitter.node.kubelet.unix_server import UnixServer
from outfitter.store.clock import Clock

log = logging.getLogger(__name__)
CHECK_EVERY = 1.0  # seconds between two looks at the sockets, as the kubelet looks for new ones
STOP_GRACE = 6.0  # seconds for calls in progress when the process ends, which has 8 for everything


class KubeletPlugin:
    def __init__(self, driver: ClaimDriver, folder: Path, *, clock: Clock, page: Callable[[], Object | None]) -> None:
        """`folder`: the kubelet's, /var/lib/kubelet. `page`: the host's, as an informer has it."""
        self._clock, name = clock, driver.host.driver
        self._folder, self._registry = folder, folder / "plugins_registry"
        endpoint = folder / "plugins" / name / "dra.sock"
        self.registration = RegistrationService(name, str(endpoint))
        self._dra = DraService(driver)
        health = HealthService(driver.host, page, clock=clock)
        self._called = UnixServer(endpoint, [*self._dra.handlers(), *health.handlers()], own_folder=True)
        self._found = UnixServer(self._registry / f"{name}-reg.sock", self.registration.handlers())
        self._watch: asyncio.Task[None] | None = None
        self._reported = ""

    async def start(self) -> None:
        """StartupRefused: a socket cannot be created. A kubelet that was never started here is waited for."""
        await self._serve()
        self._watch = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """The kubelet forgets the driver, then calls in progress are finished."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await self._found.stop(STOP_GRACE)
        await self._called.stop(STOP_GRACE)
        await self._dra.finish()

    async def _serve(self) -> None:
        """Create the sockets that are missing; first the one that is called, then the one by which it is found."""
        if not self._registry.is_dir():
            self._report(f"there is no folder {self._registry}: waiting for the kubelet, which creates it")
            return
        for server in (self._called, self._found):
            if not server.is_served():
                await server.stop(STOP_GRACE)
                await server.start()
        self._reported = ""

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(CHECK_EVERY)
            try:
                await self._serve()
            except OutfitterError as error:
                self._report(error.message)

    def _report(self, message: str) -> None:
        if message != self._reported:
            log.warning("%s", message)
        self._reported = message
