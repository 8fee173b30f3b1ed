"""What users type to change the NICs of VM blue while it runs, and changes that admission refuses."""

from __future__ import annotations

import json
from typing import NamedTuple

from outfitter.api.kinds import Object

NEVER, SOON = "86400", "1"  # grace periods: a migration within a test is a failure; it is due almost at once
RESOURCE = "example.com/fast_vf"  # of the VFs
KUBEVIRT = """
apiVersion: v1
kind: Namespace
metadata: {name: kubevirt}
---
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata:
  name: kubevirt
  namespace: kubevirt
  annotations: {outfitter.dev/nic-hotplug-grace-period-seconds: "GRACE"}
spec:
  workloadUpdateStrategy: {workloadUpdateMethods: [LiveMigrate]}
  configuration: {migrations: {bandwidthPerMigration: SPEED}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: fast-vf}
spec:
  extendedResourceName: example.com/fast_vf
  selectors:
  - cel:
      expression: device.driver == "pci.outfitter.dev" && device.attributes["pci.outfitter.dev"].?kind.orValue("") == "VF"
"""
NETWORKS = """
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: fast, annotations: {k8s.v1.cni.cncf.io/resourceName: example.com/fast_vf}}
spec: {config: '{"cniVersion": "0.3.1", "name": "fast", "type": "sriov", "vlan": 100}'}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: lan}
spec: {config: '{"cniVersion": "0.3.1", "name": "lan", "type": "bridge", "bridge": "br0"}'}
"""
BLUE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: blue}
spec:
  runStrategy: Always
  template:
    spec:
      networks: [{name: default, pod: {}}]
      domain: {memory: {guest: 1Gi}, devices: {interfaces: [{name: default, masquerade: {}, macAddress: "02:00:00:00:00:01"}]}}
"""
TEMPLATE = "/spec/template/spec"
CARDS = f"{TEMPLATE}/domain/devices/interfaces"
FIELD = "spec.template.spec.domain.devices.interfaces"


def settings(grace: str, speed: str = "64Gi") -> str:
    """`speed`: bytes per second of a migration."""
    return KUBEVIRT.replace("GRACE", grace).replace("SPEED", speed)


def plug(name: str, network: str, **interface: object) -> str:
    """A JSON patch that adds a NIC on a secondary network."""
    return json.dumps([
        {"op": "add", "path": f"{TEMPLATE}/networks/-", "value": {"name": name, "multus": {"networkName": network}}},
        {"op": "add", "path": f"{CARDS}/-", "value": {"name": name, **interface}}])


def unplug(vm: Object, name: str) -> str:
    names = [card["name"] for card in vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]]
    return json.dumps([{"op": "add", "path": f"{CARDS}/{names.index(name)}/state", "value": "absent"}])


def holder_of_vfs(host: str, vfs: int) -> str:
    """A VMI that holds VFs of a host."""
    names = [f"nic{number}" for number in range(vfs)]
    return json.dumps({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "full"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": host},
            "networks": [{"name": name, "multus": {"networkName": "fast"}} for name in names],
            "domain": {"memory": {"guest": "1Gi"},
                       "devices": {"interfaces": [{"name": name, "sriov": {}} for name in names]}}}})


def holder_of_memory(host: str) -> str:
    """A VMI that leaves a simulated host no room for another."""
    return json.dumps({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "full"},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": host}, "domain": {"memory": {"guest": "63Gi"}, "devices": {}}}})


def migration(name: str, host: str = "") -> str:
    selector = {"addedNodeSelector": {"kubernetes.io/hostname": host}} if host else {}
    return json.dumps({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": {"name": name},
                       "spec": {"vmiName": "blue", **selector}})


def _added(path: str, **value: object) -> str:
    return json.dumps([{"op": "add", "path": f"{path}/-", "value": value}])


class BadChange(NamedTuple):
    patch: str
    field: str
    why: str


BAD_CHANGES: dict[str, BadChange] = {
    "a MAC address that another NIC has": BadChange(
        plug("lan", "lan", bridge={}, macAddress="02:00:00:00:00:01"), f"{FIELD}[1].macAddress", "Duplicate value"),
    "absent on the primary network": BadChange(
        json.dumps([{"op": "add", "path": f"{CARDS}/0/state", "value": "absent"}]), f"{FIELD}[0].state", "default networks"),
    "the name of another interface": BadChange(plug("default", "lan", bridge={}), f"{FIELD}[1]", "default"),
    "an interface without a network": BadChange(_added(CARDS, name="lan", bridge={}), f"{FIELD}[1].name", "network"),
    "a network without an interface": BadChange(
        _added(f"{TEMPLATE}/networks", name="lan", multus={"networkName": "lan"}), "spec.template.spec.networks[1].name",
        "interface"),
    "a VF whose link is to be down": BadChange(
        plug("fast", "fast", sriov={}, state="down"), f"{FIELD}[1].state", "down"),
}
