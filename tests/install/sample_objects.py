"""Objects of every kind that has a CRD, with most of their fields, and the ways in which one of them can be spoilt."""

from __future__ import annotations

import copy
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from tests.api.json_places import paths
from tests.api.objects import NOW, ask, claim, meta, nic, vmi, with_devices

DEVICE = {"driver": "d", "pool": "p", "device": "v"}
HOLDER = {"kind": "ResourceClaim", "namespace": "here", "name": "c", "uid": "u", "purpose": "vmi/blue"}
CONDITION = {"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": NOW}
RECORD = {"device": DEVICE, "reason": "r", "by": "me", "since": NOW}
PLACEMENT: Object = {
    "nodeSelector": {"a": "b"}, "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                                   "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"a": "b"}}}]}
SAMPLES: dict[str, tuple[Kind, Object]] = {
    "devices": (kinds.VMI, {**with_devices(nic(tag="t"), nic("b", requestName="other")), "status": {
        "phase": "Running", "nodeName": "a", "conditions": [CONDITION], "activePods": {"u": "n"},
        "interfaces": [{"name": "a"}, {"name": "b", "ipAddress": "10.0.0.9"}],
        "phaseTransitionTimestamps": [{"phase": "Running", "phaseTransitionTimestamp": NOW}],
        "flavor": {"name": "f", "vcpus": 2, "cpus": {"0": [1, 2]}, "devices": [{"name": "g", "count": 1}]},
        "deviceStatus": {"hostDeviceStatuses": [{"name": "nic0", "deviceResourceClaimStatus": {
            "name": "d", "attributes": {"pciAddress": "x", "numaNode": 1}}}]}}}),
    "networks": (kinds.VMI, vmi(
        resourceClaims=[{"name": "net", "resourceClaimTemplateName": "t"}], startStrategy="Paused", evictionStrategy="None",
        networks=[{"name": "a", "pod": {}}, {"name": "b", "resourceClaim": {"claimName": "net", "requestName": "vf"}}],
        domain={"devices": {"interfaces": [
            {"name": "a", "masquerade": {}, "macAddress": "02:00:00:00:00:01", "model": "virtio", "ports": [
                {"port": 80, "protocol": "TCP"}]}, {"name": "b", "sriov": {}, "tag": "t"}]}})),
    "hardware": (kinds.VMI, vmi(
        **PLACEMENT, architecture="amd64", terminationGracePeriodSeconds=3,
        volumes=[{"name": "a", "hostDisk": {"path": "/x"}},
                 {"name": "b", "cloudInitNoCloud": {"userData": "x", "networkDataSecretRef": {"name": "s"}}}],
        domain={"memory": {"guest": "2Gi"}, "cpu": {"cores": 2, "features": [{"name": "x", "policy": "require"}]},
                "resources": {"requests": {"cpu": 0.5, "memory": "2Gi"}}, "machine": {"type": "q35"}, "ioThreadsPolicy": "auto",
                "firmware": {"bootloader": {"efi": {"secureBoot": False}}}, "features": {"acpi": {"enabled": True}},
                "devices": {"disks": [{"name": "a", "disk": {"bus": "virtio"}, "serial": "S", "bootOrder": 1},
                                      {"name": "b", "cdrom": {"bus": "sata"}}]}})),
    "owner": (kinds.VM, {"metadata": meta(), "spec": {
        "runStrategy": "Always", "template": {"metadata": {"labels": {"a": "b"}}, "spec": with_devices(
            nic(claimName="own"))["spec"]},
        "resourceClaimTemplates": [{"name": "own", "spec": {"metadata": {"labels": {}}, "spec": claim(
            ask(allocationMode="ExactCount", count=1, tolerations=[{"operator": "Exists"}]))["spec"]}}]},
        "status": {"ready": True, "printableStatus": "Running", "runStrategy": "Always", "conditions": [CONDITION],
                   "stateChangeRequests": [{"action": "Start"}]}}),
    "settings": (kinds.KUBEVIRT, {"metadata": meta(), "spec": {
        "configuration": {
            "developerConfiguration": {"featureGates": ["GPUsWithDRA"], "disabledFeatureGates": ["HostDevices"]},
            "vmRolloutStrategy": "Stage", "network": {"binding": {"x": {"sidecarImage": "i"}}}, "permittedHostDevices": {
                "pciHostDevices": [{"pciVendorSelector": "10de:1eb8", "resourceName": "a.test/x"}],
                "usb": [{"resourceName": "a.test/z", "selectors": [{"vendor": "1", "product": "2"}]}]}},
        "workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"], "batchEvictionSize": 1}},
        "status": {"phase": "Deployed", "conditions": [CONDITION]}}),
    "page": (kinds.LEDGER_PAGE, {"metadata": {"name": "x"}, "spec": {
        "host": "x", "reserved": [RECORD], "bookings": [{
            "device": DEVICE, "holder": HOLDER, "request": "nic", "state": "booked", "since": NOW,
            "amount": {"whole": True}}]}}),
    "past": (kinds.PAST_BOOKING, {"metadata": {"name": "x"}, "spec": {
        "host": "elm", "device": DEVICE, "holder": HOLDER, "request": "nic", "booked": "2020-01-01T00:00:00Z",
        "prepared": "2020-01-02T00:00:00Z", "ended": "2020-06-01T00:00:00Z", "how": "released",
        "amount": {"capacity": {"a": "1"}, "resources": {"a": 1}, "cpus": {"0": [1]}}}}),
    "providers": (kinds.PROVIDER_TREE, {"metadata": {"name": "x"}, "spec": {"providers": [{
        "name": "elm", "uuid": "u", "generation": 1, "traits": ["A"], "inventories": {
            "VGPU": {"total": 4, "reserved": 0, "allocation_ratio": 1.5}}}]}}),
    "inventory": (kinds.HOST_INVENTORY, {"metadata": {"name": "x"}, "spec": {
        "withheld": [{"name": "a", "reason": "r", "numaNode": 1}], "left": [{"device": "a", "what": "b"}], "warnings": ["w"],
        "published": {"driver": "d", "devices": ["a"]}, "cells": [{"id": 0, "cpus": "0-3"}]}}),
    "flavor": (kinds.FLAVOR, {"metadata": {"name": "x"}, "spec": {
        "vcpus": 2, "memory": "2Gi", "disk": "20Gi", "extraSpecs": {"pci_passthrough:alias": "gpu:1"}}}),
    "migration": (kinds.MIGRATION, {"metadata": meta(), "spec": {"vmiName": "x", "addedNodeSelector": {"a": "b"}},
                                    "status": {"phase": "Pending", "conditions": [CONDITION]}}),
}
WRONG: tuple[Any, ...] = (None, True, 3, 3.5, 2 ** 63, "text", "", [], [None], ["x"], {}, {"x": None}, {"name": {}}, [{}])


def places() -> list[tuple[str, tuple[Any, ...]]]:
    """Every place in a sample that a schema describes: all but metadata."""
    return [(name, path) for name, (_, obj) in SAMPLES.items() for part in ("spec", "status") if part in obj
            for path in paths(obj[part], (part,))]


def doubled(name: str, path: tuple[Any, ...]) -> Object:
    """A sample in which every list on the way to a place has its first entry twice."""
    obj = copy.deepcopy(SAMPLES[name][1])
    at: Any = obj
    for key in path:
        at = at[key]
        if isinstance(at, list) and at:
            at.append(copy.deepcopy(at[0]))
    return obj
