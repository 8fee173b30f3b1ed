"""The example 06-migrate: a VM migrates with its GPU between two simulated hosts, by the commands of its README."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ROOT, ForkedUp, Up, type_what_it_tells, typed, until

EXAMPLE = ROOT / "examples" / "06-migrate"
HOSTS = ROOT / "examples" / "hosts" / "two-gpus.yaml"
CONFIG = ROOT / "examples" / "config" / "live-migratable.yaml"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", "--config", str(CONFIG), simulate=str(HOSTS)) as running:
        yield running
        assert not running.log()


def read(up: Up, kind: str, name: str) -> Any:
    return json.loads(up.ok("get", kind, name, "-o", "json"))


def holders(up: Up) -> dict[str, str]:
    """Host of a device that is held -> its holder."""
    found = json.loads(up.ok("devices", "-o", "json"))
    rows = found["devices"] if isinstance(found, dict) else found
    return {str(row.get("host") or row.get("pool")): str(holder) for row in rows for holder in _purposes(row)}


def _purposes(row: Any) -> list[str]:
    if isinstance(row, dict):
        own = [str(row["purpose"])] if row.get("purpose") else []
        return own + [word for value in row.values() if isinstance(value, dict | list) for word in _purposes(value)]
    return [word for one in row for word in _purposes(one)] if isinstance(row, list) else []


def begin(up: Up, *files: str) -> None:
    for file in files:
        up.ok("apply", "-f", str(EXAMPLE / file))


def test_vm_takes_its_gpu_along(up: Up) -> None:
    begin(up, "1-template.yaml", "2-slate.yaml")
    up.ok("vm", "start", "slate", "--wait")
    before = read(up, "vmi", "slate")
    source = before["status"]["nodeName"]
    target = {"elm": "oak", "oak": "elm"}[source]
    assert holders(up) == {source: "vmi/slate"}
    plan = json.loads(up.ok("plan", "migrate", "slate", "-o", "json"))
    assert (plan["possible"], plan["to"], plan["devices"]) == (True, target, [{"name": "g0", "how": "travels"}])
    assert read(up, "vmi", "slate") == before, "nothing is written by asking"

    shown = up.ok("vm", "migrate", "slate", "--wait")
    assert shown.index("  g0: travels") < shown.index("slate migrates from"), "the plan comes first"
    assert f"slate runs on {target}" in shown
    after = read(up, "vmi", "slate")
    [old], [new] = (one["status"]["deviceStatus"]["gpuStatuses"] for one in (before, after))
    assert (old["deviceResourceClaimStatus"]["pool"], new["deviceResourceClaimStatus"]["pool"]) == (source, target)
    assert after["status"]["migrationState"]["targetDeviceStatus"]["gpuStatuses"] == [new]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    address = new["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
    [xml] = up.domains().values()
    assert f'bus="0x{address[5:7]}"' in xml
    until(lambda: holders(up) == {target: "vmi/slate"}, "the source's GPU is free, and the target's is the VM's")
    until(lambda: len(json.loads(up.ok("get", "resourceclaim", "-o", "json"))["items"]) == 1, "the first claim is gone")


def test_claim_by_name_blocks(up: Up) -> None:
    begin(up, "1-template.yaml", "3-basalt.yaml")
    up.ok("vm", "start", "basalt", "--wait")
    plan = typed("plan", "migrate", "basalt", kubeconfig=up.kubeconfig)
    assert plan.code == 1
    assert "g0: blocks (claim my-gpu is referenced by name" in plan.out
    refused = typed("vm", "migrate", "basalt", kubeconfig=up.kubeconfig)
    assert refused.code == 1
    assert "HostDeviceNotLiveMigratable" in refused.err
    assert not up.ok("get", "vmim", "-o", "name")
    assert len(holders(up)) == 1


def test_commands_of_the_readme(up: Up) -> None:
    type_what_it_tells(EXAMPLE / "README.md", up)
