"""status.interfaces of a VMI, from what its pod's network-status reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import interface_status

HASHED = "pod16477688c0e"  # of network blue
PRIMARY = {"name": "cni0", "interface": "eth0", "default": True}
BLUE = {"name": "lab/blue-nad", "interface": HASHED}


def vmi(*entries: Object) -> Object:
    return {"metadata": {"name": "vm1", "namespace": "lab"}, "status": {"interfaces": list(entries)}, "spec": {
        "domain": {}, "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "blue-nad"}},
                                   {"name": "fast", "resourceClaim": {"claimName": "c", "requestName": "r"}}]}}


def pod(*entries: Any, text: str | None = None) -> Object:
    return {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/network-status": text or json.dumps(entries)}}}


DEFAULT = {"name": "default", "infoSource": "domain", "podInterfaceName": "eth0"}
CASES: dict[str, tuple[Object, Object, list[Object]]] = {
    "a plugged interface is new": (vmi(DEFAULT), pod(PRIMARY, BLUE), [
        DEFAULT, {"name": "blue", "infoSource": "multus-status", "podInterfaceName": HASHED}]),
    "it gets another source": (vmi(DEFAULT, {"name": "blue", "infoSource": "domain"}), pod(PRIMARY, BLUE), [
        DEFAULT, {"name": "blue", "infoSource": "domain, multus-status", "podInterfaceName": HASHED}]),
    "it loses one": (vmi(DEFAULT, {"name": "blue", "infoSource": "domain, multus-status"}), pod(PRIMARY), [
        DEFAULT, {"name": "blue", "infoSource": "domain"}]),
    "the last source goes, and the entry stays": (vmi(DEFAULT, {"name": "blue", "infoSource": "multus-status"}), pod(PRIMARY), [
        DEFAULT, {"name": "blue"}]),
    "the primary interface has another name": (vmi(DEFAULT), pod({**PRIMARY, "interface": "ovn-udn1"}), [
        {**DEFAULT, "podInterfaceName": "ovn-udn1"}]),
    "the primary interface comes first": (vmi({"interfaceName": "docker0", "infoSource": "guest-agent"}), pod(PRIMARY), [
        {"name": "default", "podInterfaceName": "eth0"}, {"interfaceName": "docker0", "infoSource": "guest-agent"}]),
    "ordinal names are kept": (
        vmi(DEFAULT, {"name": "blue", "infoSource": "domain", "podInterfaceName": "net1"}),
        pod(PRIMARY, {**BLUE, "interface": "net1"}), [
            DEFAULT, {"name": "blue", "infoSource": "domain, multus-status", "podInterfaceName": "net1"}]),
    "an interface by claim is left alone": (vmi(DEFAULT, {"name": "fast", "infoSource": "domain, pod-status"}), pod(PRIMARY), [
        DEFAULT, {"name": "fast", "infoSource": "domain, pod-status"}]),
    "without network-status nothing changes": (vmi({"name": "blue", "infoSource": "multus-status"}), {"metadata": {}}, [
        {"name": "blue", "infoSource": "multus-status"}]),
    "what cannot be read is no network-status": (vmi({"name": "blue", "infoSource": "multus-status"}), pod(text="?"), [
        {"name": "blue", "infoSource": "multus-status"}]),
}


@pytest.mark.parametrize("name", CASES)
def test_interfaces_follow_the_pod(name: str) -> None:
    instance, launcher, wanted = CASES[name]
    found = interface_status.computed(instance, launcher)
    assert found == wanted
    assert interface_status.computed({**instance, "status": {"interfaces": found}}, launcher) == wanted, "once is enough"
