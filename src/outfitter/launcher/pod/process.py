"""The process of `outfit launcher`: signals, libvirt daemon, socket and exit status. Called by `roles.launcher`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outfitter.api.launcher.launcher_outcome import Outcome
from outfitter.errors import HypervisorAway, StartupRefused
from outfitter.launcher import connection
from outfitter.launcher.libvirt import Libvirt
from outfitter.launcher.migration.simulated_channel import ChannelSimulated
from outfitter.launcher.pod import orphans
from outfitter.launcher.pod.container import Container
from outfitter.launcher.pod.libvirt_daemon import LibvirtDaemon
from outfitter.launcher.pod.migration_channels import MigrationChannels
from outfitter.launcher.pod.server import LauncherServer
from outfitter.launcher.pod.vm_launcher import VmLauncher

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LauncherOptions:
    socket: Path  # where the node agent connects
    state: Path  # folder for the domain's files: config drive, libvirt's state, simulated domains
    hypervisor: str = "libvirt"  # or "simulated", or a URI of libvirt
    root: Path = Path("/")  # below which device metadata files are read
    termination_log: Path = Path("/dev/termination-log")  # where Kubernetes reads why the container ended


async def run(options: LauncherOptions, stop: asyncio.Event, ready: Callable[[str], None]) -> int:
    """Until the guest has ended, or `stop` is set and it was shut down: the exit status. `ready` is called when it listens.
    StartupRefused: it cannot begin."""
    async with contextlib.AsyncExitStack() as exits:
        hypervisor, lost = await _hypervisor(options, exits)
        channels = MigrationChannels(
            options.socket.parent, hypervisor if isinstance(hypervisor, ChannelSimulated) else hypervisor.uri)
        exits.push_async_callback(channels.close)
        launcher = VmLauncher(hypervisor, Container(options.root), channels)
        if isinstance(hypervisor, ChannelSimulated):
            _simulate_signals(hypervisor, exits)
        await launcher.adopt()
        server = LauncherServer(launcher, options.socket)
        await server.start()
        exits.push_async_callback(server.close)
        ready(f"listening at {options.socket}")
        stopping = asyncio.ensure_future(stop.wait())
        exits.callback(stopping.cancel)
        stopping.add_done_callback(lambda task: None if task.cancelled() else launcher.shut_down())
        lost.add_done_callback(
            lambda task: None if task.cancelled() else launcher.finish(Outcome.hypervisor_lost(task.result())))
        outcome = await launcher.outcome
        _write_termination_message(options.termination_log, outcome)
        return outcome.status


async def _hypervisor(
    options: LauncherOptions, exits: contextlib.AsyncExitStack
) -> tuple[Libvirt | ChannelSimulated, asyncio.Future[str]]:
    """The hypervisor, and what is set when it is lost for good."""
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    exits.callback(never.cancel)
    if options.hypervisor == "simulated":
        return ChannelSimulated(options.state / "domains"), never
    uri, lost = options.hypervisor, never
    if uri != "libvirt" and "://" not in uri:
        raise StartupRefused(f"--hypervisor {uri}: it is libvirt, simulated, or a URI of libvirt such as qemu:///session")
    connection.library()
    if options.hypervisor == "libvirt":
        daemon = LibvirtDaemon(options.state)
        collecting = asyncio.ensure_future(orphans.collect(lambda: daemon.pid))
        exits.callback(collecting.cancel)
        exits.push_async_callback(daemon.stop)
        try:
            await daemon.start()
        except HypervisorAway as error:
            raise StartupRefused(error.message) from error
        uri, lost = daemon.uri, daemon.lost
    drives = options.state / "drives"
    drives.mkdir(parents=True, exist_ok=True)
    hypervisor = Libvirt(uri, drives=str(drives))
    exits.push_async_callback(hypervisor.close)
    return hypervisor, lost


def _simulate_signals(hypervisor: ChannelSimulated, exits: contextlib.AsyncExitStack) -> None:
    """A simulated guest has no power button inside: SIGUSR1 is a guest that shuts down, SIGUSR2 one that crashes."""

    def ends(reason: str, *, failed: bool) -> Callable[[], None]:
        return lambda: hypervisor.simulate_all_ended(reason, failed=failed)

    loop = asyncio.get_running_loop()
    for number, handler in ((signal.SIGUSR1, ends("the guest shut down", failed=False)),
                            (signal.SIGUSR2, ends("the simulated guest crashed", failed=True))):
        loop.add_signal_handler(number, handler)
        exits.callback(loop.remove_signal_handler, number)


def _write_termination_message(path: Path, outcome: Outcome) -> None:
    try:
        path.write_text(outcome.termination_message(), encoding="utf-8")
    except OSError as error:
        log.warning("why the launcher ended cannot be written to %s: %s", path, error)
