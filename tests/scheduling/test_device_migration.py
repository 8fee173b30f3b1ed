"""What becomes of each device of a VM in a live migration: travels, reattached, or blocks with a code."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import reattached_devices
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.rejection import RejectionCode
from outfitter.scheduling.device_migration import DeviceMigration, SourceView, blocking, device_migrations, text
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.flavor_claim import AliasSet

MARKED: Object = {"liveMigratable": {"bool": True}}
UUID: Object = {"mdevUUID": {"string": "aa618089-8b16-4d01-a136-25a0f3c73123"}}
VGPU = Gates(frozenset({"VGPULiveMigration"}))
VM_OWNER: Object = {"kind": "VirtualMachine", "name": "blue", "uid": "vm-uid", "controller": True}


class Case(NamedTuple):
    expected: dict[str, str]  # device -> how, or "blocks CODE"
    devices: dict[str, Object]  # published: name -> attributes
    gates: Gates = Gates()
    claims: tuple[Object, ...] = ({"name": "acc", "resourceClaimTemplateName": "one"},)
    owner: Object | None = None  # of the claim
    gpus: tuple[str, ...] = ("card",)  # requests
    spec: Object | None = None  # further parts of the VMI's spec
    results: tuple[tuple[str, str], ...] | None = None  # request, device; as published if None
    declared: str | None = None  # the annotation of the VMI
    in_place: bool = True


def by_name(name: str = "mine") -> tuple[Object, ...]:
    return ({"name": "acc", "resourceClaimName": name},)


def nic(**network: Any) -> Object:
    return {"networks": [{"name": "fast", **network}], "interfaces": [{"name": "fast", "sriov": {}}]}


CASES = {
    "marked": Case({"g0": "travels"}, {"gpu-0": MARKED}),
    "marked with the driver's domain": Case({"g0": "travels"}, {"gpu-0": {"a.test/liveMigratable": {"bool": True}}}),
    "marked by another driver": Case({"g0": "blocks DeviceNotMigratable"}, {
        "gpu-0": {"b.test/liveMigratable": {"bool": True}}}),
    "not marked": Case({"g0": "blocks DeviceNotMigratable"}, {"gpu-0": {}}),
    "marked as not": Case({"g0": "blocks DeviceNotMigratable"}, {"gpu-0": {"liveMigratable": {"bool": False}}}),
    "one of two is not marked": Case({"g0": "blocks DeviceNotMigratable"}, {"gpu-0": MARKED, "gpu-1": {}}),
    "a claim by name": Case({"g0": "blocks ClaimByName"}, {"gpu-0": MARKED}, claims=by_name()),
    "a claim that the VM owns": Case({"g0": "travels"}, {"gpu-0": MARKED}, claims=by_name(), owner=VM_OWNER),
    "a claim that another VM owns": Case({"g0": "blocks ClaimByName"}, {"gpu-0": MARKED}, claims=by_name(),
                                         owner={**VM_OWNER, "uid": "other"}),
    "one mediated device": Case({"g0": "travels"}, {"gpu-0": UUID}, VGPU),
    "a mediated device without the gate": Case({"g0": "blocks FeatureDisabled"}, {"gpu-0": UUID}),
    "two mediated devices of one request": Case({"g0": "blocks SeveralMediatedDevices"}, {"gpu-0": UUID, "gpu-1": UUID}, VGPU),
    "two mediated devices": Case({"g0": "blocks SeveralMediatedDevices", "g1": "blocks SeveralMediatedDevices"},
                                 {"gpu-0": UUID, "gpu-1": UUID}, VGPU, gpus=("card", "other"),
                                 results=(("card", "gpu-0"), ("other", "gpu-1"))),
    "two marked mediated devices": Case({"g0": "travels"}, {"gpu-0": UUID | MARKED, "gpu-1": UUID | MARKED}),
    "not published now": Case({"g0": "blocks DeviceNotPublished"}, {}, results=(("card", "gpu-0"),)),
    "not allocated": Case({"g0": "blocks ClaimNotAllocated"}, {}, results=()),
    "by resource name": Case({"h": "blocks DeviceByResource"}, {}, gpus=(), results=(), spec={
        "hostDevices": [{"name": "h", "deviceName": "a.test/x"}]}),
    "a NIC on a VF": Case({"fast": "reattached"}, {}, gpus=(), results=(), spec=nic(multus={"networkName": "net"})),
    "a NIC of a claim from a template": Case({"fast": "reattached"}, {}, gpus=(), results=(), spec=nic(
        resourceClaim={"claimName": "acc", "requestName": "card"})),
    "a NIC of a claim by name": Case({"fast": "blocks ClaimByName"}, {}, claims=by_name(), gpus=(), results=(), spec=nic(
        resourceClaim={"claimName": "acc", "requestName": "card"})),
    "not marked, and its guest agrees": Case({"g0": "reattached"}, {"gpu-0": {}}, declared="g0"),
    "not marked, and its guest agrees to all": Case({"g0": "reattached"}, {"gpu-0": {}}, declared="*"),
    "its guest agrees to another one": Case({"g0": "blocks DeviceNotMigratable"}, {"gpu-0": {}}, declared="g00, g1"),
    "one of two that its guest agrees to": Case(
        {"g0": "blocks DeviceNotMigratable", "g1": "reattached"}, {"gpu-0": {}, "gpu-1": {}}, declared="x, g1",
        gpus=("card", "other"), results=(("card", "gpu-0"), ("other", "gpu-1"))),
    "one of two devices is marked, and its guest agrees": Case(
        {"g0": "reattached"}, {"gpu-0": MARKED, "gpu-1": {}}, declared="*"),
    "marked, and its guest agrees": Case({"g0": "travels"}, {"gpu-0": MARKED}, declared="*"),
    "a mediated device without the gate, and its guest agrees": Case({"g0": "reattached"}, {"gpu-0": UUID}, declared="*"),
    "a mediated device that may travel, and its guest agrees": Case({"g0": "travels"}, {"gpu-0": UUID}, VGPU, declared="*"),
    "several mediated devices, and their guest agrees to one": Case(
        {"g0": "reattached", "g1": "blocks SeveralMediatedDevices"}, {"gpu-0": UUID, "gpu-1": UUID}, VGPU,
        gpus=("card", "other"), results=(("card", "gpu-0"), ("other", "gpu-1")), declared="g0"),
    "a claim by name, and its guest agrees": Case({"g0": "blocks ClaimByName"}, {"gpu-0": {}}, claims=by_name(), declared="*"),
    "a claim that the VM owns, and its guest agrees": Case(
        {"g0": "reattached"}, {"gpu-0": {}}, claims=by_name(), owner=VM_OWNER, declared="*"),
    "not published now, and its guest agrees": Case(
        {"g0": "blocks DeviceNotPublished"}, {"gpu-0": {}}, results=(("card", "gpu-0"), ("card", "gpu-1")), declared="*"),
    "not allocated, and its guest agrees": Case({"g0": "blocks ClaimNotAllocated"}, {}, results=(), declared="*"),
    "by resource name, and its guest agrees": Case(
        {"h": "blocks DeviceByResource"}, {}, gpus=(), results=(), declared="*", spec={
            "hostDevices": [{"name": "h", "deviceName": "a.test/x"}]}),
    "its guest agrees, and its host plugs nothing": Case(
        {"g0": "blocks PlugNotInPlace"}, {"gpu-0": {}}, declared="*", in_place=False),
    "marked, and its host plugs nothing": Case({"g0": "travels"}, {"gpu-0": MARKED}, declared="*", in_place=False),
    "both": Case({"g0": "travels", "fast": "reattached"}, {"gpu-0": MARKED}, spec=nic(multus={"networkName": "net"})),
}


def planned(case: Case) -> tuple[DeviceMigration, ...]:
    more = case.spec or {}
    gpus = [{"name": f"g{number}", "claimName": "acc", "requestName": request} for number, request in enumerate(case.gpus)]
    devices: Object = {"gpus": gpus, **{key: more[key] for key in ("hostDevices", "interfaces") if key in more}}
    annotations = {reattached_devices.DECLARED: case.declared} if case.declared is not None else {}
    vmi = {"metadata": {"name": "blue", "namespace": "lab", "uid": "u", "ownerReferences": [VM_OWNER],
                        "annotations": annotations},
           "spec": {"domain": {"devices": devices}, "networks": more.get("networks", []), "resourceClaims": list(case.claims)},
           "status": {"phase": "Running", "nodeName": "node-a"}}
    listed = [("card", name) for name in case.devices] if case.results is None else case.results
    results = [{"request": request, "driver": "a.test", "pool": "node-a", "device": name} for request, name in listed]
    claim = {"metadata": {"name": "mine", "namespace": "lab", "ownerReferences": [case.owner] if case.owner else []},
             "spec": {"devices": {"requests": []}},
             "status": {"allocation": {"devices": {"results": results}}} if results else {}}
    pod = {"metadata": {"name": "p", "namespace": "lab"}, "spec": {"nodeName": "node-a", "resourceClaims": list(case.claims)},
           "status": {"resourceClaimStatuses": [{"name": "acc", "resourceClaimName": "mine"}]}}
    published = {name: {"name": name, "attributes": attributes} for name, attributes in case.devices.items()}
    return device_migrations(vmi, SourceView(
        pod, lambda namespace, name: claim if name == "mine" else None,
        lambda result, host: published.get(result["device"], "not published"), case.gates, case.in_place))


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_each_device(name: str) -> None:
    case = CASES[name]
    found = planned(case)
    assert {one.name: f"{one.how} {one.code}".strip() for one in found} == case.expected
    assert all(bool(one.rejection) == (one.how == "blocks") for one in found)
    assert [one.name for one in blocking(found)] == [name for name, how in case.expected.items() if how.startswith("blocks")]


def test_reattached_devices_and_nics_have_their_words() -> None:
    [device] = planned(CASES["not marked, and its guest agrees"])
    [nic] = planned(CASES["a NIC on a VF"])
    assert device.to_object() == {
        "name": "g0", "how": "reattached", "reason": "the guest has no such device while it is copied"}
    assert nic.reason == "the guest has no such NIC while it is copied"


def test_flavor_travels_only_if_every_alias_says_so() -> None:
    """Also if the guest agrees to lose all of its devices."""
    def found(**written: str) -> list[str]:
        """Of a VMI with a flavor of two aliases, of which the second is written so."""
        aliases = AliasSet.read([{"name": "gpu", "vendor_id": "10de", "product_id": "20b0", "live_migratable": "yes"},
                                 {"name": "disk", "vendor_id": "144d", "product_id": "a80a", **written}], in_placement=False)
        vmi: Object = {"metadata": {"name": "blue", "namespace": "lab", "uid": "u", "annotations": {
                           reattached_devices.DECLARED: "*"}},
                       "spec": {"domain": {}, "flavor": {"name": "both"}}}
        flavor = {"metadata": {"name": "both"}, "spec": {"vcpus": 1, "memory": "1Gi", "extraSpecs": {
            "pci_passthrough:alias": "gpu:2,disk:1"}}}
        made = flavor_claim.claim(flavor, vmi, aliases, "claim-of-flavor")
        assert made is not None
        results = [{"request": request, "driver": "pci.outfitter.dev", "pool": "node-a", "device": name}
                   for request, name in (("gpu", "gpu-0"), ("gpu", "gpu-1"), ("disk", "disk-0"))]
        made["status"] = {"allocation": {"devices": {"results": results}}}
        vmi["status"] = {"phase": "Running", "nodeName": "node-a", "flavor": flavor_claim.settled(flavor, made)}
        view = SourceView(
            None, lambda namespace, name: made, lambda result, host: {"attributes": MARKED}, Gates(), in_place=True)
        return [f"{one.name} {one.how} {one.code}".strip() for one in device_migrations(vmi, view)]

    assert found(live_migratable="yes") == ["gpu-0 travels", "gpu-1 travels", "disk-0 travels"]
    assert found()[2] == "disk-0 blocks AliasNotMigratable"
    assert found(live_migratable="no")[2] == "disk-0 blocks AliasNotMigratable"


def test_text_names_devices_with_code_and_reason() -> None:
    said = text(planned(CASES["a claim by name"]))
    assert said == (f"g0: blocks ({RejectionCode.CLAIM_BY_NAME}: claim mine is referenced by name: it is one allocation on one "
                    "host and cannot follow)")
    assert text(planned(CASES["both"])) == "g0: travels; fast: reattached"
