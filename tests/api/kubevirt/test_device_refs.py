"""A VM's devices: what it asks for, in whichever spelling, and what it got."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api import conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, pod_claims, vm
from outfitter.errors import StartFailed
from outfitter.launcher import sources

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"

SPELLINGS: dict[str, tuple[Object, tuple[str | None, str | None, str | None]]] = {
    "claimName and requestName": ({"claimName": "c", "requestName": "r"}, (None, "c", "r")),
    "claimName and deviceRequestName": ({"claimName": "c", "deviceRequestName": "r"}, (None, "c", "r")),
    "claim with name and request": ({"claim": {"name": "c", "request": "r"}}, (None, "c", "r")),
    "deviceName": ({"deviceName": "vendor.com/gpu"}, ("vendor.com/gpu", None, None)),
    "an empty deviceName is none": ({"deviceName": "", "claimName": "c", "requestName": "r"}, (None, "c", "r")),
    "half a claim": ({"claimName": "c"}, (None, "c", None)),
    "nothing": ({}, (None, None, None)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    words, (device, claim, request) = SPELLINGS[name]
    [ref] = device_refs.device_refs({"spec": {"domain": {"devices": {"gpus": [{"name": "gpu0", **words}]}}}})
    assert (ref.name, ref.device_name, ref.claim, ref.request) == ("gpu0", device, claim, request)
    assert ref.by_claim == (device is None and bool(claim or request))
    assert ref.path == "spec.domain.devices.gpus[0]"


@pytest.mark.parametrize("spec", [{}, {"spec": None}, {"spec": {"domain": None}},
                                  {"spec": {"domain": {"devices": {"gpus": None}}}}])
def test_no_devices(spec: Object) -> None:
    assert device_refs.device_refs(spec) == []
    assert device_status.missing_devices(spec) == []


def test_claims_of_a_pod() -> None:
    pod = {"spec": {"resourceClaims": [
        {"name": "a", "resourceClaimName": "mine"}, {"name": "b", "resourceClaimTemplateName": "t"},
        {"name": "c", "resourceClaimTemplateName": "t"}]},
           "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}]}}
    assert dict(pod_claims.claim_names(pod)) == {"a": "mine", "b": "made", "c": None}


ADDRESSES: dict[str, tuple[Object, object]] = {
    "PCI": ({"pciAddress": "0000:3b:01.0"}, ("pci", "0000:3b:01.0")),
    "mediated": ({"mdevUUID": "u"}, ("mdev", "u")),
    "mediated, in the other spelling": ({"mDevUUID": "u"}, ("mdev", "u")),
    "mediated, with its parent's address": ({"mdevUUID": "u", "pciAddress": "0000:3b:01.0"}, ("mdev", "u")),
    "nothing yet": ({}, None),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses(name: str) -> None:
    attributes, wanted = ADDRESSES[name]
    assert device_status.address_of({"deviceResourceClaimStatus": {"attributes": attributes}}) == wanted


def instance(*told: tuple[str, str], **whose: str) -> Object:
    return {
        "spec": {"domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "net", "requestName": "nic"}]}}},
        "status": {"deviceStatus": {"hostDeviceStatuses": [
            {"name": "nic0", "deviceResourceClaimStatus": {
                "name": device, "resourceClaimName": claim, **(whose or {"driver": "d", "pool": "p"}),
                "attributes": {"pciAddress": "0000:3b:01.0"}}}
            for claim, device in told]}},
    }


def claim(*results: tuple[str, str]) -> Object:
    return {"status": {"allocation": {"devices": {"results": [
        {"request": request, "driver": "d", "pool": "p", "device": device} for request, device in results]}}}}


POD = {"metadata": {"namespace": "here"}, "spec": {"resourceClaims": [{"name": "net", "resourceClaimName": "mine"}]}}
SETTLED: dict[str, tuple[Object, Object | None, bool]] = {
    "the status reports what the claim says": (instance(("mine", "vf0")), claim(("nic", "vf0")), True),
    "an alternative of the request": (instance(("mine", "vf0")), claim(("nic/fast", "vf0")), True),
    "two for one request": (instance(("mine", "vf0"), ("mine", "vf1")), claim(("nic", "vf0"), ("nic", "vf1")), True),
    "a writer that does not say whose it is": (instance(("mine", "vf0"), pool="p"), claim(("nic", "vf0")), True),
    "another driver's device": (instance(("mine", "vf0"), driver="x"), claim(("nic", "vf0")), False),
    "the same one reported twice": (instance(("mine", "vf0"), ("mine", "vf0")), claim(("nic", "vf0"), ("nic", "vf1")), False),
    "one of two does not receive": (instance(("mine", "vf0")), claim(("nic", "vf0"), ("nic", "vf1")), False),
    "another request's device does not matter": (instance(("mine", "vf0")), claim(("nic", "vf0"), ("disk", "vf1")), True),
    "nothing reported yet": (instance(), claim(("nic", "vf0")), False),
    "another device": (instance(("mine", "vf9")), claim(("nic", "vf0")), False),
    "a claim of an earlier pod": (instance(("theirs", "vf0")), claim(("nic", "vf0")), False),
    "a claim that is not allocated": (instance(("mine", "vf0")), {}, False),
    "a claim that is gone": (instance(("mine", "vf0")), None, False),
}


@pytest.mark.parametrize("name", SETTLED)
def test_status_must_match_the_claims_of_the_pod(name: str) -> None:
    obj, allocated, settled = SETTLED[name]
    assert device_status.unsettled_devices(obj, POD, lambda namespace, name: allocated) == ([] if settled else ["nic0"])


def test_status_with_unrequested_devices_is_incomplete() -> None:
    obj = instance(("mine", "vf0"))
    obj["status"]["deviceStatus"]["gpuStatuses"] = [{**obj["status"]["deviceStatus"]["hostDeviceStatuses"][0]}]
    assert device_status.unsettled_devices(obj, POD, lambda namespace, name: claim(("nic", "vf0"))) == ["nic0"]


def test_only_a_controlling_owner_of_the_kind_is_the_owner() -> None:
    refs = [{"kind": "Pod", "name": "p", "controller": True}, {"kind": "VirtualMachineInstance", "name": "a"}]
    assert vm.owner({"metadata": {"ownerReferences": refs}}, "VirtualMachineInstance") is None
    assert vm.owner({"metadata": {"ownerReferences": refs}}, "Pod") == refs[0]
    assert vm.owner({"metadata": {}}, "Pod") is None


def test_a_condition_keeps_its_place_and_the_time_of_its_last_change() -> None:
    have = conditions.with_condition(None, Condition("A", False, "Why", "because"), NOW)
    have = conditions.with_condition(have, Condition("B", True), NOW)
    assert conditions.with_condition(have, Condition("A", False, "Why", "because"), LATER) == have
    changed = conditions.with_condition(have, Condition("A", None, message="who knows"), LATER)
    assert changed == [{"type": "A", "status": "Unknown", "lastTransitionTime": LATER, "message": "who knows"}, have[1]]
    assert conditions.without_condition(changed, "A") == [have[1]]
    assert have[0]["status"] == "False", "what was handed in stays"


def test_conditions_are_found_and_rendered() -> None:
    obj: Object = {"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "Unknown"}]}}
    assert conditions.is_true(obj, "A")
    assert not conditions.is_true(obj, "B")
    assert not conditions.is_true(obj, "C")
    assert conditions.find({}, "A") is None


FLAVORED: dict[str, Any] = {"spec": {"flavor": {"name": "large"}, "domain": {}}}
RECORD = {"name": "large", "vcpus": 4, "memory": "3Gi", "claimName": "c",
          "devices": [{"name": "gpu", "alias": "GPU", "count": 2}]}


def entry(name: str, device: str) -> dict[str, Any]:
    return {"name": name, "deviceResourceClaimStatus": {"name": device, "resourceClaimName": "c", "driver": "d", "pool": "p",
                                                       "attributes": {"pciAddress": "0000:17:00.0"}}}


def test_vmi_with_an_unresolved_flavor_does_not_start() -> None:
    pod = {"metadata": {"namespace": "n"}, "spec": {}}
    assert device_status.missing_devices(FLAVORED) == ["those of flavor large"]
    assert device_status.unsettled_devices(FLAVORED, pod, lambda namespace, name: None) == ["those of flavor large"]
    with pytest.raises(StartFailed, match=r"spec\.flavor: the devices of large are not in status\.flavor"):
        sources.devices_of(FLAVORED, {}, {})


def test_devices_of_a_flavor_are_devices_of_the_vmi() -> None:
    results = [{"request": "gpu", "driver": "d", "pool": "p", "device": name} for name in ("a", "b")]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    pod = {"metadata": {"namespace": "n"}, "spec": {"resourceClaims": [{"name": "flavor", "resourceClaimName": "c"}]}}

    def told(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**FLAVORED, "status": {"flavor": {**RECORD, **more}, "deviceStatus": {"hostDeviceStatuses": list(entries)}}}

    assert device_status.missing_devices(told(entry("gpu-0", "a"))) == ["gpu-1"]
    assert device_status.unsettled_devices(told(entry("gpu-0", "a"), entry("gpu-1", "b")), pod, lambda *_: claim) == []
    crossed = told(entry("gpu-0", "b"), entry("gpu-1", "a"))
    assert device_status.unsettled_devices(crossed, pod, lambda *_: claim) == ["gpu-0", "gpu-1"]
    cells = {"opaque": {"parameters": {"kind": device_refs.CELLS_KIND, "hostCells": [1]}}}
    pinned = {"status": {"allocation": {"devices": {"results": results, "config": [cells]}}}}
    there = told(entry("gpu-0", "a"), entry("gpu-1", "b"))
    assert device_status.unsettled_devices(there, pod, lambda *_: pinned) == ["its NUMA cells"]
    settled = told(entry("gpu-0", "a"), entry("gpu-1", "b"), hostCells=[1])
    assert device_status.unsettled_devices(settled, pod, lambda *_: pinned) == []
    assert (vm.vcpus(there), vm.memory(there)) == (4, "3Gi")
    own = {**there, "spec": {**there["spec"], "domain": {"cpu": {"sockets": 2}, "resources": {"requests": {"memory": "1Gi"}}}}}
    assert (vm.vcpus(own), vm.memory(own)) == (2, "1Gi")


def test_vmi_without_its_dedicated_cpus_does_not_start() -> None:
    pod = {"metadata": {"namespace": "n"}, "spec": {"resourceClaims": [{"name": "flavor", "resourceClaimName": "c"}]}}
    cells = {"kind": device_refs.CELLS_KIND, "hostCells": [0], "pinned": {"0": 2}, "cpus": {"0": [4, 5]}}
    claim = {"status": {"allocation": {"devices": {"results": [], "config": [{"opaque": {"parameters": cells}}]}}}}

    def unsettled(own: bool, record: dict[str, Any], pod: Object = pod) -> list[str]:
        obj = {"spec": {"domain": {"cpu": {"dedicatedCpuPlacement": own}}}, "status": {"flavor": record}}
        return device_status.unsettled_devices(obj, pod, lambda *_: claim)

    told = {"claimName": "c", "hostCells": [0], "pinned": {"0": 2}, "cpus": {"0": [4, 5]}}
    assert unsettled(True, {}) == ["its CPUs"]
    assert unsettled(True, {**told, "cpus": {"0": [6, 7]}}) == ["its NUMA cells"]
    assert unsettled(True, told) == []
    assert unsettled(True, {}, {**pod, "spec": {}}) == [], "whoever made its pod did not book any"
    assert unsettled(False, {}) == [], "another owner's claim of that name"
