"""The scenario of examples/04-network: VMs with network cards, their addresses, and what they wait for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.e2e.process import ROOT, ForkedUp, Up, type_what_it_tells, typed, until

EXAMPLE = ROOT / "examples" / "04-network"
HOSTS = ROOT / "examples" / "hosts" / "one-uplink.yaml"
UPLINK = "02:00:00:00:10:01"  # as coral says


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", simulate=str(HOSTS)) as running:
        yield running
        assert not running.log()


def status(up: Up, name: str) -> Any:
    return json.loads(up.ok("get", "vmi", name, "-o", "json"))["status"]


def addresses(up: Up, name: str) -> dict[str, str]:
    return {each["name"]: each["mac"] for each in status(up, name)["interfaces"]}


def drawn(xml: str) -> list[tuple[str, str, str, str]]:
    """Of each interface of a domain its type, its MAC address, its bridge or its place on the host, and its VLAN."""
    def said(each: ET.Element, path: str, name: str) -> str:
        found = each.find(path)
        return "" if found is None else found.get(name, "")

    return [(each.get("type", ""), said(each, "mac", "address"),
             said(each, "source", "bridge") or said(each, "source/address", "slot") + said(each, "source/address", "function"),
             said(each, "vlan/tag", "id")) for each in ET.fromstring(xml).iterfind("devices/interface")]


def test_what_cards_are_plugged_into(up: Up) -> None:
    up.ok("apply", "-f", str(EXAMPLE / "1-networks.yaml"))
    planned = up.ok("plan", "-f", str(EXAMPLE / "2-coral.yaml"))
    assert "vm/coral would go to rack" in planned
    taken = "  resource example.com/fast_vf: pci-0000-3b-00-0-vf0 (0000:3b:01.0, "
    assert taken in planned, "what networks take is planned too"
    up.ok("apply", "-f", str(EXAMPLE / "2-coral.yaml"))
    until(lambda: up.phase("coral") == "Running", "coral runs")
    first = addresses(up, "coral")
    assert (list(first), first["fast"]) == (["default", "lan", "fast"], UPLINK)
    xml = up.ok("domxml", "coral")
    assert drawn(xml) == [("user", first["default"], "", ""), ("bridge", first["lan"], "br0", ""),
                          ("hostdev", UPLINK, "0x010x0", "100")]
    assert list(up.domains().values()) == [xml], "what is shown is what runs"
    told = up.ok("why", "vm/coral")
    assert f"lan: bridge br0, MAC {first['lan']}" in told
    assert f"fast: 0000:3b:01.0, MAC {UPLINK}, VLAN 100" in told

    uid = json.loads(up.ok("get", "vmi", "coral", "-o", "json"))["metadata"]["uid"]
    up.ok("vm", "restart", "coral")
    until(lambda: uid not in up.ok("get", "vmi", "-o", "yaml") and up.phase("coral") == "Running", "coral runs again")
    assert addresses(up, "coral") == first, "automatic addresses stay"
    up.kill()
    up.start()
    assert (addresses(up, "coral"), up.ok("domxml", "coral").count("<interface")) == (first, 3)

    up.ok("apply", "-f", str(EXAMPLE / "3-teal.yaml"))
    until(lambda: up.phase("teal") == "Running", "teal runs")
    assert drawn(up.ok("domxml", "teal")) == [("hostdev", addresses(up, "teal")["fast"], "0x010x1", "")]
    up.ok("apply", "-f", str(EXAMPLE / "4-ivory.yaml"))
    until(lambda: "2 match, 0 free" in up.ok("why", "vmi/ivory"), "ivory waits")
    assert "rack could take it once vmi/coral or vmi/teal ends" in up.ok("why", "vmi/ivory")
    up.ok("delete", "vm", "teal")
    until(lambda: up.phase("ivory") == "Running", "ivory runs")
    until(lambda: "pci-0000-3b-00-0-vf1" in up.ok("vm", "devices", "ivory"), "its device is told")
    _, card = (re.split(r"  +", line) for line in up.ok("vm", "devices", "ivory").splitlines())
    assert card[:4] == ["fast", "interface", "pci-0000-3b-00-0-vf1", "0000:3b:01.1"]
    assert card[5].endswith("for fast"), "and the claim by which it has it"
    assert re.search(r"^ivory +Running +rack +1/1$", up.ok("vm", "list"), re.M)


FORGOTTEN = """
hosts:
- name: made
  pci: [{address: 0000:3b:00.0, vendor: 8086, product: 1572, driver: i40e, interface: a, vfs: {count: 1, product: 154c}}]
- name: unmade
  pci: [{address: 0000:3b:00.0, vendor: 8086, product: 1572, driver: i40e, interface: a, vfs: {count: 0, total: 8}}]
"""
ASKS = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  networks: [{{name: a, multus: {{networkName: {network}}}}}]
  domain: {{memory: {{guest: 1Gi}}, devices: {{interfaces: [{{name: a, sriov: {{}}}}]}}}}
"""
NOBODYS = """
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: nobodys, annotations: {k8s.v1.cni.cncf.io/resourceName: example.com/nobodys}}
spec: {config: '{"type": "sriov"}'}
"""


def test_missing_field_is_reported(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(FORGOTTEN)
    with ForkedUp(tmp_path / "data", simulate=str(tmp_path / "hosts.yaml")) as up:
        up.ok("apply", "-f", str(EXAMPLE / "1-networks.yaml"), "-f", "-", stdin=NOBODYS)
        up.ok("apply", "-f", "-", stdin=ASKS.format(name="first", network="fast"))
        until(lambda: up.phase("first") == "Running", "the first runs")
        for name, network, words in (
            ("second", "fast", ("made could take it once vmi/first ends", "0000:3b:00.0 of unmade can have 8, and has none")),
            ("third", "nobodys", ("apply a DeviceClass with spec.extendedResourceName: example.com/nobodys",)),
        ):
            asks = ASKS.format(name=name, network=network)
            planned = typed("plan", "-f", "-", kubeconfig=up.kubeconfig, stdin=asks)
            up.ok("apply", "-f", "-", stdin=asks)
            until(lambda name=name: " waits: " in up.ok("why", f"vmi/{name}"), f"{name} waits")  # type: ignore[misc]
            for word in words:
                assert word in up.ok("why", f"vmi/{name}")
                assert word in planned.out, "a plan knows it before"


def test_skipped_nic_is_an_error(tmp_path: Path) -> None:
    asks = ASKS.format(name="lost", network="odd").replace("sriov", "bridge")
    odd = NOBODYS.replace("nobodys, annotations: {k8s.v1.cni.cncf.io/resourceName: example.com/nobodys}", "odd").replace(
        "sriov", "ovs")
    with ForkedUp(tmp_path / "data") as up:
        up.ok("apply", "-f", "-", stdin=f"{odd}---{asks}")
        until(lambda: up.phase("lost") == "Running", "a simulated machine does without it")
        assert up.ok("why", "vmi/lost").startswith("vmi/lost runs on node-0, without network card a\n  a: skipped, ")


def test_readme_commands_run_in_order(up: Up) -> None:
    type_what_it_tells(EXAMPLE / "README.md", up)
