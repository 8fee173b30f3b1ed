"""Which VMIs could move to another host while they run: KubeVirt's reasons, the first one counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt.live_migratable import BRIDGE_MAY_MOVE, live_migratable

POD = [{"name": "n", "pod": {}}]
INTERFACES, DEVICES, DISKS = "InterfaceNotLiveMigratable", "HostDeviceNotLiveMigratable", "DisksNotLiveMigratable"


class Case(NamedTuple):
    vmi: Object
    reason: str = ""  # none: it could
    word: str = ""  # what the message names
    blocked: tuple[str, ...] = ()  # what the plan says about claimed devices


def vmi(devices: Object | None = None, annotations: Any = (), domain: Any = (), **spec: Any) -> Object:
    return {"metadata": {"annotations": dict(annotations)},
            "spec": {**spec, "domain": {**dict(domain), "devices": devices or {}}}}


def nic(**binding: Any) -> Object:
    return {"interfaces": [{"name": "n", **binding}]}


ALLOWED = {BRIDGE_MAY_MOVE: ""}
CASES = {
    "nothing special": Case(vmi()),
    "masquerade": Case(vmi(nic(masquerade={}), networks=POD)),
    "a bridge on the pod network": Case(vmi(nic(bridge={}), networks=POD), INTERFACES, "n"),
    "a bridge whose owner permits it": Case(vmi(nic(bridge={}), ALLOWED, networks=POD)),
    "no binding is a bridge": Case(vmi(nic(), ALLOWED, networks=POD)),
    "no binding": Case(vmi(nic(), networks=POD), INTERFACES, "n"),
    "a plugin on the pod network": Case(vmi(nic(binding={"name": "p"}), ALLOWED, networks=POD), INTERFACES, "n"),
    "a bridge on another network": Case(vmi(nic(bridge={}), networks=[{"name": "n", "multus": {"networkName": "lan"}}])),
    "an SR-IOV NIC": Case(vmi(nic(sriov={}), networks=[{"name": "n", "multus": {"networkName": "fast"}}])),
    "a host device": Case(vmi({"hostDevices": [{"name": "h", "deviceName": "a.test/x"}]}), DEVICES, "h"),
    "a GPU by claim, of which claims and slices decide": Case(vmi({"gpus": [
        {"name": "g", "claimName": "c", "requestName": "r"}]})),
    "a claimed GPU that cannot travel": Case(vmi({"gpus": [{"name": "g", "claimName": "c", "requestName": "r"}]}), DEVICES,
                                             "g is not marked", ("g is not marked",)),
    "a NIC comes before a claimed GPU": Case(vmi(nic(bridge={}), networks=POD), INTERFACES, "n", ("g is not marked",)),
    "the first reason counts": Case(vmi({**nic(), "gpus": [{"name": "g", "deviceName": "x"}]}, networks=POD), INTERFACES),
    "SEV": Case(vmi(domain={"launchSecurity": {"sev": {}}}), "SEVNotLiveMigratable"),
    "SNP": Case(vmi(domain={"launchSecurity": {"snp": {}}}), "SEVNotLiveMigratable"),
    "TDX": Case(vmi(domain={"launchSecurity": {"tdx": {}}}), "TDXNotLiveMigratable"),
    "hyperv passthrough": Case(vmi(domain={"features": {"hypervPassthrough": {}}}), "HypervPassthroughNotLiveMigratable"),
    "no hyperv passthrough": Case(vmi(domain={"features": {"hypervPassthrough": {"enabled": False}}})),
    "a reservation": Case(vmi({"disks": [{"name": "d", "lun": {"reservation": True}}]}),
                          "PersistentReservationNotLiveMigratable", "d"),
    "images": Case(vmi(volumes=[{"name": "v", "containerDisk": {"image": "i"}}, {"name": "c", "cloudInitNoCloud": {}}])),
    "a disk of its host": Case(vmi(volumes=[{"name": "v", "hostDisk": {"path": "/a"}}]), DISKS, "v"),
    "a shared one": Case(vmi(volumes=[{"name": "v", "hostDisk": {"path": "/a", "shared": True}}])),
    "a claim": Case(vmi(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]), DISKS, "PVC data"),
    "a data volume": Case(vmi(volumes=[{"name": "v", "dataVolume": {"name": "data"}}]), DISKS, "PVC data"),
    "shapes that nobody checks": Case(vmi({"disks": [{"lun": 1}]}, domain={"features": [], "launchSecurity": "sev"},
                                          volumes=[{"hostDisk": 1}]), DISKS),
}


@pytest.mark.parametrize("name", CASES)
def test_live_migratable_reason(name: str) -> None:
    case = CASES[name]
    found = live_migratable(case.vmi, case.blocked)
    assert (found.type, found.status, found.reason) == ("LiveMigratable", not case.reason, case.reason)
    assert bool(found.message) == bool(case.reason)
    assert case.word in found.message
