"""The hypervisor of a host whose pods a kubelet runs: the launchers in these pods, each reached over the socket in a volume of
its pod. `api.hypervisor.Hypervisor`, but for `start`, `attach_device` and `prepare_incoming`: a launcher builds its domain,
and what is plugged into it, itself (`start_vmi`, `plug_nic`, `expect_vmi`).

A socket on which nothing listens belongs to a launcher that has ended, with its QEMU: it is nothing that runs. A launcher that
listens and does not answer may run a domain: what is last known of it counts, and if nothing is, HypervisorAway."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from outfitter.api.hypervisor import Abilities, Domain, Ended, MigrationJob, MigrationLimits, MigrationTarget
from outfitter.api.launcher import launcher_paths
from outfitter.api.launcher.launcher_protocol import (
    AbilitiesState,
    ExpectedVmi,
    LauncherState,
    MigrateVmi,
    MigrationJobState,
    NicCall,
    PlugNic,
    StartVmi,
    VmCall,
)
from outfitter.errors import HypervisorAway, HypervisorError, NotReady
from outfitter.node.launcher_connection import (
    CALL_PATIENCE,
    CONNECT_PATIENCE,
    LauncherConnection,
    NoLauncher,
    away,
    connected_socket,
)
from outfitter.node.migration_proxy.byte_relay import ByteStream
from outfitter.node.migration_proxy.migration_proxy import MigrationProxy
from outfitter.node.migration_proxy.target_listener import LIMIT
from outfitter.store.clock import Clock, SystemClock

log = logging.getLogger(__name__)
MIGRATION_ADDRESS = ("", 8450)  # where a node agent listens while a VM arrives
COPY_ENDS = 0.5  # seconds between two looks at a copy that has arrived
VOLUMES = "volumes/kubernetes.io~empty-dir"  # of a pod, below its folder


class Launchers:
    def __init__(
        self, kubelet: Path, *, connect_patience: float = CONNECT_PATIENCE, call_patience: float = CALL_PATIENCE,
        migration_address: tuple[str, int] = MIGRATION_ADDRESS, clock: Clock | None = None,
    ) -> None:
        """`kubelet`: the kubelet's folder, which has the pods' folders. `migration_address`: of the `MigrationProxy`."""
        self._pods = kubelet / "pods"
        self.proxy = MigrationProxy(migration_address, self._dial, self._folder, clock=clock or SystemClock())
        self._connect_patience, self._call_patience = connect_patience, call_patience
        self._connections: dict[str, LauncherConnection] = {}  # by the pod's uid
        self._opening: dict[str, asyncio.Lock] = {}
        self._vmis: dict[str, str] = {}  # VMI -> its pod; a launcher speaks for no other VMI
        self._callbacks: list[Callable[[str], None]] = []
        self._closing: set[asyncio.Task[None]] = set()

    # -- which pod runs which VMI

    def assign(self, vmi: str, pod: str) -> None:
        """The agent knows from the API which pod runs a VMI: only that pod's launcher is asked about it."""
        self._vmis[vmi] = pod

    def forget(self, pod: str) -> None:
        """A pod is gone."""
        self._vmis = {vmi: other for vmi, other in self._vmis.items() if other != pod}
        self._opening.pop(pod, None)
        self._close(self.proxy.close_source(pod))
        if (connection := self._connections.pop(pod, None)) is not None:
            self._close(connection.close())

    def _close(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _folder(self, pod: str) -> Path:
        return self._pods / pod / VOLUMES / launcher_paths.VOLUME

    def _socket(self, pod: str) -> Path:
        return self._folder(pod) / launcher_paths.SOCKET

    async def _dial(self, pod: str, channel: str) -> ByteStream:
        """A socket in the folder of a pod into which a VM migrates. NotReady: nothing listens there."""
        try:
            client = await connected_socket(self._folder(pod) / launcher_paths.CHANNELS[channel], self._connect_patience)
            return ByteStream(*await asyncio.open_unix_connection(sock=client, limit=LIMIT))
        except (NoLauncher, HypervisorAway, OSError) as error:
            raise NotReady(f"the launcher of the target does not listen for {channel}: {error}") from error

    async def _connection(self, pod: str) -> LauncherConnection:
        """NoLauncher, or HypervisorAway."""
        known = self._connections.get(pod)
        if known is not None and known.lost is None:
            return known
        async with self._opening.setdefault(pod, asyncio.Lock()):
            known = self._connections.get(pod)
            if known is None or known.lost is not None:
                self._connections.pop(pod, None)
                changed = functools.partial(self._changed, pod)
                self._connections[pod] = await LauncherConnection.open(
                    pod, self._socket(pod), changed, connect_patience=self._connect_patience, patience=self._call_patience)
            return self._connections[pod]

    def _changed(self, pod: str) -> None:
        vmis = [vmi for vmi, other in self._vmis.items() if other == pod] or [""]
        for callback in self._callbacks:
            for vmi in vmis:
                callback(vmi)

    async def _of(self, vmi: str) -> LauncherConnection:
        """HypervisorAway: its launcher does not listen yet, or no more. HypervisorError: it is not known where it runs."""
        if (pod := self._vmis.get(vmi)) is None:
            raise HypervisorError(f"no pod on this host runs the VMI {vmi}")
        try:
            return await self._connection(pod)
        except NoLauncher as error:
            raise away(f"the launcher of pod {pod} does not listen: it has not started yet, or has ended") from error

    # -- the Protocol of api.hypervisor

    async def state(self, vmi: str) -> LauncherState:
        """Of one VMI."""
        return await (await self._of(vmi)).state()

    async def domains(self) -> Mapping[str, Domain]:
        found: dict[str, Domain] = {}
        for pod, state in (await self._states()).items():
            if state.domain is not None:
                domain = state.domain.to_domain()
                if self._vmis.get(domain.uid, pod) != pod:  # it is not this launcher's to report
                    domain = replace(domain, uid=f"pod/{pod}", foreign=True)
                found[domain.uid] = domain
        return found

    async def ended(self) -> Mapping[str, Ended]:
        return {state.ended.uid: state.ended.to_ended() for pod, state in (await self._states()).items()
                if state.ended is not None and self._vmis.get(state.ended.uid, pod) == pod}

    async def _states(self) -> dict[str, LauncherState]:
        """Of every launcher on this host, by pod."""
        pods = await asyncio.to_thread(self._listed)
        answers = await asyncio.gather(*map(self._state, pods), return_exceptions=True)
        found: dict[str, LauncherState] = {}
        for pod, answer in zip(pods, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                found[pod] = answer
        return found

    def _listed(self) -> list[str]:
        """Pods with a launcher's socket."""
        try:
            return sorted(path.name for path in self._pods.iterdir() if self._socket(path.name).exists())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise away(f"{self._pods} cannot be read: {error}") from error

    async def _state(self, pod: str) -> LauncherState | None:
        """None: nothing runs in the pod."""
        last = self._connections.get(pod)
        try:
            return await (await self._connection(pod)).state()
        except NoLauncher:
            return None
        except HypervisorAway as error:
            if not await asyncio.to_thread(self._socket(pod).exists):
                return None
            if last is not None and last.known is not None:
                log.warning("%s; its domain is assumed to run", error.message)
                return last.known
            raise

    async def abilities(self) -> Abilities:
        """Of any launcher: they have the same image. Used by nothing but readers of this host's state."""
        for pod in await asyncio.to_thread(self._listed):
            try:
                found = await (await self._connection(pod)).call("abilities", AbilitiesState)
            except NoLauncher:
                continue
            return Abilities(found.kvm, found.simulated, found.drives)
        return Abilities()

    async def start(self, domain: Domain) -> None:
        raise HypervisorError(f"{domain.name}: its launcher builds the domain, not the node agent")

    async def start_vmi(self, request: StartVmi) -> Domain | None:
        """Have the launcher of a VMI build and start its domain; a domain that runs is left as it is. The domain; None: it has
        ended already. StartFailed, HypervisorError, HypervisorAway as `Hypervisor.start`."""
        connection = await self._of(request.vmi["metadata"]["uid"])
        connection.stale()
        state = await connection.call("start", LauncherState, request)
        connection.stale()
        return state.domain.to_domain() if state.domain is not None else None

    async def pause(self, uid: str) -> None:
        await self._act("pause", uid)

    async def unpause(self, uid: str) -> None:
        await self._act("unpause", uid)

    async def reset(self, uid: str) -> None:
        await self._act("reset", uid)

    async def reboot(self, uid: str) -> None:
        await self._act("reboot", uid)

    async def attach_device(self, uid: str, element: str) -> None:
        raise HypervisorError(f"{uid}: its launcher builds what is plugged into its domain, not the node agent")

    async def plug_nic(self, request: PlugNic) -> None:
        """Have the launcher of a VMI plug an interface into its domain, as `Hypervisor.attach_device`."""
        await self._act("attach", request.vmi["metadata"]["uid"], request)

    async def detach_device(self, uid: str, alias: str) -> float | None:
        connection = await self._of(uid)
        try:
            return await connection.call("detach", float | None, NicCall(uid, alias))  # type: ignore[arg-type]
        finally:
            connection.stale()

    async def set_link(self, uid: str, alias: str, *, up: bool) -> None:
        await self._act("link", uid, NicCall(uid, alias, up))

    async def set_bridge(self, uid: str, alias: str, bridge: str) -> None:
        raise HypervisorError(f"{alias} of {uid} is attached by the network plugin of its pod, not to a bridge of the host")

    async def _act(self, method: str, uid: str, params: VmCall | NicCall | PlugNic | None = None) -> None:
        connection = await self._of(uid)
        try:
            await connection.call(method, type(None), params or VmCall(uid))
        finally:
            connection.stale()

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        """A launcher that does not listen has ended, with its domain."""
        if (pod := self._vmis.get(uid)) is None:
            return None
        try:
            connection = await self._connection(pod)
        except NoLauncher:
            return None
        return await connection.call("stop", float | None, VmCall(uid, grace))  # type: ignore[arg-type]

    # -- live migration: node agents pass on what launchers send (`migration_proxy`)

    async def prepare_incoming(self, domain: Domain) -> MigrationTarget:
        raise HypervisorError(f"{domain.name}: its launcher builds the domain, not the node agent")

    async def expect_vmi(self, request: StartVmi, migration: str) -> MigrationTarget:
        """Have the launcher of a pod be ready for the VMI of a migration, as `Hypervisor.prepare_incoming`."""
        connection = await self._of(request.vmi["metadata"]["uid"])
        expected = await connection.call("expect", ExpectedVmi, request)
        connection.stale()
        address = await self.proxy.open_target(migration)
        return replace(expected.to_target(), address=address, certificate=self.proxy.certificate, migration=migration)

    async def incoming(self) -> frozenset[str]:
        """The pod of a VMI that may arrive is the kubelet's to end."""
        return frozenset()

    async def cancel_incoming(self, uid: str) -> None:
        """Its pod is deleted: the kubelet ends the launcher, which cancels it."""

    async def migrate(self, uid: str, target: MigrationTarget, limits: MigrationLimits) -> None:
        """NotReady: the target's agent cannot be reached yet."""
        connection = await self._of(uid)
        job = await _job(connection, uid)
        if job is not None and not job.failed:
            if self.proxy.copies(connection.pod):
                return
            raise NotReady("the copy that another process of the node agent began has not ended yet")
        await self.proxy.open_source(connection.pod, target)
        await connection.call("migrate", type(None), MigrateVmi.of(uid, target, limits))

    async def migration(self, uid: str) -> MigrationJob | None:
        connection = await self._of(uid)
        job = await _job(connection, uid)
        if job is None or job.failed:
            connection.stale()  # whether it runs on, its caller reads from the domain
        if job is not None and not job.failed and not self.proxy.copies(connection.pod):  # of a process that was killed
            await connection.call("abort", type(None), VmCall(uid))
            return replace(job, failed="the node agent of the source was restarted")
        return job

    async def abort_migration(self, uid: str) -> None:
        connection = await self._of(uid)
        await connection.call("abort", type(None), VmCall(uid))
        connection.stale()
        job = await _job(connection, uid)
        if job is None:
            await self.proxy.close_source(connection.pod)

    async def end_source(self, pod: str, uid: str) -> float | None:
        """End the launcher of a VMI that runs in another pod. None: it has ended. A number: look again after so many
        seconds."""
        try:
            connection = await self._connection(pod)
            job = await _job(connection, uid)
            if job is not None and not job.failed:
                return COPY_ENDS  # the hypervisor is about to end it here
            await self.proxy.close_source(pod)
            await connection.call("stop", float | None, VmCall(uid))  # type: ignore[arg-type]
        except NoLauncher:
            await self.proxy.close_source(pod)
        return None

    def on_change(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        await self.proxy.close()
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()


async def _job(connection: LauncherConnection, uid: str) -> MigrationJob | None:
    found: MigrationJobState | None = await connection.call(
        "migration", MigrationJobState | None, VmCall(uid))  # type: ignore[arg-type]
    return found.to_job() if found is not None else None
