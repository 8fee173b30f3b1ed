"""`outfit up` as a person starts it: what it says, how it ends, what it refuses, and that a restart changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outfitter.api import kinds
from outfitter.inventory import assignable, scan
from outfitter.inventory.host_tree import FolderTree
from outfitter.launcher.domain import NAMESPACE
from tests.e2e.process import EXAMPLE, PATIENCE, ForkedUp, Up, typed, until
from tests.node.kubelet.driver_host import short_folder

NOTHING_HERE = not assignable.assignable(scan.scan(FolderTree(Path("/"))).devices).offered
ANOTHER = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  resourceClaims: [{{name: network, resourceClaimTemplateName: one-vf}}]
  domain: {{devices: {{hostDevices: [{{name: nic0, claimName: network, requestName: nic}}]}}}}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The real command, for tests which only look; others start a process that has imported the product already."""
    with Up(tmp_path_factory.mktemp("up") / "data", simulate="2x3") as up:
        yield up


def test_start_prints_address_and_next_commands(running: Up) -> None:
    assert running.printed("API server").startswith("https://127.0.0.1:")
    assert running.printed("hosts") == "node-0, node-1 (simulated as --simulate 2x3 says)"
    assert running.printed("devices") == "6 offered"
    assert running.printed("data") == str(running.data)
    assert f"export KUBECONFIG={running.kubeconfig}" in running.said
    assert running.printed("API server") in running.kubeconfig.read_text()
    assert stat.S_IMODE(running.kubeconfig.stat().st_mode) == 0o600
    assert stat.S_IMODE(running.data.stat().st_mode) == 0o700
    assert not running.log()


def test_every_printed_command_works(running: Up) -> None:
    told = [line.split(" or:")[0].split()[1:] for line in running.said.splitlines() if line.startswith("  outfit ")]
    assert [words[0] for words in told] == ["get", "apply", "why"]
    for words in told:
        running.ok(*words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_it_in_order_with_open_watches(data: Path, number: signal.Signals) -> None:
    command = Up if number == signal.SIGINT else ForkedUp  # the real one, too
    with command(data) as up:
        asyncio.run(_stop_under_a_watch(up, number))
        assert "stopping; everything is kept in" in up.hear("kept in")
        assert up.end() == 0
        assert not up.log()
    with ForkedUp(data) as up:  # nothing was left that would be in the way
        assert up.stop() == 0


async def _stop_under_a_watch(up: Up, number: int) -> None:
    async with up.store() as store:
        since = (await store.list(kinds.NODE)).revision
        watch = store.watch(kinds.NODE, since=since)
        waiting = asyncio.ensure_future(anext(watch, None))
        await store.patch(kinds.NODE, "node-0", {"metadata": {"labels": {"seen": "yes"}}})
        assert (await asyncio.wait_for(waiting, PATIENCE)) is not None  # the watch is really open
        waiting = asyncio.ensure_future(anext(watch, None))
        up.send(number)
        assert await asyncio.wait_for(waiting, PATIENCE) is None  # and ended in order, not broken off


def test_a_second_one_on_the_same_data_names_the_first(running: Up) -> None:
    done = typed("up", *running.words)
    assert (done.code, done.out) == (1, "")
    assert f"is in use by process {running.process.pid}" in done.err
    running.ok("get", "nodes")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = typed("up", "--data", str(tmp_path / "data"), "--port", port, "--simulate", "1x1")
    assert (done.code, done.out) == (1, "")
    assert f"127.0.0.1:{port}: another program listens there; choose another with --port" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("content", [b"my diary\n", b"SQLite format 3\x00" + bytes(200)], ids=["text", "other database"])
def test_file_of_another_program_is_not_changed(data: Path, content: bytes) -> None:
    data.mkdir()
    (data / "outfitter.db").write_bytes(content)
    done = typed("up", "--data", str(data), "--port", "0", "--simulate", "1x1")
    assert (done.code, done.out) == (1, "")
    assert "it was not modified" in done.err
    assert (data / "outfitter.db").read_bytes() == content


def test_unusable_certificates_are_recreated(data: Path) -> None:
    """The disk was full when they were written."""
    with ForkedUp(data) as up:
        up.ok("get", "nodes")
        up.stop()
        for name in ("server.crt", "admin.key", "token"):
            (data / "pki" / name).write_bytes(b"")
        up.start()
        up.ok("get", "nodes")


REFUSED = {
    "no hosts": (["--simulate", "0x3"], 2, "'0x3' has no hosts or no VFs"),
    "no functions": (["--simulate", "3x0"], 2, "write for example 2x8"),
    "more than there can be": (["--simulate", "1x1000000"], 2, "at most 100000 hosts and 1024 VFs"),
    "neither a shorthand nor a file": (["--simulate", "2y8"], 1, "the hosts file 2y8 cannot be read"),
    "a folder": (["--simulate", "."], 1, "cannot be read"),
    "no such port": (["--port", "70000"], 2, "70000 is not in the range"),
    "no number": (["--port", "http"], 2, "'http' is not a valid integer"),
    "no such limit": (["--limit", "max_conections=5", "--simulate", "1x1"], 1, "did you mean max_connections?"),
    "a limit of nothing": (["--limit", "max_connections=0", "--simulate", "1x1"], 1, "'0' is not a whole number from 1"),
    "a folder that cannot be made": (["--data", "/proc/nowhere", "--simulate", "1x1"], 1, "/proc/nowhere"),
    "a file for a folder": (["--data", __file__, "--simulate", "1x1"], 2, "is a file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(tmp_path: Path, name: str) -> None:
    words, code, says = REFUSED[name]
    words = words if "--data" in words else ["--data", str(tmp_path / "data"), *words]
    done = typed("up", *(words if "--port" in words else ["--port", "0", *words]))
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "data").exists(), "a call that was refused leaves nothing"


def test_a_hosts_file_with_mistakes_names_each_field_once(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("hosts:\n- {name: Bad_Name, cpus: many, wat: 1, pci: [{address: 1, vendor: zz, product: 1889}]}\n")
    done = typed("up", "--data", str(tmp_path / "data"), "--port", "0", "--simulate", str(file))
    assert done.code == 1
    fields = ["hosts[0].name", "hosts[0].cpus", "hosts[0].wat", "hosts[0].pci[0].address", "hosts[0].pci[0].vendor"]
    assert {field: done.err.count(f"{field}:") for field in fields} == dict.fromkeys(fields, 1)


def test_a_kubeconfig_is_written_where_it_was_asked_for(data: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "my files" / "config"
    with ForkedUp(data, "--kubeconfig", str(wanted)) as up:
        assert f"export KUBECONFIG='{wanted}'" in up.said
        assert stat.S_IMODE(wanted.stat().st_mode) == 0o600
        assert typed("get", "nodes", kubeconfig=wanted).code == 0
        up.kill()
        up.start()  # its own it writes again: the port has changed
        assert up.printed("API server") in wanted.read_text()


THEIRS: dict[str, tuple[object, str]] = {
    "of other clusters": ({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "work", "cluster": {}}]},
                          "is a kubeconfig for other clusters"),
    "a VM": ({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}, "is no kubeconfig"),
    "text": ("hello", "is no kubeconfig"),
}


@pytest.mark.parametrize("name", THEIRS)
def test_file_of_another_program_is_not_overwritten(data: Path, tmp_path: Path, name: str) -> None:
    content, says = THEIRS[name]
    theirs = tmp_path / "config"
    theirs.write_text(yaml.safe_dump(content))
    before = theirs.read_bytes()
    done = typed("up", "--data", str(data), "--port", "0", "--simulate", "1x1", "--kubeconfig", str(theirs))
    assert (done.code, done.out) == (1, "")
    assert f"{theirs} {says} and was left as it is" in done.err
    assert theirs.read_bytes() == before


@pytest.mark.skipif(not NOTHING_HERE, reason="this machine has a device bound to vfio-pci")
def test_host_without_devices_simulates_two_hosts(data: Path) -> None:
    with ForkedUp(data, simulate=None) as up:
        assert up.printed("hosts") == "node-0, node-1 (simulated, because this host has no device bound to vfio-pci to offer)"
        assert up.printed("devices") == "16 offered"


def _facts(up: Up) -> dict[str, Any]:
    """Everything that a restart must not change."""

    async def read() -> dict[str, Any]:
        async with up.store() as store:
            out: dict[str, Any] = {}
            for kind in (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE):
                for obj in (await store.list(kind)).items:
                    meta = obj["metadata"]
                    out[f"{kind.plural}/{meta['name']}"] = (meta["uid"], obj.get("spec"), obj.get("status"))
            return out

    return asyncio.run(read())


GHOST = f"""<domain><name>default_ghost</name><metadata><x:machine xmlns:x="{NAMESPACE}" instance="0b7e1a5c"/></metadata>
</domain>
"""


def _waits(up: Up, name: str) -> bool:
    """All is said that there is to say of one that waits."""
    said = up.ok("get", "vmi", name, "-o", "yaml")
    return "reason: Unschedulable" in said and "has no devices yet" in said


def _files(up: Up) -> dict[str, tuple[int, float, str]]:
    return {str(path.relative_to(up.data)): (path.stat().st_ino, path.stat().st_mtime, path.read_text())
            for path in (up.data / "domains").glob("*/*")}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_keeps_everything_as_it_was(data: Path, end: signal.Signals) -> None:
    with ForkedUp(data, simulate="2x1") as up:
        up.ok("apply", "-f", str(EXAMPLE))
        until(lambda: [up.phase("blue"), up.phase("green")] == ["Running"] * 2, "blue and green run")
        up.ok("apply", "-f", "-", stdin=ANOTHER.format(name="red"))
        until(lambda: _waits(up, "red"), "red waits")
        facts, files = _facts(up), _files(up)
        assert len(files) == 2
        up.send(end)
        assert up.end() == (0 if end == signal.SIGTERM else -signal.SIGKILL)
        folder = up.data / "domains" / "node-0"
        ghost = folder / "0b7e1a5c-0000-4000-8000-000000000000_default_ghost.xml"
        ghost.write_text(GHOST)  # one of ours, without a VMI
        guest = folder / "1c8f2b6d-0000-4000-8000-000000000000_guest.xml"
        guest.write_text("<domain><name>guest</name></domain>\n")  # another owner's
        up.start()
        # A VM that comes and goes shows that the controllers have worked since.
        up.ok("apply", "-f", "-", stdin=ANOTHER.format(name="late"))
        until(lambda: _waits(up, "late"), "late waits")
        up.ok("delete", "vmi", "late")
        until(lambda: _facts(up).keys() == facts.keys(), "late is gone with all it had")
        assert _facts(up) == facts
        until(lambda: not ghost.exists(), "what ran for nobody was stopped")
        assert guest.exists()
        guest.unlink()
        assert _files(up) == files
        up.ok("delete", "vmi", "blue")
        until(lambda: up.phase("red") == "Running", "red runs on what blue had")


def test_removed_hosts_get_no_pods_until_they_return(data: Path) -> None:
    def nodes(up: Up) -> list[list[str]]:
        return [row.split()[:2] for row in up.ok("get", "nodes").splitlines()[1:]]

    with ForkedUp(data, simulate="2x1") as up:
        assert nodes(up) == [["node-0", "Ready"], ["node-1", "Ready"]]
        assert up.stop() == 0
    with ForkedUp(data, simulate="1x1") as up:
        assert nodes(up) == [["node-0", "Ready"], ["node-1", "NotReady"]]
        assert "not among those that outfitter was started with" in up.ok("describe", "node", "node-1")
        up.ok("apply", "-f", str(EXAMPLE))
        until(lambda: sorted([up.phase("blue"), up.phase("green")]) == ["Running", "Scheduling"], "one of two runs")
        assert "node-1" in "".join(up.ok("why", "vmi", name) for name in ("blue", "green"))
        assert up.stop() == 0
    with ForkedUp(data, simulate="2x1") as up:
        assert nodes(up) == [["node-0", "Ready"], ["node-1", "Ready"]]
        until(lambda: [up.phase("blue"), up.phase("green")] == ["Running"] * 2, "both run")


def test_a_second_ctrl_c_does_not_wait(data: Path) -> None:
    with ForkedUp(data) as up:
        os.kill(up.process.pid, signal.SIGSTOP)  # so that both arrive before it can act on the first
        up.send(signal.SIGINT)
        up.send(signal.SIGTERM)
        os.kill(up.process.pid, signal.SIGCONT)
        assert up.end() == 130


def test_sockets_are_served_below_the_data_folder_unless_another_one_is_named() -> None:
    with short_folder() as folder:
        up = ForkedUp(folder / "d")
        up.words = tuple(word for word in up.words if word not in ("--kubelet-dir", "none"))
        with up:
            assert up.printed("sockets") == str(folder / "d" / "kubelet" / "node-0")
            shown = typed("node", "pods", "--kubelet-dir", up.printed("sockets"), "-o", "json")
            assert (shown.code, shown.out.strip()) == (0, "[]"), shown
