"""Devices that a guest agrees to lose while its VM migrates: the annotation at admission, and the record of a migration."""

from __future__ import annotations

import re

import pytest

from outfitter.api import kinds
from outfitter.api.admission import AdmissionRules
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration, reattached_devices
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.validate import vms, warnings
from outfitter.api.write_request import Writer, WriteRequest
from outfitter.errors import Invalid

FIELD = f"metadata.annotations[{reattached_devices.DECLARED}]"
SPEC: Object = {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}], "domain": {"devices": {
    "gpus": [{"name": "gpu1", "claimName": "c", "requestName": "card"}],
    "hostDevices": [{"name": "disk2", "claimName": "c", "requestName": "disk"}, {"name": "plain", "deviceName": "a.test/x"}]}}}


def objects(text: str) -> tuple[Object, Object]:
    """A VMI and a VM with the annotation."""
    meta = {"annotations": {reattached_devices.DECLARED: text}}
    return {"metadata": {"name": "blue", "namespace": "lab", **meta}, "spec": SPEC}, {
        "metadata": {"name": "blue", "namespace": "lab"},
        "spec": {"runStrategy": "Always", "template": {"metadata": meta, "spec": SPEC}}}


BAD = {"": "a name is empty", "gpu1,": "a name is empty", "gpu1,,disk2": "a name is empty", "*,gpu1": "and alone",
       "gpu1,disk2,gpu1": '"gpu1" is in it twice'}


@pytest.mark.parametrize("text", BAD)
def test_bad_annotations_are_refused_with_their_field(text: str) -> None:
    vmi, vm = objects(text)
    for found, field in ((list(vms.vmi(vmi, KubeVirtConfig())), FIELD),
                         (list(vms.vm(vm, KubeVirtConfig())), f"spec.template.{FIELD}")):
        [cause] = [cause for cause in found if "annotations" in cause.field]
        assert (cause.field, BAD[text] in cause.message) == (field, True), cause


@pytest.mark.parametrize("text", BAD)
def test_bad_annotation_of_a_vmi_that_keeps_its_spec_is_refused_unless_it_was_there(text: str) -> None:
    def annotate(text: str, before: str) -> None:
        new, old = (objects(each)[0] for each in (text, before))
        AdmissionRules().admit(WriteRequest("update", kinds.VMI, new, old, by=Writer("a user")))

    with pytest.raises(Invalid, match=re.escape(FIELD)):
        annotate(text, "gpu1")
    annotate(text, text)
    annotate("gpu1", text)


UNKNOWN = {"*": [], "gpu1": [], "gpu1, disk2": [], "gpu1,gpu2": ["gpu2"], "plain": ["plain"]}


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_names_are_warnings_since_a_device_may_be_plugged_later(text: str) -> None:
    vmi, vm = objects(text)
    assert not [cause for cause in (*vms.vmi(vmi, KubeVirtConfig()), *vms.vm(vm, KubeVirtConfig()))
                if "annotations" in cause.field]
    for said, field in ((warnings.vmi_warnings(vmi, KubeVirtConfig(), lambda *_: None), FIELD),
                        (warnings.vm_warnings(vm, KubeVirtConfig(), lambda *_: None), f"spec.template.{FIELD}")):
        found = [text for text in said if "annotations" in text]
        assert [text.partition(":")[0] for text in found] == [field] * len(UNKNOWN[text])
        assert all(f'"{name}"' in text for name, text in zip(UNKNOWN[text], found, strict=True))


def entry(name: str, address: str, **more: Object) -> Object:
    return {"name": name, "deviceResourceClaimStatus": {"attributes": {"pciAddress": address}}, **more}


def test_record_of_a_migration_marks_what_is_reattached() -> None:
    keys: dict[reattached_devices.Key, str] = {("hostDevices", "b"): "claim-b"}
    target = reattached_devices.marked({"hostDeviceStatuses": [entry("a", "c1"), entry("b", "c2"), entry("b", "c3")]},
                                       keys.keys(), keys, "target")
    assert [one.get("hotplugDevice") for one in target["hostDeviceStatuses"]] == [
        None, {"claimName": "claim-b", "attachPodName": "target"}, {"claimName": "claim-b", "attachPodName": "target"}]
    plugged = {"claimName": "claim-b", "attachPodName": "held-by", "phase": "Attached"}
    source = {"gpuStatuses": [entry("b", "11")], "hostDeviceStatuses": [
        entry("b", "12", hotplugDevice=plugged), entry("b", "13"), entry("a", "14")]}
    vmi = {"status": {"deviceStatus": source, "migrationState": {"targetDeviceStatus": target}}}
    assert migration.reattached(vmi) == keys
    assert migration.device_moves(vmi) == (("14", "c1"),), "only what travels"
    asked = migration.asked_for(vmi, "launcher")["deviceStatus"]
    assert list(asked) == ["hostDeviceStatuses"]
    assert [one.get("hotplugDevice") for one in asked["hostDeviceStatuses"]] == [
        {"claimName": "claim-b", "attachPodName": "held-by"}, {"claimName": "claim-b", "attachPodName": "launcher"}, None]
    assert migration.asked_for({"status": {"deviceStatus": source, "migrationState": {}}}, "launcher") == {}


@pytest.mark.parametrize("text", ["", "no JSON", "7", '{"gpus/a": 1}', "[7, null]"])
def test_an_annotation_of_a_pod_that_was_edited_plans_nothing(text: str) -> None:
    assert reattached_devices.planned_for({"metadata": {"annotations": {reattached_devices.PLANNED: text}}}) == frozenset()
