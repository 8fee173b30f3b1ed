"""VMs at admission, as clients of the API server see it: all causes at once, warnings, who may change what."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.memory import Memory
from outfitter.store.sqlite import SQLite
from tests.apiserver.asgi import INSTANCES, MERGE, TABLE, Client

MACHINES = INSTANCES.replace("virtualmachineinstances", "virtualmachines")
MIGRATIONS = INSTANCES.replace("virtualmachineinstances", "virtualmachineinstancemigrations")
KUBEVIRTS = INSTANCES.replace("virtualmachineinstances", "kubevirts")
CONTROLLER = "system:serviceaccount:default:kubevirt-controller"


@pytest.fixture
def store(ruled: Memory) -> Memory:
    return ruled


@pytest.fixture
def client(store: Memory) -> Client:
    return Client(App(store, tokens={"admin": User("admin", (MASTERS,)), "controller": User(CONTROLLER, (MASTERS,))}))


def vmi(name: str = "blue", claims: Any = None, **devices: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"resourceClaims": claims or [], "domain": {"devices": devices}}}


def vm(name: str = "blue", claims: Any = None, **devices: Any) -> Object:
    template = {"spec": vmi(name, claims, **devices)["spec"]}
    return {"metadata": {"name": name}, "spec": {"runStrategy": "Halted", "template": template}}


def kubevirt(name: str = "kubevirt", on: Any = (), off: Any = (), **configuration: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"configuration": {
        "developerConfiguration": {"featureGates": list(on), "disabledFeatureGates": list(off)}, **configuration}}}


def gpu(name: str = "g", claim: str = "acc", request: str = "card", **more: Any) -> Object:
    return {"name": name, "claimName": claim, "requestName": request, **more}


TEMPLATE = [{"name": "acc", "resourceClaimTemplateName": "t"}]


def fields(answer: Any) -> list[str]:
    return [cause["field"] for cause in answer.json["details"]["causes"]]


async def test_all_causes_at_once_with_what_would_be_right(client: Client) -> None:
    bad = vm(claims=[{"name": "A"}], gpus=[gpu(claim="x"), gpu(request="")], interfaces=[{"name": "n", "state": "asleep"}])
    answer = await client.post(MACHINES, bad)
    root = "spec.template.spec"
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert fields(answer) == [
        f"{root}.resourceClaims[0].name", f"{root}.resourceClaims[0]", f"{root}.domain.devices.gpus[1].name",
        f"{root}.domain.devices.gpus[1].requestName", f"{root}.resourceClaims", f"{root}.domain.devices.interfaces[0].state",
        f"{root}.domain.devices.interfaces[0].name"]
    assert answer.json["message"].startswith('VirtualMachine.kubevirt.io "blue" is invalid: ')
    details = answer.json["details"]
    assert (details["name"], details["group"], details["kind"]) == ("blue", "kubevirt.io", "VirtualMachine")
    assert "up, down or absent" in answer.json["message"]
    assert (await client.get(f"{MACHINES}/blue")).status == 404


async def test_nothing_new_in_a_namespace_that_is_going_away(client: Client, store: Memory) -> None:
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "team", "finalizers": ["example.com/busy"]}})
    await store.delete(kinds.NAMESPACE, "team")
    answer = await client.post(MACHINES.replace("/default/", "/team/"), vm())
    assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
    assert [(cause["reason"], cause["field"]) for cause in answer.json["details"]["causes"]] == [
        ("NamespaceTerminating", "metadata.namespace")]


async def test_kinds_in_the_older_version(client: Client) -> None:
    old = {"apiVersion": "kubevirt.io/v1alpha3", "kind": "VirtualMachine", **vm()}
    answer = await client.post(MACHINES.replace("/v1/", "/v1alpha3/"), old)
    assert (answer.status, answer.json["apiVersion"]) == (201, "kubevirt.io/v1alpha3")
    assert (await client.get(f"{MACHINES}/blue")).json["apiVersion"] == "kubevirt.io/v1"


async def test_migration_names_a_vmi(client: Client) -> None:
    answer = await client.post(MIGRATIONS, {"metadata": {"name": "m"}, "spec": {}})
    assert fields(answer) == ["spec.vmiName"]
    answer = await client.post(MIGRATIONS, {"metadata": {"name": "m"}, "spec": {"vmiName": "nobody"}})
    assert fields(answer) == ["spec.vmiName"]
    assert "there is no VMI default/nobody" in answer.json["message"]


# -- warnings


class Case(NamedTuple):
    machine: Object
    warnings: list[str]
    there: tuple[tuple[kinds.Kind, Object], ...] = ()


def template(name: str = "t", cls: str = "gpu", *requests: str) -> tuple[kinds.Kind, Object]:
    asked = [{"name": each, "exactly": {"deviceClassName": cls}} for each in requests or ("card",)]
    return kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": name, "namespace": "default"},
                                           "spec": {"spec": {"devices": {"requests": asked}}}}


def definition(name: str, annotations: Object | None = None) -> tuple[kinds.Kind, Object]:
    return kinds.NETWORK_ATTACHMENT, {"metadata": {"name": name, "namespace": "default", "annotations": annotations or {}}}


CLASS: tuple[kinds.Kind, Object] = (kinds.DEVICE_CLASS, {"metadata": {"name": "gpu"}, "spec": {}})
OWN = {"name": "disk", "spec": template(cls="nvme")[1]["spec"]}
WARNED = {
    "all there": Case(vmi(claims=TEMPLATE, gpus=[gpu()]), [], (template(), CLASS)),
    "no template": Case(vmi(claims=TEMPLATE, gpus=[gpu()]), [
        'spec.resourceClaims[0].resourceClaimTemplateName: there is no ResourceClaimTemplate "t" in namespace "default" yet']),
    "no claim": Case(vmi(claims=[{"name": "acc", "resourceClaimName": "c"}]), [
        'spec.resourceClaims[0].resourceClaimName: there is no ResourceClaim "c" in namespace "default" yet']),
    "no such request": Case(vmi(claims=TEMPLATE, gpus=[{"name": "g", "claim": {"name": "acc", "request": "x"}}]), [
        'spec.domain.devices.gpus[0].claim.request: ResourceClaimTemplate "t" has no request "x"; it has card, nic'],
        (template("t", "gpu", "card", "nic"), CLASS)),
    "no such request of a network": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "resourceClaims": TEMPLATE, "domain": {"devices": {"interfaces": [{"name": "n", "sriov": {}}]}},
            "networks": [{"name": "n", "resourceClaim": {"claimName": "acc", "requestName": "vf"}}]}},
        ['spec.networks[0].resourceClaim.requestName: ResourceClaimTemplate "t" has no request "vf"; it has card'],
        (template(), CLASS)),
    "no class": Case(vmi(claims=TEMPLATE, gpus=[gpu()]), [
        'ResourceClaimTemplate "t": request "card" needs DeviceClass "gpu", which does not exist yet'], (template(),)),
    "a VM": Case(vm(claims=TEMPLATE, gpus=[gpu()]), [
        "spec.template.spec.resourceClaims[0].resourceClaimTemplateName: there is no ResourceClaimTemplate"]),
    "a VM that does not say whether it runs": Case(
        {"metadata": {"name": "blue"}, "spec": {"template": {"spec": {"domain": {}}}}},
        ["spec.runStrategy: not set, so the VM stays stopped"]),
    "a VM's own claims": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "running": False, "resourceClaimTemplates": [OWN],
            "template": {"spec": {"domain": {"devices": {"gpus": [gpu(claim="disk", request="y")]}}}}}},
        ['spec.resourceClaimTemplates[0].spec.spec: request "card" needs DeviceClass "nvme", which does not exist yet',
         "spec.template.spec.domain.devices.gpus[0].requestName: spec.resourceClaimTemplates[0].spec.spec has no request"]),
    "a VM's own claim of a template that is not there": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "running": False, "resourceClaimTemplates": [{"name": "disk", "resourceClaimTemplateName": "t"}],
            "template": {"spec": {"domain": {"devices": {"gpus": [gpu(claim="disk")]}}}}}},
        ['spec.resourceClaimTemplates[0].resourceClaimTemplateName: there is no ResourceClaimTemplate "t" in namespace '
         '"default" yet; the VM waits for it']),
    "a VM's own claim of a template": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "running": False, "resourceClaimTemplates": [{"name": "disk", "resourceClaimTemplateName": "t"}],
            "template": {"spec": {"domain": {"devices": {"gpus": [gpu(claim="disk", request="y")]}}}}}},
        ['spec.template.spec.domain.devices.gpus[0].requestName: ResourceClaimTemplate "t" has no request "y"; it has card'],
        (template(), CLASS)),
    "a VM's own claim that is listed too": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "running": False, "resourceClaimTemplates": [{"name": "acc", "resourceClaimTemplateName": "t"}],
            "template": {"spec": {"resourceClaims": TEMPLATE, "domain": {"devices": {"gpus": [gpu()]}}}}}},
        ["spec.template.spec.resourceClaims[0].resourceClaimTemplateName: there is no ResourceClaimTemplate"]),
    "a device that is not permitted": Case(vmi(gpus=[{"name": "g", "deviceName": "a.test/y"}]), [
        "spec.domain.devices.gpus[0].deviceName: a.test/y is not in permittedHostDevices"],
        ((kinds.KUBEVIRT, {"metadata": {"name": "kv", "namespace": "default"}, "spec": {"configuration": {
            "permittedHostDevices": {"pciHostDevices": [{"resourceName": "a.test/x", "pciVendorSelector": "10de:1eb8"}]}}}}),)),
    "missing networks and plugins": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}, {"name": "b", "binding": {"name": "vdpa"}},
                                                  {"name": "c", "binding": {"name": "tap"}}]}},
            "networks": [{"name": "a", "multus": {"networkName": "lan"}}, {"name": "b", "multus": {"networkName": "prod/wan"}},
                         {"name": "c", "pod": {}}]}},
        ['spec.networks[1].multus.networkName: there is no NetworkAttachmentDefinition "wan" in namespace "prod" yet',
         'spec.domain.devices.interfaces[1].binding.name: there is no network binding plugin "vdpa"'],
        ((kinds.NETWORK_ATTACHMENT, {"metadata": {"name": "lan", "namespace": "default"}, "spec": {}}),
         (kinds.KUBEVIRT, {"metadata": {"name": "kv", "namespace": "default"}, "spec": {"configuration": {
             "network": {"binding": {"tap": {}}}}}}))),
    "networks that are not there or give nothing": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "networks": [{"name": "a", "multus": {"networkName": "far/lan"}}, {"name": "b", "multus": {"networkName": "poor"}},
                         {"name": "c", "multus": {"networkName": "fast"}}],
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}, {"name": "b", "sriov": {}},
                                                  {"name": "c", "sriov": {}}]}}}},
        ['spec.networks[0].multus.networkName: there is no NetworkAttachmentDefinition "lan" in namespace "far" yet',
         'spec.networks[1].multus.networkName: NetworkAttachmentDefinition "poor" names no resource'],
        (definition("poor"), definition("fast", {"k8s.v1.cni.cncf.io/resourceName": "x.com/vf"}))),
    "no Secret": Case(
        {"metadata": {"name": "blue"}, "spec": {"running": False, "template": {"spec": {"domain": {}, "volumes": [
            {"name": "a", "cloudInitNoCloud": {"secretRef": {"name": "s"}, "networkDataSecretRef": {"name": "there"}}}]}}}},
        ['spec.template.spec.volumes[0].cloudInitNoCloud.secretRef: there is no Secret "s" in namespace "default" yet'],
        ((kinds.SECRET, {"metadata": {"name": "there", "namespace": "default"}}),)),
    "what is not served": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "livenessProbe": {"tcpSocket": {"port": 22}}, "priorityClassName": "high", "evictionStrategy": "LiveMigrate",
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}},
            "volumes": [{"name": "a", "hostDisk": {"path": "/a"}}, {"name": "b", "hostDisk": {"path": "/b"}}],
            "domain": {"launchSecurity": {"sev": {}}, "cpu": {"realtime": {}}, "ioThreadsPolicy": "auto",
                       "features": {"kvm": {"hidden": True}, "hyperv": {"vpindex": {}}},
                       "devices": {"autoattachVSOCK": True, "tpm": {}, "disks": [
                           {"name": "a"}, {"name": "b", "shareable": True}]}}}},
        ["spec.affinity.podAntiAffinity: not supported: the embedded scheduler ignores it",
         "spec.evictionStrategy: not supported: a VM that must leave its host is stopped, not migrated",
         "spec.livenessProbe: not supported: the guest is not probed",
         "spec.priorityClassName: not supported: the embedded scheduler ignores it",
         "spec.topologySpreadConstraints: not supported: the embedded scheduler ignores it",
         "spec.domain.cpu.realtime: not supported: its vCPUs are scheduled like all others",
         "spec.domain.features.hyperv: not supported: ",
         "spec.domain.features.kvm.hidden: not supported: ",
         "spec.domain.ioThreadsPolicy: not supported: ",
         "spec.domain.launchSecurity: not supported: the memory is not protected from the host",
         "spec.domain.devices.autoattachVSOCK: not supported: the VM has none",
         "spec.domain.devices.disks[1].shareable: not supported: ",
         "spec.domain.devices.tpm: not supported: a simulated VM starts without it, and a real host does not start the VM"]),
    "what is not served of a VM": Case(
        {"metadata": {"name": "blue"}, "spec": {
            "running": False, "instancetype": {"name": "large"}, "preference": {"name": "linux"}, "dataVolumeTemplates": [{}],
            "template": {"spec": {"readinessProbe": {"tcpSocket": {"port": 22}}, "domain": {}}}}},
        ["spec.dataVolumeTemplates: not supported: these volumes are not created", "spec.instancetype: not supported: ",
         "spec.preference: not supported: ", "spec.template.spec.readinessProbe: not supported: "]),
    "what is asked not to be": Case(
        {"metadata": {"name": "blue"}, "spec": {"evictionStrategy": "None", "domain": {
            "cpu": {"isolateEmulatorThread": False}, "features": {"kvm": {"hidden": False}},
            "devices": {"autoattachVSOCK": False, "autoattachMemBalloon": False, "filesystems": []}}}}, []),
    "one tag for two": Case(
        vmi(gpus=[{"name": "g", "deviceName": "a.test/y", "tag": "x"}], hostDevices=[
            {"name": "h", "deviceName": "a.test/z", "tag": "x"}]),
        ['spec.domain.devices.hostDevices[0].tag: gpus[0] has the tag "x" too']),
}


@pytest.mark.parametrize("name", WARNED)
async def test_warnings_of_what_cannot_work_yet(client: Client, store: Memory, name: str) -> None:
    case = WARNED[name]
    for kind, obj in case.there:
        await store.create(kind, obj)
    place = MACHINES if "template" in case.machine["spec"] else INSTANCES
    answer = await client.post(place, case.machine, dryRun="All")
    assert answer.status == 201, answer.json
    assert [words.replace('\\"', '"').startswith(f'299 - "{begin}') for words, begin in zip(
        answer.header("warning"), case.warnings, strict=True)] == [True] * len(case.warnings), answer.header("warning")


async def test_a_warning_comes_with_what_is_new(client: Client) -> None:
    """Not again with every label and status that is written."""
    assert (await client.post(MACHINES, vm(claims=TEMPLATE))).header("warning")
    place = f"{MACHINES}/blue"
    assert not (await client.patch(place, {"metadata": {"labels": {"a": "b"}}})).header("warning")
    assert not (await client.patch(f"{place}/status", {"status": {"ready": True}})).header("warning")
    assert (await client.patch(place, {"spec": {"template": {"spec": {"schedulerName": "x"}}}})).header("warning")


async def test_mac_that_another_nic_of_the_vm_got_is_refused(client: Client) -> None:
    """The generated one of a NIC without a MAC address in the template, which users read in the VMI's status."""
    def with_nics(*interfaces: Object) -> Object:
        networks = [{"name": card["name"], "multus": {"networkName": "lan"}} for card in interfaces]
        return {"spec": {"template": {"spec": {"networks": networks, "domain": {"devices": {"interfaces": interfaces}}}}}}

    uid = (await client.post(MACHINES, vm())).json["metadata"]["uid"]
    first, mac = {"name": "first", "bridge": {}}, network_info.generated_mac(uid, "first")
    second = {"name": "second", "bridge": {}, "macAddress": mac.upper().replace(":", "-")}
    answer = await client.patch(f"{MACHINES}/blue", with_nics(first, second))
    assert (answer.status, fields(answer)) == (422, ["spec.template.spec.domain.devices.interfaces[1].macAddress"])
    assert f'Duplicate value: "{mac}" is the MAC address of interface "first" too' in answer.json["message"]
    assert (await client.patch(f"{MACHINES}/blue", with_nics({**first, "macAddress": mac}))).status == 200, "its own"


# -- who may change an instance


async def test_an_instance_is_changed_by_the_system_alone(client: Client) -> None:
    await client.post(KUBEVIRTS, kubevirt())
    await client.post(INSTANCES, vmi())
    place, change = f"{INSTANCES}/blue", {"spec": {"domain": {"cpu": {"cores": 2}}}}
    answer = await client.patch(place, change)
    assert (answer.status, fields(answer)) == (422, ["spec.domain.cpu"])
    assert "update of VMI object is restricted" in answer.json["message"]
    assert (await client.patch(place, {"metadata": {"labels": {"a": "b"}}})).status == 200
    controller = Client(client.app, token="controller")
    assert (await controller.patch(place, change)).status == 200
    claims = {"spec": {"resourceClaims": TEMPLATE}}
    answer = await client.patch(place, claims)
    assert (answer.status, fields(answer)) == (422, ["spec.resourceClaims"])
    assert (await controller.patch(place, claims)).status == 200, "claims of plugged NICs are added"
    answer = await controller.patch(place, {"spec": {"resourceClaims": []}})
    assert (answer.status, fields(answer)) == (422, ["spec.resourceClaims"]), "those that are there stay"


async def test_our_own_loops_change_instances(client: Client, store: Memory) -> None:
    await client.post(INSTANCES, vmi())
    await store.patch(kinds.VMI, "blue", {"spec": {"schedulerName": "x"}}, "default")


# -- the KubeVirt object


async def test_gates_hold_from_the_very_next_write(client: Client) -> None:
    machine = vmi(claims=TEMPLATE, gpus=[gpu()])
    assert (await client.post(INSTANCES, machine)).status == 201, "open by default"
    assert (await client.post(KUBEVIRTS, kubevirt(off=["GPUsWithDRA"]))).status == 201
    answer = await client.post(INSTANCES, {**machine, "metadata": {"name": "red"}})
    assert (answer.status, fields(answer)) == (422, ["spec.domain.devices.gpus"])
    assert "GPUsWithDRA" in answer.json["message"]
    place = f"{INSTANCES}/blue"
    assert (await client.patch(place, {"metadata": {"finalizers": ["a.test/b"]}})).status == 200, "it was let in, and stays"
    await client.patch(f"{KUBEVIRTS}/kubevirt", {"spec": {"configuration": {"developerConfiguration": {
        "featureGates": ["DRADevices"]}}}})
    assert (await client.post(INSTANCES, {**machine, "metadata": {"name": "red"}})).status == 201
    await client.delete(f"{KUBEVIRTS}/kubevirt")
    assert (await client.post(INSTANCES, {**machine, "metadata": {"name": "green"}})).status == 201


async def test_gates_hold_before_the_disk_has_them(tmp_path: Any) -> None:
    """A VM that comes right behind the KubeVirt object is judged by it, though neither is on the disk yet."""
    store = SQLite(tmp_path, kinds.ALL, rules=admission.AdmissionRules())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})

    def whole(kind: kinds.Kind, obj: Object) -> Any:
        return store.create(kind, {**obj, "metadata": {**obj["metadata"], "namespace": "default"}})

    results = await asyncio.gather(
        whole(kinds.KUBEVIRT, kubevirt(off=["GPUsWithDRA"])), whole(kinds.VMI, vmi(claims=TEMPLATE, gpus=[gpu()])),
        return_exceptions=True)
    await store.close()
    assert "GPUsWithDRA" in str(results[1])


async def test_there_is_one_kubevirt(client: Client) -> None:
    await client.post(KUBEVIRTS, kubevirt())
    answer = await client.post(KUBEVIRTS, kubevirt("other"))
    assert fields(answer) == ["metadata.name"]
    assert "KubeVirt default/kubevirt exists already" in answer.json["message"]


async def test_settings_that_are_none(client: Client) -> None:
    bad = kubevirt(vmRolloutStrategy="Soon", permittedHostDevices={
        "pciHostDevices": [{"pciVendorSelector": "nvidia", "resourceName": "a.test/x"}], "mediatedDevices": [{}]})
    bad["spec"]["workloadUpdateStrategy"] = {"workloadUpdateMethods": ["LiveMigrate", "Wish"]}
    answer = await client.post(KUBEVIRTS, bad)
    at = "spec.configuration.permittedHostDevices"
    assert fields(answer) == [
        "spec.configuration.vmRolloutStrategy", "spec.workloadUpdateStrategy.workloadUpdateMethods[1]",
        f"{at}.mediatedDevices[0].resourceName", f"{at}.mediatedDevices[0].mdevNameSelector",
        f"{at}.pciHostDevices[0].pciVendorSelector"]


async def test_gates_without_effect_get_a_warning(client: Client) -> None:
    answer = await client.post(KUBEVIRTS, kubevirt(on=["Teleportation", "GPUsWithDRA"], off=["GPUsWithDRA"]))
    assert answer.status == 201
    first, second = answer.header("warning")
    assert "Teleportation has no effect here; known gates: GPUsWithDRA, " in first
    assert "GPUsWithDRA is also in featureGates, and stays on" in second


async def test_tables(client: Client) -> None:
    await client.post(MACHINES, vm())
    await client.patch(f"{MACHINES}/blue/status", {"status": {"printableStatus": "Stopped"}})
    table = (await client.get(MACHINES, accept=TABLE)).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Age", "Status", "Ready", "Run-Strategy"]
    assert table["rows"][0]["cells"] == ["blue", "0s", "Stopped", "", "Halted"]
    await client.post(KUBEVIRTS, kubevirt())
    await client.patch(f"{KUBEVIRTS}/kubevirt/status", {"status": {"phase": "Deployed"}})
    assert (await client.get(KUBEVIRTS, accept=TABLE)).json["rows"][0]["cells"][:3] == ["kubevirt", "0s", "Deployed"]


async def test_users_cannot_remove_bookings(client: Client, store: Memory) -> None:
    """Marks are: `outfit device reserve` writes them as whoever types it."""
    pages = "/apis/outfitter.dev/v1alpha1/ledgerpages"
    device = {"driver": "pci.outfitter.dev", "pool": "node-0", "device": "vf0"}
    holder = {"kind": "ResourceClaim", "namespace": "default", "name": "c", "uid": "u", "purpose": "vmi/blue"}
    await store.create(kinds.NODE, {"metadata": {"name": "node-0"}})
    await store.create(kinds.LEDGER_PAGE, {"metadata": {"name": "node-0"}, "spec": {"host": "node-0", "bookings": [
        {"device": device, "holder": holder, "state": "prepared", "since": "2026-01-01T00:00:00Z"}]}})
    refused = await client.delete(f"{pages}/node-0")
    assert refused.status == 403
    assert "vf0 for vmi/blue" in refused.json["message"]
    changed = await client.patch(f"{pages}/node-0", {"spec": {"bookings": []}}, MERGE)
    assert (changed.status, fields(changed)) == (422, ["spec.bookings"])
    mark = {"device": device, "reason": "broken", "by": "admin", "since": "2026-01-01T00:00:00Z"}
    assert (await client.patch(f"{pages}/node-0", {"spec": {"quarantined": [mark]}}, MERGE)).status == 200
    await client.delete("/api/v1/nodes/node-0")  # the host is gone for good
    assert (await client.delete(f"{pages}/node-0")).status == 200
