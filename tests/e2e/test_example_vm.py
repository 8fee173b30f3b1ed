"""The example 03-vm: a VM keeps its device while it is stopped, and over `kill -9`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.process import ROOT, Up, type_what_it_tells, until

EXAMPLE = ROOT / "examples" / "03-vm"
VF = "pci-0000-3b-00-0-vf0"


@pytest.fixture(params=MODES)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    with in_mode(request, tmp_path) as running:
        yield running
        assert not running.log()


def claim(up: Up) -> str:
    """The claim by which amber has the device: the last columns of its row."""
    rows = up.ok("vm", "devices", "amber").splitlines()[1:]
    return re.split(r"\s{2,}", rows[0])[5] if rows and VF in rows[0] else ""


def status(up: Up, name: str) -> str:
    rows = {row.split()[0]: row.split()[1] for row in up.ok("vm", "list").splitlines()[1:]}
    return rows.get(name, "")


def test_device_stays_with_the_vm(up: Up) -> None:
    up.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"), "-f", str(EXAMPLE / "2-amber.yaml"))
    until(lambda: status(up, "amber") == "Stopped", "amber is known")
    assert not up.ok("get", "vmi", "-o", "name"), "it starts on request"
    assert up.ok("vm", "start", "amber") == "amber starts\n"
    until(lambda: status(up, "amber") == "Running", "amber runs")
    first = claim(up)
    assert first.startswith("amber-network-")

    up.ok("vm", "stop", "amber")
    until(lambda: status(up, "amber") == "Stopped" and not up.domains(), "amber is stopped")
    until(lambda: "kept for vmi/amber" in up.ok("devices"), "its device is kept")
    until(lambda: "stopped on node-0" in up.ok("get", "events"), "that is reported")
    assert f"stopped on node-0; the devices of {first} stay with the VM\n" in up.ok("get", "events")
    up.ok("apply", "-f", str(EXAMPLE / "3-violet.yaml"))
    until(lambda: "1 match, 0 free" in up.ok("why", "vm/violet"), "violet waits")
    assert f"{VF}: held by vmi/amber since" in up.ok("why", "vm/violet")
    up.kill()
    up.start()

    up.ok("vm", "start", "amber")
    until(lambda: status(up, "amber") == "Running", "amber runs again")
    assert claim(up) == first
    before = up.ok("get", "vmi", "amber", "-o", "yaml").partition("\n  uid: ")[2].partition("\n")[0]
    up.ok("vm", "restart", "amber")
    until(lambda: before not in up.ok("get", "vmi", "-o", "yaml") and status(up, "amber") == "Running", "it was restarted")
    assert claim(up) == first
    assert up.ok("history", f"node-0/{VF}").count("claim default/amber-network-") == 1, "one booking all the time"
    assert status(up, "violet") != "Running"

    up.ok("delete", "vm", "amber")
    until(lambda: status(up, "violet") == "Running", "violet runs")
    assert VF in up.ok("vm", "devices", "violet")


def test_readme_commands_run_in_order(up: Up) -> None:
    type_what_it_tells(EXAMPLE / "README.md", up)
