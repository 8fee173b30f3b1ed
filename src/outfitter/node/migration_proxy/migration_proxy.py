"""The migration proxy of one node agent: the port for VMs that arrive, and the sockets of pods whose VMs leave. Called by
`node.launchers`, which knows the pods."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

from outfitter.api.hypervisor import MigrationTarget
from outfitter.node.migration_proxy.proxy_certificate import ProxyCertificate
from outfitter.node.migration_proxy.source_channels import SourceChannels
from outfitter.node.migration_proxy.target_listener import Dial, TargetListener
from outfitter.store.clock import Clock


class MigrationProxy:
    def __init__(
        self, address: tuple[str, int], dial: Dial, folder: Callable[[str], Path], *, clock: Clock
    ) -> None:
        """`address`: where it listens and is reached. `folder`: of the sockets of a pod, by the pod's uid."""
        self._host, self._folder = address[0], folder
        self.towards = "127.0.0.1"  # without a host it is reached by the address with which this node reaches this one
        self._certificate = ProxyCertificate(clock)
        self._listener = TargetListener(address, self._certificate, dial)
        self._sources: dict[str, SourceChannels] = {}  # by the uid of the source's pod

    @property
    def certificate(self) -> str:
        """PEM: by which the agents of other nodes know this one."""
        return self._certificate.authority

    # -- target

    async def open_target(self, migration: str) -> str:
        """HOST:PORT at which the source's agent reaches this one. HypervisorError: nothing can listen there."""
        port = await self._listener.open(migration)
        host = self._host or own_address(self.towards)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def expect(self, migration: str, pod: str, source: str) -> None:
        """`source`: the certificate of the source's agent. HypervisorError: it is none."""
        self._listener.expect(migration, pod, source)

    def close_target(self, migration: str, *, arrived: bool) -> None:
        """The migration has ended; `arrived`: the VM runs here."""
        self._listener.forget(migration, arrived=arrived)

    # -- source

    def copies(self, pod: str) -> bool:
        """Whether this process passes on what the launcher of a pod sends."""
        return pod in self._sources

    async def open_source(self, pod: str, target: MigrationTarget) -> None:
        """NotReady: the target's agent cannot be reached yet. HypervisorError: it never can."""
        known = self._sources.get(pod)
        if known is not None and known.target == target:
            return
        await self.close_source(pod)
        channels = SourceChannels(self._folder(pod), target, self._certificate.client_context(target.certificate))
        await channels.probe()
        await channels.open()
        self._sources[pod] = channels

    async def close_source(self, pod: str) -> None:
        if (channels := self._sources.pop(pod, None)) is not None:
            await channels.close()

    async def close(self) -> None:
        for pod in list(self._sources):
            await self.close_source(pod)
        await self._listener.close()


def own_address(towards: str) -> str:
    """The address of this host on the way to another one; nothing is sent."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(towards).version == 6 else socket.AF_INET
        target = towards
    except ValueError:
        family, _, _, _, where = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        target = str(where[0])
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return str(probe.getsockname()[0])
