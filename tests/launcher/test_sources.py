"""Which devices a VM got: what each source says, in which order they are believed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import StartFailed
from outfitter.launcher import sources
from tests.launcher.domain_cases import (
    BASE,
    BUS_ID,
    MDEV,
    MDEV2,
    NAMED,
    NETWORK_INFO,
    OLD_BASE,
    device,
    file,
    flavored,
    got,
    instance,
    plugged,
    told,
    wanted,
)

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
TEMPLATE = {"resourceClaims": [{"name": "claim", "resourceClaimTemplateName": "tmpl"}]}
GPU = {"gpus": [wanted("g0", "card")]}
VARIABLE = "PCI_RESOURCE_CLAIM_CARD"
NIC = {"interfaces": [{"name": "fast", "sriov": {}}]}
MULTUS = {"networks": [{"name": "fast", "multus": {"networkName": "nets/fast"}}]}
BY_CLAIM = {**NAMED, "networks": [{"name": "fast", "resourceClaim": {"claimName": "claim", "requestName": "card"}}]}


@dataclass
class Case:
    instance: Object
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def devices(self) -> dict[str, list[str]]:
        return {one.ask.name: ["+".join(given.functions or (given.address,)) for given in one.devices]
                for one in sources.devices_of(self.instance, self.env, self.files)}


def gpu(*entries: Object, **spec: object) -> Object:
    return instance(GPU, {"gpuStatuses": list(entries)} if entries else None, spec=spec or NAMED)


FILE = {file("card"): told("card", device(address=A))}
FOUND: dict[str, tuple[Case, dict[str, list[str]]]] = {
    "the status": (Case(gpu(got("g0", pciAddress=A))), {"g0": [A]}),
    "devices of a flavor": (
        Case(flavored(instance({}, {"hostDeviceStatuses": [got("nic-0", pciAddress=A), got("nic-1", pciAddress=B)]}),
                      ("nic", 2)), {"PCI_RESOURCE_CLAIM_NIC": f"{A},{B}"},
             {file("nic"): told("nic", device(address=A), device("d1", address=B))}), {"nic-0": [A], "nic-1": [B]}),
    "devices of a flavor, by files alone": (
        Case(flavored(instance(), ("nic", 2)), files={file("nic"): told("nic", device(address=A), device("d1", address=B))}),
        {"nic-0": [A], "nic-1": [B]}),
    "several entries of one name": (Case(gpu(got("g0", pciAddress=A), got("g0", mdevUUID=MDEV))), {"g0": [A, MDEV]}),
    "a card of several functions": (
        Case(gpu(got("g0", pciAddress=A, members=[A, "0000:65:00.1"]))), {"g0": [f"{A}+0000:65:00.1"]}),
    "the older spelling of a UUID": (Case(gpu(got("g0", mDevUUID=MDEV))), {"g0": [MDEV]}),
    "a file": (Case(gpu(), {}, FILE), {"g0": [A]}),
    "a status without address is no status": (Case(gpu(got("g0")), {}, FILE), {"g0": [A]}),
    "all three, of one mind": (Case(gpu(got("g0", pciAddress=A)), {VARIABLE: A}, FILE), {"g0": [A]}),
    "one knows of all functions, the other of the first": (
        Case(gpu(got("g0", pciAddress=A, members=[A, "0000:65:00.1"])), {VARIABLE: A}), {"g0": [f"{A}+0000:65:00.1"]}),
    "capitals do not matter": (Case(gpu(got("g0", pciAddress="0000:AF:00.0")), {VARIABLE: "0000:af:00.0"}),
                               {"g0": ["0000:AF:00.0"]}),
    "a file under the older base path": (
        Case(gpu(), {}, {file("card", base=OLD_BASE): told("card", device(address=A))}), {"g0": [A]}),
    "a file of a claim made from a template": (
        Case(gpu(**TEMPLATE), {}, {
            f"{BASE}/resourceclaimtemplates/claim/card/x-metadata.json": told("card", device(address=A))}), {"g0": [A]}),
    "the older layout by the claim's name": (
        Case(gpu(), {}, {f"{OLD_BASE}/claim/card/x-metadata.json": told("card", device(address=A))}), {"g0": [A]}),
    "the older layout by the entry": (
        Case(gpu(**TEMPLATE), {}, {
            f"{OLD_BASE}/pod-claim-x7z/card/x-metadata.json": told("card", device(address=A), podClaimName="claim"),
            f"{OLD_BASE}/pod-other-x7z/card/x-metadata.json": told("card", device(address=B), podClaimName="other"),
            f"{OLD_BASE}/broken/card/x-metadata.json": "{"}), {"g0": [A]}),
    "several devices of one request": (
        Case(gpu(), {}, {file("card"): told("card", device("a", address=A), device("b", uuid=MDEV))}), {"g0": [A, MDEV]}),
    "several drivers for one request": (
        Case(gpu(), {}, {file("card", driver="a.test"): told("card", device("x", driver="a.test", address=A)),
                         file("card", driver="b.test"): told("card", device("x", driver="b.test", address=B))}),
        {"g0": [A, B]}),
    "the alternative that was chosen": (Case(gpu(), {}, {file("card"): told("card/big", device(address=A))}), {"g0": [A]}),
    "members of a file": (
        Case(gpu(), {}, {file("card"): told("card", device(address=A, members=f"{A},0000:65:00.1", members2="0000:65:00.2"))}),
        {"g0": [f"{A}+0000:65:00.1+0000:65:00.2"]}),
    "a newer version before ours": (
        Case(gpu(), {}, {file("card"): told("card", device(address=B), version="v9") + "\n" + told("card", device(address=A))}),
        {"g0": [A]}),
    "rubbish behind ours": (Case(gpu(), {}, {file("card"): told("card", device(address=A)) + "\n{rubbish"}), {"g0": [A]}),
    "a good status and a file of an unknown version": (
        Case(gpu(got("g0", pciAddress=A)), {}, {file("card"): told("card", device(address=B), version="v9")}), {"g0": [A]}),
    "a variable by claim and request": (Case(gpu(), {VARIABLE: f"{A},"}), {"g0": [A]}),
    "a variable with several devices": (Case(gpu(), {VARIABLE: f"{A}, {B}"}), {"g0": [A, B]}),
    "a variable for a mediated device": (Case(gpu(), {"MDEV_PCI_RESOURCE_CLAIM_CARD": MDEV, VARIABLE: A}), {"g0": [MDEV]}),
    "a variable of a claim made from a template": (
        Case({**gpu(**TEMPLATE), "status": {"resourceClaimStatuses": [
            {"name": "claim", "resourceClaimName": "pod-claim-x7z"}]}}, {"PCI_RESOURCE_POD-CLAIM-X7Z_CARD": A}), {"g0": [A]}),
    "dashes as underscores": (
        Case({**gpu(**TEMPLATE), "status": {"resourceClaimStatuses": [
            {"name": "claim", "resourceClaimName": "pod-claim-x7z"}]}}, {"PCI_RESOURCE_POD_CLAIM_X7Z_CARD": A}), {"g0": [A]}),
    "two of one resource": (
        Case(instance({"gpus": [plugged("a"), plugged("b")]}), {"PCI_RESOURCE_ACME_TEST_CARD": f"{A},{B},"}),
        {"a": [A], "b": [B]}),
    "one resource in both lists": (
        Case(instance({"gpus": [plugged("g")], "hostDevices": [plugged("h")]}), {"PCI_RESOURCE_ACME_TEST_CARD": f"{A},{B}"}),
        {"h": [A], "g": [B]}),
    "by resource name, in the status alone": (
        Case(instance({"gpus": [plugged("a")]}, {"gpuStatuses": [got("a", pciAddress=A, members=[A, "0000:65:00.1"])]})),
        {"a": [f"{A}+0000:65:00.1"]}),
    "by resource name: which entry has which is said by the status": (
        Case(instance({"gpus": [plugged("a"), plugged("b")]}, {
            "gpuStatuses": [got("a", pciAddress=B), got("b", pciAddress=A)]}), {"PCI_RESOURCE_ACME_TEST_CARD": f"{A},{B}"}),
        {"a": [B], "b": [A]}),
    "by resource name: a card of the status is whole, whatever else the environment lists": (
        Case(instance({"gpus": [plugged("a")]}, {"gpuStatuses": [got("a", pciAddress=A, members=[A, "0000:65:00.1"])]}),
             {"PCI_RESOURCE_ACME_TEST_CARD": f"{A},0000:65:00.1,{B},0000:66:00.1"}), {"a": [f"{A}+0000:65:00.1"]}),
    "by resource name: the status knows of one, the environment of all": (
        Case(instance({"gpus": [plugged("a"), plugged("b")]}, {"gpuStatuses": [got("b", pciAddress=A)]}),
             {"PCI_RESOURCE_ACME_TEST_CARD": f"{A},{B}"}), {"a": [B], "b": [A]}),
    "by resource name: a status without address is no status": (
        Case(instance({"gpus": [plugged("a")]}, {"gpuStatuses": [got("a")]}), {"PCI_RESOURCE_ACME_TEST_CARD": A}), {"a": [A]}),
    "one card under two names": (
        Case(instance({"gpus": [plugged("a", "x.test/A"), plugged("b", "x.test/B")]}),
             {"PCI_RESOURCE_X_TEST_A": f"{A},{B}", "PCI_RESOURCE_X_TEST_B": f"{A},{B}"}), {"a": [A], "b": [B]}),
    "sound goes with its card": (
        Case(instance({"gpus": [plugged("a"), plugged("b")]}),
             {"PCI_RESOURCE_ACME_TEST_CARD": f"{A},0000:65:00.1,{B},0000:66:00.1"}),
        {"a": [f"{A}+0000:65:00.1"], "b": [f"{B}+0000:66:00.1"]}),
    "virtual functions of one card are each their own": (
        Case(instance({"hostDevices": [plugged("a"), plugged("b")]}),
             {"PCI_RESOURCE_ACME_TEST_CARD": "0000:3b:02.0,0000:3b:02.1,0000:3b:02.2"}),
        {"a": ["0000:3b:02.0"], "b": ["0000:3b:02.1"]}),
    "a resource name with a dash": (
        Case(instance({"gpus": [plugged("a", "x-y.test/A-1")]}), {"MDEV_PCI_RESOURCE_X-Y_TEST_A-1": MDEV}), {"a": [MDEV]}),
    "a stick": (Case(instance({"hostDevices": [plugged("s")]}), {"USB_RESOURCE_ACME_TEST_CARD": "1:3"}), {"s": ["1:3"]}),
    "a network's function": (Case(instance(NIC, spec=MULTUS), {}, NETWORK_INFO), {"fast": ["0000:3b:02.1"]}),
    "a network's function from the environment": (
        Case(instance(NIC, spec=MULTUS), {"KUBEVIRT_RESOURCE_NAME_fast": "acme.test/vf", "PCIDEVICE_ACME_TEST_VF": A}),
        {"fast": [A]}),
    "a network by claim": (Case(instance(NIC, spec=BY_CLAIM), {}, FILE), {"fast": [A]}),
    "a network by claim, as the pod says it": (
        Case(instance(NIC, spec=BY_CLAIM), {}, NETWORK_INFO), {"fast": ["0000:3b:02.1"]}),
    "a network by claim, and a pod that reports nothing": (
        Case(instance(NIC, spec=BY_CLAIM), {}, {**FILE, "/etc/podinfo/network-info": ""}), {"fast": [A]}),
    "an interface that is being plugged": (
        Case({**instance(NIC, spec=MULTUS), "status": {"phase": "Running"}}), {}),
    "an interface that goes": (
        Case(instance({"interfaces": [{"name": "fast", "sriov": {}, "state": "absent"}]}, spec=MULTUS)), {}),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    given, devices = FOUND[name]
    assert given.devices() == devices


def with_file(text: str) -> Case:
    return Case(gpu(), {}, {file("card"): text})


PLUGINS = instance({"gpus": [plugged("a"), plugged("b")]})
REFUSED: dict[str, tuple[Case, list[str]]] = {
    "is not stated anything": (Case(gpu()), [
        "GPU g0 is not in status.deviceStatus: the VM does not start without it", "spec.domain.devices.gpus[0]",
        f"no files matching {BASE}/resourceclaims/claim/card/*-metadata.json", "PCI_RESOURCE_CLAIM_CARD"]),
    "a file with fewer than a flavor brings": (
        Case(flavored(instance(), ("nic", 2)), files={file("nic"): told("nic", device(address=A))}),
        ["HostDevice nic-1 is not among the 1 devices for request nic", "spec.flavor"]),
    "status and file disagree": (Case(gpu(got("g0", pciAddress=A)), {}, {file("card"): told("card", device(address=B))}), [
        "spec.domain.devices.gpus[0]", f"status.deviceStatus has {A} for GPU g0, but device metadata has {B}"]),
    "status and environment disagree": (Case(gpu(got("g0", pciAddress=A)), {VARIABLE: B}), [f"but the environment has {B}"]),
    "file and environment disagree": (Case(gpu(), {VARIABLE: B}, FILE), [f"device metadata has {A} for GPU g0"]),
    "one says fewer": (Case(gpu(got("g0", pciAddress=A)), {VARIABLE: f"{A},{B}"}), [f"has {A} and {B}"]),
    "one says the parent": (Case(gpu(got("g0", pciAddress=A)), {}, {
        file("card"): told("card", device(address=A, uuid=MDEV))}), [f"has {MDEV}"]),
    "they differ in a function": (
        Case(gpu(got("g0", pciAddress=A, members=[A, "0000:65:00.1"])), {}, {
            file("card"): told("card", device(address=A, members=f"{A},0000:65:00.2"))}), [f"has {A}+0000:65:00.2"]),
    "two base paths disagree": (Case(gpu(), {}, {**FILE, file("card", base=OLD_BASE): told("card", device(address=B))}), [
        f"{BASE}/resourceclaims/claim/card/*-metadata.json and {OLD_BASE}/", "do not list the same devices"]),
    "two drivers claim one device": (
        Case(gpu(), {}, {file("card", driver="a"): told("card", device(address=A)),
                         file("card", driver="b"): told("card", device(address=B))}),
        ["GPU g0", "2 metadata files", "gpu.acme.test/node-a/d0 twice"]),
    "one address twice": (with_file(told("card", device("a", address=A), device("b", address=A))), ["2 devices", A, "twice"]),
    "no such request": (with_file(told("cord", device(address=A))), ["request card not found in metadata", "gpus[0]"]),
    "a request without devices": (with_file(told("card")), ["request card has no devices"]),
    "a device without address": (with_file(told("card", device())), ["no mdevUUID or pciBusID", "claim request card"]),
    "the spelling of the design text": (
        with_file(json.dumps(json.loads(told("card", device(address=A)))).replace('"string"', '"stringValue"')),
        ["no mdevUUID or pciBusID"]),
    "an empty address": (with_file(told("card", device(address=""))), ["no mdevUUID or pciBusID"]),
    "a root is no address": (with_file(told("card", device(**{"resource.kubernetes.io/pcieRoot": "pci0000:64"}))),
                             ["no mdevUUID or pciBusID"]),
    "a root as address": (with_file(told("card", device(address="pci0000:64"))), [
        "failed to create PCI device for g0: failed to parse pci address pci0000:64"]),
    "no UUID": (with_file(told("card", device(uuid="vgpu-7"))), ["vgpu-7 is not a UUID"]),
    "an empty file": (with_file(" \n"), ["no metadata objects found in stream", file("card")]),
    "broken JSON": (with_file("{"), ["failed to decode metadata"]),
    "broken JSON before ours": (with_file("{\n" + told("card", device(address=A))), ["failed to decode metadata"]),
    "no version": (with_file('{"kind": "x"}' + told("card", device(address=A))), ["no apiVersion"]),
    "unknown versions alone": (with_file(told("card", version="v8") + told("card", version="v9")), [
        "unknown versions: metadata.resource.k8s.io/v8, metadata.resource.k8s.io/v9"]),
    "no request": (Case(instance({"gpus": [{"name": "g0", "claimName": "claim"}]}, spec=NAMED)), ["incomplete ClaimRequest"]),
    "neither claim nor deviceName": (Case(instance({"gpus": [{"name": "g0"}]})), [
        "spec.domain.devices.gpus[0]: GPU g0 names neither a deviceName nor a claim"]),
    "more in the status than is asked for": (Case(gpu(got("g0", pciAddress=A), got("g1", pciAddress=B))), [
        "status.deviceStatus.gpuStatuses", "do not match", "'g1' is not among spec.domain.devices.gpus"]),
    "one device for two entries": (
        Case(instance({"gpus": [wanted("g")], "hostDevices": [wanted("h")]}, {
            "gpuStatuses": [got("g", pciAddress=A)], "hostDeviceStatuses": [got("h", pciAddress=A)]})),
        ["GPU g and HostDevice h would both be 0000:65:00.0"]),
    "one device twice for one entry": (Case(gpu(got("g0", pciAddress=A), got("g0", pciAddress=A))), [
        f"GPU g0 would get {A} twice in 2 devices"]),
    "a function of another's card": (
        Case(instance({"gpus": [wanted("g")], "hostDevices": [wanted("h")]}, {
            "gpuStatuses": [got("g", pciAddress=A, members=[A, "0000:65:00.1"])],
            "hostDeviceStatuses": [got("h", pciAddress="0000:65:00.1")]})), ["would both be 0000:65:00.1"]),
    "by resource name: another one than the environment has": (
        Case(instance({"gpus": [plugged("a")]}, {"gpuStatuses": [got("a", pciAddress=A)]}),
             {"PCI_RESOURCE_ACME_TEST_CARD": B}), [
            "spec.domain.devices.gpus[0]: status.deviceStatus has 0000:65:00.0 for GPU a, but the environment has "
            "0000:66:00.0 for acme.test/card"]),
    "by resource name: of another kind than the environment has": (
        Case(instance({"gpus": [plugged("a")]}, {"gpuStatuses": [got("a", mdevUUID=MDEV)]}),
             {"PCI_RESOURCE_ACME_TEST_CARD": A}),
        [f"{MDEV} for GPU a, but the environment has {A} for acme.test/card"]),
    "by resource name: two for one": (
        Case(instance({"gpus": [plugged("a")]}, {"gpuStatuses": [got("a", pciAddress=A), got("a", pciAddress=B)]})), [
            "gpus[0]: status.deviceStatus has 2 devices for GPU a, which requests one acme.test/card"]),
    "by resource name: one card for two": (
        Case(instance({"gpus": [plugged("a"), plugged("b")]}, {
            "gpuStatuses": [got("a", pciAddress=A), got("b", pciAddress=A)]})), ["GPU b and GPU a would both be 0000:65:00.0"]),
    "fewer than asked for": (Case(PLUGINS, {"PCI_RESOURCE_ACME_TEST_CARD": A}), [
        "spec.domain.devices.gpus[1]", "the number of device plugin GPU/s do not match", "has no more than 1"]),
    "none at all": (Case(PLUGINS), ["PCI_RESOURCE_ACME_TEST_CARD", "list none"]),
    "a variable of commas": (Case(PLUGINS, {"PCI_RESOURCE_ACME_TEST_CARD": ",,"}), ["list none"]),
    "of two kinds": (Case(PLUGINS, {"PCI_RESOURCE_ACME_TEST_CARD": A, "MDEV_PCI_RESOURCE_ACME_TEST_CARD": MDEV2}), [
        "are both set"]),
    "a GPU on USB": (Case(PLUGINS, {"USB_RESOURCE_ACME_TEST_CARD": "1:3,1:4"}), ["list none"]),
    "no bus of USB": (Case(instance({"hostDevices": [plugged("s")]}), {"USB_RESOURCE_ACME_TEST_CARD": "one"}), ["one is not"]),
    "a network without its file": (Case(instance(NIC, spec=MULTUS)), [
        "spec.domain.devices.interfaces[0]", "found no SR-IOV networks to PCI-Address mapping for fast"]),
    "a network's empty file": (Case(instance(NIC, spec=MULTUS), {}, {"/etc/podinfo/network-info": ""}), ["is empty"]),
    "a network's broken file": (Case(instance(NIC, spec=MULTUS), {}, {"/etc/podinfo/network-info": "[1]"}), ["cannot be read"]),
    "a network of another": (
        Case(instance({"interfaces": [{"name": "slow", "sriov": {}}]}, spec={"networks": [{"name": "slow", "multus": {}}]}),
             {}, NETWORK_INFO), ["names no PCI address for slow"]),
    "too few functions for the networks": (
        Case(instance({"hostDevices": [plugged("h")], **NIC}, spec=MULTUS), {
            "KUBEVIRT_RESOURCE_NAME_fast": "acme.test/vf", "PCIDEVICE_ACME_TEST_VF": A, "PCI_RESOURCE_ACME_TEST_CARD": A}),
        ["has no address left for Interface fast"]),
    "an interface without network": (Case(instance(NIC)), ["no entry of spec.networks is called fast"]),
    "a network by claim is a PCI function": (
        Case(instance(NIC, spec=BY_CLAIM), {}, {file("card"): told("card", device(uuid=MDEV))}), [
            "Interface fast has no pciBusID", "interfaces[0]"]),
    "a network by claim of which two say different things": (
        Case(instance(NIC, spec=BY_CLAIM), {}, {**FILE, **NETWORK_INFO}), [
            "interfaces[0]", f"has {A} for Interface fast, but /etc/podinfo/network-info has 0000:3b:02.1"]),
    "a network that cannot be had": (
        Case(instance(NIC, spec=MULTUS), {}, {network_info.FILE: network_info.write([Wire("fast", "none", why="it is so")])}), [
            "interfaces[0]: it is so"]),
    "running, reported, and without address": (
        Case({**instance(NIC, spec=MULTUS), "status": {"phase": "Running", "interfaces": [
            {"name": "fast", "infoSource": "domain, multus-status"}]}}), ["found no SR-IOV networks"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, says = REFUSED[name]
    with pytest.raises(StartFailed) as caught:
        given.devices()
    for words in says:
        assert words in str(caught.value)


def test_two_allocated_names_of_one_function_are_the_fault_of_the_allocation() -> None:
    """Another host may have two functions under these names; shares of one device are one on every host."""
    def of(name: str) -> Object:
        entry = got("g0", pciAddress=A)
        return {**entry, "deviceResourceClaimStatus": {
            **entry["deviceResourceClaimStatus"], "driver": "gpu.acme.test", "pool": "rack/1", "name": name}}

    with pytest.raises(StartFailed) as caught:
        sources.devices_of(gpu(of("one"), of("two")), {}, {})
    why = caught.value.rejection
    assert why == Rejection(RejectionCode.HARDWARE_HELD, DeviceId("gpu.acme.test", "rack/1", "two"),
                            detail={"hardware": (A,), "other": "gpu.acme.test/rack/1/one"})
    with pytest.raises(StartFailed) as caught:
        sources.devices_of(gpu(of("one"), of("one")), {}, {})
    assert caught.value.rejection is None


def test_source_and_address_of_each_device() -> None:
    (one,) = sources.devices_of(gpu(), {}, {file("card"): told("card", device(address=A, numa=1))})
    assert (one.source, one.devices[0].numa, one.devices[0].id) == ("device metadata", 1, "gpu.acme.test/node-a/d0")
    (one,) = sources.devices_of(gpu(got("g0", pciAddress=A, numaNode=1)), {VARIABLE: A}, {})
    assert (one.source, one.devices[0].numa) == ("status.deviceStatus", 1)


@pytest.mark.parametrize("value", [{"int": -1}, {"string": "1"}, None])
def test_numa_node_without_a_source_is_none(value: object) -> None:
    text = told("card", {**device(), "attributes": {BUS_ID: {"string": A}, "resource.kubernetes.io/numaNode": value}})
    (one,) = sources.devices_of(gpu(), {}, {file("card"): text})
    assert one.devices[0].numa is None
