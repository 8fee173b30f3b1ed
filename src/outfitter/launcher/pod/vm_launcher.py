"""The launcher of one VMI: builds its domain, starts it, carries out what the node agent asks for, and ends with it.

The outcome tells the kubelet how the guest ended: the exit status of the process, and a termination message with the reason
that the VMI controller reads (`api.launcher_outcome`). Knows nothing of sockets: `server.py` calls it for the agent,
`process.py` for signals."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable

from outfitter.api.hypervisor import BY_USER, Domain, Ended, Hypervisor
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info, vm_actions
from outfitter.api.launcher import launcher_environment
from outfitter.api.launcher.launcher_outcome import Outcome
from outfitter.api.launcher.launcher_protocol import (
    AbilitiesState,
    DomainState,
    EndedState,
    ExpectedVmi,
    LauncherState,
    MigrateVmi,
    MigrationJobState,
    NicCall,
    PlugNic,
    StartVmi,
    VmCall,
)
from outfitter.errors import HypervisorAway, HypervisorError, StartFailed
from outfitter.launcher import domain as domains
from outfitter.launcher.domain_options import DomainOptions
from outfitter.launcher.nics import nic_hotplug
from outfitter.launcher.pod.container import Container
from outfitter.launcher.pod.migration_channels import MigrationChannels

log = logging.getLogger(__name__)
MARGIN = 1.0  # seconds before the end of the grace period, when the kubelet kills the container: the domain is destroyed first
STOP_AGAIN = 5.0  # seconds


class VmLauncher:
    def __init__(self, hypervisor: Hypervisor, container: Container, channels: MigrationChannels) -> None:
        self._hypervisor, self._container, self._channels = hypervisor, container, channels
        self._lock = asyncio.Lock()  # held while the domain starts or is stopped
        self._uid = ""  # of the VMI, once its start was tried
        self._grace = float(vm_actions.DEFAULT_GRACE)  # seconds that the guest has to shut down
        self._started = False  # its domain ran
        self._expected = False  # its domain is to arrive by a migration, and has not
        self._leaves = False  # its domain is being copied to another launcher, or was
        self._left = False  # it runs there
        self._ended: EndedState | None = None
        self._shutdown: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._looks: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[str], None]] = []
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        hypervisor.on_change(self._on_change)

    # -- the end

    def on_change(self, listener: Callable[[str], None]) -> None:
        """`listener` is called with the VMI's uid whenever its domain changed."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.remove(listener)

    def finish(self, outcome: Outcome) -> None:
        """The first one counts."""
        if not self.outcome.done():
            log.info("ending with status %d: %s: %s", outcome.status, outcome.reason, outcome.message)
            self.outcome.set_result(outcome)

    def shut_down(self) -> None:
        """SIGTERM: the guest has its grace period to shut down, then the domain is destroyed. A second call changes nothing."""
        if self._shutdown is None:
            self._shutdown = asyncio.ensure_future(self._shut_down())

    async def _shut_down(self) -> None:
        async with self._lock:  # a start that is under way is completed
            if self._expected:
                await self._cancel_incoming()
            elif self._uid and not self.outcome.done():
                await self._stop()
        self.finish(Outcome.migrated() if self._left else Outcome.stopped(
            "the guest was shut down on request" if self._started else "no VM was started"))

    async def _cancel_incoming(self) -> None:
        """Its migration has failed, or was cancelled: the VM runs on the source."""
        await self._channels.close()
        with contextlib.suppress(HypervisorAway, HypervisorError):
            await self._hypervisor.cancel_incoming(self._uid)
            if self._uid in await self._hypervisor.domains():  # it had arrived
                await self._hypervisor.stop(self._uid)

    async def _stop(self) -> None:
        """Until the domain is gone. While the hypervisor does not answer there is nothing else to do than to try again: the
        kubelet kills the container at the end of the period."""
        while True:
            self._changed.clear()
            try:
                left = await self._hypervisor.stop(self._uid, max(0.0, self._grace - MARGIN))
            except HypervisorAway as error:
                log.warning("%s", error.message)
                left = error.retry_after
            except HypervisorError as error:
                log.warning("%s; trying again", error.message)
                left = 1.0
            if left is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def _on_change(self, uid: str) -> None:
        self._changed.set()
        if uid not in ("", self._uid):
            return
        look = asyncio.ensure_future(self._look())
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)
        for listener in self._listeners:
            listener(self._uid)

    async def _look(self) -> None:
        """Whether the domain has ended by itself."""
        async with self._lock:
            if not (self._started or self._expected) or self._shutdown is not None or self.outcome.done():
                return
            try:
                domain = (await self._hypervisor.domains()).get(self._uid)
                if self._expected:
                    if domain is not None and not domain.migrating:
                        self._started, self._expected = True, False
                        await self._channels.close(arrived=True)
                    return
                if domain is not None:
                    return
                how = (await self._hypervisor.ended()).get(self._uid)
                if how is None and self._leaves:
                    self._left = True  # the agent ends this launcher once the VMI's status has the other pod
                    return
                await self._domain_ended(how or Ended("", True, "the VM no longer runs, and the hypervisor does not know why"))
            except HypervisorAway as error:  # it reports a change when it answers again
                log.warning("%s", error.message)

    async def _domain_ended(self, how: Ended) -> None:
        self._ended = EndedState(self._uid, how.name, how.failed, how.reason)
        with contextlib.suppress(HypervisorAway, HypervisorError):
            await self._hypervisor.stop(self._uid)  # undefines it
        self.finish(Outcome.domain_failed(how.reason) if how.failed else Outcome.stopped(how.reason))

    # -- what the agent calls

    async def adopt(self) -> None:
        """A domain of an earlier process of the same container."""
        running = [domain for domain in (await self._hypervisor.domains()).values() if not domain.foreign]
        for domain in running[:1]:
            log.warning("%s runs already and is adopted", domain.name)
            self._uid, self._started = domain.uid, True
        for uid, how in list((await self._hypervisor.ended()).items())[:1] if not running else ():
            self._uid = uid
            await self._domain_ended(how)

    async def abilities(self) -> AbilitiesState:
        found = await self._hypervisor.abilities()
        return AbilitiesState(found.kvm, found.simulated, found.drives)

    async def state(self) -> LauncherState:
        domain = (await self._hypervisor.domains()).get(self._uid) if self._uid else None
        return LauncherState(DomainState.of(domain) if domain is not None else None, self._ended)

    async def start(self, request: StartVmi) -> LauncherState:
        """Build the domain of the VMI and start it. A domain that runs is left as it is. StartFailed, HypervisorError: it
        cannot run here; the launcher ends."""
        uid = _uid(request.vmi)
        async with self._lock:
            if self._shutdown is not None or self.outcome.done():
                raise HypervisorAway("the launcher is ending")
            if self._uid not in ("", uid):
                raise HypervisorError(f"this launcher runs the VMI {self._uid}, and no other")
            if uid not in await self._hypervisor.domains():
                await self._start(uid, request)
            self._uid, self._started, self._grace = uid, True, float(vm_actions.grace_period(request.vmi))
            return await self.state()

    async def _start(self, uid: str, request: StartVmi) -> None:
        try:
            domain = await self._build(request)
            self._uid = uid
            await self._hypervisor.start(domain)
        except StartFailed as error:
            self.finish(Outcome.vmi_invalid(error.message))
            raise
        except HypervisorError as error:
            self.finish(Outcome.start_rejected(error.message))
            raise

    async def _build(self, request: StartVmi) -> Domain:
        files = self._container.files()
        wires = []
        if request.network_info:
            files[network_info.FILE] = request.network_info
            wires = list(network_info.read(request.network_info).values())
        merged = launcher_environment.merged_environment(request.env, self._container.environment())
        env = network_info.without_functions(merged, request.env.keys(), wires)
        abilities = await self._hypervisor.abilities()
        options = DomainOptions(type="kvm" if abilities.kvm else "qemu", simulated=abilities.simulated, drives=abilities.drives)
        domain = domains.build(request.vmi, env, files, options)
        return dataclasses.replace(domain, paused=BY_USER) if request.paused else domain

    # -- live migration

    async def expect(self, request: StartVmi) -> ExpectedVmi:
        """Be ready for the domain of a VMI, which runs in another launcher. StartFailed, HypervisorError: it cannot arrive
        here; the agent ends the migration, and with it this pod."""
        uid = _uid(request.vmi)
        async with self._lock:
            if self._shutdown is not None or self.outcome.done():
                raise HypervisorAway("the launcher is ending")
            if self._uid not in ("", uid) or self._started:
                raise HypervisorError(f"this launcher runs the VMI {self._uid}: no other can arrive")
            prepared = await self._hypervisor.prepare_incoming(await self._build(request))
            self._uid, self._expected, self._grace = uid, True, float(vm_actions.grace_period(request.vmi))
            return await self._channels.open(prepared.drive)

    async def migrate(self, request: MigrateVmi) -> None:
        """Begin to copy the domain to the launcher at the other end of the sockets in this launcher's folder."""
        self._checked(VmCall(request.uid))
        async with self._lock:
            self._leaves = True
            target = dataclasses.replace(self._channels.target(request.target), devices=request.devices)
            await self._hypervisor.migrate(request.uid, target, request.limits())

    async def migration(self, request: VmCall) -> MigrationJobState | None:
        job = await self._hypervisor.migration(self._checked(request))
        return MigrationJobState.of(job) if job is not None else None

    async def abort(self, request: VmCall) -> None:
        uid = self._checked(request)
        async with self._lock:
            await self._hypervisor.abort_migration(uid)
            if uid in await self._hypervisor.domains() and await self._hypervisor.migration(uid) is None:
                self._leaves = False

    async def pause(self, request: VmCall) -> None:
        await self._hypervisor.pause(self._checked(request))

    async def unpause(self, request: VmCall) -> None:
        await self._hypervisor.unpause(self._checked(request))

    async def reset(self, request: VmCall) -> None:
        await self._hypervisor.reset(self._checked(request))

    async def reboot(self, request: VmCall) -> None:
        await self._hypervisor.reboot(self._checked(request))

    async def attach(self, request: PlugNic) -> None:
        """Plug an interface of the VMI into its domain; one that it has is left as it is. HypervisorError: why it cannot be."""
        uid = _uid(request.vmi)
        self._checked(VmCall(uid))
        async with self._lock:
            domain = (await self._hypervisor.domains()).get(uid)
            if domain is None:
                raise HypervisorError(f"the VM of VMI {uid} does not run in this launcher")
            wire = network_info.read(request.network_info).get(request.name)
            if wire is None:
                raise HypervisorError(f"the network of interface {request.name!r} is not set up in this pod")
            if all(nic.name != request.name for nic in domain.nics):
                await self._hypervisor.attach_device(
                    uid, nic_hotplug.element(domain.xml, request.vmi, request.name, wire))

    async def detach(self, request: NicCall) -> float | None:
        return await self._hypervisor.detach_device(self._checked(request), request.alias)

    async def link(self, request: NicCall) -> None:
        await self._hypervisor.set_link(self._checked(request), request.alias, up=request.up)

    async def stop(self, request: VmCall) -> float | None:
        """Shut the guest down within a grace period that counts from the first call, then end. None: it is gone. A number:
        call again when it has ended, or after so many seconds."""
        self._checked(request)
        if self.outcome.done():
            return None
        self._grace = request.grace
        self._changed.set()
        self.shut_down()
        return STOP_AGAIN

    def _checked(self, request: VmCall | NicCall) -> str:
        if request.uid != self._uid:
            raise HypervisorError(f"the VM of VMI {request.uid} does not run in this launcher")
        return request.uid


def _uid(vmi: Object) -> str:
    meta = vmi.get("metadata")
    uid = meta.get("uid") if isinstance(meta, dict) else None
    if not isinstance(uid, str) or not uid:
        raise StartFailed("metadata.uid: the VMI has none")
    return uid
