"""The door: what is refused, with which field and how many causes at once; what is filled in; and what may not change."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.write_request import WriteRequest
from outfitter.errors import Cause, Forbidden, Invalid, NotFound
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.api.objects import ask, claim, device_class, meta, nic, pod, published, vmi, with_devices

# What is written, and for each cause: the field, and how its message begins.
REFUSED: dict[str, tuple[Kind, Object, list[tuple[str, str]]]] = {
    "a request for the counts of no driver": (
        kinds.POOL_STATUS_REQUEST, {"metadata": {"name": "x"}, "spec": {}}, [("spec.driver", "Required value")]),
    "a request for the counts of names that are none": (
        kinds.POOL_STATUS_REQUEST, {"metadata": {"name": "x"}, "spec": {"driver": "a_b", "poolName": "A/b", "limit": 1001}},
        [("spec.driver", 'Invalid value: "a_b"'), ("spec.poolName", 'Invalid value: "A"'),
         ("spec.limit", "Invalid value: 1001: must be from 1 to 1000")]),
    "a number where text belongs": (
        kinds.CONFIG_MAP, {"metadata": meta(), "data": {"a": "1", "b": 2}, "binaryData": {"c": None}},
        [("data.b", "Invalid value: 2: must be text"), ("binaryData.c", "Invalid value: null: must be text")]),
    "a list where a map belongs": (
        kinds.SECRET, {"metadata": meta(), "data": ["a"]}, [("data", 'Invalid value: ["a"]: must be an object')]),
    "a VM of nothing": (kinds.VMI, {"metadata": meta()}, [("spec.domain", "Required value")]),
    "a claim entry without a name": (kinds.VMI, vmi(resourceClaims=[{"resourceClaimName": "c"}]), [
        ("spec.resourceClaims[0].name", "spec.resourceClaims[0].name is a required field")]),
    "claim entries of one name": (
        kinds.VMI, vmi(resourceClaims=[{"name": "a", "resourceClaimName": "c"}, {"name": "a", "resourceClaimName": "d"}]),
        [("spec.resourceClaims[1].name", 'duplicate resourceClaims name "a"')]),
    "a claim entry of two sources": (
        kinds.VMI, vmi(resourceClaims=[{"name": "a", "resourceClaimName": "c", "resourceClaimTemplateName": "t"}]),
        [("spec.resourceClaims[0]", "at most one of resourceClaimName or resourceClaimTemplateName may be specified")]),
    "a claim entry of no source": (kinds.VMI, vmi(resourceClaims=[{"name": "a"}]), [
        ("spec.resourceClaims[0]", "must specify one of: resourceClaimName, resourceClaimTemplateName")]),
    "names that are none": (kinds.VMI, vmi(resourceClaims=[{"name": "Net", "resourceClaimName": "my claim"}]), [
        ("spec.resourceClaims[0].name", 'Invalid value: "Net": a lowercase RFC 1123 label'),
        ("spec.resourceClaims[0].resourceClaimName", 'Invalid value: "my claim": a lowercase RFC 1123 subdomain')]),
    "a device without anything": (kinds.VMI, with_devices({}), [
        ("spec.domain.devices.hostDevices[0].name", "Required value"),
        ("spec.domain.devices.hostDevices", "vmi.spec.domain.devices.hostDevices contains HostDevices without")]),
    "a device by name and by claim": (kinds.VMI, with_devices(nic(deviceName="vendor.com/nic")), [
        ("spec.domain.devices.hostDevices", "vmi.spec.domain.devices.hostDevices contains HostDevices with both")]),
    "half a reference": (kinds.VMI, with_devices(
        {"name": "a", "claimName": "net"}, {"name": "b", "requestName": "nic"}), [
        ("spec.domain.devices.hostDevices[0].requestName", "requestName is required for DRA HostDevice: requestName names"),
        ("spec.domain.devices.hostDevices[1].claimName", "claimName is required for DRA HostDevice: claimName names")]),
    "a claim that is not listed": (kinds.VMI, with_devices(nic(claimName="other")), [
        ("spec.resourceClaims", "vmi.spec.resourceClaims must specify all claims used in ")]),
    "one request for two devices": (
        kinds.VMI, with_devices(nic("a"), gpus=[{"name": "b", "claim": {"name": "net", "request": "nic"}}]),
        [("spec.domain.devices.hostDevices[0]", 'duplicate claimName/requestName pair "net/nic"')]),
    "two devices of one name": (kinds.VMI, with_devices(nic("a"), nic("a", requestName="other")), [
        ("spec.domain.devices.hostDevices[1].name", 'Duplicate value: "a"')]),
    "amounts that are none": (
        kinds.VMI, vmi(domain={"memory": {"guest": "lots"}, "resources": {"requests": {"memory": "-1"}},
                                    "cpu": {"cores": 0, "threads": -2}}),
        [("spec.domain.memory.guest", 'Invalid value: "lots": must be an amount'),
         ("spec.domain.resources.requests.memory", 'Invalid value: "-1": must be an amount'),
         ("spec.domain.cpu.cores", "Invalid value: 0: must be greater than zero"),
         ("spec.domain.cpu.threads", "Invalid value: -2: must be greater than zero")]),
    "volumes without a name, a source, or with two": (
        kinds.VMI, vmi(volumes=[{"emptyDisk": {}}, {"name": "a"}, {"name": "a", "hostDisk": {}, "emptyDisk": {}}]),
        [("spec.volumes[0].name", "Required value"), ("spec.volumes[1]", "spec.volumes[1] must have exactly one source type"),
         ("spec.volumes[2].name", "spec.volumes[2] and spec.volumes[1] must not have the same Name."),
         ("spec.volumes[2]", "spec.volumes[2] must have exactly one source type set: it has emptyDisk, hostDisk")]),
    "cloud-init that reports nothing": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitNoCloud": {"secretRef": {}, "userData": ""}}]),
        [("spec.volumes[0].cloudInitNoCloud", "spec.volumes[0].cloudInitNoCloud must have at least one userdatasource or")]),
    "cloud-init that says it twice": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitConfigDrive": {
            "userData": "x", "secretRef": {"name": "s"}, "networkData": "{}", "networkDataBase64": "e30="}}]),
        [("spec.volumes[0].cloudInitConfigDrive", "spec.volumes[0].cloudInitConfigDrive must have only one userdatasource set. "
                                                  "It has secretRef, userData"),
         ("spec.volumes[0].cloudInitConfigDrive", "spec.volumes[0].cloudInitConfigDrive must have only one networkdata so")]),
    "cloud-init in bad base64": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitNoCloud": {"userDataBase64": "abc", "networkDataBase64": "$"}}]),
        [("spec.volumes[0].cloudInitNoCloud.userDataBase64", "spec.volumes[0].cloudInitNoCloud.userDataBase64 is not a valid"),
         ("spec.volumes[0].cloudInitNoCloud.networkDataBase64", "spec.volumes[0].cloudInitNoCloud.networkDataBase64 is not")]),
    "cloud-init that is too large": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitNoCloud": {
            "userData": "ü" * 1025, "networkDataBase64": base64.b64encode(b"x" * 2049).decode()}}]),
        [("spec.volumes[0].cloudInitNoCloud", "spec.volumes[0].cloudInitNoCloud userdata exceeds 2048 byte limit. Should use "
                                              "secretRef for larger data: it has 2050 bytes"),
         ("spec.volumes[0].cloudInitNoCloud", "spec.volumes[0].cloudInitNoCloud networkdata exceeds 2048 byte limit. Should")]),
    "a Secret that has no name of one": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitNoCloud": {"networkDataSecretRef": {"name": "../s"}}}]),
        [("spec.volumes[0].cloudInitNoCloud.networkDataSecretRef.name", 'Invalid value: "../s": a lowercase RFC 1123 sub')]),
    "two volumes for cloud-init": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitNoCloud": {"userData": "x"}},
                                     {"name": "b", "cloudInitConfigDrive": {"userData": "x"}}]),
        [("spec.volumes[1]", "a VMI can have one cloud-init volume: there is another one, spec.volumes[0].cloudInitNoCloud")]),
    "keys for a drive that is not there": (
        kinds.VMI, vmi(volumes=[{"name": "a", "cloudInitNoCloud": {"userData": "x"}}], accessCredentials=[
            {"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"configDrive": {}}}},
            {"sshPublicKey": {"propagationMethod": {"noCloud": {}}}}]),
        [("spec.accessCredentials[0].sshPublicKey.propagationMethod", "spec.accessCredentials[0] requires a configDrive vol"),
         ("spec.accessCredentials[1].sshPublicKey.source.secret.secretName", "Required value: the Secret with the public")]),
    "the name of the claim for dedicated CPUs": (
        kinds.VMI, vmi(resourceClaims=[{"name": "flavor", "resourceClaimName": "c"}], domain={
            "cpu": {"dedicatedCpuPlacement": True}}),
        [("spec.resourceClaims[0].name", 'Invalid value: "flavor": reserved for the claim of the flavor')]),
    "wrong shapes of a VM": (
        kinds.VMI, vmi(resourceClaims={}, domain={
            "devices": {"gpus": [3], "hostDevices": [{"name": 4}]}, "cpu": {"cores": True}}),
        [("spec.resourceClaims", "Invalid value: {}: must be a list"),
         ("spec.domain.cpu.cores", "Invalid value: true: must be a whole number"),
         ("spec.domain.devices.gpus[0]", "Invalid value: 3: must be an object"),
         ("spec.domain.devices.hostDevices[0].name", "Invalid value: 4: must be text")]),
    "a claim for nothing": (kinds.RESOURCE_CLAIM, {"metadata": meta(), "spec": {}}, [("spec.devices", "Required value")]),
    "a request without content": (kinds.RESOURCE_CLAIM, claim({"name": "nic"}), [
        ("spec.devices.requests[0]", "Invalid value: exactly one of `exactly` or `firstAvailable` is required")]),
    "a request with both": (kinds.RESOURCE_CLAIM, claim({**ask(), "firstAvailable": [{"deviceClassName": "vf"}]}), [
        ("spec.devices.requests[0]", "Invalid value: exactly one of `exactly` or `firstAvailable` is required")]),
    "requests in many ways wrong": (
        kinds.RESOURCE_CLAIM, claim(ask("NIC", count=0), ask("a", allocationMode="Some"), ask("a", deviceClassName=""),
                                    {"name": "b", "firstAvailable": [{"count": -1}]}),
        [("spec.devices.requests[0].name", 'Invalid value: "NIC"'),
         ("spec.devices.requests[0].exactly.count", "Invalid value: 0: must be greater than zero"),
         ("spec.devices.requests[1].exactly.allocationMode", 'Unsupported value: "Some": supported values: "ExactCount", '),
         ("spec.devices.requests[2].name", 'Duplicate value: "a"'),
         ("spec.devices.requests[2].exactly.deviceClassName", "Required value"),
         ("spec.devices.requests[3].firstAvailable[0].name", "Required value"),
         ("spec.devices.requests[3].firstAvailable[0].deviceClassName", "Required value"),
         ("spec.devices.requests[3].firstAvailable[0].count", "Invalid value: -1: must be greater than zero")]),
    "a selector that does not compile": (
        kinds.RESOURCE_CLAIM, claim(ask(selectors=[{"cel": {"expression": "device.driver =="}}, {}])),
        [("spec.devices.requests[0].exactly.selectors[0].cel.expression", "Invalid value: "),
         ("spec.devices.requests[0].exactly.selectors[1].cel.expression", "Required value")]),
    "a template says the path inside it": (
        kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": meta(), "spec": {"spec": claim(ask(count=0))["spec"]}},
        [("spec.spec.devices.requests[0].exactly.count", "Invalid value: 0")]),
    "a class": (kinds.DEVICE_CLASS, device_class("nonsense(", "", "true"), [
        ("spec.selectors[0].cel.expression", "Invalid value: "), ("spec.selectors[1].cel.expression", "Required value")]),
    "a pod of nothing": (kinds.POD, {"metadata": meta()}, [("spec.containers", "Required value")]),
    "a pod in many ways wrong": (
        kinds.POD, pod(containers=[{"name": "a"}, {"name": "a", "resources": {"claims": [{"name": "gone"}]}}, {}],
                       restartPolicy="Sometimes", resourceClaims=[{"name": "n"}, {"resourceClaimName": "c"}]),
        [("spec.containers[1].name", 'Duplicate value: "a"'),
         ("spec.containers[2].name", "Required value"),
         ("spec.restartPolicy", 'Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'),
         ("spec.resourceClaims[0]", "Invalid value: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
         ("spec.resourceClaims[1].name", "Required value"),
         ("spec.containers[1].resources.claims[0].name", 'Not found: "gone": it is not in spec.resourceClaims')]),
    "metadata": (
        kinds.CONFIG_MAP, {"metadata": meta("Up", labels={"a b": "c", "ok": "not ok", "n": 3}, annotations={"/": "x"},
                                            ownerReferences=[{"kind": "Pod"}, {"apiVersion": "v1", "kind": "A", "name": "a",
                                                                               "uid": "u", "controller": True}])},
        [("metadata.name", 'Invalid value: "Up": a lowercase RFC 1123 subdomain'),
         ("metadata.labels", 'Invalid value: "a b": a key is'),
         ("metadata.labels", 'Invalid value: "not ok": a label value is'),
         ("metadata.labels.n", "Invalid value: 3: must be text; put it in quotes"),
         ("metadata.annotations", 'Invalid value: "/": a key is'),
         ("metadata.ownerReferences[0].apiVersion", "Required value"),
         ("metadata.ownerReferences[0].name", "Required value"),
         ("metadata.ownerReferences[0].uid", "Required value")]),
    "two controllers": (
        kinds.CONFIG_MAP, {"metadata": meta(ownerReferences=[
            {"apiVersion": "v1", "kind": "A", "name": name, "uid": name, "controller": True} for name in "ab"])},
        [("metadata.ownerReferences", "Invalid value: only one reference can have controller set to true")]),
    "too many annotations": (kinds.CONFIG_MAP, {"metadata": meta(annotations={"a": "x" * 262144})}, [
        ("metadata.annotations", "Too long: may not be more than 262144 bytes")]),
    "a namespace is a label": (kinds.NAMESPACE, {"metadata": {"name": "a.b"}}, [("metadata.name", 'Invalid value: "a.b"')]),
    "a page that cannot be read": (
        kinds.LEDGER_PAGE, {"metadata": {"name": "x"}, "spec": {
            "bookings": [{"device": {"driver": "d"}, "holder": {"uid": 3}}]}},
        [("spec.bookings[0].device.pool", "Required value"), ("spec.bookings[0].device.device", "Required value"),
         ("spec.bookings[0].state", "Required value"), ("spec.bookings[0].since", "Required value"),
         ("spec.bookings[0].holder.kind", "Required value"), ("spec.bookings[0].holder.name", "Required value"),
         ("spec.bookings[0].holder.uid", "Invalid value: 3: must be text")]),
    "a slice that cannot be read": (
        kinds.RESOURCE_SLICE, {"metadata": {"name": "x"}, "spec": {"devices": [{}]}},
        [("spec.driver", "Required value"), ("spec.pool", "Required value"), ("spec.devices[0].name", "Required value")]),
    "a slice with values of the wrong type": (kinds.RESOURCE_SLICE, published(devices=[
        {"name": "a", "attributes": {"pciAddress": {"string": 60.0}}}, {"name": "d", "capacity": {"m": {"value": "x"}}}]),
        [("spec.devices[0].attributes.pciAddress.string", "Invalid value: 60.0: must be text"),
         ("spec.devices[1].capacity.m.value", 'Invalid value: "x": must be an amount')]),
    "a slice with values that no selector could read": (kinds.RESOURCE_SLICE, published(devices=[
        {"name": "b", "attributes": {"ok": {"int": 3}}}, {"name": "c", "attributes": {"two": {"int": 3, "bool": True}}},
        {"name": "d", "attributes": {"v": {"version": "one"}}}]),
        [("spec.devices[1].attributes[two]", "Invalid value: exactly one of int, bool"),
         ("spec.devices[2].attributes[v].version", "Invalid value: ")]),
    "a slice without a spec": (kinds.RESOURCE_SLICE, {"metadata": {"name": "x"}}, [("spec", "Required value")]),
}


@pytest.fixture
async def store() -> Memory:
    store = Memory(clock=ManualClock(), rules=admission.AdmissionRules())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    return store


REASONS = {  # of a VM that is wrong in all these ways: the field, and Kubernetes' word for what is wrong with it
    "spec.resourceClaims[0].name": "FieldValueRequired",
    "spec.resourceClaims[1]": "FieldValueInvalid",
    "spec.resourceClaims[2].name": "FieldValueDuplicate",
    "spec.domain.devices.gpus": "FieldValueRequired",
    "spec.domain.devices.hostDevices": "FieldValueInvalid",
    "spec.domain.devices.hostDevices[1].requestName": "FieldValueRequired",
    "spec.domain.devices.hostDevices[3]": "FieldValueDuplicate",
    "spec.domain.cpu.cores": "FieldValueTypeInvalid",
    "spec.networks[0].resourceClaim.claimName": "FieldValueNotFound",
    "spec.networks[1].resourceClaim.requestName": "FieldValueRequired",
    "spec.networks[2]": "FieldValueDuplicate",
    "spec.networks[2].resourceClaim.claimName": "FieldValueNotFound",
    "spec.networks[3]": "FieldValueRequired",
    "spec.networks[3].name": "FieldValueRequired",
    "spec.interfaces": "FieldValueDuplicate",
    "spec.domain.devices.interfaces[0].model": "FieldValueNotSupported",
    "spec.domain.devices.interfaces[3].name": "FieldValueDuplicate",
}


async def test_mistakes_have_kubernetes_messages(store: Memory) -> None:
    by_claim: dict[str, Any] = {"name": "a", "resourceClaim": {"claimName": "lost", "requestName": "r"}}
    host = {"claimName": "acc", "requestName": "r"}
    wrong = vmi(
        resourceClaims=[{"resourceClaimName": "c"}, {"name": "acc"}, {"name": "acc", "resourceClaimName": "c"}],
        domain={"cpu": {"cores": "two"}, "devices": {
            "gpus": [{"name": "g"}],
            "hostDevices": [{"name": "h", "deviceName": "a.test/x", **host}, {"name": "i", "claimName": "acc"},
                            {"name": "j", **host}, {"name": "k", **host}],
            "interfaces": [{"name": "a", "sriov": {}, "model": "horse"}, {"name": "b", "sriov": {}}, {"name": "c", "sriov": {}},
                           {"name": "c", "bridge": {}}, {"name": "e", "bridge": {}}, {"name": "f", "bridge": {}}]}},
        networks=[by_claim, {"name": "b", "resourceClaim": {"claimName": "acc"}}, {**by_claim, "name": "c"}, {"name": "d"},
                  {"name": "e", "pod": {}}, {"name": "f", "pod": {}}])
    with pytest.raises(Invalid) as caught:
        await store.create(kinds.VMI, wrong)
    assert sorted((cause.field, cause.reason) for cause in caught.value.causes) == sorted(REASONS.items())


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_with_every_cause(store: Memory, name: str) -> None:
    kind, obj, wanted = REFUSED[name]
    revision = store.revision
    with pytest.raises(Invalid) as caught:
        await store.create(kind, obj)
    said = [(cause.field, cause.message) for cause in caught.value.causes]
    assert [field for field, _ in said] == [field for field, _ in wanted]
    assert all(message.startswith(begin) for (_, message), (_, begin) in zip(said, wanted, strict=True)), said
    assert all(field in str(caught.value) for field, _ in wanted)
    assert store.revision == revision, "nothing is half-written"


def test_more_than_ten_causes_are_counted() -> None:
    causes = [Cause(f"spec.f{number}", "bad") for number in range(13)]
    with pytest.raises(Invalid, match=r"spec\.f9: bad; and 3 more$") as caught:
        admission.raise_invalid(kinds.VMI, {"metadata": {"name": "x"}}, causes)
    assert str(caught.value).startswith('VirtualMachineInstance.kubevirt.io "x" is invalid: spec.f0: bad; ')
    assert len(caught.value.causes) == 13


async def test_the_kind_is_that_of_the_place_not_what_the_object_calls_itself(store: Memory) -> None:
    with pytest.raises(Invalid, match=r"spec.resourceClaims"):
        await store.create(kinds.VMI, {**vmi(resourceClaims=[3]), "kind": "Unheard"})


# -- defaults


async def test_defaults(store: Memory) -> None:
    made = await store.create(kinds.POD, pod(restartPolicy=None, terminationGracePeriodSeconds=None))
    assert (made["spec"]["restartPolicy"], made["spec"]["schedulerName"]) == ("Always", "default-scheduler")
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["spec"]["securityContext"] == {}
    assert made["status"]["phase"] == "Pending"
    made = await store.create(kinds.RESOURCE_CLAIM, claim(ask(), ask("all", allocationMode="All"), ask("null", count=None)))
    given = [request["exactly"] for request in made["spec"]["devices"]["requests"]]
    assert [(one["allocationMode"], one.get("count")) for one in given] == [("ExactCount", 1), ("All", None), ("ExactCount", 1)]
    made = await store.create(kinds.NAMESPACE, {"metadata": {"name": "team", "labels": None}, "spec": None})
    assert made["spec"]["finalizers"] == ["kubernetes"]
    assert made["status"]["phase"] == "Active"
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}


async def test_the_same_manifest_again_is_no_change(store: Memory) -> None:
    """Defaults are filled in before anything is compared, so that replacing an object by its own manifest is allowed."""
    for kind, obj in ((kinds.RESOURCE_CLAIM, claim(ask())), (kinds.POD, pod()),
                      (kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": meta(), "spec": {"spec": claim(ask())["spec"]}})):
        made = await store.create(kind, obj)
        again = await store.replace(kind, copy.deepcopy(obj))
        assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


# -- what may not change

FIXED: dict[str, tuple[Kind, Object, Object, str]] = {
    "a claim's spec": (kinds.RESOURCE_CLAIM, claim(ask()), {"spec": {"devices": {"requests": [ask(count=2)]}}}, "spec"),
    "a template's spec": (kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": meta(), "spec": {"spec": claim(ask())["spec"]}},
                          {"spec": {"metadata": {"labels": {"a": "b"}}}}, "spec"),
    "a VM's claims": (kinds.VMI, with_devices(nic()), {"spec": {"resourceClaims": [
        {"name": "net", "resourceClaimName": "other"}]}}, "spec.resourceClaims"),
    "a pod's claims": (kinds.POD, pod(), {"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "c"}]}},
                       "spec"),
    "a pod's node, once it has one": (kinds.POD, pod(nodeName="a"), {"spec": {"nodeName": "b"}}, "spec"),
    "a pod's node, taken away": (kinds.POD, pod(nodeName="a"), {"spec": {"nodeName": None}}, "spec"),
}


@pytest.mark.parametrize("name", FIXED)
async def test_what_may_not_change(store: Memory, name: str) -> None:
    kind, obj, change, field = FIXED[name]
    await store.create(kind, obj)
    with pytest.raises(Invalid) as caught:
        await store.patch(kind, "x", change, "here")
    assert [cause.field for cause in caught.value.causes] == [field]
    assert "field is immutable" in str(caught.value) or "pod updates may not change fields other than" in str(caught.value)
    await store.patch(kind, "x", {"metadata": {"labels": {"a": "b"}}}, "here")


async def test_a_pod_is_given_a_node_once(store: Memory) -> None:
    await store.create(kinds.POD, pod())
    assert (await store.patch(kinds.POD, "x", {"spec": {"nodeName": "a"}}, "here"))["spec"]["nodeName"] == "a"


async def test_status_has_a_shape_too(store: Memory) -> None:
    await store.create(kinds.RESOURCE_CLAIM, claim(ask()))
    with pytest.raises(Invalid) as caught:
        await store.patch(kinds.RESOURCE_CLAIM, "x", {"status": {"allocation": {"devices": {"results": [{"driver": "d"}]}},
                                                                 "reservedFor": [{"name": "p"}]}}, "here", subresource="status")
    assert [cause.field for cause in caught.value.causes] == [
        *(f"status.allocation.devices.results[0].{field}" for field in ("request", "pool", "device")),
        "status.reservedFor[0].uid"]


async def test_vmi_phase_is_a_known_one(store: Memory) -> None:
    await store.create(kinds.VMI, vmi())
    with pytest.raises(Invalid) as caught:
        await store.patch(kinds.VMI, "x", {"status": {"phase": "Bogus"}}, "here", subresource="status")
    assert [cause.field for cause in caught.value.causes] == ["status.phase"]
    assert '"Scheduling", "Scheduled", "Running"' in str(caught.value)
    for phase in ("Running", "Unknown", None):
        await store.patch(kinds.VMI, "x", {"status": {"phase": phase}}, "here", subresource="status")


# -- places and grace


async def test_places(store: Memory) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await store.create(kinds.POD, {**pod(), "metadata": meta(namespace="nowhere")})
    await store.delete(kinds.NAMESPACE, "here")
    assert (await store.get(kinds.NAMESPACE, "here"))["status"]["phase"] == "Terminating"
    with pytest.raises(Forbidden, match='pods "x" is forbidden: unable to create new content in namespace here because'):
        await store.create(kinds.POD, pod())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    with pytest.raises(Forbidden, match="may not be deleted"):
        await store.delete(kinds.NAMESPACE, "default")


GRACES: dict[str, tuple[Object, str, int | None, int]] = {
    "a pod without a node goes at once": (pod(), "Pending", None, 0),
    "a pod on a node waits for it": (pod(nodeName="a"), "Running", None, 30),
    "as long as it says": (pod(nodeName="a", terminationGracePeriodSeconds=5), "Running", None, 5),
    "or as whoever deletes it says": (pod(nodeName="a"), "Running", 7, 7),
    "by force": (pod(nodeName="a"), "Running", 0, 0),
    "less than nothing is a second": (pod(nodeName="a"), "Running", -1, 1),
    "one that has ended goes at once": (pod(nodeName="a"), "Failed", None, 0),
    "null is the default": (pod(nodeName="a", terminationGracePeriodSeconds=None), "Running", None, 30),
}


@pytest.mark.parametrize("name", GRACES)
async def test_grace(store: Memory, name: str) -> None:
    obj, phase, asked, seconds = GRACES[name]
    await store.create(kinds.POD, obj)
    await store.patch(kinds.POD, "x", {"status": {"phase": phase}}, "here", subresource="status")
    gone = await store.delete(kinds.POD, "x", "here", grace=asked)
    left = (await store.list(kinds.POD, "here")).items
    assert len(left) == bool(seconds)
    assert gone["metadata"].get("deletionGracePeriodSeconds", 0) == seconds


async def test_plain_text_in_a_secret_becomes_data(store: Memory) -> None:
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    made = await store.create(kinds.SECRET, {"metadata": {"name": "s", "namespace": "default"}, "data": {"a": "eA=="},
                                             "stringData": {"b": "y"}})
    assert made["data"] == {"a": "eA==", "b": "eQ=="}
    assert "stringData" not in made
    assert made["type"] == "Opaque"


async def test_an_object_that_got_in_before_can_still_be_deleted() -> None:
    """With a spec of the wrong type: other parts are written, the spec itself only if it is corrected."""
    store = Memory(clock=ManualClock())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    await store.create(kinds.RESOURCE_CLAIM, {"metadata": meta(finalizers=["a.b/c"]), "spec": {"devices": "0"}})
    planted = await store.get(kinds.RESOURCE_CLAIM, "x", "here")
    rules = admission.AdmissionRules()

    def admit(subresource: str = "", **parts: Any) -> Object:
        new = copy.deepcopy({**planted, **parts})
        return rules.admit(WriteRequest("update", kinds.RESOURCE_CLAIM, new, copy.deepcopy(planted), subresource))

    assert "finalizers" not in admit(metadata={"name": "x", "namespace": "here"})["metadata"]
    assert admit("status", status={"devices": []})["status"] == {"devices": []}
    for subresource, parts, field in (
        ("", {"spec": {"devices": "1"}}, "spec.devices"), ("status", {"status": {"devices": "1"}}, "status.devices"),
        ("", {"metadata": {"name": "x", "namespace": "here", "labels": {"a b": "c"}}}, "metadata.labels"),
    ):
        with pytest.raises(Invalid) as caught:
            admit(subresource, **parts)
        assert [cause.field for cause in caught.value.causes] == [field]
    await store.close()
