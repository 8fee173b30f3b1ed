"""`outfit vm migrate` and `virtctl`'s way of asking for it, as a user types them, on simulated hosts and between two libvirt
daemons. The test types commands and reads; it never calls libvirt to migrate."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.hypervisor import DRIVES
from tests.e2e.process import ROOT, Up, until
from tests.hardware import daemon
from tests.hardware.daemon import Daemon

PATIENCE = 300.0  # QEMU is slow on a loaded host
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: blue}
spec:
  terminationGracePeriodSeconds: 0
  networks: [{name: default, pod: {}}]
  domain: {memory: {guest: 32Mi}, devices: {interfaces: [{name: default, masquerade: {}}]}}
  volumes: [{name: seed, cloudInitNoCloud: {userData: "I am blue"}}]
"""


def vmi(up: Up) -> Any:
    return json.loads(up.ok("get", "vmi", "blue", "-o", "json"))


def host(up: Up) -> str:
    return str(vmi(up)["status"]["nodeName"])


@pytest.mark.thorough  # it waits for the copy
def test_migrate_shows_progress_and_says_where_it_runs(tmp_path: Path) -> None:
    with Up(tmp_path / "data", simulate="2x4") as up:
        up.ok("apply", "-f", "-", stdin=MACHINE)
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        source = host(up)
        target = {"node-0": "node-1", "node-1": "node-0"}[source]
        refused = up.outfit("vm", "migrate", "blue", "--to", source)
        assert refused.returncode == 1
        assert f"the VMI runs on {source} already" in refused.stderr
        assert "no such host" in up.outfit("vm", "migrate", "blue", "--to", "moon").stderr
        assert "dry run" in up.ok("vm", "migrate", "blue", "--dry-run")
        seen = up.ok("vm", "migrate", "blue", "--to", target, "--wait")
        assert f"blue migrates from {source} to {target}" in seen
        assert f"blue runs on {target}" in seen
        assert host(up) == target
        job = json.loads(up.ok("get", "vmim", "-o", "json"))["items"][0]["metadata"]["name"]
        assert "nothing is wrong" in up.ok("why", f"vmim/{job}")
        assert "nothing to cancel" in up.outfit("vm", "migrate", "blue", "--cancel").stderr
        up.kill()
        up.start()
        assert (host(up), up.phase("blue")) == (target, "Running"), "it is adopted where it runs"


@pytest.mark.thorough  # it waits for the copy
def test_blocks_of_the_page(tmp_path: Path) -> None:
    """Every command of the first block of docs/migration.md, then the manifest that it shows."""
    page = (ROOT / "docs" / "migration.md").read_text()
    commands, manifest = re.findall(r"(?:^    .*\n)+", page, re.MULTILINE)[:2]
    with Up(tmp_path / "data", simulate="2x4") as up:
        up.ok("apply", "-f", "-", stdin=MACHINE)
        until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
        source = host(up)
        for line in commands.split("\n"):
            if line.strip():
                assert up.ok(*line.split()[1:])
        assert host(up) != source
        other = {"node-0": "node-1", "node-1": "node-0"}[host(up)]
        up.ok("apply", "-f", "-", stdin=textwrap.dedent(manifest).replace("node-1", other))
        until(lambda: host(up) == other, "the manifest has moved it", PATIENCE)
        refused = up.outfit("apply", "-f", "-", stdin=textwrap.dedent(manifest).replace("name: move", "name: again").replace(
            "node-1", other))
        assert "spec.addedNodeSelector" in refused.stderr
        assert f"from {other}" in up.ok("plan", "migrate", "blue")


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[tuple[Up, dict[str, Daemon]]]:
    """Two libvirt daemons as two hosts."""
    with ExitStack() as stack:
        daemons = {name: stack.enter_context(daemon.own(name)) for name in ("host-a", "host-b")}
        words = []
        for name, made in daemons.items():
            (tmp_path / name).mkdir()
            words += ["--host", f"{name}={made.uri},root={tmp_path / name}"]
        up = Up(tmp_path / "data", *words, simulate=None)
        with up:
            yield up, daemons


@pytest.mark.libvirt
@pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")
def test_a_vm_moves_between_two_libvirt_daemons_and_back(two_hosts: tuple[Up, dict[str, Daemon]]) -> None:
    up, daemons = two_hosts
    assert "as --host says" in up.printed("hosts")
    up.ok("apply", "-f", "-", stdin=MACHINE)
    until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
    uid, source = vmi(up)["metadata"]["uid"], host(up)
    other = {"host-a": "host-b", "host-b": "host-a"}
    for leaves in (source, other[source]):
        goes = other[leaves]
        assert f"blue runs on {goes}" in up.ok("vm", "migrate", "blue", "--wait", "--timeout", "300")
        assert (host(up), up.phase("blue")) == (goes, "Running")
        assert daemons[goes].qemu("default_blue"), "QEMU runs there"
        drives = {name: Path(DRIVES) / name / f"{uid}.iso" for name in daemons}
        until(lambda: not drives[leaves].exists(), "the config drive is gone from the source", PATIENCE)  # noqa: B023
        assert b"I am blue" in drives[goes].read_bytes()
        until(lambda: len(_live_pods(up)) == 1, "the source's pod has ended", PATIENCE)
    up.kill()
    up.start()
    assert (host(up), up.phase("blue")) == (source, "Running"), "it is adopted where it runs"
    up.ok("delete", "vmi", "blue")
    until(lambda: not any((Path(DRIVES) / name / f"{uid}.iso").exists() for name in daemons), "nothing is left", PATIENCE)


def _live_pods(up: Up) -> list[Any]:
    return [pod for pod in json.loads(up.ok("get", "pods", "-o", "json"))["items"] if pod["status"]["phase"] == "Running"]


@pytest.mark.libvirt
@pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")
def test_a_target_whose_daemon_is_gone_leaves_the_vm_where_it_was(two_hosts: tuple[Up, dict[str, Daemon]]) -> None:
    up, daemons = two_hosts
    up.ok("apply", "-f", "-", stdin=MACHINE)
    until(lambda: up.phase("blue") == "Running", "blue runs", PATIENCE)
    source = host(up)
    target = {"host-a": "host-b", "host-b": "host-a"}[source]
    qemu = daemons[source].qemu("default_blue")
    daemons[target].kill()
    up.ok("vm", "migrate", "blue")
    job = until(lambda: json.loads(up.ok("get", "vmim", "-o", "json"))["items"], "the migration is there", PATIENCE)[0]
    until(lambda: up.ok("vm", "migrate", "blue", "--cancel"), "it is cancelled", PATIENCE)
    daemons[target].start()
    until(lambda: not json.loads(up.ok("get", "vmim", "-o", "json"))["items"], f"{job['metadata']['name']} is gone", PATIENCE)
    assert (host(up), daemons[source].qemu("default_blue")) == (source, qemu)
    assert f"blue runs on {target}" in up.ok("vm", "migrate", "blue", "--wait", "--timeout", "300")
