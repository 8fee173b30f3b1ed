"""A VM whose disk does not travel: what `outfit plan migrate` and `outfit vm migrate` say before and after its owner declares
that the guest agrees, as a user types them, on simulated hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import Up, until

HOSTS = """
hosts:
- name: node-0
  pci: [{address: "0000:17:00.0", vendor: 144d, product: a80a, class: 010802, driver: nvme}]
- name: node-1
  pci: [{address: "0000:ca:00.0", vendor: 144d, product: a80a, class: 010802, driver: nvme}]
"""
MANIFEST = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: disk}
spec: {selectors: [{cel: {expression: 'device.driver == "pci.outfitter.dev"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-disk}
spec: {spec: {devices: {requests: [{name: disk, exactly: {deviceClassName: disk}}]}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: blue}
spec:
  runStrategy: Always
  template:
    metadata: {ANNOTATIONS}
    spec:
      resourceClaims: [{name: disk, resourceClaimTemplateName: one-disk}]
      domain: {memory: {guest: 64Mi}, devices: {hostDevices: [{name: disk2, claimName: disk, requestName: disk}]}}
"""


def manifest(declared: str) -> str:
    annotations = f"annotations: {{outfitter.dev/reattach-on-migration: '{declared}'}}"
    return MANIFEST.replace("ANNOTATIONS", annotations if declared else "")


def address(vmi: Any) -> str:
    [entry] = vmi["status"]["deviceStatus"]["hostDeviceStatuses"]
    return str(entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"])


@pytest.mark.thorough  # it waits for the copy
def test_disk_is_reattached_once_the_owner_declares_it(tmp_path: Path) -> None:
    hosts, settings = tmp_path / "hosts.yaml", tmp_path / "config.yaml"
    hosts.write_text(HOSTS)
    settings.write_text("device_spec: [{vendor_id: 144d, product_id: a80a}]")
    with Up(tmp_path / "data", "--config", str(settings), simulate=str(hosts)) as up:
        def vmi() -> Any:
            return json.loads(up.ok("get", "vmi", "blue", "-o", "json"))

        up.ok("apply", "-f", "-", stdin=manifest(""))
        until(lambda: up.phase("blue") == "Running", "blue runs")
        refused = up.outfit("plan", "migrate", "blue")
        assert refused.returncode == 1
        assert "disk2: blocks (" in refused.stdout
        assert "not marked as live migratable" in refused.stdout
        bad = up.outfit("apply", "-f", "-", stdin=manifest("disk2,"))
        assert "spec.template.metadata.annotations[outfitter.dev/reattach-on-migration]" in bad.stderr
        up.ok("apply", "-f", "-", stdin=manifest("disk2"))
        until(lambda: up.outfit("plan", "migrate", "blue").returncode == 0, "it can migrate")
        source, before = vmi()["status"]["nodeName"], address(vmi())
        target = {"node-0": "node-1", "node-1": "node-0"}[source]
        plan = up.ok("plan", "migrate", "blue")
        assert f"vmi/blue would migrate from {source} to {target}" in plan
        assert "disk2: reattached (the guest has no such device while it is copied)" in plan
        [device] = json.loads(up.ok("plan", "migrate", "blue", "-o", "json"))["devices"]
        assert (device["name"], device["how"]) == ("disk2", "reattached")
        assert f"blue runs on {target}" in up.ok("vm", "migrate", "blue", "--wait")
        until(lambda: "plugged" in up.ok("vm", "device", "list", "blue"), "the disk of the target is plugged")
        assert {before, address(vmi())} == {"0000:17:00.0", "0000:ca:00.0"}
        bus = f'bus="0x{address(vmi())[5:7]}"'
        until(lambda: any(bus in xml for xml in up.domains().values()), "the domain has it")
        until(lambda: f"{source} " not in "".join(
            line for line in up.ok("devices").splitlines(keepends=True) if "vmi/blue" in line), "the source's disk is free")
