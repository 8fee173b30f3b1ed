"""`outfit doctor`: checks the cluster of the kubeconfig, or this host where there is none, and prints findings with the command
that mends each. Called by main."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import yaml

from outfitter.api.assignment.kubelet_folder import KUBELET_DIR, TRACES
from outfitter.cli.client import Client, default_data
from outfitter.cli.host import scan
from outfitter.doctor import cluster_checks, cluster_state, host_checks, host_state
from outfitter.doctor.codes import CODES
from outfitter.doctor.expected import from_manifests
from outfitter.doctor.finding import Finding, Level, count, error
from outfitter.doctor.host_state import LibvirtState
from outfitter.errors import BadRequest, NoKubeconfig, StartupRefused, Unauthorized, Unavailable
from outfitter.install import manifests, names
from outfitter.install.names import InstallOptions
from outfitter.inventory import config as configuration
from outfitter.inventory.device_spec import DeviceSpec
from outfitter.launcher import connection, libvirt
from outfitter.scheduling.nova import alias
from outfitter.store.clock import SystemClock

PATIENCE = 60.0  # seconds for the server to answer everything
COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
WIDTH = 110  # columns of a finding's text
THIS_HOST = Path("/")


async def doctor(
    client: Client, *, host: bool, root: Path | None, settings: Path | None, data: Path | None, huge_pages: bool,
    node_name: str | None, how: str,
) -> bool:
    """Print the findings; whether none is an error."""
    findings: list[Finding] = []
    about = []
    if not host and root is None:
        try:
            state = await _cluster(client)
            about.append(f"cluster {client.store.access.server}")
            findings += cluster_checks.check(state, node_name or _node_name())
            host = state.embedded and _runs_here(state)
        except NoKubeconfig as missing:
            about.append(f"no cluster ({missing.message.partition(';')[0]})")
            host = True
        except (Unavailable, Unauthorized, StartupRefused) as failed:
            about.append("cluster that does not answer")
            findings.append(error("cluster-reachable", f"{failed.message.rstrip('.')}.", "See whether the server runs and the "
                                  "kubeconfig is right; this host is checked instead.", "outfit version"))
            host = True
    if host or root is not None:
        source = root or THIS_HOST
        about.append("this host" if source == THIS_HOST else f"host {source}")
        findings += host_checks.check(_host(source, data), _device_spec(settings), huge_pages=huge_pages)
    click.echo(_shown(findings, ", ".join(about), how))
    return all(finding.level is not Level.ERROR for finding in findings)


def explain(code: str) -> None:
    if code not in CODES:
        raise BadRequest(f"there is no code {code!r}; there are {', '.join(sorted(CODES))}")
    click.echo(f"{code}: {CODES[code].checks}\n\n{textwrap.fill(CODES[code].explanation, WIDTH)}")


async def _cluster(client: Client) -> cluster_state.ClusterState:
    store, namespace = client.store, client.given_namespace or names.NAMESPACE

    def expected(companion: bool) -> cluster_state.Expected:
        return from_manifests(manifests.objects(InstallOptions(namespace=namespace, companion=companion)))

    try:
        async with asyncio.timeout(PATIENCE):
            return await cluster_state.collect(store, now=SystemClock().now(), namespace=namespace, expected=expected)
    except TimeoutError as late:
        raise Unavailable(f"{store.access.server} did not answer within {PATIENCE:g} s") from late


def _runs_here(state: cluster_state.ClusterState) -> bool:
    """Whether the embedded server serves the hardware of this host."""
    return any(not (node["metadata"].get("labels") or {}).get("outfitter.dev/simulated") for node in state.items("nodes"))


def _node_name() -> str:
    """The node that this host should be; "" where no kubelet runs."""
    return socket.gethostname().split(".")[0].lower() if any((KUBELET_DIR / name).exists() for name in TRACES) else ""


def _host(source: Path, data: Path | None) -> host_state.CollectedHost:
    folder = data or default_data()
    tree = scan.tree_at(source, "--root")
    here = source == THIS_HOST
    return host_state.collect(
        tree, source if source.is_dir() else None, data=folder if data or (here and folder.exists()) else None,
        libvirt=_libvirt() if here else None)


def _libvirt() -> LibvirtState:
    if reason := libvirt.unavailable_reason():
        return LibvirtState(reason)
    number = connection.library().getVersion()
    return LibvirtState("", f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}")


def _device_spec(settings: Path | None) -> DeviceSpec | None:
    if settings is None:
        return None
    loaded = configuration.load(settings, alias.check)
    return loaded.for_host(socket.gethostname().split(".")[0].lower()).device_spec


def _shown(findings: Sequence[Finding], about: str, how: str) -> str:
    if how == "table":
        return "\n".join(_lines(findings, about))
    value = {"about": about, "ok": all(finding.level is not Level.ERROR for finding in findings),
             "findings": [finding.to_object() for finding in findings]}
    return json.dumps(value, indent=2) if how == "json" else yaml.safe_dump(value, sort_keys=False, width=float("inf")).rstrip()


def _lines(findings: Sequence[Finding], about: str) -> Iterable[str]:
    yield f"checked: {about}"
    width = max((len(finding.code) for finding in findings), default=0)
    for finding in findings:
        before = f"{finding.level.value:<8} {finding.code:<{width}}  "
        yield _coloured(before, finding.level) + finding.message
        for text in filter(None, (finding.missing, f"$ {finding.command}" if finding.command else "")):
            yield " " * len(before) + text
    numbers = {level: sum(finding.level is level for finding in findings) for level in Level}
    yield (f"{count(numbers[Level.ERROR], 'error')}, {count(numbers[Level.WARNING], 'warning')}, {numbers[Level.OK]} ok"
           + ("; outfit doctor --explain CODE says more" if numbers[Level.ERROR] or numbers[Level.WARNING] else ""))


def _coloured(text: str, level: Level) -> str:
    """`click.echo` removes colours where the output is no terminal."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=COLOURS[level])
