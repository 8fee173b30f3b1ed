"""`outfit config check` and `outfit config import-nova`: what a configuration file offers of a host, and how to convert
nova.conf. Use no server."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outfitter import errors
from outfitter.cli import params

if TYPE_CHECKING:
    from outfitter.inventory.config import Config, HostSettings
    from outfitter.inventory.device_spec import Comparison, DeviceSpec, DeviceSpecEntry
    from outfitter.inventory.host_devices import HostDevices
    from outfitter.inventory.host_tree import Tree
    from outfitter.inventory.pci import HostDevice
    from outfitter.inventory.providers import Plan
    from outfitter.inventory.scan import Scan
    from outfitter.scheduling.nova.alias_coverage import AliasCoverage
    from outfitter.scheduling.nova.flavor_claim import AliasSet

MAX_SHOWN = 5  # devices or entries named in one sentence
FOLDED = 3  # this many alike devices in a row are printed as one line


@click.group("config")
def config() -> None:
    """Check a configuration file, or convert nova.conf."""


@config.command("import-nova")
@click.argument("files", nargs=-1, required=True, metavar="NOVA_CONF...",
                type=params.Named(click.Path(dir_okay=False, path_type=Path)))
@click.option("-o", "--output", "output", metavar="FILE", type=params.Named(click.Path(dir_okay=False, path_type=Path)),
              help="Write to this new file (default: standard output).")
def import_nova(files: tuple[Path, ...], output: Path | None) -> None:
    """Convert nova.conf to a configuration file."""
    from outfitter.inventory import nova_conf  # noqa: PLC0415

    made = nova_conf.load(files)
    for warning in made.warnings:
        click.echo(f"warning: {warning}", err=True)
    if output is None:
        click.echo(made.text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(made.text)
    except FileExistsError as error:
        raise errors.Invalid(f"{output} already exists; remove it, or choose another name") from error
    except OSError as error:
        raise errors.Invalid(f"{output} cannot be written: {error}") from error


@config.command("check")
@click.argument("file", required=False, metavar="[FILE]", type=params.Named(click.Path(dir_okay=False, path_type=Path)))
@click.option("--sysfs", "root", metavar="DIR|FILE", type=params.Named(click.Path(path_type=Path)),
              help="Root of a tree that contains sys/, or a file of outfit scan --save (default: this host).")
@click.option("--simulate", "simulation", type=params.Hosts(), metavar="FILE|NxM", help="Check against simulated hosts.")
@click.option("--host", "host", metavar="NAME", help="Only this host; with --sysfs: the name of the host.")
def check(file: Path | None, root: Path | None, simulation: str | None, host: str | None) -> None:
    """Show which devices a configuration offers, and why not the rest."""
    from outfitter.cli import alias_check  # noqa: PLC0415
    from outfitter.inventory import config as configuration  # noqa: PLC0415
    from outfitter.scheduling.nova import alias, flavor_claim  # noqa: PLC0415

    if root is not None and simulation is not None:
        raise click.UsageError("--sysfs and --simulate exclude each other")
    settings = configuration.DEFAULT if file is None else configuration.load(file, alias.check)
    aliases = flavor_claim.AliasSet.of(settings.default)
    click.echo(f"{file} is valid" if file is not None else "no configuration file given: using defaults")
    for line in _scheduling(settings):
        click.echo(line)
    for line in alias_check.without_effect(settings):
        click.echo(line)
    hosts = list(_hosts(root, simulation, host))
    reports = {name: _report(name, settings.for_host(name), tree, aliases) for name, tree in hosts}
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, report in reports.items():
        alike.setdefault(report.lines, []).append(name)
    for lines, names in alike.items():
        click.echo("\n".join(["", _named(names), *lines]))
    unmatched = list(alias_check.summary({name: report.covered for name, report in reports.items() if not report.refused}))
    if unmatched:
        click.echo("\n".join(["", *unmatched]))
    for name in _unknown(settings, [name for name, _ in hosts]) if simulation is not None and host is None else ():
        click.echo(f"\nhosts.{name} matches none of these hosts")
    if refused := [name for name, report in reports.items() if report.refused]:
        raise errors.CommandFailed(f"these hosts would refuse to start with this configuration: {_few(refused)}")


@config.command("flavor")
@click.argument("file", metavar="FILE", type=params.Named(click.Path(dir_okay=False, path_type=Path)))
@click.argument("specs", nargs=-1, metavar="[EXTRA_SPEC=VALUE]...")
@click.option("--vcpus", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="CPUs of the flavor.")
@click.option("-o", "--output", "how", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How to print it.")
def flavor(file: Path, specs: tuple[str, ...], vcpus: int, how: str) -> None:
    """Show the device requests and the Placement query of a flavor."""
    from outfitter.cli import config_flavor  # noqa: PLC0415
    from outfitter.inventory import config as configuration  # noqa: PLC0415
    from outfitter.scheduling.nova import alias  # noqa: PLC0415

    if wrong := next((each for each in specs if "=" not in each), None):
        raise click.UsageError(f"{wrong!r} is not of the form EXTRA_SPEC=VALUE, such as pci_passthrough:alias=gpu:1")
    pairs = dict(each.split("=", 1) for each in specs)
    for line in config_flavor.lines(configuration.load(file, alias.check), pairs, vcpus=vcpus, how=how):
        click.echo(line)


def _hosts(root: Path | None, simulation: str | None, host: str | None) -> Iterator[tuple[str, Tree]]:
    """The hosts to check, by name."""
    from outfitter.cli.host import scan  # noqa: PLC0415
    from outfitter.inventory.simulation import hosts_file  # noqa: PLC0415

    if simulation is None:
        yield host or socket.gethostname(), scan.tree_at(root or Path("/"))
        return
    hosts = {simulated.name: simulated for simulated in hosts_file.from_argument(simulation).hosts}
    if host is not None and host not in hosts:
        raise errors.NotFound(f"{simulation} has no host {host!r}; it has {_few(list(hosts))}")
    for name in hosts if host is None else (host,):
        yield name, hosts[name].tree()


def _scheduling(settings: Config) -> Iterator[str]:
    """Policy and feature gates that differ from the defaults."""
    chosen = settings.scheduling
    if chosen.policy != "pack":
        yield f"hosts are chosen by {chosen.policy}"
    for gate, on in chosen.features.items():
        yield f"{gate} is {'on' if on else 'off'}"


def _unknown(settings: Config, hosts: Sequence[str]) -> list[str]:
    return [name for name in settings.hosts if name not in hosts]


def _named(hosts: Sequence[str]) -> str:
    return f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts alike: {_few(hosts)}"


def _few(words: Sequence[str]) -> str:
    rest = len(words) - MAX_SHOWN
    return ", ".join(words[:MAX_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class _CheckedHost:
    """What the configuration offers of a host."""

    lines: tuple[str, ...]
    refused: bool = False  # the host would refuse to start with it
    covered: tuple[AliasCoverage, ...] = ()


def _report(host: str, settings: HostSettings, tree: Tree, aliases: AliasSet) -> _CheckedHost:
    from outfitter.cli import alias_check, provisioning_check  # noqa: PLC0415
    from outfitter.inventory import host_devices, scan  # noqa: PLC0415
    from outfitter.scheduling.nova import alias_coverage  # noqa: PLC0415

    found = scan.scan(tree)
    try:
        seen = host_devices.host_devices(host, settings, found)
    except errors.Invalid as error:
        return _CheckedHost(
            ("  would refuse to start:", *(f"  - {cause.field}: {cause.message}" for cause in error.causes)), refused=True)
    report = _HostReport(settings, found, seen)
    placement, plan = report.placement(host, in_placement=aliases.in_placement)
    covered = tuple(alias_coverage.coverage(host, aliases, seen.offered, plan.providers)) if plan is not None else ()
    return _CheckedHost((*report.lines(), *provisioning_check.lines(host, settings, found), *placement,
                         *alias_check.lines(covered)), plan is None, covered)


@dataclass(slots=True)
class _Row:
    """One device as it is printed."""

    device: HostDevice
    place: int  # index among the devices of the host
    cells: tuple[str, ...]  # all but the address


class _HostReport:
    """The report on one host."""

    def __init__(self, settings: HostSettings, found: Scan, seen: HostDevices) -> None:
        from outfitter.inventory.mdev import Mdev  # noqa: PLC0415

        self.settings, self.found, self.seen = settings, found, seen
        self.devices = [device for device in found.devices if not device.is_bridge]
        self.places = {device.address: place for place, device in enumerate(self.devices)}
        self.along = {member.address: offer.device.address for offer in seen.offered if not isinstance(offer.device, Mdev)
                      for member in offer.members}
        self.stays = {
            withheld.device.address: withheld.reason for withheld in seen.withheld if not isinstance(withheld.device, Mdev)
        }

    def lines(self) -> Iterator[str]:
        bridges = len(self.found.devices) - len(self.devices)
        beside = f" and {_count(bridges, 'bridge')}, which cannot be assigned" if bridges else ""
        yield f"  has {_count(len(self.devices), 'device')}{beside}"
        if not self.found.devices and self.found.warnings:
            yield f"  {self.found.warnings[0]}"
        spec = self.settings.device_spec
        if spec is None:
            yield from self.without()
        else:
            yield from self.entries(spec)
        yield from self.mediated()

    def mediated(self) -> Iterator[str]:
        from outfitter.inventory.mdev import Mdev  # noqa: PLC0415

        given = Counter(
            (offer.device.parent, offer.device.type_id) for offer in self.seen.offered if isinstance(offer.device, Mdev)
        )
        if given:
            yield ""
        for (parent, type_id), count in given.items():
            yield f"  also offered: {_count(count, 'mediated device')} {type_id} of {parent}"

    def without(self) -> Iterator[str]:
        """The report when there is no device_spec."""
        given = [device for device in self.devices if device.address not in self.stays]
        yield ""
        yield f"  no device_spec, so devices bound to vfio-pci are offered: {_count(len(given), 'device')}"
        yield from self.table(given, None)
        yield from self.kept([device for device in self.devices if device.address in self.stays],
                             self.stays)

    def entries(self, spec: DeviceSpec) -> Iterator[str]:
        taken = spec.match(self.found.devices)
        compared = spec.compare(self.devices)
        for entry in spec.entries:
            matched = [device for device in self.devices if taken.get(device.address) is entry]
            yield ""
            yield f"  device_spec[{entry.index}] {entry.text}"
            if matched:
                yield f"    matches {_count(len(matched), 'device')}"
                yield from self.table(matched, entry)
            else:
                fits = {address: comparisons[entry.index] for address, comparisons in compared.items()}
                yield f"    matches nothing: {_nothing(taken, fits)}"
        if not spec.entries:
            yield ""
            yield "  device_spec is empty, so nothing is offered"
        rest = [device for device in self.devices if device.address not in taken]
        yield from self.kept(rest, {device.address: self.unlisted(device, compared[device.address]) for device in rest})

    def unlisted(self, device: HostDevice, compared: Sequence[Comparison]) -> str:
        """Why no entry matches a device, and whether it is assigned nevertheless."""
        if device.address in self.along:
            return f"matches no entry, but is assigned together with {self.along[device.address]}, whose IOMMU group it shares"
        near = max(range(len(compared)), default=None,
                   key=lambda index: (len(compared[index].met), -len(compared[index].unmet)))
        if near is None or not compared[near].met:
            return "no entry matches it"
        return f"device_spec[{near}] requires {' and '.join(compared[near].unmet)}"

    def table(self, devices: Sequence[HostDevice], entry: DeviceSpecEntry | None) -> Iterator[str]:
        from outfitter.inventory import providers  # noqa: PLC0415

        rows = []
        for device in devices:
            traits = ", ".join(sorted(providers.traits(device, entry)))
            reason = self.stays.get(device.address)
            note = f"but not offered: it {reason}" if reason else ""
            head = self.along.get(device.address, device.address)
            if head != device.address:  # counted with the device that the group is named after
                traits, note = "", f"assigned together with {head}, whose IOMMU group it shares"
            class_ = providers.resource_class(device, entry) if head == device.address else "-"
            rows.append(_Row(device, self.places[device.address], (f"{device.vendor}:{device.product}", class_, traits, note)))
        yield from _columns(rows)

    def kept(self, devices: Sequence[HostDevice], reasons: Mapping[str, str]) -> Iterator[str]:
        if not devices:
            return
        yield ""
        yield f"  not matched: {_count(len(devices), 'device')}"
        yield from _columns([_Row(device, self.places[device.address], (
            f"{device.vendor}:{device.product}", device.driver or "no driver",
            reasons[device.address])) for device in devices])

    def placement(self, host: str, *, in_placement: bool) -> tuple[tuple[str, ...], Plan | None]:
        """What is reported to Placement; None: the host would refuse to start because of it."""
        from outfitter.inventory import providers  # noqa: PLC0415

        asked = "request" if in_placement else "do not request"
        try:
            plan = providers.plan(host, self.settings, self.seen.offered, withheld=self.seen.withheld,
                                  orphans=self.seen.orphans)
        except errors.StartupRefused as error:
            return ("", "  would refuse to start:", *(f"  - {reason}" for reason in error.reasons)), None
        if not self.settings.report_in_placement:
            reported = "nothing is reported to Placement (report_in_placement is off)"
        else:
            reported = f"{_count(len(plan.providers), 'provider')} reported to Placement (report_in_placement is on)"
        return ("", f"  {reported}; aliases {asked} devices there (pci_in_placement is "
                    f"{'on' if in_placement else 'off'})",
                *(f"  warning: {warning}" for warning in plan.warnings)), plan


def _nothing(taken: Mapping[str, DeviceSpecEntry], compared: Mapping[str, Comparison]) -> str:
    """Why an entry matches no device; `compared` is how each device compares with it."""
    earlier: dict[int, list[str]] = {}
    for address, comparison in compared.items():
        if not comparison.unmet and address in taken:
            earlier.setdefault(taken[address].index, []).append(address)
    if earlier:
        return "its devices are matched earlier, " + " and ".join(
            f"by device_spec[{index}]: {_few(addresses)}" for index, addresses in earlier.items())
    near = max(compared, key=lambda address: len(compared[address].met), default=None)
    if near is None or not compared[near].met:
        return "no device matches"
    return f"no device matches; the nearest is {near}, which has {' and '.join(compared[near].met)}, but not " \
           f"{' and '.join(compared[near].unmet)}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _columns(rows: Sequence[_Row]) -> list[str]:
    """A table in which consecutive alike devices are one line."""
    lines: list[tuple[str, ...]] = []
    numbered = enumerate(rows)
    for _, run in groupby(numbered, key=lambda pair: (pair[1].cells, pair[1].device.kind, pair[1].device.parent,
                                                      pair[1].place - pair[0])):
        alike = [row for _, row in run]
        first, last = alike[0].device, alike[-1].device
        of = f" of {first.parent}" if first.parent else ""
        if len(alike) < FOLDED:
            lines += [(row.device.address, f"{row.device.kind}{of}", *row.cells) for row in alike]
        else:
            lines.append((f"{first.address} to {last.address}", f"{len(alike)} {first.kind}s{of}", *alike[0].cells))
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))] if lines else []
    return ["      " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True) if width).rstrip()
            for line in lines]
