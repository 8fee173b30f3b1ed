"""Whatever is handed in, of whatever shape, does not make admission stumble; and what it lets in can be read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api import admission, kinds
from outfitter.api.device import newest_pools
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import cloudinit, device_status, feature_gates, pod_claims, vm
from outfitter.api.kubevirt import kubevirt_config as app_settings
from outfitter.api.ledger_page.page import Page
from outfitter.api.write_request import Writer, WriteRequest
from outfitter.errors import Conflict, Invalid
from tests.api.json_places import paths, put
from tests.api.objects import NOW, ask, claim, device_class, meta, nic, pod, vmi, with_devices

WHOLE: dict[str, tuple[Kind, Object]] = {
    "machine": (kinds.VMI, {**with_devices(
        nic(tag="t"), {"name": "b", "claim": {"name": "net", "request": "b"}}, gpus=[{"name": "g", "deviceName": "v.com/g"}]),
        "status": {"phase": "Running", "nodeName": "a", "conditions": [{"type": "Ready", "status": "True"}], "deviceStatus": {
            "hostDeviceStatuses": [{"name": "nic0", "deviceResourceClaimStatus": {
                "name": "d", "attributes": {"pciAddress": "x"}}}]}}}),
    "nics": (kinds.VMI, vmi(
        resourceClaims=[{"name": "net", "resourceClaimTemplateName": "t"}], flavor={"name": "f"},
        networks=[{"name": "a", "pod": {}}, {"name": "b", "resourceClaim": {"claimName": "net", "requestName": "vf"}}],
        domain={"devices": {"interfaces": [{"name": "a", "masquerade": {}, "macAddress": "02:00:00:00:00:01"},
                                           {"name": "b", "sriov": {}, "state": "", "tag": "t"}],
                            "gpus": [{"name": "g", "deviceName": "v.com/g", "virtualGPUOptions": {
                                "display": {"enabled": True, "ramFB": {"enabled": True}}}}]}})),
    "volumes": (kinds.VMI, vmi(
        volumes=[{"name": "a", "hostDisk": {"path": "/x"}},
                 {"name": "b", "cloudInitNoCloud": {"userData": "x", "networkDataSecretRef": {"name": "s"}}}],
        accessCredentials=[{"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"noCloud": {}}}}],
        domain={"devices": {"disks": [{"name": "a", "disk": {"bus": "virtio"}, "serial": "S", "tag": "t"},
                                      {"name": "b", "cdrom": {"bus": "sata"}}]}})),
    "owner": (kinds.VM, {"metadata": meta(), "spec": {
        "running": True, "template": {"metadata": {}, "spec": with_devices(nic(claimName="own"))["spec"]},
        "resourceClaimTemplates": [{"name": "own", "spec": {"metadata": {"labels": {}}, "spec": claim(ask())["spec"]}}]},
        "status": {"ready": True, "stateChangeRequests": [{"action": "Start"}]}}),
    "settings": (kinds.KUBEVIRT, {"metadata": meta(), "spec": {
        "configuration": {
            "developerConfiguration": {"featureGates": ["GPUsWithDRA"], "disabledFeatureGates": ["HostDevices"]},
            "vmRolloutStrategy": "Stage", "permittedHostDevices": {
                "pciHostDevices": [{"pciVendorSelector": "10de:1eb8", "resourceName": "a.test/x"}],
                "mediatedDevices": [{"mdevNameSelector": "V", "resourceName": "a.test/y"}],
                "usb": [{"resourceName": "a.test/z", "selectors": [{"vendor": "1", "product": "2"}]}]}},
        "workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]}}, "status": {"phase": "Deployed"}}),
    "claim": (kinds.RESOURCE_CLAIM, {**claim(
        ask(count=2, selectors=[{"cel": {"expression": "true"}}]), {"name": "b", "firstAvailable": [{"deviceClassName": "vf"}]},
        constraints=[{"matchAttribute": "a"}]), "status": {
            "allocation": {"devices": {"results": [{"request": "nic", "driver": "d", "pool": "p", "device": "v"}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}),
    "template": (kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": meta(), "spec": {
        "metadata": {"labels": {"a": "b"}}, "spec": claim(ask())["spec"]}}),
    "class": (kinds.DEVICE_CLASS, device_class("device.driver == 'a'")),
    "pod": (kinds.POD, {**pod(
        nodeName="a", nodeSelector={"a": "b"}, restartPolicy="Never", terminationGracePeriodSeconds=3,
        containers=[{"name": "a", "resources": {"claims": [{"name": "net", "request": "nic"}], "requests": {"cpu": "1"}}}],
        resourceClaims=[{"name": "net", "resourceClaimTemplateName": "t"}]),
        "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "net", "resourceClaimName": "c"}],
                   "conditions": [{"type": "PodScheduled", "status": "False", "message": "m"}]}}),
    "namespace": (kinds.NAMESPACE, {
        "metadata": {"name": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e.f/g"]},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
    "page": (kinds.LEDGER_PAGE, {"metadata": {"name": "x"}, "spec": {"host": "x", "bookings": [{
        "device": {"driver": "d", "pool": "p", "device": "v"}, "holder": {"kind": "ResourceClaim", "name": "c", "uid": "u"},
        "request": "nic", "state": "booked", "since": NOW, "amount": {"whole": True}}]}}),
    "slice": (kinds.RESOURCE_SLICE, {"metadata": {"name": "x"}, "spec": {
        "driver": "d", "nodeName": "a", "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "v", "attributes": {"kind": {"string": "VF"}}}]}}),
}


def read_machine(obj: Object) -> None:
    device_status.missing_devices(obj)
    device_status.unsettled_devices(obj, {"metadata": {"namespace": "here"}}, lambda namespace, name: None)


READERS: dict[str, Callable[[Object], object]] = {
    "machine": read_machine,
    "nics": lambda obj: feature_gates.used(obj["spec"]),
    "volumes": lambda obj: list(cloudinit.secrets(obj["spec"])),
    "owner": vm.run_strategy,
    "settings": app_settings.read_config,
    "claim": lambda obj: pod_claims.results(obj, "nic"),
    "pod": lambda obj: dict(pod_claims.claim_names(obj)),
    "page": Page,
    "slice": lambda obj: newest_pools([obj, WHOLE["slice"][1], obj]),
    **dict.fromkeys(("template", "class", "namespace"), json.dumps),
}


WORDS = ["name", "namespace", "uid", "kind", "spec", "devices", "requests", "exactly", "claim", "cel", "expression", ""]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats(allow_nan=False) | st.text(max_size=6)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=8,
)
PLACES = [(name, path) for name, (_, obj) in WHOLE.items() for path in paths(obj)]


def hand_in(name: str, obj: Object) -> bool:
    """Whether it was accepted, in every way of writing it; whatever is accepted can be read."""
    kind, old = WHOLE[name]
    accepted = False
    here = {"metadata": {"name": "here"}}
    ways: list[tuple[Literal["create", "update"], Object | None, str]] = [
        ("create", None, ""), ("update", old, ""), ("update", old, "status")]
    for verb, before, subresource in ways:
        new = copy.deepcopy({**old, "status": obj.get("status")} if subresource else obj)
        change = WriteRequest(
            verb, kind, new, copy.deepcopy(before), subresource, lambda *_: here, by=Writer("", lambda words: None)
        )
        try:
            new = admission.AdmissionRules().admit(change)
        except Invalid as error:
            refused = error.causes
            assert refused
        except Conflict:
            assert kind == kinds.LEDGER_PAGE, "what it books is not published here"
        else:
            accepted = True
            READERS[name](new)
    return accepted


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_objects_are_accepted(name: str) -> None:
    assert hand_in(name, WHOLE[name][1])


@pytest.mark.parametrize("value", [None, True, 3, 3.5, "text", [], [None], [[]], {}, {"x": None}, {"name": {}}], ids=repr)
def test_plain_wrong_values_in_every_place(value: Any) -> None:
    for name, path in PLACES:
        hand_in(name, put(WHOLE[name][1], path, value))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PLACES), JSON)
def test_any_json_in_any_place(place: tuple[str, tuple[Any, ...]], value: Any) -> None:
    name, path = place
    hand_in(name, put(WHOLE[name][1], path, value))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind"]), JSON))
def test_any_object_at_all(name: str, obj: Object) -> None:
    hand_in(name, obj)
