"""examples/09-claim-template: a VM's own claim from a ResourceClaimTemplate, freed or kept when the VM stops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster_up import MODES, in_mode
from tests.e2e.process import ROOT, Up, type_what_it_tells, typed, until

EXAMPLE = ROOT / "examples" / "09-claim-template"
VF = "pci-0000-3b-00-0-vf0"


@pytest.fixture(params=MODES)
def up(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    with in_mode(request, tmp_path) as running:
        yield running
        assert not running.log()


def claim(up: Up, name: str) -> str:
    rows = up.ok("vm", "devices", name).splitlines()[1:]
    return re.split(r"\s{2,}", rows[0])[5] if rows and VF in rows[0] else ""


def status(up: Up, name: str) -> str:
    return {row.split()[0]: row.split()[1] for row in up.ok("vm", "list").splitlines()[1:]}.get(name, "")


def test_a_device_goes_or_stays_when_its_vm_stops(up: Up) -> None:
    up.ok("apply", "-f", str(EXAMPLE / "2-jade.yaml"), "-f", str(EXAMPLE / "3-onyx.yaml"))
    up.ok("vm", "start", "jade")
    lacks = "there is no ResourceClaimTemplate one-vf in namespace default"
    until(lambda: lacks in up.ok("why", "vm/jade"), "it says what lacks")
    up.ok("apply", "-f", str(EXAMPLE / "1-template.yaml"))
    until(lambda: status(up, "jade") == "Running", "jade runs")
    first = claim(up, "jade")
    assert first.startswith("jade-network-")
    up.ok("vm", "start", "onyx")
    until(lambda: f"{VF}: held by vmi/jade since" in up.ok("why", "vm/onyx"), "onyx waits")
    before = up.ok("get", "vmi", "jade", "-o", "yaml").partition("\n  uid: ")[2].partition("\n")[0]
    up.ok("vm", "restart", "jade")
    until(lambda: before not in up.ok("get", "vmi", "-o", "yaml") and status(up, "jade") == "Running", "it was restarted")
    assert claim(up, "jade") == first
    assert up.ok("history", f"node-0/{VF}").count("claim default/jade-network-") == 1, "one booking all the time"

    up.ok("vm", "stop", "jade")
    until(lambda: status(up, "onyx") == "Running", "onyx has got the device")
    assert f"the devices of {first} stay with the VM unless it is stopped\n" in up.ok("get", "events")
    assert "jade is not running, so it has no devices" in typed("vm", "devices", "jade", kubeconfig=up.kubeconfig).err
    kept = claim(up, "onyx")
    up.ok("vm", "stop", "onyx")
    until(lambda: status(up, "onyx") == "Stopped" and "kept for vmi/onyx" in up.ok("devices"), "its device is kept")
    up.kill()
    up.start()
    up.ok("vm", "start", "jade")
    until(lambda: "1 match, 0 free" in up.ok("why", "vm/jade"), "jade waits")
    up.ok("vm", "start", "onyx")
    until(lambda: status(up, "onyx") == "Running", "onyx runs again")
    assert claim(up, "onyx") == kept


def test_readme_commands_run_in_order(up: Up) -> None:
    type_what_it_tells(EXAMPLE / "README.md", up)
