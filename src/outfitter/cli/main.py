"""Every command of `outfit` with its arguments and options. Imports the code of a command only when it runs; called by
`__main__.py`, which passes in what `outfit up` starts and the commands of the roles of a cluster."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import outfitter
from outfitter.cli import broken_pipe, params
from outfitter.cli.config import config
from outfitter.cli.host.cni_devices import cni_devices
from outfitter.cli.host.scan import scan
from outfitter.cli.install.command import install
from outfitter.cli.vm import migrate_command
from outfitter.cli.vm.device_group import device as vm_device
from outfitter.cli.vm.nic_group import nic
from outfitter.errors import Invalid, OutfitterError

Up = Callable[..., None]
DEFAULT_PORT = 7443


def main(*, up: Up, roles: Sequence[click.Command] = (), arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error is one clear line and exit status 1, a wrong call exit status 2. `roles`: the commands of the
    processes of a cluster."""
    try:
        _run(commands(up, roles), arguments)
    except (broken_pipe.BrokenPipe, BrokenPipeError):
        broken_pipe.discard_output(sys.stdout, sys.stderr)
        sys.exit(broken_pipe.STATUS)


def _run(command: click.Group, arguments: Sequence[str] | None) -> None:
    try:
        command.main(args=list(arguments) if arguments is not None else None, prog_name="outfit", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OutfitterError as error:
        click.echo(f"error: {_sentence(error)}", err=True)
        sys.exit(1)


def _sentence(error: OutfitterError) -> str:
    """The error with all of its causes, one per line: the server's own message lists ten at most."""
    if not isinstance(error, Invalid) or not error.title or len(error.causes) < 2:
        return str(error)
    return "\n  ".join([f"{error.title}:", *(f"{cause.field}: {cause.message}" for cause in error.causes)])


def commands(up: Up, roles: Sequence[click.Command] = ()) -> click.Group:
    @click.group(cls=broken_pipe.PipeSafeGroup, context_settings={"help_option_names": ["-h", "--help"]})
    @click.option("--kubeconfig", metavar="FILE", help="How to reach the API server (default: $KUBECONFIG, else that of "
                                                       "outfit up, else ~/.kube/config).")
    @click.option("-n", "--namespace", metavar="NAME", help="The namespace (default: the kubeconfig's).")
    @click.pass_context
    def outfit(context: click.Context, kubeconfig: str | None, namespace: str | None) -> None:
        """Assigns hardware to virtual machines.

        Begin with: outfit up. Options -n and --kubeconfig may also follow the command."""
        context.obj = {"kubeconfig": kubeconfig, "namespace": namespace}

    @outfit.command("up")
    @click.option("--data", type=params.Named(click.Path(file_okay=False, path_type=Path)), metavar="DIR",
                  help="Directory for all stored state (default: ~/.local/state/outfitter).")
    @click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, metavar="N",
                  help="The port on 127.0.0.1; 0 chooses a free one.")
    @click.option("--simulate", "simulation", type=params.Hosts(), metavar="FILE|NxM",
                  help="Simulate the hosts of a file, or N hosts with M virtual functions each.")
    @click.option("--config", "settings", type=params.Named(click.Path(dir_okay=False, path_type=Path)), metavar="FILE",
                  help="Which devices the hosts offer and how they are counted (default: devices bound to vfio-pci).")
    @click.option("--hypervisor", metavar="libvirt|simulated|URI",
                  help="Hypervisor for the VMs of this host (default: libvirt where it runs, else simulated).")
    @click.option("--host", "listed", multiple=True, metavar="NAME=URI[,root=DIR]",
                  help="A host with a libvirt and a tree (root) of its own; may be repeated (default: this host alone).")
    @click.option("--kubeconfig", type=params.Named(click.Path(dir_okay=False, path_type=Path)), metavar="FILE",
                  help="Also write the kubeconfig to this file (default: only to DIR/kubeconfig).")
    @click.option("--kubelet-dir", type=params.Named(click.Path(file_okay=False, path_type=Path)), metavar="DIR",
                  help="Serve device plugins and readers on sockets below this folder, as a kubelet does; of several "
                       "hosts, and of simulated ones, below DIR/NODE; none: on no socket (default: /var/lib/kubelet where "
                       "that is free, else kubelet in the data directory).")
    @click.option("--accept-lost-writes", is_flag=True,
                  help="Start although stored writes are missing or cannot be read; they are given up.")
    @click.option("--limit", "limits", multiple=True, metavar="NAME=N",
                  help="A limit of the API server, as in section server of the configuration file; may be repeated.")
    @click.option("-v", "--verbose", is_flag=True, help="Log more.")
    def up_command(
        *, data: Path | None, port: int, simulation: str | None, settings: Path | None, hypervisor: str | None,
        listed: tuple[str, ...], kubeconfig: Path | None, kubelet_dir: Path | None, accept_lost_writes: bool,
        limits: tuple[str, ...], verbose: bool
    ) -> None:
        """Run the whole product here, in one process."""
        from outfitter.cli.client import default_data  # noqa: PLC0415

        up(data=data or default_data(), port=port, simulation=simulation, settings=settings, hypervisor=hypervisor,
           kubeconfig=kubeconfig, kubelet_dir=kubelet_dir, accept_lost_writes=accept_lost_writes, limits=limits,
           listed=listed, verbose=verbose)

    for command in (*roles, _get, _apply, _delete, _describe, _why, _plan, _domxml, _vm, _devices,
                    _device, _history, _providers, scan, config, _doctor, install, cni_devices, _version):
        outfit.add_command(command)
    return outfit


def _run_command(context: click.Context, name: str, *arguments: Any, **options: Any) -> None:
    """Run a function of `object_commands`, or "module.function"; imported late, because a client costs a quarter of a
    second."""
    from outfitter.cli import client  # noqa: PLC0415

    module, _, function = name.rpartition(".")
    commands = importlib.import_module(f"outfitter.cli.{module or 'object_commands'}")
    client.run(context, lambda connected: getattr(commands, function)(connected, *arguments, **options))


@click.command("get")
@click.argument("words", nargs=-1, required=True, metavar="KIND[,KIND] [NAME...] | KIND/NAME...")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In every namespace.")
@click.option("-o", "--output", "how", type=click.Choice(["table", "wide", "yaml", "json", "name"]), default="table",
              help="How to show them (default: table).")
@click.option("-l", "--selector", "labels", default="", metavar="SELECTOR", help="Only with these labels.")
@click.option("--field-selector", "fields", default="", metavar="SELECTOR", help="Only with these fields.")
@params.connection_options
@click.pass_context
def _get(context: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Show objects."""
    _run_command(context, "get", words, **options)


@click.command("apply")
@click.option("-f", "--filename", "files", multiple=True, required=True, type=params.Named(), metavar="FILE|DIR|-",
              help="What to apply.")
@params.connection_options
@click.pass_context
def _apply(context: click.Context, files: tuple[str, ...]) -> None:
    """Create or update objects from files."""
    _run_command(context, "apply", files)


@click.command("delete")
@click.argument("words", nargs=-1, metavar="[KIND NAME... | KIND/NAME...]")
@click.option("-f", "--filename", "files", multiple=True, type=params.Named(), metavar="FILE|DIR|-",
              help="Delete the objects of a file.")
@click.option("--wait/--no-wait", default=True, help="Wait until the objects are gone, and print what blocks them.")
@click.option(
    "--timeout", type=params.Seconds(), metavar="SECONDS|5m", help="How long to wait; 0 means no limit (default: no limit)."
)
@params.connection_options
@click.pass_context
def _delete(
    context: click.Context, words: tuple[str, ...], files: tuple[str, ...], wait: bool, timeout: float | None
) -> None:
    """Delete objects."""
    if bool(words) == bool(files):
        raise click.UsageError("name what to delete: KIND NAME, KIND/NAME or -f FILE")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout limits the wait and cannot be combined with --no-wait")
    _run_command(context, "delete", words, files, wait=wait, timeout=timeout)


@click.command("describe")
@click.argument("words", nargs=-1, required=True, metavar="KIND NAME... | KIND/NAME...")
@params.connection_options
@click.pass_context
def _describe(context: click.Context, words: tuple[str, ...]) -> None:
    """Show an object in full, with its events."""
    _run_command(context, "describe", words)


@click.command("why")
@click.argument("words", nargs=-1, required=True, metavar="[vm/|vmi/|pod/|claim/|vmim/]NAME")
@click.option("-l", "--long", is_flag=True, help="List every host and every device.")
@click.option("-o", "--output", "how", type=click.Choice(["text", "json"]), default="text",
              help="How to show it (default: text).")
@params.connection_options
@click.pass_context
def _why(context: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Explain why a VM, pod or claim waits, or show what it holds."""
    _run_command(context, "why.why", words, **options)


@click.group("plan", invoke_without_command=True)
@click.option("-f", "--filename", "files", multiple=True, type=params.Named(), metavar="FILE|DIR|-",
              help="What to plan for.")
@click.option("-l", "--long", is_flag=True, help="List every host and every device.")
@click.option("-o", "--output", "how", type=click.Choice(["text", "json"]), default="text",
              help="How to show it (default: text).")
@params.connection_options
@click.pass_context
def _plan(context: click.Context, /, files: tuple[str, ...], **options: Any) -> None:
    """Show where VMs would go and which devices they would get."""
    if context.invoked_subcommand is not None:
        return
    if not files:
        raise click.UsageError("Missing option '-f' / '--filename'.")
    _run_command(context, "plan.plan", files, **options)


@_plan.command("migrate")
@click.argument("name")
@click.option("--to", metavar="HOST", help="The host to migrate to (default: any that can take it).")
@click.option("-o", "--output", "how", type=click.Choice(["text", "json"]), default="text",
              help="How to show it (default: text).")
@params.connection_options
@click.pass_context
def _plan_migrate(context: click.Context, /, name: str, **options: Any) -> None:
    """Show where a running VM would migrate to, or why it cannot."""
    _run_command(context, "vm.plan_migrate.migrate", name, **options)


@click.command("domxml")
@click.argument("name", required=False, metavar="[vmi/]NAME")
@click.option(
    "-f",
    "--filename",
    "file",
    type=params.Named(),
    metavar="FILE|-",
    help="A VirtualMachine or VirtualMachineInstance in a file.",
)
@click.option("--devices", multiple=True, type=params.Named(), metavar="FILE|DIR",
              help="Its deviceStatus in a file, or a folder of device metadata files.")
@click.option("--env", multiple=True, type=params.Named(), metavar="FILE", help="The launcher's environment: lines NAME=VALUE.")
@click.option("--type", "type_", type=click.Choice(["qemu", "kvm"]), default="qemu", help="The domain type (default: qemu).")
@click.option("--migration-target", "arriving", is_flag=True, help="Print the domain of the migration target instead.")
@click.option("--guest-metadata", is_flag=True, help="Print the guest's metadata of its tagged devices instead.")
@click.option("--drive", type=params.Named(), metavar="FILE", help="Write the image of its config drive to a file instead.")
@params.connection_options
@click.pass_context
def _domxml(context: click.Context, /, name: str | None, file: str | None, **options: Any) -> None:
    """Print the libvirt domain of a VMI."""
    if bool(name) == bool(file):
        raise click.UsageError(f"name a VMI: NAME or -f FILE{', not both' if name else ''}")
    if file:
        from outfitter.cli import domxml  # noqa: PLC0415

        domxml.print_from_file(file, context.obj["namespace"] or "default", **options)
        return
    _run_command(context, "domxml.print_from_server", name, **options)


STATES = ("free", "held", "reserved", "quarantined", "unhealthy", "unclean", "unlisted", "vanished", "blocked", "withheld")


@click.command("devices")
@click.option("--node", metavar="NAME", help="Only those of this node.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), metavar="STATE",
              help=f"Only those in this state: {', '.join(STATES)}. May be given several times.")
@click.option("-o", "--output", "how", type=click.Choice(["table", "wide", "tree", "json"]), default="table",
              help="How to show them (default: table).")
@click.option("--driver", "drivers", multiple=True, metavar="DRIVER", help="Only devices of this driver; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Include devices that are not offered, with the reason.")
@params.connection_options
@click.pass_context
def _devices(context: click.Context, /, **options: Any) -> None:
    """Show every device, its location and its holder."""
    _run_command(context, "device.listing.devices", **options)


@click.group("device")
def _device() -> None:
    """Take devices out of service, or return them to service."""


def _device_verb(name: str, text: str, *, reason: bool) -> None:
    def run(context: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
        _run_command(context, f"device.out_of_service.{name}", words, **options)

    run.__doc__ = text
    command = params.connection_options(click.pass_context(run))
    if reason:
        command = click.option("--reason", default="", metavar="TEXT", help="The reason, shown to users.")(command)
    command = click.argument("words", nargs=-1, required=True, metavar="[NODE/]DEVICE...")(command)
    _device.command(name)(command)


_device_verb("reserve", "Reserve devices: they are not allocated to new claims.", reason=True)
_device_verb("unreserve", "Return reserved devices to service.", reason=False)
_device_verb("quarantine", "Take devices out of service that must not be trusted.", reason=True)
_device_verb("restore", "Return quarantined devices to service.", reason=False)
_device_verb("clear", "Record that devices were cleaned after their use.", reason=False)


@click.group("vm")
def _vm() -> None:
    """See, start, stop and pause virtual machines."""


@_vm.command("list")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="In every namespace.")
@params.connection_options
@click.pass_context
def _vm_list(context: click.Context, everywhere: bool) -> None:
    """Show VMs with status, node, devices and reason."""
    _run_command(context, "vm.view.list_", everywhere=everywhere)


def _vm_verb(name: str, text: str, *more: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    def run(context: click.Context, /, names: tuple[str, ...], **options: Any) -> None:
        if options["wait"] and options["dry_run"]:
            raise click.UsageError("--wait cannot be combined with --dry-run: a dry run changes nothing")
        if options["timeout"] is not None and not options["wait"]:
            raise click.UsageError("--timeout limits --wait; add --wait")
        _run_command(context, f"vm.commands.{name.replace('-', '_')}", names, **options)

    run.__doc__ = text
    command = params.connection_options(click.pass_context(run))
    command = click.option("--dry-run", is_flag=True, help="Check whether the action is possible, and do nothing.")(command)
    for option in reversed(more):
        command = option(command)
    command = click.option("--timeout", type=params.Seconds(), metavar="SECONDS|5m",
                           help="How long to --wait; 0 means no limit (default: 5m plus the guests' grace period).")(command)
    command = click.option("--wait", is_flag=True, help="Wait until it is done, and print what blocks it.")(command)
    _vm.command(name)(click.argument("names", nargs=-1, required=True, metavar="NAME...")(command))


def _graces(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --grace-period, and --force, which means --grace-period 0; virtctl has both."""

    @functools.wraps(command)
    def run(*, force: bool, grace: int | None, **options: Any) -> Any:
        return command(grace=0 if force and grace is None else grace, **options)

    made = click.option("--force", is_flag=True, help="Do not wait for its guest: --grace-period 0.")(run)
    return click.option("--grace-period", "grace", type=click.IntRange(min=0), metavar="N",
                        help="Seconds for its guest to shut down (default: its spec's).")(made)


_paused_option = click.option("--paused", is_flag=True, help="Start with paused vCPUs.")
_vm_verb("start", "Start VMs.", _paused_option)
_vm_verb("stop", "Stop VMs; their own claims are kept, unless persistWhenStopped says otherwise.", _graces)
_vm_verb("restart", "Stop VMs and start them again.", _graces)
_vm_verb("pause", "Pause VMs: their vCPUs stop.")
_vm_verb("unpause", "Resume paused VMs.")
_vm_verb("soft-reboot", "Ask the guests of VMs to reboot.")
_vm_verb("reset", "Reset VMs without asking their guests.")
_vm.add_command(migrate_command.command)
_vm.add_command(nic)
_vm.add_command(vm_device)


@_vm.command("devices")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@params.connection_options
@click.pass_context
def _vm_devices(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the devices that VMs request and have."""
    _run_command(context, "vm.view.devices", names)


@click.command("history")
@click.argument("word", metavar="[NODE/]DEVICE")
@click.option("-o", "--output", "how", type=click.Choice(["table", "json"]), default="table",
              help="How to show it (default: table).")
@params.connection_options
@click.pass_context
def _history(context: click.Context, word: str, how: str) -> None:
    """Show a device's current and past bookings and how they ended."""
    _run_command(context, "history.history", word, how=how)


@click.group("providers", invoke_without_command=True)
@click.option("--node", metavar="NAME", help="Only those of this node.")
@click.option("-o", "--output", "how", type=click.Choice(["table", "tree", "json"]), default="table",
              help="How to show them (default: table).")
@params.connection_options
@click.pass_context
def _providers(context: click.Context, node: str | None, how: str) -> None:
    """Show hosts and devices as Placement counts them."""
    if context.invoked_subcommand is None:
        _run_command(context, "providers.providers", node=node, how=how)


@_providers.command("reserve")
@click.argument("provider")
@click.argument("count", type=click.IntRange(min=0), metavar="N")
@click.option("--class", "resource_class", metavar="CLASS", help="Which of its resource classes, if it has several.")
@params.connection_options
@click.pass_context
def _providers_reserve(context: click.Context, provider: str, count: int, resource_class: str | None) -> None:
    """Reserve N devices of a provider."""
    _run_command(context, "providers.reserve", provider, count, resource_class=resource_class)


@click.command("doctor")
@click.option("--host", is_flag=True, help="Check this host instead of the cluster.")
@click.option("--root", type=params.Named(click.Path(path_type=Path)), metavar="DIR|FILE",
              help="Check the host in a folder that contains sys/, or in a file made with outfit scan --save.")
@click.option("--config", "settings", type=params.Named(click.Path(dir_okay=False, path_type=Path)), metavar="FILE",
              help="The configuration file with the devices that the host should offer.")
@click.option("--data", type=params.Named(click.Path(path_type=Path)), metavar="DIR",
              help="The data directory of outfit up (default: ~/.local/state/outfitter).")
@click.option("--hugepages", "huge_pages", is_flag=True, help="The VMs of this host need huge pages.")
@click.option("--node-name", metavar="NAME",
              help="The node that this host should be (default: its host name, if a kubelet runs here).")
@click.option("-o", "--output", "how", type=click.Choice(["table", "json", "yaml"]), default="table",
              help="How to show the findings (default: table).")
@click.option("--explain", "code", metavar="CODE", help="Explain a code instead.")
@params.connection_options
@click.pass_context
def _doctor(context: click.Context, /, code: str | None, **options: Any) -> None:
    """Check the cluster or this host, and show remedies."""
    from outfitter.cli import client, doctor  # noqa: PLC0415

    if code is not None:
        doctor.explain(code)
    elif not client.run(context, lambda connected: doctor.doctor(connected, **options)):
        sys.exit(1)


@click.command("version")
@click.option("--client", "only_client", is_flag=True, help="Do not ask the server.")
@click.option("-o", "--output", "how", type=click.Choice(["text", "json"]), default="text",
              help="How to show them (default: text).")
@params.connection_options
@click.pass_context
def _version(context: click.Context, only_client: bool, how: str) -> None:
    """Print the versions of this program and of the server."""
    if not only_client:
        _run_command(context, "version.version", how=how)
    elif how == "json":
        click.echo(json.dumps({"clientVersion": {"gitVersion": outfitter.__version__}}))
    else:
        click.echo(f"outfit {outfitter.__version__}")
