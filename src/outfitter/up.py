"""`outfit up`: everything in one process, until Ctrl-C or SIGTERM. Says where it listens and what to type next."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import outfitter
from outfitter import app
from outfitter.cli import broken_pipe
from outfitter.errors import StartupRefused
from outfitter.inventory import config, server_limits
from outfitter.inventory.config import Config
from outfitter.inventory.simulation import hosts_file
from outfitter.node.agent_host import AgentHost
from outfitter.roles import hosts as host_setup
from outfitter.roles import socket_folder
from outfitter.roles.process import loop_factory, spare_the_collector
from outfitter.roles.socket_folder import SocketFolder
from outfitter.scheduling.nova import alias

SIMULATED = "2x8"  # what is simulated when the host has nothing to offer


def run(
    *, data: Path, port: int, simulation: str | None, kubeconfig: Path | None, verbose: bool, settings: Path | None = None,
    hypervisor: str | None = None, accept_lost_writes: bool = False, limits: Sequence[str] = (), listed: Sequence[str] = (),
    kubelet_dir: Path | None = None,
) -> None:
    """`listed`: arguments --host."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr,
                        format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            loaded = config.load(settings, alias.check) if settings is not None else config.DEFAULT
            loaded = replace(loaded, server=server_limits.with_arguments(loaded.server, limits))
            hosts, why = choose(simulation, data.absolute(), loaded, hypervisor, listed)
            sockets = socket_folder.choose(hosts, kubelet_dir, data.absolute())
            runner.run(_serve(data.absolute(), port, sockets, why, kubeconfig=kubeconfig and kubeconfig.absolute(),
                              settings=loaded, accept_lost_writes=accept_lost_writes))
        except BrokenPipeError:
            raise  # the reader of the output is gone
        except OSError as error:  # a folder that may not be written, a disk that is full
            raise StartupRefused(f"outfitter cannot run with its data in {data.absolute()}: {error}") from error


async def _serve(
    data: Path, port: int, sockets: SocketFolder, why: str, *, kubeconfig: Path | None, settings: Config,
    accept_lost_writes: bool,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stop)
    async with app.embedded(data=data, hosts=sockets.hosts, config=settings, accept_lost_writes=accept_lost_writes) as product:
        spare_the_collector()
        written = await product.serve(data, port)
        if kubeconfig is not None:
            app.copy_kubeconfig(written, kubeconfig)
            written = kubeconfig
        off = not product.settings.features.device_assignment
        where = "none: the gate DeviceAssignment is off" if off else sockets.text
        print(_greeting(product, data, why, written, where), flush=True)
        await stop.wait()
        try:
            print("stopping; everything is kept in " + str(data), flush=True)
        except BrokenPipeError:  # the reader took the first lines and closed the pipe: the server goes on
            broken_pipe.discard_output(sys.stdout)


def _stop(event: asyncio.Event) -> None:
    if event.is_set():  # second signal: do not wait for clients
        os._exit(130)
    event.set()


def choose(
    simulation: str | None, data: Path | None, settings: Config = config.DEFAULT, hypervisor: str | None = None,
    listed: Sequence[str] = (),
) -> tuple[Sequence[AgentHost], str]:
    """The hosts of this run, and why these."""
    wanted = hypervisor not in (None, "simulated")
    if listed:
        if simulation is not None or hypervisor is not None:
            raise StartupRefused("--host excludes --simulate and --hypervisor: it names each host with its own hypervisor")
        assert data is not None
        arguments = [host_setup.HostArgument.parse(text) for text in listed]
        return host_setup.listed_hosts(arguments, data, settings), "as --host says"
    if simulation is not None:
        if wanted:
            raise StartupRefused(f"--simulate and --hypervisor {hypervisor} exclude each other: simulated hosts simulate "
                                 "their VMs")
        hosts = host_setup.simulated_hosts(hosts_file.from_argument(simulation).hosts, data, settings)
        return hosts, f"simulated as --simulate {simulation} says"
    name = host_setup.own_name()
    runs, said = host_setup.hypervisor(hypervisor, name, data)
    host = host_setup.this_host(name, runs, data, config=settings, empty=wanted)
    if host is not None:
        return [host], f"this host; {said}"
    hosts = host_setup.simulated_hosts(hosts_file.parse_shorthand(SIMULATED).hosts, data, settings)
    return hosts, "simulated, because this host has no device bound to vfio-pci to offer"


def _why_none(product: app.Embedded) -> str:
    """What to type when a configuration offers nothing at all."""
    listed = any(host.settings.device_spec is not None for host in product.hosts)
    return " (outfit devices --all, and outfit config check FILE, say why)" if listed and not product.offered else ""


def _greeting(product: app.Embedded, data: Path, why: str, kubeconfig: Path, sockets: str) -> str:
    hosts, server = product.hosts, product.server
    names = ", ".join(host.name for host in hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    own = "" if shutil.which("outfit") else f"  export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
    refused = "".join(f"\n  refused     {host.refusal.message}" for host in hosts if host.refusal is not None)
    return f"""outfitter {outfitter.__version__} is up
  API server  {server.url if server else "none"}
  hosts       {names} ({why}){refused}
  devices     {product.offered} offered{_why_none(product)}
  data        {data}
  sockets     {sockets}

In another terminal:
{own}  export KUBECONFIG={shlex.quote(str(kubeconfig))}
  outfit get nodes,resourceslices      or: kubectl get nodes,resourceslices
  outfit apply -f examples/01-one-vf   or: kubectl apply -f examples/01-one-vf
  outfit why vmi/blue

Ctrl-C stops it."""
