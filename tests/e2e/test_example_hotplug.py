"""The example 05-hotplug: NICs of a VM come and go while it runs, by the commands of its README."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ROOT, ForkedUp, Up, type_what_it_tells, typed, until

EXAMPLE = ROOT / "examples" / "05-hotplug"
HOSTS = ROOT / "examples" / "hosts" / "one-uplink.yaml"
MAC = "02:00:00:00:10:05"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", simulate=str(HOSTS)) as running:
        yield running
        assert not running.log()


def vm(up: Up) -> Any:
    return json.loads(up.ok("get", "vm", "olive", "-o", "json"))


def nics(up: Up) -> dict[str, list[str]]:
    return {row.split()[0]: row.split()[1:] for row in up.ok("vm", "nic", "list", "olive").splitlines()[1:]}


def begin(up: Up) -> None:
    up.ok("apply", "-f", str(EXAMPLE / "1-networks.yaml"), "-f", str(EXAMPLE / "2-olive.yaml"))
    until(lambda: up.phase("olive") == "Running", "olive runs")


def test_nics_come_and_go(up: Up) -> None:
    begin(up)
    uid = json.loads(up.ok("get", "vmi", "olive", "-o", "json"))["metadata"]["uid"]
    assert up.ok("vm", "nic", "add", "olive", "lan", "--network", "lan", "--wait") == "lan is added to olive\n"
    up.ok("vm", "nic", "add", "olive", "fast", "--network", "fast", "--mac", MAC, "--wait")
    found = nics(up)
    assert found["lan"][:4] == ["lan", "bridge", "plugged", "up"]
    assert found["lan"][5:] == ["bridge", "br0"]
    assert (found["fast"][:4], found["fast"][4]) == (["fast", "sriov", "plugged", "up"], MAC)
    assert found["fast"][5].startswith("0000:3b:01.")
    [xml] = up.domains().values()
    assert f'<mac address="{MAC}"' in xml
    assert '<tag id="100"' in xml
    until(lambda: "plugged" in up.ok("get", "events"), "it is reported")

    up.ok("vm", "nic", "link", "olive", "lan", "down", "--wait")
    assert nics(up)["lan"][3] == "down"
    up.ok("vm", "nic", "remove", "olive", "lan", "fast", "--wait")
    until(lambda: list(nics(up)) == ["default"], "they are gone from the template, too")
    until(lambda: "olive" not in up.ok("devices"), "the VF is released")
    vmi = json.loads(up.ok("get", "vmi", "olive", "-o", "json"))
    assert vmi["metadata"]["uid"] == uid
    assert "RestartRequired" not in up.ok("get", "vm", "olive", "-o", "yaml")
    assert not up.ok("get", "vmim", "-o", "name"), "and no migration happened"


def test_what_is_wrong_changes_nothing(up: Up) -> None:
    begin(up)
    up.ok("vm", "nic", "add", "olive", "lan", "--network", "lan", "--mac", MAC, "--wait")
    before = vm(up)["spec"]

    def refused(*words: str) -> str:
        done = typed("vm", "nic", *words, kubeconfig=up.kubeconfig)
        assert done.code == 1, done
        assert vm(up)["spec"] == before, words
        return done.err

    assert "spec.template.spec.networks[].multus.networkName: there is no NetworkAttachmentDefinition wan" in refused(
        "add", "olive", "wan", "--network", "wan")
    assert "spec.template.spec.domain.devices.interfaces[1].name: olive has an interface lan already" in refused(
        "add", "olive", "lan", "--network", "lan")
    assert "spec.template.spec.domain.devices.interfaces[2].macAddress: Duplicate value" in refused(
        "add", "olive", "more", "--network", "lan", "--mac", MAC.upper())
    assert "spec.template.spec.domain.devices.interfaces[0].state: default is on the primary network" in refused(
        "remove", "olive", "default")
    assert "olive has no interface red; it has default, lan" in refused("remove", "olive", "red")
    assert "olive has no interface red" in refused("link", "olive", "red", "down")
    assert "there is no VM plum" in refused("add", "plum", "lan", "--network", "lan")
    assert "it is CLAIM/REQUEST" in refused("add", "olive", "more", "--claim", "x")
    assert "resourceClaim" in refused("add", "olive", "more", "--claim", "uplink/nic")
    done = typed("vm", "nic", "add", "olive", "more", "--network", "lan", "--dry-run", kubeconfig=up.kubeconfig)
    assert "dry run" in done.out
    assert vm(up)["spec"] == before
    assert typed("vm", "nic", "add", "olive", "more", kubeconfig=up.kubeconfig).code == 2


def test_commands_of_the_readme(up: Up) -> None:
    type_what_it_tells(EXAMPLE / "README.md", up)
