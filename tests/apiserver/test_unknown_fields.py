"""Fields that are not known: refused, warned of or kept, as the client asks."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from outfitter.api import kinds, known_fields
from outfitter.api.kinds import Kind, Object
from tests.apiserver.asgi import CLAIMS, CONFIG_MAPS, INSTANCES, Client, claim, config_map, instance


class Case(NamedTuple):
    kind: Kind
    object: Object
    strange: list[str]


CASES = {
    "nothing strange": Case(kinds.CONFIG_MAP, config_map("a"), []),
    "at the top and in metadata": Case(kinds.CONFIG_MAP, {**config_map("a", foo=1), "x": 1}, ["metadata.foo", "x"]),
    "any key of data is fine": Case(kinds.CONFIG_MAP, {"data": {"anything": "x"}, "binaryData": {"y": "eA=="}}, []),
    "in an owner": Case(kinds.SECRET, {"metadata": {"ownerReferences": [{"name": "x"}, {"nmae": "y"}]}},
                        ["metadata.ownerReferences[1].nmae"]),
    "deep in a claim": Case(kinds.RESOURCE_CLAIM, {"spec": {"devices": {"requests": [
        {"name": "a", "exactly": {"deviceClassName": "x", "cuont": 2}}, {"deviceClassName": "y"}]}}},
        ["spec.devices.requests[0].exactly.cuont", "spec.devices.requests[1].deviceClassName"]),
    "in a map of objects": Case(kinds.RESOURCE_SLICE,
                                {"spec": {"devices": [{"attributes": {"a": {"itn": 1}, "b": {"int": 1}}}]}},
                                ["spec.devices[0].attributes.a.itn"]),
    "opaque parameters are anything": Case(kinds.DEVICE_CLASS, {"spec": {"config": [
        {"opaque": {"driver": "x", "parameters": {"any": {"thing": 1}}}}]}}, []),
    "in a pod": Case(
        kinds.POD, {"spec": {"container": [], "overhead": {"any": 1}, "containers": [
            {"name": "c", "imagePullPolcy": "Always", "env": [{"name": "a", "valueFrom": {"fieldRef": {"path": "x"}}}],
             "resources": {"requests": {"any": 1}, "request": {}}, "assignedDevices": [{"resourceName": "x"}]}],
            "volumes": [{"name": "v", "emptyDir": {"sizelimit": 1}}, {"projected": {"sources": [{"secret": {"nam": "x"}}]}}],
            "securityContext": {"runAsRoot": True}},
            "status": {"y": 2, "containerStatuses": [{"state": {"running": {"x": 1}}}]}, "z": 3},
        ["spec.container", "spec.containers[0].imagePullPolcy", "spec.containers[0].env[0].valueFrom.fieldRef.path",
         "spec.containers[0].resources.request", "spec.volumes[0].emptyDir.sizelimit",
         "spec.volumes[1].projected.sources[0].secret.nam", "spec.securityContext.runAsRoot", "status.y",
         "status.containerStatuses[0].state.running.x", "z"]),
    "in a node": Case(kinds.NODE, {"spec": {"taint": [], "taints": [{"kye": "a"}]}, "status": {"allocatable": {"any": 1}}},
                      ["spec.taint", "spec.taints[0].kye"]),
    "a custom kind keeps all below": Case(kinds.NETWORK_ATTACHMENT, {"spec": {"x": 1}}, []),
    "where VMs meet devices": Case(kinds.VMI, {"status": {"y": 2}, "spec": {
        "recourceClaims": [], "resourceClaims": [{"name": "a", "source": {}}, {"nmae": "b"}], "flavor": {"name": "x"},
        "domain": {"gpus": [], "cpu": {"core": 2}, "devices": {
            "hostDevice": [], "gpus": [{"name": "a", "deviceRequestName": "r", "claim": {"name": "c", "requset": "r"}}],
            "interfaces": [{"name": "i", "mac": "x", "binding": {"name": "tap"}}]}},
        "networks": [{"name": "n", "multus": {"name": "x"}}], "volumes": [
            {"emptyDisk": {"any": "thing"}}, {"name": "v", "cloudInitNoCloud": {"userdata": "x", "userData": "y"}}]}},
        ["spec.recourceClaims", "spec.resourceClaims[1].nmae", "spec.domain.cpu.core", "spec.domain.devices.hostDevice",
         "spec.domain.devices.gpus[0].claim.requset", "spec.domain.devices.interfaces[0].mac", "spec.networks[0].multus.name",
         "spec.volumes[1].cloudInitNoCloud.userdata"]),
    "in a VM's template": Case(kinds.VM, {"spec": {
        "runstrategy": "Always", "template": {"spec": {"domain": {"device": {}}}},
        "resourceClaimTemplates": [{"metadata": {}}]}},
        ["spec.runstrategy", "spec.template.spec.domain.device", "spec.resourceClaimTemplates[0].metadata"]),
    "in the settings": Case(kinds.KUBEVIRT, {"spec": {"configuration": {
        "permitedHostDevices": {}, "permittedHostDevices": {"pciHostDevices": [{"resourcename": "x"}]},
        "network": {"binding": {"tap": {"nad": "x"}}}}}},
        ["spec.configuration.permitedHostDevices", "spec.configuration.permittedHostDevices.pciHostDevices[0].resourcename",
         "spec.configuration.network.binding.tap.nad"]),
    "in a flavor": Case(kinds.FLAVOR, {"spec": {"vcpu": 1, "extraSpecs": {"any": "thing"}}}, ["spec.vcpu"]),
    "a lease": Case(kinds.LEASE, {"spec": {"holderIdentity": "x", "holder": "y"}}, ["spec.holder"]),
    "odd values": Case(kinds.RESOURCE_CLAIM, {"spec": {"devices": [1, None, "x"]}, "metadata": None}, []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_unknown_fields(case: Case) -> None:
    assert known_fields.unknown(case.kind, case.kind.version, case.object) == case.strange


BODY = b'{"metadata":{"name":"b","foo":1},"x":1,"data":{"a":"1","a":"2"}}'
FOUND = ['unknown field "metadata.foo"', 'unknown field "x"', 'duplicate field "data.a"']


async def test_strict_rejects_with_kubernetes_message(client: Client) -> None:
    reply = await client.post(CONFIG_MAPS, BODY, fieldValidation="Strict")
    assert (reply.status, reply.json["reason"]) == (400, "BadRequest")
    assert reply.json["message"] == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: ' + ", ".join(FOUND))
    assert (await client.get(f"{CONFIG_MAPS}/b")).status == 404


@pytest.mark.parametrize("validation", ["", "Warn", "Ignore"])
async def test_otherwise_the_fields_are_kept(client: Client, validation: str) -> None:
    reply = await client.post(CONFIG_MAPS, BODY, **({"fieldValidation": validation} if validation else {}))
    assert reply.status == 201
    assert (reply.json["x"], reply.json["metadata"]["foo"], reply.json["data"]) == (1, 1, {"a": "2"})
    warnings = ['299 - "' + words.replace('"', '\\"') + '"' for words in FOUND]
    assert reply.header("warning") == ([] if validation == "Ignore" else warnings)


async def test_yaml_keys_are_seen_twice_too(client: Client) -> None:
    text = b"metadata: {name: b}\ndata:\n  a: x\n  a: y\n"
    reply = await client.post(CONFIG_MAPS, text, type="application/yaml", fieldValidation="Strict")
    assert 'strict decoding error: duplicate field "data.a"' in reply.json["message"]


async def test_a_duplicate_in_a_list_is_named_by_its_place(client: Client) -> None:
    body = b'{"metadata":{"name":"b","ownerReferences":[{"name":"x"},{"name":"x","name":"y"}]}}'
    reply = await client.post(CONFIG_MAPS, body, fieldValidation="Strict")
    assert 'duplicate field "metadata.ownerReferences[1].name"' in reply.json["message"]


async def test_a_patch_is_checked_for_what_it_adds(client: Client) -> None:
    await client.post(CONFIG_MAPS, {**config_map("a"), "old": 1})
    place = f"{CONFIG_MAPS}/a"
    fine = await client.patch(place, {"data": {"x": "y"}}, fieldValidation="Strict")
    assert (fine.status, fine.json["old"]) == (200, 1)
    reply = await client.patch(place, {"new": 1}, fieldValidation="Strict")
    assert (reply.status, reply.json["reason"]) == (422, "Invalid")
    assert reply.json["details"]["causes"][0] == {
        "reason": "FieldValueInvalid", "message": 'strict decoding error: unknown field "new"', "field": "patch"}
    warned = await client.patch(place, {"new": 1})
    assert warned.header("warning") == ['299 - "unknown field \\"new\\""']
    put = await client.put(place, {**warned.json, "newer": 1}, fieldValidation="Strict")
    assert put.json["message"].endswith('strict decoding error: unknown field "newer"')


async def test_typo_in_a_vmi_is_named(client: Client) -> None:
    """It would run without its device, and it would be unknown why."""
    odd = {**instance("vm"), "spec": {"domain": {"devices": {"hostDevice": [{"name": "h"}]}}}}
    reply = await client.post(INSTANCES, odd, fieldValidation="Strict")
    assert (reply.status, 'unknown field "spec.domain.devices.hostDevice"' in reply.json["message"]) == (400, True)
    assert (await client.post(INSTANCES, odd)).status == 201


async def test_typo_in_node_placement_is_named(client: Client) -> None:
    """It would run anywhere."""
    terms: Any = {"nodeSelectorTerms": [{"matchExpression": []}]}
    spec = {"domain": {}, "nodeSelector": {"any": "name"}, "tolerations": [{"keys": "a"}], "affinity": {"nodeAffinity": {
        "requiredDuringScheduling": terms, "requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    answer = await client.post(INSTANCES, {"metadata": {"name": "blue"}, "spec": spec}, fieldValidation="Strict")
    assert answer.status == 400
    near = "spec.affinity.nodeAffinity"
    for field in ("spec.tolerations[0].keys", f"{near}.requiredDuringScheduling",
                  f"{near}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpression"):
        assert f'unknown field "{field}"' in answer.json["message"]
    assert "nodeSelector.any" not in answer.json["message"]


async def test_a_typo_in_a_claim_is_named(client: Client) -> None:
    typo: Any = claim("c")
    typo["spec"]["devices"]["requests"][0]["exactly"]["deviceClasName"] = "gpu"
    reply = await client.post(CLAIMS, typo, fieldValidation="Strict")
    assert 'unknown field "spec.devices.requests[0].exactly.deviceClasName"' in reply.json["message"]


def test_settle_reads_null_as_absent_and_drops_what_is_empty() -> None:
    metadata: Object = {"name": "a", "labels": None, "annotations": {"x": None}, "finalizers": [], "ownerReferences": []}
    settled = known_fields.normalize(kinds.CONFIG_MAP, {"metadata": metadata, "spec": None})
    assert settled == {"metadata": {"name": "a", "annotations": {"x": ""}}}
