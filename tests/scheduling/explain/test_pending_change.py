"""What `outfit why` says of a running VM whose NIC is not plugged yet."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.cluster_objects import ClusterObjects

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "blue", "uid": "u", "controller": True}
POD: Object = {"metadata": {"name": "launcher", "namespace": "lab", "ownerReferences": [OWNER],
                            "labels": {"kubevirt.io": "virt-launcher"}},
               "spec": {"nodeName": "oak"}, "status": {"phase": "Running"}}


def vmi(*conditions: Object) -> Object:
    return {"metadata": {"name": "blue", "namespace": "lab", "uid": "u", "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "blue", "uid": "v", "controller": True}]}, "spec": {
        "domain": {"devices": {"interfaces": [{"name": "lan", "bridge": {}}]}},
        "networks": [{"name": "lan", "multus": {"networkName": "lan-nad"}}]}, "status": {
        "phase": "Running", "nodeName": "oak", "conditions": list(conditions)}}


def node(name: str) -> Object:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def required(status: str = "True", **more: Any) -> Object:
    return {"type": "MigrationRequired", "status": status, **more}


MIGRATABLE = {"type": "LiveMigratable", "status": "True"}
FIXED = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "a disk of its host"}
CLUSTER = ClusterObjects((), [POD], (), (), (), (), [node("oak"), node("elm")], now=NOW)


def explained(obj: Object, **more: Any) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    answer = vm.instance(replace(CLUSTER, instances=[obj], **more), obj)
    return answer.sentence, answer.lines, answer.todo, answer.waits_for


def test_the_node_has_the_grace_period() -> None:
    assert explained(vmi(MIGRATABLE, required("False", message="wait"))) == (
        "runs on oak; a change of it has not taken effect yet", ('NIC "lan" is to be plugged', "wait"), (), "change")


def test_what_the_node_reports_is_shown() -> None:
    broken = {"type": "InterfacesReady", "status": "False", "reason": "NetworkNotReady", "message": "no bridge br0"}
    assert "NetworkNotReady: no bridge br0" in explained(vmi(MIGRATABLE, required("False"), broken))[1]


def test_a_nic_that_waits_for_the_end_of_a_migration_is_shown() -> None:
    migrates = {"type": "InterfacesReady", "status": "False", "reason": "VmMigrates", "message": "the VM migrates"}
    assert explained(vmi(MIGRATABLE, migrates)) == (
        "runs on oak; a change of it has not taken effect yet",
        ('NIC "lan" is to be plugged', "VmMigrates: the VM migrates"),
        ("outfit vm migrate blue --cancel, with which it is done at once",), "change")


@pytest.mark.parametrize(("code", "advice"), [
    ("NoPciPort", ("outfit vm nic remove blue NIC, of one that it can do without",
                   "outfit vm restart blue, with which it gets more ports")),
    ("VfNotBooked", ("free a VF of that host: outfit devices", "outfit vm nic remove blue NIC cancels the plug")),
    ("NicNotPlugged", ("outfit vm nic remove blue NIC cancels the plug",)),
    ("NicKeptByGuest", ("see that the guest runs and has a driver for PCI hotplug; it is asked again every few seconds",)),
])
def test_what_would_help_a_nic_is_named(code: str, advice: tuple[str, ...]) -> None:
    broken = {"type": "InterfacesReady", "status": "False", "reason": code, "message": "it is not plugged"}
    assert explained(vmi(MIGRATABLE, broken))[2] == advice


def test_a_vm_that_cannot_migrate_is_told_to_restart() -> None:
    _, lines, todo, _ = explained(vmi(FIXED, required()))
    assert lines[-1] == "NotLiveMigratable: the VM cannot migrate: DisksNotLiveMigratable: a disk of its host"
    assert todo == ("outfit vm restart blue, with which it takes effect too",)


def test_without_an_update_method_the_setting_is_named() -> None:
    settings = {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": {
        "workloadUpdateStrategy": {"workloadUpdateMethods": []}}}
    _, lines, todo, _ = explained(vmi(MIGRATABLE, required()), kubevirts=[settings])
    assert lines[-1].startswith("NoUpdateMethod: ")
    assert "LiveMigrate" in todo[0]


def test_no_other_host() -> None:
    _, lines, todo, _ = explained(vmi(MIGRATABLE, required()), nodes=[node("oak")])
    assert lines[-1] == "NoOtherHost: no host but oak takes VMs"
    assert todo[0].startswith("add a host")


def test_a_failed_migration_is_looked_at() -> None:
    job = {"metadata": {"name": "job", "namespace": "lab", "uid": "j", "creationTimestamp": "2025-12-31T23:59:55Z"},
           "spec": {"vmiName": "blue"}, "status": {"phase": "Failed"}}
    _, lines, todo, _ = explained(vmi(MIGRATABLE, required()), migrations=[job])
    assert lines[-1] == "MigrationBackoff: the last migration failed; the next begins at 00:00:15 UTC"
    assert "why the last ones failed" in todo[0]


def test_a_vm_without_a_change_is_as_before() -> None:
    assert explained(vmi(MIGRATABLE))[0] == "runs on oak: nothing is wrong"
