"""VMs whose domains are kept as files in tests/xml, one a situation, and small words to write them with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.launcher import domain
from outfitter.launcher.domain_options import DomainOptions

UID = "8d1f0a52-3c1e-4f0b-9d35-0f6f5b7f2a11"
MDEV = "5f7fd9a8-6a3f-4f6c-8ee8-1d2b3c4d5e6f"
MDEV2 = "6f7fd9a8-6a3f-4f6c-8ee8-1d2b3c4d5e6f"
BASE = "/var/run/kubernetes.io/dra-device-attributes"
OLD_BASE = "/var/run/dra-device-attributes"
BUS_ID = "resource.kubernetes.io/pciBusID"
NUMA_NODE = "resource.kubernetes.io/numaNode"


def wanted(name: str, request: str = "", **more: Any) -> Object:
    return {"name": name, "claimName": "claim", "requestName": request or name, **more}


def plugged(name: str, resource: str = "acme.test/card", **more: Any) -> Object:
    return {"name": name, "deviceName": resource, **more}


def got(name: str, **attributes: Any) -> Object:
    return {"name": name, "deviceResourceClaimStatus": {"name": "dev", "resourceClaimName": "claim", "attributes": attributes}}


def instance(
    devices: Mapping[str, Any] | None = None, status: Mapping[str, Any] | None = None, name: str = "blue", **domain_: Any
) -> Object:
    """An instance with these devices and this status.deviceStatus; what belongs beside spec.domain is given as `spec`."""
    beside = domain_.pop("spec", {})
    return {"metadata": {"name": name, "namespace": "here", "uid": UID}, "status": {"deviceStatus": dict(status or {})},
            "spec": {"domain": {"devices": dict(devices or {}), **domain_}, **beside}}


def flavored(obj: Object, *devices: tuple[str, int], **record: Any) -> Object:
    """An instance whose flavor was looked up and brings so many devices of each kind."""
    listed = [{"name": name, "alias": name, "count": count} for name, count in devices]
    return {**obj, "spec": {**obj["spec"], "flavor": {"name": "large"}}, "status": {**obj["status"], "flavor": {
        "name": "large", "vcpus": 1, "memory": "1Gi", "claimName": "claim", "devices": listed, **record}}}


def owning(obj: Object, cpus: Mapping[str, Any]) -> Object:
    """An instance without a flavor that has CPUs of its host for itself."""
    record = {"vcpus": 2, "memory": "1Gi", "claimName": "claim", "hostCells": sorted(map(int, cpus)),
              "pinned": {cell: len(each) for cell, each in cpus.items()}, "cpus": dict(cpus)}
    return {**obj, "status": {**obj["status"], "flavor": record}}


def device(name: str = "d0", driver: str = "gpu.acme.test", **attributes: Any) -> Object:
    """A device of a metadata file; its attributes by short names: address, uuid, numa, members."""
    names = {"address": BUS_ID, "uuid": "mdevUUID", "numa": NUMA_NODE}
    return {"driver": driver, "pool": "node-a", "name": name, "attributes": {
        names.get(key, key): {"int": value} if isinstance(value, int) else {"string": value}
        for key, value in attributes.items()}}


def told(request: str, *devices: Object, version: str = "v1alpha1", **more: Any) -> str:
    return json.dumps({"apiVersion": f"metadata.resource.k8s.io/{version}", "kind": "DeviceMetadata",
                       "metadata": {"name": "c", "namespace": "here"}, **more,
                       "requests": [{"name": request, "devices": list(devices)}]})


def file(request: str, *, claim: str = "claim", driver: str = "gpu.acme.test", base: str = BASE) -> str:
    """Where the metadata of a named claim's request is."""
    return f"{base}/resourceclaims/{claim}/{request}/{driver}-metadata.json"


NAMED = {"resourceClaims": [{"name": "claim", "resourceClaimName": "claim"}]}
PASSED: Object = {"numa": {"guestMappingPassthrough": {}}}


@dataclass(frozen=True)
class Situation:
    instance: Object
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    options: DomainOptions = field(default_factory=DomainOptions)

    def build(self) -> Domain:
        return domain.build(self.instance, self.env, self.files, self.options)


def disks(architecture: str | None = None, **buses: int) -> Situation:
    """A VM with so many disks on each bus, one bus after the other in turn."""
    each = [(bus, number) for number in range(max(buses.values())) for bus, count in buses.items() if number < count]
    return Situation(instance({"disks": [{"name": f"{bus}{number}", "disk": {"bus": bus}} for bus, number in each]}, spec={
        "architecture": architecture,
        "volumes": [{"name": f"{bus}{number}", "hostDisk": {"path": f"/vms/{bus}{number}.img"}} for bus, number in each]}))


NICS = {"interfaces": [{"name": "default", "masquerade": {}},
                       {"name": "blue", "bridge": {}, "macAddress": "02-00-00-00-00-0A", "bootOrder": 2, "tag": "uplink"},
                       {"name": "fast", "sriov": {}, "macAddress": "02:00:00:00:00:0b", "bootOrder": 1, "tag": "fast"},
                       {"name": "gone", "bridge": {}, "state": "absent"},
                       {"name": "idle", "bridge": {}, "state": "down", "model": "e1000e", "pciAddress": "0000:0a:00.0"}]}
NETWORKS = {"networks": [{"name": "default", "pod": {}}, *(
    {"name": name, "multus": {"networkName": f"nets/{name}"}} for name in ("blue", "fast", "gone", "idle"))]}
NETWORK_INFO = {"/etc/podinfo/network-info": json.dumps({"interfaces": [
    {"network": "fast", "deviceInfo": {"type": "pci", "version": "1.0.0", "pci": {"pci-address": "0000:3b:02.1"}}}]})}
WIRED = {network_info.FILE: network_info.write([  # as a host without a network plugin says it
    Wire("default", "user", "02:00:00:00:00:0c"), Wire("blue", "bridge", "02:00:00:00:00:0a", bridge="br-blue"),
    Wire("fast", "function", "02:00:00:00:00:0b", "0000:3b:02.1", vlan=100),
    Wire("idle", "bridge", "02:00:00:00:00:0d", bridge="br0")])}
DISKS = {"disks": [{"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1, "serial": "R1", "tag": "root"},
                   {"name": "more", "disk": {"bus": "sata"}, "cache": "none"},
                   {"name": "third", "disk": {"bus": "scsi", "readonly": True}}, {"name": "init", "cdrom": {"bus": "sata"}},
                   {"name": "image", "disk": {"bus": "virtio"}}]}
VOLUMES = {"volumes": [{"name": "root", "hostDisk": {"path": "/vms/system.img", "type": "Disk"}},
                       {"name": "more", "hostDisk": {"path": "/vms/more.img", "type": "Disk"}},
                       {"name": "third", "hostDisk": {"path": "/vms/third.img", "type": "Disk"}},
                       {"name": "init", "cloudInitConfigDrive": {"userData": "#cloud-config"}},
                       {"name": "image", "containerDisk": {"image": "registry.test/image"}}]}

SITUATIONS: dict[str, Situation] = {
    "plain": Situation(instance()),
    "sized": Situation(instance(memory={"guest": "1536Mi"}, cpu={"cores": 2, "sockets": 2, "threads": None},
                                machine={"type": "pc-q35-7.2"}, firmware={"uuid": MDEV})),
    "memory-from-requests": Situation(instance(resources={"requests": {"memory": "1.5Gi", "cpu": "2500m"}})),
    "one-vf": Situation(instance({"hostDevices": [wanted("nic0")]},
                                 {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.2")]}, memory={"guest": "1Gi"})),
    "pair-of-vfs": Situation(instance({"hostDevices": [wanted("nics")]}, {"hostDeviceStatuses": [
        got("nics", pciAddress="0000:3b:01.2"), got("nics", pciAddress="0000:3b:01.3")]})),
    "mdev": Situation(instance({"gpus": [wanted("vgpu")]},
                               {"gpuStatuses": [got("vgpu", mdevUUID=MDEV, pciAddress="0000:65:00.0")]})),
    "gpu-and-nics": Situation(instance(
        {"gpus": [wanted("gpu0")], "hostDevices": [wanted("b"), {"name": "a", "claim": {"name": "claim", "request": "a"}}]},
        {"gpuStatuses": [got("gpu0", pciAddress="000A:65:1F.7")],
         "hostDeviceStatuses": [got("a", pciAddress="0000:3b:01.0"), got("b", pciAddress="0000:3b:01.1")]})),
    "same-name-in-both-lists": Situation(instance(
        {"gpus": [wanted("dev")], "hostDevices": [wanted("dev", "other")]},
        {"gpuStatuses": [got("dev", pciAddress="0000:65:00.0")],
         "hostDeviceStatuses": [got("dev", pciAddress="0000:66:00.0")]})),
    "card-with-sound": Situation(instance({"gpus": [wanted("card"), wanted("next")]}, {"gpuStatuses": [
        got("card", pciAddress="0000:65:00.0", members=["0000:65:00.0", "0000:65:00.1"]),
        got("next", pciAddress="0000:66:00.0")]})),
    "order-of-everything": Situation(
        instance({"gpus": [plugged("gm", "acme.test/vg"), wanted("gc"), plugged("gp", "acme.test/gpu")],
                  "hostDevices": [wanted("hc"), plugged("hu", "acme.test/stick"), plugged("hm", "acme.test/vg"),
                                  plugged("hp", "acme.test/nic")],
                  "interfaces": [{"name": "fast", "sriov": {}}]},
                 {"gpuStatuses": [got("gc", pciAddress="0000:65:00.0")],
                  "hostDeviceStatuses": [got("hc", pciAddress="0000:66:00.0")]},
                 spec={"networks": [{"name": "fast", "multus": {"networkName": "fast"}}]}),
        {"PCI_RESOURCE_ACME_TEST_GPU": "0000:67:00.0", "PCI_RESOURCE_ACME_TEST_NIC": "0000:68:00.0",
         "MDEV_PCI_RESOURCE_ACME_TEST_VG": f"{MDEV},{MDEV2}", "USB_RESOURCE_ACME_TEST_STICK": "1:3"}, NETWORK_INFO),
    "display-asked-for": Situation(instance(
        {"gpus": [wanted("a", virtualGPUOptions={"display": {"enabled": False}}),
                  wanted("b", virtualGPUOptions={"display": {"ramFB": {"enabled": False}}})]},
        {"gpuStatuses": [got("a", mdevUUID=MDEV), got("b", mdevUUID=MDEV2)]})),
    "networks": Situation(instance(NICS, spec=NETWORKS), {}, NETWORK_INFO),
    "networks-on-this-host": Situation(instance(NICS, spec=NETWORKS), {}, WIRED),
    "network-by-claim": Situation(
        instance({"interfaces": [{"name": "fast", "sriov": {}, "pciAddress": "0000:05:00.0", "bootOrder": 1}]},
                 spec={**NAMED, "networks": [{"name": "fast", "resourceClaim": {"claimName": "claim", "requestName": "vf"}}]}),
        {}, {file("vf"): told("vf", device(address="0000:3b:02.1"))}),
    "near-and-far": Situation(
        instance({"gpus": [wanted("near"), wanted("far", tag="train")], "hostDevices": [wanted("nic", tag="uplink")],
                  "interfaces": [{"name": "default", "bridge": {}}]},
                 {"gpuStatuses": [got("near", pciAddress="0000:17:00.0", numaNode=0),
                                  got("far", pciAddress="0000:65:00.0", numaNode=1)],
                  "hostDeviceStatuses": [got("nic", pciAddress="0000:66:00.0", numaNode=1)]},
                 cpu={"cores": 5, "model": "host-passthrough", **PASSED},
                 memory={"guest": "3Gi", "hugepages": {"pageSize": "1Gi"}},
                 spec={"networks": [{"name": "default", "pod": {}}]}), options=DomainOptions(type="kvm")),
    "disks": Situation(instance(DISKS, spec=VOLUMES), options=DomainOptions(drives="/run/machine")),
    "many-disks": disks(sata=8, scsi=8),
    "sata-on-arm": disks("arm64", sata=7),
    "cloud-init": Situation(instance(
        {"disks": [{"name": "root", "disk": {"bus": "sata"}}]},
        spec={"volumes": [{"name": "root", "hostDisk": {"path": "/vms/system.img"}},
                          {"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config"}}]})),
    "tagged-on-arm": Situation(instance(
        {"interfaces": [{"name": "default", "bridge": {}, "tag": "uplink"}]},
        spec={"architecture": "arm64", "networks": [{"name": "default", "pod": {}}]})),
    "firmware-and-clock": Situation(instance(
        {"autoattachGraphicsDevice": True, "autoattachSerialConsole": False, "rng": {},
         "inputs": [{"type": "tablet", "bus": "usb", "name": "pen"}]},
        firmware={"bootloader": {"efi": {"secureBoot": False}}}, features={"apic": {}, "smm": {"enabled": True}},
        clock={"timezone": "Europe/Berlin", "timer": {"hpet": {"present": False}, "rtc": {"tickPolicy": "catchup"}}},
        cpu={"model": "Nehalem", "threads": 2, "features": [{"name": "aes", "policy": "require"}]})),
    "secure-boot": Situation(instance(firmware={"bootloader": {"efi": {}}}, clock={"utc": {"offsetSeconds": 60}})),
    "older-machine": Situation(instance(
        {"hostDevices": [wanted("nic0", pciAddress="0000:00:0a.0")], "interfaces": [{"name": "default", "masquerade": {}}]},
        {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.2")]}, machine={"type": "pc-i440fx-7.2"},
        spec={"networks": [{"name": "default", "pod": {}}]})),
    "mainframe": Situation(instance({"hostDevices": [wanted("ap0")]}, {"hostDeviceStatuses": [got("ap0", mdevUUID=MDEV)]},
                                    spec={"architecture": "s390x"})),
    "flavor": Situation(flavored(instance(
        {"hostDevices": [wanted("own")]},
        {"hostDeviceStatuses": [got("own", pciAddress="0000:66:00.0", numaNode=2), got("gpu-0", pciAddress="0000:65:00.0",
                                                                                       numaNode=1),
                                got("nic-0", pciAddress="0000:3b:01.0"), got("nic-1", pciAddress="0000:3b:01.1")]}),
        ("gpu", 1), ("nic", 2), vcpus=5, memory="3Gi", hostCells=[1, 3], pinned={"1": 2, "3": 3},
        cpus={"3": [13, 15, 14], "1": [4, 5]})),
    "own-cpus": Situation(owning(instance(cpu={"cores": 2, "dedicatedCpuPlacement": True}), {"0": [3], "1": [9]})),
    "arm": Situation(instance({"hostDevices": [wanted("nic0")]},
                              {"hostDeviceStatuses": [got("nic0", pciAddress="0000:3b:01.2")]},
                              firmware={"bootloader": {"efi": {"secureBoot": False}}}, spec={"architecture": "arm64"})),
}
