"""NICs of a real guest that moves between two libvirt daemons: by `outfit vm migrate`, and by a `kubectl patch vm` that adds a
NIC which no host plugs in place. The test types commands and reads; it never calls libvirt to plug or migrate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter.api import conditions
from tests.e2e import libvirt_hosts, nic_changes
from tests.e2e.kubectl import Kubectl
from tests.e2e.libvirt_hosts import PATIENCE, DomainSeen, LibvirtHosts
from tests.e2e.process import until
from tests.hardware import daemon

pytestmark = [pytest.mark.libvirt, pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")]
OTHER = {"host-a": "host-b", "host-b": "host-a"}


@pytest.fixture
def in_place() -> Iterator[LibvirtHosts]:
    with libvirt_hosts.two_hosts() as hosts, hosts.up:
        yield hosts


@pytest.fixture
def by_migration() -> Iterator[LibvirtHosts]:
    """No host plugs in place."""
    with libvirt_hosts.two_hosts("plug_in_place: false\n") as hosts, hosts.up:
        yield hosts


def vmi(hosts: LibvirtHosts, name: str) -> Any:
    return json.loads(hosts.up.ok("get", "vmi", name, "-o", "json"))


def in_guest(hosts: LibvirtHosts, name: str) -> list[str]:
    found = vmi(hosts, name)["status"].get("interfaces") or ()
    return sorted(entry["name"] for entry in found if "domain" in entry.get("infoSource", ""))


def only_domain(hosts: LibvirtHosts, name: str) -> DomainSeen:
    """Of a VM that runs once, with a tap for each of its NICs and no other tap."""
    until(lambda: len(hosts.domains(name)) == 1, "one daemon has it", PATIENCE)
    [domain] = hosts.domains(name)
    assert domain.state[0] == libvirt_hosts.RUNNING
    assert libvirt_hosts.qemus([name]) == {f"default_{name}": 1}
    assert hosts.taps() == domain.taps
    return domain


def test_nics_plugged_before_and_after_a_migration(in_place: LibvirtHosts) -> None:
    up, blue, bridges = in_place.up, in_place.vm("blue"), in_place.networks
    up.ok("apply", "-f", "-", stdin=in_place.manifests("blue"))
    until(lambda: up.phase(blue) == "Running", "blue runs", PATIENCE)
    up.ok("vm", "nic", "add", blue, "before", "--network", "lan", "--mac", in_place.mac(), "--wait", "--timeout", "5m")
    source = only_domain(in_place, blue)
    assert [bridge for _, bridge in source.taps] == [bridges["lan"]]
    target = OTHER[source.host]
    assert f"runs on {target}" in up.ok("vm", "migrate", blue, "--wait", "--timeout", "5m")
    moved = only_domain(in_place, blue)
    assert (moved.host, moved.uid, sorted(moved.nics)) == (target, source.uid, ["before"])

    up.ok("vm", "nic", "add", blue, "after", "--network", "lan", "--mac", in_place.mac(), "--wait", "--timeout", "5m")
    up.ok("vm", "nic", "link", blue, "before", "down", "--wait", "--timeout", "5m")
    up.ok("vm", "nic", "remove", blue, "before", "--wait", "--timeout", "5m")
    after = only_domain(in_place, blue)
    assert (after.host, sorted(after.nics)) == (target, ["after"])
    swap = json.dumps([{"op": "replace", "path": "/spec/template/spec/networks/1/multus/networkName", "value": "wan"}])
    until(lambda: len(json.loads(up.ok("get", "vm", blue, "-o", "json"))["spec"]["template"]["spec"]["networks"]) == 2,
          "the NIC that was removed is gone from the template", PATIENCE)
    Kubectl(up)("patch", "vm", blue, "--type=json", "-p", swap)
    until(lambda: {bridge for _, bridge in in_place.taps()} == {bridges["wan"]}, "its tap is on the other bridge", PATIENCE)
    swapped = only_domain(in_place, blue)
    assert (swapped.host, sorted(swapped.taps)) == (target, [(tap, bridges["wan"]) for tap, _ in after.taps]), "the same tap"
    assert len(up.ok("get", "vmim", "-o", "name").split()) == 1, "what was changed in place needed no migration"

    assert f"runs on {source.host}" in up.ok("vm", "migrate", blue, "--wait", "--timeout", "5m")
    back = only_domain(in_place, blue)
    assert (back.host, sorted(back.nics), [bridge for _, bridge in back.taps]) == (source.host, ["after"], [bridges["wan"]])
    up.ok("delete", "vm", blue)
    until(lambda: not in_place.taps() and not in_place.domains(blue), "nothing is left", PATIENCE)


def test_nic_that_the_guest_has_no_port_for_moves_no_vm(in_place: LibvirtHosts) -> None:
    up, blue = in_place.up, in_place.vm("blue")
    up.ok("apply", "-f", "-", stdin="---".join((nic_changes.settings("1"), in_place.manifests("blue"))))
    until(lambda: up.phase(blue) == "Running", "blue runs", PATIENCE)
    source = only_domain(in_place, blue)
    names = [f"n{number:02}" for number in range(12)]
    for name in names:
        up.ok("vm", "nic", "add", blue, name, "--network", "lan", "--mac", in_place.mac())

    def waits() -> bool:
        found = vmi(in_place, blue)["status"]
        sources = {entry["name"]: entry.get("infoSource") for entry in found.get("interfaces") or ()}
        return (sources.get(names[-1]), len(sources), conditions.find({"status": found}, "MigrationRequired")) == (
            "multus-status", 13, None)

    until(waits, "all but one are plugged, and that one needs no migration", PATIENCE)
    assert (conditions.find(vmi(in_place, blue), "InterfacesReady") or {})["reason"] == "NoPciPort"
    up.ok("vm", "nic", "remove", blue, names[0], "--wait", "--timeout", "5m")
    until(lambda: in_guest(in_place, blue) == ["default", *names[1:]], "it has the port that became free", PATIENCE)
    after = only_domain(in_place, blue)
    assert (after.host, after.uid, up.ok("get", "vmim", "-o", "name").split()) == (source.host, source.uid, [])


def test_kubectl_patch_vm_migrates_it_to_its_nic(by_migration: LibvirtHosts) -> None:
    hosts, up, blue, kubectl = by_migration, by_migration.up, by_migration.vm("blue"), Kubectl(by_migration.up)
    kubectl("apply", "-f", "-", stdin="---".join((nic_changes.settings("1"), hosts.manifests("blue"))))
    until(lambda: up.phase(blue) == "Running", "blue runs", PATIENCE)
    source = only_domain(hosts, blue)
    kubectl("patch", "vm", blue, "--type=json", "-p", nic_changes.plug("red", "lan", bridge={}, macAddress=hosts.mac()))
    until(lambda: in_guest(hosts, blue) == ["default", "red"], "the guest has the NIC", PATIENCE)
    [job] = until(lambda: json.loads(kubectl("get", "vmim", "-o", "json"))["items"], "there is a migration", PATIENCE)
    assert job["metadata"]["name"].startswith("kubevirt-workload-update-")
    until(lambda: kubectl("get", "vmim", "-o", "jsonpath={.items[*].status.phase}") == "Succeeded", "it has ended", PATIENCE)
    moved = only_domain(hosts, blue)
    assert (moved.host, moved.uid, sorted(moved.nics)) == (OTHER[source.host], source.uid, ["red"])
    assert vmi(hosts, blue)["status"]["nodeName"] == moved.host
    until(lambda: "MigrationRequired" not in kubectl("get", "vmi", blue, "-o", "yaml"), "nothing waits", PATIENCE)

    swap = json.dumps([{"op": "replace", "path": "/spec/template/spec/networks/1/multus/networkName", "value": "wan"}])
    kubectl("patch", "vm", blue, "--type=json", "-p", swap)
    until(lambda: {bridge for _, bridge in hosts.taps()} == {hosts.networks["wan"]}, "its tap is on the other bridge", PATIENCE)
    until(lambda: "MigrationRequired" not in kubectl("get", "vmi", blue, "-o", "yaml"), "nothing waits", PATIENCE)
    swapped = only_domain(hosts, blue)
    assert (swapped.host, swapped.uid, sorted(swapped.nics)) == (source.host, source.uid, ["red"]), "by a migration, too"

    kubectl("patch", "vm", blue, "--type=json", "-p", nic_changes.unplug(
        json.loads(kubectl("get", "vm", blue, "-o", "json")), "red"))
    until(lambda: in_guest(hosts, blue) == ["default"], "the guest has lost the NIC", PATIENCE)
    until(lambda: not hosts.taps(), "its tap is gone", PATIENCE)
    until(lambda: "red" not in kubectl("get", "vm", blue, "-o", "jsonpath={.spec.template.spec.networks}"),
          "it is gone from the template", PATIENCE)
    assert only_domain(hosts, blue).uid == source.uid
    assert not up.log()
